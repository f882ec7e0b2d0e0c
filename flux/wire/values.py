"""Values: what state may hold beside plain values, arrays and tables, as plain values; and back, without pickle.

Some types of the standard library travel as they are: sets, dates and times, decimals and the like; and times of
pandas. Classes of the user's travel if the operator names them (`state_types`): dataclasses, named tuples, enums, and
classes whose instances are their attributes. For everything else an operator may have `encode_state` and
`decode_state`. All three together are its `Vocabulary`, and bytes that came from a peer make nothing that is not in it.

An instance is made without its `__init__`, because what came is a state in which it was, and not how it began.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from types import MemberDescriptorType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np

from ..batch import ROW_MODULE, row_type
from ..errors import PlanError, StateError
from .frames import BadFrame, shown

_HEAP_TYPE = 1 << 9  # Of a class that was made by a `class` statement.
_FACTORIES: dict[str, Callable[[], Any]] = {
    kind.__name__: kind for kind in (bool, bytes, dict, float, int, list, set, str, tuple)
}


class Unknown(Exception):
    """A value that is in nobody's vocabulary; `why` there is more to say about it, and `advice` other than the usual.

    In the advice HOOKS stands for what there is to say of `encode_state` and `decode_state`.
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
        offset = zone.utcoffset(None)
        return [_span(offset), zone.tzname(None)]
    raise Unknown(zone, "of a time zone, zoneinfo.ZoneInfo and datetime.timezone are known")


def _to_zone(plain: Any) -> tzinfo | None:
    if plain is None:
        return None
    if isinstance(plain, str):
        return ZoneInfo(plain)
    span, name = plain
    zone = timezone(_to_span(span), name)
    return UTC if zone == UTC and name == "UTC" else zone


def _span(span: timedelta) -> list[int]:
    return [span.days, span.seconds, span.microseconds]


def _to_span(plain: Any) -> timedelta:
    days, seconds, microseconds = map(_whole, plain)
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


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, got {shown(value)}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"expected text, got {shown(value)}")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise TypeError(f"expected bytes, got {shown(value)}")
    return value


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _default_factory(value: defaultdict[Any, Any]) -> str | None:
    factory = value.default_factory
    if factory is None:
        return None
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise Unknown(value, f"of a defaultdict the factory is one of {', '.join(_FACTORIES)}")
    return name


def _to_defaultdict(plain: Any) -> defaultdict[Any, Any]:
    name, entries = plain
    return defaultdict(None if name is None else _FACTORIES[name], entries)


_Both = tuple[Callable[[Any], Any], Callable[[Any], Any]]
# By exact type: what it is called on the wire, how it becomes a plain value, and how that becomes it.
_STANDARD: dict[type[Any], tuple[str, *_Both]] = {
    set: ("set", list, set),
    frozenset: ("frozenset", list, frozenset),
    deque: ("deque", lambda v: [list(v), v.maxlen], lambda p: deque(*p)),
    Counter: ("Counter", dict, Counter),
    OrderedDict: ("OrderedDict", dict, OrderedDict),
    defaultdict: ("defaultdict", lambda v: [_default_factory(v), dict(v)], _to_defaultdict),
    datetime: ("datetime", lambda v: [v.year, v.month, v.day, *_clock(v)], _to_datetime),
    date: ("date", lambda v: v.toordinal(), date.fromordinal),
    time: ("time", _clock, _to_time),
    timedelta: ("timedelta", _span, _to_span),
    Decimal: ("Decimal", str, lambda p: Decimal(_text(p))),
    Fraction: ("Fraction", lambda v: [v.numerator, v.denominator], lambda p: Fraction(*map(_whole, p))),
    UUID: ("UUID", lambda v: v.bytes, lambda p: UUID(bytes=p)),
    bytearray: ("bytearray", bytes, lambda p: bytearray(_bytes(p))),
    complex: ("complex", lambda v: [v.real, v.imag], lambda p: complex(*p)),
    # Those that msgpack has no room for.
    int: ("int", _int_bytes, lambda p: int.from_bytes(p, "little", signed=True)),
}
_FROM_STANDARD = {name: made for name, _, made in _STANDARD.values()}
_ROW = "row"  # What `batch.rows()` yields: a row that an operator keeps comes back as one.


