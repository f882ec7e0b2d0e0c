"""The host of a `KeyedOperator`: one instance, which gets the state of a key with each of its rows."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from ..model.batch import Batch
from ..model.error_location import innermost_frame
from ..model.gc_control import collect_periodically, gc_paused
from ..model.operator import KeyedOperator, OperatorStep, Punctuation
from ..model.output_rows import NotARow, OutputRows
from ..model.timers import Timers
from ..model.zoned_keys import wrap_zoned
from ..types.errors import RAISED, FluxError, OperatorError, PlanError, StateError
from ..types.to_python import UNREPRESENTABLE, first_unrepresentable, to_python
from .hosted import Hosted
from .state_change import ChangingStates, StateChange

NAN = float("nan")
_PIECE_KEYS = 8_192  # In one piece of state: read, sent and installed in a few milliseconds.


class PerKey(Hosted):
    """A `KeyedOperator`: one instance, and a dict of states by key for each partition."""

    holds_states_itself = True

    def __init__(self, step: OperatorStep, state_in_memory: bool = True) -> None:
        super().__init__(step, state_in_memory)
        if not step.key_columns:
            raise PlanError(
                f"step {step.name!r}: a KeyedOperator needs the columns of its key. Put "
                'exchange("column", ...) by hash or range before it'
            )
        self._states: dict[int, dict[tuple[Any, ...], Any]] = {}
        self._key_schema: Any = None
        self._instance: Any = None
        self._timers: Timers | None = None  # None if the operator does not define on_timer.

    def open(self, partitions_held: Iterable[int]) -> None:
        self._instance = self._new_operator(None)
        if type(self._instance).on_timer is not KeyedOperator.on_timer:
            self._timers = self._instance._timers = Timers()
        self._call(None, None, self._instance.open, self.step.context())
        self._states = {pid: {} for pid in partitions_held}

    @property
    def needs_punctuations(self) -> bool:
        return self._timers is not None

    def key_counts(self) -> dict[int, int]:
        return {pid: len(states) for pid, states in self._states.items()}

    def process(self, batch: Batch) -> Batch | None:
        if len(batch) == 0:
            return None
        batch = self._as_input(batch)
        columns = [batch.column(name) for name in self.step.key_columns]
        self._key_schema = pa.schema(zip(self.step.key_columns, (c.type for c in columns), strict=True))
        keys = keys_within(batch, columns)
        wrapped = wrap_zoned(keys, columns)
        on_tuple, states, timers = self._instance.on_tuple, self._states, self._timers
        assert states.keys() >= set(batch.partition.tolist()), f"step {self.step.name!r}: not held here"
        outputs, origin, place = OutputRows(self._output), list[int](), 0

        def each_row() -> None:
            nonlocal place
            # The same as `outputs.add`: calling it for each row would take half as long again.
            taken, take, width = outputs.taken, outputs.take, outputs.width
            each = zip(batch.iter_rows(), keys, wrapped, batch.partition.tolist(), strict=True)
            for place, (row, given, key, pid) in enumerate(collect_periodically(each, len(batch))):
                held = states[pid]
                if timers is not None:
                    timers.set_key(pid, key)
                state, emitted = on_tuple(given, row, held.get(key))
                if state is None:
                    held.pop(key, None)
                else:
                    held[key] = state
                if emitted is not None:
                    for made in emitted:
                        if type(made) is not dict or len(made) != width:
                            outputs.check(made)
                        try:
                            taken.append(take(made))
                        except KeyError:
                            outputs.check(made)
                            raise
                        origin.append(place)

        try:
            with gc_paused():
                each_row()
        except NotARow as error:
            where = int(batch.partition[place]), int(batch.sn[place])
            raise OperatorError(error.message(on_tuple), self.step.name, *where) from None
        except FluxError:
            raise
        except RAISED as error:
            if innermost_frame(error) is each_row.__code__:
                error = TypeError(f"expected (state, outputs), with an iterable of dicts or None as outputs; {error}")
            raise self._operator_error(error, on_tuple, None, batch.slice(place, place + 1)) from error
        finally:
            if timers is not None:
                timers.clear_key()
        if not origin:
            return None
        emitted = batch.emit(outputs.columns(), origin)
        assert emitted is not None
        self._extend_output(emitted.arrow.schema)
        return emitted.ordered()

    def punctuate(self, p: Punctuation) -> Batch | None:
        if self._timers is None:
            return None
        outputs = OutputRows(self._output)
        where = self._call(None, None, self._timers.fire, p, self._states, self._instance.on_timer, outputs)
        return self._caused_rows([(outputs.columns(), where)] if where else [], p)

    def close(self) -> None:
        self._states.clear()
        self._call(None, None, self._instance.close)

    def get_partition_state(self, pid: int) -> Any:
        held = self._states[pid]
        if isinstance(held, ChangingStates):
            return self._changed_pieces(pid, held)
        if self._timers is not None:
            held = self._timers.states_with(pid, held)
        if not held:
            return None
        return self._piece(pid, list(held.items())) if len(held) <= _PIECE_KEYS else self._pieces_of(pid, held)

    def _changed_pieces(self, pid: int, held: ChangingStates) -> Iterator[Any]:
        """Yield the pieces of a state after the rest of it was changed: in a fork, if a fork reads it."""
        yield None  # A state without keys, too, adds the partition to the other site.
        held.change_all()
        yield from self._pieces_of(pid, held if self._timers is None else self._timers.states_with(pid, held))

    def _pieces_of(self, pid: int, held: dict[tuple[Any, ...], Any]) -> Iterator[Any]:
        entries = iter(held.items())
        while some := list(itertools.islice(entries, _PIECE_KEYS)):
            yield self._piece(pid, some)

    def _piece(self, pid: int, entries: list[tuple[tuple[Any, ...], Any]]) -> Any:
        keys, states = zip(*entries, strict=True)
        # An Arrow table, because a key may hold types that msgpack lacks: a date, a decimal.
        columns = [list(column) for column in zip(*keys, strict=True)]
        piece = {"keys": pa.table(columns, schema=self._key_schema), "states": list(states)}
        return piece if self._timers is None else piece | {"timers": self._timers.get(pid, keys)}

    def install_partition_state(self, pid: int, state: Any) -> None:
        held = self._states.setdefault(pid, {})
        if state is None:
            return
        table = state["keys"]
        if tuple(table.schema.names) != self.step.key_columns:
            raise StateError(
                f"step {self.step.name!r}: the state of partition {pid} arrived with keys of "
                f"{', '.join(table.schema.names)}; expected {', '.join(self.step.key_columns)}. "
                "Both sites must run the same flow"
            )
        self._key_schema = table.schema
        keys = wrap_zoned(keys_of(table.columns), table.columns)
        held.update((key, kept) for key, kept in zip(keys, state["states"], strict=True) if kept is not None)
        if self._timers is not None:
            self._timers.install(pid, keys, state["timers"])

    def operator(self, pid: int) -> Any:
        return self._instance

    def changed(self, pid: int, piece: Any, change: StateChange) -> Any:
        """Return a piece with the state of each of its keys changed; a key whose state becomes None has only timers."""
        if piece is None or change.is_none:
            return piece
        return piece | {"states": [self._changed_state(pid, change, state) for state in piece["states"]]}

    def _changed_state(self, pid: int, change: StateChange, state: Any) -> Any:
        return super().changed(pid, state, change)

    def take_over(self, before: Hosted, pid: int, change: StateChange) -> None:
        """Take over a partition; the state of a key is changed when it has a row or a timer, or when there is time."""
        if change.drops:
            super().take_over(before, pid, change)
            return
        assert isinstance(before, PerKey)
        states = before._states.pop(pid, {})
        if not change.is_none:
            states = ChangingStates(states, partial(self._changed_state, pid, change))
        self._states[pid] = states
        self._key_schema = self._key_schema or before._key_schema
        if before._timers is not None:
            if self._timers is None:
                before._timers.drop(pid)
            elif self._timers is not before._timers:
                self._timers.adopt(pid, before._timers)

    def change_some_state(self) -> bool:
        for pid, states in self._states.items():
            if isinstance(states, ChangingStates):
                with gc_paused():
                    states.change_some()
                    if not states.before:
                        self._states[pid] = dict(states)
                        gc.freeze()  # To look for garbage among so many new objects would take long.
                return True
        return False

    def init_trans(self, pid: int) -> None:
        self._call_optional(pid, self._instance, "init_trans")

    def end_trans(self, pid: int) -> None:
        self._call_optional(pid, self._instance, "end_trans")

    def drop_partition(self, pid: int) -> None:
        self._states.pop(pid, None)
        if self._timers is not None:
            self._timers.drop(pid)


def keys_of(columns: list[Any]) -> list[tuple[Any, ...]]:
    """Return each row's key.

    All NaN are one key, as for the hash; for Python they must be one object. 0.0 and -0.0 are one key too. They are
    equal in Python, but the sign would be that of the first row, and could change when a partition moves.
    """
    values = []
    for column in columns:
        cells = to_python(column)
        if pa.types.is_floating(column.type):
            cells = [NAN if cell != cell else 0.0 if cell == 0 else cell for cell in cells]
        values.append(cells)
    return list(zip(*values, strict=True))


def keys_within(batch: Batch, columns: list[Any]) -> list[tuple[Any, ...]]:
    """Return the key of each row that `batch.rows()` yields before a value that Python cannot represent."""
    try:
        return keys_of(columns)
    except UNREPRESENTABLE:
        found = first_unrepresentable(batch.arrow)
        if found is None:
            raise
        return keys_of([column.slice(0, found[0]) for column in columns])
