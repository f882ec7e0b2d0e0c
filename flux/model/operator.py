"""What a user derives operators from, and what operators are given.

An operator comes in one of three forms. `Operator` has an instance for each partition and is the simplest
to write; `KeyedOperator` sees one row at a time and leaves its state to Flux; `PooledOperator` has one
instance for all partitions of a site and is the fastest. What runs them is in `flux.hosting`, which a user
does not meet.

An operator may also define `init_trans` and `end_trans` (thesis fig. 3.9), to be told before its state is taken or
installed and when that is done, on both sites; those of a `PooledOperator` are given the partition, as its other
methods are.

State is made of plain values, the usual ones of the standard library (sets, dates and times, decimals, ...), numpy
arrays, times of pandas and Arrow tables. Classes of your own in it are named, ``state_types = (Visit, Colour)``:
dataclasses, named tuples, enums and classes whose instances are their attributes. For other values define both of the
static methods ``encode_state(value)``, which returns such state (or NotImplemented), and ``decode_state(state)``, which
returns the value. Nothing is unpickled: what comes from another site makes values of these classes and no others. An
object that is in two places of the state is two objects there: keep it in one, and a key or a number for it elsewhere.

An operator is deterministic: the same input sequence, punctuations included, gives the same output
sequence, whatever the batch boundaries. It never reads the clock and never draws random numbers. Both
copies of a partition rely on it.
"""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from ..types.arrays import ColumnError, schema_of
from ..types.deprecated import warn_renamed
from ..types.errors import PlanError, StateError
from .batch import Batch
from .punctuation import Punctuation
from .timers import Timers

__all__ = [
    "Context",
    "KeyedOperator",
    "Operator",
    "OperatorStep",
    "PooledOperator",
    "Punctuation",
    "Retained",
    "check_constructor",
    "name_of",
    "operator_class",
    "output_of",
]


@dataclass(frozen=True)
class Context:
    """What `open` is told: the parameters of `apply`, and where the instance stands."""

    parameters: dict[str, Any] = field(default_factory=dict)
    # None for an instance that serves several partitions.
    partition: int | None = None
    partitions: int = 1
    step: str = ""
    key_columns: tuple[str, ...] = ()


class Operator:
    """An operator that knows nothing of partitions: one instance serves one (thesis fig. 3.9).

    >>> class Twice(Operator):
    ...     output = {"n": "int64"}
    ...
    ...     def process(self, batch):
    ...         return batch.emit({"n": batch["n"] * 2})
    """

    output: ClassVar[Any] = None
    # The column of what it emits that tells event time as watermarks do: behind a watermark W no row is below W, and at
    # W none is emitted below the one before it. A join within a bound of the column forgets rows by it.
    event_time: str | None = None
    state_types: ClassVar[tuple[type[Any], ...]] = ()
    # Large state is read in a fork of the site, while the site goes on. Say False if a fork cannot do that: because
    # state is in a file, a database or another process, or is read with the help of a thread.
    state_in_memory: ClassVar[bool] = True

    def open(self, context: Context) -> None:
        """Prepare; called once, before anything else."""

    def process(self, batch: Batch) -> Batch | None:
        """Take the next rows; return what `batch.emit` made of them, or None."""
        raise NotImplementedError(f"{type(self).__name__} must define process(self, batch)")

    def on_punctuation(self, p: Punctuation) -> Mapping[str, Any] | None:
        """Return columns to emit at this mark, or None."""
        return None

    def close(self) -> None:
        """Let go of what `open` took."""

    def get_state(self) -> Any:
        """Return msgpack types, bytes, numpy arrays and Arrow tables; or a generator of such pieces."""
        # Losing state silently would be worse than asking: only without attributes is there surely none.
        if vars(self):
            raise StateError(
                f"{type(self).__name__} has the attributes {', '.join(vars(self))} and no get_state, so its "
                "state cannot be copied to another site. Define get_state and install_state; let get_state "
                "return None if the attributes are no state"
            )
        return None

    def install_state(self, state: Any) -> None:
        """Take over one piece of what `get_state` returned elsewhere."""
        raise StateError(f"{type(self).__name__} defines get_state and no install_state. Define both")


