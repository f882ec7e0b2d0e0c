"""OuterJoin against a plain loop: the pairs of Join, and each row that is in none of them once.

It takes half a minute: hypothesis draws the inputs, and each is computed in two or three ways.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flux
from flux.model.punctuation import Punctuation
from flux.types.errors import PlanError
from tests.operators.feeding import PARTITIONS, cuts, opened, tuples
from tests.operators.test_join import KEYS, TIMES, Event, batch_of, joined_of, outputs, plain, shown, step_of

SIDES = {"left": (0,), "right": (1,), "outer": (0, 1)}
Found = list[tuple[int, tuple[Any, ...]]]


def alone(events: Sequence[Event], pairs: Found, how: str) -> Found:
    """The rows of the sides that are in no pair; their numbers are their values."""
    paired = {number for _, pair in pairs for number in (pair[2], pair[3])}
    found = []
    for sn, (side, key, ts) in enumerate(events):
        if side in SIDES[how] and sn not in paired:
            found.append((sn, (key, ts, sn, None, None) if side == 0 else (key, None, None, sn, ts)))
    return found


def due(sn: int, event: Event, events: Sequence[Event], bound: int) -> int:
    """Where a row in no pair is emitted: at once, at the first watermark that has passed it, or at the end."""
    if event[1] is None:
        return sn
    watermark = -(10**9)
    for at, (side, _, value) in enumerate(events):
        watermark = max(watermark, value) if side == -1 else watermark
        if at > sn and (side == -2 or (side == -1 and event[2] < watermark - bound)):
            return at
    raise AssertionError("the end is missing")


@pytest.mark.parametrize("how", SIDES)
@pytest.mark.parametrize("kind", ["text", "floats", "one key", "all keys distinct"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_pairs_and_rows_in_none_are_those_of_a_plain_loop(how: str, kind: str, data: st.DataObject) -> None:
    arrow, keys = KEYS[kind]
    event = st.tuples(st.integers(0, 1), keys, TIMES) | st.tuples(st.just(-1), st.none(), TIMES)
    events = [*data.draw(st.lists(event, max_size=40)), (-2, None, 0)]
    bound = data.draw(st.integers(0, 12))
    batches = data.draw(cuts(len(events)))
    moves = data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=len(batches)))
    joined = joined_of(arrow, {"ts": bound}, how)
    found, _ = outputs(joined, events, batches, moves)
    pairs = plain(events, None, bound)
    expected = pairs + [(due(sn, events[sn], events, bound), row) for sn, row in alone(events, pairs, how)]
    assert sorted(shown(found)) == sorted(shown(expected))
    again, _ = outputs(joined, events, [(0, len(events))], [])
    assert sorted(shown(again)) == sorted(shown(found))


@pytest.mark.parametrize("how", SIDES)
@pytest.mark.parametrize("within", [0, 3, None])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_join_by_rows_emits_each_row_in_no_pair_once(how: str, within: int | None, data: st.DataObject) -> None:
    event = st.tuples(st.integers(0, 1), st.sampled_from(["a", "b", None]), TIMES)
    events = data.draw(st.lists(event | st.tuples(st.just(-1), st.none(), TIMES), max_size=40))
    events = [*events, (-2, None, 0)]
    batches = data.draw(cuts(len(events)))
    moves = data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=len(batches)))
    joined = joined_of(pa.string(), within, how)
    found, _ = outputs(joined, events, batches, moves)
    pairs = plain(events, 10**9 if within is None else within, 0)
    rows = [row for _, row in pairs + alone(events, pairs, how)]
    assert sorted(repr(row) for _, row in found) == sorted(map(repr, rows))
    assert sorted(shown(outputs(joined, events, [(0, len(events))], [])[0])) == sorted(shown(found))


def test_rows_of_one_watermark_are_in_the_order_of_time_then_left_then_arrival() -> None:
    joined = joined_of(pa.int64(), {"ts": 0}, "outer")
    hosted = opened(step_of(joined))
    rows = [(1, 9, 5), (0, 8, 5), (0, 7, 3), (1, 6, 3), (0, 5, 3), (0, 4, 50)]
    batch = batch_of(joined, rows, 0)
    batch.partition[:] = 0
    assert hosted.process(batch) is None
    out = hosted.punctuate(Punctuation(9, "watermark", 6))
    assert [row[0] for row in tuples(out)] == [7, 5, 6, 8, 9]
    assert [row[0] for row in tuples(hosted.punctuate(Punctuation(10, "end")))] == [4]


def test_flags_of_rows_that_are_gone_take_no_room() -> None:
    joined = joined_of(pa.int64(), {"ts": 5}, "left")
    hosted: Any = opened(step_of(joined))
    for start in range(0, 40_000, 100):
        hosted.process(batch_of(joined, [(n % 2, n % 7, n) for n in range(start, start + 100)], start))
        hosted.punctuate(Punctuation(start + 100, "watermark", start + 90))
    assert len(hosted._instance._is_paired) < 10_000


def flow_with(**parameters: Any) -> flux.Dataflow:
    flow = flux.Dataflow("joined")
    a = flow.source(flux.sources.Table([{"k": 1, "ts": 1, "v": 2.5}]), event_time="ts")
    b = flow.source(flux.sources.Table(pa.table({"k": pa.array([1], pa.int32()), "ts": [1]})), event_time="ts")
    a.join(b, on="k", **parameters).sink(flux.sinks.Null())
    return flow


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"within": 5, "how": "full"}, "is 'inner', 'left', 'right', 'outer'; got 'full'"),
        ({"within": 5, "how": None}, "is 'inner', 'left', 'right', 'outer'; got None"),
        ({"within": 5, "how": "right"}, "'k' is int64 here and 'k' is int32 there.* Make them alike with select"),
        ({"within": "all"}, "is a number of input rows, None for all rows, or {column: bound}"),
    ],
)
def test_an_invalid_join_is_refused_with_the_plan(parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        flow_with(**parameters)


def test_the_plan_says_that_an_unbounded_join_keeps_its_rows() -> None:
    assert "keeps its rows until the end of the stream: within=None: give within=" in flow_with(within=None).explain()
    assert "keeps its rows" not in flow_with(within=5).explain()


def test_a_run_warns_of_an_unbounded_join_of_a_source_that_need_not_end() -> None:
    flow = flux.Dataflow("endless")
    a = flow.source(flux.sources.Lines("127.0.0.1", 9)).select(k="line")
    a.join(a.select(k="k", v="k"), on="k", within=None, how="left").sink(flux.sinks.Null())
    [warning] = flow._logical.plan(2, 0, "pairs", 1_000, flux.plan.Policy()).warnings()
    assert (
        "OuterJoin: it takes rows of a source that need not end, Lines, and keeps them for ever: within=None" in warning
    )


@pytest.mark.parametrize("within", [{"x": 1.5}, None])
def test_infinite_and_missing_values_are_in_no_pair(within: Any) -> None:
    flow = flux.Dataflow("floats")
    rows = [{"k": k, "x": x} for k, x in ((1, math.nan), (None, 1.0), (2, None), (3, math.inf), (4, 1.0))]
    a = flow.source(flux.sources.Table(pa.Table.from_pylist(rows)))
    b = flow.source(flux.sources.Table(pa.Table.from_pylist([{"k": 4, "x": 2.5}, {"k": 9, "x": 0.0}])))
    a.join(b, on="k", within=within, how="outer").sink(flux.sinks.Collect())
    found = [(row["k"], repr(row["x"]), row["x_right"]) for row in flow.run(sites=2).table.to_pylist()]
    left = [(1, "nan", None), (None, "1.0", None), (2, "None", None), (3, "inf", None), (4, "1.0", 2.5)]
    assert sorted(found, key=repr) == sorted([*left, (9, "None", 0.0)], key=repr)
