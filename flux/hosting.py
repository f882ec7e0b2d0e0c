"""Runs an operator of any form for the partitions of one site.

A pooler drives every operator through `Hosted`: a batch with rows of many partitions in, a batch in (sn, sub,
partition) order out. The three forms differ in who tells partitions apart: for an `Operator` it is done here, with one
stable sort for all partitions; for a `KeyedOperator` here too, with a dict per partition; a `PooledOperator` does it.

Whatever goes wrong in user code becomes an `OperatorError` that names the step, the callable and its line, the
partition, and the row if one can tell. `OperatorError.row` is the sequence number, the one name of a row that is the
same in every copy. State is handed over by reference: encode it before the next call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa

from flux.batch import Batch, punctuated
from flux.blame import columns_hint, innermost, place_of
from flux.columns import ColumnError, record_batch_of
from flux.errors import FluxError, OperatorError, PlanError, StateError
from flux.operator import KeyedOperator, Operator, OperatorStep, PooledOperator, Punctuation
from flux.timers import Timers
from flux.wire.values import PLAIN, Vocabulary

__all__ = ["NAN", "Hosted", "host", "keys_of"]

ROW_WAS = "; the row was "
_ADVICE = 'Mend the operator, or let on_error="skip" leave out and count the rows for which it raises'
NAN = float("nan")
_PIECE_KEYS = 8_192  # Of one piece of state: read, sent and installed in a few milliseconds.
# A library that calls sys.exit() must not end a site as if that were in order.
_RAISED = (Exception, SystemExit)


def host(step: OperatorStep) -> Hosted:
    """Return what drives the step's operator, by its form."""
    made = step.factory if isinstance(step.factory, type) else type(step.factory())
    for form, hosted in ((Operator, _PerPartition), (KeyedOperator, _PerKey), (PooledOperator, _Pooled)):
        if issubclass(made, form):
            driving = hosted(step, getattr(made, "state_in_memory", True))
            driving.words = Vocabulary.of(made, f"step {step.name!r}")
            return driving
    raise PlanError(
        f"step {step.name!r}: expected an operator class (flux.Operator, KeyedOperator or PooledOperator), "
        f"came {getattr(step.factory, '__name__', step.factory)!r}. Derive it from one of them, or wrap it"
    )


