"""The common base of hosts, which run operators: errors with their location, and checked output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import GeneratorType
from typing import Any

import numpy as np

from ..model.batch import Batch, punctuation_rows
from ..model.error_location import columns_hint, locate
from ..model.operator import OperatorStep, Punctuation
from ..types.arrays import ColumnError, record_batch_of
from ..types.errors import RAISED, FluxError, OperatorError
from ..types.infer import PartialSchema, concat, extend_schema
from ..types.to_python import format_row
from ..wire.state_types import PLAIN, StateTypes
from .key_check import check_key_kept
from .state_change import StateChange

ROW_WAS = "; the row was "
_ADVICE = 'Fix the operator, or let on_error="skip" drop and count the rows for which it raises'


class Hosted:
    """An operator and its partitions on this site.

    Abstract: each form of operator has a subclass that defines all of these methods.
    """

    words: StateTypes = PLAIN  # The types of which the state consists.
    has_instance_by_partition = False  # Whether each partition has an operator of its own.
    holds_states_itself = False  # Whether another instance has the states without any call of user code.

    def __init__(self, step: OperatorStep, state_in_memory: bool = True) -> None:
        self.step = step
        self.state_in_memory = state_in_memory  # Whether a fork of this process has the state too.
        # Declared, or else inferred from the output up to now.
        self._output = step.output

    def open(self, partitions_held: Iterable[int]) -> None:
        raise NotImplementedError

    @property
    def partition_opened(self) -> int | None:
        """The partition whose instance was opened last, or is being opened; None if one instance has all."""
        return None

    def work(self, rows: Batch | None, punctuations: Sequence[Punctuation]) -> Batch | None:
        """Return the output for rows and the punctuations among them; rows are cut at punctuations if it needs them."""
        if not self.needs_punctuations:
            punctuations = ()
        parts: list[Batch | None] = []
        for punctuation in punctuations:
            before, rows = _split(rows, punctuation.sn)
            parts += [None if before is None else self.process(before), self.punctuate(punctuation)]
        parts.append(None if rows is None else self.process(rows))
        emitted = [part for part in parts if part is not None]
        # The output of rows with a punctuation's number and the rows it caused itself are interleaved.
        return Batch.concat(emitted).ordered() if len(emitted) > 1 else emitted[0] if emitted else None

    @property
    def takes_punctuations(self) -> bool:
        """Whether the operator takes rows together with the punctuations among them."""
        return False

    @property
    def needs_punctuations(self) -> bool:
        """Whether the operator handles punctuations."""
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
        """Install one piece of a partition's state; the first one adds the partition to this site."""
        raise NotImplementedError

    def drop_partition(self, pid: int) -> None:
        raise NotImplementedError

    def init_trans(self, pid: int) -> None:
        """Call the operator's `init_trans`, if it has one, before a partition's state is read or installed."""
        raise NotImplementedError

    def end_trans(self, pid: int) -> None:
        """Call `end_trans` when the transfer is done and nothing refers to the state (thesis fig. 3.9)."""
        raise NotImplementedError

    def words_of(self, pid: int) -> StateTypes:
        """Return the types of which the state of a partition consists."""
        return self.words

    # Changes of code.

    def take_over(self, before: Hosted, pid: int, change: StateChange) -> None:
        """Take a partition over from the host of the edition before this one, with its state as it is here."""
        if change.drops:
            self.install_partition_state(pid, None)
            before.drop_partition(pid)
            return
        before.init_trans(pid)
        state = before.get_partition_state(pid)
        self.init_trans(pid)
        for piece in state if isinstance(state, GeneratorType) else [state]:
            self.install_partition_state(pid, self.changed(pid, piece, change))
        before.end_trans(pid)
        self.end_trans(pid)
        before.drop_partition(pid)

    def changed(self, pid: int, piece: Any, change: StateChange) -> Any:
        """Return a piece of state of the edition before as it is in this one."""
        if piece is None or change.is_none:
            return piece
        if change.migrate is not None:
            return self._call(pid, None, change.migrate, piece)
        return self._call(pid, None, self.operator(pid).upgrade_state, piece, change.from_version)

    def operator(self, pid: int) -> Any:
        """Return the user's operator that has a partition."""
        raise NotImplementedError

    def go_on_as(self, step: OperatorStep) -> None:
        """Go on as the next edition, with the state of all partitions as it is."""
        was, self.step = self.step, step
        self.on_change(None, was, step)

    def on_change(self, pid: int | None, was: OperatorStep, step: OperatorStep) -> None:
        """Have the operator of a partition, or the only one, go on as `step` says."""
        if was.parameters == step.parameters:
            return
        operator = self.operator(-1 if pid is None else pid)
        self._call(pid, None, operator.on_change, step.context(pid if self.has_instance_by_partition else None))

    def change_some_state(self) -> bool:
        """Change some state that is still of an edition before; return whether there was any."""
        return False

    def take_late(self) -> dict[int, int]:
        return {}  # See PooledOperator.

    def time_partitions(self) -> None:
        """Time the calls that are for one partition, from now on; of other calls that would say nothing."""

    def take_costs(self) -> dict[int, float]:
        """Return the seconds that the calls for each partition took since the last call, if they are timed."""
        return {}

    def key_counts(self) -> dict[int, int]:
        """Return how many keys the state of each partition has, if that costs nothing to know."""
        return {}

    @property
    def output(self) -> Any:
        """The schema of its output as far as it is known: a schema, a `PartialSchema` or None."""
        return self._output

    def learn(self, output: Any) -> None:
        """Adopt the output schema of another host of the same step."""
        self._output = output

    # Used by the subclasses.

    def _call_optional(self, pid: int, instance: Any, name: str, *args: Any) -> None:
        """Call a method that an operator need not define."""
        method = getattr(instance, name, None)
        if method is not None:
            self._call(pid, None, method, *args)

    def _state(self, pid: int, function: Callable[..., Any], *args: Any) -> Any:
        """Return a partition's state from user code; a generator of pieces runs later, in another process."""
        state = self._call(pid, None, function, *args)
        return self._pieces(pid, function, state) if isinstance(state, GeneratorType) else state

    def _pieces(self, pid: int, function: Callable[..., Any], state: Any) -> Iterator[Any]:
        # The first piece is empty, so that a state without pieces, too, adds the partition to the other site.
        yield None
        try:
            yield from state
        except FluxError:
            raise
        except RAISED as error:
            raise self._operator_error(error, function, pid, None) from error

    def _as_input(self, batch: Batch) -> Batch:
        if self.step.route is not None:
            check_key_kept(self.step, batch)
        return batch.for_step(self.step.level, self._output, self.step.name)

    def _call(self, partition: int | None, rows: Batch | None, function: Callable[..., Any], *args: Any) -> Any:
        """Call user code; add step, partition and row to what it raises."""
        try:
            return function(*args)
        except OperatorError as error:
            error.step = self.step.name if error.step is None else error.step
            error.partition = partition if error.partition is None else error.partition
            raise
        except FluxError:
            raise
        except RAISED as error:
            raise self._operator_error(error, function, partition, rows) from error

    def _new_operator(self, partition: int | None) -> Any:
        """Return a new instance of the user's operator."""
        try:
            return self._call(partition, None, self.step.factory)
        except OperatorError as error:
            raise OperatorError(
                f"{error.args[0]}. An operator is made without arguments: give parameters to apply(...); they reach it "
                "as context.parameters",
                error.step,
                error.partition,
            ) from error

    def _operator_error(
        self, error: BaseException, function: Callable[..., Any], partition: int | None, rows: Batch | None
    ) -> OperatorError:
        text = f"{locate(function, error)} raised {type(error).__name__}: {error}{columns_hint(error)}"
        if rows is None or not len(rows):
            return OperatorError(text, self.step.name, partition)
        reached = rows.reached()
        if reached is None:
            given = f"it was given the rows of sn {rows.sn[0]} to {rows.sn[-1]}"
            return OperatorError(f"{text}; {given}. {_ADVICE}", self.step.name, partition)
        text = f"{text}{ROW_WAS}{format_row(rows.arrow, reached):.500}. {_ADVICE}"
        return OperatorError(text, self.step.name, int(rows.partition[reached]), int(rows.sn[reached]))

    def _check_output(self, emitted: Any, rows: Batch, function: Callable[..., Any]) -> Batch | None:
        """Return the output of `function`; raise unless it was emitted from `rows`."""
        if emitted is None or (isinstance(emitted, Batch) and len(emitted) == 0):
            return None
        if not isinstance(emitted, Batch):
            raise OperatorError(
                f"{locate(function)} returned {type(emitted).__name__}; expected what batch.emit(...) returns",
                self.step.name,
            )
        if emitted is rows:
            # An operator may forward rows unchanged; without a declared output, their schema is its output.
            self._extend_output(rows.arrow.schema)
            rows.output = self._output
            emitted = rows.emit(dict(zip(rows.arrow.schema.names, rows.arrow.columns, strict=True)))
        assert isinstance(emitted, Batch)
        origin = emitted.origin
        if origin is None or origin[-1] >= len(rows) or not np.array_equal(emitted.sn, rows.sn[origin]):
            raise OperatorError(
                f"{locate(function)} returned a batch that was not emitted from the batch it was given. Keep "
                "values, not batches, and emit them from the batch whose row completes them",
                self.step.name,
            )
        self._extend_output(emitted.arrow.schema)
        return emitted

    def _extend_output(self, schema: Any) -> None:
        if self._output is None or isinstance(self._output, PartialSchema):
            self._output = extend_schema(self._output, schema)

    def _caused_rows(self, parts: list[tuple[Any, Any]], p: Punctuation) -> Batch | None:
        """Return the rows that a punctuation caused, from parts of (columns, partition of each row)."""
        arrows, partitions = [], []
        for columns, partition in parts:
            try:
                arrow = record_batch_of(columns, self._output)
            except ColumnError as error:
                places = np.ravel(partition)
                given = None if error.place is None else int(places[min(error.place, len(places) - 1)])
                raise OperatorError(f"on_punctuation: {error}", self.step.name, given, p.sn) from error
            if np.ndim(partition) and len(partition) != arrow.num_rows:
                raise ColumnError(f"{len(partition)} partitions for {arrow.num_rows} rows")
            if arrow.num_rows:
                self._extend_output(arrow.schema)
                arrows.append(arrow)
                partitions.append(np.broadcast_to(np.asarray(partition, np.uint16), (arrow.num_rows,)))
        if not arrows:
            return None
        rows = concat(arrows)
        return punctuation_rows(rows, p.sn, np.concatenate(partitions), self.step.level, self._output, self.step.name)


def _split(rows: Batch | None, sn: int) -> tuple[Batch | None, Batch | None]:
    """Return the rows up to a punctuation and the rows after it."""
    if rows is None:
        return None, None
    # Rows that the punctuation caused in the stage before have its number and precede it.
    cut = int(np.searchsorted(rows.sn, sn, side="right"))
    return rows.slice(0, cut) if cut else None, rows.slice(cut, len(rows)) if cut < len(rows) else None
