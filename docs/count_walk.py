"""Count what one tuple passes on its walk through a tree: functions, files, and forms of one batch.

    git worktree add ../before d78be9f && python docs/count_walk.py ../before && python docs/count_walk.py .

The flow is that of docs/map.rst: `Table`, an exchange, a `KeyedOperator` and `Collect`, on two sites. Rows pass one at
a time. The window of a row begins when the source is asked for it and ends when `Collect` has it. A profile function in
every process notes what runs in it. A function is on the walk if, in one process, it runs in the window of every row,
and more often than timers explain: they are counted for some seconds without a row. The first rows are left out, since
they also start things. A coroutine that is resumed only to resume what it awaits does not count.

A form of a batch is a class of Flux or Arrow of which an object was made in the window and holds every column of the
row, directly or in another form. A column on its own is not a form, and neither is a part of a process.
"""

from __future__ import annotations

import argparse
import dis
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar, TypeAlias

WARM_UP_ROWS, ROWS = 5, 30
SETTLE_S, IDLE_S = 1.0, 4.0  # After the first rows: until all is quiet, and then without a row.
GAP_S = 0.05, 0.15  # Between rows, by chance, so that timers fall at any place of a window.
MARK = re.compile(rb"mark-([ab])-(\d{4})")
MOST_BYTES, MOST_ITEMS, DEPTH = 1 << 16, 64, 8  # Where the search for a mark ends; one row is much smaller.
NEW_S = 1.0  # An object older than this was there before the row.
FOLDERS = ("flux", "protocols", "spec")
YIELD = dis.opmap["YIELD_VALUE"]
WINDOW_BEGIN, WINDOW_END, IDLE, CALL, FORM = "begin", "end", "idle", "call", "form"