# --- of pandas ----------------------------------------------------------------------------------------


def _timestamp(value: Any) -> list[Any]:
    # pandas makes zones of pytz of names, and so it does again.
    name = getattr(value.tzinfo, "zone", None)
    return [value.to_numpy(), name, _zone(value.tzinfo) if name is None else None]


def _to_timestamp(plain: Any, pandas: Any) -> Any:
    instant, name, zone = plain
    made = pandas.Timestamp(_numpy(instant, np.datetime64))
    if name is None and zone is None:
        return made
    if name is not None:
        ZoneInfo(_text(name))  # Raises for what is no zone. pandas would open any file of that name.
    return made.tz_localize("UTC").tz_convert(_to_zone(zone) if name is None else name)


def _numpy(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected a {kind.__name__}, got {shown(value)}")
    return value


# Rows have them where the standard library has nothing so fine. Of each: what it is made of, and what makes it.
_OF_PANDAS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "pandas.Timestamp": (_timestamp, _to_timestamp),
    "pandas.Timedelta": (lambda v: v.to_numpy(), lambda p, pandas: pandas.Timedelta(_numpy(p, np.timedelta64))),
    "pandas.NaTType": (lambda v: None, lambda p, pandas: pandas.NaT),
}


def _to_pandas(word: str, plain: Any) -> Any:
    try:
        import pandas  # Not needed by those who do not keep such values.
    except ImportError as error:
        raise BadFrame(f"state with a {word}, and pandas is not installed here: install it everywhere") from error
    return _OF_PANDAS[word][1](plain, pandas)


# --- of the user's ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Class:
    """How instances of one class travel: as their fields, or as a dict of whatever attributes they have."""

    kind: type[Any]
    fields: tuple[str, ...] | None
    slots: tuple[str, ...] = ()

    def take(self, value: Any) -> Any:
        if isinstance(value, Flag):
            return value.value
        if isinstance(value, Enum):
            return value.name
        held: dict[str, Any] = getattr(value, "__dict__", {})
        if isinstance(value, tuple):
            if held:
                beside = f"it has the attributes {', '.join(held)} beside its fields, which named tuples have not"
                raise Unknown(value, beside)
            return list(value)
        if self.slots:
            held = held | {name: getattr(value, name) for name in self.slots if hasattr(value, name)}
        # What was never set stays so; what the class does not declare comes along.
        if self.fields is None or len(held) != len(self.fields) or not all(map(held.__contains__, self.fields)):
            return dict(held)
        return [held[name] for name in self.fields]

    def make(self, plain: Any) -> Any:
        kind = self.kind
        if issubclass(kind, Flag):
            return kind(_whole(plain))
        if issubclass(kind, Enum):
            return kind[_text(plain)]
        if issubclass(kind, tuple):
            return tuple.__new__(kind, self._by_name(plain).values())
        made = object.__new__(kind)
        for name, value in self._by_name(plain).items():
            object.__setattr__(made, name, value)
        return made

    def _by_name(self, plain: Any) -> dict[str, Any]:
        if type(plain) is dict and not issubclass(self.kind, tuple):
            return {_text(name): value for name, value in plain.items()}
        if type(plain) is not list or self.fields is None or len(plain) != len(self.fields):
            fields = "attributes" if self.fields is None else f"the fields {', '.join(self.fields)}"
            raise BadFrame(f"{self.kind.__qualname__} has {fields}; {shown(plain)} came")
        return dict(zip(self.fields, plain, strict=True))


