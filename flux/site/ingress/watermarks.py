"""Watermarks: punctuations with the progress of event time, derived from the rows alone.

A source has *reached* the greatest event time of its rows up to now, less its lateness and rounded down to a step. The
watermark is the least that all sources with event time have reached. One is placed directly after each row that raises
it. So their places depend on the sequence of rows, and neither on batches nor on a clock. A row causes one watermark at
most, however far it jumps ahead. All state is what each source has reached, the last watermark and which sources are
idle: an ingress that is restarted has it from the journal, and places the next watermark where the last one would have.

Event time is a column of the source, or of what the steps in the ingress make of its rows: several rows of one, or
none. So rows are numbered in two passes. The steps process them with the numbers that they would have without
watermarks among them. Then the watermarks are placed, and what the steps emitted gets its final numbers. Both numbers
are the same in a replay.

Rows without event time change nothing. A source that has ended does not hold back the watermark, and an *idle* one does
not until its next row. When all are idle, none holds back another, and the watermark is the greatest that one has
reached. Only the ingress sees that a source is silent, by its clock. It declares sources idle when that raises the
watermark, by a punctuation of its own in the journal. So every copy and every later ingress sees it at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...model.batch import Batch
from ...model.event_time import EventTime, milliseconds
from ...model.stateless import assigned_time
from ...plan.plan import INPUT, Segment

__all__ = ["NumberedWatermarks", "TimePlaces", "Watermarks", "find_time_places", "number_watermarks", "renumber"]

NumberedWatermarks: TypeAlias = tuple[tuple[int, int], ...]  # Sequence number and value of each.

_BEFORE_ALL, _AFTER_ALL = -(2**63), 2**63 - 1
_NONE: frozenset[int] = frozenset()


class TimePlaces(NamedTuple):
    """The event time of a source, and the places in the ingress's tree of steps whose rows have it."""

    event_time: EventTime
    places: tuple[int, ...]


def find_time_places(first: Segment, sources: Mapping[int, EventTime | None]) -> dict[int, TimePlaces]:
    """Return where the event time of each source is: in its rows, or after a step of `first`, the ingress's segment."""
    found = {n: TimePlaces(time, (INPUT - n,)) for n, time in sources.items() if time is not None}
    for place, step in enumerate(first.steps):
        assigned = assigned_time(step.factory)
        if assigned is not None:
            root = place
            while root > INPUT:
                root = first.parents[root]
            before = found.get(INPUT - root)
            found[INPUT - root] = TimePlaces(assigned, (*(() if before is None else before.places), place))
    return found