class Log:
    """One file for each process, written as things happen: processes of a run end without notice."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "arrived").mkdir(parents=True)
        self.open()
        os.register_at_fork(after_in_child=self.open)

    def open(self) -> None:
        self._file = os.open(self.directory / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, kind: str, *values: Any) -> None:
        os.write(self._file, ("\t".join([kind, *map(str, values)]) + "\n").encode())

    def arrived(self, number: int) -> Path:
        """The file that says that a row is in the sink."""
        return self.directory / "arrived" / str(number)

    def lines(self, *kinds: str) -> Iterator[tuple[str, list[str]]]:
        """Every line of these kinds, with its process."""
        for path in filter(Path.is_file, sorted(self.directory.iterdir())):
            for line in path.read_text().splitlines():
                if line.split("\t")[0] in kinds:
                    yield path.name, line.split("\t")


class Function:
    """A code object: its instructions, and its file and name if it is of the tree.

    A lambda or comprehension counts as the function it is in.
    """

    def __init__(self, code: CodeType, tree: Path) -> None:
        self.code = code  # Kept, so that its id stays its own.
        self.instructions = code.co_code
        path = Path(code.co_filename).resolve()
        is_of_tree = any(path.is_relative_to(tree / folder) for folder in FOLDERS)
        self.name = f"{path.relative_to(tree)}\t{code.co_qualname.split('.<locals>')[0]}" if is_of_tree else None


class Segment:
    """A frame from its call or resumption to its return or yield."""

    __slots__ = ("begin", "children", "does_child_yield", "is_resumed")

    def __init__(self, is_resumed: bool) -> None:
        self.begin = time.monotonic()
        self.is_resumed = is_resumed
        self.children = 0
        self.does_child_yield = False


class Profile:
    """The profile function: writes a line for each segment of a function of the tree, or for each form it meets."""

    def __init__(self, tree: Path, log: Log, of_forms: bool) -> None:
        self._tree = tree
        self._log = log
        self._of_forms = of_forms
        self._functions: dict[int, Function] = {}
        self._threads = threading.local()
        self._made_at: dict[int, tuple[type, float]] = {}

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        if event not in ("call", "return"):
            return
        stack: list[Segment] = self._threads.__dict__.setdefault("stack", [])
        function = self._functions.get(id(frame.f_code))
        if function is None:
            function = self._functions[id(frame.f_code)] = Function(frame.f_code, self._tree)
        if event == "call":
            stack.append(Segment(frame.f_lasti >= 2 and function.instructions[frame.f_lasti - 2] == YIELD))
        elif stack:
            self._end(frame, function, stack, value)

    def _end(self, frame: FrameType, function: Function, stack: list[Segment], value: Any) -> None:
        segment = stack.pop()
        is_yield = function.instructions[frame.f_lasti] == YIELD
        if stack:
            stack[-1].children += 1
            stack[-1].does_child_yield = is_yield
        only_awaits = segment.is_resumed and segment.children == 1 and segment.does_child_yield and is_yield
        if self._of_forms:
            self._find_forms(frame, function, segment, value)
        elif function.name is not None and not only_awaits:
            self._log.write(CALL, segment.begin, time.monotonic(), function.name)

    def _find_forms(self, frame: FrameType, function: Function, segment: Segment, value: Any) -> None:
        if function.code.co_name == "__init__" and "self" in frame.f_locals:
            made = frame.f_locals["self"]
            self._made_at[id(made)] = type(made), segment.begin
        if function.name is None:
            return
        now = time.monotonic()
        for each in (*frame.f_locals.values(), value):
            for number in whole_rows(self.marks(each, now)) if is_of_flux_or_arrow(each) else ():
                self._log.write(FORM, now, number, f"{type(each).__module__}.{type(each).__qualname__}")

    def marks(self, value: Any, now: float, depth: int = DEPTH) -> set[tuple[bytes, bytes]]:
        """The marks of rows in a value; parts of a process that were there before the row are not searched."""
        if depth == 0 or value is None or isinstance(value, int | float | type):
            return set()
        if isinstance(value, str):
            return set(MARK.findall(value.encode(errors="replace")))
        if isinstance(value, bytes | bytearray | memoryview):
            return set(MARK.findall(value)) if len(value) <= MOST_BYTES else set()
        if type(value).__module__.startswith("pyarrow"):
            return arrow_marks(value)
        if isinstance(value, dict):
            parts = [*value.values()]
        elif isinstance(value, list | tuple) or type(value).__name__ in ("deque", "ndarray"):
            parts = value.tolist() if hasattr(value, "tolist") else [*value]
        else:
            parts = fields(value) if is_of_flux_or_arrow(value) and self._is_new(value, now) else []
        parts = parts if isinstance(parts, list) else [parts]
        return set().union(*(self.marks(part, now, depth - 1) for part in parts[:MOST_ITEMS]))

    def _is_new(self, value: Any, now: float) -> bool:
        made_as, made_at = self._made_at.get(id(value), (None, 0.0))
        return made_as is type(value) and now - made_at < NEW_S


def is_of_flux_or_arrow(value: Any) -> bool:
    return type(value).__module__.split(".")[0] in ("flux", "pyarrow")


def fields(value: Any) -> list[Any]:
    slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]


def arrow_marks(value: Any) -> set[tuple[bytes, bytes]]:
    if hasattr(value, "to_pybytes"):
        return set(MARK.findall(value.to_pybytes())) if value.size <= MOST_BYTES else set()
    if hasattr(value, "to_pylist") and len(value) <= MOST_ITEMS:
        return set(MARK.findall(str(value.to_pylist()).encode()))
    return set()


def whole_rows(marks: set[tuple[bytes, bytes]]) -> set[int]:
    """The numbers of rows of which both columns are there."""
    return {int(number) for column, number in marks if column == b"a" and (b"b", number) in marks}


def run_flow(tree: Path, log: Log, of_forms: bool) -> None:
    sys.path.insert(0, str(tree))
    import trio

    import flux

    assert flux.__file__ and Path(flux.__file__).resolve().is_relative_to(tree), flux.__file__

    class Rows(flux.sources.Table):
        async def batches(self, *args: Any, **named: Any) -> Any:
            source = super().batches(*args, **named)
            for number in range(WARM_UP_ROWS + ROWS):
                while number and not log.arrived(number - 1).exists():
                    await trio.sleep(GAP_S[0])
                await trio.sleep(random.uniform(*GAP_S))  # What the row before has caused ends.
                if number == WARM_UP_ROWS:
                    await trio.sleep(SETTLE_S)
                    log.write(IDLE, time.monotonic())
                    await trio.sleep(IDLE_S)
                log.write(WINDOW_BEGIN, number, time.monotonic())
                yield await anext(source)

    class Output(flux.sinks.Collect):
        def write(self, rows: Any, *args: Any, **named: Any) -> None:
            super().write(rows, *args, **named)
            for number in whole_rows(arrow_marks(rows)):
                log.write(WINDOW_END, number, time.monotonic())
                log.arrived(number).touch()

    class Counts(flux.KeyedOperator):
        output: ClassVar = {"a": "string", "b": "string", "count": "int64"}

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            count = (state or 0) + 1
            return count, [{"a": row.a, "b": row.b, "count": count}]

    rows = [{"key": 1, "a": f"mark-a-{n:04}", "b": f"mark-b-{n:04}"} for n in range(WARM_UP_ROWS + ROWS)]
    flow = flux.Dataflow("walk")
    flow.source(Rows(rows, batch_rows=1)).exchange("key", partitions=2).apply(Counts).sink(Output())
    profile = Profile(tree, log, of_forms)
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        report = flow.run(sites=2)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    assert report.outputs == len(rows), f"{report.outputs} of {len(rows)} rows came out"


Windows: TypeAlias = dict[int, tuple[float, float]]  # By row: when it begins and ends, in seconds.


def windows_of(log: Log) -> Windows:
    times = {(line[0], int(line[1])): float(line[2]) for _, line in log.lines(WINDOW_BEGIN, WINDOW_END)}
    counted = range(WARM_UP_ROWS, WARM_UP_ROWS + ROWS)
    return {number: (times[WINDOW_BEGIN, number], times[WINDOW_END, number]) for number in counted}


def functions_of(log: Log, windows: Windows) -> tuple[set[str], set[str]]:
    """The functions on the walk, and the others that ran in a window."""
    [idle_begin] = [float(line[1]) for _, line in log.lines(IDLE)]
    ran: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    ran_idle: Counter[tuple[str, str]] = Counter()
    for process, (_, begin, end, path, function) in log.lines(CALL):
        key = process, f"{path} {function}"
        ran_idle[key] += idle_begin <= float(begin) <= idle_begin + IDLE_S
        for number, (first, last) in windows.items():
            if first <= float(begin) <= last or first <= float(end) <= last:
                ran[key][number] += 1
    idle_share = sum(last - first for first, last in windows.values()) / IDLE_S
    walk = {
        key[1]
        for key, calls in ran.items()
        if len(calls) == ROWS and calls.total() - idle_share * ran_idle[key] > ROWS / 2
    }
    return walk, {name for _, name in ran} - walk


def forms_of(log: Log, windows: Windows) -> set[str]:
    """The classes of which an object held every row."""
    held: dict[str, set[int]] = defaultdict(set)
    for _, (_, now, number, name) in log.lines(FORM):
        if int(number) in windows and windows[int(number)][0] <= float(now) <= windows[int(number)][1]:
            held[name].add(int(number))
    return {name for name, rows in held.items() if len(rows) == ROWS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--list", action="store_true", help="also print every name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        # The search for forms is slow, so it has a run of its own.
        calls, forms_met = Log(Path(directory) / "calls"), Log(Path(directory) / "forms")
        run_flow(options.tree.resolve(), calls, of_forms=False)
        run_flow(options.tree.resolve(), forms_met, of_forms=True)
        windows = windows_of(calls)
        functions, others = functions_of(calls, windows)
        forms = forms_of(forms_met, windows_of(forms_met))
    files = {name.split()[0] for name in functions}
    print(f"{len(functions)} functions, {len(files)} files, {len(forms)} forms of one batch")
    lengths_ms = sorted(1000 * (last - first) for first, last in windows.values())
    print(f"windows of {lengths_ms[0]:.0f} to {lengths_ms[-1]:.0f} ms; {len(others)} functions ran beside the walk")
    lists = {"Forms": forms, "Files": files, "Functions": functions, "Beside the walk": others}
    for title, names in lists.items() if options.list else ():
        print("", title, "-" * len(title), *sorted(names), sep="\n")


if __name__ == "__main__":
    main()
