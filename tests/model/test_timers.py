"""Timers of keyed operators: called by time and key at watermarks, whatever the batches and wherever the key lives."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.model.batch import Batch
from flux.model.event_time import EventTime
from flux.model.operator import KeyedOperator
from flux.model.punctuation import Punctuation
from flux.testing.harness import ship
from flux.types.errors import OperatorError
from tests.operators import feeding
from tests.operators.feeding import PARTITIONS, opened, step_of
from tests.operators.timeline import Timeline, cut_places, played

SCHEMA = pa.schema([("k", pa.string()), ("ts", pa.int64()), ("what", pa.int64())])
TOLD = EventTime(column="ts", every_ms=5)
ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 99), st.integers(0, 4)), max_size=40)
MOVES = st.lists(st.integers(0, PARTITIONS - 1), max_size=12)


class Silence(KeyedOperator):
    """Tells of keys that have been silent for 20 ms, and then every 30 ms until it has told thrice."""

    output = {"k": "string", "at": "int64", "told": "int64"}  # noqa: RUF012

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        if row.what == 4:
            self.cancel_timer(row.ts + 20)  # One of its own may be another's.
        else:
            self.cancel_timer()
            self.set_timer(row.ts + 20)
        # Without a state it is still called.
        return (None if row.what == 3 else 0), None

    def on_timer(self, key: Any, time: int, state: Any) -> Any:
        told = (state or 0) + 1
        if told < 3:
            self.set_timer(time + 30)
        return told, [{"k": key[0], "at": time, "told": told}]


def batch_of(rows: list[Any]) -> pa.RecordBatch:
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def plain(rows: list[Any], timeline: Timeline) -> list[tuple[int, tuple[Any, ...]]]:
    """What Silence tells, in a plain loop over rows and marks."""
    timers: set[tuple[int, str]] = set()
    told: dict[str, int] = {}
    out: list[tuple[int, tuple[Any, ...]]] = []
    punctuations = list(timeline.punctuations)
    for sn, (key, ts, what) in [*zip(timeline.sn.tolist(), rows, strict=True), (10**9, ("a", 0, 4))]:
        while punctuations and punctuations[0].sn < sn:
            mark = punctuations.pop(0)
            pending = set(timers)
            while due := sorted(
                (e for e in (pending if mark.value is None else timers) if mark.value is None or e[0] <= mark.value),
                key=lambda e: (e[0], e[1] == "~", e[1]),
            ):
                time, name = due[0]
                timers.discard(due[0])
                pending.discard(due[0])
                told[name] = told.get(name, 0) + 1
                if told[name] < 3 and mark.value is not None:
                    timers.add((time + 30, name))
                out.append((mark.sn, (None if name == "~" else name, time, told[name])))
        name = "~" if key is None else key
        if what == 4:
            timers.discard((ts + 20, name))
        else:
            timers = {e for e in timers if e[1] != name} | {(ts + 20, name)}
        told.pop(name, None)
    return out


@settings(deadline=None, max_examples=80)
@given(ROWS, st.data())
def test_timers_are_those_of_a_plain_loop_whatever_the_batches_and_moves(rows: list[Any], data: st.DataObject) -> None:
    timeline = Timeline.of(batch_of(rows), ("k",), TOLD)
    step = step_of(Silence, SCHEMA, ("k",))
    found, _ = played(step, timeline, data.draw(cut_places(len(rows))), data.draw(MOVES))
    assert sorted(map(repr, found)) == sorted(map(repr, plain(rows, timeline)))
    assert repr(played(step, timeline)[0]) == repr(found)


def test_timers_of_a_partition_are_called_by_time_and_then_by_key() -> None:
    rows = [("b", 1, 0), (None, 1, 0), ("a", 1, 0), ("c", 0, 0), ("a", 500, 3)]
    timeline = Timeline.of(batch_of(rows), ("k",), TOLD)
    timeline.partition[:] = 1
    found, _ = played(step_of(Silence, SCHEMA, ("k",)), timeline)
    first = [row[:2] for _, row in found if row[2] == 1 and row[1] < 100]
    assert first == [("c", 20), ("b", 21), (None, 21)]


def failing(on_tuple: Any, on_timer: Any) -> str:
    class Failing(KeyedOperator):
        output = {"n": "int64"}  # noqa: RUF012

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return on_tuple(self)

    if on_timer is not None:
        Failing.on_timer = on_timer  # type: ignore[method-assign]
    with pytest.raises(OperatorError) as caught:
        played(step_of(Failing, SCHEMA, ("k",)), Timeline.of(batch_of([("a", 1, 0)]), ("k",), TOLD))
    return str(caught.value)


def setting(time: Any) -> Any:
    return lambda self: (self.set_timer(time), None)


@pytest.mark.parametrize(
    ("on_tuple", "on_timer", "text"),
    [
        (setting(1), None, "must define on_timer"),
        (setting(1.5), lambda self, key, time, state: (None, None), "whole number of milliseconds, or a datetime"),
        (setting(7), lambda self, key, time, state: (self.set_timer(time), None), "would be due for ever"),
        (setting(7), lambda self, key, time, state: 1 / 0, "called for the key ('a',) at 7"),
        (setting(7), lambda self, key, time, state: None, "raised TypeError"),
        (
            setting(7),
            lambda self, key, time, state: (None, [{"m": 1}]),
            "expected an iterable of dicts with the keys n",
        ),
    ],
)
def test_what_goes_wrong_with_a_timer_is_told(on_tuple: Any, on_timer: Any, text: str) -> None:
    assert text in failing(on_tuple, on_timer)


def test_timers_are_set_for_a_key_at_hand_only() -> None:
    with pytest.raises(RuntimeError, match="must define on_timer"):
        Silence().set_timer(1)


@pytest.mark.parametrize("zone", [None, datetime.UTC])
def test_a_timer_may_be_set_for_an_instant(zone: Any) -> None:
    class At(KeyedOperator):
        output = {"at": "int64"}  # noqa: RUF012

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            self.set_timer(row.ts + datetime.timedelta(seconds=1))
            return None, None

        def on_timer(self, key: Any, time: int, state: Any) -> Any:
            return None, [{"at": time}]

    kind = pa.timestamp("us", None if zone is None else "UTC")
    rows = pa.record_batch({"k": pa.array(["a"]), "ts": pa.array([5_000_123], pa.int64()).cast(kind)})
    found, _ = played(step_of(At, rows.schema, ("k",)), Timeline.of(rows, ("k",), EventTime(column="ts")))
    assert [row for _, row in found] == [(6_000,)]


@pytest.mark.parametrize(
    ("kind", "stored", "at"), [(pa.date32(), 2, 172_800_000), (pa.timestamp("ns"), 5_000_123_456, 5_000)]
)
def test_a_timer_may_be_set_for_what_a_row_has(kind: Any, stored: int, at: int) -> None:
    class At(KeyedOperator):
        output = {"at": "int64"}  # noqa: RUF012

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            self.set_timer(row.when)
            self.set_timer(at + 1)
            self.cancel_timer(row.when if row.cancels else at + 1)
            return None, None

        def on_timer(self, key: Any, time: int, state: Any) -> Any:
            return None, [{"at": time}]

    for cancels in (False, True):
        columns = {"k": pa.array(["a"]), "when": pa.array([stored], kind), "cancels": pa.array([cancels])}
        rows = pa.record_batch(columns)
        here = opened(step_of(At, rows.schema, ("k",)), [0])
        here.process(Batch(rows, np.array([1]), None, np.array([0], np.uint16)))
        told = here.punctuate(Punctuation(9, "watermark", 2 * at, frozenset({0})))
        assert told is not None and told["at"].tolist() == [at + cancels]


class Signed(KeyedOperator):
    """Tells its key when the time has come that a row says."""

    output = {"k": "float64", "at": "int64"}  # noqa: RUF012

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        self.set_timer(row.at)
        return None, None

    def on_timer(self, key: Any, time: int, state: Any) -> Any:
        return None, [{"k": key[0], "at": time}]


@pytest.mark.parametrize("moves", [False, True])
def test_zero_is_one_key_whatever_its_sign_and_the_same_after_a_move(moves: bool) -> None:
    schema = pa.schema({"k": pa.float64(), "at": pa.int64()})
    here, there = opened(step_of(Signed, schema, ("k",)), [0]), opened(step_of(Signed, schema, ("k",)), [1])
    here.process(feeding.batch_of([(-0.0, 10), (0.0, 20), (None, 30)], schema, [0, 0, 0]))
    if moves:
        ship(here, 0, there)
        here = there
    told = feeding.tuples(here.punctuate(Punctuation(9, "watermark", 40, frozenset({0}))))
    assert repr(told) == "[(0.0, 10), (0.0, 20), (None, 30)]"


@pytest.mark.parametrize("punctuations", [(), (Punctuation(2, "watermark", 2**62),)])
def test_a_timer_after_the_last_time_there_is_never_comes(punctuations: tuple[Punctuation, ...]) -> None:
    class Again(KeyedOperator):
        output = {"at": "int64"}  # noqa: RUF012

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            self.set_timer(10**30)
            return None, None

        def on_timer(self, key: Any, time: int, state: Any) -> Any:
            self.set_timer(time + 10)
            return None, [{"at": time}]

    timeline = Timeline.of(batch_of([("a", 1, 0)]), ("k",), None)
    timeline = replace(timeline, punctuations=(*punctuations, Punctuation(3, "end")))
    assert [row for _, row in played(step_of(Again, SCHEMA, ("k",)), timeline)[0]] == [(2**60,)]
