"""What operators by event time share: how far each partition's time has come, and which rows were too late.

The partitions at hand need not have come equally far, so each has a watermark of its own. It is part of the partition's
state, as is the number of its late rows: both are the same in all copies. The end of the stream is the end of time.
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


# What is beyond every instant, on both sides; a window's ends can be reckoned from them within 64 bits.
END_OF_TIME = 2 * FARTHEST_MS
BEFORE_TIME = -END_OF_TIME
_LONGEST_MS = FARTHEST_MS // 4
_ONLY = np.int64(0)  # The window, where there is one without end.


class EventClock:
    """The watermark of each partition, and how many of its rows came too late."""

    def __init__(self, partitions: int) -> None:
        self.watermark: Int64s = np.full(partitions, BEFORE_TIME, np.int64)
        self._late: Int64s = np.zeros(partitions, np.int64)
        self._news: set[int] = set()

    def advance(self, p: Punctuation) -> bool:
        """Take in a punctuation; whether it has to do with time. Time does not run backwards."""
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
            self._news.update(np.unique(partition).tolist())

    def take_late(self) -> dict[int, int]:
        """How many rows came too late so far, of the partitions of which that is news."""
        news, self._news = self._news, set()
        return {pid: int(self._late[pid]) for pid in sorted(news) if self._late[pid]}

    def get(self, pid: int) -> dict[str, int]:
        """What is to go along with a partition's state."""
        return {"watermark": int(self.watermark[pid]), "late": int(self._late[pid])}

    def install(self, pid: int, state: Mapping[str, int]) -> None:
        """Take over what `get` returned elsewhere."""
        self.watermark[pid], self._late[pid] = state["watermark"], state["late"]
        self._news.add(pid)

    def drop(self, pid: int) -> None:
        """Forget a partition that lives elsewhere now."""
        self.watermark[pid], self._late[pid] = BEFORE_TIME, 0


def check_ms(name: str, value: Any) -> None:
    """Raise if a parameter is no length of a window: the ends of windows are reckoned in 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LONGEST_MS:
        raise ColumnError(f"{name} is a whole number of milliseconds, from 1 to {_LONGEST_MS:,}; came {value!r}")


def check_time_column(name: str, rows: Any) -> None:
    """Raise if rows of this schema have no such column that tells event time."""
    if name not in rows.names:
        raise ColumnError(f"expected a column {name!r} that tells event time, came {', '.join(rows.names)}")
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
    """Rows in tumbling windows of event time, if `time` and `size_ms` are given; else all are in one without end.

    `closed` is, for each partition, the last window that its watermark has passed.
    """

    def __init__(self, context: Context) -> None:
        self._step = context.step
        self.time, self._size_ms = self._settings(context.parameters)
        self.clock = EventClock(context.partitions)
        self.closed = self._passed()

    @staticmethod
    def _settings(parameters: Mapping[str, Any]) -> tuple[str | None, int]:
        time, size = parameters.get("time"), parameters.get("size_ms")
        if time is None and size is None:
            return None, 1
        if not isinstance(time, str) or size is None:
            raise ColumnError(
                "time, the column that tells event time, and size_ms, a whole number of milliseconds, are given both "
                f"or neither; came time={time!r}, size_ms={size!r}"
            )
        check_ms("size_ms", size)
        return time, size

    @classmethod
    def check(cls, parameters: Mapping[str, Any], rows: Any) -> None:
        """Raise if the parameters are wrong for rows of this schema."""
        time, _ = cls._settings(parameters)
        if time is not None:
            check_time_column(time, rows)

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
        """How many columns the window takes in a key: none, if there is only one."""
        return 0 if self.time is None else 1

    def key_part(self, window: Int64s) -> list[Int64s]:
        """What the window of each row adds to its key."""
        return [window] * self.key_parts

    def advance(self, p: Punctuation) -> bool:
        """Take in a punctuation; whether windows have been closed by it."""
        if not self.clock.advance(p):
            return False
        before, self.closed = self.closed, self._passed()
        return not np.array_equal(before, self.closed)

    def install(self, pid: int, state: Mapping[str, int]) -> None:
        """Take over a partition's time from another site."""
        self.clock.install(pid, state)
        self.closed = self._passed()

    def drop(self, pid: int) -> None:
        """Forget a partition's time."""
        self.clock.drop(pid)
        self.closed = self._passed()

    def _passed(self) -> Int64s:
        if self.time is None:
            # One window, which the end of the stream closes.
            return np.where(self.clock.watermark == END_OF_TIME, 0, -1).astype(np.int64)
        passed: Int64s = self.clock.watermark // self._size_ms - 1
        return passed