class Hosted:
    """An operator and the partitions of it that live here.

    Abstract: each form of operator has a subclass below that defines all of these methods.
    """

    words: Vocabulary = PLAIN  # Of which the state is made.

    def __init__(self, step: OperatorStep, state_in_memory: bool = True) -> None:
        self.step = step
        self.state_in_memory = state_in_memory  # Whether a fork of this process has the state too.
        # Declared, or else that of the first output.
        self._output = step.output

    def open(self, partitions_held: Iterable[int]) -> None:
        raise NotImplementedError

    def process(self, batch: Batch) -> Batch | None:
        raise NotImplementedError

    def punctuate(self, p: Punctuation) -> Batch | None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def get_partition_state(self, pid: int) -> Any:
        raise NotImplementedError

    def install_partition_state(self, pid: int, state: Any) -> None:
        """Take over one piece of a partition's state; the first makes the partition live here."""
        raise NotImplementedError

    def drop_partition(self, pid: int) -> None:
        raise NotImplementedError

    def init_trans(self, pid: int) -> None:
        """A partition's state is about to be taken or installed; user code is told if it wants to know."""
        raise NotImplementedError

    def end_trans(self, pid: int) -> None:
        """It has been, and nobody refers to it any more (thesis fig. 3.9)."""
        raise NotImplementedError

    def take_late(self) -> dict[int, int]:
        return {}  # See PooledOperator.

    # What the forms share.

    def _tell(self, pid: int, instance: Any, what: str, *args: Any) -> None:
        """Call a method that an operator may have or not."""
        method = getattr(instance, what, None)
        if method is not None:
            self._call(pid, None, method, *args)

    def _state(self, pid: int, function: Callable[..., Any], *args: Any) -> Any:
        """Return what user code says is a partition's state; a generator of pieces runs later, elsewhere."""
        state = self._call(pid, None, function, *args)
        return self._pieces(pid, function, state) if isinstance(state, GeneratorType) else state

    def _pieces(self, pid: int, function: Callable[..., Any], state: Any) -> Iterator[Any]:
        # Nothing comes first, so that also a state without any piece makes the partition live elsewhere.
        yield None
        try:
            yield from state
        except FluxError:
            raise
        except _RAISED as error:
            raise self._raised(error, function, pid, None) from error

    def _ours(self, batch: Batch) -> Batch:
        return batch.for_step(self.step.level, self._output, self.step.name)

    def _call(self, partition: int | None, rows: Batch | None, function: Callable[..., Any], *args: Any) -> Any:
        """Call user code, and give what it raises its place."""
        try:
            return function(*args)
        except OperatorError as error:
            error.step = self.step.name if error.step is None else error.step
            error.partition = partition if error.partition is None else error.partition
            raise
        except FluxError:
            raise
        except _RAISED as error:
            raise self._raised(error, function, partition, rows) from error

    def _new(self, partition: int | None) -> Any:
        """Make the user's operator."""
        try:
            return self._call(partition, None, self.step.factory)
        except OperatorError as error:
            raise OperatorError(
                f"{error.args[0]}. An operator is made without arguments: give parameters to apply(...); they reach it "
                "as context.parameters",
                error.step,
                error.partition,
            ) from error

    def _raised(
        self, error: BaseException, function: Callable[..., Any], partition: int | None, rows: Batch | None
    ) -> OperatorError:
        # One who wraps another's class says what that is: its file and line are wanted, not the wrapper's.
        function = getattr(getattr(function, "__self__", None), "user_code", function)
        text = f"{place_of(function, error)} raised {type(error).__name__}: {error}{columns_hint(error)}"
        if rows is None or not len(rows):
            return OperatorError(text, self.step.name, partition)
        reached = rows.reached()
        if reached is None:
            given = f"it was given the rows of sn {rows.sn[0]} to {rows.sn[-1]}"
            return OperatorError(f"{text}; {given}. {_ADVICE}", self.step.name, partition)
        text = f"{text}{ROW_WAS}{rows.arrow.slice(reached, 1).to_pylist()[0]!r:.500}. {_ADVICE}"
        return OperatorError(text, self.step.name, int(rows.partition[reached]), int(rows.sn[reached]))

    def _checked(self, emitted: Any, rows: Batch, function: Callable[..., Any]) -> Batch | None:
        """Return what `function` made of `rows`, or raise if it was made of something else."""
        if emitted is None or (isinstance(emitted, Batch) and len(emitted) == 0):
            return None
        if not isinstance(emitted, Batch):
            raise OperatorError(
                f"{place_of(function)} returned {type(emitted).__name__}; expected what batch.emit(...) returns",
                self.step.name,
            )
        if emitted is rows:
            # An operator may pass rows on as they are; undeclared, their schema is its output.
            self._pin(rows.arrow.schema)
            rows.output = self._output
            emitted = rows.emit(dict(zip(rows.arrow.schema.names, rows.arrow.columns, strict=True)))
        assert isinstance(emitted, Batch)
        origin = emitted.origin
        if origin is None or origin[-1] >= len(rows) or not np.array_equal(emitted.sn, rows.sn[origin]):
            raise OperatorError(
                f"{place_of(function)} returned a batch that was not emitted from the batch it was given. Keep "
                "values, not batches, and emit them from the batch whose row completes them",
                self.step.name,
            )
        self._pin(emitted.arrow.schema)
        return emitted

    def _pin(self, schema: Any) -> None:
        if self._output is None:
            self._output = schema

    def _caused(self, parts: list[tuple[Any, Any]], p: Punctuation) -> Batch | None:
        """Return the rows a punctuation caused, of (columns, partition of each row)."""
        arrows, partitions = [], []
        for columns, partition in parts:
            try:
                arrow = record_batch_of(columns, self._output)
            except ColumnError as error:
                raise OperatorError(f"on_punctuation: {error}", self.step.name, row=p.sn) from error
            if arrow.num_rows:
                self._pin(arrow.schema)
                arrows.append(arrow)
                partitions.append(np.broadcast_to(np.asarray(partition, np.uint16), (arrow.num_rows,)))
        if not arrows:
            return None
        rows = pa.concat_batches(arrows)
        return punctuated(rows, p.sn, np.concatenate(partitions), self.step.level, self._output, self.step.name)


