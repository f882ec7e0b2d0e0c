"""Watermarks: punctuations that tell how far event time has come, made of the rows alone.

One stands right behind each row whose event time, less the lateness and rounded down to a step, is later than that of
all rows before it. So where they stand depends on the sequence of rows, and neither on how it was cut into batches nor
on a clock; a row causes one mark at most, however far it jumps ahead. The last mark is all that has to be remembered:
an ingress that takes another's place has it from the journal, and sets the next where the other would have.

Rows without event time move nothing.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..event_time import EventTime, milliseconds

__all__ = ["Marks", "Watermarks", "numbered"]

Marks: TypeAlias = tuple[tuple[int, int], ...]  # Sequence number and value of each.

_BEFORE_ALL = -(2**63)


class Watermarks:
    """The watermarks of a source of which `last` was the last one, None if there was none yet.

    >>> marks = Watermarks(EventTime(column="ts", lateness_ms=5, every_ms=10), None)
    >>> marks.behind(pa.record_batch({"ts": [15, 24, 25, 7]}), after=0)
    ((2, 10), (5, 20))
    """

    def __init__(self, event_time: EventTime, last: int | None) -> None:
        self._event_time = event_time
        self._last = _BEFORE_ALL if last is None else last

    def behind(self, rows: pa.RecordBatch, after: int) -> Marks:
        """The marks among the next rows, if these and the marks are numbered from `after` on."""
        told = self._event_time
        instants, missing = milliseconds(rows.column(rows.schema.get_field_index(told.column)))
        place = None
        if missing is not None:
            place = np.flatnonzero(~missing)
            instants = instants.take(place)
        if not len(instants) or int(instants.max()) - told.lateness_ms < self._last + told.every_ms:
            return ()
        steps = (instants - told.lateness_ms) // told.every_ms * told.every_ms
        reached = np.maximum.accumulate(np.maximum(steps, self._last))
        before = np.concatenate([[self._last], reached[:-1]])
        risen = np.flatnonzero(reached > before)
        self._last = int(reached[-1])
        values = reached.take(risen)
        row = risen if place is None else place.take(risen)
        # Behind its row, and behind the marks before it.
        sn = after + 2 + row + np.arange(len(row))
        return tuple(zip(sn.tolist(), values.tolist(), strict=True))


def numbered(after: int, count: int, marks: Marks) -> npt.NDArray[np.int64]:
    """The sequence numbers behind `after` of so many rows, among which these marks stand.

    >>> numbered(0, 4, ((2, 10), (5, 20))).tolist()
    [1, 3, 4, 6]
    """
    numbers = np.arange(after + 1, after + 1 + count + len(marks), dtype=np.int64)
    return np.delete(numbers, [sn - after - 1 for sn, _ in marks]) if marks else numbers
