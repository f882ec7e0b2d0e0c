"""Messages and effects of the machines as plain values, for the wire and for recordings.

A dataclass of `flux.protocols.messages` becomes a map with its name under "$"; only names known here
are ever built again. Bodies stay out: the caller says what stands for one (on the wire they travel
behind the header; in a recording a number stands for each).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ..protocols import messages

_CLASSES: dict[str, type[Any]] = {
    name: value for name, value in vars(messages).items() if isinstance(value, type) and dataclasses.is_dataclass(value)
}
_FIELDS: dict[str, tuple[tuple[str, bool], ...]] = {
    name: tuple((field.name, "body" in field.metadata) for field in dataclasses.fields(cls))
    for name, cls in _CLASSES.items()
}


def to_plain(value: Any, body: Callable[[Any], Any]) -> Any:
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


def from_plain(plain: Any, body: Callable[[Any], Any]) -> Any:
    """What `to_plain` was given; `body` turns what stands for a body into one."""
    if isinstance(plain, dict):
        if "set" in plain:
            return frozenset(plain["set"])
        cls = _CLASSES.get(plain.get("$", ""))
        if cls is None:
            raise ValueError(f"no message is called {plain.get('$')!r}")
        fields = _FIELDS[cls.__name__]
        if len(plain) != len(fields) + 1 or any(name not in plain for name, _ in fields):
            raise ValueError(f"{cls.__name__} has fields {[name for name, _ in fields]}, got {sorted(plain)}")
        return cls(
            **{name: body(plain[name]) if is_body else from_plain(plain[name], body) for name, is_body in fields}
        )
    if isinstance(plain, list | tuple):
        return tuple(from_plain(item, body) for item in plain)
    return plain