def _class_of(kind: Any, whose: str) -> _Class:
    bases = kind.__mro__[:-1] if isinstance(kind, type) else ()
    if bases and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Class(kind, tuple(kind._fields))
    if bases and issubclass(kind, Enum):
        return _Class(kind, ())
    # Instances of what is written in C, and of what is derived from it, hold more than their attributes.
    if bases and all(base.__flags__ & _HEAP_TYPE for base in bases):
        slots = [name for base in bases for name, of in vars(base).items() if isinstance(of, MemberDescriptorType)]
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else None
        return _Class(kind, None if fields is None else tuple(field.name for field in fields), tuple(slots))
    raise PlanError(
        f"{whose}: state_types holds dataclasses, named tuples, enums and classes whose instances are their "
        f"attributes, and not derived from dict, list and the like; {kind!r} is none of them. Leave it out, and define "
        "the static methods encode_state and decode_state"
    )


class Vocabulary:
    """What the state of one operator may be made of, beside plain values, arrays and tables."""

    def __init__(
        self,
        types: tuple[Any, ...] = (),
        encode: Callable[[Any], Any] | None = None,
        decode: Callable[[Any], Any] | None = None,
        whose: str = "",
    ) -> None:
        self._classes = {kind: _class_of(kind, whose) for kind in types}
        self._names = {kind.__qualname__: made for kind, made in self._classes.items()}
        self._encode, self._decode, self._whose = encode, decode, whose
        if len(self._names) != len(self._classes):
            raise PlanError(
                f"{whose}: two classes of state_types have one name: {', '.join(k.__qualname__ for k in types)}"
            )

    @classmethod
    def of(cls, operator: type[Any], whose: str) -> Vocabulary:
        """What an operator says of its state: `state_types`, `encode_state` and `decode_state`."""
        types = tuple(getattr(operator, "state_types", ()))
        hooks = [_hook(operator, name, whose) for name in ("encode_state", "decode_state")]
        if (hooks[0] is None) != (hooks[1] is None):
            raise PlanError(f"{whose}: encode_state and decode_state come together; define both")
        return cls(types, hooks[0], hooks[1], whose) if types or hooks[0] else PLAIN

    def __bool__(self) -> bool:
        return self is not PLAIN

    def to_plain(self, value: Any) -> tuple[str, Any]:
        """A value's word and what it is made of, which may be in need of words itself."""
        kind = type(value)
        if kind in _STANDARD:
            name, take, _ = _STANDARD[kind]
            return name, take(value)
        if kind in self._classes:
            return f".{kind.__qualname__}", self._classes[kind].take(value)
        if kind.__module__.startswith("pandas.") and (word := f"pandas.{kind.__name__}") in _OF_PANDAS:
            return word, _OF_PANDAS[word][0](value)
        if kind.__module__ == ROW_MODULE and isinstance(value, tuple):
            return _ROW, [list(kind._fields), list(value)]
        if self._encode is not None:
            plain = self._encoded(value, self._encode)
            if plain is not NotImplemented:
                return "", plain
        raise Unknown(value)

    def _encoded(self, value: Any, encode: Callable[[Any], Any]) -> Any:
        """What `encode_state` makes of a value, if `decode_state` makes something of it again."""
        assert self._decode is not None, "they come together"
        try:
            plain = encode(value)
        except Exception as error:
            raise Unknown(value, f"encode_state raised {type(error).__name__}: {error}", "Mend encode_state") from error
        if plain is not NotImplemented:
            try:
                self._decode(plain)
            except Exception as error:
                why = f"decode_state, given {plain!r:.100} for it, raised {type(error).__name__}: {error}"
                raise Unknown(value, why, "decode_state must take what encode_state returns") from error
        return plain

    def to_value(self, word: Any, plain: Any) -> Any:
        """The value of which `to_plain` gave this; `BadFrame` if there is no such word."""
        if word in _FROM_STANDARD:
            return _FROM_STANDARD[word](plain)
        if word in _OF_PANDAS:
            return _to_pandas(word, plain)
        if word == _ROW:
            names, values = plain
            return row_type(tuple(map(_text, names)))._make(values)
        if word == "" and self._decode is not None:
            try:
                return self._decode(plain)
            except Exception as error:
                raise StateError(
                    f"{self._whose}: decode_state, given {plain!r:.100}, raised {type(error).__name__}: {error}. Where "
                    "the state comes from it did not: what it makes of it must be the same in every process"
                ) from error
        named = self._names.get(word[1:]) if isinstance(word, str) and word.startswith(".") else None
        if named is None:
            raise BadFrame(f"state with a {shown(word)}, which the operator here does not name in state_types")
        return named.make(plain)


