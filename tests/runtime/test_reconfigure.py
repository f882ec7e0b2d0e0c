"""Code changes while rows flow, in real processes: output is that of a plain run that changes at the same row.

It takes half a minute: each run goes on until what is to happen in it has happened.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

import flux
from flux.run import Run

from .waiting import wait_until

KEYS = 97
RATE = 15_000
MORE_ROWS = 4_000  # After the last thing that happens.


class Numbers:
    """Rows without end, until the test says where it is."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, first: int, count: int) -> dict[str, Any] | None:
        end = int(self.path.read_text()) if self.path.exists() else first + count
        return {"k": [number % KEYS for number in range(first, min(end, first + count))]} if first < end else None

    def end(self, run: Run) -> flux.Report:
        """Let the stream end soon, and return the report."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(str(run.status().inputs + MORE_ROWS))
        fresh.rename(self.path)
        return run.wait(120)


@pytest.fixture
def numbers(tmp_path: Path) -> Numbers:
    return Numbers(tmp_path / "end")


class Sums(flux.KeyedOperator):
    output: ClassVar = {"k": "int64", "n": "int64"}

    def open(self, context: flux.Context) -> None:
        self.by = context.parameters.get("by", 1)

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        state = (state or 0) + self.by
        return state, [{"k": row.k, "n": state}]


class SumsByPartition(flux.Operator):
    output: ClassVar = {"k": "int64", "n": "int64"}

    def open(self, context: flux.Context) -> None:
        self.by = context.parameters.get("by", 1)
        self.sums: dict[int, int] = {}

    def process(self, batch: flux.Batch) -> Any:
        made = []
        for key in batch["k"].tolist():
            self.sums[key] = self.sums.get(key, 0) + self.by
            made.append(self.sums[key])
        return batch.emit({"k": batch["k"], "n": made})

    def get_state(self) -> Any:
        return sorted(self.sums.items())

    def install_state(self, state: Any) -> None:
        self.sums = dict(state)


class PooledSums(flux.PooledOperator):
    output: ClassVar = {"k": "int64", "n": "int64"}

    def open(self, context: flux.Context) -> None:
        self.by = context.parameters.get("by", 1)
        self.sums: dict[tuple[int, int], int] = {}

    def on_change(self, context: flux.Context) -> None:
        self.by = context.parameters.get("by", 1)

    def process(self, batch: flux.Batch) -> Any:
        made = []
        for place in zip(batch.partition.tolist(), batch["k"].tolist(), strict=True):
            self.sums[place] = self.sums.get(place, 0) + self.by
            made.append(self.sums[place])
        return batch.emit({"k": batch["k"], "n": made})

    def get_partition_state(self, pid: int) -> Any:
        return [[key, value] for (of, key), value in sorted(self.sums.items()) if of == pid]

    def install_partition_state(self, pid: int, state: Any) -> None:
        self.sums |= {(pid, key): value for key, value in state}

    def drop_partition(self, pid: int) -> None:
        self.sums = {place: value for place, value in self.sums.items() if place[0] != pid}


def flow_of(numbers: Numbers, operator: Any, **parameters: Any) -> flux.Dataflow:
    flow = flux.Dataflow("changing")
    source = flow.source(flux.sources.Generator(numbers, rate=RATE))
    source.exchange("k", partitions=8).apply(operator, **parameters).sink(flux.sinks.Collect())
    return flow


def expected(rows: int, steps: dict[int, Callable[[int], int]]) -> list[tuple[int, int]]:
    """Return the sums of a plain run: after each position, what becomes of the sum of a row's key."""
    sums: dict[int, int] = {}
    cuts = sorted(steps)
    made = []
    for number in range(rows):
        key = number % KEYS
        step = steps[max(cut for cut in cuts if cut < number + 1)]
        sums[key] = step(sums.get(key, 0))
        made.append((key, sums[key]))
    return made


