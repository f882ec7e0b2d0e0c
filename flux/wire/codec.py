"""Dataclasses as plain values, for the wire, for journals and for recordings.

A `Codec` knows the dataclasses of one conversation. Each becomes a map with its name under "$". Only classes that the
codec knows are ever built again, and only with fields of the types they declare: readers rely on what they are given.
What it cannot read is a `BadFrame` that says what was expected and what it got.

Bodies stay out: the caller says what stands for one. On the wire they travel after the header; in a recording a number
stands for each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, NewType, TypeAlias, get_args, get_origin, get_type_hints

from ..protocols import change_messages, messages
from .frames import BadFrame, BadValues, format_value

Word = NewType("Word", int)  # An integer of 64 bits without a sign, such as a digest.

BodyOf: TypeAlias = Callable[[Any], Any]
_ValueReader: TypeAlias = Callable[[Any, BodyOf], Any]
_BulkCheck: TypeAlias = Callable[[tuple[Any, ...]], bool]

_INT_MAX = 2**63 - 1  # Positions are columns of int64 elsewhere.


def _no_body(body: Any) -> None:
    """For conversations without bodies."""


class Codec:
    """Reads and writes values of these dataclasses and of what their fields hold.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Load:
    ...     rows: int
    >>> codec = Codec([Load])
    >>> codec.to_plain(Load(7))
    {'$': 'Load', 'rows': 7}
    >>> codec.from_plain({'$': 'Load', 'rows': 7})
    Load(rows=7)
    """

    def __init__(self, classes: Iterable[type[Any]]) -> None:
        self.classes: dict[str, type[Any]] = {cls.__name__: cls for cls in classes}
        self._fields = {name: _writable_fields_of(cls) for name, cls in self.classes.items()}
        self._readers = {name: self._readers_of(cls) for name, cls in self.classes.items()}
        self._read_any = self._message_reader(frozenset(self.classes))

    def to_plain(self, value: Any, body: BodyOf = _no_body) -> Any:
        """Return `value` in msgpack types; `body` gives what stands for a body."""
        fields = self._fields.get(type(value).__name__)
        if fields is not None:
            plain = {"$": type(value).__name__}
            for name, is_body, is_plain in fields:
                each = getattr(value, name)
                plain[name] = each if is_plain else body(each) if is_body else self.to_plain(each, body)
            return plain
        if isinstance(value, tuple):
            return [self.to_plain(item, body) for item in value]
        if isinstance(value, frozenset):
            return {"set": sorted(value)}
        return value

    def from_plain(self, plain: Any, body: BodyOf = _no_body) -> Any:
        """Return the message that `to_plain` was given; `body` turns what stands for a body into one."""
        return self._read_any(plain, body)

    def _message_reader(self, names: frozenset[str]) -> _ValueReader:
        def read(plain: Any, body: BodyOf) -> Any:
            if not isinstance(plain, dict):
                raise BadFrame(f"expected a message, got {format_value(plain)}")
            name = plain.get("$")
            if not isinstance(name, str) or name not in names:
                raise BadFrame(f"no message is called {format_value(name)} here; expected {_listed_names(names)}")
            readers = self._readers[name]
            if len(plain) != len(readers) + 1 or not all(field in plain for field in readers):
                fields = ", ".join(readers) or "no fields"
                raise BadFrame(f"{name} has the fields {fields}; got {format_value(list(plain))}")
            values = {}
            for field, reader in readers.items():
                try:
                    values[field] = reader(plain[field], body)
                except BadValues:
                    raise  # The frame is whole; what is in its rows is not for the reader of messages.
                except BadFrame as error:
                    raise BadFrame(f"{name}.{field}: {error}") from None
            return self.classes[name](**values)

        return read

    def _readers_of(self, cls: type[Any]) -> dict[str, _ValueReader]:
        hints = get_type_hints(cls)
        return {name: _read_body if is_body else self._reader(hints[name]) for name, is_body in _fields_of(cls)}

    def _reader(self, hint: Any) -> _ValueReader:
        """Return what reads a value of the type `hint`."""
        origin, inner = get_origin(hint), get_args(hint)
        if hint in _SIMPLE:
            return _SIMPLE[hint]
        if origin is UnionType and NoneType in inner:
            rest = [kind for kind in inner if kind is not NoneType]
            return _optional_reader(self._reader(rest[0]))
        if origin is frozenset:
            return _set_reader(self._reader(inner[0]))
        if origin is dict and inner == (str, Any):
            return _read_map
        if origin is dict:
            return _dict_reader(self._reader(inner[0]), self._reader(inner[1]))
        if origin is tuple and inner[-1] is Ellipsis:
            return _tuple_reader(self._reader(inner[0]), _bulk_check(inner[0]))
        if origin is tuple:
            return _fixed_tuple_reader(tuple(map(self._reader, inner)))
        kinds = inner if origin is UnionType else (hint,)
        known = all(self.classes.get(kind.__name__) is kind for kind in kinds)
        assert known, f"the wire cannot carry a field of type {hint}"
        return self._message_reader(frozenset(kind.__name__ for kind in kinds))


def subclasses_in(namespace: Mapping[str, Any], base: type[Any]) -> tuple[type[Any], ...]:
    """Return the classes of a module that derive from `base`.

    `base.__subclasses__()` has each slotted dataclass twice: as it was written, and as the decorator made it.
    """
    kinds = [value for value in namespace.values() if isinstance(value, type) and issubclass(value, base)]
    return tuple(kind for kind in kinds if kind is not base)


def read_frame(codec: Codec, kind: str, header: dict[str, Any], classes: tuple[type[Any], ...] = ()) -> Any:
    """Return the message in a frame of this kind, one of `classes` if given; `BadFrame` if it is anything else."""
    if header.get("kind") != kind:
        raise BadFrame(f"expected a frame of kind {kind!r}, got {format_value(header.get('kind'))}")
    message = codec.from_plain(header.get("m"))
    if classes and not isinstance(message, classes):
        known = sorted(name for name, cls in codec.classes.items() if issubclass(cls, classes))
        raise BadFrame(f"expected {' or '.join(known)}, got {type(message).__name__}")
    return message


def _writable_fields_of(cls: type[Any]) -> list[tuple[str, bool, bool]]:
    """The fields with whether each is a body, and whether its values are plain already."""
    hints = get_type_hints(cls)
    return [(name, is_body, not is_body and _is_plain(hints[name])) for name, is_body in _fields_of(cls)]


def _is_plain(hint: Any) -> bool:
    """Whether values of this type are plain: numbers, texts, None, and tuples of such values."""
    if get_origin(hint) in (tuple, UnionType):
        return all(map(_is_plain, get_args(hint)))
    return hint in _SIMPLE or hint in (NoneType, Ellipsis)


def _fields_of(cls: type[Any]) -> list[tuple[str, bool]]:
    return [(field.name, "body" in field.metadata) for field in dataclasses.fields(cls)]


def _listed_names(names: frozenset[str]) -> str:
    return format_value(" or ".join(sorted(names)))


def _read_body(plain: Any, body: BodyOf) -> Any:
    return body(plain)


def _read_int(plain: Any, body: BodyOf) -> int:
    if type(plain) is not int or not -_INT_MAX <= plain <= _INT_MAX:
        raise BadFrame(f"expected an integer of 64 bits, got {format_value(plain)}")
    return plain


def _read_word(plain: Any, body: BodyOf) -> Word:
    if type(plain) is not int or not 0 <= plain < 2**64:
        raise BadFrame(f"expected an integer of 64 bits without a sign, got {format_value(plain)}")
    return Word(plain)


def _read_float(plain: Any, body: BodyOf) -> float:
    if type(plain) not in (float, int):
        raise BadFrame(f"expected a number, got {format_value(plain)}")
    return float(plain)


def _read_bool(plain: Any, body: BodyOf) -> bool:
    if type(plain) is not bool:
        raise BadFrame(f"expected true or false, got {format_value(plain)}")
    return plain


def _read_str(plain: Any, body: BodyOf) -> str:
    if type(plain) is not str:
        raise BadFrame(f"expected text, got {format_value(plain)}")
    return plain


def _read_map(plain: Any, body: BodyOf) -> dict[str, Any]:
    if not isinstance(plain, dict) or not all(type(key) is str for key in plain):
        raise BadFrame(f"expected a map with texts as keys, got {format_value(plain)}")
    return plain


def _read_bytes(plain: Any, body: BodyOf) -> bytes:
    if type(plain) is not bytes:
        raise BadFrame(f"expected bytes, got {format_value(plain)}")
    return plain


_SIMPLE: dict[Any, _ValueReader] = {
    int: _read_int,
    Word: _read_word,
    float: _read_float,
    bool: _read_bool,
    str: _read_str,
    bytes: _read_bytes,
}


def _optional_reader(inner: _ValueReader) -> _ValueReader:
    def read(plain: Any, body: BodyOf) -> Any:
        return None if plain is None else inner(plain, body)

    return read


def _dict_reader(key: _ValueReader, value: _ValueReader) -> _ValueReader:
    def read(plain: Any, body: BodyOf) -> dict[Any, Any]:
        if not isinstance(plain, dict):
            raise BadFrame(f"expected a map, got {format_value(plain)}")
        return {key(name, body): value(each, body) for name, each in plain.items()}

    return read


def _tuple_reader(item: _ValueReader, are_valid: _BulkCheck | None) -> _ValueReader:
    """Return what reads a tuple of any length; items that `are_valid` as they are need not be read one by one."""

    def read(plain: Any, body: BodyOf) -> tuple[Any, ...]:
        if are_valid is not None and type(plain) is tuple and plain and are_valid(plain):
            return plain
        return tuple([item(each, body) for each in _listed(plain)])

    return read


def _bulk_check(item: Any) -> _BulkCheck | None:
    """Return what checks many items of this type at once, if it is simple, or a tuple of a few simple types.

    What it does not accept may be valid yet: the reader of single items decides, and says what is wrong.
    """
    if get_origin(item) is not tuple:
        return _BULK.get(item)
    columns = [_BULK.get(kind) for kind in get_args(item)]

    def are_valid(items: tuple[Any, ...]) -> bool:
        if set(map(type, items)) != {tuple} or set(map(len, items)) != {len(columns)}:
            return False
        checked = zip(columns, zip(*items, strict=True), strict=True)
        return all(check is not None and check(values) for check, values in checked)

    return are_valid if all(columns) else None


def _are_ints(values: tuple[Any, ...]) -> bool:
    return set(map(type, values)) == {int} and min(values) >= -_INT_MAX and max(values) <= _INT_MAX


def _are_floats(values: tuple[Any, ...]) -> bool:
    return set(map(type, values)) == {float}


def _are_texts(values: tuple[Any, ...]) -> bool:
    return set(map(type, values)) == {str}


_BULK: dict[Any, _BulkCheck] = {int: _are_ints, float: _are_floats, str: _are_texts}


def _fixed_tuple_reader(items: tuple[_ValueReader, ...]) -> _ValueReader:
    def read(plain: Any, body: BodyOf) -> tuple[Any, ...]:
        if len(_listed(plain)) != len(items):
            raise BadFrame(f"expected {len(items)} values, got {format_value(plain)}")
        return tuple([item(each, body) for item, each in zip(items, plain, strict=True)])

    return read


def _set_reader(item: _ValueReader) -> _ValueReader:
    def read(plain: Any, body: BodyOf) -> frozenset[Any]:
        if not isinstance(plain, dict) or list(plain) != ["set"]:
            raise BadFrame(f"expected a set, got {format_value(plain)}")
        return frozenset([item(each, body) for each in _listed(plain["set"])])

    return read


def _listed(plain: Any) -> Any:
    if not isinstance(plain, list | tuple):
        raise BadFrame(f"expected a list, got {format_value(plain)}")
    return plain


# What the machines send each other, and their effects.
PROTOCOL_CLASSES = [
    value
    for value in (vars(messages) | vars(change_messages)).values()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
]
_PROTOCOL = Codec(PROTOCOL_CLASSES)
to_plain = _PROTOCOL.to_plain
from_plain = _PROTOCOL.from_plain
