"""Event time: when an event happened, as a column of the row, and how late a row may arrive.

`EventTime` is what a user declares for a source: `flow.source(..., event_time="ts", lateness_ms=500)`. The ingress
derives watermarks from it (`flux.site.ingress.watermarks`); operators on event time read the same column with
`milliseconds`.

All event time is in whole milliseconds, since 1970 if the column is a timestamp or a date: finer instants are rounded
down. A column of integers counts milliseconds from any epoch that the user chooses. A watermark `w` says: rows after it
have event times of `w` or later; a row with an earlier one is late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..types.array_types import Bools
from ..types.errors import PlanError

__all__ = ["FARTHEST_MS", "EventTime", "in_unit_of", "is_event_time", "milliseconds", "window_type"]

# No instant is further from 0, so that the ends of a window fit in 64 bits. It is the year 36 million.
FARTHEST_MS = 2**60
DEFAULT_EVERY_MS = 1_000

_DAY_MS = 86_400_000
_PER_MS = {"us": 1_000, "ns": 1_000_000}

Instants = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EventTime:
    """The event time column of a source, and how watermarks follow from it.

    A watermark follows the row whose time, less `lateness_ms`, is the first in a later interval of `every_ms`.
    """

    column: str
    lateness_ms: int = 0
    every_ms: int = DEFAULT_EVERY_MS

    def __post_init__(self) -> None:
        for name, least in (("lateness_ms", 0), ("every_ms", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= FARTHEST_MS:
                shown = "watermark_every_ms" if name == "every_ms" else name
                raise PlanError(f"{shown} is a whole number of milliseconds, at least {least}; got {value!r}")

    def check(self, schema: pa.Schema, source: str) -> None:
        """Raise `PlanError` if the rows of `source` have no such column, or one of another type."""
        if self.column not in schema.names:
            raise PlanError(
                f"{source}: event_time names a column of the source, {self.column!r}; it has {', '.join(schema.names)}"
            )
        kind = schema.field(self.column).type
        if not is_event_time(kind):
            raise PlanError(f"{source}: event_time={self.column!r} is {kind}; {EXPECTED}")


EXPECTED = "expected timestamps, dates, or integers that fit in int64, in milliseconds. Cast the column in the source"


def is_event_time(kind: Any) -> bool:
    """Return whether a column of this Arrow type can hold event time."""
    is_integer = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    return bool(is_integer or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def milliseconds(column: Any) -> tuple[Instants, Bools | None]:
    """Return the instants of an event time column, and which of them are null; None if none is.

    >>> milliseconds(pa.array([1_999, -1], pa.timestamp("us")))[0].tolist()
    [1, -1]
    """
    kind = column.type
    assert is_event_time(kind), f"{kind} is not a type of event time"
    missing: Bools | None = None
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        column = pc.fill_null(column, pa.scalar(0, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind))
    if kind.bit_width == 32 and pa.types.is_date(kind):
        column = column.cast(pa.int32())
    integers = column if pa.types.is_int64(kind) else column.cast(pa.int64())
    whole: Instants = integers.to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(kind) and kind.unit in _PER_MS:
        return whole // _PER_MS[kind.unit], missing
    factor = _DAY_MS if pa.types.is_date32(kind) else 1_000 if pa.types.is_timestamp(kind) and kind.unit == "s" else 1
    farthest = FARTHEST_MS // factor
    if len(whole) and (int(whole.min()) < -farthest or int(whole.max()) > farthest):
        whole = np.clip(whole, -farthest, farthest)
    return (whole if factor == 1 else whole * factor), missing


def in_unit_of(kind: Any, instant_ms: int) -> int:
    """Return an instant in the unit of a column of this type, rounded down; integer columns count milliseconds.

    >>> in_unit_of(pa.timestamp("s"), 1_999), in_unit_of(pa.timestamp("us"), 2), in_unit_of(pa.int64(), 7)
    (1, 2000, 7)
    """
    if pa.types.is_date32(kind):
        return instant_ms // _DAY_MS
    if pa.types.is_timestamp(kind):
        whole = instant_ms * _PER_MS.get(kind.unit, 1) // (1_000 if kind.unit == "s" else 1)
        return max(-(2**63), min(whole, 2**63 - 1))
    return instant_ms


def window_type(kind: Any) -> Any:
    """Return the type of a window's ends for an event time column of this type; it is a type of event time too.

    >>> window_type(pa.timestamp("us", "UTC")), window_type(pa.int32())
    (TimestampType(timestamp[ms, tz=UTC]), DataType(int64))
    """
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.timestamp("ms", kind.tz if pa.types.is_timestamp(kind) else None)