class Watermarks:
    """The watermarks of sources with event time, by their numbers.

    They resume where each source has `reached`, after the watermark `last`, with some sources `idle`.

    >>> import pyarrow as pa
    >>> rows = pa.record_batch({"ts": [15, 24, 25, 7]})
    >>> batch = Batch(rows, np.arange(1, 5), None, np.zeros(4, np.uint16))
    >>> marks = Watermarks({0: TimePlaces(EventTime(column="ts", lateness_ms=5, every_ms=10), (INPUT,))}, {})
    >>> marks.advance(0, {INPUT: batch}, after=0)
    ((2, 10), (5, 20))
    """

    def __init__(
        self,
        times: Mapping[int, TimePlaces],
        reached: Mapping[int, int],
        last: int | None = None,
        idle: Set[int] = _NONE,
    ) -> None:
        self._times = times
        self._reached = {source: reached.get(source, _BEFORE_ALL) for source in times}
        self._last = _BEFORE_ALL if last is None else last
        self._idle = set(idle)

    def reached(self, source: int) -> int | None:
        """Return what a source has reached; None if it has given no event time yet."""
        reached = self._reached.get(source, _BEFORE_ALL)
        return None if reached == _BEFORE_ALL else reached

    def advance(self, source: int, outputs: Mapping[int, Batch], after: int) -> NumberedWatermarks:
        """Take what the steps made of a source's next rows; return the watermarks among them.

        The rows are numbered after `after` without watermarks; the watermarks have their final numbers.
        """
        if source not in self._times:
            return ()
        self._idle.discard(source)
        event_time, places = self._times[source]
        instants, numbers = _instants(outputs, places, event_time.column)
        before = self._reached[source]
        if not len(instants) or int(instants.max()) - event_time.lateness_ms < before + event_time.every_ms:
            return ()
        steps = (instants - event_time.lateness_ms) // event_time.every_ms * event_time.every_ms
        reached = np.maximum.accumulate(np.maximum(steps, before))
        others = min((each for other, each in self._awake(self._idle) if other != source), default=_AFTER_ALL)
        values = reached if others >= reached[-1] else np.minimum(reached, others)
        risen = np.flatnonzero(values[1:] > values[:-1]) + 1
        # The first one may be above the last watermark, too; those that are not above it are none.
        risen = np.concatenate([[0], risen])
        risen = risen[values.take(risen) > self._last]
        self._reached[source], self._last = int(reached[-1]), max(int(values[-1]), self._last)
        row = numbers.take(risen) - after - 1
        is_last = np.append(row[1:] != row[:-1], True)[: len(row)]  # Of those that one row of the source became.
        row, risen = row.compress(is_last), risen.compress(is_last)
        # After its row, and after the watermarks before it.
        sn = after + 2 + row + np.arange(len(row))
        return tuple(zip(sn.tolist(), values.take(risen).tolist(), strict=True))

    def end(self, source: int) -> int | None:
        """Note the end of a source; return the value of the watermark to place there, None if there is none."""
        if source not in self._reached:
            return None
        self._reached[source] = _AFTER_ALL
        self._idle.discard(source)
        return self._raised(self._idle)

    @property
    def idle(self) -> frozenset[int]:
        """The sources that are idle."""
        return frozenset(self._idle)

    def set_idle(self, silent: Set[int]) -> int | None:
        """Declare silent sources idle, if that raises the watermark; return its value, None if it does not."""
        idle = self._idle | {source for source in silent if self._reached.get(source, _AFTER_ALL) < _AFTER_ALL}
        value = self._raised(idle)
        if value is not None:
            self._idle = idle
        return value

    def _awake(self, idle: Set[int]) -> list[tuple[int, int]]:
        return [(source, reached) for source, reached in self._reached.items() if source not in idle]

    def _raised(self, idle: Set[int]) -> int | None:
        """Return the watermark with these sources idle, if it is above the last; all sources at their end set none."""
        value = min((reached for _, reached in self._awake(idle)), default=_AFTER_ALL)
        if value == _AFTER_ALL:
            value = max((self._reached[source] for source in idle), default=_AFTER_ALL)
        if not self._last < value < _AFTER_ALL:
            return None
        self._last = value
        return value


def _instants(
    outputs: Mapping[int, Batch], places: tuple[int, ...], column: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the event times that are not null, in the order of their rows, and the numbers of these."""
    found: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    for batch in (outputs[place] for place in places if place in outputs):
        instants, missing = milliseconds(batch.column(column))
        is_known = None if missing is None else ~missing
        found.append((instants, batch.sn) if is_known is None else (instants[is_known], batch.sn[is_known]))
    if len(found) == 1:
        return found[0]
    nothing = np.zeros(0, np.int64)
    instants = np.concatenate([nothing, *(instants for instants, _ in found)])
    numbers = np.concatenate([nothing, *(numbers for _, numbers in found)])
    order = np.argsort(numbers, kind="stable")
    return instants.take(order), numbers.take(order)


def number_watermarks(after: int, count: int, punctuations: NumberedWatermarks) -> npt.NDArray[np.int64]:
    """Return the sequence numbers after `after` of so many rows, among which these watermarks are placed.

    >>> number_watermarks(0, 4, ((2, 10), (5, 20))).tolist()
    [1, 3, 4, 6]
    """
    numbers = np.arange(after + 1, after + 1 + count + len(punctuations), dtype=np.int64)
    return np.delete(numbers, [sn - after - 1 for sn, _ in punctuations]) if punctuations else numbers


def renumber(
    outputs: Mapping[int, Batch], first: int, after: int, count: int, punctuations: NumberedWatermarks
) -> dict[int, Batch]:
    """Return what steps emitted, with final numbers; `count` rows had the numbers from `first` on.

    >>> import pyarrow as pa
    >>> rows = Batch(pa.record_batch({"n": [7, 8]}), np.array([5, 6]), None, np.zeros(2, np.uint16))
    >>> renumber({INPUT: rows}, 5, 4, 2, ((6, 10),))[INPUT].sn.tolist()
    [5, 7]
    """
    if not punctuations and first == after + 1:
        return dict(outputs)
    numbers = number_watermarks(after, count, punctuations)

    def final(batch: Batch) -> Batch:
        # As many rows as there were, none of them of the same row: all of them.
        has_all = batch.sub is None and len(batch) == count
        return batch.numbered(numbers if has_all else numbers.take(batch.sn - first))

    return {place: final(batch) for place, batch in outputs.items()}
