"""What the forms of operators have in common when they are run: errors with their place, and output that is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import GeneratorType
from typing import Any

import numpy as np

from ..model.batch import Batch, punctuation_rows
from ..model.error_location import columns_hint, locate
from ..model.operator import OperatorStep, Punctuation
from ..types.arrays import ColumnError, record_batch_of
from ..types.errors import FluxError, OperatorError
from ..types.infer import PartialSchema, concat, extend_schema
from ..types.to_python import format_row
from ..wire.state_types import PLAIN, StateTypes
from .key_check import check_key_kept

ROW_WAS = "; the row was "
# A library that calls sys.exit() must not end a site as if that were in order.
RAISED = (Exception, SystemExit)
_ADVICE = 'Mend the operator, or let on_error="skip" leave out and count the rows for which it raises'


class Hosted:
    """An operator and the partitions of it that live here.

    Abstract: each form of operator has a subclass that defines all of these methods.
    """

    words: StateTypes = PLAIN  # Of which the state is made.

    def __init__(self, step: OperatorStep, state_in_memory: bool = True) -> None:
        self.step = step
        self.state_in_memory = state_in_memory  # Whether a fork of this process has the state too.
        # Declared, or else what the output has told so far.
        self._output = step.output

    def open(self, partitions_held: Iterable[int]) -> None:
        raise NotImplementedError

    def work(self, rows: Batch | None, punctuations: Sequence[Punctuation]) -> Batch | None:
        """Return what comes of rows and of the punctuations among them; they are cut where one is heeded."""
        if not self.needs_punctuations:
            punctuations = ()
        parts: list[Batch | None] = []
        for mark in punctuations:
            before, rows = _split(rows, mark.sn)
            parts += [None if before is None else self.process(before), self.punctuate(mark)]
        parts.append(None if rows is None else self.process(rows))
        made = [part for part in parts if part is not None]
        # What rows with a punctuation's number became, and what it caused itself, are among each other.
        return Batch.concat(made).ordered() if len(made) > 1 else made[0] if made else None

    @property
    def takes_punctuations(self) -> bool:
        """Whether the operator takes rows and the punctuations among them together."""
        return False

    @property
    def needs_punctuations(self) -> bool:
        """Whether the operator wants to hear of punctuations."""
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

    @property
    def output(self) -> Any:
        """What is known of its output: a schema, a `PartialSchema` or None."""
        return self._output

    def learn(self, output: Any) -> None:
        """Go on with what another one knows, of the same step."""
        self._output = output

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
        except RAISED as error:
            raise self._raised(error, function, pid, None) from error

    def _ours(self, batch: Batch) -> Batch:
        if self.step.route is not None:
            check_key_kept(self.step, batch)
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
        except RAISED as error:
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
        text = f"{locate(function, error)} raised {type(error).__name__}: {error}{columns_hint(error)}"
        if rows is None or not len(rows):
            return OperatorError(text, self.step.name, partition)
        reached = rows.reached()
        if reached is None:
            given = f"it was given the rows of sn {rows.sn[0]} to {rows.sn[-1]}"
            return OperatorError(f"{text}; {given}. {_ADVICE}", self.step.name, partition)
        text = f"{text}{ROW_WAS}{format_row(rows.arrow, reached):.500}. {_ADVICE}"
        return OperatorError(text, self.step.name, int(rows.partition[reached]), int(rows.sn[reached]))

    def _checked(self, emitted: Any, rows: Batch, function: Callable[..., Any]) -> Batch | None:
        """Return what `function` made of `rows`, or raise if it was made of something else."""
        if emitted is None or (isinstance(emitted, Batch) and len(emitted) == 0):
            return None
        if not isinstance(emitted, Batch):
            raise OperatorError(
                f"{locate(function)} returned {type(emitted).__name__}; expected what batch.emit(...) returns",
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
                f"{locate(function)} returned a batch that was not emitted from the batch it was given. Keep "
                "values, not batches, and emit them from the batch whose row completes them",
                self.step.name,
            )
        self._pin(emitted.arrow.schema)
        return emitted

    def _pin(self, schema: Any) -> None:
        if self._output is None or isinstance(self._output, PartialSchema):
            self._output = extend_schema(self._output, schema)

    def _caused(self, parts: list[tuple[Any, Any]], p: Punctuation) -> Batch | None:
        """Return the rows a punctuation caused, of (columns, partition of each row)."""
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
                self._pin(arrow.schema)
                arrows.append(arrow)
                partitions.append(np.broadcast_to(np.asarray(partition, np.uint16), (arrow.num_rows,)))
        if not arrows:
            return None
        rows = concat(arrows)
        return punctuation_rows(rows, p.sn, np.concatenate(partitions), self.step.level, self._output, self.step.name)


def _split(rows: Batch | None, sn: int) -> tuple[Batch | None, Batch | None]:
    """Cut rows at a punctuation."""
    if rows is None:
        return None, None
    # Rows that the mark caused in the stage before carry its number and come before it.
    cut = int(np.searchsorted(rows.sn, sn, side="right"))
    return rows.slice(0, cut) if cut else None, rows.slice(cut, len(rows)) if cut < len(rows) else None