PLAIN = Vocabulary()


@dataclasses.dataclass(frozen=True, slots=True)
class Spoken:
    """State of one step, in the words of its operator."""

    stage: int
    step: int
    state: Any
    words: Vocabulary


Words = Mapping[tuple[int, int], Vocabulary]  # By stage and step.


def _hook(operator: type[Any], name: str, whose: str) -> Callable[[Any], Any] | None:
    hook: Callable[[Any], Any] | None = getattr(operator, name, None)
    if hook is not None and inspect.isfunction(inspect.getattr_static(operator, name, None)):
        raise PlanError(f"{whose}: {name} is called where there is no instance yet; write @staticmethod in front of it")
    return hook


# --- what to say of a value that cannot be moved ------------------------------------------------------


def cannot_move(unknown: Unknown, state: Any, whose: str) -> StateError:
    """The error that says which value, where in the state it is, and what to do."""
    value, kind = unknown.value, type(unknown.value)
    try:
        text = " ".join(f"{value!r:.200}".split())  # Arrays have lines.
    except Exception:  # It is too deep, or has a repr of its own that raises.
        text = "something that cannot be printed"
    place = _place_of(value, state)
    at = f", at {place}," if place else ""
    why = f" ({unknown.why})" if unknown.why else ""
    hooks = "give the operator static methods encode_state(value), which returns plain state, and decode_state(state), "
    usual = (
        "If it is a dataclass, a named tuple, an enum or an object that is its attributes, name its class in the "
        f"operator: `state_types = ({kind.__name__},)`. Else {hooks}which returns the value"
    )
    advice = unknown.advice.replace("HOOKS", f"{hooks}which returns it") or usual
    return StateError(f"{whose}: {text} of type {kind.__qualname__}{at} cannot be moved to another site{why}. {advice}")


_LOOKED_AT_MAX = 1_000_000


def _place_of(wanted: Any, state: Any) -> str:
    """Where in `state` the value is, as one would write it; empty if it is not found."""
    left: list[tuple[Any, str]] = [(state, "")]
    seen: set[int] = set()
    while left and len(seen) < _LOOKED_AT_MAX:
        value, place = left.pop()
        if value is wanted:
            return place
        if id(value) not in seen:
            seen.add(id(value))
            left.extend(reversed(list(_parts(value, place))))
    return ""


def _parts(value: Any, place: str) -> list[tuple[Any, str]]:
    if isinstance(value, Spoken):
        return [(value.state, place)]
    if isinstance(value, dict) and "states" in value and hasattr(value.get("keys"), "to_pylist"):
        # A piece of what a `KeyedOperator` keeps: one state for each row of a table of keys.
        keys = [tuple(row.values()) for row in value["keys"].to_pylist()]
        return [(each, f"the state of key {key!r}") for key, each in zip(keys, value["states"], strict=False)]
    if isinstance(value, dict):
        keys = [(key, f"{place}, a key") for key in value]
        return [*keys, *((each, f"{place}[{key!r:.60}]") for key, each in value.items())]
    names = list(getattr(value, "_fields", ()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
    if names:
        return [(getattr(value, name, None), f"{place}.{name}") for name in names]
    if isinstance(value, list | tuple | deque):
        return [(each, f"{place}[{i}]") for i, each in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [(each, f"{place}, an element") for each in value]
    if type(value).__flags__ & _HEAP_TYPE and hasattr(value, "__dict__"):
        return [(each, f"{place}.{name}") for name, each in vars(value).items()]
    return []
