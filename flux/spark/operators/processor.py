"""`stateful_processor`: a Spark `StatefulProcessor`, unchanged, as a Flux operator.

Each micro-batch of each partition runs as a task of Spark's `transformWithState`: a fresh instance of the processor,
`init`, `handleInputRows` for each key in order, `handleExpiredTimer` for each expired timer in the order of time, and
`close`. Flux holds the state, timers and buffered rows, and transfers them with the partition.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from ...model.error_location import locate
from ...types.errors import RAISED, FluxError, PlanError
from ..source.batch_times import check_event_time
from .ddl import struct_of
from .grouping_keys import KeyGroups, key_order
from .handle import Declarations, Handle
from .initial_state import InitialState
from .key_timers import KeyTimers
from .micro_batch_operator import BatchOperator, Partition
from .row_format import FORMS, ProcessorCall, RowFormat
from .session_settings import PandasSettings
from .spark_columns import check_key, zone_of
from .spark_values import row_type
from .state_store import Store

__all__ = ["stateful_processor"]

_TIME_MODES = ("none", "processingtime", "eventtime")
_OUTPUT_MODES = ("append", "update")


def stateful_processor(
    processor: Any,
    outputStructType: Any,
    outputMode: str = "Append",
    timeMode: str = "None",
    initialState: Any = None,
    eventTimeColumnName: str = "",
    *,
    rows: str = "rows",
    event_time: str | None = None,
    time_zone: str | None = None,
) -> type:
    """Return an operator that runs a `StatefulProcessor`; apply it after an exchange on the columns of its key.

    `processor` is the class, or an instance as Spark takes it. The next arguments are those of Spark's
    ``groupBy(...).transformWithState(...)``; with ``rows="pandas"``, those of ``transformWithStateInPandas``. As in
    Spark, Append and Update are the same. `initialState` is a DataFrame, grouped or not, or anything that
    `flux.sources.Table` takes. With event time, `event_time` names its column in the input. Late rows are dropped, as
    in Spark, and the source must write watermarks (`flux.spark.Stream` of a DataFrame with `withWatermark`, or
    `flux.spark.MicroBatches`). Times are shown in `time_zone`; by default that of the Spark session, else UTC.

        counts = flux.spark.stateful_processor(RunningCount, "id string, count long", timeMode="ProcessingTime")
        flow.source(flux.spark.Stream(df)).exchange("id").apply(counts).sink(...)
    """
    owner = f"stateful_processor({_name_of(processor)})"
    mode = _choice(owner, "timeMode", timeMode, _TIME_MODES)
    _choice(owner, "outputMode", outputMode, _OUTPUT_MODES)
    if rows not in FORMS:
        raise PlanError(f"{owner}: rows is {' or '.join(map(repr, FORMS))}, got {rows!r}")
    output = struct_of(outputStructType, f"{owner}: outputStructType")
    if eventTimeColumnName and eventTimeColumnName not in output.names:
        raise PlanError(f"{owner}: eventTimeColumnName is {eventTimeColumnName!r}; the output has {output.names}")
    if (event_time is not None) != (mode == "eventtime"):
        raise PlanError(
            f'{owner}: timeMode="EventTime" and event_time="column", one of the input, go together; they are '
            f"{timeMode!r} and {event_time!r}"
        )
    plan = _Processor(owner, _maker(processor, owner), mode, InitialState.of(initialState, owner))
    plan.declare()
    form = FORMS[rows](output, PandasSettings.of_session(zone_of(time_zone, owner)), owner)
    members = {
        "plan": plan,
        "form": form,
        "as_spark": form.as_spark,
        "time_column": event_time,
        "waits_for_watermark": mode == "eventtime",
        "__doc__": f"Spark's {_name_of(processor)} as a Flux operator.",
    }
    return type(_name_of(processor), (_ProcessorOperator,), members)


def _name_of(processor: Any) -> str:
    return str(getattr(processor, "__name__", None) or type(processor).__name__)


def _choice(owner: str, name: str, value: Any, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value.lower() not in choices:
        expected = " or ".join(repr(choice) for choice in choices)
        hint = "; Complete needs all keys at once, which no partition has" if str(value).lower() == "complete" else ""
        raise PlanError(f"{owner}: {name} is {expected} in any case, got {value!r}{hint}")
    return value.lower()


def _maker(processor: Any, owner: str) -> Callable[[], Any]:
    """Return a factory of instances, one per micro-batch: copies of the given one, as Spark sends to its tasks."""
    if isinstance(processor, type):
        if not issubclass(processor, StatefulProcessor):
            raise PlanError(f"{owner}: a class derived from pyspark.sql.streaming.StatefulProcessor was expected")
        try:
            prototype = processor()
        except RAISED as error:
            raise PlanError(
                f"{owner}: creating it without arguments raised {type(error).__name__}: {error}. Give an "
                "instance, as Spark takes it, if it needs arguments"
            ) from error
    else:
        prototype = processor
    if not isinstance(prototype, StatefulProcessor):
        raise PlanError(
            f"{owner}: a StatefulProcessor or an instance of one was expected, got a {type(processor).__name__}"
        )
    return lambda: copy.deepcopy(prototype)


@dataclass(frozen=True)
class _Processor:
    """The arguments of `stateful_processor`."""

    owner: str
    make: Callable[[], Any]
    time_mode: str
    initial: InitialState | None

    def declare(self) -> Declarations:
        """Return the states that the processor declares in `init`; refuse what is not supported."""
        declarations = Declarations(self.owner, self.time_mode)
        handle = Handle(declarations, {}, KeyTimers(lambda key: key), 0)
        processor = self.make()
        for call in (partial(processor.init, handle), processor.close):
            try:
                call()
            except FluxError:
                raise
            except RAISED as error:
                place = locate(call, error)
                raise PlanError(f"{self.owner}: {place} raised {type(error).__name__}: {error}") from error
        return declarations


class _ProcessorPartition(Partition):
    """The states and timers of a partition."""

    def __init__(self, timers: KeyTimers) -> None:
        super().__init__()
        self.stores: dict[str, Store] = {}
        self.timers = timers


class _ProcessorOperator(BatchOperator):
    """The operator that runs the processor of `plan`, with rows in the format `form`."""

    plan: _Processor
    form: RowFormat

    def open(self, context: Any) -> None:
        super().open(context)
        self._declarations = self.plan.declare()
        self._key_row = row_type(context.key_columns)

    def output_for(self, parameters: Any, key_columns: tuple[str, ...], rows: Any) -> Any:
        if parameters:
            raise PlanError(
                f"{self.plan.owner}: apply takes no parameters for it, got {', '.join(parameters)}. Give an instance "
                "of the processor that holds them"
            )
        check_key(key_columns, rows, self.plan.owner)
        if self.plan.initial is not None:
            self.plan.initial.check(key_columns, self.as_spark, self.plan.owner)
        rows = self.as_spark.check(rows, self.plan.owner)
        if self.time_column is not None:
            check_event_time(rows, self.time_column, self.plan.owner)
        return self.form.arrow

    def new_partition(self) -> _ProcessorPartition:
        return _ProcessorPartition(KeyTimers(self.keys.order))

    def run(self, pid: int, partition: Any, groups: KeyGroups | None) -> Any:
        has_timers = self.plan.time_mode != "none"
        times = TimerValues(partition.clock_ms, partition.watermark_ms) if has_timers else TimerValues()
        handle = Handle(self._declarations, partition.stores, partition.timers, partition.clock_ms)
        processor = self.plan.make()
        task = ProcessorCall(processor, handle, times, pid, partition)
        task.call(processor.init, None, handle)
        handle.seal()
        initial = None
        if self.plan.initial is not None and partition.batches == 0:
            initial = self.plan.initial.of_partition(pid, self.context.partitions, self.keys, self.as_spark)
        emitted: list[Any] = []
        if initial is not None:
            self._seed(task, initial, groups, emitted)
        elif groups is not None:
            self.form.each_group(task, groups, groups.of(pid), emitted)
        if has_timers:
            upto_ms = partition.watermark_ms if self.plan.time_mode == "eventtime" else partition.clock_ms
            self._fire(task, upto_ms, emitted)
        handle.key = None
        task.call(processor.close, None)
        for store in partition.stores.values():
            if store.variable.ttl_ms is not None:
                store.drop_expired(partition.clock_ms)
        return emitted

    def _seed(self, task: ProcessorCall, initial: KeyGroups, groups: KeyGroups | None, emitted: list[Any]) -> None:
        """Run the first micro-batch of a partition: keys with initial rows get them before their input."""
        indices = groups.of(task.pid) if groups is not None else range(0)
        places = {initial.keys[i]: i for i in range(len(initial.keys))}
        inputs = {groups.keys[i]: i for i in indices} if groups is not None else {}
        keys = list({**places, **inputs})
        for at in key_order(keys, self.keys):
            key = task.handle.key = keys[at]
            if key in places:
                start, stop = initial.starts[places[key]], initial.stops[places[key]]
                self.form.initial(task, key, initial.rows.slice(start, stop - start))
            if groups is not None and key in inputs:
                self.form.each_group(task, groups, range(inputs[key], inputs[key] + 1), emitted)

    def _fire(self, task: ProcessorCall, upto_ms: int, emitted: list[Any]) -> None:
        """Call the processor for each expired timer; a timer set meanwhile waits for the next micro-batch."""
        timers: KeyTimers = task.handle.timers
        for at_ms, key in timers.take_expired(upto_ms):
            task.handle.key = key
            expired = task.processor.handleExpiredTimer
            args = {"key": self._key_row(key), "timerValues": task.times, "expiredTimerInfo": ExpiredTimerInfo(at_ms)}
            produced = task.call(partial(expired, **args), key)
            task.collect(expired, key, self.form.converted(produced), emitted)
            timers.delete(key, at_ms)

    def columns(self, emitted: list[Any]) -> tuple[dict[str, Any], list[int]]:
        return self.form.columns(emitted)

    def pieces(self, partition: Any) -> Iterator[dict[str, Any]]:
        for store in partition.stores.values():
            yield {"declared": store.variable.name}
            yield from store.pieces(self.keys)
        timers = partition.timers.all()
        if timers:
            yield {"timers": self.keys.pack([key for key, _ in timers]), "at_ms": [at_ms for _, at_ms in timers]}

    def install(self, partition: Any, piece: dict[str, Any]) -> None:
        if "state" in piece:
            partition.stores[piece["state"]].install(piece, self.keys)
        elif "declared" in piece:
            partition.stores[piece["declared"]] = Store(self._declarations.by_name(piece["declared"]))
        elif "timers" in piece:
            for key, at_ms in zip(self.keys.unpack(piece["timers"]), piece["at_ms"], strict=True):
                partition.timers.register(key, at_ms)
        else:
            for store in partition.stores.values():
                store.finish_install()
