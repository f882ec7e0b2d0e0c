"""SessionWindow against a plain loop and against DuckDB: any batching, any moves, rows out of order and late.

It takes half a minute: hypothesis draws the inputs, and each is computed in two or three ways.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.model.batch import Batch
from flux.model.event_time import EventTime
from flux.model.punctuation import Punctuation
from flux.operators import SessionWindow
from flux.types.errors import OperatorError, PlanError
from tests.operators.feeding import PARTITIONS, moved, opened, step_of
from tests.operators.in_duckdb import Batch as InDuckDB
from tests.operators.in_duckdb import differ
from tests.operators.plain_aggregates import KEPT, OF_ANY_TYPE, RUNNING
from tests.operators.timeline import Timeline, played
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

INTS = st.integers(-9, 9) | st.integers(-(2**56), 2**56)


def plain(rows: list[Row], event_time: EventTime, gap: int) -> tuple[list[Window], int]:
    """Each session when it closes, as (sn, key, start, end, values), and how many rows were late."""
    open_of: dict[Any, list[list[tuple[int, int, Any]]]] = {}  # Of each key, sessions of (number, ts, x).
    found, late, watermark, sn = [], 0, -math.inf, 0

    def close(upto: float) -> None:
        for key, sessions in open_of.items():
            for session in list(sessions):
                end = max(ts for _, ts, _ in session) + gap
                if end <= upto:
                    sessions.remove(session)
                    found.append((sn, key, min(ts for _, ts, _ in session), end, [x for *_, x in sorted_rows(session)]))

    for number, (key, ts, x) in enumerate(rows):
        sn += 1
        key = "nan" if key != key else key
        if ts is None or ts + gap <= watermark:
            late += 1
        else:
            sessions = open_of.setdefault(key, [])
            near = [s for s in sessions if any(abs(ts - other) < gap for _, other, _ in s) or is_within(ts, s)]
            open_of[key] = [s for s in sessions if s not in near] + [[*chain(*near), (number, ts, x)]]
        reached = None if ts is None else (ts - event_time.lateness_ms) // event_time.every_ms * event_time.every_ms
        if reached is not None and reached > watermark:
            watermark, sn = reached, sn + 1
            close(watermark)
    sn += 1
    close(math.inf)
    return found, late


def is_within(ts: int, session: list[tuple[int, int, Any]]) -> bool:
    return min(each[1] for each in session) <= ts <= max(each[1] for each in session)


def sorted_rows(session: list[tuple[int, int, Any]]) -> list[tuple[int, int, Any]]:
    return sorted(session, key=lambda row: row[0])


def check(rows: list[Row], schema: pa.Schema, gap: int, data: st.DataObject, aggregates: dict[str, Any]) -> None:
    step = step_of(SessionWindow, schema, ("k",), time="ts", gap_ms=gap, aggregates=aggregates)
    check_against_loop(step, batch_of(rows, schema), lambda event_time: plain(rows, event_time, gap), data)


# Against a plain loop. Aggregates that keep no rows merge panes before the end, so both kinds are tried.


@settings(deadline=None, max_examples=80)
@given(rows_of(st.sampled_from([1, 2, 3, None]), FLOATS), st.integers(1, 40), st.data())
def test_sessions_of_floats_are_those_of_a_plain_loop(rows: list[Row], gap: int, data: st.DataObject) -> None:
    check(rows, schema_of(pa.int32(), pa.float64()), gap, data, RUNNING | KEPT)


@settings(deadline=None, max_examples=120)
@given(rows_of(st.sampled_from([1, 2, None]), FLOATS), st.integers(1, 12), st.data())
def test_long_sessions_without_kept_rows_are_those_of_a_plain_loop(
    rows: list[Row], gap: int, data: st.DataObject
) -> None:
    # In the order of time but for a few places, and close together: most sessions last for many gaps.
    rows = sorted(rows, key=lambda row: (0 if row[1] is None else row[1]) // 7)
    check(rows, schema_of(pa.int32(), pa.float64()), gap, data, RUNNING)


@settings(deadline=None, max_examples=60)
@given(rows_of(st.sampled_from(["", "a", "bb", None]), INTS), st.integers(1, 40), st.data())
def test_sessions_of_integers_by_text_are_those_of_a_plain_loop(rows: list[Row], gap: int, data: st.DataObject) -> None:
    check(rows, schema_of(pa.string(), pa.int64()), gap, data, RUNNING | KEPT)


@settings(deadline=None, max_examples=40)
@given(rows_of(st.sampled_from([0.0, -0.0, 1.5, math.nan, None]), st.floats(-9, 9)), st.integers(1, 40), st.data())
def test_sessions_by_floats_are_those_of_a_plain_loop(rows: list[Row], gap: int, data: st.DataObject) -> None:
    check(rows, schema_of(pa.float64(), pa.float64()), gap, data, RUNNING)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.none() | st.sampled_from([0.0, 1.5, math.inf, -math.inf, math.nan, *LARGE]), max_size=12), st.data())
def test_merged_panes_make_no_nan_of_infinities_and_large_values(values: list[Any], data: st.DataObject) -> None:
    chosen = {name: (RUNNING | KEPT)[name] for name in ("least", "most", "var")}
    check([(1, ts, x) for ts, x in enumerate(values)], schema_of(pa.int32(), pa.float64()), 2, data, chosen)


# Begin and end of sessions.


def sessions_of(
    rows: list[Row], gap: int, event_time: EventTime | None = None, **aggregates: Any
) -> list[tuple[Any, ...]]:
    schema = schema_of(pa.string(), pa.float64())
    step = step_of(SessionWindow, schema, ("k",), time="ts", gap_ms=gap, aggregates=aggregates or COUNT)
    return [row for _, row in played(step, Timeline.of(batch_of(rows, schema), ("k",), event_time))[0]]


def test_rows_less_than_a_gap_apart_are_in_one_session() -> None:
    assert sessions_of([("a", 0, 1.0), ("a", 9, 1.0)], 10) == [("a", 0, 19, 2)]


def test_a_row_a_whole_gap_after_the_last_begins_a_session() -> None:
    assert sessions_of([("a", 0, 1.0), ("a", 10, 1.0)], 10) == [("a", 0, 10, 1), ("a", 10, 20, 1)]


def test_a_row_between_two_open_sessions_makes_them_one() -> None:
    apart = [("a", 0, 1.0), ("a", 16, 1.0)]
    assert len(sessions_of(apart, 10)) == 2
    assert sessions_of([*apart, ("a", 8, 1.0)], 10) == [("a", 0, 26, 3)]


def test_rows_of_other_keys_do_not_lengthen_a_session() -> None:
    rows = [("a", 0, 1.0), ("b", 8, 1.0), ("a", 12, 1.0)]
    assert sorted(sessions_of(rows, 10)) == [("a", 0, 10, 1), ("a", 12, 22, 1), ("b", 8, 18, 1)]


def hosted_of(gap: int) -> Any:
    schema = schema_of(pa.int32(), pa.int64())
    return opened(step_of(SessionWindow, schema, ("k",), time="ts", gap_ms=gap, aggregates=COUNT))


def given_rows(hosted: Any, instants: list[int | None], sn: int, partition: int = 0) -> None:
    rows = batch_of([(1, ts, 1) for ts in instants], schema_of(pa.int32(), pa.int64()))
    numbers = np.arange(sn, sn + len(instants))
    assert hosted.process(Batch(rows, numbers, None, np.full(len(instants), partition, np.uint16))) is None


def ends(batch: Batch | None) -> list[tuple[int, int, int]]:
    found = [] if batch is None else batch.arrow.to_pylist()
    return [(row["window_start"], row["window_end"], row["n"]) for row in found]


def test_a_session_closes_when_the_watermark_has_reached_its_end_and_not_before() -> None:
    hosted = hosted_of(10)
    given_rows(hosted, [0, 5], 0)
    assert hosted.punctuate(Punctuation(3, "watermark", 14)) is None
    assert ends(hosted.punctuate(Punctuation(4, "watermark", 15))) == [(0, 15, 2)]


def test_the_end_of_the_stream_closes_open_sessions() -> None:
    hosted = hosted_of(10)
    given_rows(hosted, [0, 50], 0)
    assert ends(hosted.punctuate(Punctuation(3, "end"))) == [(0, 10, 1), (50, 60, 1)]


def test_a_row_is_late_when_a_session_of_its_own_would_be_closed() -> None:
    hosted = hosted_of(10)
    given_rows(hosted, [30, 22, 25], 0)
    assert hosted.punctuate(Punctuation(4, "watermark", 30)) is None
    given_rows(hosted, [20, None, 21], 5)
    assert hosted.take_late() == {0: 2} and hosted.take_late() == {}
    assert ends(hosted.punctuate(Punctuation(9, "end"))) == [(21, 40, 4)]


def test_a_row_near_a_session_that_is_closed_begins_another() -> None:
    hosted = hosted_of(10)
    given_rows(hosted, [0], 0)
    assert ends(hosted.punctuate(Punctuation(2, "watermark", 12))) == [(0, 10, 1)]
    given_rows(hosted, [5], 3)
    assert ends(hosted.punctuate(Punctuation(5, "end"))) == [(5, 15, 1)]
    assert hosted.take_late() == {}


def test_a_row_since_the_last_watermark_may_be_closed_by_the_next() -> None:
    hosted = hosted_of(80)
    given_rows(hosted, [1_000], 0)
    assert hosted.punctuate(Punctuation(2, "watermark", 80)) is None
    given_rows(hosted, [5], 3)
    assert hosted.punctuate(Punctuation(5, "watermark", 84)) is None
    assert ends(hosted.punctuate(Punctuation(6, "watermark", 85))) == [(5, 85, 1)]


def test_a_session_that_is_nearly_due_closes_once_after_its_partition_moved_away_and_back() -> None:
    hosted, other = hosted_of(80), hosted_of(80)
    given_rows(hosted, [0], 0)
    assert hosted.punctuate(Punctuation(2, "watermark", 75)) is None
    moved(hosted, other, 0)
    moved(other, hosted, 0)
    assert ends(hosted.punctuate(Punctuation(3, "watermark", 85))) == [(0, 80, 1)]


def test_a_watermark_closes_sessions_of_each_partition_by_itself() -> None:
    hosted = hosted_of(10)
    given_rows(hosted, [0], 0, partition=0)
    given_rows(hosted, [0], 1, partition=1)
    first = hosted.punctuate(Punctuation(3, "watermark", 10, frozenset({0})))
    assert first is not None and first.partition.tolist() == [0]
    given_rows(hosted, [0], 4, partition=0)
    given_rows(hosted, [0], 5, partition=1)
    second = hosted.punctuate(Punctuation(7, "watermark", 10, frozenset({1})))
    assert second is not None and second.partition.tolist() == [1] and ends(second) == [(0, 10, 2)]
    assert hosted.take_late() == {0: 1}


def test_late_rows_are_counted_once_wherever_their_partition_is() -> None:
    schema = schema_of(pa.int32(), pa.int64())
    step = step_of(SessionWindow, schema, ("k",), time="ts", gap_ms=10, aggregates=COUNT)
    assert late_wherever_the_partition_is(step) == 3


def test_output_goes_by_end_and_then_by_key_within_a_partition() -> None:
    rows = [(k, ts, 1) for ts in (55, 5, 95) for k in ("b", None, "a", "c")]
    schema = schema_of(pa.string(), pa.int64())
    hosted = opened(step_of(SessionWindow, schema, ("k",), time="ts", gap_ms=10, aggregates=COUNT))
    hosted.process(Batch(batch_of(rows, schema), np.arange(len(rows)), None, np.zeros(len(rows), np.uint16)))
    out = hosted.punctuate(Punctuation(99, "end"))
    assert out is not None
    keys = [(row["window_end"], row["k"]) for row in out.arrow.to_pylist()]
    assert keys == [(end, k) for end in (15, 65, 105) for k in ("a", "b", "c", None)]
    assert out.sn.tolist() == [99] * 12


# Sums and state.


def test_a_sum_of_floats_is_that_of_loops_over_its_panes_to_the_bit() -> None:
    rng, gap, count = np.random.default_rng(1), 10, 3_000
    x = rng.standard_normal(count) * 10.0 ** rng.integers(-9, 9, count)
    ts = np.sort(rng.integers(0, 900, count)) + rng.integers(0, 25, count)
    of_panes: dict[int, float] = {}
    for at, value in zip((ts // gap).tolist(), x.tolist(), strict=True):
        of_panes[at] = of_panes.get(at, 0.0) + value
    total = 0.0
    for at in sorted(of_panes):
        total += of_panes[at]
    rows = pa.record_batch({"k": np.ones(count, np.int32), "ts": ts, "x": x})
    step = step_of(SessionWindow, rows.schema, ("k",), time="ts", gap_ms=gap, aggregates={"s": ("sum", "x")})
    moves = [n % PARTITIONS for n in range(count)]
    for event_time in (None, *(EventTime(column="ts", lateness_ms=25, every_ms=every) for every in (1, 7, 130))):
        for cuts in ([], [1, 2, 777], list(range(0, count, 13))):
            for some in ([], moves):
                [(_, (*_, found))], late = played(step, Timeline.of(rows, ("k",), event_time), cuts, some)
                assert (found, late) == (total, 0)


@pytest.mark.parametrize("every_ms", [7, 95])
def test_a_session_that_goes_on_keeps_few_panes(every_ms: int) -> None:
    gap, count = 10, 5_000
    rows = pa.record_batch({"k": np.ones(count, np.int32), "ts": np.arange(count)})
    aggregates = {"n": "count", "s": ("sum", "ts"), "v": ("variance", "ts")}
    step = step_of(SessionWindow, rows.schema, ("k",), time="ts", gap_ms=gap, aggregates=aggregates)
    hosted = opened(step)
    for piece in Timeline.of(rows, ("k",), EventTime(column="ts", lateness_ms=20, every_ms=every_ms)).pieces([])[:-1]:
        out = hosted.punctuate(piece) if isinstance(piece, Punctuation) else hosted.process(piece)
        assert out is None
    [panes] = hosted._instance.partition_info().values()  # type: ignore[attr-defined]
    assert panes <= 8 + every_ms // gap
    [(_, (_, start, end, *found))], _ = played(step, Timeline.of(rows, ("k",), EventTime(column="ts")))
    assert (start, end, found[:2]) == (0, count - 1 + gap, [count, count * (count - 1) // 2])
    assert math.isclose(found[2], np.arange(count).var(ddof=1))


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
@pytest.mark.parametrize("every_ms", [1, 1_000])
def test_a_sum_beyond_64_bits_is_an_error_and_its_mean_is_right(value: int, every_ms: int) -> None:
    rows = pa.record_batch({"k": [1] * 40, "ts": np.arange(40) * 3, "x": [value] * 40})
    timeline = Timeline.of(rows, ("k",), EventTime(column="ts", every_ms=every_ms))
    parameters: dict[str, Any] = {"time": "ts", "gap_ms": 10}
    mean = step_of(SessionWindow, rows.schema, ("k",), aggregates={"m": ("avg", "x")}, **parameters)
    [(_, row)], _ = played(mean, timeline, [1, 2], [0, 1, 2, 3])
    assert row[3] == float(40 * value) / 40
    total = step_of(SessionWindow, rows.schema, ("k",), aggregates={"s": ("sum", "x")}, **parameters)
    with pytest.raises(OperatorError, match=r"does not fit in 64 bits for k 1, window_start 0\. Cast"):
        played(total, timeline)


def test_a_function_gets_the_rows_of_a_session_in_arrival_order() -> None:
    def written(x: Any) -> str:
        return " ".join(str(int(value)) for value in x)

    rows = [("a", 40, 1.0), ("a", 0, 2.0), ("b", 3, 3.0), ("a", 20, 4.0), ("a", 30, 5.0), ("a", 10, 6.0)]
    event_time = EventTime(column="ts", lateness_ms=100)
    assert sorted(sessions_of(rows, 11, event_time, own=(written, "x", "string"))) == [
        ("a", 0, 51, "1 2 4 5 6"),
        ("b", 3, 14, "3"),
    ]


@pytest.mark.parametrize("moves", [False, True])
def test_many_open_sessions_close_as_their_ends_are_reached(moves: bool) -> None:
    count = 20_000
    ts = np.random.default_rng(3).integers(0, 500, count)
    rows = pa.record_batch({"k": np.arange(count), "ts": ts})
    step = step_of(SessionWindow, rows.schema, ("k",), time="ts", gap_ms=50, aggregates=COUNT)
    hosted = opened(step)
    hosted.process(Batch(rows, np.arange(count), None, np.zeros(count, np.uint16)))
    found: list[int] = []
    for n, watermark in enumerate([100, 101, 300, 549]):
        if moves:
            old, hosted = hosted, opened(step, [])
            moved(old, hosted, 0)
        out = hosted.punctuate(Punctuation(count + n, "watermark", watermark, frozenset({0})))
        assert out is not None
        found += out["k"].tolist()
        assert len(found) == np.count_nonzero(ts + 50 <= watermark)
    assert found == np.lexsort((np.arange(count), ts)).tolist()


@pytest.mark.parametrize("kind", INSTANTS)
def test_sessions_of_instants_begin_and_end_at_instants(kind: Any) -> None:
    schema = pa.schema([("k", pa.int32()), ("ts", kind)])
    day = 86_400_000
    at = pa.array([day, 2 * day, 5 * day], pa.timestamp("ms")).cast(kind, safe=False)
    rows = pa.record_batch([pa.array([1, 1, 1], pa.int32()), at], schema=schema)
    step = step_of(SessionWindow, schema, ("k",), time="ts", gap_ms=day + 1, aggregates=COUNT)
    found, _ = played(step, Timeline.of(rows, ("k",), EventTime(column="ts")))
    zero = pd.Timestamp(0, tz=getattr(kind, "tz", None))
    days = [[(pd.Timestamp(each) - zero) // pd.Timedelta(1, "ms") for each in row[1:3]] for _, row in found]
    assert days == [[day, 3 * day + 1], [5 * day, 6 * day + 1]]
    assert step.output.field("window_end").type == pa.timestamp("ms", getattr(kind, "tz", None))


def test_instants_and_gaps_as_far_as_they_go_do_not_leave_64_bits() -> None:
    far, gap = 2**60, 2**58
    rows = [("a", -far, 1.0), ("a", far, 1.0), ("a", 0, 1.0), ("a", far - gap + 1, 1.0)]
    found = sessions_of(rows, gap, EventTime(column="ts", lateness_ms=far))
    assert found == [("a", -far, gap - far, 1), ("a", 0, gap, 1), ("a", far - gap + 1, far + gap, 2)]


# Against DuckDB.


LONG = pytest.mark.long


@pytest.mark.parametrize("keys", [pytest.param(1, marks=LONG), 40, 3_000])
@pytest.mark.parametrize("gap", [pytest.param(3, marks=LONG), 20, pytest.param(150, marks=LONG)])
def test_sessions_are_those_of_duckdb(keys: int, gap: int) -> None:
    rng, count = np.random.default_rng(keys + gap), 3_000
    t = np.arange(count) + rng.integers(-60, 60, count)
    table = pa.table(
        {
            "number": np.arange(count),
            "k": pa.array(rng.integers(0, keys, count), mask=rng.random(count) < 0.05),
            "t": pa.array(t, mask=rng.random(count) < 0.02),
            "x": pa.array(rng.integers(-800, 800, count) / 8, mask=rng.random(count) < 0.1),
            "i": pa.array(rng.integers(-(2**40), 2**40, count), mask=rng.random(count) < 0.1),
            "s": pa.array(rng.choice(["", "a", "ab", "ä"], count), mask=rng.random(count) < 0.3),
            "d": pa.array(rng.integers(-(10**9), 10**9, count), mask=rng.random(count) < 0.1).cast(pa.decimal128(19)),
        }
    )
    aggregates = RUNNING | {"whole": ("sum", "i"), "whole_mean": ("avg", "i"), "whole_var": ("variance", "i")}
    aggregates |= {"whole_least": ("min", "i")} | OF_ANY_TYPE | KEPT
    rows = table.combine_chunks().to_batches()[0]
    step = step_of(SessionWindow, rows.schema, ("k",), time="t", gap_ms=gap, aggregates=aggregates)
    timeline = Timeline.of(rows, ("k",), EventTime(column="t", lateness_ms=30, every_ms=25))
    found, late = played(step, timeline, list(range(0, count, 333)), [0, 3, 1])
    in_duckdb = InDuckDB(table, 30, 25)
    assert not (difference := differ([row for _, row in found], in_duckdb.session_windows(gap))), difference
    assert late == in_duckdb.late_for_sessions(gap) > 0


# Invalid parameters.

GOOD: dict[str, Any] = {"time": "ts", "gap_ms": 10, "aggregates": COUNT}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        *INVALID,
        ({"gap_ms": 0}, "gap_ms is a whole number"),
        ({"gap_ms": 1.5}, "gap_ms is a whole number"),
        ({"gap_ms": None}, "gap_ms is a whole number"),
    ],
)
def test_invalid_parameters_are_refused_with_the_plan(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        step_of(SessionWindow, schema_of(pa.string(), pa.int64()), ("k",), **(GOOD | wrong))


def test_a_misspelt_parameter_is_refused_with_the_plan() -> None:
    with pytest.raises(PlanError, match="unknown parameters gap; it has time, aggregates, gap_ms"):
        step_of(SessionWindow, schema_of(pa.string(), pa.int64()), ("k",), gap=3, **GOOD)


def fussy(x: Any) -> Any:
    raise ValueError("no sevens")


def test_an_error_in_a_function_names_it_the_aggregate_and_the_session() -> None:
    says = r"aggregate 'own': fussy \(.*test_session_window.py:\d+\) raised ValueError: no sevens for k 'b', "
    with pytest.raises(OperatorError, match=says + "window_start 20"):
        sessions_of([("b", 20, 7.0)], 10, own=(fussy, "x", "float64"))
