"""The late rows of windows, as a stream: exactly those that the operator does not count, each once, through kills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import flux
from flux.model.operator import Context
from flux.model.punctuation import Punctuation
from flux.operators import Distinct, SessionWindow, TimeWindow, TopK
from flux.operators.late_rows import LateRows
from tests.operators import feeding
from tests.runtime.through_kills import through_kills

ROWS = 900
COUNTED = {"rows": "count"}
WINDOWS: dict[str, Callable[[flux.Stream], flux.Stream]] = {
    "tumbling": lambda keyed: keyed.apply(TimeWindow, time="ts", size_ms=50, aggregates=COUNTED),
    "sliding": lambda keyed: keyed.apply(TimeWindow, time="ts", size_ms=50, slide_ms=20, aggregates=COUNTED),
    "sessions": lambda keyed: keyed.apply(SessionWindow, time="ts", gap_ms=30, aggregates=COUNTED),
    "ranks": lambda keyed: keyed.apply(TopK, k=ROWS, by="n", time="ts", size_ms=50),
    "distinct": lambda keyed: keyed.apply(Distinct, on=("k", "n"), time="ts", size_ms=50),
}


def rows_of() -> pa.Table:
    """Rows of which many are out of order, and some without a time."""
    draw = np.random.default_rng(11)
    ts = np.arange(ROWS) - draw.integers(0, 120, ROWS) * (draw.random(ROWS) < 0.3)
    return pa.table(
        {
            "k": draw.choice(["a", "b", "c"], ROWS).tolist(),
            "ts": pa.array(ts, mask=draw.random(ROWS) < 0.02),
            "n": range(ROWS),
        }
    )


def flow_of(source: flux.sources.Source) -> flux.Dataflow:
    flow = flux.Dataflow("late")
    stream = flow.source(source, event_time="ts", lateness_ms=10, watermark_every_ms=5)
    keyed = stream.exchange("k", partitions=3)
    for apply in WINDOWS.values():
        windows = apply(keyed)
        windows.sink(flux.sinks.Collect())
        windows.late().sink(flux.sinks.Collect())
    return flow


def test_only_rows_behind_their_watermark_are_forwarded() -> None:
    schema = pa.schema([("k", pa.string()), ("ts", pa.int64())])
    late = LateRows(TimeWindow)
    late.open(Context({"time": "ts", "size_ms": 10, "aggregates": COUNTED}, partitions=2, step="late"))
    rows = feeding.batch_of([("a", 3), ("b", 3), ("a", None), ("a", 31)], schema, [0, 1, 0, 0])
    assert feeding.tuples(late.process(rows)) == [("a", None)], "before any watermark only a row without time is late"
    late.on_punctuation(Punctuation(5, "watermark", 20, frozenset({0})))
    assert feeding.tuples(late.process(rows)) == [("a", 3), ("a", None)]
    assert late.process(rows.take(np.array([1, 3]))) is None


def test_late_rows_are_those_that_windows_do_not_have_each_once_through_kills(tmp_path: Path) -> None:
    rows = rows_of()
    report = through_kills(flow_of, rows, tmp_path)
    plain = flow_of(flux.sources.Table(rows)).run()
    tables: list[list[dict[str, Any]]] = [table.to_pylist() for table in report.tables]
    assert tables == [table.to_pylist() for table in plain.tables]
    found = dict(zip(WINDOWS, zip(tables[::2], tables[1::2], strict=True), strict=True))
    late = {name: [row["n"] for row in side] for name, (_, side) in found.items()}
    for numbers in late.values():
        assert numbers == sorted(set(numbers)) and len(numbers) > 20
    assert report.late == sum(map(len, late.values()))
    for name in ("tumbling", "sessions"):
        assert sum(row["rows"] for row in found[name][0]) + len(late[name]) == ROWS
    for name in ("ranks", "distinct"):
        assert Counter(row["n"] for row in found[name][0]) + Counter(late[name]) == Counter(range(ROWS))


def test_where_no_row_is_dropped_as_late_it_is_a_plan_error() -> None:
    flow = flux.Dataflow("never")
    stream = flow.source(flux.sources.Table(rows_of()), event_time="ts")
    keyed = stream.exchange("k")
    windows = WINDOWS["tumbling"](keyed)
    for wrong in (stream, keyed, windows.filter(bool), windows.select("k"), windows.late()):
        with pytest.raises(flux.PlanError, match="the operator directly before it"):
            wrong.late()
    for name, none in (("Distinct", keyed.apply(Distinct)), ("Join", stream.join(windows, on="k", within=1))):
        with pytest.raises(flux.PlanError, match=f"late\\(\\) follows {name}, which drops no late rows"):
            none.late()
