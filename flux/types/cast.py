"""Lossless casts of values to Arrow arrays: exactly, or not at all.

Arrow's casts are safe in most respects and silently lossy in some: a number that is too large becomes infinite, a time
of day is cut off, a float is rounded to a decimal. When Arrow builds an array from Python values, it silently turns
floats into integers and drops nanoseconds. So here values first become an array of their own type, and nested values
are taken apart for that. The cast that follows is checked for the losses that Arrow ignores. Only floats may be
rounded, to floats with fewer digits. A time without a zone is UTC, as in Arrow: the instant is kept, and the zone is
the column's.

Arrow also silently mixes Python types: a number beside dates becomes a date, and some numpy values crash the process.
So values of each Python type are converted separately.

With `exact`, for a type that was inferred and not declared, no value is converted: the type of each value must be that
type. So the result does not depend on which value was first, on which site.

No Python code runs for each value, except for its type, and for times, where Arrow reports too little. An array that
already has the type is used unchanged.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .normalize import inner_arrays, is_list, normalize_array

__all__ = ["cast_values"]

# These types represent every integer up to this one.
_EXACT_UPTO = {pa.float16(): 1 << 11, pa.float32(): 1 << 24}
_NONE = type(None)
_NUMBERS = {int, float}  # A mixture that Arrow converts without loss, or refuses.
_TEXTS = (str, bytes, bytearray, memoryview)
_PLAIN_TIMES = ({datetime.datetime, _NONE}, {datetime.date, _NONE}, {datetime.timedelta, _NONE})


def cast_values(values: Any, kind: Any = None, exact: bool = False) -> Any:
    """Return `values` as an Arrow array of `kind`, or of their own type; raise if they do not fit.

    If `exact`, values of another type do not fit: neither True nor 1.0 is an int64, text is not bytes, a date not a
    time. The error is an `ArrowException`, `TypeError`, `ValueError` or `OverflowError`.

    >>> cast_values([1.0, None], pa.int8()).to_pylist()
    [1, None]
    """
    array = normalize_array(_as_arrow(values, kind, exact))
    if kind is not None and array.type != kind:
        return _cast(array, kind, exact)
    return _own_memory(array, values) if isinstance(values, np.ndarray) else array


def _own_memory(array: Any, values: npt.NDArray[Any]) -> Any:
    """Return the array in its own memory, if it shares that of `values` and `values` is writable.

    Rows are buffered until they are acknowledged; meanwhile the operator may change the array that it emitted. Arrow
    reuses memory sooner than numpy, which makes a copy cheap.
    """
    data = array.buffers()[-1]
    begin = values.ctypes.data if values.flags.writeable and values.size else 0
    is_shared = begin and data is not None and begin <= data.address < begin + values.nbytes
    return pa.concat_arrays([array]) if is_shared else array


def _as_arrow(values: Any, kind: Any, exact: bool) -> Any:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ndarray):
        return _from_numpy(values, kind, exact)
    if not isinstance(values, list):
        raise TypeError("a column is a list or an array of values, one for each output row")
    return _from_objects(values, kind, exact)


def _from_numpy(values: npt.NDArray[Any], kind: Any, exact: bool) -> Any:
    missing = np.ma.getmaskarray(values) if np.ma.isMaskedArray(values) else None
    plain = np.ma.getdata(values)
    if plain.ndim == 2 and plain.dtype == np.uint8 and plain.shape[1]:
        if kind is not None and not pa.types.is_fixed_size_binary(kind) and not pa.types.is_binary(kind):
            raise TypeError(f"rows of {plain.shape[1]} bytes are fixed_size_binary({plain.shape[1]})")
        fixed = pa.binary(plain.shape[1])
        data = pa.py_buffer(np.ascontiguousarray(plain))
        array = pa.FixedSizeBinaryArray.from_buffers(fixed, len(plain), [None, data])
        return array if missing is None else pc.if_else(pa.array(missing.all(axis=1)), None, array)
    if plain.ndim != 1:
        raise TypeError("a column has one dimension")
    if plain.dtype == object:
        objects = plain.tolist()
        if missing is not None:
            objects = [None if gone else value for gone, value in zip(missing.tolist(), objects, strict=True)]
        return _from_objects(objects, kind, exact)
    return pa.array(plain, mask=missing)


# --- Python values ---------------------------------------------------------------------------------------


def _from_objects(values: list[Any], kind: Any, exact: bool) -> Any:
    """Return Python values as an array of their own type, or of `kind` if they are nested."""
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    if kind is not None and (build := _nested_builder(kind)) is not None:
        if any(issubclass(each, pa.Scalar) for each in kinds):
            values = [value.as_py() if isinstance(value, pa.Scalar) else value for value in values]
        return build(values, pa.array([value is None for value in values], pa.bool_()), kind, exact)
    holders = [each.__name__ for each in kinds if issubclass(each, Collection) and not issubclass(each, _TEXTS)]
    if holders and kind is not None:
        raise TypeError(f"a {holders[0]} is not a {kind}")
    if len(kinds) > 1 and (exact or not kinds <= _NUMBERS):
        return _by_python_type(values, kind, exact, TypeError("they are of several types"))
    try:
        array = pa.array(values)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        return _by_python_type(values, kind, exact, error)
    if pa.types.is_temporal(array.type):
        return _checked_times(values, array, exact)
    if pa.types.is_decimal(array.type):
        return _checked_decimals(values, array, exact)
    return _checked_integers(values, array, kind, exact) if kind in _EXACT_UPTO else array


def _by_python_type(values: list[Any], kind: Any, exact: bool, error: Exception) -> Any:
    """Return values for which Arrow has no common type, converted separately for each Python type; or raise `error`.

    So whether a value fits does not depend on the values beside it, and so not on where batches are cut.
    """
    places: dict[type[Any], list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(type(value), []).append(place)
    if kind is None or (len(places) == 1 and not all(issubclass(each, int) for each in places)):
        raise error
    if places.keys() <= {int, _NONE}:
        return pa.array(values, kind)  # They need more than 64 bits, or all 64 without a sign.
    parts = [cast_values([values[place] for place in some], kind, exact) for some in places.values()]
    order = np.argsort(np.fromiter(itertools.chain.from_iterable(places.values()), np.int64, len(values)))
    return pa.concat_arrays(parts).take(pa.array(order))


def _checked_times(values: list[Any], array: Any, exact: bool) -> Any:
    """Return dates or times of one Python type without loss, where Arrow has dropped a part of them."""
    made, kinds = array.type, set(map(type, values))
    if exact and any(issubclass(each, datetime.datetime) for each in kinds):
        zones = {value.tzinfo: value for value in values if value is not None}
        if len(zones) > 1 and len({pa.array([value]).type for value in zones.values()}) > 1:
            raise TypeError("times of several zones, or with and without one, are mixed")
    if any(kinds <= plain for plain in _PLAIN_TIMES):
        return array
    if pa.types.is_time(made) and any(value is not None and value.tzinfo is not None for value in values):
        raise TypeError("a time of day with a time zone would lose it. Emit a datetime, or a time without one")
    # Times of pandas are subclasses of those of the standard library, and Arrow treats them as such.
    if pa.types.is_timestamp(made) and any(getattr(value, "nanosecond", 0) for value in values):
        return pa.array(values, pa.timestamp("ns", made.tz))
    if pa.types.is_duration(made) and any(getattr(value, "nanoseconds", 0) for value in values):
        return pa.array(values, pa.duration("ns"))
    return array


def _checked_decimals(values: list[Any], array: Any, exact: bool) -> Any:
    """Return decimals unchanged. Arrow gives all of them the same number of digits."""
    if not exact:
        return array
    if any(not value and value.is_signed() for value in values if value is not None):
        raise ValueError("-0 would become 0")
    scales = {max(0, -value.as_tuple().exponent) for value in values if value is not None}
    if len(scales) > 1:
        raise TypeError(f"decimals with {' and '.join(map(str, sorted(scales)))} digits after the point are mixed")
    # The precision is the widest: otherwise each number of digits would be a type of its own.
    widest = pa.decimal128(38, array.type.scale) if array.type.precision <= 38 else pa.decimal256(76, array.type.scale)
    return array.cast(widest)


def _checked_integers(values: list[Any], array: Any, kind: Any, exact: bool) -> Any:
    """Return numbers unchanged. Integers beside floats have become floats, and might have been rounded."""
    extremes = pc.min_max(array).as_py().values() if pa.types.is_float64(array.type) else ()
    if any(value is not None and abs(value) > _EXACT_UPTO[kind] for value in extremes) and int in map(type, values):
        return _by_python_type(values, kind, exact, TypeError("integers and floats are mixed"))
    return array


def _nested_builder(kind: Any) -> Callable[[list[Any], Any, Any, bool], Any] | None:
    """Return the function that builds an array of nested values, called with (values, missing, kind, exact)."""
    if pa.types.is_struct(kind):
        return _structs
    if pa.types.is_map(kind):
        return _maps
    if pa.types.is_fixed_size_list(kind):
        return _fixed_lists
    return _lists if is_list(kind) else None


def _structs(values: list[Any], missing: Any, kind: Any, exact: bool) -> Any:
    names = [field.name for field in kind]
    known = set(names)
    rows: list[Any] = []
    for value in values:
        if type(value) is dict or isinstance(value, Mapping):
            if not value.keys() <= known:
                unknown = [name for name in value if name not in known]
                raise TypeError(f"{kind} has no {', '.join(map(repr, unknown))}")
            if exact and len(value) < len(names):
                raise TypeError(f"{value!r:.100} is not a {kind}: it has no {', '.join(known - value.keys())}")
        elif isinstance(value, tuple) and len(value) == len(names) and not exact:
            value = dict(zip(names, value, strict=True))
        elif value is not None:
            raise TypeError(f"{value!r:.100} is not a {kind}: expected a dict or a tuple of {len(names)}")
        rows.append(value or {})
    children = [cast_values([row.get(field.name) for row in rows], field.type, exact) for field in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)


def _maps(values: list[Any], missing: Any, kind: Any, exact: bool) -> Any:
    given = [value.items() if type(value) is dict or isinstance(value, Mapping) else value for value in values]
    offsets, entries = _flatten(given, kind, np.int32, exact)
    if not all(isinstance(entry, tuple) and len(entry) == 2 for entry in entries):
        raise TypeError(f"not all entries are pairs. A value of {kind} is a dict, or a list of pairs")
    keys, items = ([entry[part] for entry in entries] for part in (0, 1))
    if None in keys:
        raise TypeError(f"None cannot be a key of {kind}")
    children = cast_values(keys, kind.key_type, exact), cast_values(items, kind.item_type, exact)
    return pa.MapArray.from_arrays(pa.array(offsets), *children, type=kind, mask=missing)


def _fixed_lists(values: list[Any], missing: Any, kind: Any, exact: bool) -> Any:
    size = kind.list_size
    # Null lists take up space too.
    filled = [(None,) * size if value is None else value for value in values]
    offsets, entries = _flatten(filled, kind, np.int64, exact)
    lengths = np.diff(offsets)
    if (lengths != size).any():
        raise TypeError(f"expected lists of {size} values, got one of {lengths[lengths != size][0]}")
    return pa.FixedSizeListArray.from_arrays(cast_values(entries, kind.value_type, exact), type=kind, mask=missing)


def _lists(values: list[Any], missing: Any, kind: Any, exact: bool) -> Any:
    is_large = pa.types.is_large_list(kind)
    offsets, entries = _flatten(values, kind, np.int64 if is_large else np.int32, exact)
    whole = pa.LargeListArray if is_large else pa.ListArray
    return whole.from_arrays(pa.array(offsets), cast_values(entries, kind.value_type, exact), type=kind, mask=missing)


def _flatten(values: list[Any], kind: Any, width: Any, exact: bool) -> tuple[npt.NDArray[Any], Any]:
    """Return the offset of each list, and the entries of all lists; as one array if they are arrays of one type."""
    kinds = set(map(type, values)) - {_NONE}
    wrong = [each for each in kinds if not issubclass(each, Collection) or issubclass(each, (*_TEXTS, Mapping))]
    if wrong:
        raise TypeError(f"a {wrong[0].__name__} is not a {kind}")
    if exact and any(issubclass(each, Set) for each in kinds) and not pa.types.is_map(kind):
        raise TypeError("a set has no order. Emit a list: sorted(...)")
    lists = [() if value is None else value for value in values]
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)), out=offsets[1:])
    if offsets[-1] > np.iinfo(width).max:
        raise OverflowError(f"a batch of {kind} holds at most {np.iinfo(width).max:,} entries. Declare a large_list")
    if kinds == {np.ndarray}:
        arrays = [value for value in values if value is not None]
        if len({array.dtype for array in arrays}) == 1 and all(array.ndim == 1 for array in arrays):
            return offsets.astype(width), np.concatenate(arrays)
    return offsets.astype(width), list(itertools.chain.from_iterable(lists))


# --- arrays ----------------------------------------------------------------------------------------------


def _cast(array: Any, kind: Any, exact: bool) -> Any:
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)  # Without values the type does not matter: np.array([]) has floats.
    _refuse_conversion(array.type, kind, exact)
    made = array.cast(kind, safe=True)
    _check_lossless(array, made, exact)
    return made


def _refuse_conversion(source: Any, kind: Any, exact: bool) -> None:
    """Raise where Arrow's cast would parse, print or test values, or drop a part, rather than keep them."""
    is_test = pa.types.is_boolean(kind) and not pa.types.is_boolean(source)
    drops_date = pa.types.is_time(kind) and pa.types.is_timestamp(source)
    # Nested values are kept if their inner values are.
    is_other = exact and not (_holder(source) and _holder(source) == _holder(kind))
    if is_test or drops_date or is_other or _is_text(source) != _is_text(kind):
        raise TypeError(f"{source} is not converted to {kind}. Convert the values in the operator")
    if pa.types.is_struct(source) and pa.types.is_struct(kind):
        unknown = [field.name for field in source if kind.get_field_index(field.name) < 0]
        if unknown:
            raise TypeError(f"{kind} has no {', '.join(map(repr, unknown))}")
        if exact and source.num_fields < kind.num_fields:
            raise TypeError(f"{source} does not have all fields of {kind}")


