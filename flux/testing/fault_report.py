"""The report of a fault of an operator: the rows, the two ways, the first difference, what to do."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ..model.operator import KeyedOperator, PooledOperator
from ..model.punctuation import Punctuation
from .harness import GivenInput, Output, Way

__all__ = ["ADVICE", "Fault", "Story", "describe", "first_difference", "form_of", "is_rounding"]

_LINES_MAX = 30
_SHOWN_CHARS = 160

# By claim: the fault of an operator for which it does not hold, what it means, and what to do.
ADVICE: dict[str, tuple[str, str, str]] = {
    "repeats": (
        "gives different output each time it is run",
        "Both copies of a partition get the same rows, and would emit different output.",
        "It must not draw random numbers, and not depend on id(), on uuid4(), or on the order in which threads end. "
        "Draw from a generator that you seed from the row, such as random.Random(row.id).",
    ),
    "chance": (
        "is non-deterministic: it does not do the same each time",
        "Both copies of a partition get the same rows, and sometimes one of them would behave differently.",
        "It must not depend on chance: on random numbers, id(), uuid4(), or the order in which threads end; nor on "
        "state outside of it: class attributes, globals, caches, files.",
    ),
    "clock": (
        "depends on the clock",
        "Both copies of a partition get the same rows, at different times, and would emit different output.",
        "Take time from a column of the rows, or from punctuations: on_punctuation(p) gets p.kind 'watermark' or "
        "'clock', with the milliseconds in p.value.",
    ),
    "input": (
        "writes to rows that it does not own",
        "Its input rows, and the rows that it has emitted, are buffered until all their destinations have them.",
        "",
    ),
    "batching": (
        "depends on where batches are cut",
        "Copies of a partition get the same rows in different batches, and would emit different output.",
        "Keep what is needed from row to row in the state, not in local variables. Emit the output of a row when that "
        "row is processed, from its own batch (origin=). The only boundaries that may matter are punctuations.",
    ),
    "floats": (
        "sums floating-point numbers by batch",
        "The values differ in their last digits: a sum of floats depends on how they are grouped, and copies of a "
        "partition get the same rows in different batches.",
        "Add values one after the other, in row order (total += value, numpy.cumsum from the last total), or exactly "
        "(math.fsum over all values, integers, Decimal, Fraction); numpy.sum and pyarrow's sum group them.",
    ),
    "round trip": (
        "is not the same when restored from its state",
        "When a copy is lost or moved, another is restored from the state, and would emit different output.",
        "Let get_state return everything that is kept from one row to the next, and let install_state install it. "
        "get_state itself must change nothing.",
    ),
    "shared": (
        "keeps state outside of its instances",
        "Copies of a partition in one process share it, and those in other processes have none of it.",
        "Keep state in attributes that open() sets, as self.seen = {}, and let get_state return it; not in class "
        "attributes, globals or default arguments. Copy a parameter before you change it.",
    ),
    "process": (
        "depends on the process in which it runs",
        "Copies of a partition are in different processes, and would emit different output.",
        "Keep state in attributes that open() sets, and let get_state return it; not in files, in the environment or "
        "in a shared object. It must not depend on os.getpid(), on how a process was started, or on the order of a set "
        "in its state.",
    ),
    "hash order": (
        "depends on the order of a set or on hash()",
        "The hash of text differs from process to process, so copies of a partition would emit different output.",
        "Iterate over sorted(some_set), or keep a dict, which has the order of insertion; do not emit hash(value).",
    ),
}

_SETS = "The order of a set is not part of the state: iterate over sorted(some_set)."
# What to do about incomplete state, for forms of operators without get_state.
_STATE_OF = {
    "KeyedOperator": "Let on_tuple return everything that is kept for a key, as its state. Attributes of the operator "
    "do not move, and all keys on a site share them.",
    "PooledOperator": "Let get_partition_state return everything that is kept of a partition, and nothing of others. "
    "Let install_partition_state add it to the state of other partitions, and drop_partition forget it.",
    "bytewax": "Let snapshot() return everything that is kept for a key, and let builder(snapshot) install it. "
    "snapshot() itself must change nothing.",
}


def form_of(operator: Any) -> str:
    """Return the form of an operator, which decides by which methods its state is read and installed."""
    kind = operator if isinstance(operator, type) else type(operator)
    if issubclass(kind, KeyedOperator):
        return "KeyedOperator"
    if issubclass(kind, PooledOperator):
        return "PooledOperator"
    return "bytewax" if hasattr(kind, "notified_by") else "Operator"


class Fault(AssertionError):
    """An operator does not do what the protocol assumes; the text says what, with a small example."""

    def __init__(self, story: Story) -> None:
        super().__init__(story.text())
        self.claim = story.claim
        self.size = len(story.given.sn) + len(story.given.punctuations)  # Of the example.
        self.story = story

    def is_like(self, other: Fault) -> bool:
        """Return whether the other is the same fault: of the same claim, with an error from the same place."""
        return (self.claim, self.story.error_place()) == (other.claim, other.story.error_place())


@dataclass(frozen=True)
class Story:
    """The contents of a fault report: the operator, the claim, and the input and ways for which it does not hold."""

    name: str
    claim: str
    given: GivenInput
    ways: tuple[str, ...]
    outputs: tuple[Sequence[Output], Sequence[Output]] | None = None
    error: BaseException | None = None  # Raised by the operator, or by a check of what it did.
    more: str = ""
    form: str = "Operator"

    def text(self) -> str:
        fault, means, advice = ADVICE.get(self.claim, ("raises", "", ""))
        if self.claim == "round trip":
            advice = f"{_STATE_OF.get(self.form, advice)} {_SETS}"
        lines = [f"{self.name} {fault}.", "", "The input, in order:", *_event_lines(self.given), ""]
        if len(self.ways) > 1:
            lines += [f"One way:   {self.ways[0]}", f"The other: {self.ways[1]}", ""]
        else:
            lines += [f"It was run: {self.ways[0]}", ""]
        lines += _difference_lines(self.outputs) if self.outputs is not None else []
        lines += [f"{type(self.error).__name__}: {self.error}", ""] if self.error is not None else []
        lines += [self.more, ""] if self.more else []
        lines += [f"What it means: {means}"] * bool(means) + [f"What to do: {advice}"] * bool(advice)
        return "\n".join(lines).rstrip()

    def error_place(self) -> tuple[str, str, int]:
        """Return the type of the error, and the file and line that raised it."""
        error = self.error if self.error is None or self.error.__cause__ is None else self.error.__cause__
        places = traceback.extract_tb(error.__traceback__) if error is not None else []
        file, line = (places[-1].filename, places[-1].lineno or 0) if places else ("", 0)
        return type(error).__name__, file, line


def first_difference(one: Sequence[Output], other: Sequence[Output]) -> int | None:
    """Return the index of the first output that differs; None if none does."""
    for i, (a, b) in enumerate(zip_longest(one, other)):
        if a is None or b is None or a.text() != b.text():
            return i
    return None


def is_rounding(one: Sequence[Output], other: Sequence[Output]) -> bool:
    """Return whether outputs differ only in the last digits of floats."""
    if len(one) != len(other):
        return False
    return all(
        (a.sn, a.sub, a.partition, a.values.keys()) == (b.sn, b.sub, b.partition, b.values.keys())
        and all(map(_close, a.values.values(), b.values.values()))
        for a, b in zip(one, other, strict=True)
    )


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) or repr(a) == repr(b)
    return repr(a) == repr(b)


def describe(given: GivenInput, way: Way) -> str:
    """Return a way as text: the batches by the numbers in them, and the moves between them."""
    punctuations = {mark.sn: mark for mark in given.punctuations}
    moves = {number for number, _ in way.moves}
    parts: list[str] = []
    batch: list[int] = []
    for number in sorted([*given.sn.tolist(), *punctuations]):
        if number in punctuations:
            parts += [*_describe_batch(batch), punctuations[number].kind]
            batch = []
        else:
            batch.append(number)
        if number in way.cuts or number in moves:
            parts += _describe_batch(batch)
            batch = []
        if number in moves:
            parts += _describe_moves([pid for moved, pid in way.moves if moved == number], way.reads)
    return " ".join(parts + _describe_batch(batch)) + (" on two sites" if way.sites > 1 else "")


def _describe_moves(pids: list[int], reads: bool) -> Iterator[str]:
    """Yield the moves of partitions at one place; a partition that moves twice is back where it was."""
    once = sorted({pid for pid in pids if reads or pids.count(pid) % 2})
    back = sorted({*pids} - {*once})
    move = "moves to another site"
    for some, what in ((once, "is read" if reads else move), (back, f"{move} and back")):
        if some:
            yield f"(state of partition {', '.join(map(str, some))} {what})"


def _describe_batch(numbers: list[int]) -> list[str]:
    if len(numbers) < 2:
        return [f"[{number}]" for number in numbers]
    return [f"[{numbers[0]} to {numbers[-1]}]"]


def _event_lines(given: GivenInput) -> list[str]:
    events: dict[int, str] = {mark.sn: _describe_mark(mark) for mark in given.punctuations}
    events |= dict(zip(given.sn.tolist(), (repr(row) for row in given.rows.to_pylist()), strict=True))
    lines = [f"{number:6}  {text:.{_SHOWN_CHARS}}" for number, text in sorted(events.items())]
    left = len(lines) - _LINES_MAX
    return [*lines[: _LINES_MAX - 1], f"        ... {left} more ...", lines[-1]] if left > 1 else lines


def _describe_mark(mark: Punctuation) -> str:
    return f"-- {mark.kind}{'' if mark.value is None else f' {mark.value}'}"


def _difference_lines(outputs: tuple[Sequence[Output], Sequence[Output]]) -> list[str]:
    place = first_difference(*outputs)
    if place is None:
        return []
    one, other = (_describe_output(some, place) for some in outputs)
    return [f"First difference, output number {place + 1}:", f"    one way:   {one}", f"    the other: {other}", ""]


def _describe_output(outputs: Sequence[Output], place: int) -> str:
    if place >= len(outputs):
        return f"nothing more, after {len(outputs)} rows"
    output = outputs[place]
    # Values from another process are text, under an empty name.
    text = output.values.get("", None) or repr(output.values)
    return f"{text:.{_SHOWN_CHARS}}, of input {output.sn}"
