"""Values of Spark's types: as a processor uses them, as Flux stores them, and as they are transferred.

A value put into a state is converted by its schema, as in Spark. Reading it returns a value of the declared type: a
decimal has its scale, a `float` 32 bits, a timestamp is a naive local time. Later changes to a list that was put there
do not affect the state. A value that does not fit is an error at once, not when a copy is transferred. Values are
transferred as Arrow columns: nothing is pickled.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections import namedtuple
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row, types

from ...types.errors import PlanError

__all__ = ["Fields", "row_type"]

_WHOLE = {types.ByteType: 8, types.ShortType: 16, types.IntegerType: 32, types.LongType: 64}
_PLAIN = {
    types.BooleanType: (bool, pa.bool_()),
    types.StringType: (str, pa.string()),
    types.VarcharType: (str, pa.string()),
    types.CharType: (str, pa.string()),
    types.DoubleType: (float, pa.float64()),
}
_NONE = type(None)


def _identity(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Kind:
    """The conversions of a type: how its values are stored, packed into Arrow, and unpacked.

    A value of one of the `python` types, within `limits` if there are any, is stored unchanged.
    """

    arrow: Any
    python: tuple[type, ...]
    keep: Callable[[Any], Any]
    pack: Callable[[Any], Any] = _identity
    unpack: Callable[[Any], Any] = _identity
    is_mutable: bool = False
    limits: tuple[int, int] | None = None


def kind_of(kind: Any, owner: str) -> Kind:
    """Return the kind of a Spark type; raise a `PlanError` that names `owner` for one that cannot be stored."""
    for spark, bits in _WHOLE.items():
        if isinstance(kind, spark):
            return _whole(kind, bits)
    for spark, (python, arrow) in _PLAIN.items():
        if isinstance(kind, spark):
            return Kind(arrow, (python,), _exactly(python, kind))
    if isinstance(kind, types.NullType):
        return Kind(pa.int8(), (), _refuse_value)
    if isinstance(kind, types.FloatType):
        return Kind(pa.float32(), (), _float32)
    if isinstance(kind, types.BinaryType):
        return Kind(pa.binary(), (bytes,), lambda value: bytes(_check((bytes, bytearray, memoryview), value, kind)))
    if isinstance(kind, types.DecimalType):
        return _decimal(kind)
    if isinstance(kind, types.DateType):
        date = datetime.date
        return Kind(pa.int32(), (date,), lambda v: date(v.year, v.month, v.day), kind.toInternal, kind.fromInternal)
    if isinstance(kind, types.TimestampType | types.TimestampNTZType | types.DayTimeIntervalType):
        return _in_micros(kind)
    if isinstance(kind, types.ArrayType):
        return _array(kind_of(kind.elementType, owner), kind)
    if isinstance(kind, types.MapType):
        return _map(kind_of(kind.keyType, owner), kind_of(kind.valueType, owner), kind)
    if isinstance(kind, types.StructType):
        return _struct(Fields(kind, owner))
    raise PlanError(f"{owner}: the type {kind.simpleString()} cannot be stored as state under Flux; use another one")


class Fields:
    """The fields of a schema; a value of a state is a tuple of them."""

    __slots__ = ("_limits", "_unchanged_types", "arrow", "is_mutable", "kinds", "names", "owner", "schema")

    def __init__(self, schema: Any, owner: str) -> None:
        self.schema = schema
        self.owner = owner
        self.names: tuple[str, ...] = tuple(schema.names)
        self.kinds = [kind_of(field.dataType, f"{owner}, field {field.name!r}") for field in schema.fields]
        self.arrow = pa.struct([pa.field(f"f{i}", kind.arrow) for i, kind in enumerate(self.kinds)])
        self.is_mutable = any(kind.is_mutable for kind in self.kinds)
        self._limits = [(i, *kind.limits) for i, kind in enumerate(self.kinds) if kind.limits is not None]
        # Types of values known to need no conversion. There are few: each field has one or two.
        self._unchanged_types: set[tuple[type, ...]] = set()

    def keep(self, value: Any) -> tuple[Any, ...]:
        """Return the value as it is stored; raise `TypeError` or `ValueError` if it does not fit."""
        if type(value) is not tuple:
            value = tuple(value)
        value_types = tuple(map(type, value))
        if value_types in self._unchanged_types:
            for i, least, most in self._limits:
                if value[i] is not None and not least <= value[i] <= most:
                    break
            else:
                unchanged: tuple[Any, ...] = value
                return unchanged
        return self._convert(value, value_types)

    def _convert(self, value: tuple[Any, ...], value_types: tuple[type, ...]) -> tuple[Any, ...]:
        if len(value) != len(self.kinds):
            raise ValueError(
                f"{self.owner}: a tuple of {len(self.kinds)} values was expected ({', '.join(self.names)}), "
                f"got {value!r:.100}"
            )
        values = []
        for name, kind, each in zip(self.names, self.kinds, value, strict=True):
            try:
                values.append(None if each is None else kind.keep(_python(each)))
            except (TypeError, ValueError, AttributeError, ArithmeticError, struct.error) as error:
                raise TypeError(f"{self.owner}, field {name!r}: {each!r:.100} does not fit: {error}") from error
        if all(t is _NONE or t in kind.python for t, kind in zip(value_types, self.kinds, strict=True)):
            self._unchanged_types.add(value_types)
        return tuple(values)

    def fresh(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a copy of a stored value that user code may modify."""
        return tuple(
            each if each is None or not kind.is_mutable else kind.keep(each)
            for kind, each in zip(self.kinds, value, strict=True)
        )

    def pack(self, values: Iterable[tuple[Any, ...]]) -> Any:
        """Return stored values as one Arrow array."""
        columns = list(zip(*values, strict=True)) or [()] * len(self.kinds)
        arrays = [
            pa.array([None if each is None else kind.pack(each) for each in column], kind.arrow)
            for kind, column in zip(self.kinds, columns, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow))

    def unpack(self, packed: Any) -> list[tuple[Any, ...]]:
        """Return the values of an array that `pack` has made."""
        columns = [
            [None if each is None else kind.unpack(each) for each in array.to_pylist()]
            for kind, array in zip(self.kinds, packed.flatten(), strict=True)
        ]
        return list(zip(*columns, strict=True))