def _holder(kind: Any) -> str:
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return "struct" if pa.types.is_struct(kind) else "map"
    return "list" if is_list(kind) or pa.types.is_fixed_size_list(kind) else ""


def _is_text(kind: Any) -> bool:
    strings = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    variable = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return bool(strings or variable or pa.types.is_fixed_size_binary(kind))


def _check_lossless(source: Any, made: Any, exact: bool) -> None:
    """Raise where Arrow's safe cast has changed values of `source`."""
    before, after = source.type, made.type
    if pa.types.is_floating(after):
        if pa.types.is_float16(after) and pa.types.is_integer(before):
            _check_round_trip(source, made)
        elif pa.types.is_decimal(before) or (pa.types.is_floating(before) and before.bit_width > after.bit_width):
            _check_finite(source, made)
    elif pa.types.is_date(after) and pa.types.is_timestamp(before):
        _check_round_trip(source.cast(pa.timestamp(before.unit)), made)  # Without its zone: the instant.
    elif pa.types.is_decimal(after) and pa.types.is_floating(before):
        _check_round_trip(source, made)
    elif pa.types.is_nested(after) and pa.types.is_nested(before):
        for inner, made_inner in _inner_pairs(source, made):
            if inner.type != made_inner.type and inner.null_count < len(inner):
                _refuse_conversion(inner.type, made_inner.type, exact)
                _check_lossless(inner, made_inner, exact)


