"""What a partition's state is as bytes depends on its rows alone, and not on the batches in which they came.

It takes half a minute: hypothesis draws the inputs, and each is computed in two or three ways.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.dmz import Sessions
from flux.hosting import Hosted
from flux.model.event_time import EventTime
from flux.operators import CountWindow, Distinct, GroupBy, SessionWindow, TimeWindow, TopK
from flux.wire.state_codec import encode
from tests.operators.feeding import PARTITIONS, step_of
from tests.operators.test_join import batch_of, cuts, joined_of, opened
from tests.operators.test_join import step_of as join_step_of
from tests.operators.timeline import Sites, Timeline, cut_places

TOLD = EventTime(column="ts", lateness_ms=20, every_ms=15)
INTS = st.integers(-9, 9) | st.sampled_from([2**61, -(2**61), 2**53, None])
FLOATS = st.floats(-9, 9) | st.sampled_from([math.inf, -math.inf, math.nan, 1e200, None])
ROWS = st.lists(
    st.tuples(st.sampled_from(["c", "a", "", "b", None]), st.integers(0, 3), st.integers(0, 60), INTS, FLOATS),
    max_size=40,
)
SCHEMA = pa.schema([("t", pa.string()), ("k", pa.int32()), ("ts", pa.int64()), ("x", pa.int64()), ("f", pa.float64())])
PACKETS = pa.schema([("src", pa.int32()), ("dst", pa.int32()), ("data", pa.binary()), ("ts", pa.int64())])
AGGREGATES = {"s": ("avg", "x"), "f": ("sum", "f"), "m": ("max", "f"), "v": ("variance", "f"), "w": ("variance", "x")}
OPERATORS: dict[str, tuple[Any, tuple[str, ...], Mapping[str, Any]]] = {
    "GroupBy": (GroupBy, ("t",), {"aggregates": AGGREGATES}),
    "GroupBy at watermarks": (GroupBy, ("t", "k"), {"aggregates": AGGREGATES, "emit": "watermarks"}),
    "TimeWindow": (
        TimeWindow,
        ("t",),
        {"time": "ts", "size_ms": 30, "slide_ms": 10, "aggregates": AGGREGATES | {"q": ("quantile", "f", 0.5)}},
    ),
    "SessionWindow": (SessionWindow, ("t",), {"time": "ts", "gap_ms": 4, "aggregates": AGGREGATES}),
    "SessionWindow with rows": (
        SessionWindow,
        ("t",),
        {"time": "ts", "gap_ms": 4, "aggregates": AGGREGATES | {"q": ("quantile", "f", 0.5)}},
    ),
    "TopK": (TopK, ("t",), {"k": 2, "by": "f"}),
    "TopK in windows": (TopK, ("t",), {"k": 2, "by": "x", "time": "ts", "size_ms": 30}),
    "Distinct": (Distinct, ("k",), {"on": ["t", "k"]}),
    "Distinct in windows": (Distinct, ("t",), {"time": "ts", "size_ms": 30}),
    "CountWindow": (CountWindow, ("k",), {"history": 4, "value": "x"}),
    "CountWindow of floats": (CountWindow, ("t",), {"history": 3, "slide": 2, "value": "f"}),
}


def as_bytes(site: Hosted, pid: int) -> list[Any]:
    site.init_trans(pid)
    state = site.get_partition_state(pid)
    pieces = list(state) if isinstance(state, GeneratorType) else [state]
    packed = [encode(piece, "test") for piece in pieces]
    site.end_trans(pid)
    return packed


def states(step: Any, timeline: Timeline, places: Sequence[int]) -> list[Any]:
    sites = Sites(step)
    for piece in timeline.pieces(places):
        sites.give(piece)
    return [as_bytes(sites.sites[sites.at[pid]], pid) for pid in range(PARTITIONS)]


def check(name: str, rows: pa.RecordBatch, places: Sequence[int]) -> None:
    operator, key, parameters = OPERATORS[name]
    timeline = Timeline.of(rows, key, TOLD, ends=False)
    step = step_of(operator, rows.schema, key, **parameters)
    assert states(step, timeline, places) == states(step, timeline, [])


@pytest.mark.parametrize("name", OPERATORS)
@settings(deadline=None, max_examples=15)
@given(rows=ROWS, data=st.data())
def test_state_is_the_same_bytes_wherever_batches_are_cut(name: str, rows: list[Any], data: st.DataObject) -> None:
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(SCHEMA)]
    check(name, pa.RecordBatch.from_arrays(columns, schema=SCHEMA), data.draw(cut_places(len(rows))))


@pytest.mark.parametrize("name", OPERATORS)
def test_state_of_many_rows_is_the_same_bytes_wherever_batches_are_cut(name: str) -> None:
    rng, count = np.random.default_rng(1), 600
    columns = {
        "t": pa.array([f"key {n}" for n in rng.integers(0, 40, count)]),
        "k": pa.array(rng.integers(0, 40, count), pa.int32()),
        "ts": pa.array(np.arange(count) // 8 + rng.integers(0, 30, count)),
        "x": pa.array(rng.integers(-(2**53), 2**53, count) << 8),
        "f": pa.array(rng.standard_normal(count)),
    }
    rows = pa.record_batch(columns, schema=SCHEMA)
    for places in (list(range(count)), [7, 8, 100], list(range(0, count, 37))):
        check(name, rows, places)


HOST = st.none() | st.integers(0, 2)
PACKET = st.tuples(HOST, HOST, st.sampled_from([b"S\x01", b"E\0", b"xx", b"S", None]), st.none() | st.integers(0, 9))


@settings(deadline=None, max_examples=15)
@given(st.lists(PACKET, max_size=40), st.data())
def test_sessions_are_the_same_bytes_wherever_batches_are_cut(packets: list[Any], data: st.DataObject) -> None:
    columns = [pa.array([packet[i] for packet in packets], field.type) for i, field in enumerate(PACKETS)]
    rows = pa.RecordBatch.from_arrays(columns, schema=PACKETS)
    timeline = Timeline.of(rows, ("src", "dst"), None, ends=False)
    step = step_of(Sessions, PACKETS, ("src", "dst"))
    assert states(step, timeline, data.draw(cut_places(len(packets)))) == states(step, timeline, [])


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["a", "b", None]), st.integers(0, 30)), max_size=40),
    st.sampled_from([5, {"ts": 5}]),
    st.data(),
)
def test_joined_rows_are_the_same_bytes_wherever_batches_are_cut(
    events: list[Any], within: Any, data: st.DataObject
) -> None:
    joined = joined_of(pa.string(), within)

    def kept(batches: Sequence[tuple[int, int]]) -> list[Any]:
        hosted = opened(join_step_of(joined))
        for start, stop in batches:
            if stop > start:
                hosted.process(batch_of(joined, events[start:stop], start))
        return [as_bytes(hosted, pid) for pid in range(PARTITIONS)]

    assert kept(data.draw(cuts(len(events)))) == kept([(0, len(events))])
