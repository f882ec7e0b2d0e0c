"""Rows with a key, a time and a value, and how windows of them are compared with a plain loop; shared by the tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from flux.model.event_time import EventTime
from flux.model.operator import OperatorStep
from tests.operators.feeding import PARTITIONS
from tests.operators.plain_aggregates import KEPT, RUNNING, aggregated, alike
from tests.operators.timeline import Sites, Timeline, cut_places, played

Row = tuple[Any, Any, Any]  # key, ts, x
Window = tuple[int, Any, int, int, list[Any]]  # sn, key, start, end, values
COUNT: dict[str, Any] = {"n": "count"}
LARGE = [1e200, -1e200, 1.7e308, -1.7e308]  # Their squares are beyond floats, and the sums of the last two.
FLOATS = st.floats(-1e6, 1e6) | st.sampled_from([0.1, -0.0, math.inf, -math.inf, math.nan])
INSTANTS = [pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("s"), pa.timestamp("ns"), pa.date32()]
# Parameters that no window of event time takes, and what the plan says.
INVALID: list[tuple[dict[str, Any], str]] = [
    ({"time": "when"}, "'when'"),
    ({"time": "k"}, "is string; expected timestamps"),
    ({"time": None}, "time is the column"),
    ({"aggregates": {}}, "aggregates is a dict"),
    ({"aggregates": {"s": ("sum", "nope")}}, "no column 'nope'"),
    ({"aggregates": {"s": ("sum", "k")}}, "no sum of 'k', which is string"),
    ({"aggregates": {"s": "sum"}}, "aggregate 's': expected"),
    ({"aggregates": {"q": ("quantile", "x", 2)}}, "aggregate 'q': expected"),
    ({"aggregates": {"k": "count"}}, "would emit 'k' twice"),
    ({"aggregates": {"window_end": "count"}}, "would emit 'window_end' twice"),
]


def schema_of(key: Any, x: Any) -> pa.Schema:
    return pa.schema([("k", key), ("ts", pa.int64()), ("x", x)])


def batch_of(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def rows_of(keys: st.SearchStrategy[Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Row]]:
    instants = st.none() | st.integers(-30, 120)
    return st.lists(st.tuples(keys, instants, st.none() | values), max_size=50)


def check_against_loop(
    step: OperatorStep,
    rows: pa.RecordBatch,
    plain: Callable[[EventTime], tuple[list[Window], int]],
    data: st.DataObject,
) -> None:
    """Compare with what `plain` returns, the windows and the number of late rows; batches and moves change nothing."""
    lateness, every = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 30))
    event_time = EventTime(column="ts", lateness_ms=lateness, every_ms=every)
    timeline = Timeline.of(rows, ("k",), event_time)
    found, late = played(step, timeline)
    windows, late_rows = plain(event_time)
    assert late == late_rows
    flat = [(sn, "nan" if row[0] != row[0] else row[0], *row[1:]) for sn, row in found]
    assert len(flat) == len(windows)
    for got, (*place, values) in zip(by_place(flat), by_place(windows), strict=True):
        assert got[:4] == tuple(place)
        of_all = dict(zip(RUNNING | KEPT, aggregated(values), strict=True))
        expected = [of_all[name] for name in step.parameters["aggregates"]]
        assert all(alike(a, b) for a, b in zip(got[4:], expected, strict=True)), (got[4:], expected)
    cuts, moves = data.draw(cut_places(rows.num_rows)), data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=12))
    assert repr(played(step, timeline, cuts, moves)) == repr((found, late))


def by_place(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: (row[0], row[3], repr(row[1])))


def late_wherever_the_partition_is(step: OperatorStep) -> int:
    """Return how many of five rows are counted as late, although their partition moves after each."""
    rows = batch_of([(1, 50, 0), (1, 3, 0), (1, None, 0), (1, 4, 0), (1, 51, 0)], schema_of(pa.int32(), pa.int64()))
    timeline = Timeline.of(rows, ("k",), EventTime(column="ts", every_ms=1))
    sites, pid = Sites(step), int(timeline.partition[0])
    for piece in timeline.pieces([1, 2, 3, 4]):
        sites.give(piece)
        sites.move(pid)
    assert list(sites.late) == [pid]
    return sites.late[pid]
