"""GroupBy against a plain loop: a row for each row, or for each key that has changed at a watermark."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.model.batch import Batch
from flux.model.event_time import EventTime
from flux.operators import GroupBy
from flux.types.errors import OperatorError, PlanError
from tests.operators.feeding import PARTITIONS, opened, step_of
from tests.operators.plain_aggregates import RUNNING, aggregated, alike
from tests.operators.timeline import Timeline, cut_places, played

TOLD = EventTime(column="ts", every_ms=10)
MOVES = st.lists(st.integers(0, PARTITIONS - 1), max_size=12)
LARGE = [1e200, -1e200, 1.7e308, -1.7e308]  # Their squares are beyond floats, and the sums of the last two.
FLOATS = st.none() | st.floats(-1e6, 1e6) | st.sampled_from([0.1, -0.0, math.inf, -math.inf, math.nan, *LARGE])
INTS = st.none() | st.integers(-9, 9) | st.integers(-(2**57), 2**57)


def batch_of(rows: list[tuple[Any, Any]], key: Any, x: Any) -> pa.RecordBatch:
    schema = pa.schema([("k", key), ("ts", pa.int64()), ("x", x)])
    columns = [pa.array([row[0] for row in rows], key), pa.array([5 * i for i in range(len(rows))], pa.int64())]
    return pa.RecordBatch.from_arrays([*columns, pa.array([row[1] for row in rows], x)], schema=schema)


def named(key: Any) -> Any:
    """The key as one that equals itself."""
    return "nan" if key != key else key


def check(rows: list[tuple[Any, Any]], key: Any, x: Any, data: st.DataObject) -> None:
    batch = batch_of(rows, key, x)
    timeline = Timeline.of(batch, ("k",), TOLD)
    step = step_of(GroupBy, batch.schema, ("k",), aggregates=RUNNING)
    found, _ = played(step, timeline)
    assert [sn for sn, _ in found] == timeline.sn.tolist()
    seen: dict[Any, list[Any]] = {}
    for (_, row), (k, value) in zip(found, rows, strict=True):
        k = named(k)
        seen.setdefault(k, []).append(value)
        expected = aggregated(seen[k])[: len(RUNNING)]
        assert named(row[0]) == k
        assert all(alike(a, b) for a, b in zip(row[1:], expected, strict=True)), (row, expected)
    cuts, moves = data.draw(cut_places(len(rows))), data.draw(MOVES)
    assert repr(played(step, timeline, cuts, moves)[0]) == repr(found)

    # At watermarks: for each key that has changed what its last row would have told.
    lazy = step_of(GroupBy, batch.schema, ("k",), aggregates=RUNNING, emit="watermarks")
    told, _ = played(lazy, timeline, cuts, moves)
    expected_rows, last, begin = [], {}, 0
    for mark in timeline.punctuations:
        end = int(np.searchsorted(timeline.sn, mark.sn))
        last = {named(rows[i][0]): found[i][1] for i in range(begin, end)}
        expected_rows += [(mark.sn, row) for _, row in sorted(last.items(), key=lambda e: repr(e[0]))]
        begin = end
    assert sorted(map(repr, told)) == sorted(map(repr, expected_rows))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "", None]), FLOATS), max_size=50), st.data())
def test_each_row_tells_the_floats_of_its_key_so_far(rows: list[Any], data: st.DataObject) -> None:
    check(rows, pa.string(), pa.float64(), data)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2), INTS), max_size=50), st.data())
def test_each_row_tells_the_integers_of_its_key_so_far(rows: list[Any], data: st.DataObject) -> None:
    check(rows, pa.int16(), pa.int64(), data)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.sampled_from([1.5, math.nan, None]), FLOATS), max_size=50), st.data())
def test_nan_and_null_are_keys_like_others(rows: list[Any], data: st.DataObject) -> None:
    check(rows, pa.float64(), pa.float64(), data)


@pytest.mark.parametrize("keys", [1, 300, 20_000])
def test_running_sums_are_those_of_a_loop_to_the_bit_and_others_those_of_pandas(keys: int) -> None:
    rng = np.random.default_rng(keys)
    count = 20_000
    key = np.arange(count) if keys == count else (rng.integers(0, keys, count) * rng.random(count)).astype(np.int64)
    frame = pd.DataFrame({"k": key, "x": rng.standard_normal(count) * 10.0 ** rng.integers(-9, 9, count)})
    rows = pa.RecordBatch.from_pandas(frame, preserve_index=False)
    aggregates = {"s": ("sum", "x"), "n": "count", "mx": ("max", "x"), "mn": ("min", "x")}
    step = step_of(GroupBy, rows.schema, ("k",), aggregates=aggregates)
    timeline = Timeline.of(rows, ("k",), None)
    whole = [row for _, row in played(step, timeline)[0]]
    cut = [row for _, row in played(step, timeline, list(range(0, count, 777)), [0, 1, 2])[0]]
    sums: dict[int, float] = {}
    for k, x, row in zip(key.tolist(), frame.x.tolist(), whole, strict=True):
        sums[k] = sums.get(k, 0.0) + x
        assert row[1] == sums[k]
    assert cut == whole
    grouped = frame.groupby("k")["x"]
    expected = np.stack([grouped.cumcount() + 1, grouped.cummax(), grouped.cummin()], axis=1)
    assert np.array_equal(np.array([row[2:] for row in whole]), expected)


def test_keys_that_changed_are_told_in_their_order() -> None:
    rows = [(k, 1) for k in ("b", None, "a", "c", "a")]
    batch = batch_of(rows, pa.string(), pa.int64())
    step = step_of(GroupBy, batch.schema, ("k",), aggregates={"n": "count"}, emit="watermarks")
    timeline = Timeline.of(batch, ("k",), None)
    timeline.partition[:] = 0
    assert [row for _, row in played(step, timeline)[0]] == [("a", 2), ("b", 1), ("c", 1), (None, 1)]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"aggregates": {"q": ("quantile", "x", 0.5)}}, 'needs all values of a key.* Add emit="watermarks"'),
        ({"aggregates": {"f": (len, "x", "int64")}}, 'needs all values of a key.* Add emit="watermarks"'),
        ({"aggregates": {"n": "count"}, "emit": "sometimes"}, "emit is 'rows' or 'watermarks'"),
        ({}, "aggregates is a dict"),
        ({"aggregates": {"s": ()}}, r"aggregate 's': expected .*got \(\)"),
        ({"aggregates": {"s": (len, 5, "int64")}}, "aggregate 's': expected"),
        ({"aggregates": {"s": (len, (), "int64")}}, "aggregate 's': expected"),
        ({"aggregates": {"q": ("quantile", "x", "half")}}, "aggregate 'q': expected"),
        ({"aggregates": {"q": ("median", "x", 0.5)}}, "aggregate 'q': expected"),
        ({"aggregate": {"n": "count"}}, "unknown parameters aggregate; it has aggregates, emit"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_the_plan(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        step_of(GroupBy, batch_of([], pa.string(), pa.int64()).schema, ("k",), **parameters)


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.decimal32(5, 2), pa.decimal64(9)])
def test_nested_keys_and_narrow_decimals_are_refused_with_advice(kind: Any) -> None:
    schema = pa.schema([("k", kind), ("x", pa.int64())])
    with pytest.raises(
        PlanError, match=r"operator GroupBy: the key column 'k' is (list|decimal).* before the exchange"
    ):
        step_of(GroupBy, schema, ("k",), aggregates={"n": "count"})


def test_an_empty_batch_changes_nothing() -> None:
    schema = batch_of([], pa.string(), pa.int64()).schema
    hosted = opened(step_of(GroupBy, schema, ("k",), aggregates={"n": "count"}))
    nothing = Batch(batch_of([], pa.string(), pa.int64()), np.zeros(0, np.int64), None, np.zeros(0, np.uint16))
    one = Batch(batch_of([("a", 1)], pa.string(), pa.int64()), np.ones(1, np.int64), None, np.zeros(1, np.uint16))
    assert hosted.process(nothing) is None
    for count in (1, 2):
        out = hosted.process(one)
        assert out is not None and out.arrow.to_pylist() == [{"k": "a", "n": count}]
        assert hosted.process(nothing) is None


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_the_variance_of_large_integers_keeps_their_digits(kind: Any) -> None:
    batch = batch_of([(1, 2**60 + i) for i in range(3)], pa.int64(), kind)
    step = step_of(GroupBy, batch.schema, ("k",), aggregates={"var": ("variance", "x")})
    hosted = opened(step)
    found = [hosted.process(Batch(batch.slice(i, 1), np.array([i]), None, np.zeros(1, np.uint16))) for i in range(3)]
    assert [out.arrow.column("var")[0].as_py() for out in found if out is not None] == [None, 0.5, 1.0]


@pytest.mark.parametrize(
    ("kind", "values"),
    [(pa.int64(), [-(2**63), 2**63 - 1]), (pa.uint64(), [2**64 - 1, 0]), (pa.uint64(), [0, 2**64 - 1])],
)
def test_the_variance_of_integers_that_are_farther_apart_than_64_bits_tell(kind: Any, values: list[int]) -> None:
    batch = batch_of([(1, value) for value in values], pa.int64(), kind)
    hosted = opened(step_of(GroupBy, batch.schema, ("k",), aggregates={"var": ("variance", "x")}))
    out = hosted.process(Batch(batch, np.arange(2), None, np.zeros(2, np.uint16)))
    assert out is not None
    assert math.isclose(out.arrow.column("var")[1].as_py(), float(2**64 - 1) ** 2 / 2)


@pytest.mark.parametrize(("emit", "row"), [("rows", ", row 3"), ("watermarks", "")])
def test_a_sum_beyond_64_bits_names_the_key_and_its_row(emit: str, row: str) -> None:
    batch = batch_of([("a", 2**62), ("b", 2**62), ("a", 2**62), ("a", 5)], pa.string(), pa.int64())
    step = step_of(GroupBy, batch.schema, ("k",), aggregates={"s": ("sum", "x")}, emit=emit)
    timeline = Timeline.of(batch, ("k",), None)
    pid = int(timeline.partition[0])
    expected = (
        rf"step 'step', partition {pid}{row}: aggregate 's': the sum of 'x' does not fit in 64 bits for k 'a'\. Cast"
    )
    with pytest.raises(OperatorError, match=expected):
        played(step, timeline, [1])


@pytest.mark.parametrize("emit", ["rows", "watermarks"])
def test_a_sum_beyond_64_bits_is_told_also_of_a_key_that_python_cannot_hold(emit: str) -> None:
    schema = pa.schema([("k", pa.date32()), ("x", pa.int64())])
    rows = pa.record_batch([pa.array([3_663_382] * 2, pa.date32()), pa.array([2**62] * 2)], schema=schema)
    step = step_of(GroupBy, schema, ("k",), aggregates={"s": ("sum", "x")}, emit=emit)
    with pytest.raises(OperatorError, match=r"the sum of 'x' does not fit in 64 bits for k 12000-01-01\. Cast"):
        played(step, Timeline.of(rows, ("k",), None))