def _inner_pairs(source: Any, made: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each inner array of nested values with the array it was cast to."""
    if pa.types.is_struct(source.type):
        parts = dict(zip((field.name for field in source.type), inner_arrays(source), strict=True))
        for field, child in zip(made.type, inner_arrays(made), strict=True):
            if field.name in parts:
                yield parts[field.name], child
    else:
        yield from zip(inner_arrays(source), inner_arrays(made), strict=True)


def _check_finite(source: Any, made: Any) -> None:
    infinite = np.isinf(made.to_numpy(zero_copy_only=False))
    if infinite.any():
        if pa.types.is_floating(source.type):
            infinite &= np.isfinite(source.to_numpy(zero_copy_only=False))
        _refuse(source, made, infinite)


def _check_round_trip(source: Any, made: Any) -> None:
    """Raise if casting the result back does not give the source."""
    back = made.cast(source.type, safe=False)
    if not back.equals(source):
        _refuse(source, made, pc.fill_null(pc.not_equal(back, source), False).to_numpy(zero_copy_only=False))


def _refuse(source: Any, made: Any, lost: npt.NDArray[np.bool_]) -> None:
    places = np.flatnonzero(lost)
    if len(places):
        value, other = (_format(array[int(places[0])]) for array in (source, made))
        raise ValueError(f"{value} would become {other}. Convert the values in the operator, or declare another type")


def _format(value: Any) -> str:
    return str(value.cast(pa.string())) if pa.types.is_temporal(value.type) else str(value.as_py())
