"""The base classes of operators, and their context.

An operator has one of three forms. `Operator` has an instance for each partition and is the simplest to write.
`KeyedOperator` gets one row at a time and leaves its state to Flux. `PooledOperator` has one instance for all
partitions of a site and is the fastest. `flux.hosting` runs them; users do not call it.

An operator may also define `init_trans` and `end_trans` (thesis fig. 3.9). Flux calls them before its state is read or
installed and when that is done, on both sites. Those of a `PooledOperator` get the partition, as its other methods do.

State consists of plain values, common types of the standard library (sets, dates and times, decimals, ...), numpy
arrays, times of pandas and Arrow tables. Declare your own classes with ``state_types = (Visit, Colour)``: dataclasses,
named tuples, enums and classes whose instances are their attributes. For other values define two static methods:
``encode_state(value)`` returns such state (or NotImplemented), and ``decode_state(state)`` returns the value. Nothing
is unpickled: state from another site can only create values of these classes. An object that occurs twice in the state
becomes two objects there: keep it in one place, and refer to it by a key or a number.

An operator is deterministic: the same input sequence, punctuations included, gives the same output sequence, whatever
the batch boundaries. It never reads the clock and never uses random numbers. Both copies of a partition rely on it.
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
from ..types.errors import RAISED, PlanError, StateError
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
    "waits_for_watermarks",
]


@dataclass(frozen=True)
class Context:
    """The argument of `open`: the parameters of `apply`, and the place of the instance in the dataflow."""

    parameters: dict[str, Any] = field(default_factory=dict)
    # None for an instance that serves several partitions.
    partition: int | None = None
    partitions: int = 1
    step: str = ""
    key_columns: tuple[str, ...] = ()


class Operator:
    """An operator without knowledge of partitions: each partition has its own instance (thesis fig. 3.9).

    >>> class Twice(Operator):
    ...     output = {"n": "int64"}
    ...
    ...     def process(self, batch):
    ...         return batch.emit({"n": batch["n"] * 2})
    """

    output: ClassVar[Any] = None
    # The output column that holds event time and follows watermarks: after a watermark W no row is below W, and at W no
    # emitted row is below the previous watermark. A join within a bound of the column drops rows by it.
    event_time: str | None = None
    state_types: ClassVar[tuple[type[Any], ...]] = ()
    # Large state is read in a fork of the site, while the site continues. Set False if a fork cannot read it: the
    # state is in a file, a database or another process, or reading it needs a thread.
    state_in_memory: ClassVar[bool] = True

    def open(self, context: Context) -> None:
        """Prepare; called once, before anything else."""

    def process(self, batch: Batch) -> Batch | None:
        """Process the next rows; return the result of `batch.emit`, or None."""
        raise NotImplementedError(f"{type(self).__name__} must define process(self, batch)")

    def on_punctuation(self, p: Punctuation) -> Mapping[str, Any] | None:
        """Return columns to emit at this punctuation, or None."""
        return None

    def close(self) -> None:
        """Release what `open` acquired."""

    def get_state(self) -> Any:
        """Return msgpack types, bytes, numpy arrays and Arrow tables; or a generator of such pieces."""
        # Losing state silently would be worse than raising: only an instance without attributes has no state for sure.
        if vars(self):
            raise StateError(
                f"{type(self).__name__} has the attributes {', '.join(vars(self))} and no get_state, so its "
                "state cannot be copied to another site. Define get_state and install_state; let get_state "
                "return None if the attributes are not state"
            )
        return None

    def install_state(self, state: Any) -> None:
        """Install one piece of the state that `get_state` returned on another site."""
        raise StateError(f"{type(self).__name__} defines get_state and no install_state. Define both")


class KeyedOperator:
    """An operator that gets one row at a time, with the state of its key, which Flux keeps.

    >>> class Counts(KeyedOperator):
    ...     output = {"src": "int32", "count": "int64"}
    ...
    ...     def on_tuple(self, key, row, state):
    ...         count = (state or 0) + 1
    ...         return count, [{"src": row.src, "count": count}]

    Event time: after `set_timer` in on_tuple, `on_timer` is called for the key when event time has reached it.

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
    # So the exchange before it must declare the key, and the key columns must still be there.
    is_by_key: ClassVar[bool] = True
    # Set by the host, if the operator defines on_timer.
    _timers: Timers | None = None

    def open(self, context: Context) -> None:
        """Prepare; called once, before anything else."""

    def on_tuple(self, key: tuple[Any, ...], row: Any, state: Any) -> tuple[Any, Iterable[Mapping[str, Any]] | None]:
        """Return the key's new state, and an iterable of dicts to emit or None.

        `key` is a tuple in exchange-column order, `row` a named tuple. `state` is None at first; returning None drops
        the key.
        """
        raise NotImplementedError(f"{type(self).__name__} must define on_tuple(self, key, row, state)")

    def on_timer(self, key: tuple[Any, ...], time: int, state: Any) -> tuple[Any, Iterable[Mapping[str, Any]] | None]:
        """Return the same as `on_tuple`; called when a watermark has reached a timer of the key.

        Timers fire in order of time, then of key. `time` is in milliseconds. Operators that set timers define this
        method, and the source names its event time column: ``flow.source(..., event_time="ts")``, or a stream after it:
        ``stream.event_time("ts")``. At the end of the stream all remaining timers fire; timers set then do not.
        """
        raise NotImplementedError(f"{type(self).__name__} must define on_timer(self, key, time, state)")

    def set_timer(self, time: int | datetime.date) -> None:
        """Set a timer for the current key: `on_timer` is called when event time reaches `time`.

        Call it in on_tuple or on_timer. `time` is in milliseconds, or a datetime, or a date (its midnight); without a
        time zone it is UTC. A key may have many timers, one for each time. They stay when its state is dropped. A timer
        whose time has already passed fires at the next watermark.
        """
        self._need_timers().set(time)

    def cancel_timer(self, time: int | datetime.date | None = None) -> None:
        """Cancel one timer of the current key, or all of them; in on_tuple or on_timer."""
        self._need_timers().cancel(time)

    def _need_timers(self) -> Timers:
        if self._timers is None:
            raise RuntimeError(f"{type(self).__name__} sets timers and must define on_timer(self, key, time, state)")
        return self._timers

    def close(self) -> None:
        """Release what `open` acquired."""


