"""The state of a `StatefulProcessor`, stored by Flux: values, lists and maps, each by grouping key.

A `Store` is one state variable of one partition. `ValueState`, `ListState` and `MapState` are the processor's interface
to it, for the current key. With a time-to-live every entry has an expiry time, counted from the clock of the
micro-batch that wrote it. `_due` holds these times in order, so that dropping costs only what is dropped.

A store is transferred in pieces of Arrow columns; every copy has its entries in the order of insertion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError

from ...types.array_types import Key
from .grouping_keys import KeyColumns
from .spark_values import Fields, row_type
from .unsafe_row_order import byte_order

__all__ = ["ListState", "MapState", "Store", "ValueState", "Variable"]

_PIECE_KEYS = 8_192


@dataclass(frozen=True)
class Variable:
    """A state variable as declared by `init`; `entries` are the keys within a map state."""

    name: str
    form: str  # "value", "list" or "map".
    fields: Fields
    entries: Fields | None = None
    ttl_ms: int | None = None


class Store:
    """A state variable of one partition: for each grouping key a value, a list of values or a dict of them.

    With a time-to-live, each value is stored as a pair of value and expiry time.
    """

    def __init__(self, variable: Variable) -> None:
        self.variable = variable
        self.held: dict[Key, Any] = {}
        self._due: deque[tuple[int, Key]] = deque()

    def add_due(self, at_ms: int, key: Key) -> None:
        """Add an expiry time of this key; calls are in the order of time, since the clock never goes back."""
        if not self._due or self._due[-1] != (at_ms, key):
            self._due.append((at_ms, key))

    def drop_expired(self, clock_ms: int) -> None:
        """Drop the expired entries."""
        while self._due and self._due[0][0] <= clock_ms:
            _, key = self._due.popleft()
            if key in self.held:
                left = self._alive(self.held[key], clock_ms)
                if left:
                    self.held[key] = left
                else:
                    del self.held[key]

    def _alive(self, held: Any, clock_ms: int) -> Any:
        if self.variable.form == "value":
            return held if held[1] > clock_ms else None
        if self.variable.form == "list":
            return [each for each in held if each[1] > clock_ms]
        return {entry: each for entry, each in held.items() if each[1] > clock_ms}

    # State transfer.

    def pieces(self, keys: KeyColumns) -> Iterator[dict[str, Any]]:
        """Yield the pieces that `install` takes in another copy."""
        everything = list(self.held.items())
        for start in range(0, len(everything), _PIECE_KEYS):
            yield self._piece(everything[start : start + _PIECE_KEYS], keys)

    def _piece(self, some: list[tuple[Key, Any]], keys: KeyColumns) -> dict[str, Any]:
        form = self.variable.form
        lists = [[held] if form == "value" else list(held) for _, held in some]
        entries = [entry for each in lists for entry in each] if form == "map" else None
        values = (
            [v for _, held in some for v in held.values()] if form == "map" else [v for each in lists for v in each]
        )
        columns = {"value": self.variable.fields.pack(_values(values, self.variable.ttl_ms))}
        if entries is not None:
            assert self.variable.entries is not None
            columns["entry"] = self.variable.entries.pack(entries)
        if self.variable.ttl_ms is not None:
            columns["ends"] = pa.array([at for _, at in values], pa.int64())
        return {
            "state": self.variable.name,
            "keys": keys.pack([key for key, _ in some]),
            "counts": np.array([len(each) for each in lists], np.int64),
            "held": pa.table(columns),
        }

    def install(self, piece: dict[str, Any], keys: KeyColumns) -> None:
        """Install one piece of another copy's store; pieces arrive in order."""
        table = piece["held"]
        values: list[Any] = self.variable.fields.unpack(table["value"].combine_chunks())
        if self.variable.ttl_ms is not None:
            values = list(zip(values, table["ends"].to_pylist(), strict=True))
        entries = None
        if self.variable.entries is not None:
            entries = self.variable.entries.unpack(table["entry"].combine_chunks())
        start = 0
        for key, count in zip(keys.unpack(piece["keys"]), piece["counts"].tolist(), strict=True):
            some = values[start : start + count]
            if self.variable.form == "value":
                [self.held[key]] = some
            elif entries is None:
                self.held[key] = some
            else:
                self.held[key] = dict(zip(entries[start : start + count], some, strict=True))
            start += count

    def finish_install(self) -> None:
        """Rebuild the expiry times after the last piece."""
        if self.variable.ttl_ms is None:
            return
        due: set[tuple[int, Key]] = set()
        for key, held in self.held.items():
            each = [held] if self.variable.form == "value" else held.values() if isinstance(held, dict) else held
            due.update((at, key) for _, at in each)
        self._due = deque(sorted(due, key=lambda one: one[0]))


def _values(held: list[Any], ttl_ms: int | None) -> list[Any]:
    return held if ttl_ms is None else [value for value, _ in held]


class _State:
    """The base of the three states: they use the key and the clock of `current`."""

    __slots__ = ("_current", "_fields", "_held", "_store", "_ttl_ms", "_why_deleted")

    def __init__(self, store: Store, current: Any) -> None:
        self._store = store
        self._held = store.held
        self._fields = store.variable.fields
        self._ttl_ms = store.variable.ttl_ms
        self._current = current

    def delete(self, why: str) -> None:
        """Let any further use raise, as in Spark. Processors may catch the error, and look at its text."""
        self._why_deleted = why
        self.__class__ = _DELETED[type(self)]

    def clear(self) -> None:
        """Remove this state."""
        self._held.pop(self._current.key, None)

    def _expiry(self) -> int:
        """Register and return the expiry time of an entry written now."""
        assert self._ttl_ms is not None
        at = int(self._current.clock_ms) + self._ttl_ms
        self._store.add_due(at, self._current.key)
        return at

    def _is_alive(self, held: Any) -> bool:
        return bool(held[1] > self._current.clock_ms)