class KeyedOperator:
    """An operator that sees one row at a time, with the state of its key, which Flux keeps.

    >>> class Counts(KeyedOperator):
    ...     output = {"src": "int32", "count": "int64"}
    ...
    ...     def on_tuple(self, key, row, state):
    ...         count = (state or 0) + 1
    ...         return count, [{"src": row.src, "count": count}]

    Event time: `set_timer` in on_tuple has `on_timer` called for the key when time has come so far.

    >>> class Silent(KeyedOperator):
    ...     output = {"src": "int32", "since": "int64"}
    ...
    ...     def on_tuple(self, key, row, state):
    ...         self.cancel_timer()
    ...         self.set_timer(row.ts + 60_000)
    ...         return row.ts, None
    ...
    ...     def on_timer(self, key, time, state):
    ...         return None, [{"src": key[0], "since": state}]
    """

    output: ClassVar[Any] = None
    event_time: str | None = None
    state_types: ClassVar[tuple[type[Any], ...]] = ()
    # So the exchange in front must say the key, and its columns must still be there.
    is_by_key: ClassVar[bool] = True
    # Set by whoever runs it, if it defines on_timer.
    _timers: Timers | None = None

    def open(self, context: Context) -> None:
        """Prepare; called once, before anything else."""

    def on_tuple(self, key: tuple[Any, ...], row: Any, state: Any) -> tuple[Any, Iterable[Mapping[str, Any]] | None]:
        """Return the key's new state, and an iterable of dicts to emit or None.

        `key` is a tuple in exchange-column order, `row` a named tuple; `state` is None at first, and
        returning None forgets the key.
        """
        raise NotImplementedError(f"{type(self).__name__} must define on_tuple(self, key, row, state)")

    def on_timer(self, key: tuple[Any, ...], time: int, state: Any) -> tuple[Any, Iterable[Mapping[str, Any]] | None]:
        """Return the same as `on_tuple`; called when a watermark has reached a timer that was set for the key.

        Timers are called by time, and at one time by key. `time` is in milliseconds. Operators that set timers define
        this, and the source says what tells time: ``flow.source(..., event_time="ts")``. At the end of the stream all
        timers that are set are called; those that are set then are not.
        """
        raise NotImplementedError(f"{type(self).__name__} must define on_timer(self, key, time, state)")

    def set_timer(self, time: int | datetime.date) -> None:
        """Have `on_timer` called for the key at hand when event time has come to `time`; in on_tuple or on_timer.

        `time` is in milliseconds, or a datetime, or a date, which is its midnight; without a time zone it is UTC.
        A key may have many timers, one for each time. They stay when its state is forgotten. A timer whose time has
        passed already is called at the next watermark.
        """
        self._need_timers().set(time)

    def cancel_timer(self, time: int | datetime.date | None = None) -> None:
        """Cancel a timer of the key at hand, or all that it has; in on_tuple or on_timer."""
        self._need_timers().cancel(time)

    def _need_timers(self) -> Timers:
        if self._timers is None:
            raise RuntimeError(f"{type(self).__name__} sets timers and must define on_timer(self, key, time, state)")
        return self._timers

    def close(self) -> None:
        """Let go of what `open` took."""


class PooledOperator:
    """An operator that serves all partitions of a site at once; `batch.partition` says which row is whose.

    Rows are cut at punctuations if it defines `on_punctuation`. One that emits nothing then, and only learns from them,
    may be given larger batches by defining ``process_with_punctuations(self, batch, punctuations)`` too: rows, and the
    punctuations among them, each of which stands behind the rows whose `batch.sn` is not above its own. It must come to
    the same. A class derived from such a one that defines `process` or `on_punctuation`, and not this, is given rows
    that are cut.
    """

    output: ClassVar[Any] = None
    event_time: str | None = None
    state_types: ClassVar[tuple[type[Any], ...]] = ()
    # Whether it keeps its state by the columns of the exchange before it, so that these must be there.
    is_by_key: ClassVar[bool] = False
    # Whether what it emits depends on the order of rows, so that the exchange before it must not have order="any".
    needs_order: ClassVar[bool] = False
    # Large state is read in a fork of the site, while the site goes on. Say False if a fork cannot do that: because
    # state is in a file, a database or another process, or is read with the help of a thread.
    state_in_memory: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        if "process_marked" in cls.__dict__:
            warn_renamed(f"{cls.__name__}.process_marked", "process_with_punctuations")
            cls.process_with_punctuations = cls.__dict__["process_marked"]  # type: ignore[attr-defined]

    def open(self, context: Context) -> None:
        """Prepare; called once, before anything else."""

    def process(self, batch: Batch) -> Batch | None:
        """Take the next rows of any partitions; return what `batch.emit` made of them, or None."""
        raise NotImplementedError(f"{type(self).__name__} must define process(self, batch)")

    def on_punctuation(self, p: Punctuation) -> tuple[Mapping[str, Any], Any] | None:
        """Return (columns to emit, partition of each row), rows of one partition in key order; or None."""
        return None

    def close(self) -> None:
        """Let go of what `open` took."""

    def get_partition_state(self, pid: int) -> Any:
        """Return the state of one partition, or a generator of pieces; it stays here until dropped."""
        raise StateError(f"{type(self).__name__} must define get_partition_state(self, pid)")

    def install_partition_state(self, pid: int, state: Any) -> None:
        """Take over one piece of a partition's state, beside what is held of others."""
        raise StateError(f"{type(self).__name__} must define install_partition_state(self, pid, state)")

    def drop_partition(self, pid: int) -> None:
        """Forget a partition that lives elsewhere now."""
        raise StateError(f"{type(self).__name__} must define drop_partition(self, pid)")

    def take_late(self) -> dict[int, int]:
        """Return how many rows came too late so far, as {partition: rows}, of the partitions of which that is news."""
        return {}

    def partition_info(self) -> Mapping[int, Any]:
        """Return what is known of each partition's size, as {partition: number of keys or bytes}."""
        return {}