class PooledOperator:
    """An operator that serves all partitions of a site at once; `batch.partition` holds the partition of each row.

    If it defines `on_punctuation`, batches are cut at punctuations. An operator that emits nothing at punctuations can
    get larger batches: it also defines ``process_with_punctuations(self, batch, punctuations)``, which gets rows with
    the punctuations among them. Each punctuation follows the rows whose `batch.sn` is not above its own. The result
    must be the same. A subclass that defines `process` or `on_punctuation`, and not this method, gets cut batches.
    """

    output: ClassVar[Any] = None
    event_time: str | None = None
    state_types: ClassVar[tuple[type[Any], ...]] = ()
    # Whether its state is keyed by the columns of the exchange before it, so that these must be there.
    is_by_key: ClassVar[bool] = False
    # Whether its output depends on the order of rows, so that the exchange before it must not have order="any".
    needs_order: ClassVar[bool] = False
    # Large state is read in a fork of the site, while the site continues. Set False if a fork cannot read it: the
    # state is in a file, a database or another process, or reading it needs a thread.
    state_in_memory: ClassVar[bool] = True
    # The parameters that may change while rows flow, with the state as it is: what `on_change` takes. None: any.
    changeable: ClassVar[tuple[str, ...] | None] = None

    def __init_subclass__(cls) -> None:
        if "process_marked" in cls.__dict__:
            warn_renamed(f"{cls.__name__}.process_marked", "process_with_punctuations")
            cls.process_with_punctuations = cls.__dict__["process_marked"]  # type: ignore[attr-defined]

    def open(self, context: Context) -> None:
        """Prepare; called once, before anything else."""

    def process(self, batch: Batch) -> Batch | None:
        """Process the next rows of any partitions; return the result of `batch.emit`, or None."""
        raise NotImplementedError(f"{type(self).__name__} must define process(self, batch)")

    def on_punctuation(self, p: Punctuation) -> tuple[Mapping[str, Any], Any] | None:
        """Return (columns to emit, partition of each row), rows of one partition in key order; or None."""
        return None

    def close(self) -> None:
        """Release what `open` acquired."""

    def get_partition_state(self, pid: int) -> Any:
        """Return the state of one partition, or a generator of pieces; this instance keeps it until it is dropped."""
        raise StateError(f"{type(self).__name__} must define get_partition_state(self, pid)")

    def install_partition_state(self, pid: int, state: Any) -> None:
        """Install one piece of a partition's state, beside the state of other partitions."""
        raise StateError(f"{type(self).__name__} must define install_partition_state(self, pid, state)")

    def drop_partition(self, pid: int) -> None:
        """Drop the state of a partition that has moved to another site."""
        raise StateError(f"{type(self).__name__} must define drop_partition(self, pid)")

    def take_late(self) -> dict[int, int]:
        """Return the late-row counts that changed since the last call, as {partition: rows up to now}."""
        return {}

    @classmethod
    def waits_for_watermarks(cls, parameters: Mapping[str, Any]) -> bool:
        """Return whether it emits, or drops from its state, only what watermarks have passed, with these parameters."""
        return False

    def partition_info(self) -> Mapping[int, Any]:
        """Return the size of each partition where it is known, as {partition: number of keys or bytes}."""
        return {}


