"""Checks for values that their type does not allow: a time of day of 24 hours or more, text that is not UTF-8.

Arrow holds such values, but every receiver refuses them. So they are found where they enter: at a source, or in the
output of an operator. Most types allow all bits and need no check. The cost of a check was measured: about a nanosecond
a row for times and dates, two for decimals, five for text. Most text is ASCII, and to see that takes a tenth of it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa

from .normalize import ColumnError, inner_arrays, is_list, of_inner

__all__ = ["check_rows", "check_values", "raw_schema"]

_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def check_rows(rows: Any) -> None:
    """Raise `ColumnError` if a column of a record batch has a value that its type does not allow."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            check_values(column)
        except ColumnError as error:
            raise ColumnError(f"column {name!r}: {error}") from error


def check_values(column: Any) -> None:
    """Raise `ColumnError` if an array, or its inner values, have a value that its type does not allow.

    >>> try:
    ...     check_values(pa.array([86_400], pa.time32("s")))
    ... except ColumnError as error:
    ...     print(error)
    86400 is not a time32[s]: a time of day is from 0 to 86,399. Correct it before it enters the dataflow
    """
    kind = column.type
    if raw_type(kind) == kind or _is_ascii(column):
        return
    if _is_nested(kind):
        _check_inner(column)
    elif _is_wrong(column):
        raise ColumnError(f"{_describe_wrong(column, _first_wrong(column))}. Correct it before it enters the dataflow")


def _check_inner(column: Any) -> None:
    for inner in inner_arrays(column):
        try:
            check_values(inner)
        except ColumnError as error:
            where = f"within {column.type}, "
            raise ColumnError(f"{where}{str(error).removeprefix('within ')}") from error


def _is_wrong(column: Any) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return True
    return False


def _is_ascii(column: Any) -> bool:
    """Return whether the column is ASCII text, so valid: checking UTF-8 value by value takes ten times as long."""
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return False
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return True
    ends = np.frombuffer(offsets, np.int32 if pa.types.is_string(kind) else np.int64)
    begin, end = ends[column.offset], ends[column.offset + len(column)]
    return bool(np.frombuffer(data, np.uint8)[begin:end].max(initial=0) < 128)


def _first_wrong(column: Any) -> int:
    begin, end = 0, len(column)
    while end - begin > 1:
        middle = (begin + end) // 2
        begin, end = (begin, middle) if _is_wrong(column.slice(begin, middle - begin)) else (middle, end)
    return begin


def _describe_wrong(column: Any, place: int) -> str:
    kind, value = column.type, column.slice(place, 1)
    shown = str(value[0]) if pa.types.is_decimal(kind) else f"{value.view(raw_type(kind))[0].as_py()!r:.200}"
    if pa.types.is_time(kind):
        why = f"a time of day is from 0 to {_A_DAY[kind.unit] - 1:,}"
    elif pa.types.is_date(kind):
        why = f'it is not a multiple of {_A_DAY["ms"]:,}, a whole day; for times in between use timestamp("ms")'
    elif pa.types.is_decimal(kind):
        why = f"it has more than {kind.precision} digits"
    else:
        why = "text is UTF-8. Decode it with its own encoding, or make it a column of binary"
    return f"{shown} is not a {kind}: {why}"


def raw_schema(schema: Any) -> Any:
    """Return the schema with the raw type of each field, for the same buffers.

    >>> raw_schema(pa.schema({"at": pa.time32("s"), "words": pa.list_(pa.string())}))
    at: int32
    words: list<item: binary>
      child 0, item: binary
    """
    return pa.schema([field.with_type(raw_type(field.type)) for field in schema])


@functools.lru_cache(maxsize=1_024)
def raw_type(kind: Any) -> Any:
    """Return the type with the layout of `kind` that allows all bits; `kind` itself if it does."""
    if _is_nested(kind):
        return of_inner(kind, raw_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.binary() if pa.types.is_string(kind) else pa.large_binary()
    if pa.types.is_decimal(kind) and kind.bit_width > 64:
        return pa.binary(kind.byte_width)
    if pa.types.is_time(kind) or pa.types.is_date64(kind) or pa.types.is_decimal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return kind


def _is_nested(kind: Any) -> bool:
    return bool(pa.types.is_struct(kind) or pa.types.is_map(kind) or pa.types.is_fixed_size_list(kind) or is_list(kind))
