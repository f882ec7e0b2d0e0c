"""State that operators by event time share: the watermark and the late-row count of each partition.

The partitions at a site may have reached different times, so each has a watermark of its own. Watermark and late-row
count are part of the partition's state: both are the same in all copies. The end of the stream is the end of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..model.batch import Batch
from ..model.event_time import EXPECTED, FARTHEST_MS, is_event_time, milliseconds
from ..model.operator import Context
from ..model.punctuation import Punctuation
from ..types.array_types import Bools, Int64s
from ..types.arrays import ColumnError
from ..types.errors import OperatorError

__all__ = ["BEFORE_TIME", "END_OF_TIME", "EventClock", "Windowed", "check_ms", "check_time_column", "instants_of"]


# Beyond every instant, on both sides; the ends of windows computed from them fit in 64 bits.
END_OF_TIME = 2 * FARTHEST_MS
BEFORE_TIME = -END_OF_TIME
_LONGEST_MS = FARTHEST_MS // 4
_ONLY = np.int64(0)  # The only window, where `time` is not given.


class EventClock:
    """The watermark and the late-row count of each partition."""

    def __init__(self, partitions: int) -> None:
        self.watermark: Int64s = np.full(partitions, BEFORE_TIME, np.int64)
        self._late: Int64s = np.zeros(partitions, np.int64)
        self._changed: set[int] = set()

    def advance(self, p: Punctuation) -> bool:
        """Advance the watermarks, which never go back; return whether the punctuation is about time."""
        if p.kind not in ("watermark", "end"):
            return False
        value = END_OF_TIME if p.kind == "end" else p.value
        assert value is not None, "a watermark has a value"
        where: Any = slice(None) if p.partitions is None else sorted(p.partitions)
        self.watermark[where] = np.maximum(self.watermark[where], value)
        return True

    def count_late(self, partition: npt.NDArray[np.uint16]) -> None:
        """Count a row of each of these partitions as late."""
        if len(partition):
            np.add.at(self._late, partition, 1)
            self._changed.update(np.unique(partition).tolist())

    def take_late(self) -> dict[int, int]:
        """Return the late-row counts that changed since the last call."""
        changed, self._changed = self._changed, set()
        return {pid: int(self._late[pid]) for pid in sorted(changed) if self._late[pid]}

    def get(self, pid: int) -> dict[str, int]:
        """Return the clock's part of a partition's state."""
        return {"watermark": int(self.watermark[pid]), "late": int(self._late[pid])}

    def install(self, pid: int, state: Mapping[str, int]) -> None:
        """Install what `get` returned on another site."""
        self.watermark[pid], self._late[pid] = state["watermark"], state["late"]
        self._changed.add(pid)

    def drop(self, pid: int) -> None:
        """Forget a partition that has moved to another site."""
        self.watermark[pid], self._late[pid] = BEFORE_TIME, 0


def check_ms(name: str, value: Any) -> int:
    """Return a length of a window; raise if it is invalid: the ends of windows must fit in 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LONGEST_MS:
        raise ColumnError(f"{name} is a whole number of milliseconds, from 1 to {_LONGEST_MS:,}; got {value!r}")
    return value


def check_time_column(name: str, rows: Any) -> None:
    """Raise unless rows of this schema have such a column of event time."""
    if name not in rows.names:
        raise ColumnError(f"expected a column {name!r} of event time, got {', '.join(rows.names)}")
    if not is_event_time(rows.field(name).type):
        raise ColumnError(f"column {name!r} is {rows.field(name).type}; {EXPECTED}")


def instants_of(batch: Batch, name: str, step: str) -> tuple[Int64s, Bools | None]:
    """Return the event time of each row in milliseconds, and which have none."""
    try:
        column = batch.column(name)
    except KeyError as error:
        raise OperatorError(str(error.args[0]), step) from None
    if not is_event_time(column.type):
        raise OperatorError(f"column {name!r} is {column.type}; {EXPECTED}", step)
    return milliseconds(column)


class Windowed:
    """Tumbling windows of event time, if `time` and `size_ms` are given; else one window without end.

    `closed` is, for each partition, the last window that its watermark has passed.
    """

    def __init__(self, context: Context) -> None:
        self._step = context.step
        self.time, self._size_ms = self._settings(context.parameters)
        self.clock = EventClock(context.partitions)
        self.closed = self._last_passed()

    @staticmethod
    def _settings(parameters: Mapping[str, Any]) -> tuple[str | None, int]:
        time, size = parameters.get("time"), parameters.get("size_ms")
        if time is None and size is None:
            return None, 1
        if not isinstance(time, str) or size is None:
            raise ColumnError(
                "time, the column of event time, and size_ms, a whole number of milliseconds, are given both "
                f"or neither; got time={time!r}, size_ms={size!r}"
            )
        return time, check_ms("size_ms", size)

    @classmethod
    def check(cls, parameters: Mapping[str, Any], rows: Any) -> None:
        """Raise if the parameters are wrong for rows of this schema."""
        time, _ = cls._settings(parameters)
        if time is not None:
            check_time_column(time, rows)

    @classmethod
    def in_time_from(cls, parameters: Mapping[str, Any], watermark: Int64s) -> Int64s | None:
        """Return for each watermark the first instant that is not late; None without windows."""
        time, size_ms = cls._settings(parameters)
        return None if time is None else watermark // size_ms * size_ms

    def rows_in_time(self, batch: Batch) -> tuple[Int64s | None, Int64s]:
        """Return the rows that are not late, None for all, and the window of each; late ones are counted."""
        if self.time is None:
            return None, np.broadcast_to(_ONLY, (len(batch),))
        instants, missing = instants_of(batch, self.time, self._step)
        window = instants // self._size_ms
        late = window <= self.closed.take(batch.partition)
        if missing is not None:
            late |= missing
        if not late.any():
            return None, window
        self.clock.count_late(batch.partition.compress(late))
        rows = np.flatnonzero(~late)
        return rows, window.take(rows)

    @property
    def key_parts(self) -> int:
        """The number of key columns that the window takes: none, if there is only one window."""
        return 0 if self.time is None else 1

    def key_part(self, window: Int64s) -> list[Int64s]:
        """Return the key columns for the window of each row."""
        return [window] * self.key_parts

    def advance(self, p: Punctuation) -> bool:
        """Advance the watermarks; return whether that closed windows."""
        if not self.clock.advance(p):
            return False
        before, self.closed = self.closed, self._last_passed()
        return not np.array_equal(before, self.closed)

    def install(self, pid: int, state: Mapping[str, int]) -> None:
        """Install a partition's clock from another site."""
        self.clock.install(pid, state)
        self.closed = self._last_passed()

    def drop(self, pid: int) -> None:
        """Forget a partition's clock."""
        self.clock.drop(pid)
        self.closed = self._last_passed()

    def _last_passed(self) -> Int64s:
        if self.time is None:
            # One window, which the end of the stream closes.
            return np.where(self.clock.watermark == END_OF_TIME, 0, -1).astype(np.int64)
        passed: Int64s = self.clock.watermark // self._size_ms - 1
        return passed