class ValueState(_State):
    """One value for each key, as `pyspark.sql.streaming.stateful_processor.ValueState`."""

    __slots__ = ()

    def exists(self) -> bool:
        return self.get() is not None

    def get(self) -> Any:
        value = self._held.get(self._current.key)
        if value is None:
            return None
        if self._ttl_ms is not None:
            if not self._is_alive(value):
                return None
            value = value[0]
        return self._fields.fresh(value) if self._fields.is_mutable else value

    def update(self, newValue: Any) -> None:
        value = self._fields.keep(newValue)
        self._held[self._current.key] = value if self._ttl_ms is None else (value, self._expiry())


class ListState(_State):
    """A list for each key, as `pyspark.sql.streaming.stateful_processor.ListState`."""

    __slots__ = ()

    def exists(self) -> bool:
        return next(self.get(), None) is not None

    def get(self) -> Iterator[Any]:
        held = list(self._held.get(self._current.key, ()))
        if self._ttl_ms is not None:
            held = [each[0] for each in held if self._is_alive(each)]
        return map(self._fields.fresh, held) if self._fields.is_mutable else iter(held)

    def put(self, newState: Any) -> None:
        self._held[self._current.key] = self._convert(newState)

    def appendValue(self, newState: Any) -> None:
        self.appendList([newState])

    def appendList(self, newState: Any) -> None:
        kept = self._convert(newState)
        self._held.setdefault(self._current.key, []).extend(kept)

    def _convert(self, values: Any) -> list[Any]:
        kept: list[Any] = [self._fields.keep(value) for value in values]
        if not kept:
            raise ValueError(f"{self._fields.owner}: Spark refuses an empty list; clear() removes the state")
        if self._ttl_ms is not None:
            ends = self._expiry()
            kept = [(value, ends) for value in kept]
        return kept


class MapState(_State):
    """A map for each key, as `pyspark.sql.streaming.stateful_processor.MapState`; iterated in Spark's order."""

    __slots__ = ("_entries", "_order", "_row")

    def __init__(self, store: Store, current: Any) -> None:
        super().__init__(store, current)
        assert store.variable.entries is not None
        self._entries = store.variable.entries
        self._order = byte_order([field.dataType for field in self._entries.schema.fields])
        self._row = row_type(self._fields.names)

    def exists(self) -> bool:
        return bool(self._alive())

    def getValue(self, key: Any) -> Any:
        held = self._held.get(self._current.key)
        value = None if held is None else held.get(self._entries.keep(key))
        if value is None or (self._ttl_ms is not None and not self._is_alive(value)):
            return None
        return self._row(self._copy(value if self._ttl_ms is None else value[0]))

    def containsKey(self, key: Any) -> bool:
        return self.getValue(key) is not None

    def updateValue(self, key: Any, value: Any) -> None:
        entry, kept = self._entries.keep(key), self._fields.keep(value)
        held = self._held.setdefault(self._current.key, {})
        held[entry] = kept if self._ttl_ms is None else (kept, self._expiry())

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        alive = self._alive()
        return iter([(entry, self._copy(alive[entry])) for entry in sorted(alive, key=self._order)])

    def keys(self) -> Iterator[Any]:
        return iter(sorted(self._alive(), key=self._order))

    def values(self) -> Iterator[Any]:
        return (value for _, value in self.iterator())

    def removeKey(self, key: Any) -> None:
        held = self._held.get(self._current.key)
        if held is not None:
            held.pop(self._entries.keep(key), None)
            if not held:
                self.clear()

    def _alive(self) -> dict[Any, Any]:
        held = self._held.get(self._current.key, {})
        if self._ttl_ms is None:
            return dict(held)
        return {entry: each[0] for entry, each in held.items() if self._is_alive(each)}

    def _copy(self, value: Any) -> Any:
        return self._fields.fresh(value) if self._fields.is_mutable else value


def _deleted(form: type[_State], said: dict[str, str]) -> type[_State]:
    """Return the class of a deleted state, whose methods say in Spark's words what failed."""
    return type(form.__name__, (form,), {"__slots__": (), **{name: _refusal(text) for name, text in said.items()}})


def _refusal(text: str) -> Callable[..., Any]:
    def refuse(self: _State, *_: Any) -> Any:
        raise PySparkRuntimeError(f"{text}: {self._why_deleted}")

    return refuse


_UPDATING_LIST = dict.fromkeys(("put", "appendValue", "appendList"), "Error updating value state")
_ITERATING_MAP = dict.fromkeys(("iterator", "keys", "values"), "Error getting map state entries")
_DELETED: dict[type[_State], type[_State]] = {
    ValueState: _deleted(
        ValueState,
        {
            "exists": "Error checking value state exists",
            "get": "Error getting value state",
            "update": "Error updating value state",
            "clear": "Error clearing value state",
        },
    ),
    ListState: _deleted(
        ListState,
        {
            "exists": "Error checking value state exists",
            "get": "Error getting list state values",
            "clear": "Error clearing value state",
            **_UPDATING_LIST,
        },
    ),
    MapState: _deleted(
        MapState,
        {
            "exists": "Error checking map state exists",
            "getValue": "Error getting value",
            "containsKey": "Error checking if map state contains key",
            "updateValue": "Error updating map state value",
            "removeKey": "Error removing key from map state",
            "clear": "Error clearing map state",
            **_ITERATING_MAP,
        },
    ),
}
