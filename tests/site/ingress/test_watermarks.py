"""Watermarks: where they stand is a matter of the rows alone, also when the ingress dies and another goes on."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import flux
from flux.model.batch import Batch
from flux.model.event_time import EventTime, milliseconds
from flux.plan import Plan, Policy
from flux.site.ingress.watermarks import TimePlaces, Watermarks, number_watermarks
from flux.sources import Source, SourceBatch, SourceContext, Table
from tests.site.ingress import test_restart
from tests.site.ingress.test_restart import ACKS, choosing, played

INSTANTS = st.lists(st.none() | st.integers(-50, 200), min_size=1, max_size=80)


def expected(instants: list[int | None], told: EventTime) -> dict[int, Any]:
    """By number: the rows, counted from 1, and the watermarks; as a plain loop sets them."""
    found: list[Any] = []
    last = None
    for n, instant in enumerate(instants, 1):
        found.append(n)
        if instant is not None:
            reached = (instant - told.lateness_ms) // told.every_ms * told.every_ms
            if last is None or reached > last:
                last = reached
                found.append(("watermark", reached))
    return dict(enumerate([*found, "end"], 1))


def told_of(data: st.DataObject) -> EventTime:
    return EventTime(column="ts", lateness_ms=data.draw(st.integers(0, 30)), every_ms=data.draw(st.integers(1, 40)))


def table_of(instants: list[int | None]) -> pa.Table:
    return pa.table({"n": range(1, len(instants) + 1), "ts": pa.array(instants, pa.int64())})


@pytest.mark.parametrize("limit_ms", [None, 5.0])
@settings(deadline=None, max_examples=60)
@given(instants=INSTANTS, acks=ACKS, data=st.data())
def test_every_copy_gets_the_same_watermarks_however_rows_are_batched_and_whenever_the_ingress_dies(
    limit_ms: float | None, instants: list[int | None], acks: list[list[tuple[str, int]]], data: st.DataObject
) -> None:
    told = told_of(data)
    sources = [Table(table_of(instants), batch_rows=data.draw(st.integers(1, 50), label="batch_rows")) for _ in acks]
    for source in sources:
        source.event_time = told
    with tempfile.TemporaryDirectory() as folder, choosing(Policy(max_latency_ms=limit_ms)):
        lives, copies = played(Path(folder), list(sources), acks)
    assert not [error for life in lives for error in life.errors]
    assert [copy.received for copy in copies] == [expected(instants, told)] * 2


def steps_with(told: EventTime, seen: dict[int, int]) -> Plan:
    """A plan whose ingress drops every fifth row, and makes the event time of the others: by 7 ms later.

    A row that is replayed has the number that it had before, also in the eyes of a step.
    """

    def later(batch: Any) -> pa.Array:
        for n, sn in zip(batch["n"].tolist(), batch.sn.tolist(), strict=True):
            assert seen.setdefault(n, sn) == sn, f"row {n} has the number {sn} now, and had {seen[n]}"
        return pc.add(batch.column("ts"), 7)

    flow = flux.Dataflow("made")
    kept = flow.source(Table(table_of([1]))).filter(lambda row: row.n % 5 != 0)
    made = kept.select("n", when=(later, "int64"))
    made.event_time("when", told.lateness_ms, told.every_ms).sink(flux.sinks.Null())
    first = flow._logical.plan(2, 0, "pairs", 40, Policy()).first
    return replace(test_restart.PLAN, first=first, edges=())


@settings(deadline=None, max_examples=40)
@given(instants=INSTANTS, acks=ACKS, data=st.data())
def test_watermarks_of_event_time_that_a_step_makes_are_the_same_whenever_the_ingress_dies(
    instants: list[int | None], acks: list[list[tuple[str, int]]], data: st.DataObject
) -> None:
    told = told_of(data)
    sources = [Table(table_of(instants), batch_rows=data.draw(st.integers(1, 50), label="batch_rows")) for _ in acks]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_restart, "PLAN", steps_with(told, {}))
        lives, copies = played(Path(folder), list(sources), acks)
    assert not [error for life in lives for error in life.errors]
    made = [None if instant is None or n % 5 == 0 else instant + 7 for n, instant in enumerate(instants, 1)]
    kept = {sn: value for sn, value in expected(made, told).items() if not isinstance(value, int) or value % 5}
    assert [copy.received for copy in copies] == [kept] * 2


class LiveRows(Source):
    """Rows that come once, in batches."""

    schema = pa.schema({"n": pa.int64(), "ts": pa.int64()})
    replays = False

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self.left = batches

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        while self.left:
            await trio.lowlevel.checkpoint()
            yield SourceBatch(self.left.pop(0))


@settings(deadline=None, max_examples=40)
@given(instants=INSTANTS, acks=ACKS, data=st.data())
def test_watermarks_of_a_live_source_are_those_of_the_rows_that_were_numbered(
    instants: list[int | None], acks: list[list[tuple[str, int]]], data: st.DataObject
) -> None:
    told = told_of(data)
    source = LiveRows(table_of(instants).to_batches(max_chunksize=data.draw(st.integers(1, 20))))
    source.event_time = told
    with tempfile.TemporaryDirectory() as folder:
        lives, copies = played(Path(folder), [source] * len(acks), acks)
    assert not [error for life in lives for error in life.errors]
    assert copies[0].received == copies[1].received
    numbered_rows = [value for value in copies[0].received.values() if isinstance(value, int)]
    found = [value for _, value in sorted(copies[0].received.items()) if not isinstance(value, int)]
    plain = expected([instants[n - 1] for n in sorted(numbered_rows)], told)
    assert found == [value for value in plain.values() if not isinstance(value, int)]


def unmarked(instants: list[int | None], after: int) -> dict[int, Batch]:
    """What the steps make of the rows: the rows themselves, numbered without watermarks."""
    [rows] = table_of(instants).to_batches()
    return {-1: Batch(rows, np.arange(after + 1, after + 1 + len(rows)), None, np.zeros(len(rows), np.uint16))}


def test_a_row_causes_one_mark_at_most_however_far_it_jumps() -> None:
    punctuations = Watermarks({0: TimePlaces(EventTime(column="ts", every_ms=10), (-1,))}, {})
    assert punctuations.advance(0, unmarked([0, 1_000_000, 5], 100), 100) == ((102, 0), (104, 1_000_000))
    assert punctuations.advance(0, unmarked([3, None], 105), 105) == ()
    assert number_watermarks(100, 3, ((102, 0), (104, 1_000_000))).tolist() == [101, 103, 105]


def test_the_watermark_of_several_sources_is_the_least_that_they_have_reached() -> None:
    told = TimePlaces(EventTime(column="ts", every_ms=10), (-1,))
    punctuations = Watermarks({0: told, 2: told}, {})

    def given(source: int, *instants: int) -> list[int]:
        return [value for _, value in punctuations.advance(source, unmarked(list(instants), 0), 0)]

    assert given(0, 55) == []  # The other has told no time yet.
    assert given(1, 999) == []  # It has no event time.
    assert given(2, 12, 31, 70, 90) == [10, 30, 50]
    assert given(0, 72) == [70]
    again = Watermarks({0: told, 2: told}, {source: punctuations.reached(source) or 0 for source in (0, 2)})
    assert again.advance(0, unmarked([85], 0), 0) == ((2, 80),)
    assert punctuations.end(0) == 90 and punctuations.end(2) is None


@pytest.mark.parametrize(
    ("kind", "value", "ms"),
    [
        (pa.timestamp("s"), 3, 3_000),
        (pa.timestamp("ms", "UTC"), 3, 3),
        (pa.timestamp("us"), -1, -1),
        (pa.timestamp("ns"), 1_999_999, 1),
        (pa.date32(), 2, 172_800_000),
        (pa.date64(), 172_800_000, 172_800_000),
        (pa.int16(), -7, -7),
        (pa.uint32(), 7, 7),
        (pa.timestamp("s"), 2**62, 2**60 // 1000 * 1000),
        (pa.int64(), -(2**63), -(2**60)),
    ],
)
def test_instants_are_milliseconds_rounded_down_and_kept_within_bounds(kind: Any, value: int, ms: int) -> None:
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    column = pa.array([value, None], width if not pa.types.is_integer(kind) else kind).cast(kind)
    instants, missing = milliseconds(column)
    assert missing is not None
    assert (int(instants[0]), missing.tolist()) == (ms, [False, True])
    assert milliseconds(column.slice(0, 1))[1] is None


@pytest.mark.parametrize(
    ("settings_given", "text"),
    [
        ({"event_time": "when"}, "it has n, ts"),
        ({"event_time": "name"}, "is string; expected timestamps"),
        ({"event_time": "ts", "lateness_ms": -1}, "lateness_ms is a whole number"),
        ({"event_time": "ts", "watermark_every_ms": 0}, "watermark_every_ms is a whole number"),
        ({"lateness_ms": 5}, "need event_time"),
    ],
)
def test_an_event_time_that_cannot_be_is_refused(settings_given: dict[str, Any], text: str) -> None:
    table = pa.table({"n": [1], "ts": [2], "name": ["x"]})
    with pytest.raises(flux.PlanError, match=text):
        flux.Dataflow("times").source(
            Table(table if "name" in text or "string" in text else table.select(["n", "ts"])), **settings_given
        )


def test_an_idle_source_holds_back_no_watermark_until_its_next_row() -> None:
    told = TimePlaces(EventTime(column="ts", every_ms=10), (-1,))
    marks = Watermarks({0: told, 1: told}, {})
    assert marks.advance(0, unmarked([55], 0), 0) == ()
    assert marks.set_idle({0}) is None, "the other has given no time: nothing is raised, and nothing decided"
    assert marks.idle == frozenset()
    assert marks.set_idle({1}) == 50
    assert marks.set_idle({1}) is None and marks.idle == {1}
    assert marks.advance(0, unmarked([75], 0), 0) == ((2, 70),)
    again = Watermarks({0: told, 1: told}, {0: 70}, 70, {1})  # A restarted ingress has this from the journal.
    for each in (marks, again):
        assert each.advance(1, unmarked([12, 64], 0), 0) == (), "it is awake, and no watermark goes back"
        assert each.advance(0, unmarked([95], 0), 0) == (), "it holds back the other again"
        assert each.advance(1, unmarked([83], 0), 0) == ((2, 80),)


def test_when_all_sources_are_idle_none_holds_back_another() -> None:
    told = TimePlaces(EventTime(column="ts", every_ms=10), (-1,))
    marks = Watermarks({0: told, 1: told, 2: told}, {0: 50, 1: 30})
    assert marks.set_idle({0, 2}) == 30
    assert marks.set_idle({1}) == 50
    assert marks.end(1) is None and marks.set_idle({0, 1, 2}) is None
