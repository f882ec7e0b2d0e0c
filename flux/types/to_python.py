"""Conversion of columns to Python values, for row-wise operators.

Arrow makes a scalar of each time, decimal and bytes of fixed width, and a Python value of that, which takes up to
three microseconds. Numpy converts a whole column in a tenth of the time or less; it is used wherever its values are the
same.

Arrow also holds values that Python cannot represent: times after the year 9999, times of day in nanoseconds. Columns
are converted as a whole, so the error names no row. `first_unrepresentable` finds the first row with such a value: the
rows that an operator gets must not depend on how they are cut into batches.
"""

from __future__ import annotations

import datetime
import functools
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .normalize import ColumnError, of_inner

__all__ = ["UNREPRESENTABLE", "first_unrepresentable", "format_row", "format_value", "to_python"]

UNREPRESENTABLE = (ValueError, OverflowError)  # What `to_python` raises for a value that Python cannot represent.

_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_LEAST_US, _MOST_US = ((end - _EPOCH) // _MICROSECOND for end in (datetime.datetime.min, datetime.datetime.max))
_LEAST_DAY, _MOST_DAY = ((end - _EPOCH.date()).days for end in (datetime.date.min, datetime.date.max))
_NO_TIME = -(2**63)  # Numpy's "not a time".


def to_python(column: Any) -> list[Any]:
    """Return an Arrow column as Python values; null is None.

    A timestamp or duration in nanoseconds is a datetime or timedelta if no digits are lost, and else a Timestamp or
    Timedelta of pandas. That depends on each value alone, and nothing is cut off.

    >>> to_python(pa.array([5_000], pa.timestamp("ns")))
    [datetime.datetime(1970, 1, 1, 0, 0, 0, 5)]
    """
    if pa.types.is_dictionary(column.type):
        chunks = getattr(column, "chunks", [column])
        return [value for chunk in chunks for value in to_python(chunk.dictionary_decode())]
    coarser = _in_microseconds(column.type)
    try:
        return _to_list(column if coarser == column.type else column.cast(coarser, safe=True))
    except pa.ArrowInvalid:
        return [_in_standard_library(value) for value in _with_times(column).to_pylist()]


def _to_list(column: Any) -> list[Any]:
    """Return the same values as `to_pylist`, faster."""
    kind = column.type
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
        return list(column.to_numpy(zero_copy_only=False).tolist())
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_date(kind):
        found = _times(column)
        if found is not None:
            return found
    return list(column.to_pylist())


def _times(column: Any) -> list[Any] | None:
    """Return times converted by numpy; None if numpy would convert one of them differently."""
    kind = column.type
    if pa.types.is_date(kind):
        as_numpy, number, least, most = pa.date32(), pa.int32(), _LEAST_DAY, _MOST_DAY
    elif pa.types.is_duration(kind):
        as_numpy, number, least, most = pa.duration("us"), pa.int64(), _NO_TIME + 1, -(_NO_TIME + 1)
    else:
        as_numpy, number, least, most = pa.timestamp("us"), pa.int64(), _LEAST_US, _MOST_US
    try:
        column = column.cast(as_numpy, safe=True)
    except pa.ArrowInvalid:
        return None
    ends = pc.min_max(column.cast(number))
    if ends["min"].is_valid and not least <= ends["min"].as_py() <= ends["max"].as_py() <= most:
        return None
    found = list(column.to_numpy(zero_copy_only=False).tolist())
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        return found
    zone = _zone(kind.tz)
    return [None if time is None else zone.fromutc(time.replace(tzinfo=zone)) for time in found]


@functools.lru_cache(maxsize=1_024)
def _zone(name: str) -> Any:
    return pa.lib.string_to_tzinfo(name)


@functools.lru_cache(maxsize=1_024)
def _in_microseconds(kind: Any, only_times: bool = False) -> Any:
    """Return the type with microseconds in place of nanoseconds; with `only_times`, only in its times of day."""
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return of_inner(kind, functools.partial(_in_microseconds, only_times=only_times))
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if only_times or getattr(kind, "unit", None) != "ns":
        return kind
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.duration("us")


def _with_times(column: Any) -> Any:
    """Return the column with its times of day in microseconds, as in Python; `ColumnError` for nanoseconds."""
    try:
        return column.cast(_in_microseconds(column.type, only_times=True), safe=True)
    except pa.ArrowInvalid as error:
        raise ColumnError("Python's datetime.time has no nanoseconds") from error


def _in_standard_library(value: Any) -> Any:
    """Return a value with times of pandas only where those of the standard library are too coarse."""
    if isinstance(value, list | tuple):
        return type(value)(map(_in_standard_library, value))
    if isinstance(value, dict):
        return {name: _in_standard_library(inner) for name, inner in value.items()}
    if isinstance(value, datetime.datetime) and value != value:
        raise ColumnError("pandas reads this number as NaT, not a time")
    if isinstance(value, datetime.datetime) and not getattr(value, "nanosecond", 1):
        return _without_pandas(value)
    if isinstance(value, datetime.timedelta) and not getattr(value, "nanoseconds", 1):
        return value.to_pytimedelta()  # type: ignore[attr-defined]
    return value


def _without_pandas(time: Any) -> datetime.datetime:
    """Return a time of pandas as a datetime, with the zone class that other times have: pandas may use another."""
    if time.tzinfo is None:
        return time.to_pydatetime()  # type: ignore[no-any-return]
    zone = _zone(pa.lib.tzinfo_to_string(time.tzinfo))
    return zone.fromutc(time.tz_convert("UTC").to_pydatetime().replace(tzinfo=zone))  # type: ignore[no-any-return]


def first_unrepresentable(rows: Any) -> tuple[int, str] | None:
    """Return the first row of a record batch with such a value, and the error text; None if there is none.

    >>> first_unrepresentable(pa.record_batch({"day": pa.array([0, 3_663_382], pa.date32())}))[1][:59]
    "column 'day': Python has no value for 12000-01-01, a date32"
    """
    places = [(place, i) for i, column in enumerate(rows.columns) if (place := _first(column)) is not None]
    if not places:
        return None
    place, i = min(places)
    value = rows.column(i).slice(place, 1)
    return place, (
        f"column {rows.schema.names[i]!r}: Python has no value for {format_value(value)}, a {value.type} "
        f"({_why_not(value)}). Remove the column with select before, or work on batch.arrow; or let "
        'on_error="skip" drop and count such rows'
    )


def _first(column: Any) -> int | None:
    if _why_not(column) is None:
        return None
    begin, end = 0, len(column)
    while end - begin > 1:
        middle = (begin + end) // 2
        begin, end = (middle, end) if _why_not(column.slice(begin, middle - begin)) is None else (begin, middle)
    return begin


def _why_not(column: Any) -> str | None:
    try:
        to_python(column)
    except UNREPRESENTABLE as error:
        return str(error)
    return None


def format_row(rows: Any, place: int) -> str:
    """Return a row of a record batch as text, also if Python cannot represent it."""
    return repr(row_values(rows, place))


def row_values(rows: Any, place: int) -> dict[str, Any]:
    """Return a row of a record batch as Python values; what Python cannot represent as text."""
    row = rows.slice(place, 1)
    values = [format_value(value) if _why_not(value) is not None else to_python(value)[0] for value in row.columns]
    return dict(zip(row.schema.names, values, strict=True))


def format_value(one: Any) -> str:
    """Return the value of an array of length one as text, as Arrow prints it."""
    try:
        return str(one.cast(pa.string())[0])
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return " ".join(one.to_string().split())  # A nested value.
