"""Watermark and clock of a stream, as punctuations at the end of each micro-batch.

The ingress writes both into the stream. Operators read them there, so that all copies see the same values, also when
rows are replayed. The watermark is Spark's: the newest event time, less a delay. The clock is that of the ingress and
never goes back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...types.errors import PlanError

__all__ = ["BatchTimes", "TimePunctuations", "check_event_time", "delay_of", "is_late", "micros_of", "watermark_of"]

TimePunctuations = tuple[tuple[str, int | None], ...]

# The key in a column's metadata under which Spark keeps the delay given to `withWatermark`.
DELAY_KEY = "spark.watermarkDelayMs"
_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_UNITS_MS = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_DELAY = re.compile(r"\s*(\d+)\s*([a-z]+?)s?\s*", re.IGNORECASE)


class BatchTimes:
    """The newest event time and the clock at the ingress; `plain` is saved in the source's offset."""

    def __init__(
        self, event_time: str | None, delay_ms: int, plain: Any = None, now_ms: Callable[[], int] | None = None
    ) -> None:
        self._event_time = event_time
        self._delay_ms = delay_ms
        self._newest_us: int | None = None
        self._clock_ms = 0
        if plain is not None:
            self._newest_us, self._clock_ms = plain
        self._now_ms = now_ms if now_ms is not None else lambda: time.time_ns() // 1_000_000

    @property
    def plain(self) -> list[int | None]:
        """The state in msgpack types."""
        return [self._newest_us, self._clock_ms]

    def observe(self, rows: pa.RecordBatch) -> None:
        """Record the newest event time of these rows."""
        if self._event_time is None or not rows.num_rows:
            return
        newest = micros_of(rows.column(self._event_time))
        if len(newest):
            self._newest_us = max(int(newest.max()), self._newest_us if self._newest_us is not None else -(2**63))

    def punctuations(self, batch_id: int) -> TimePunctuations:
        """Return the punctuations that follow micro-batch `batch_id`; the boundary is last."""
        self._clock_ms = max(self._clock_ms, self._now_ms())
        ends: TimePunctuations = (("clock", self._clock_ms), ("batch", batch_id))
        if self._newest_us is None:
            return ends
        return (("watermark", max(0, self._newest_us // 1_000 - self._delay_ms)), *ends)


def micros_of(column: Any) -> npt.NDArray[np.int64]:
    """Return an event-time column (timestamps, dates or integer milliseconds) in microseconds, without nulls."""
    column = column.drop_null()
    kind = column.type
    if pa.types.is_integer(kind):
        return np.asarray(column.cast(pa.int64())) * 1_000
    if pa.types.is_date(kind):
        column, kind = column.cast(pa.timestamp("us")), pa.timestamp("us")
    if not pa.types.is_timestamp(kind):
        raise PlanError(f"event time must be a column of timestamps, dates or milliseconds; this one holds {kind}")
    if kind.unit == "ns":
        return np.asarray(column.cast(pa.int64())) // 1_000
    return np.asarray(column.cast(pa.int64())) * _MICROS[kind.unit]


def is_late(column: Any, watermark_ms: int) -> npt.NDArray[np.bool_]:
    """Return which rows are late: event time up to the watermark. A row without event time is not late."""
    late = np.zeros(len(column), np.bool_)
    late[np.asarray(pc.is_valid(column))] = micros_of(column) <= watermark_ms * 1_000
    return late


def check_event_time(schema: pa.Schema, event_time: str, owner: str) -> None:
    """Raise `PlanError` if the column does not exist or its type cannot be a time."""
    if event_time not in schema.names:
        raise PlanError(f"{owner}: event_time is {event_time!r}, but the columns are {', '.join(schema.names)}")
    try:
        micros_of(pa.array([], schema.field(event_time).type))
    except PlanError as error:
        raise PlanError(f"{owner}: column {event_time!r}: {error}") from error


def delay_of(delay: Any) -> int:
    """Return a delay in milliseconds; given as Spark takes it ("10 seconds"), or as a number of seconds.

    >>> delay_of("10 minutes"), delay_of(0.5)
    (600000, 500)
    """
    found = _DELAY.fullmatch(delay) if isinstance(delay, str) else None
    if found is not None and found[2].lower() in _UNITS_MS:
        return int(found[1]) * _UNITS_MS[found[2].lower()]
    if isinstance(delay, int | float) and not isinstance(delay, bool) and delay >= 0:
        return round(delay * 1_000)
    raise PlanError(
        f'delay must be a text such as "10 seconds" (of {", ".join(_UNITS_MS)}s), or a number of seconds; got {delay!r}'
    )


def watermark_of(df: Any) -> tuple[str | None, int]:
    """Return the event-time column and its delay in ms, as set by `df.withWatermark(...)`; else (None, 0)."""
    found = [field for field in df.schema.fields if DELAY_KEY in (field.metadata or {})]
    if len(found) > 1:
        names = ", ".join(field.name for field in found)
        raise PlanError(f"the DataFrame has watermarks on several columns ({names}); drop all but one of them")
    return (found[0].name, int(found[0].metadata[DELAY_KEY])) if found else (None, 0)
