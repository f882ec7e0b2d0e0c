"""Output rows: the dicts that a row-wise operator emits, and the columns that they become.

They become columns at the end of a batch. By then the operator may have changed a dict that it keeps as its state, or a
list in it. So the values are taken out of each dict at once. Mutable values are copied, if the types of the columns
allow any.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from .error_location import locate

__all__ = ["NotARow", "OutputRows", "keep_rows"]


class NotARow(Exception):
    """The emitted value is not a row, or has other columns."""

    def __init__(self, emitted: Any, names: list[str]) -> None:
        super().__init__(emitted)
        self._emitted, self._names = emitted, names

    def message(self, function: Any) -> str:
        """Return the text of the error for the function that emitted the value."""
        return (
            f"{locate(function)} emitted {self._emitted!r:.200}; expected an iterable of dicts with the keys "
            f"{', '.join(self._names)}. Return (state, [{{...}}, ...])"
        )


class OutputRows:
    """Rows of a schema, of a `PartialSchema`, or with the columns of the first row.

    >>> outputs = OutputRows(None)
    >>> held = {"n": 1, "all": [1]}
    >>> outputs.add(held)
    >>> held["all"].append(2)
    >>> outputs.columns()
    {'n': [1], 'all': [[1]]}
    """

    def __init__(self, schema: Any) -> None:
        self.taken: list[Any] = []
        # A hot loop may skip `add`: a dict of `width` keys that `take` accepts is a row. Call `check` for any other
        # value: it raises the reason.
        self.width: int | None = None
        self.take: Callable[[Any], Any] = self._take_first
        self._names: list[str] = []
        if schema is not None:
            self._expect(list(schema.names), _may_be_changed(schema))

    def _expect(self, names: list[str], may_be_changed: bool) -> None:
        self._names, self.width = names, len(names)
        get = itemgetter(*names) if names else tuple
        self.take = (lambda made: _copy(get(made))) if may_be_changed else get

    def _take_first(self, made: Any) -> Any:
        """Take the first row, which defines the columns, and the rows after it."""
        if self.width is None:
            self._expect(list(made), may_be_changed=True)
        return self.take(made)

    def add(self, made: Any) -> None:
        """Add a row, or raise `NotARow`."""
        self.check(made)
        self.taken.append(self.take(made))

    def check(self, made: Any) -> None:
        """Raise `NotARow` unless `made` is a row."""
        if not isinstance(made, Mapping) or (self.width is not None and made.keys() != set(self._names)):
            raise NotARow(made, self._names) from None

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows as columns."""
        if len(self._names) == 1:
            return {self._names[0]: self.taken}
        return {name: list(map(itemgetter(place), self.taken)) for place, name in enumerate(self._names)}


def keep_rows(schema: Any) -> Callable[[Any], Any]:
    """Return a function that copies a row of a schema, of a `PartialSchema`, or of an unknown schema (None).

    It returns a value that is not a row unchanged: a later check reports the error.

    >>> held = {"n": 1, "all": [1]}
    >>> row = keep_rows(None)(held)
    >>> held["all"].append(2)
    >>> row
    {'n': 1, 'all': [1]}
    """
    return _deep_copy if schema is None or _may_be_changed(schema) else _flat_copy


def _may_be_changed(schema: Any) -> bool:
    return any(map(_can_be_changed, getattr(schema, "schema", schema).types))


@functools.lru_cache(maxsize=1_024)
def _can_be_changed(kind: Any) -> bool:
    """Return whether a value of a column may be mutable: bytes may be a bytearray; null says nothing about a type."""
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(is_bytes or pa.types.is_nested(kind) or pa.types.is_null(kind))


def _flat_copy(row: Any) -> Any:
    return row.copy() if type(row) is dict else dict(row) if isinstance(row, Mapping) else row


def _deep_copy(row: Any) -> Any:
    return _copy(row) if isinstance(row, Mapping) else row


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copy(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_copy, value))  # A struct may be a tuple but not a list.
    if isinstance(value, list | deque):
        return list(map(_copy, value))
    if isinstance(value, memoryview):
        return bytes(value)
    return value.copy() if isinstance(value, np.ndarray | bytearray | set) else value
