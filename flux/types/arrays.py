"""Conversion of columns between Arrow, which moves them, and numpy, in which operators work.

`to_numpy` copies nothing that can be read in place, and returns read-only arrays: the buffer for the other copy may
still need the same memory. `to_arrow_array` takes numpy, masked and Arrow arrays and lists, and casts them safely (see
`flux.types.cast`). A value that does not fit is an error and never becomes another value; only floats may be rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .cast import cast_values
from .infer import infer_type
from .normalize import ColumnError, check_names, normalize_type
from .validate import check_values

__all__ = ["ColumnError", "record_batch_of", "schema_of", "to_arrow_array", "to_numpy"]

_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
# Types that carry an element type of their own.
_ARRAYS = pa.Array | pa.ChunkedArray | np.ndarray


def to_numpy(column: Any) -> npt.NDArray[Any]:
    """Return an Arrow column as a read-only numpy array, masked if there are nulls.

    Strings, binary and nested values are Python objects; fixed_size_binary(w) is uint8 of shape (rows, w).

    >>> print(to_numpy(pa.array([1, None, 3], pa.int16())))
    [1 -- 3]
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count == 0:
        return _read_only(_plain(column))
    missing = column.is_null().to_numpy(zero_copy_only=False)
    values = _plain(_without_nulls(column))
    if values.ndim == 2:
        missing = np.repeat(missing[:, None], values.shape[1], axis=1)
    masked: npt.NDArray[Any] = np.ma.MaskedArray(values, mask=missing)
    return _read_only(masked)


def _plain(column: Any) -> npt.NDArray[Any]:
    kind = column.type
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width:
        buffer = column.buffers()[1] or b""
        width = kind.byte_width
        flat = np.frombuffer(buffer, np.uint8)[column.offset * width : (column.offset + len(column)) * width]
        return flat.reshape(len(column), width)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # numpy has no time zones: return the instants in UTC, as Arrow stores them.
        column = column.cast(pa.timestamp(kind.unit))
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _without_nulls(column: Any) -> Any:
    """Return the column with nulls filled with the zero of its type, so that numpy keeps the type."""
    kind = column.type
    if pa.types.is_fixed_size_binary(kind):
        # Null slots have bytes like any other slot.
        return column
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return pc.fill_null(column, pa.scalar(0).cast(kind))
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pc.fill_null(column, pa.scalar(0, width).cast(kind))
    return column


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values.flags.writeable = False
    if isinstance(values, np.ma.MaskedArray):
        values.mask.flags.writeable = False
    return values


def to_arrow_array(values: Any, field: Any = None, known: Any = None) -> Any:
    """Return `values` as an Arrow array of the field's type; without a field, infer the type, from `known` on."""
    kind = None if field is None else field.type
    if not isinstance(values, _ARRAYS | str | bytes) and hasattr(values, "__iter__"):
        values = list(values)
    exact = field is None
    try:
        if exact:
            kind = infer_type(values, known)
        array = cast_values(values, kind, exact)
    except _UNFIT as error:
        expected = kind if kind is not None else "values of one type"
        place = _first_unfit(values, kind, exact)
        why = f"expected {expected}, got {describe(values)}: {error}"
        raise ColumnError(f"{why}{_advice(values, kind, place) if exact else ''}", place) from error
    check_values(array)
    if field is not None:
        _check_nulls(array, field)
    return array


def _check_nulls(array: Any, field: Any) -> None:
    if not field.nullable and array.null_count:
        raise ColumnError(f"expected {field.type} without nulls, got {array.null_count} nulls")


def _first_unfit(values: Any, kind: Any, exact: bool) -> int | None:
    """Return the place of the first value that does not fit by itself."""
    for place in range(len(values) if isinstance(values, _ARRAYS | list) else 0):
        try:
            one = values[place : place + 1]
            cast_values(one, infer_type(one) if kind is None else kind, exact)
        except _UNFIT:
            return place
    return None


def _advice(values: Any, kind: Any, place: int | None) -> str:
    """Return the advice for an undeclared type; `kind` is inferred from the values before `place`, if there are any."""
    is_later = kind is not None and place is not None
    which = f"{values[place]!r:.100} is not of the type of the values before it. " if is_later else ""
    return f". {which}Declare `output` with the operator, or emit values of one type"


def record_batch_of(columns: Any, output: Any = None) -> Any:
    """Return a record batch of the declared schema; if `output` is None, of the columns' own types and order.

    `output` may also be a `PartialSchema`: then open types are inferred from the values.
    """
    if not isinstance(columns, Mapping):
        raise ColumnError(f"output is a dict of columns; got {describe(columns)}")
    if output is not None and set(columns) != set(output.names):
        raise ColumnError(
            f"the declared output has the columns {', '.join(output.names)}; those emitted are "
            f"{', '.join(map(str, columns)) or 'none'}. Emit exactly the declared columns"
        )
    arrays, fields = [], []
    for name in columns if output is None else output.names:
        try:
            array, field = _column_of(name, columns[name], output)
        except ColumnError as error:
            raise ColumnError(f"output column {name!r}: {error}", error.place) from error
        arrays.append(array)
        fields.append(field)
    if output is None:
        check_names([field.name for field in fields])
    lengths = {field.name: len(array) for field, array in zip(fields, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ColumnError(f"columns emitted together have one length; these have {lengths}")
    known = None if output is None else getattr(output, "schema", output)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, None if known is None else known.metadata))


def _column_of(name: str, values: Any, output: Any) -> tuple[Any, Any]:
    """Return a column and its field."""
    if isinstance(output, pa.Schema):
        field = output.field(name)
        return to_arrow_array(values, field), field
    field = pa.field(name, pa.null()) if output is None else output.schema.field(name)
    array = to_arrow_array(values, known=field.type)
    _check_nulls(array, field)
    return array, field.with_type(array.type)


def describe(values: Any) -> str:
    """Return a short description of `values`."""
    if isinstance(values, np.ndarray):
        return f"a numpy array of {values.dtype} with shape {values.shape}"
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return f"an Arrow array of {values.type}"
    if isinstance(values, list | tuple):
        kinds = sorted({type(value).__name__ for value in values[:100]})
        return f"a {type(values).__name__} of {', '.join(kinds) or 'nothing'}"
    return f"{values!r:.60}"


def schema_of(declared: Any) -> Any:
    """Return a declared `output` as an Arrow schema: None, a schema, or a dict of names and types.

    >>> schema_of({"app": "int32", "dur": pa.int64()})
    app: int32
    dur: int64
    """
    if declared is None:
        return None
    if isinstance(declared, pa.Schema):
        return _checked_output(declared)
    if not isinstance(declared, dict):
        raise ColumnError(f"output is a dict of column names and types, or a pyarrow.Schema; got {declared!r}")
    fields = []
    for name, kind in declared.items():
        try:
            fields.append(pa.field(name, pa.type_for_alias(kind) if isinstance(kind, str) else kind))
        except (ValueError, TypeError) as error:
            raise ColumnError(
                f"output column {name!r}: expected a type such as 'int32', 'string' or pyarrow.list_(...), "
                f"got {kind!r}: {error}"
            ) from error
    return _checked_output(pa.schema(fields))


def _checked_output(schema: Any) -> Any:
    if not schema.names:
        raise ColumnError("output has no column. Name at least one; omit `output` to infer it from the first rows")
    check_names(schema.names)
    for field in schema:
        plain = normalize_type(field.type)
        if plain != field.type:
            raise ColumnError(
                f"output column {field.name!r}: expected a type whose values can be sent one by one, got "
                f"{field.type}. Declare {plain}; emitted values are converted"
            )
    return schema