class _PerPartition(Hosted):
    """An `Operator`: an instance for each partition."""

    def __init__(self, step: OperatorStep, state_in_memory: bool = True) -> None:
        super().__init__(step, state_in_memory)
        self._instances: dict[int, Operator] = {}

    def open(self, partitions_held: Iterable[int]) -> None:
        for pid in partitions_held:
            self._add(pid)

    def _add(self, pid: int) -> Operator:
        instance: Operator = self._new(pid)
        self._call(pid, None, instance.open, self.step.context(pid))
        self._instances[pid] = instance
        return instance

    def _instance(self, pid: int) -> Operator:
        held = self._instances.get(pid)
        assert held is not None, f"step {self.step.name!r}: partition {pid} is not held here"
        return held

    def process(self, batch: Batch) -> Batch | None:
        if len(batch) == 0:
            return None
        batch = self._ours(batch)
        first = int(batch.partition[0])
        if (batch.partition == first).all():
            emitted = self._process_one(first, batch)
            return None if emitted is None else emitted.ordered()

        # uint16 is sorted by radix: the cost is that of one pass, however many partitions there are.
        order = np.argsort(batch.partition, kind="stable")
        grouped = batch.take(order)
        starts = np.flatnonzero(np.diff(grouped.partition, prepend=grouped.partition[:1] ^ 1))
        parts, origins = [], []
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(batch)], strict=True):
            emitted = self._process_one(int(grouped.partition[start]), grouped.slice(start, stop))
            if emitted is not None:
                parts.append(emitted)
                origins.append(order[start + emitted.origin])
        if not parts:
            return None
        # Sorted runs, one per partition, which a stable sort merges: far cheaper than ordering rows by place.
        merged = np.argsort(np.concatenate(origins), kind="stable")
        return Batch.concat(parts).take(merged).ordered()

    def _process_one(self, pid: int, rows: Batch) -> Any:
        process = self._instance(pid).process
        # The first output may have been seen a moment ago, in another partition.
        rows.output = self._output
        return self._checked(self._call(pid, rows, process, rows), rows, process)

    def punctuate(self, p: Punctuation) -> Batch | None:
        parts = []
        for pid in sorted(self._instances.keys() if p.partitions is None else p.partitions):
            columns = self._call(pid, None, self._instance(pid).on_punctuation, p)
            if columns is not None:
                parts.append((columns, pid))
        return self._caused(parts, p)

    def close(self) -> None:
        for pid in list(self._instances):
            self.drop_partition(pid)

    def get_partition_state(self, pid: int) -> Any:
        return self._state(pid, self._instance(pid).get_state)

    def install_partition_state(self, pid: int, state: Any) -> None:
        instance = self._made(pid)
        if state is not None:
            self._call(pid, None, instance.install_state, state)

    def _made(self, pid: int) -> Operator:
        """The partition's instance; it may be about to get its first state."""
        return self._instances[pid] if pid in self._instances else self._add(pid)

    def init_trans(self, pid: int) -> None:
        self._tell(pid, self._made(pid), "init_trans")

    def end_trans(self, pid: int) -> None:
        self._tell(pid, self._instance(pid), "end_trans")

    def drop_partition(self, pid: int) -> None:
        instance = self._instances.pop(pid, None)
        if instance is not None:
            self._call(pid, None, instance.close)