def collected(report: flux.Report) -> list[tuple[int, int]]:
    return list(zip(report.table["k"].to_pylist(), report.table["n"].to_pylist(), strict=True))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Return what writes the source of the module `rules_of_tests`, which sites can import."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "rules_of_tests.py"

    def write(source: str) -> Path:
        path.write_text("from __future__ import annotations\nimport flux\n" + textwrap.dedent(source))
        return path

    yield write
    for name in [name for name in sys.modules if name.partition("@")[0] == "rules_of_tests"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("operator", "scheduler"), [(Sums, "sn"), (Sums, "epoch"), (SumsByPartition, "sn"), (PooledSums, "sn")]
)
def test_parameters_change_at_one_row_in_all_copies(operator: Any, scheduler: str, numbers: Numbers) -> None:
    with flow_of(numbers, operator).start(sites=4) as run:
        run.wait_for_output(5_000)
        first = run.reconfigure({operator.__name__: flux.change(by=10)}, scheduler=scheduler)
        run.wait_for_output(first.position + 3_000)
        run.kill("site-2")
        second = run.reconfigure({operator.__name__: flux.change(by=1_000)}, scheduler=scheduler)
        report = numbers.end(run)
    assert 5_000 <= first.position < second.position < report.inputs
    steps: dict[int, Any] = {
        0: lambda n: n + 1,
        first.position: lambda n: n + 10,
        second.position: lambda n: n + 1_000,
    }
    assert collected(report) == expected(report.inputs, steps)
    for change in (first, second):
        times = (change.committed_s, change.first_s, change.delay_s, change.complete_s)
        assert None not in times and times == tuple(sorted(times)), times  # type: ignore[type-var]
    assert [each["number"] for each in report.changes] == [1, 2]
    assert report.changes[0]["steps"] == [operator.__name__] and report.changes[1]["position"] == second.position


def test_code_and_state_change_and_the_old_functions_stay_the_old_ones(module: Any, numbers: Numbers) -> None:
    source = """
        def more(n):
            return n + {by}

        class Totals(flux.KeyedOperator):
            output = {{"k": "int64", "n": "int64"}}
            state_version = {version}

            def on_tuple(self, key, row, state):
                total = more(state["n"] if state else 0)
                return {{"n": total}}, [{{"k": row.k, "n": total}}]

        def wrapped(state):
            return {{"n": 2 * state}}

        def more_wrapped(state):
            return {{"n": 3 * state["n"]}}
        """
    module(source.format(by=10, version=2))
    with flow_of(numbers, Sums).start(sites=3) as run:
        run.wait_for_output(5_000)
        first = run.reconfigure({"Sums": flux.change("rules_of_tests:Totals", migrate="rules_of_tests:wrapped")})
        run.wait_for_output(first.position + 2_000)
        module(source.format(by=1_000, version=2))  # The module is edited while its code runs.
        run.kill("site-1")
        run.wait_for_output(first.position + 5_000)
        second = run.reconfigure({"Sums": flux.change("rules_of_tests:Totals", migrate="rules_of_tests:more_wrapped")})
        run.wait_for_output(second.position + 2_000)
        run.add_site()  # It runs the new code.
        run.kill("site-2")
        report = numbers.end(run)
    migrated: set[tuple[int, int]] = set()

    def once(number: int, factor: int, by: int) -> Callable[[int, int], int]:
        def step(key: int, n: int) -> int:
            if (number, key) not in migrated:
                migrated.add((number, key))
                n = factor * n
            return n + by

        return step

    sums: dict[int, int] = {}
    steps = {0: once(0, 1, 1), first.position: once(1, 2, 10), second.position: once(2, 3, 1_000)}
    made = []
    for number in range(report.inputs):
        key = number % KEYS
        sums[key] = steps[max(cut for cut in steps if cut < number + 1)](key, sums.get(key, 0))
        made.append((key, sums[key]))
    assert collected(report) == made


def refused(run: Run, changes: Any, match: str, **settings: Any) -> None:
    with pytest.raises(flux.ChangeError, match=match) as caught:
        run.reconfigure(changes, **settings)
    assert caught.value.reason


