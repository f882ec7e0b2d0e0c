"""Rows that an operator refuses, with `on_error="skip"`: real processes, also when some of them die."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

import flux

from .waiting import DEADLINE_S, wait_until

COUNT = 6_000
POISON_EVERY = 700
ROWS = [{"k": n * 7919 % 13, "v": n} for n in range(COUNT)]
POISON = range(POISON_EVERY, COUNT, POISON_EVERY)


class Sums(flux.Operator):
    """The running sum of each key; it adds up a whole batch before it looks at it."""

    output: ClassVar = {"v": "int64", "sum": "int64"}

    def __init__(self) -> None:
        self.sums: dict[int, int] = {}

    def process(self, batch: Any) -> Any:
        found = []
        for row in batch.rows():
            self.sums[row.k] = self.sums.get(row.k, 0) + row.v
            found.append(self.sums[row.k])
        if any(v and v % POISON_EVERY == 0 for v in batch["v"].tolist()):
            raise ValueError("a multiple")
        return batch.emit({"v": batch["v"], "sum": found})

    def get_state(self) -> Any:
        return self.sums

    def install_state(self, state: Any) -> None:
        self.sums = state


def sums() -> list[dict[str, int]]:
    """What must come out: the same without the rows that are refused."""
    found: dict[int, int] = {}
    out = []
    for row in ROWS:
        if row["v"] not in POISON:
            found[row["k"]] = found.get(row["k"], 0) + row["v"]
            out.append({"v": row["v"], "sum": found[row["k"]]})
    return out


def flow_of(operator: Any, rate: float | None = None, batch_rows: int | None = None) -> flux.Dataflow:
    flow = flux.Dataflow("skips")
    rows = flow.source(flux.sources.Table(ROWS, rate=rate, batch_rows=batch_rows))
    rows.exchange("k", partitions=8).apply(operator).sink(flux.sinks.Collect())
    return flow


def test_all_copies_skip_the_same_rows_also_those_that_are_rebuilt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "flux")
    flow = flow_of(Sums, rate=1_500, batch_rows=50)
    with flow.start(sites=2, standby=1, on_error="skip") as run:
        run.wait_for_output(1_000)
        assert run.status().skipped > 0
        run.kill("site-1")
        wait_until(lambda: any(f.recovered_after_s for f in run.status().failures), "the pairs are whole again")
        run.kill("site-2")
        report = run.wait(timeout=DEADLINE_S)
    assert report.table.to_pylist() == sums()
    assert report.skipped == len(POISON)
    assert sorted(row.row for row in report.skipped_rows) == [v + 1 for v in POISON]
    assert json.loads(json.dumps(report.to_dict()))["skipped_rows"][0]["step"] == "Sums"
    told = [text for text in caplog.messages if "skipped row" in text]
    assert len(told) == len(POISON), "each is told once, not once for each copy"
    assert all("a multiple" in text and "'v': " in text for text in told)


def test_a_row_that_only_one_copy_refuses_ends_the_run(tmp_path: Path) -> None:
    """Nothing is emitted for it by either: only that it was skipped is different."""
    first = tmp_path / "first"

    def is_first() -> bool:
        try:
            with first.open("x") as file:
                file.write(str(os.getpid()))
            return True
        except FileExistsError:
            return first.read_text() == str(os.getpid())

    class Moody(flux.KeyedOperator):
        output: ClassVar = {"v": "int64"}

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            if row.v == 150 and is_first():
                raise ValueError("only here")
            return None, None

    with pytest.raises(flux.OperatorError, match="not deterministic"):
        flow_of(Moody).run(sites=2, on_error="skip")


def test_by_default_such_a_row_stops_the_run() -> None:
    with pytest.raises(flux.OperatorError, match="a multiple"):
        flow_of(Sums).run(sites=2)


def refuses(row: Any) -> dict[str, Any]:
    if row.v % 1_000 == 999:
        raise KeyError(f"row {object()}")
    return {"k": row.k, "v": row.v}


def skipping_flow(source: flux.sources.Source) -> flux.Dataflow:
    """Rows are skipped in the ingress and after an exchange; the skipped ones pass an exchange of their own."""
    flow = flux.Dataflow("dead letters")
    skipped = flow.skipped()
    skipped.sink(flux.sinks.Collect())
    parsed = flow.source(source).map(refuses, {"k": "int64", "v": "int64"})
    parsed.exchange("k", partitions=4).apply(Sums).sink(flux.sinks.Collect())
    counts = skipped.exchange("step", partitions=2).apply(flux.operators.GroupBy, aggregates={"rows": "count"})
    counts.sink(flux.sinks.Collect())
    return flow


def test_skipped_rows_are_a_stream_with_each_once_though_processes_die() -> None:
    flow = skipping_flow(flux.sources.Table(ROWS, rate=2_000, batch_rows=50))
    with flow.start(sites=2, standby=1, on_error="skip") as run:
        for victim, inputs in (("ingress", 1_100), ("site-1", 2_200), ("ingress", 3_300)):
            wait_until(lambda inputs=inputs: run.status().inputs > inputs, f"no {inputs} rows were read")
            run.kill(victim)
        report = run.wait(timeout=DEADLINE_S)
    skipped, _, counts = (table.to_pylist() for table in report.tables)
    refused = [n for n in range(COUNT) if n % 1_000 == 999]
    assert [json.loads(row["row"])["v"] for row in skipped] == sorted([*refused, *POISON])
    errors = {row["step"]: row["error"] for row in skipped}
    assert errors == {"map(refuses)": "KeyError: 'row <object object at 0x...>'", "Sums": "ValueError: a multiple"}
    assert {row["step"]: row["rows"] for row in counts} == {"map(refuses)": len(refused), "Sums": len(POISON)}
    assert report.skipped == len(refused) + len(POISON)


def test_without_skipping_the_stream_of_skipped_rows_is_empty_and_the_plan_shows_it() -> None:
    flow = flux.Dataflow("none")
    flow.source(flux.sources.Table([{"n": 1}])).map(lambda row: {"n": row.n}).sink(flux.sinks.Null())
    flow.skipped().sink(flux.sinks.Collect())
    assert "skipped: step string, error string, row string" in flow.explain()
    assert flow.run().table.to_pylist() == []
