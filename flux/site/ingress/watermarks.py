"""Watermarks: punctuations that tell how far event time has come, made of the rows alone.

A source has *reached* the greatest event time of its rows so far, less its lateness and rounded down to a step. The
watermark is the least that all sources with event time have reached, and one stands right behind each row that raises
it. So where they stand depends on the sequence of rows, and neither on how it was cut into batches nor on a clock; a
row causes one mark at most, however far it jumps ahead. What each source has reached is all that has to be remembered:
an ingress that takes another's place has it from the journal, and sets the next mark where the other would have.

Rows without event time move nothing. A source that has ended holds nobody back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...model.event_time import EventTime, milliseconds

__all__ = ["NumberedWatermarks", "Watermarks", "number_watermarks"]

NumberedWatermarks: TypeAlias = tuple[tuple[int, int], ...]  # Sequence number and value of each.

_BEFORE_ALL, _BEHIND_ALL = -(2**63), 2**63 - 1


class Watermarks:
    """The watermarks of sources with event time, by their numbers, of which some have `reached` so far.

    >>> marks = Watermarks({0: EventTime(column="ts", lateness_ms=5, every_ms=10)}, {})
    >>> marks.behind(0, pa.record_batch({"ts": [15, 24, 25, 7]}), after=0)
    ((2, 10), (5, 20))
    """

    def __init__(self, event_times: Mapping[int, EventTime], reached: Mapping[int, int]) -> None:
        self._event_times = event_times
        self._reached = {source: reached.get(source, _BEFORE_ALL) for source in event_times}

    def reached(self, source: int) -> int | None:
        """What a source has reached; None if it has not told any time."""
        reached = self._reached.get(source, _BEFORE_ALL)
        return None if reached == _BEFORE_ALL else reached

    def behind(self, source: int, rows: pa.RecordBatch, after: int) -> NumberedWatermarks:
        """The marks among the next rows, of this source, if these and the marks are numbered from `after` on."""
        told = self._event_times.get(source)
        if told is None:
            return ()
        instants, missing = milliseconds(rows.column(rows.schema.get_field_index(told.column)))
        place = None
        if missing is not None:
            place = np.flatnonzero(~missing)
            instants = instants.take(place)
        before = self._reached[source]
        if not len(instants) or int(instants.max()) - told.lateness_ms < before + told.every_ms:
            return ()
        steps = (instants - told.lateness_ms) // told.every_ms * told.every_ms
        reached = np.maximum.accumulate(np.maximum(steps, before))
        others = min((each for other, each in self._reached.items() if other != source), default=_BEHIND_ALL)
        values = np.minimum(reached, others)
        risen = np.flatnonzero(values > np.concatenate([[min(before, others)], values[:-1]]))
        self._reached[source] = int(reached[-1])
        row = risen if place is None else place.take(risen)
        # Behind its row, and behind the marks before it.
        sn = after + 2 + row + np.arange(len(row))
        return tuple(zip(sn.tolist(), values.take(risen).tolist(), strict=True))

    def end(self, source: int) -> int | None:
        """A source has ended: return the value of the mark that is to stand there; None if none is."""
        if source not in self._reached:
            return None
        before = min(self._reached.values())
        self._reached[source] = _BEHIND_ALL
        now = min(self._reached.values())
        return now if before < now < _BEHIND_ALL else None


def number_watermarks(after: int, count: int, punctuations: NumberedWatermarks) -> npt.NDArray[np.int64]:
    """The sequence numbers behind `after` of so many rows, among which these marks stand.

    >>> numbered(0, 4, ((2, 10), (5, 20))).tolist()
    [1, 3, 4, 6]
    """
    numbers = np.arange(after + 1, after + 1 + count + len(punctuations), dtype=np.int64)
    return np.delete(numbers, [sn - after - 1 for sn, _ in punctuations]) if punctuations else numbers