class _PerKey(Hosted):
    """A `KeyedOperator`: one instance, and a dict of states by key for each partition."""

    def __init__(self, step: OperatorStep, state_in_memory: bool = True) -> None:
        super().__init__(step, state_in_memory)
        if not step.key_columns:
            raise PlanError(
                f"step {step.name!r}: a KeyedOperator needs the columns of its key. Put "
                'exchange("column", ...) by hash or range in front of it'
            )
        self._states: dict[int, dict[tuple[Any, ...], Any]] = {}
        self._key_schema: Any = None
        self._instance: Any = None
        self._timers: Timers | None = None  # None if it has no use for them.

    def open(self, partitions_held: Iterable[int]) -> None:
        self._instance = self._new(None)
        if type(self._instance).on_timer is not KeyedOperator.on_timer:
            self._timers = self._instance._timers = Timers()
        self._call(None, None, self._instance.open, self.step.context())
        self._states = {pid: {} for pid in partitions_held}

    def process(self, batch: Batch) -> Batch | None:
        if len(batch) == 0:
            return None
        batch = self._ours(batch)
        columns = [batch.column(name) for name in self.step.key_columns]
        self._key_schema = pa.schema(zip(self.step.key_columns, (c.type for c in columns), strict=True))
        keys = keys_of(columns)
        on_tuple, states, timers = self._instance.on_tuple, self._states, self._timers
        assert states.keys() >= set(batch.partition.tolist()), f"step {self.step.name!r}: not held here"
        outputs: list[Mapping[str, Any]] = []
        origin: list[int] = []
        place = 0

        def each_row() -> None:
            nonlocal place
            each = zip(keys, batch.untold_rows(), batch.partition.tolist(), strict=True)
            for place, (key, row, pid) in enumerate(each):
                held = states[pid]
                if timers is not None:
                    timers.look_at(pid, key)
                state, emitted = on_tuple(key, row, held.get(key))
                if state is None:
                    held.pop(key, None)
                else:
                    held[key] = state
                if emitted is not None:
                    before = len(outputs)
                    outputs.extend(emitted)
                    origin.extend([place] * (len(outputs) - before))

        try:
            each_row()
        except FluxError:
            raise
        except _RAISED as error:
            if innermost(error) is each_row.__code__:
                error = TypeError(f"expected (state, outputs), with an iterable of dicts or None as outputs; {error}")
            raise self._raised(error, on_tuple, None, batch.slice(place, place + 1)) from error
        finally:
            if timers is not None:
                timers.look_away()
        if not outputs:
            return None
        columns_emitted = self._columns_of(outputs, on_tuple, batch.partition.take(origin), batch.sn.take(origin))
        emitted = batch.emit(columns_emitted, origin)
        assert emitted is not None
        self._pin(emitted.arrow.schema)
        return emitted.ordered()

    def _columns_of(self, outputs: list[Any], function: Any, partitions: Any, sns: Any) -> dict[str, list[Any]]:
        """Return rows as columns; the i-th stems from partitions[i] and sns[i], should it be none."""
        first = list(outputs[0]) if isinstance(outputs[0], Mapping) else []
        names = first if self._output is None else self._output.names
        expected = set(names)
        for i, output in enumerate(outputs):
            # To ask an abstract class takes longer than all the rest.
            if (type(output) is not dict and not isinstance(output, Mapping)) or output.keys() != expected:
                raise OperatorError(
                    f"{place_of(function)} emitted {output!r:.200}; expected an iterable of "
                    f"dicts with the keys {', '.join(names)}. Return (state, [{{...}}, ...])",
                    self.step.name,
                    int(partitions[i]),
                    int(sns[i]),
                )
        return {name: [output[name] for output in outputs] for name in names}

    def punctuate(self, p: Punctuation) -> Batch | None:
        if self._timers is None:
            return None
        on_timer = self._instance.on_timer
        outputs, where = self._call(None, None, self._timers.fire, p, self._states, on_timer)
        return self._caused(
            [(self._columns_of(outputs, on_timer, where, [p.sn] * len(where)), where)] if where else [], p
        )

    def close(self) -> None:
        self._states.clear()
        self._call(None, None, self._instance.close)

    def get_partition_state(self, pid: int) -> Any:
        held = self._states[pid]
        if self._timers is not None:
            held = self._timers.states_with(pid, held)
        if not held:
            return None
        return self._piece(pid, list(held.items())) if len(held) <= _PIECE_KEYS else self._pieces_of(pid, held)

    def _pieces_of(self, pid: int, held: dict[tuple[Any, ...], Any]) -> Iterator[Any]:
        entries = iter(held.items())
        while some := list(itertools.islice(entries, _PIECE_KEYS)):
            yield self._piece(pid, some)

    def _piece(self, pid: int, entries: list[tuple[tuple[Any, ...], Any]]) -> Any:
        keys, states = zip(*entries, strict=True)
        # An Arrow table, because a key may hold what msgpack does not know: a date, a decimal.
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
                f"step {self.step.name!r}: partition {pid} comes with states by "
                f"{', '.join(table.schema.names)}; here they are kept by {', '.join(self.step.key_columns)}. "
                "Both sites must run the same flow"
            )
        self._key_schema = table.schema
        keys = keys_of(table.columns)
        held.update((key, kept) for key, kept in zip(keys, state["states"], strict=True) if kept is not None)
        if self._timers is not None:
            self._timers.install(pid, keys, state["timers"])

    def init_trans(self, pid: int) -> None:
        self._tell(pid, self._instance, "init_trans")

    def end_trans(self, pid: int) -> None:
        self._tell(pid, self._instance, "end_trans")

    def drop_partition(self, pid: int) -> None:
        self._states.pop(pid, None)
        if self._timers is not None:
            self._timers.drop(pid)