def test_what_cannot_be_changed_is_refused_and_nothing_has_changed(module: Any, numbers: Numbers) -> None:
    path = module(
        """
        class Other(flux.Operator):
            output = {"k": "int64", "n": "int64"}
            def process(self, batch): return None

        class Renamed(flux.KeyedOperator):
            output = {"key": "int64", "n": "int64"}
            def on_tuple(self, key, row, state): return state, None

        class Second(flux.KeyedOperator):
            output = {"k": "int64", "n": "int64"}
            state_version = 2
            def on_tuple(self, key, row, state): return state, None

        class Raises(flux.KeyedOperator):
            output = {"k": "int64", "n": "int64"}
            def open(self, context): raise RuntimeError("no licence")
            def on_tuple(self, key, row, state): return state, None

        def fails(state):
            raise ValueError("not a state that I know")
        """
    )

    class Local(Sums):
        pass

    with flow_of(numbers, Sums).start(sites=3) as run:
        run.wait_for_output(2_000)
        refused(run, {"Totals": flux.change(by=2)}, "no step 'Totals'; its steps are 'Sums'")
        refused(run, {"Sums": 7}, "takes flux.change")
        refused(run, {}, "names none")
        refused(run, {"Sums": flux.change(by=object())}, "plain values")
        refused(run, {"Sums": flux.change(Local)}, "made while the program runs")
        refused(run, {"Sums": flux.change("no_such_module_at_all:X")}, "no_such_module_at_all")
        refused(run, {"Sums": flux.change("rules_of_tests:Nothing")}, "has no Nothing")
        refused(run, {"Sums": flux.change("rules_of_tests:Other")}, "keeps the form")
        refused(run, {"Sums": flux.change("rules_of_tests:Renamed")}, "the sink Collect takes")
        refused(run, {"Sums": flux.change("rules_of_tests:Second")}, "upgrade_state")
        refused(run, {"Sums": flux.change("rules_of_tests:Raises")}, r"site-\d: .*no licence")
        refused(run, {"Sums": flux.change(migrate="rules_of_tests:fails")}, r"site-\d: .*not a state that I know")
        refused(run, {"Sums": flux.change(by=3)}, "scheduler is one of", scheduler="never")
        path.write_text("this is no Python")
        refused(run, {"Sums": flux.change("rules_of_tests:Second")}, "SyntaxError")
        report = numbers.end(run)
    assert collected(report) == expected(report.inputs, {0: lambda n: n + 1})
    assert all(each["refused"] for each in report.changes)


@pytest.mark.parametrize("order", ["sn", "any"])
def test_other_columns_reach_the_sinks_that_take_them(
    order: Any, module: Any, numbers: Numbers, tmp_path: Path
) -> None:
    module(
        """
        class Wider(flux.KeyedOperator):
            output = {"k": "int64", "n": "int64", "twice": "int64"}
            def on_tuple(self, key, row, state):
                n = (state or 0) + 1
                return n, [{"k": row.k, "n": n, "twice": 2 * n}]

        class Narrower(flux.KeyedOperator):
            output = {"k": "int64"}
            def on_tuple(self, key, row, state):
                return state, [{"k": row.k}]
        """
    )
    flow = flux.Dataflow("columns")
    sums = flow.source(flux.sources.Generator(numbers, rate=RATE)).exchange("k", partitions=8).apply(Sums)
    sums.sink(flux.sinks.Jsonl(tmp_path / "rows.jsonl"), order=order)
    sums.sink(flux.sinks.Parquet(tmp_path / "parts"))
    with flow.start(sites=3) as run:
        run.wait_for_output(8_000)
        refused(run, {"Sums": flux.change("rules_of_tests:Narrower")}, "the sink Parquet takes")
        change = run.reconfigure({"Sums": flux.change("rules_of_tests:Wider")})
        run.kill("egress")
        run.kill("site-1")
        report = numbers.end(run)
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    parts = [pq.read_table(path) for path in sorted((tmp_path / "parts").glob("*.parquet"))]
    assert {tuple(part.column_names) for part in parts} == {("k", "n"), ("k", "n", "twice")}
    made = as_counted(report.inputs, change.position)
    assert [row for part in parts for row in part.to_pylist()] == made
    if order == "any":
        made, lines = (sorted(each, key=lambda row: (row["n"], row["k"])) for each in (made, lines))
    assert lines == made


