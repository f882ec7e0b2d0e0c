"""Messages and effects of the machines as plain values, for the wire and for recordings.

A dataclass of `flux.protocols.messages` becomes a map with its name under "$"; only names known here
are ever built again, and only with fields of the types they declare: a machine believes what it is given.
Bodies stay out: the caller says what stands for one (on the wire they travel behind the header; in a
recording a number stands for each).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import UnionType
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from ..protocols import messages
from .frames import BadFrame, format_value

BodyOf: TypeAlias = Callable[[Any], Any]
_Reader: TypeAlias = Callable[[Any, BodyOf], Any]

_INT_MAX = 2**63 - 1  # Positions are columns of int64 elsewhere.

_CLASSES: dict[str, type[Any]] = {
    name: value for name, value in vars(messages).items() if isinstance(value, type) and dataclasses.is_dataclass(value)
}
_FIELDS: dict[str, tuple[tuple[str, bool], ...]] = {
    name: tuple((field.name, "body" in field.metadata) for field in dataclasses.fields(cls))
    for name, cls in _CLASSES.items()
}


def to_plain(value: Any, body: BodyOf) -> Any:
    """`value` in msgpack types; `body` gives what stands for a body."""
    fields = _FIELDS.get(type(value).__name__)
    if fields is not None:
        plain = {
            name: body(getattr(value, name)) if is_body else to_plain(getattr(value, name), body)
            for name, is_body in fields
        }
        return {"$": type(value).__name__, **plain}
    if isinstance(value, tuple):
        return [to_plain(item, body) for item in value]
    if isinstance(value, frozenset):
        return {"set": sorted(value)}
    return value


def from_plain(plain: Any, body: BodyOf) -> Any:
    """The message that `to_plain` was given; `body` turns what stands for a body into one."""
    return _read_any(plain, body)


def _message_reader(names: frozenset[str]) -> _Reader:
    def read(plain: Any, body: BodyOf) -> Any:
        if not isinstance(plain, dict):
            raise BadFrame(f"expected a message, got {format_value(plain)}")
        name = plain.get("$")
        if not isinstance(name, str) or name not in names:
            raise BadFrame(f"no message is called {format_value(name)} here")
        readers = _READERS[name]
        if len(plain) != len(readers) + 1 or not all(field in plain for field in readers):
            raise BadFrame(f"{name} has the fields {', '.join(readers)}; got {format_value(list(plain))}")
        values = {}
        for field, reader in readers.items():
            try:
                values[field] = reader(plain[field], body)
            except BadFrame as error:
                raise BadFrame(f"{name}.{field}: {error}") from None
        return _CLASSES[name](**values)

    return read


def _read_body(plain: Any, body: BodyOf) -> Any:
    return body(plain)


def _read_int(plain: Any, body: BodyOf) -> int:
    if type(plain) is not int or not -_INT_MAX <= plain <= _INT_MAX:
        raise BadFrame(f"expected an integer of 64 bits, got {format_value(plain)}")
    return plain


def _read_bool(plain: Any, body: BodyOf) -> bool:
    if type(plain) is not bool:
        raise BadFrame(f"expected true or false, got {format_value(plain)}")
    return plain


def _read_str(plain: Any, body: BodyOf) -> str:
    if type(plain) is not str:
        raise BadFrame(f"expected text, got {format_value(plain)}")
    return plain


def _tuple_reader(item: _Reader) -> _Reader:
    def read(plain: Any, body: BodyOf) -> tuple[Any, ...]:
        return tuple([item(each, body) for each in _listed(plain)])

    return read


def _fixed_tuple_reader(items: tuple[_Reader, ...]) -> _Reader:
    def read(plain: Any, body: BodyOf) -> tuple[Any, ...]:
        if len(_listed(plain)) != len(items):
            raise BadFrame(f"expected {len(items)} values, got {format_value(plain)}")
        return tuple([item(each, body) for item, each in zip(items, plain, strict=True)])

    return read


def _set_reader(item: _Reader) -> _Reader:
    def read(plain: Any, body: BodyOf) -> frozenset[Any]:
        if not isinstance(plain, dict) or list(plain) != ["set"]:
            raise BadFrame(f"expected a set, got {format_value(plain)}")
        return frozenset([item(each, body) for each in _listed(plain["set"])])

    return read


def _listed(plain: Any) -> Any:
    if not isinstance(plain, list | tuple):
        raise BadFrame(f"expected a list, got {format_value(plain)}")
    return plain


def _reader(hint: Any) -> _Reader:
    """What reads a value of the type `hint`."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is int:
        return _read_int
    if hint is bool:
        return _read_bool
    if hint is str:
        return _read_str
    if origin is frozenset:
        return _set_reader(_reader(inner[0]))
    if origin is tuple and inner[-1] is Ellipsis:
        return _tuple_reader(_reader(inner[0]))
    if origin is tuple:
        return _fixed_tuple_reader(tuple(map(_reader, inner)))
    kinds = inner if origin is UnionType else (hint,)
    assert all(_CLASSES.get(kind.__name__) is kind for kind in kinds), f"the wire cannot carry a field of type {hint}"
    return _message_reader(frozenset(kind.__name__ for kind in kinds))


def _readers(cls: type[Any]) -> dict[str, _Reader]:
    hints = get_type_hints(cls)
    return {name: _read_body if is_body else _reader(hints[name]) for name, is_body in _FIELDS[cls.__name__]}


_READERS: dict[str, dict[str, _Reader]] = {name: _readers(cls) for name, cls in _CLASSES.items()}
_read_any = _message_reader(frozenset(_CLASSES))
