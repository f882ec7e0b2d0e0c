"""The handle that a `StatefulProcessor` gets in `init`: states and timers of the current key.

It has the methods of `pyspark.sql.streaming.StatefulProcessorHandle`, and refuses what that refuses: states outside of
`init`, timers without a time mode, a time-to-live without processing time. When the plan is made, `init` is called with
a handle without state, so that the plan is refused if `init` cannot work under Flux.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from ...types.errors import PlanError
from .ddl import struct_of
from .key_timers import KeyTimers
from .spark_values import Fields
from .state_store import ListState, MapState, Store, ValueState, Variable

__all__ = ["Declarations", "Handle"]

_BINARY = "UTF8_BINARY"
_FORMS = {"value": ValueState, "list": ListState, "map": MapState}


class Declarations:
    """The state variables of a processor, by name. They are looked up in each micro-batch and created once."""

    def __init__(self, owner: str, time_mode: str) -> None:
        self.owner = owner
        self.time_mode = time_mode
        self._known: dict[tuple[str, str], tuple[tuple[Any, ...], Variable]] = {}

    def variable(self, form: str, name: Any, schema: Any, entries: Any, ttl_ms: Any) -> Variable:
        """Return the variable of an earlier, equal declaration, or a new one."""
        declared = schema, entries, ttl_ms
        known = self._known.get((form, name))
        if known is not None and known[0] == declared:
            return known[1]
        variable = self._create(form, name, schema, entries, ttl_ms)
        self._known[form, name] = declared, variable
        return variable

    def by_name(self, name: str) -> Variable:
        """Return a variable that an earlier micro-batch has declared."""
        return next(variable for (_, known), (_, variable) in self._known.items() if known == name)

    def _create(self, form: str, name: Any, schema: Any, entries: Any, ttl_ms: Any) -> Variable:
        owner = f"{self.owner}: {form} state {name!r}"
        if not isinstance(name, str) or not name:
            raise PlanError(f"{owner}: the name of a state must be a text that is not empty")
        if ttl_ms is not None:
            if self.time_mode != "processingtime":
                raise PlanError(f'{owner}: a time-to-live needs timeMode="ProcessingTime", got {self.time_mode!r}')
            if not isinstance(ttl_ms, int) or ttl_ms <= 0:
                raise PlanError(f"{owner}: ttlDurationMs must be a number of milliseconds above 0; got {ttl_ms!r}")
        fields = Fields(struct_of(schema, owner), owner)
        of_entries = None
        if form == "map":
            of_entries = Fields(struct_of(entries, f"{owner}, keys"), f"{owner}, keys")
            if of_entries.is_mutable:
                raise PlanError(f"{owner}: arrays, maps and structs cannot be keys of a map state under Flux")
            if any(getattr(f.dataType, "collation", _BINARY) != _BINARY for f in of_entries.schema):
                raise PlanError(f"{owner}: texts with a collation cannot be keys of a map state; drop COLLATE")
        return Variable(name, form, fields, of_entries, ttl_ms)


class Handle:
    """The handle for one micro-batch of one partition. `key` is the current key."""

    def __init__(self, declarations: Declarations, stores: dict[str, Store], timers: KeyTimers, clock_ms: int) -> None:
        self.key: Any = None
        self.clock_ms = clock_ms
        self._declarations = declarations
        self._stores = stores
        self.timers = timers
        self._declared: dict[str, Any] = {}
        self._is_open = True

    def seal(self) -> None:
        """Refuse further declarations: `init` has returned."""
        self._is_open = False

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._state("value", stateName, schema, None, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._state("list", stateName, schema, None, ttlDurationMs)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> Any:
        return self._state("map", stateName, valueSchema, userKeySchema, ttlDurationMs)

    def deleteIfExists(self, stateName: str) -> None:
        self._check_open("deleteIfExists")
        state = self._declared.pop(stateName, None)
        if state is not None:
            state.delete(f"{self._declarations.owner}: state {stateName!r} was deleted by deleteIfExists in init")
        self._stores.pop(stateName, None)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers("registerTimer")
        self.timers.register(self.key, operator.index(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers("deleteTimer")
        self.timers.delete(self.key, operator.index(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        self._check_timers("listTimers")
        return iter(self.timers.of(self.key))

    def _state(self, form: str, name: str, schema: Any, entries: Any, ttl_ms: int | None) -> Any:
        self._check_open(f"get{form.capitalize()}State")
        variable = self._declarations.variable(form, name, schema, entries, ttl_ms)
        if name in self._declared:
            raise PlanError(f"{self._declarations.owner}: init asks twice for a state {name!r}; each has its own name")
        store = self._stores.get(name)
        if store is None:
            store = self._stores[name] = Store(variable)
        elif store.variable is not variable:
            raise PlanError(
                f"{self._declarations.owner}: state {name!r} was declared differently before; a state keeps its form "
                "and schema from one micro-batch to the next"
            )
        state = self._declared[name] = _FORMS[form](store, self)
        return state

    def _check_open(self, what: str) -> None:
        if not self._is_open:
            raise RuntimeError(f"{what} was called outside of init(handle); Spark allows it only in init")

    def _check_timers(self, what: str) -> None:
        if self._declarations.time_mode == "none":
            raise RuntimeError(f'{what} needs timeMode="ProcessingTime" or "EventTime"')
        if self.key is None:
            raise RuntimeError(f"{what} was called without a current key; call it for input rows or a timer")