def as_counted(rows: int, position: int) -> list[dict[str, int]]:
    """Return the rows of a plain run that has one column more after a position."""
    made = []
    for number in range(rows):
        row = {"k": number % KEYS, "n": number // KEYS + 1}
        made.append(row | {"twice": 2 * row["n"]} if number + 1 > position else row)
    return made


@pytest.mark.parametrize("name", ["controller", "ingress", "egress", "site-3"])
def test_a_change_and_a_death_meet(name: str, numbers: Numbers) -> None:
    flow = flow_of(numbers, Sums)
    with flow.start(sites=3) as run:
        positions = [0]
        for by in (10, 100, 1_000):
            run.wait_for_output(positions[-1] + 2_000)
            if by == 100:
                run.kill(name)
            positions.append(run.reconfigure({"Sums": flux.change(by=by)}).position)
        report = numbers.end(run)
    steps = [lambda n: n + 1, lambda n: n + 10, lambda n: n + 100, lambda n: n + 1_000]
    assert collected(report) == expected(report.inputs, dict(zip(positions, steps, strict=True)))


class _Tags(flux.KeyedOperator):
    """Tags each row with the edition that has processed it, so many times."""

    times = 1

    def open(self, context: flux.Context) -> None:
        self.edition = context.parameters.get("edition", 1)

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        seen = (state or 0) + 1
        tagged = {"k": row.k, "n": row.n, "by": self.name, "seen": seen, "edition": self.edition}
        return seen, [tagged] * self.times


TAGGED = {"k": "int64", "n": "int64", "by": "string", "seen": "int64", "edition": "int64"}


class Left(_Tags):
    output: ClassVar = TAGGED
    name = "left"


class Right(_Tags):
    output: ClassVar = TAGGED
    name = "right"
    times = 2


class Last(flux.KeyedOperator):
    output: ClassVar = TAGGED | {"last": "int64"}

    def open(self, context: flux.Context) -> None:
        self.edition = context.parameters.get("edition", 1)

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return None, [row._asdict() | {"last": self.edition}]


@pytest.mark.parametrize("scheduler", ["sn", "epoch"])
def test_no_row_is_processed_by_the_code_of_both_editions(scheduler: str, numbers: Numbers) -> None:
    """A branch, a one-to-many step, a union, a join and a second exchange change together."""

    def rows(first: int, count: int) -> Any:
        made = numbers(first, count)
        return None if made is None else made | {"n": [*range(first, first + len(made["k"]))]}

    flow = flux.Dataflow("branches")
    keyed = flow.source(flux.sources.Generator(rows, rate=6_000)).exchange("k", partitions=4)
    left, right = keyed.apply(Left), keyed.apply(Right)
    both = left.union(right).exchange("n", partitions=4).apply(Last)
    both.sink(flux.sinks.Collect())
    pairs = left.join(right, on=["k", "n"], within=100, partitions=4)
    pairs.sink(flux.sinks.Collect())
    with flow.start(sites=3) as run:
        run.wait_for_output(6_000)
        wanted = {name: flux.change(edition=2) for name in ("Left", "Right", "Last")}
        first = run.reconfigure(wanted, scheduler)
        run.kill("site-3")
        second = run.reconfigure({name: flux.change(edition=3) for name in wanted}, scheduler)
        report = numbers.end(run)

    def edition(n: int) -> int:
        return 1 + (n + 1 > first.position) + (n + 1 > second.position)

    assert first.position < second.position < report.inputs
    united, joined = report.tables
    assert united["n"].to_pylist() == [n for n in range(report.inputs) for _ in range(3)]
    for row in united.to_pylist():
        assert row["edition"] == row["last"] == edition(row["n"]), row
        assert row["seen"] == row["n"] // KEYS + 1, "the state went on"
    assert joined["n"].to_pylist() == [n for n in range(report.inputs) for _ in range(2)]
    for row in joined.to_pylist():
        assert row["edition"] == row["edition_right"] == edition(row["n"]), row


class Replaced(flux.KeyedOperator):
    """Replaces n by the count of its key."""

    output: ClassVar = {"k": "int64", "n": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        count = (state or 0) + 1
        return count, [{"k": row.k, "n": count}]


def test_steps_come_and_go(module: Any, numbers: Numbers) -> None:
    module(
        """
        def is_even(row):
            return row.n % 2 == 0

        def marked(row):
            return {"k": row.k, "n": -row.n}

        def wider(row):
            return {"k": row.k, "n": row.n, "more": 1}
        """
    )

    def rows(first: int, count: int) -> Any:
        made = numbers(first, count)
        return None if made is None else made | {"n": [*range(first, first + len(made["k"]))]}

    flow = flux.Dataflow("come and go")
    source = flow.source(flux.sources.Generator(rows, rate=8_000)).exchange("k", partitions=4)
    source.apply(Replaced).sink(flux.sinks.Collect())
    even, marked = flux.filter("rules_of_tests:is_even"), flux.map("rules_of_tests:marked", output=Replaced.output)
    wider = flux.map("rules_of_tests:wider", output=Replaced.output | {"more": "int64"})
    steps = [
        {"Replaced": flux.change(before=[even])},
        {"Replaced": flux.change(after=[marked])},
        {"Replaced": flux.remove()},
        {"Replaced": flux.change(before=[], after=[])},
    ]
    with flow.start(sites=3) as run:
        run.wait_for_output(3_000)
        refused(run, {"Replaced": flux.change(after=[wider])}, "the sink Collect takes")
        refused(run, {"Replaced": flux.change(after=[flux.map("rules_of_tests:marked")])}, "say what it emits")
        refused(run, {"Replaced": flux.change(before=["even"])}, "take flux.filter")
        positions = []
        for place, step in enumerate(steps):
            positions.append(run.reconfigure(step).position)
            run.wait_for_output(run.status().outputs + 800)
            if place == 1:
                run.kill("site-2")
        report = numbers.end(run)
    made = []
    for n in range(report.inputs):
        stage, k = sum(n + 1 > position for position in positions), n % KEYS
        if stage in (1, 2, 3) and n % 2:
            continue  # Filtered.
        made.append((k, n))
    expected_rows = []
    counts: dict[int, int] = {}
    back: dict[int, int] = {}
    for k, n in made:
        stage = sum(n + 1 > position for position in positions)
        if stage < 3:
            counts[k] = counts.get(k, 0) + 1
            expected_rows.append((k, counts[k] if stage < 2 else -counts[k]))
        elif stage == 3:
            expected_rows.append((k, -n))  # The step is removed, what stands around it is not.
        else:
            back[k] = back.get(k, 0) + 1  # It is back, without state.
            expected_rows.append((k, back[k]))
    assert collected(report) == expected_rows


def test_a_state_of_classes_of_the_new_code_goes_to_other_sites(module: Any, numbers: Numbers) -> None:
    """What is transferred after the change consists of classes that the plan's code does not know."""
    module(
        """
        from dataclasses import dataclass

        @dataclass
        class Visits:
            n: int

        class Typed(flux.KeyedOperator):
            output = {"k": "int64", "n": "int64"}
            state_types = (Visits,)
            state_version = 2

            def upgrade_state(self, piece, version):
                return Visits(piece)

            def on_tuple(self, key, row, state):
                state = Visits((state.n if state else 0) + 10)
                return state, [{"k": row.k, "n": state.n}]
        """
    )
    with flow_of(numbers, Sums).start(sites=3) as run:
        run.wait_for_output(3_000)
        change = run.reconfigure({"Sums": flux.change("rules_of_tests:Typed")})
        change.wait_complete()
        for name in ("site-1", "site-2"):
            run.kill(name)
            run.add_site()
            wait_until(lambda: run.status().whole and not run.status().building, "the copies are not rebuilt")
        report = numbers.end(run)
    assert len(report.moves) > 4, "states were transferred"
    assert collected(report) == expected(report.inputs, {0: lambda n: n + 1, change.position: lambda n: n + 10})
