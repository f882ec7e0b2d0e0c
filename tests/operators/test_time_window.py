"""TimeWindow against a plain loop and against pandas: any batching, any moves, out-of-order and late rows."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.model.batch import Batch
from flux.model.event_time import EventTime
from flux.model.punctuation import Punctuation
from flux.operators import TimeWindow
from flux.types.errors import OperatorError, PlanError
from tests.operators.feeding import opened, step_of
from tests.operators.plain_aggregates import KEPT, RUNNING, aggregated, alike
from tests.operators.timeline import Timeline, cut_places, played
from tests.operators.windows import (
    COUNT,
    FLOATS,
    INSTANTS,
    INVALID,
    LARGE,
    Row,
    Window,
    batch_of,
    check_against_loop,
    late_wherever_the_partition_is,
    rows_of,
    schema_of,
)

INTS = st.integers(-9, 9) | st.integers(-(2**63), 2**63 - 1)


def plain(rows: list[Row], event_time: EventTime, size: int, slide: int, offset: int = 0) -> tuple[list[Window], int]:
    """Each window when it is emitted, as (sn, key, start, end, values), and how many rows were late."""
    held: dict[tuple[int, Any], list[Any]] = {}
    found, late, watermark, sn = [], 0, -math.inf, 0

    def emit(upto: float) -> None:
        for start, key in [place for place in held if place[0] + size <= upto]:
            found.append((sn, key, start, start + size, held.pop((start, key))))

    for key, ts, x in rows:
        sn += 1
        key = "nan" if key != key else key
        since = 0 if ts is None else ts - offset
        numbers = range(0) if ts is None else range((since - size) // slide + 1, since // slide + 1)
        starts = [k * slide + offset for k in numbers]
        is_open = [start for start in starts if start + size > watermark]
        late += not is_open
        for start in is_open:
            held.setdefault((start, key), []).append(x)
        reached = None if ts is None else (ts - event_time.lateness_ms) // event_time.every_ms * event_time.every_ms
        if reached is not None and reached > watermark:
            watermark, sn = reached, sn + 1
            emit(watermark)
    sn += 1
    emit(math.inf)
    return found, late


def check(rows: list[Row], schema: pa.Schema, size: int, slide: int | None, data: st.DataObject) -> None:
    offset = data.draw(st.sampled_from([0, 0, 3, -7, 1_000]))
    lengths = {"size_ms": size, "slide_ms": slide, "offset_ms": offset}
    step = step_of(TimeWindow, schema, ("k",), time="ts", **lengths, aggregates=RUNNING | KEPT)
    loop = partial(plain, rows, size=size, slide=slide or size, offset=offset)
    check_against_loop(step, batch_of(rows, schema), loop, data)


@settings(deadline=None, max_examples=60)
@given(rows_of(st.sampled_from([1, 2, 3, None]), FLOATS | st.sampled_from(LARGE)), st.integers(1, 40), st.data())
def test_tumbling_windows_of_floats_are_those_of_a_plain_loop(rows: list[Row], size: int, data: st.DataObject) -> None:
    check(rows, schema_of(pa.int32(), pa.float64()), size, None, data)


@settings(deadline=None, max_examples=60)
@given(rows_of(st.sampled_from(["", "a", "bb", None]), INTS), st.integers(1, 40), st.data())
def test_sliding_windows_of_integers_are_those_of_a_plain_loop(rows: list[Row], size: int, data: st.DataObject) -> None:
    # Sums that 64 bits cannot hold are an error, which is another test's.
    rows = [(k, ts, None if x is None else x // max(1, len(rows))) for k, ts, x in rows]
    check(rows, schema_of(pa.string(), pa.int64()), size, data.draw(st.integers(1, size)), data)


@settings(deadline=None, max_examples=30)
@given(rows_of(st.sampled_from([0.0, -0.0, 1.5, math.nan, None]), st.floats(-9, 9)), st.integers(1, 40), st.data())
def test_sliding_windows_of_floats_are_those_of_a_plain_loop(rows: list[Row], size: int, data: st.DataObject) -> None:
    check(rows, schema_of(pa.float64(), pa.float64()), size, data.draw(st.integers(1, size)), data)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.none() | st.sampled_from([0.0, 1.5, math.inf, -math.inf, math.nan, *LARGE]), max_size=12), st.data())
def test_panes_put_together_make_no_nan_of_infinities_and_large_values(values: list[Any], data: st.DataObject) -> None:
    chosen = {name: (RUNNING | KEPT)[name] for name in ("least", "most", "var", "median", "p90")}
    schema = schema_of(pa.int32(), pa.float64())
    rows = [(1, ts, x) for ts, x in enumerate(values)]
    step = step_of(TimeWindow, schema, ("k",), time="ts", size_ms=6, slide_ms=2, aggregates=chosen)
    timeline = Timeline.of(batch_of(rows, schema), ("k",), None)
    found, _ = played(step, timeline)
    for _, (_, start, end, *told) in found:
        expected = dict(zip(RUNNING | KEPT, aggregated(values[max(0, start) : end]), strict=True))
        assert all(alike(a, expected[name]) for a, name in zip(told, chosen, strict=True)), (start, told, expected)
    assert repr(played(step, timeline, data.draw(cut_places(len(rows))))[0]) == repr(found)


@pytest.mark.parametrize(
    "values",
    [
        [1.0, math.inf, math.inf],
        [-math.inf, 0.0],
        [-math.inf, math.inf],
        [math.inf, math.inf],
        [1.0, math.inf, -math.inf],
        [1e200, -1e200],
        [1.7e308, 1.7e308],
        [1e308, 1e308, -math.inf],
        [1.0, math.inf, 2.0, -math.inf, 3.0],
    ],
)
def test_infinities_and_overflow_are_as_in_duckdb(values: list[float]) -> None:
    schema = schema_of(pa.int32(), pa.float64())
    aggregates: dict[str, Any] = {name: RUNNING[name] for name in ("total", "least", "most", "mean", "var")}
    aggregates |= {f"q{part}": ("quantile", "x", part / 100) for part in (0, 25, 50, 75, 100)}
    step = step_of(TimeWindow, schema, ("k",), time="ts", size_ms=9, aggregates=aggregates)
    [(_, (_, _, _, *found))], _ = played(step, Timeline.of(batch_of([(1, 0, x) for x in values], schema), ("k",), None))
    quantiles = ", ".join(f"quantile_cont(x, {part / 100})" for part in (0, 25, 50, 75, 100))
    wanted = f"sum(x), min(x), max(x), avg(x), var_samp(x), {quantiles}"
    table = pa.table({"x": values})
    expected = duckdb.from_arrow(table).aggregate(wanted).fetchall()[0]
    assert repr(found) == repr(list(expected))


def test_a_sum_of_floats_is_that_of_a_loop_over_the_rows_to_the_bit() -> None:
    x = np.random.default_rng(1).standard_normal(5_000) * 10.0 ** np.random.default_rng(2).integers(-9, 9, 5_000)
    schema = schema_of(pa.int32(), pa.float64())
    rows = pa.record_batch([pa.array([1] * 5_000, pa.int32()), pa.array([0] * 5_000), pa.array(x)], schema=schema)
    step = step_of(TimeWindow, schema, ("k",), time="ts", size_ms=9, aggregates={"s": ("sum", "x")})
    total = 0.0
    for value in x.tolist():
        total += value
    for cuts in ([], [1, 2, 777], list(range(0, 5_000, 13))):
        [(_, (*_, found))], _ = played(step, Timeline.of(rows, ("k",), None), cuts)
        assert found == total


@pytest.mark.parametrize("keys", [1, 700, 20_000])
def test_windows_are_those_of_pandas(keys: int) -> None:
    rng = np.random.default_rng(keys)
    count = 20_000
    key = np.arange(count) if keys == count else rng.integers(0, keys, count)
    frame = pd.DataFrame({"k": key, "ts": rng.integers(0, 1_000, count), "x": rng.integers(-50, 50, count)})
    frame["start"] = frame.ts // 100 * 100
    grouped = frame.groupby(["start", "k"])["x"]
    expected = grouped.agg(["count", "sum", "min", "max", "mean", "var"]).reset_index()
    expected["q"] = grouped.quantile(0.25).to_numpy()
    rows = pa.RecordBatch.from_pandas(frame[["k", "ts", "x"]], preserve_index=False)
    aggregates = {"c": "count", "s": ("sum", "x"), "mn": ("min", "x"), "mx": ("max", "x"), "m": ("avg", "x")}
    aggregates |= {"v": ("variance", "x"), "q": ("quantile", "x", 0.25)}
    step = step_of(TimeWindow, rows.schema, ("k",), time="ts", size_ms=100, aggregates=aggregates)
    timeline = Timeline.of(rows, ("k",), EventTime(column="ts", lateness_ms=1_000))
    found, late = played(step, timeline, list(range(0, count, 999)), [0, 3, 1])
    assert late == 0
    got = sorted((row[1], row[0], *row[3:]) for _, row in found)
    assert len(got) == len(expected)
    np.testing.assert_allclose(np.array(got, np.float64), expected.to_numpy(np.float64), rtol=1e-9, atol=1e-9)


def test_output_goes_by_window_and_then_by_key_within_a_partition() -> None:
    rows = [(k, ts, 1) for ts in (15, 5, 25) for k in ("b", None, "a", "c")]
    schema = schema_of(pa.string(), pa.int64())
    hosted = opened(step_of(TimeWindow, schema, ("k",), time="ts", size_ms=10, aggregates=COUNT))
    hosted.process(Batch(batch_of(rows, schema), np.arange(len(rows)), None, np.zeros(len(rows), np.uint16)))
    out = hosted.punctuate(Punctuation(99, "end"))
    assert out is not None
    keys = [(row["window_start"], row["k"]) for row in out.arrow.to_pylist()]
    assert keys == [(start, k) for start in (0, 10, 20) for k in ("a", "b", "c", None)]
    assert out.sn.tolist() == [99] * 12


def test_a_watermark_tells_each_partition_by_itself() -> None:
    schema = schema_of(pa.int32(), pa.int64())
    hosted = opened(step_of(TimeWindow, schema, ("k",), time="ts", size_ms=10, aggregates=COUNT))
    rows = batch_of([(0, 1, 1), (1, 1, 1)], schema)
    hosted.process(Batch(rows, np.arange(2), None, np.array([0, 1], np.uint16)))
    first = hosted.punctuate(Punctuation(3, "watermark", 10, frozenset({0})))
    assert first is not None and first.partition.tolist() == [0]
    # A row of the partition whose time has come is late; one of the other is not.
    hosted.process(Batch(rows, np.arange(4, 6), None, np.array([0, 1], np.uint16)))
    second = hosted.punctuate(Punctuation(7, "watermark", 10, frozenset({1})))
    assert second is not None and (second.partition.tolist(), second.arrow.to_pylist()[0]["n"]) == ([1], 2)
    assert hosted.take_late() == {0: 1} and hosted.take_late() == {}


def test_late_rows_are_counted_once_wherever_their_partition_is() -> None:
    schema = schema_of(pa.int32(), pa.int64())
    step = step_of(TimeWindow, schema, ("k",), time="ts", size_ms=10, aggregates=COUNT)
    assert late_wherever_the_partition_is(step) == 3


@pytest.mark.parametrize("kind", INSTANTS)
def test_windows_of_instants_are_instants(kind: Any) -> None:
    schema = pa.schema([("k", pa.int32()), ("ts", kind)])
    day = 86_400_000
    at = pa.array([day, 2 * day - 1, 2 * day], pa.timestamp("ms")).cast(kind, safe=False)
    rows = pa.record_batch([pa.array([1, 1, 1], pa.int32()), at], schema=schema)
    step = step_of(TimeWindow, schema, ("k",), time="ts", size_ms=day, aggregates=COUNT)
    found, _ = played(step, Timeline.of(rows, ("k",), EventTime(column="ts")))
    starts = [row[1].timestamp() if row[1].tzinfo else (row[1] - pd.Timestamp(0)).total_seconds() for _, row in found]
    assert starts == [day / 1000, 2 * day / 1000]
    assert step.output.field("window_start").type == pa.timestamp("ms", getattr(kind, "tz", None))


@pytest.mark.parametrize("kind", [pa.uint64(), pa.int8(), pa.bool_(), pa.float32(), pa.timestamp("us"), pa.date32()])
def test_extremes_have_the_type_of_their_column(kind: Any) -> None:
    width = pa.int32() if kind.bit_width == 32 and not pa.types.is_floating(kind) else pa.int64()
    x = pa.array([0, 1, None], width).cast(kind) if not pa.types.is_boolean(kind) else pa.array([False, True, None])
    rows = pa.record_batch({"k": pa.array([1, 1, 1]), "ts": pa.array([1, 2, 3]), "x": x})
    aggregates = {"least": ("min", "x"), "most": ("max", "x")}
    step = step_of(TimeWindow, rows.schema, ("k",), time="ts", size_ms=10, aggregates=aggregates)
    assert [step.output.field(name).type for name in aggregates] == [kind, kind]
    [(_, row)], _ = played(step, Timeline.of(rows, ("k",), None), [1, 2], [0, 1, 2, 3])
    assert list(row[3:]) == x.to_pylist()[:2]


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
def test_a_sum_beyond_64_bits_is_an_error_and_its_mean_is_right(value: int) -> None:
    rows = pa.record_batch({"k": [1] * 3, "ts": [1] * 3, "x": [value] * 3})
    parameters: dict[str, Any] = {"time": "ts", "size_ms": 10}
    mean = step_of(TimeWindow, rows.schema, ("k",), aggregates={"m": ("avg", "x")}, **parameters)
    [(_, row)], _ = played(mean, Timeline.of(rows, ("k",), None), [1, 2], [0, 1, 2, 3])
    assert row[3] == float(3 * value) / 3
    total = step_of(TimeWindow, rows.schema, ("k",), aggregates={"s": ("sum", "x")}, **parameters)
    with pytest.raises(OperatorError, match=r"does not fit in 64 bits for k 1, window_start 0\. Cast"):
        played(total, Timeline.of(rows, ("k",), None))


def test_a_function_may_be_of_several_columns() -> None:
    def vwap(price: Any, volume: Any) -> float:
        return float((price * volume).sum() / volume.sum())

    rows = pa.record_batch({"k": ["x", "x", "y"], "ts": [1, 2, 3], "p": [10.0, 20.0, 7.0], "v": [1, 3, 5]})
    aggregates = {"vwap": (vwap, ("p", "v"), "float64")}
    step = step_of(TimeWindow, rows.schema, ("k",), time="ts", size_ms=10, aggregates=aggregates)
    found, _ = played(step, Timeline.of(rows, ("k",), None))
    assert {row[0]: row[3] for _, row in found} == {"x": 17.5, "y": 7.0}


GOOD: dict[str, Any] = {"time": "ts", "size_ms": 10, "aggregates": COUNT}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        *INVALID,
        ({"size_ms": 0}, "size_ms is a whole number"),
        ({"size_ms": 1.5}, "size_ms is a whole number"),
        ({"slide_ms": 11}, "rows in between would be in no window"),
        ({"offset_ms": 1.5}, "offset_ms is a whole number"),
        ({"days": 1}, "days, from 1 to 36,525, and zone.* are given both and without size_ms"),
        ({"size_ms": None, "days": 1}, "days, .*are given both.* got days=1"),
        ({"size_ms": None, "days": 0, "zone": "UTC"}, "days, from 1 to 36,525"),
        ({"size_ms": None, "days": 1, "zone": "Mars/Base"}, "zone='Mars/Base': .* Expected a name such as"),
        ({"size_ms": None, "days": 1, "zone": "UTC", "offset_ms": 86_400_000}, "is from 0 to 86,399,999"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_the_plan(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        step_of(TimeWindow, schema_of(pa.string(), pa.int64()), ("k",), **(GOOD | wrong))


def test_a_misspelt_parameter_is_refused_with_the_plan() -> None:
    with pytest.raises(PlanError, match="unknown parameters size"):
        step_of(TimeWindow, schema_of(pa.string(), pa.int64()), ("k",), size=3, **GOOD)


def test_more_keys_of_a_partition_than_sub_can_count_are_told_in_order() -> None:
    count = 70_000
    keys = np.random.default_rng(1).permutation(count)
    rows = pa.record_batch({"k": keys, "ts": np.zeros(count, np.int64)})
    hosted = opened(step_of(TimeWindow, rows.schema, ("k",), time="ts", size_ms=10, aggregates=COUNT))
    hosted.process(Batch(rows, np.arange(count), None, np.zeros(count, np.uint16)))
    out = hosted.punctuate(Punctuation(count, "end"))
    assert out is not None and np.array_equal(out["k"], np.arange(count))


@pytest.mark.parametrize("slide", [None, 5])
def test_the_variance_of_large_integers_keeps_their_digits(slide: int | None) -> None:
    rows = pa.record_batch({"k": [1] * 3, "ts": [1, 6, 9], "x": [2**60, 2**60 + 1, 2**60 + 2]})
    asked = {"var": ("variance", "x")}
    step = step_of(TimeWindow, rows.schema, ("k",), time="ts", size_ms=10, slide_ms=slide, aggregates=asked)
    found, _ = played(step, Timeline.of(rows, ("k",), None), [1, 2], [0, 1, 2, 3])
    assert [row[3] for _, row in found if row[1] == 0] == [1.0]


def test_a_quantile_between_values_that_are_far_apart_is_between_them() -> None:
    rows = pa.record_batch({"k": [1] * 2, "ts": [1] * 2, "x": [-1.7e308, 1.7e308]})
    asked = {"median": ("quantile", "x", 0.5), "q": ("quantile", "x", 0.75)}
    step = step_of(TimeWindow, rows.schema, ("k",), time="ts", size_ms=10, aggregates=asked)
    [(_, row)], _ = played(step, Timeline.of(rows, ("k",), None))
    assert row[3] == 0.0 and math.isclose(row[4], 1.7e308 / 2)


# Days of time zones.

ZONES = {  # And the year in which clocks did something unusual.
    "Europe/Oslo": 2024,
    "America/Havana": 2024,  # The hour after midnight comes twice.
    "America/Sao_Paulo": 2018,  # There was no midnight.
    "Australia/Lord_Howe": 2024,  # Half an hour.
    "Pacific/Apia": 2011,  # There was no 30th of December.
    "UTC": 1969,
}


# Two of them show it; the others show it again.
@pytest.mark.parametrize(
    "zone", [zone if zone in list(ZONES)[:2] else pytest.param(zone, marks=pytest.mark.long) for zone in ZONES]
)
def test_days_are_those_of_the_clocks_of_the_zone(zone: str) -> None:
    first = datetime(ZONES[zone], 1, 1, tzinfo=UTC)
    instants = [first + timedelta(hours=n) for n in range(24 * 366)]
    ts = [int(instant.timestamp()) * 1_000 for instant in instants]
    rows = pa.record_batch({"k": pa.array([1] * len(ts), pa.int32()), "ts": pa.array(ts)})
    aggregates = {"n": "count", "first": ("first", "ts"), "last": ("last", "ts")}
    step = step_of(TimeWindow, rows.schema, ("k",), time="ts", days=1, zone=zone, aggregates=aggregates)
    timeline = Timeline.of(rows, ("k",), EventTime(column="ts", every_ms=50 * 3_600_000))
    found, late = played(step, timeline, [5_000], [0, 1, 2, 3])
    expected: dict[Any, int] = {}
    for instant in instants:
        day = instant.astimezone(ZoneInfo(zone)).date()
        expected[day] = expected.get(day, 0) + 1
    assert [row[3] for _, row in found] == list(expected.values()) and late == 0
    for _, (_, start, end, _, earliest, latest) in found:
        assert start <= earliest <= latest < end
    # Each day begins where the last one ends, also where a day is missing.
    assert [row[1] for _, row in found][1:] == [row[2] for _, row in found][:-1]


def test_windows_of_a_week_begin_hours_after_midnight() -> None:
    zone = ZoneInfo("Europe/Oslo")
    at = [datetime(2024, 3, day, hour, tzinfo=zone) for day in range(20, 32) for hour in (3, 7)]
    rows = pa.record_batch({"k": [1] * len(at), "ts": pa.array(at, pa.timestamp("ms", "UTC"))})
    lengths = {"days": 7, "zone": "Europe/Oslo", "offset_ms": 6 * 3_600_000}
    step = step_of(TimeWindow, rows.schema, ("k",), time="ts", **lengths, aggregates=COUNT)
    found = [row[1:] for _, row in played(step, Timeline.of(rows, ("k",), None))[0]]
    assert [start.astimezone(zone).hour for start, _, _ in found] == [6] * len(found)
    # The week with the 31st of March is an hour shorter.
    assert [end - start < timedelta(days=7) for start, end, _ in found] == [
        start <= datetime(2024, 3, 31, tzinfo=zone) < end for start, end, _ in found
    ]
    assert sum(n for *_, n in found) == len(at)
    for start, end, n in found:
        assert n == sum(start <= each < end for each in at)


# Functions of a user's own.


def told_by(function: Any, rows: list[Row], kind: str = "float64") -> list[tuple[Any, ...]]:
    schema = schema_of(pa.string(), pa.float64())
    aggregates = {"own": (function, "x", kind)}
    step = step_of(TimeWindow, schema, ("k",), time="ts", size_ms=10, aggregates=aggregates)
    found, _ = played(step, Timeline.of(batch_of(rows, schema), ("k",), EventTime(column="ts")))
    return sorted(row for _, row in found)


def test_what_numpy_calls_masked_is_null() -> None:
    rows: list[Row] = [("a", 0, None), ("b", 0, 2.0), ("b", 1, None)]
    assert told_by(lambda x: x.max(), rows) == [("a", 0, 10, None), ("b", 0, 10, 2.0)]


def fussy(x: Any) -> Any:
    if x[0] == 7.0:
        raise ValueError("no sevens")
    return "text" if x[0] == 8.0 else 1.0


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (7.0, r"aggregate 'own': fussy \(.*test_time_window.py:\d+\) raised ValueError: no sevens for k 'b', "),
        (
            8.0,
            r"aggregate 'own': fussy \(.*test_time_window.py:\d+\) returned 'text', and double was declared: .*k 'b'",
        ),
    ],
)
def test_an_error_in_a_function_names_it_the_aggregate_and_the_key(x: float, says: str) -> None:
    with pytest.raises(OperatorError, match=says) as caught:
        told_by(fussy, [("a", 20, 1.0), ("b", 20, x), ("c", 20, 1.0)])
    assert "window_start 20" in str(caught.value)


def test_a_partition_that_is_dropped_takes_its_rows_with_it_also_those_that_wait_to_be_added() -> None:
    schema = schema_of(pa.string(), pa.int64())
    hosted = opened(step_of(TimeWindow, schema, ("k",), time="ts", size_ms=10, aggregates=COUNT))
    rows = batch_of([("a", 1, 1), ("b", 2, 1)], schema)
    hosted.process(Batch(rows, np.arange(2), None, np.array([0, 1], np.uint16)))
    hosted.drop_partition(0)
    out = hosted.punctuate(Punctuation(9, "watermark", 100, frozenset({0, 1})))
    assert out is not None and out.arrow.column("k").to_pylist() == ["b"]