class _Pooled(Hosted):
    """A `PooledOperator`: one instance that tells partitions apart itself."""

    def __init__(self, step: OperatorStep, state_in_memory: bool = True) -> None:
        super().__init__(step, state_in_memory)
        self._instance: Any = None

    def open(self, partitions_held: Iterable[int]) -> None:
        self._instance = self._new(None)
        self._call(None, None, self._instance.open, self.step.context())

    def process(self, batch: Batch) -> Batch | None:
        if len(batch) == 0:
            return None
        rows = self._ours(batch)
        process = self._instance.process
        emitted = self._checked(self._call(None, rows, process, rows), rows, process)
        return None if emitted is None else emitted.ordered()

    def punctuate(self, p: Punctuation) -> Batch | None:
        caused = self._call(None, None, self._instance.on_punctuation, p)
        return None if caused is None else self._caused([caused], p)

    def take_late(self) -> dict[int, int]:
        return dict(self._call(None, None, self._instance.take_late))

    def close(self) -> None:
        self._call(None, None, self._instance.close)

    def get_partition_state(self, pid: int) -> Any:
        return self._state(pid, self._instance.get_partition_state, pid)

    def install_partition_state(self, pid: int, state: Any) -> None:
        if state is not None:
            self._call(pid, None, self._instance.install_partition_state, pid, state)

    def init_trans(self, pid: int) -> None:
        self._tell(pid, self._instance, "init_trans", pid)

    def end_trans(self, pid: int) -> None:
        self._tell(pid, self._instance, "end_trans", pid)

    def drop_partition(self, pid: int) -> None:
        self._call(pid, None, self._instance.drop_partition, pid)


def keys_of(columns: list[Any]) -> list[tuple[Any, ...]]:
    """Return each row's key. All NaN are one key, as to the hash; to Python they must be one object."""
    values = []
    for column in columns:
        cells = column.to_pylist()
        if pa.types.is_floating(column.type):
            cells = [NAN if cell != cell else cell for cell in cells]
        values.append(cells)
    return list(zip(*values, strict=True))
