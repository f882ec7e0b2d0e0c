"""Join against a plain loop: any batching, any interleaving of the sides, watermarks, moves at any point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flux
from flux.exchange.sides import widened_names
from flux.hosting import Hosted
from flux.model.batch import Batch
from flux.model.operator import OperatorStep
from flux.model.punctuation import Punctuation
from flux.operators import Join, OuterJoin
from flux.operators.join_spec import JoinSpec
from flux.operators.sorted_runs import SortedRun
from flux.plan.graph import StepNode
from flux.types.errors import OperatorError, PlanError
from flux.types.hashing import partition_of
from tests.operators.feeding import PARTITIONS, cuts, opened, tuples

KEYS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "integers": (pa.int64(), st.integers(-2, 2)),
    "text": (pa.string(), st.sampled_from(["", "a", "b", None])),
    "floats": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, math.nan, None])),
    "half floats": (pa.float16(), st.sampled_from([0.0, -0.0, 1.5, math.nan, None])),
    "one key": (pa.int64(), st.just(7)),
    "all keys distinct": (pa.int64(), st.integers(0, 40)),
}
TIMES = st.integers(0, 30)
Event = tuple[int, Any, int]  # Side, key and time; or (-1, None, watermark), or (-2, None, 0) for the end.


def schemas(kind: Any) -> tuple[pa.Schema, pa.Schema]:
    left = pa.schema([("k", kind), ("ts", pa.int64()), ("v", pa.int64())])
    return left, pa.schema([("id", kind), ("w", pa.int64()), ("ts", pa.int64())])


def joined_of(kind: Any, within: Any, how: str = "inner") -> JoinSpec:
    joined = JoinSpec.of(*schemas(kind), {"k": "id"}, within, "_right", how)
    return replace(joined, is_event_time=joined.column is not None)


def step_of(joined: JoinSpec) -> OperatorStep:
    factory = OuterJoin if joined.preserved else Join
    return OperatorStep(factory, {"joined": joined}, "Join", joined.ours, PARTITIONS, 0, joined.output)


def batch_of(joined: JoinSpec, events: Sequence[Event], first_sn: int) -> Batch:
    """Widened rows, as a stage with two inputs is given them; number n has the value n."""
    return numbered(joined, events, np.arange(first_sn, first_sn + len(events)))


def numbered(joined: JoinSpec, events: Sequence[Event], sns: Any) -> Batch:
    """The same with these numbers."""
    left = [(key, ts, sn) if side == 0 else (None, None, None) for (side, key, ts), sn in zip(events, sns, strict=True)]
    right = [
        (key, sn, ts) if side == 1 else (None, None, None) for (side, key, ts), sn in zip(events, sns, strict=True)
    ]
    columns: list[Any] = [pa.array([side for side, _, _ in events], pa.uint8())]
    for rows, schema in zip((left, right), joined.sides, strict=True):
        columns += [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    keys = pa.array([key for _, key, _ in events], joined.sides[0].field("k").type)
    return Batch(
        pa.RecordBatch.from_arrays(columns, names=widened_names(joined.sides)),
        sns,
        None,
        partition_of([keys], PARTITIONS),
    )


def equal(a: Any, b: Any) -> bool:
    return a is not None and (a == b or (isinstance(a, float) and math.isnan(a) and b is not None and math.isnan(b)))


def plain(events: Sequence[Event], rows: int | None, bound: int) -> list[tuple[int, tuple[Any, ...]]]:
    kept: list[tuple[int, Any, int, int]] = []
    floor, found = -(10**9), []
    for sn, (side, key, ts) in enumerate(events):
        if side < 0:
            floor = max(floor, ts - bound)
            continue
        for other, its_key, its_ts, its_sn in kept:
            near = sn - its_sn <= rows if rows is not None else abs(ts - its_ts) <= bound and its_ts >= floor
            if other != side and equal(key, its_key) and near:
                left, right = ((key, ts, sn), (its_sn, its_ts)) if side == 0 else ((its_key, its_ts, its_sn), (sn, ts))
                found.append((sn, (*left, *right)))
        kept.append((side, key, ts, sn))
    return found


def plainly_late(events: Sequence[Event]) -> int:
    """How many are below the watermark, also without a key."""
    watermark, late = -(10**9), 0
    for side, _, ts in events:
        watermark = max(watermark, ts) if side < 0 else watermark
        late += side >= 0 and ts < watermark
    return late


def move(old: Hosted, new: Hosted, pid: int) -> None:
    state = old.get_partition_state(pid)
    pieces = list(state) if isinstance(state, GeneratorType) else [state]
    old.drop_partition(pid)
    for piece in pieces:
        new.install_partition_state(pid, piece)


def outputs(
    joined: JoinSpec, events: Sequence[Event], batches: Sequence[tuple[int, int]], moves: Sequence[int]
) -> tuple[list[tuple[int, tuple[Any, ...]]], int]:
    """(sn, pair) of all output of two sites that share the partitions, and how many rows were late.

    Partition `moves[i]` moves behind batch i.
    """
    late: dict[int, int] = {}
    sites = [opened(step_of(joined), [0, 1]), opened(step_of(joined), [2, 3])]
    at = {0: 0, 1: 0, 2: 1, 3: 1}
    found: list[tuple[int, tuple[Any, ...]]] = []
    for i, (start, stop) in enumerate(batches):
        rows = [(sn, events[sn]) for sn in range(start, stop) if events[sn][0] >= 0]
        punctuations = [
            Punctuation(sn, "end") if events[sn][0] == -2 else Punctuation(sn, "watermark", events[sn][2])
            for sn in range(start, stop)
            if events[sn][0] < 0
        ]
        whole = numbered(joined, [event for _, event in rows], np.array([sn for sn, _ in rows])) if rows else None
        for number, site in enumerate(sites):
            held = frozenset(pid for pid, where in at.items() if where == number)
            here = None if whole is None else whole.take(np.flatnonzero([int(p) in held for p in whole.partition]))
            out = site.work(here, [replace(mark, partitions=held) for mark in punctuations])
            late |= site.take_late()
            if out is not None:
                found.extend(zip(out.sn.tolist(), tuples(out), strict=True))
        if i < len(moves):
            pid = moves[i]
            old, at[pid] = at[pid], 1 - at[pid]
            move(sites[old], sites[at[pid]], pid)
    return sorted(found, key=lambda entry: entry[0]), sum(late.values())


def own_key(event: Event) -> Any:
    """Distinct among the rows of a side; of both, there would be no pairs. A mark is itself."""
    return event if event[0] < 0 else event[:2]


def shown(found: list[tuple[int, tuple[Any, ...]]]) -> list[str]:
    """NaN equals nothing, and so a list that holds it; -0.0 is the key 0.0."""
    return [repr((sn, tuple(0.0 if value == 0.0 else value for value in pair))) for sn, pair in found]


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("by", ["rows", "time"])
@settings(max_examples=40)
@given(data=st.data())
def test_the_pairs_are_those_of_a_plain_loop_for_any_batching_and_any_moves(
    kind: str, by: str, data: st.DataObject
) -> None:
    arrow, keys = KEYS[kind]
    rows = st.tuples(st.integers(0, 1), keys, TIMES)
    punctuations = st.tuples(st.just(-1), st.none(), TIMES)
    distinct = own_key if kind == "all keys distinct" else None
    events = data.draw(st.lists(rows if by == "rows" else rows | punctuations, max_size=50, unique_by=distinct))
    bound = data.draw(st.integers(0, 12))
    batches = data.draw(cuts(len(events)))
    moves = data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=len(batches)))
    joined = joined_of(arrow, bound if by == "rows" else {"ts": bound})
    found, late = outputs(joined, events, batches, moves)
    assert shown(found) == shown(plain(events, bound if by == "rows" else None, bound))
    assert late == plainly_late(events)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 3)), max_size=40), st.data())
def test_rows_agree_in_all_columns_of_the_key(events: list[tuple[int, int, int]], data: st.DataObject) -> None:
    side = pa.schema([("a", pa.int64()), ("b", pa.string())])
    joined = JoinSpec.of(side, side, ["a", "b"], 1_000, "_right")
    hosted = opened(OperatorStep(Join, {"joined": joined}, "Join", joined.ours, PARTITIONS, 0, joined.output))
    found = 0
    for start, stop in data.draw(cuts(len(events))):
        some = events[start:stop]
        if not some:
            continue
        columns: list[Any] = [pa.array([side for side, _, _ in some], pa.uint8())]
        for number in (0, 1):
            columns.append(pa.array([a if side == number else None for side, a, _ in some], pa.int64()))
            columns.append(pa.array([str(b) if side == number else None for side, _, b in some], pa.string()))
        arrow = pa.RecordBatch.from_arrays(columns, names=widened_names(joined.sides))
        out = hosted.process(Batch(arrow, np.arange(start, stop), None, np.zeros(len(some), np.uint16)))
        found += 0 if out is None else len(out)
    expected = sum(x[0] == 0 and y[0] == 1 and x[1:] == y[1:] for x in events for y in events)
    assert found == expected


def test_rows_that_nobody_can_pair_with_any_more_are_forgotten() -> None:
    joined = joined_of(pa.int64(), 10)
    hosted: Any = opened(step_of(joined))
    for start in range(0, 4_000, 50):
        hosted.process(batch_of(joined, [(n % 2, n % 7, n) for n in range(start, start + 50)], start))
    assert sum(hosted._instance.partition_info().values()) < 400


def test_a_watermark_lets_rows_be_forgotten_and_a_late_row_still_finds_what_is_kept() -> None:
    joined = joined_of(pa.int64(), {"ts": 5})
    hosted = opened(step_of(joined))
    hosted.process(batch_of(joined, [(0, 1, 10), (0, 1, 16)], 0))
    hosted.punctuate(Punctuation(2, "watermark", 20))
    out = hosted.process(batch_of(joined, [(1, 1, 12)], 3))
    assert tuples(out) == [(1, 16, 1, 3, 12)]


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 1_000), ("us", 10**6), ("ns", 10**9)])
def test_a_watermark_is_in_milliseconds_whatever_the_unit_of_the_column(unit: str, per_s: int) -> None:
    instants = [
        schema.set(schema.get_field_index("ts"), pa.field("ts", pa.timestamp(unit))) for schema in schemas(pa.int64())
    ]
    joined = JoinSpec.of(*instants, {"k": "id"}, {"ts": timedelta(seconds=5)}, "_right")
    joined = replace(joined, is_event_time=True)
    hosted = opened(step_of(joined))
    hosted.process(batch_of(joined, [(0, 1, 10 * per_s), (0, 1, 16 * per_s)], 0))
    hosted.punctuate(Punctuation(2, "watermark", 20_000))
    out = hosted.process(batch_of(joined, [(1, 1, 12 * per_s)], 3))
    assert [row[2] for row in tuples(out)] == [1]


def test_what_a_watermark_has_passed_stays_passed_when_a_partition_moves() -> None:
    joined = joined_of(pa.int64(), {"ts": 5})
    old, new = opened(step_of(joined)), opened(step_of(joined), [])
    old.punctuate(Punctuation(1, "watermark", 20))
    late = batch_of(joined, [(0, 1, 3)], 2)
    move(old, new, int(late.partition[0]))
    new.process(late)
    assert new.process(batch_of(joined, [(1, 1, 3)], 3)) is None


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 1), KEYS["text"][1], TIMES), max_size=40), st.data())
def test_keys_that_share_a_hash_are_told_apart(events: list[Event], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flux.operators.join.hash_rows", lambda columns: np.zeros(len(columns[0]), np.uint64))
        found, _ = outputs(joined_of(pa.string(), 10), events, data.draw(cuts(len(events))), [])
    assert shown(found) == shown(plain(events, 10, 10))


def test_more_pairs_of_one_row_than_can_be_kept_in_order_are_an_error_that_says_so() -> None:
    joined = joined_of(pa.int64(), 10**6)
    hosted = opened(step_of(joined))
    hosted.process(batch_of(joined, [(0, 1, 0)] * 65_537, 0))
    with pytest.raises(OperatorError, match="emitted 65537 rows for one"):
        hosted.process(batch_of(joined, [(1, 1, 0)], 70_000))


@pytest.mark.parametrize("within", [10, {"ts": 10}])
def test_rows_far_behind_the_first_are_looked_up_as_fast(within: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = replace(joined_of(pa.int64(), within), is_event_time=False)
    hosted = opened(step_of(joined))
    looked_at: list[int] = []
    candidates = SortedRun.candidates

    def counted(run: SortedRun, asking: Any, reach: int) -> Any:
        found = candidates(run, asking, reach)
        looked_at.append(len(found[0]))
        return found

    monkeypatch.setattr(SortedRun, "candidates", counted)
    hosted.process(batch_of(joined, [(0, 1, 0)], 0))
    for start in (10**12, 10**12 + 10**9, 10**15):
        out = hosted.process(batch_of(joined, [(n % 2, 1, start + n) for n in range(4_000)], start))
        assert out is not None and len(out) == 5 * 4_000 - 25
    assert sum(looked_at) < 20 * 12_000


@pytest.mark.parametrize("within", [10, {"ts": 10}])
def test_many_rows_that_do_not_count_any_more_are_not_kept_until_as_many_come(within: Any) -> None:
    joined = joined_of(pa.int64(), within)
    hosted: Any = opened(step_of(joined))
    keys = {int(partition_of([pa.array([k])], PARTITIONS)[0]): k for k in range(50)}
    hosted.process(batch_of(joined, [(n % 2, n, 0) for n in range(5_000)], 0))
    hosted.punctuate(Punctuation(5_001, "watermark", 1_000))
    for partition in range(PARTITIONS):
        hosted.process(batch_of(joined, [(0, keys[partition], 1_000)], 6_000 + 100 * partition))
    assert sum(hosted._instance.partition_info().values()) == PARTITIONS


def test_far_apart_numbers_are_not_near() -> None:
    joined = joined_of(pa.int64(), {"ts": 2**62})
    hosted = opened(step_of(joined))
    assert hosted.process(batch_of(joined, [(0, 1, -(2**63)), (1, 1, 2**63 - 1)], 0)) is None


@pytest.mark.parametrize("within", [10**30, {"ts": 10**30}, {"ts": 1e300}])
def test_a_bound_beyond_all_numbers_bounds_nothing(within: Any) -> None:
    joined = joined_of(pa.int64(), within)
    hosted = opened(step_of(joined))
    hosted.punctuate(Punctuation(0, "watermark", 20))
    out = hosted.process(batch_of(joined, [(0, 1, -(2**63)), (1, 1, 2**63 - 1)], 1))
    assert out is not None and len(out) == 1


def test_a_watermark_says_nothing_of_a_column_that_is_not_event_time() -> None:
    joined = replace(joined_of(pa.int64(), {"ts": 5}), is_event_time=False)
    hosted = opened(step_of(joined))
    hosted.process(batch_of(joined, [(0, 1, 10)], 0))
    hosted.punctuate(Punctuation(1, "watermark", 10**6))
    assert tuples(hosted.process(batch_of(joined, [(1, 1, 12)], 2))) == [(1, 10, 0, 2, 12)]


def a_stream(flow: flux.Dataflow, event_time: str | None = None) -> flux.Stream:
    return flow.source(flux.sources.Table([{"k": 1, "ts": 1_000, "p": 1}]), event_time=event_time)


@pytest.mark.parametrize(
    ("make", "is_known"),
    [
        (lambda a, b, c: (a, b, "ts"), True),
        (lambda a, b, c: (a.filter(bool), b.select("k", w="p", ts="ts"), "ts"), True),
        (lambda a, b, c: (a.select("k", at="ts"), b.select("k", at="ts"), "at"), True),
        (lambda a, b, c: (a.union(b), a, "ts"), True),
        (lambda a, b, c: (a, b, "p"), False),
        (lambda a, b, c: (a, c, "ts"), False),
        (lambda a, b, c: (a.union(c), b, "ts"), False),
        (lambda a, b, c: (a, b.select("k", ts="p"), "ts"), False),
        (lambda a, b, c: (a, b.select("k", ts=(lambda batch: batch["ts"], "int64")), "ts"), False),
        (lambda a, b, c: (a, b.map(lambda row: {}, {"k": "int64", "ts": "int64"}), "ts"), False),
    ],
)
def test_the_plan_knows_event_time_by_the_sources_of_both_sides(make: Any, is_known: bool) -> None:
    flow = flux.Dataflow("times")
    left, right, column = make(a_stream(flow, "ts"), a_stream(flow, "ts"), a_stream(flow))
    [tail] = left.join(right, on="k", within={column: 5})._tails
    assert isinstance(tail, StepNode)
    assert tail.step.parameters["joined"].is_event_time == is_known


@pytest.mark.parametrize("event_time", [None, "ts"])
def test_all_pairs_come_that_are_near_in_a_column_beside_event_time(event_time: str | None) -> None:
    flow = flux.Dataflow("prices")
    rows = [{"k": 1, "ts": 1_000 * i, "p": float(i)} for i in range(50)]
    left, right = (flow.source(flux.sources.Table(rows), event_time=event_time) for _ in range(2))
    left.join(right, on="k", within={"p": 0.5}, partitions=2).sink(flux.sinks.Collect())
    assert flow.run(sites=2).table.num_rows == 50


def test_signed_and_unsigned_keys_are_equal_as_numbers() -> None:
    left, right = (pa.schema([("k", kind), ("v", pa.int64())]) for kind in (pa.int64(), pa.uint64()))
    joined = JoinSpec.of(left, right, "k", 100, "_right")
    columns = [
        pa.array([0, 0, 1, 1], pa.uint8()),
        *(pa.array([-1, 5, None, None], pa.int64()), pa.array([1, 2, None, None], pa.int64())),
        *(pa.array([None, None, 2**64 - 1, 5], pa.uint64()), pa.array([None, None, 3, 4], pa.int64())),
    ]
    arrow = pa.RecordBatch.from_arrays(columns, names=widened_names(joined.sides))
    out = opened(step_of(joined)).process(Batch(arrow, np.arange(4), None, np.zeros(4, np.uint16)))
    assert tuples(out) == [(5, 2, 4)]


def test_the_bound_of_a_column_of_durations_is_a_duration() -> None:
    sides = [pa.schema([("k", pa.int64()), ("took", pa.duration("ms"))]) for _ in "ab"]
    joined = JoinSpec.of(*sides, "k", {"took": timedelta(seconds=2)}, "_right")
    assert (joined.column, joined.bound) == ("took", 2_000)


# What cannot be joined.

LEFT = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms")), ("v", pa.int64()), ("n", pa.int64())])
RIGHT = pa.schema([("k", pa.int32()), ("at", pa.timestamp("ms")), ("v", pa.string()), ("n", pa.int64())])


@pytest.mark.parametrize(
    ("on", "within", "says"),
    [
        ("nowhere", 1, r"this stream has no column 'nowhere'; it has k int64"),
        ({"k": "nowhere"}, 1, "the other stream has no column 'nowhere'"),
        ([], 1, "needs the columns"),
        ("v", 1, "'v' is int64 here and 'v' is string there"),
        ("k", -1, "is a number of input rows, None for all rows, or"),
        ("k", {"nowhere": 1}, "no column 'nowhere'"),
        ("k", {"v": 1}, "'v' is int64 here and string there"),
        ("k", {"at": 5}, "its bound is a timedelta"),
        ("k", {"at": timedelta(-1)}, "a timedelta from 0 on"),
        (5, 1, "needs the columns in which rows agree.*got on=5"),
        ([["k"]], 1, "needs the columns in which rows agree"),
        ("k", {"n": math.inf}, "'n' is int64, so its bound is a finite number from 0 on; got inf"),
        ("k", {"n": math.nan}, "a finite number"),
        ("k", {}, "is a number of input rows, None for all rows, or"),
        ("k", {"n": 1, "at": timedelta(1)}, "is a number of input rows, None for all rows, or"),
    ],
)
def test_a_join_that_cannot_be_is_a_plan_error_that_says_why(on: Any, within: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        JoinSpec.of(LEFT, RIGHT, on, within, "_right")


def test_a_pair_has_our_columns_and_theirs_without_the_key() -> None:
    joined = JoinSpec.of(LEFT, RIGHT, "k", {"at": timedelta(seconds=2)}, "_other")
    assert joined.output.names == ["k", "at", "v", "n", "at_other", "v_other", "n_other"]
    assert joined.bound == 2_000
    with pytest.raises(PlanError, match="the columns 'at', 'n', 'v' twice"):
        JoinSpec.of(LEFT, RIGHT, "k", 1, "")


@pytest.mark.parametrize(
    ("kind", "bound", "values"),
    [
        (pa.timestamp("us"), timedelta(seconds=1), (datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 1))),
        (pa.date32(), timedelta(days=2), (date(2026, 1, 1), date(2026, 1, 3))),
        (pa.float64(), 0.5, (1.0, 1.5)),
        (pa.int16(), 3, (-3, 0)),
        (pa.uint64(), 3, (2**64 - 1, 2**64 - 4)),
        (pa.uint64(), 2, (2**63 - 1, 2**63 + 1)),
        (pa.time32("s"), timedelta(hours=1), (time(9), time(10))),
    ],
)
def test_nearness_is_known_of_times_and_numbers(kind: Any, bound: Any, values: tuple[Any, Any]) -> None:
    side = pa.schema([("k", pa.int64()), ("at", kind)])
    joined = JoinSpec.of(side, side, "k", {"at": bound}, "_right")
    hosted = opened(OperatorStep(Join, {"joined": joined}, "Join", joined.ours, PARTITIONS, 0, joined.output))
    columns = [
        pa.array([0, 1, 1], pa.uint8()),
        *(pa.array([1, None, None], pa.int64()), pa.array([values[0], None, None], kind)),
        *(pa.array([None, 1, 1], pa.int64()), pa.array([None, values[1], None], kind)),
    ]
    arrow = pa.RecordBatch.from_arrays(columns, names=widened_names(joined.sides))
    out = hosted.process(Batch(arrow, np.arange(3), None, np.zeros(3, np.uint16)))
    assert out is not None and len(out) == 1
