"""Emitted rows: a row-wise operator's dicts, and the columns that they become.

They become columns when a batch has ended, and by then the operator may have changed a dict that it keeps as its state,
or a list in it. So the values are taken out of each as it comes; those that can be changed are copied, if the columns
are such that there may be any.
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
    """What was emitted is no row, or one of other columns."""

    def __init__(self, made: Any, names: list[str]) -> None:
        super().__init__(made)
        self._made, self._names = made, names

    def told_of(self, function: Any) -> str:
        """What is to be said of the function that emitted it."""
        return (
            f"{locate(function)} emitted {self._made!r:.200}; expected an iterable of dicts with the keys "
            f"{', '.join(self._names)}. Return (state, [{{...}}, ...])"
        )


class OutputRows:
    """Rows of a schema, of what is known of one so far, or of one that the first row tells.

    >>> outputs = Outputs(None)
    >>> held = {"n": 1, "all": [1]}
    >>> outputs.add(held)
    >>> held["all"].append(2)
    >>> outputs.columns()
    {'n': [1], 'all': [[1]]}
    """

    def __init__(self, schema: Any) -> None:
        self.taken: list[Any] = []
        # Who is in a hurry need not call `add`: a dict of `width` keys that it can `take` is a row. What is not must be
        # checked, which tells why.
        self.width: int | None = None
        self.take: Callable[[Any], Any] = self._take_first
        self._names: list[str] = []
        if schema is not None:
            self._expect(list(schema.names), _may_be_changed(schema))

    def _expect(self, names: list[str], may_be_changed: bool) -> None:
        self._names, self.width = names, len(names)
        get = itemgetter(*names) if names else tuple
        self.take = (lambda made: _copied(get(made))) if may_be_changed else get

    def _take_first(self, made: Any) -> Any:
        """Take what tells the columns, and what follows it."""
        if self.width is None:
            self._expect(list(made), may_be_changed=True)
        return self.take(made)

    def add(self, made: Any) -> None:
        """Take in a row, or raise `NotARow`."""
        self.check(made)
        self.taken.append(self.take(made))

    def check(self, made: Any) -> None:
        """Raise `NotARow` unless it is a row."""
        if not isinstance(made, Mapping) or (self.width is not None and made.keys() != set(self._names)):
            raise NotARow(made, self._names) from None

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows as columns."""
        if len(self._names) == 1:
            return {self._names[0]: self.taken}
        return {name: list(map(itemgetter(place), self.taken)) for place, name in enumerate(self._names)}


def keep_rows(schema: Any) -> Callable[[Any], Any]:
    """What makes a copy of a row of a schema, of what is known of one so far (a `Learning`), or of one not known.

    What is no row stays what it is: an error, for whoever looks at it.

    >>> held = {"n": 1, "all": [1]}
    >>> row = keeping(None)(held)
    >>> held["all"].append(2)
    >>> row
    {'n': 1, 'all': [1]}
    """
    return _deep if schema is None or _may_be_changed(schema) else _flat


def _may_be_changed(schema: Any) -> bool:
    return any(map(_can_be_changed, getattr(schema, "schema", schema).types))


@functools.lru_cache(maxsize=1_024)
def _can_be_changed(kind: Any) -> bool:
    """Whether a value of a column may be one that can be changed: bytes may come as a bytearray, None tells nothing."""
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(is_bytes or pa.types.is_nested(kind) or pa.types.is_null(kind))


def _flat(row: Any) -> Any:
    return row.copy() if type(row) is dict else dict(row) if isinstance(row, Mapping) else row


def _deep(row: Any) -> Any:
    return _copied(row) if isinstance(row, Mapping) else row


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_copied, value))  # A struct may be a tuple, and no list.
    if isinstance(value, list | deque):
        return list(map(_copied, value))
    if isinstance(value, memoryview):
        return bytes(value)
    return value.copy() if isinstance(value, np.ndarray | bytearray | set) else value