def _check(python: type | tuple[type, ...], value: Any, kind: Any) -> Any:
    if not isinstance(value, python) or (isinstance(value, bool) and python is not bool):
        raise TypeError(f"{kind.simpleString()} was expected, got {type(value).__name__}")
    return value


def _exactly(python: type, kind: Any) -> Callable[[Any], Any]:
    if python is float:
        return lambda value: float(_check((float, int), value, kind))
    return lambda value: python(_check(python, value, kind))


def _whole(kind: Any, bits: int) -> Kind:
    limits = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def keep(value: Any) -> int:
        if not limits[0] <= _check(int, value, kind) <= limits[1]:
            raise ValueError(f"{kind.simpleString()} has {bits} bits")
        return int(value)

    return Kind(pa.int64(), (int,), keep, limits=limits)


def _refuse_value(value: Any) -> Any:
    raise TypeError(f"void holds nothing but null, got {type(value).__name__}")


def _float32(value: Any) -> float:
    return float(np.float32(_check((float, int), value, types.FloatType())))


def _decimal(kind: Any) -> Kind:
    unit = decimal.Decimal(1).scaleb(-kind.scale)
    precision = decimal.Context(prec=kind.precision)
    return Kind(
        pa.decimal128(kind.precision, kind.scale),
        (),
        lambda value: decimal.Decimal(_check((decimal.Decimal, int), value, kind)).quantize(unit, context=precision),
    )


def _in_micros(kind: Any) -> Kind:
    return Kind(
        pa.int64(), (), lambda value: kind.fromInternal(kind.toInternal(value)), kind.toInternal, kind.fromInternal
    )


def _array(inner: Kind, kind: Any) -> Kind:
    def each(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda values: [None if value is None else convert(value) for value in values]

    def keep(values: Any) -> Any:
        return each(inner.keep)([_python(value) for value in _check((list, tuple), values, kind)])

    return Kind(pa.list_(inner.arrow), (), keep, each(inner.pack), each(inner.unpack), is_mutable=True)


def _map(keys: Kind, values: Kind, kind: Any) -> Kind:
    def pairs(of_key: Callable[[Any], Any], of_value: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda items: [(of_key(key), None if each is None else of_value(each)) for key, each in items]

    def keep(value: Any) -> Any:
        items = ((_python(key), _python(each)) for key, each in _check(dict, value, kind).items())
        return dict(pairs(keys.keep, values.keep)(items))

    return Kind(
        pa.map_(keys.arrow, values.arrow),
        (),
        keep,
        lambda value: pairs(keys.pack, values.pack)(value.items()),
        lambda items: dict(pairs(keys.unpack, values.unpack)(items)),
        is_mutable=True,
    )


def _struct(fields: Fields) -> Kind:
    make = row_type(fields.names)

    def keep(value: Any) -> Any:
        given = [value.get(name) for name in fields.names] if isinstance(value, dict) else value
        return make(fields.keep(given))

    def unpack(packed: dict[str, Any]) -> Any:
        return make(
            None if each is None else kind.unpack(each)
            for kind, each in zip(fields.kinds, packed.values(), strict=True)
        )

    def pack(value: Any) -> Any:
        packed = [None if each is None else kind.pack(each) for kind, each in zip(fields.kinds, value, strict=True)]
        return {f"f{i}": each for i, each in enumerate(packed)}

    return Kind(fields.arrow, (), keep, pack, unpack, is_mutable=True)


def _python(value: Any) -> Any:
    """Return numpy scalars and pandas times as Python values."""
    if isinstance(value, np.generic):
        return value.item() if not hasattr(value, "astype") or value.dtype.kind not in "mM" else value.astype("O")
    for convert in ("to_pydatetime", "to_pytimedelta"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    return value


@lru_cache(maxsize=256)
def row_type(names: tuple[str, ...]) -> Callable[[Iterable[Any]], Any]:
    """Return a function that makes `pyspark.sql.Row`s with these fields from iterables.

    Rows of a class that knows the fields are made and read several times as fast as rows that each store them. To user
    code they are the same.
    """
    # The getters of a named tuple are the fastest, and work for any tuple.
    getters = namedtuple("getters", [f"f{i}" for i in range(len(names))])  # type: ignore[misc]
    # In Spark, too, a method of Row hides a column of the same name.
    columns = {name: getattr(getters, f"f{i}") for i, name in enumerate(names) if not hasattr(Row, name)}
    row_class = type("Row", (Row,), {"__fields__": list(names), "__module__": "pyspark.sql", **columns})
    return partial(tuple.__new__, row_class)