@dataclass(frozen=True)
class Retained:
    """That a step keeps its rows until the end of the stream: why, with what to do, and of which sources that may not
    come.
    """

    why: str
    endless: tuple[str, ...]

    @property
    def warning(self) -> str:
        """What is to be said where there may be no end; nothing if there is one."""
        if not self.endless:
            return ""
        several = "sources that need not end" if len(self.endless) > 1 else "a source that need not end"
        return f"takes rows of {several}, {', '.join(self.endless)}, and keeps them for ever: {self.why}"


@dataclass(frozen=True)
class OperatorStep:
    """An operator in its place in a plan: everything that is needed to run it."""

    # A class, or any callable without arguments that makes an operator.
    factory: Callable[[], Any]
    parameters: dict[str, Any]
    name: str
    key_columns: tuple[str, ...]
    partitions: int
    # Which field of `sub` is this step's; see flux.model.subseq.
    level: int
    output: Any = None
    kept: Retained | None = None
    # How rows came to their partitions, if they are to be asked whether they still belong there; a `Route`.
    route: Any = None

    def context(self, partition: int | None = None) -> Context:
        return Context(dict(self.parameters), partition, self.partitions, self.name, self.key_columns)


def output_of(factory: Any, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
    """Return the Arrow schema of what an operator emits, or None if it does not say.

    `rows` is the schema of its input, None if unknown. An operator whose output depends on its input, as
    that of a group-by does, has a method ``output_for(parameters, key_columns, rows)`` instead of `output`.
    Such a method is also where an operator refuses parameters, keys and columns that it cannot work with.
    """
    name = name_of(factory)
    says = operator_class(factory, name)
    try:
        if hasattr(says, "output_for") and rows is not None:
            made = _made_by(factory, name) if says is factory else says
            return schema_of(made.output_for(parameters, key_columns, rows))
        return schema_of(getattr(says, "output", None))
    except ColumnError as error:
        raise PlanError(f"operator {name}: {error}") from error


def operator_class(factory: Any, name: str) -> Any:
    """Return what tells of an operator before it runs: its class, or what any other callable makes."""
    return factory if isinstance(factory, type) else _made_by(factory, name)


def name_of(factory: Any) -> str:
    """What a step is called by: the same in every process, so nothing with an address in it."""
    while isinstance(factory, partial):
        factory = factory.func
    return str(getattr(factory, "__name__", None) or type(factory).__name__)


def _made_by(factory: Any, name: str) -> Any:
    """Return a new operator; `PlanError` if it cannot be made as Flux makes it."""
    try:
        return factory()
    except (Exception, SystemExit) as error:
        hint = ". A function of a row goes into map(...) or filter(...)" if inspect.isfunction(factory) else ""
        raise _not_made(error, name, hint) from error


def check_constructor(made: type[Any], name: str) -> None:
    """Raise `PlanError` if a class cannot be made without arguments; none is made to find that out."""
    try:
        signature = inspect.signature(made)
    except ValueError:
        return  # What is written in C need not say.
    try:
        signature.bind()
    except TypeError as error:
        raise _not_made(error, name) from error


def _not_made(error: BaseException, name: str, hint: str = "") -> PlanError:
    return PlanError(
        f"operator {name}: it is made without arguments, and that raised {type(error).__name__}: {error}. Give "
        f"parameters to apply(...); they reach the operator as context.parameters{hint}"
    )
