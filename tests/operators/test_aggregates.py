"""Aggregates of any type against DuckDB, in every operator that takes them, however rows are cut and moved.

It takes half a minute: hypothesis draws the inputs, and each is computed in two or three ways.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.model.event_time import EventTime
from flux.operators import CountWindow, GroupBy, SessionWindow, TimeWindow
from flux.operators.held_values import ValueStore
from flux.testing import check_operator
from flux.types.errors import OperatorError, PlanError
from tests.operators.feeding import PARTITIONS, step_of
from tests.operators.in_duckdb import Batch as InDuckDB
from tests.operators.in_duckdb import Row, differ
from tests.operators.plain_aggregates import KEPT, OF_ANY_TYPE, RUNNING
from tests.operators.timeline import Timeline, cut_places, played

SCHEMA = pa.schema(
    {
        "number": pa.int64(),
        "k": pa.string(),
        "t": pa.int64(),
        "x": pa.float64(),
        "i": pa.int64(),
        "s": pa.string(),
        "d": pa.decimal128(38, 2),
    }
)
OF_INTEGERS: dict[str, Any] = {
    "whole": ("sum", "i"),
    "whole_mean": ("avg", "i"),
    "whole_var": ("variance", "i"),
    "whole_least": ("min", "i"),
}
ALL = RUNNING | OF_INTEGERS | OF_ANY_TYPE
DIGITS = st.integers(-(10**35), 10**35)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),
        st.none() | st.integers(0, 60),
        st.none() | st.integers(-9, 9).map(lambda n: n / 8) | st.just(math.nan),
        st.none() | st.integers(-9, 9),
        st.none() | st.sampled_from(["", "a", "ä", "ab", "z"]),
        st.none() | DIGITS.map(lambda n: Decimal(n).scaleb(-2, Context(prec=40))),
    ),
    max_size=40,
)
# Each operator with its parameters, and what DuckDB says.
OPERATORS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "groups": (GroupBy, {"aggregates": ALL}, lambda rows: rows.running()),
    "groups at watermarks": (
        GroupBy,
        {"aggregates": ALL | KEPT, "emit": "watermarks"},
        lambda rows: rows.running_at_marks(),
    ),
    "tumbling windows": (
        TimeWindow,
        {"time": "t", "size_ms": 20, "aggregates": ALL | KEPT},
        lambda rows: rows.windows(20, 20),
    ),
    "sliding windows": (
        TimeWindow,
        {"time": "t", "size_ms": 20, "slide_ms": 8, "aggregates": ALL | KEPT},
        lambda rows: rows.windows(20, 8),
    ),
    "sessions": (
        SessionWindow,
        {"time": "t", "gap_ms": 5, "aggregates": ALL | KEPT},
        lambda rows: rows.session_windows(5),
    ),
    "count windows": (
        CountWindow,
        {"history": 3, "slide": 2, "aggregates": ALL | KEPT},
        lambda rows: rows.count_window_aggregates(3, 2),
    ),
}


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = [range(len(rows)), *([row[i] for row in rows] for i in range(len(SCHEMA) - 1))]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


@pytest.mark.parametrize("operator", OPERATORS)
@settings(deadline=None, max_examples=12)
@given(ROWS, st.data())
def test_aggregates_are_those_of_duckdb(operator: str, rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    factory, parameters, wanted = OPERATORS[operator]
    table = table_of(rows)
    batch = table.combine_chunks().to_batches()[0] if rows else pa.RecordBatch.from_pylist([], SCHEMA)
    timeline = Timeline.of(batch, ("k",), EventTime(column="t", lateness_ms=10, every_ms=5))
    step = step_of(factory, SCHEMA, ("k",), **parameters)
    moves = data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=12))
    found, late = played(step, timeline, data.draw(cut_places(len(rows))), moves)
    expected: list[Row] = wanted(InDuckDB(table, 10, 5))
    assert not (difference := differ([row for _, row in found], expected)), difference
    assert repr(played(step, timeline)) == repr((found, late))


@pytest.mark.parametrize(
    "operator",
    [pytest.param("groups", marks=pytest.mark.long), "sliding windows", "sessions", "count windows"],
)
def test_copies_that_move_and_are_restored_agree(operator: str) -> None:
    factory, parameters, _ = OPERATORS[operator]
    names = SCHEMA.names[1:]
    rows = ROWS.map(lambda drawn: [{"number": n, **dict(zip(names, row, strict=True))} for n, row in enumerate(drawn)])
    check_operator(factory, rows, key="k", parameters=parameters, schema=SCHEMA, event_time="t", examples=8)


def test_a_sum_of_decimals_beyond_38_digits_is_an_error_and_its_mean_is_right() -> None:
    most = Decimal(10**38 - 1)
    rows = pa.record_batch({"k": [1] * 3, "x": pa.array([most, Decimal(0), most], pa.decimal128(38))})
    timeline = Timeline.of(rows, ("k",), None)
    [*_, (_, row)], _ = played(step_of(GroupBy, rows.schema, ("k",), aggregates={"m": ("avg", "x")}), timeline)
    assert math.isclose(row[1], 2e38 / 3)
    total = step_of(GroupBy, rows.schema, ("k",), aggregates={"s": ("sum", "x")})
    with pytest.raises(OperatorError, match=r"row 3: aggregate 's': the sum of 'x' does not fit in 38 digits for k 1"):
        played(total, timeline)


def test_sums_of_decimals_reach_the_last_of_38_digits_on_both_sides() -> None:
    most = 10**38 - 1
    for sign in (1, -1):
        digits = [sign * (most - 5), sign * 5]
        values = pa.array([Decimal(each) for each in digits], pa.decimal128(38))
        rows = pa.record_batch({"k": [1, 1], "x": values})
        step = step_of(GroupBy, rows.schema, ("k",), aggregates={"s": ("sum", "x")})
        assert [row[1] for _, row in played(step, Timeline.of(rows, ("k",), None))[0]] == [digits[0], sign * most]


@pytest.mark.parametrize("digits", [2**63, 2**63 + 1, 2**63 + 922337024, 2**64 - 1, 2**64 + 1, 2**96, 10**37])
def test_a_mean_of_decimals_beyond_64_bits_is_right_on_both_sides(digits: int) -> None:
    for sign in (1, -1):
        rows = pa.record_batch({"k": [1], "x": pa.array([Decimal(sign * digits)], pa.decimal128(38))})
        step = step_of(GroupBy, rows.schema, ("k",), aggregates={"m": ("avg", "x")})
        [(_, row)], _ = played(step, Timeline.of(rows, ("k",), None))
        assert math.isclose(row[1], sign * digits, rel_tol=1e-15)


@pytest.mark.parametrize(
    ("aggregate", "kind", "text"),
    [
        (("sum", "x"), pa.string(), "no sum of 'x', which is string; expected numbers, or decimals of 128 bits. Cast"),
        (("sum", "x"), pa.decimal256(50), "no sum of 'x', which is decimal256"),
        (("variance", "x"), pa.decimal128(9), "no variance of 'x', which is decimal128.* expected numbers. Cast"),
        (
            ("max", "x"),
            pa.list_(pa.int64()),
            "no max of 'x', which is list.* expected numbers, decimals",
        ),
        (("count_distinct", "x"), pa.list_(pa.int64()), "no count_distinct of 'x', which is list"),
        (("first", "nope"), pa.int64(), "no column 'nope'"),
        (("median", "x"), pa.int64(), "expected .*first, last, count_distinct"),
    ],
)
def test_an_aggregate_that_a_column_does_not_have_is_refused(aggregate: Any, kind: Any, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        step_of(GroupBy, pa.schema([("k", pa.int64()), ("x", kind)]), ("k",), aggregates={"a": aggregate})


def test_aggregates_of_a_count_window_take_no_value() -> None:
    with pytest.raises(PlanError, match="aggregates name their columns; leave value out"):
        step_of(CountWindow, SCHEMA, ("k",), value="i", aggregates={"n": "count"})


def test_a_store_forgets_the_rows_that_no_number_names() -> None:
    store = ValueStore({"x": pa.int64()})
    numbers = np.zeros(10, np.int64)
    forgot = 0
    for n in range(2_000):
        before = store._rows
        store.compact(numbers)
        if store._rows < before:
            forgot += 1
            assert sorted(store.take(numbers)[0].to_pylist()) == [n * 100 + 7 for n in range(n - 10, n)]
        numbers[n % 10] = store.add([pa.array(np.arange(n * 100, n * 100 + 100))])[7]
    assert store.take(numbers)[0].to_pylist() == [n * 100 + 7 for n in range(1_990, 2_000)]
    assert store._rows < 20_000 and forgot > 5
