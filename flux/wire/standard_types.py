"""Types of the standard library, numpy, pandas and Arrow that state may hold without naming them in `state_types`.

By exact type: a derived class may hold more, so the user names or encodes it. Each type has a word for the wire, a
function to a plain value, and one back. The latter gets data of a peer: it returns a value of the type, or raises.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from .frames import BadFrame, format_value

FACTORIES: dict[str, Callable[[], Any]] = {
    kind.__name__: kind
    for kind in (bool, bytes, dict, float, int, list, set, str, tuple, Counter, Decimal, OrderedDict, deque)
}


class UnknownValue(Exception):
    """A value of a type that state cannot hold; `why` adds a reason, and `advice` replaces the usual one.

    In the advice HOOKS stands for the sentence about `encode_state` and `decode_state`.
    """

    def __init__(self, value: Any, why: str = "", advice: str = "") -> None:
        super().__init__(why)
        self.value = value
        self.why = why
        self.advice = advice


# --- of the standard library ------------------------------------------------------------------------


def _zone(zone: tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    if type(zone) is timezone:
        # The arguments it was made with: nothing else shows whether a name was given.
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return [_span(offset), *name]
    raise UnknownValue(zone, "the time zones of state are zoneinfo.ZoneInfo and datetime.timezone")


def _to_zone(plain: Any) -> tzinfo | None:
    if plain is None:
        return None
    if isinstance(plain, str):
        return ZoneInfo(plain)
    span, *name = plain
    return timezone(_to_span(span), *name)


def _span(span: timedelta) -> list[int]:
    return [span.days, span.seconds, span.microseconds]


def _to_span(plain: Any) -> timedelta:
    days, seconds, microseconds = map(whole, plain)
    return timedelta(days, seconds, microseconds)


def _clock(at: datetime | time) -> list[Any]:
    return [at.hour, at.minute, at.second, at.microsecond, at.fold, _zone(at.tzinfo)]


def _to_datetime(plain: Any) -> datetime:
    year, month, day, *clock = plain
    hour, minute, second, microsecond, fold, zone = clock
    return datetime(year, month, day, hour, minute, second, microsecond, _to_zone(zone), fold=fold)


def _to_time(plain: Any) -> time:
    hour, minute, second, microsecond, fold, zone = plain
    return time(hour, minute, second, microsecond, _to_zone(zone), fold=fold)


def whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, got {format_value(value)}")
    return value


def text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"expected text, got {format_value(value)}")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise TypeError(f"expected bytes, got {format_value(value)}")
    return value


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _of_one(batch: Any) -> Any:
    """Return the column of a record batch or a table with one."""
    [column] = batch.columns
    return column


def _scalar(value: Any) -> Any:
    try:
        return pa.record_batch([pa.array([value], value.type)], [""])
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UnknownValue(value, f"Arrow makes no array of it: {error}") from error


_Both = tuple[Callable[[Any], Any], Callable[[Any], Any]]
# By exact type: its word on the wire, the function to a plain value, and the one back.
_STANDARD: dict[type[Any], tuple[str, *_Both]] = {
    set: ("set", list, set),
    frozenset: ("frozenset", list, frozenset),
    deque: ("deque", lambda v: [list(v), v.maxlen], lambda p: deque(*p)),
    Counter: ("Counter", dict, Counter),
    OrderedDict: ("OrderedDict", dict, OrderedDict),
    datetime: ("datetime", lambda v: [v.year, v.month, v.day, *_clock(v)], _to_datetime),
    date: ("date", lambda v: v.toordinal(), date.fromordinal),
    time: ("time", _clock, _to_time),
    timedelta: ("timedelta", _span, _to_span),
    Decimal: ("Decimal", str, lambda p: Decimal(text(p))),
    Fraction: ("Fraction", lambda v: [v.numerator, v.denominator], lambda p: Fraction(*map(whole, p))),
    UUID: ("UUID", lambda v: v.bytes, lambda p: UUID(bytes=p)),
    bytearray: ("bytearray", bytes, lambda p: bytearray(_bytes(p))),
    complex: ("complex", lambda v: [v.real, v.imag], lambda p: complex(*p)),
    PosixPath: ("Path", str, lambda p: PosixPath(text(p))),
    PurePosixPath: ("PurePath", str, lambda p: PurePosixPath(text(p))),
    ZoneInfo: ("zone", _zone, _to_zone),
    timezone: ("zone", _zone, _to_zone),
    # Integers that are too large for msgpack.
    int: ("int", _int_bytes, lambda p: int.from_bytes(p, "little", signed=True)),
    # In an array they would lose trailing zeros, and by `str` too.
    np.str_: ("numpy.str_", str.__str__, lambda p: np.str_(text(p))),
    np.bytes_: ("numpy.bytes_", bytes, lambda p: np.bytes_(_bytes(p))),
}
# Arrow has a class for each type of values, all derived from these.
_OF_ARROW: dict[str, tuple[type[Any], *_Both]] = {
    "arrow.Array": (pa.Array, lambda v: pa.record_batch([v], [""]), _of_one),
    "arrow.ChunkedArray": (pa.ChunkedArray, lambda v: pa.table([v], [""]), _of_one),
    "arrow.Scalar": (pa.Scalar, _scalar, lambda p: _of_one(p)[0]),
}
_FROM_PLAIN = {name: back for name, _, back in _STANDARD.values()} | {name: of[2] for name, of in _OF_ARROW.items()}


# --- of pandas ----------------------------------------------------------------------------------------


def _timestamp(value: Any) -> list[Any]:
    # pandas makes a zone of pytz from a name, and makes it again from the same name.
    name = getattr(value.tzinfo, "zone", None)
    return [value.to_numpy(), name, _zone(value.tzinfo) if name is None else None]


def _to_timestamp(plain: Any, pandas: Any) -> Any:
    instant, name, zone = plain
    made = pandas.Timestamp(_numpy(instant, np.datetime64))
    if name is None and zone is None:
        return made
    if name is not None:
        ZoneInfo(text(name))  # Raises if it is not a zone. pandas would open any file of that name.
    return made.tz_localize("UTC").tz_convert(_to_zone(zone) if name is None else name)


def _numpy(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected a {kind.__name__}, got {format_value(value)}")
    return value


# Rows have them where types of the standard library are too coarse. Each has its functions to a plain value and back.
_OF_PANDAS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "pandas.Timestamp": (_timestamp, _to_timestamp),
    "pandas.Timedelta": (lambda v: v.to_numpy(), lambda p, pandas: pandas.Timedelta(_numpy(p, np.timedelta64))),
    "pandas.NaTType": (lambda v: None, lambda p, pandas: pandas.NaT),
}


def to_standard(value: Any) -> tuple[str, Any] | None:
    """Return a value's word and its plain value; None if its type is not listed here."""
    kind = type(value)
    if kind in _STANDARD:
        name, take, _ = _STANDARD[kind]
        return name, take(value)
    if kind.__module__.startswith("pandas.") and (word := f"pandas.{kind.__name__}") in _OF_PANDAS:
        return word, _OF_PANDAS[word][0](value)
    return next(((word, take(value)) for word, (of, take, _) in _OF_ARROW.items() if isinstance(value, of)), None)


def is_standard(word: Any) -> bool:
    return word in _FROM_PLAIN or word in _OF_PANDAS


def from_standard(word: str, plain: Any) -> Any:
    """Return the value for which `to_standard` returned this."""
    return _to_pandas(word, plain) if word in _OF_PANDAS else _FROM_PLAIN[word](plain)


def _to_pandas(word: str, plain: Any) -> Any:
    try:
        import pandas  # An optional dependency: only state with such values needs it.
    except ImportError as error:
        raise BadFrame(f"state with a {word}, and pandas is not installed here: install it everywhere") from error
    return _OF_PANDAS[word][1](plain, pandas)