@dataclass(frozen=True)
class Retained:
    """A step that keeps its rows until the end of the stream: why, what to do, and which sources may never end."""

    why: str
    endless: tuple[str, ...]

    @property
    def warning(self) -> str:
        """The warning if a source may never end; empty if all of them end."""
        if not self.endless:
            return ""
        several = "sources that need not end" if len(self.endless) > 1 else "a source that need not end"
        return f"takes rows of {several}, {', '.join(self.endless)}, and keeps them for ever: {self.why}"


@dataclass(frozen=True)
class OperatorStep:
    """An operator at its place in a plan: everything that is needed to run it."""

    # A class, or any callable without arguments that returns an operator.
    factory: Callable[[], Any]
    parameters: dict[str, Any]
    name: str
    key_columns: tuple[str, ...]
    partitions: int
    # Which field of `sub` is this step's; see flux.model.subseq.
    level: int
    output: Any = None
    kept: Retained | None = None
    # The `Route` that assigned rows to partitions, if the host must check that rows still belong to theirs.
    route: Any = None
    # The schema of its input, if it is known.
    rows: Any = None

    def context(self, partition: int | None = None) -> Context:
        return Context(dict(self.parameters), partition, self.partitions, self.name, self.key_columns)


def output_of(factory: Any, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
    """Return the Arrow schema of an operator's output, or None if it is not declared.

    `rows` is the schema of its input, None if unknown. An operator whose output depends on its input, such as a
    group-by, has a method ``output_for(parameters, key_columns, rows)`` instead of `output`. That method also refuses
    parameters, keys and columns with which the operator cannot work.
    """
    name = name_of(factory)
    declaring = operator_class(factory, name)
    try:
        if hasattr(declaring, "output_for") and rows is not None:
            operator = _instance_of(factory, name) if declaring is factory else declaring
            return schema_of(operator.output_for(parameters, key_columns, rows))
        return schema_of(getattr(declaring, "output", None))
    except ColumnError as error:
        raise PlanError(f"operator {name}: {error}") from error


def operator_class(factory: Any, name: str) -> Any:
    """Return the object that declares an operator before it runs: its class, or what another callable returns."""
    return factory if isinstance(factory, type) else _instance_of(factory, name)


def waits_for_watermarks(step: OperatorStep) -> bool:
    """Return whether a step keeps something back until watermarks come: windows, timers, rows for a join."""
    declaring = operator_class(step.factory, step.name)
    kind = declaring if isinstance(declaring, type) else type(declaring)
    if issubclass(kind, KeyedOperator):
        return kind.on_timer is not KeyedOperator.on_timer
    return issubclass(kind, PooledOperator) and kind.waits_for_watermarks(step.parameters)


def has_transferable_state(step: OperatorStep) -> bool:
    """Return whether a step's class defines how its state goes to another site.

    Without that a transfer ends the run, unless an instance has no attributes.
    """
    declaring = operator_class(step.factory, step.name)
    kind = declaring if isinstance(declaring, type) else type(declaring)
    if issubclass(kind, PooledOperator):
        return kind.get_partition_state is not PooledOperator.get_partition_state
    return not issubclass(kind, Operator) or kind.get_state is not Operator.get_state


def name_of(factory: Any) -> str:
    """Return the name of a step: the same in every process, so without any memory address."""
    while isinstance(factory, partial):
        factory = factory.func
    return str(getattr(factory, "__name__", None) or type(factory).__name__)


def _instance_of(factory: Any, name: str) -> Any:
    """Return a new operator; `PlanError` if the factory raises without arguments."""
    try:
        return factory()
    except RAISED as error:
        hint = ". A function of a row goes into map(...) or filter(...)" if inspect.isfunction(factory) else ""
        raise _creation_error(error, name, hint) from error


def check_constructor(operator: type[Any], name: str) -> None:
    """Raise `PlanError` if a class cannot be instantiated without arguments; only its signature is inspected."""
    try:
        signature = inspect.signature(operator)
    except ValueError:
        return  # A class written in C may have no signature.
    try:
        signature.bind()
    except TypeError as error:
        raise _creation_error(error, name) from error


def _creation_error(error: BaseException, name: str, hint: str = "") -> PlanError:
    return PlanError(
        f"operator {name}: it is made without arguments, and that raised {type(error).__name__}: {error}. Give "
        f"parameters to apply(...); they reach the operator as context.parameters{hint}"
    )
