"""Watermarks: punctuations with the progress of event time, derived from the rows alone.

A source has *reached* the greatest event time of its rows up to now, less its lateness and rounded down to a step. The
watermark is the least that all sources with event time have reached. One is placed directly after each row that raises
it. So their places depend on the sequence of rows, and neither on batches nor on a clock. A row causes one watermark at
most, however far it jumps ahead. All state is what each source has reached: an ingress that is restarted has it from
the journal, and places the next watermark where the last one would have.

Rows without event time change nothing. A source that has ended does not hold back the watermark.
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

_BEFORE_ALL, _AFTER_ALL = -(2**63), 2**63 - 1


class Watermarks:
    """The watermarks of sources with event time, by their numbers; `reached` is where they resume.

    >>> marks = Watermarks({0: EventTime(column="ts", lateness_ms=5, every_ms=10)}, {})
    >>> marks.advance(0, pa.record_batch({"ts": [15, 24, 25, 7]}), after=0)
    ((2, 10), (5, 20))
    """

    def __init__(self, event_times: Mapping[int, EventTime], reached: Mapping[int, int]) -> None:
        self._event_times = event_times
        self._reached = {source: reached.get(source, _BEFORE_ALL) for source in event_times}

    def reached(self, source: int) -> int | None:
        """Return what a source has reached; None if it has given no event time yet."""
        reached = self._reached.get(source, _BEFORE_ALL)
        return None if reached == _BEFORE_ALL else reached

    def advance(self, source: int, rows: pa.RecordBatch, after: int) -> NumberedWatermarks:
        """Take the next rows of a source; return the watermarks among them, when both are numbered after `after`."""
        event_time = self._event_times.get(source)
        if event_time is None:
            return ()
        instants, missing = milliseconds(rows.column(rows.schema.get_field_index(event_time.column)))
        place = None
        if missing is not None:
            place = np.flatnonzero(~missing)
            instants = instants.take(place)
        before = self._reached[source]
        if not len(instants) or int(instants.max()) - event_time.lateness_ms < before + event_time.every_ms:
            return ()
        steps = (instants - event_time.lateness_ms) // event_time.every_ms * event_time.every_ms
        reached = np.maximum.accumulate(np.maximum(steps, before))
        others = min((each for other, each in self._reached.items() if other != source), default=_AFTER_ALL)
        values = np.minimum(reached, others)
        risen = np.flatnonzero(values > np.concatenate([[min(before, others)], values[:-1]]))
        self._reached[source] = int(reached[-1])
        row = risen if place is None else place.take(risen)
        # After its row, and after the watermarks before it.
        sn = after + 2 + row + np.arange(len(row))
        return tuple(zip(sn.tolist(), values.take(risen).tolist(), strict=True))

    def end(self, source: int) -> int | None:
        """Note the end of a source; return the value of the watermark to place there, None if there is none."""
        if source not in self._reached:
            return None
        before = min(self._reached.values())
        self._reached[source] = _AFTER_ALL
        now = min(self._reached.values())
        return now if before < now < _AFTER_ALL else None


def number_watermarks(after: int, count: int, punctuations: NumberedWatermarks) -> npt.NDArray[np.int64]:
    """Return the sequence numbers after `after` of so many rows, among which these watermarks are placed.

    >>> number_watermarks(0, 4, ((2, 10), (5, 20))).tolist()
    [1, 3, 4, 6]
    """
    numbers = np.arange(after + 1, after + 1 + count + len(punctuations), dtype=np.int64)
    return np.delete(numbers, [sn - after - 1 for sn, _ in punctuations]) if punctuations else numbers
