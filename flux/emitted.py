"""Emitted rows: a row-wise operator's dicts, and the columns that they become.

They become columns when a batch has ended, and by then the operator may have changed a dict that it keeps as its state,
or a list in it. So the values are taken out of each as it comes; lists and dicts among them are copied, if the columns
are such that there may be any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from flux.blame import place_of

__all__ = ["NoRow", "Outputs", "keeping"]


class NoRow(Exception):
    """What was emitted is no row, or one of other columns."""

    def __init__(self, made: Any, names: list[str]) -> None:
        super().__init__(made)
        self._made, self._names = made, names

    def told_of(self, function: Any) -> str:
        """What is to be said of the function that emitted it."""
        return (
            f"{place_of(function)} emitted {self._made!r:.200}; expected an iterable of dicts with the keys "
            f"{', '.join(self._names)}. Return (state, [{{...}}, ...])"
        )


class Outputs:
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
            self._expect(list(schema.names), _may_be_nested(schema))

    def _expect(self, names: list[str], may_be_nested: bool) -> None:
        self._names, self.width = names, len(names)
        get = itemgetter(*names) if names else tuple
        self.take = (lambda made: _copied(get(made))) if may_be_nested else get

    def _take_first(self, made: Any) -> Any:
        """Take what tells the columns, and what follows it."""
        if self.width is None:
            self._expect(list(made), may_be_nested=True)
        return self.take(made)

    def add(self, made: Any) -> None:
        """Take in a row, or raise `NoRow`."""
        self.check(made)
        self.taken.append(self.take(made))

    def check(self, made: Any) -> None:
        """Raise `NoRow` unless it is a row."""
        if not isinstance(made, Mapping) or (self.width is not None and made.keys() != set(self._names)):
            raise NoRow(made, self._names) from None

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows as columns."""
        if len(self._names) == 1:
            return {self._names[0]: self.taken}
        return {name: list(map(itemgetter(place), self.taken)) for place, name in enumerate(self._names)}


def keeping(schema: Any) -> Callable[[Any], Any]:
    """What makes a copy of a row of a schema, of what is known of one so far (a `Learning`), or of one not known.

    What is no row stays what it is: an error, for whoever looks at it.

    >>> held = {"n": 1, "all": [1]}
    >>> row = keeping(None)(held)
    >>> held["all"].append(2)
    >>> row
    {'n': 1, 'all': [1]}
    """
    return _deep if schema is None or _may_be_nested(schema) else _flat


def _may_be_nested(schema: Any) -> bool:
    types = getattr(schema, "schema", schema).types
    return any(pa.types.is_nested(kind) or pa.types.is_null(kind) for kind in types)


def _flat(row: Any) -> Any:
    return row.copy() if type(row) is dict else dict(row) if isinstance(row, Mapping) else row


def _deep(row: Any) -> Any:
    return _copied(row) if isinstance(row, Mapping) else row


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(inner) for inner in value]
    return value.copy() if isinstance(value, np.ndarray | bytearray | set) else value
