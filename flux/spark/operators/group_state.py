"""`pandas_with_state`: a function for Spark's `applyInPandasWithState`, unchanged, as a Flux operator.

The function is called with a key, DataFrames and a `GroupState` for each key of a micro-batch. Then it is called for
each key that has timed out. The `GroupState` is Spark's own class; Flux stores what it holds after the call, by Spark's
rules. A key that is neither updated nor removed, and sets no timeout, stays unchanged, and so does its timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from ...types.errors import RAISED, FluxError, PlanError
from ..source.batch_times import check_event_time
from .ddl import struct_of
from .grouping_keys import KeyGroups
from .micro_batch_operator import BatchOperator, Partition, wrap_error
from .pandas_frames import check_pandas, frames_of, from_frame, pandas_key, to_frame
from .row_format import arrow_output, columns_of_batches
from .session_settings import PandasSettings
from .spark_columns import AsSpark, check_key, zone_of
from .spark_values import Fields
from .state_store import Store, Variable

__all__ = ["pandas_with_state"]

_OUTPUT_MODES = ("append", "update")
_TIMEOUTS = (GroupStateTimeout.NoTimeout, GroupStateTimeout.ProcessingTimeTimeout, GroupStateTimeout.EventTimeTimeout)
_NO_TIMEOUT = GroupState.NO_TIMESTAMP


def pandas_with_state(
    func: Callable[..., Any],
    outputStructType: Any,
    stateStructType: Any,
    outputMode: str = "append",
    timeoutConf: str = GroupStateTimeout.NoTimeout,
    *,
    event_time: str | None = None,
    time_zone: str | None = None,
) -> type:
    """Return an operator that runs a function for ``groupBy(...).applyInPandasWithState(...)``.

    The arguments are Spark's. With an event-time timeout, `event_time` names its column in the input; late rows are
    dropped, as in Spark. Times are shown in `time_zone`; by default that of the Spark session, else UTC. Apply it
    after an exchange on the columns of its key.

        sessions = flux.spark.pandas_with_state(count, "id string, n long", "n long", "update", "ProcessingTimeTimeout")
    """
    name = str(getattr(func, "__name__", None) or type(func).__name__)
    owner = f"pandas_with_state({name})"
    if not callable(func):
        raise PlanError(f"{owner}: a function of (key, DataFrames, state) was expected, got {func!r:.100}")
    if not isinstance(outputMode, str) or outputMode.lower() not in _OUTPUT_MODES:
        raise PlanError(f"{owner}: outputMode is 'append' or 'update', got {outputMode!r}; Spark has no other for it")
    if timeoutConf not in _TIMEOUTS:
        raise PlanError(f"{owner}: timeoutConf is {', '.join(_TIMEOUTS)}, got {timeoutConf!r}")
    is_event_time = timeoutConf == GroupStateTimeout.EventTimeTimeout
    if is_event_time and event_time is None:
        raise PlanError(f'{owner}: EventTimeTimeout needs event_time="column", the column of the input that holds it')
    check_pandas(owner)
    output = struct_of(outputStructType, f"{owner}: outputStructType")
    state = struct_of(stateStructType, f"{owner}: stateStructType")
    zone = zone_of(time_zone, owner)
    members = {
        "owner": owner,
        "settings": PandasSettings.of_session(zone),
        "as_spark": AsSpark(zone, widens=True),
        "function": staticmethod(func),
        "output_type": output,
        "arrow": arrow_output(output, owner),
        "state_type": state,
        "timeout": timeoutConf,
        "time_column": event_time if is_event_time else None,
        "has_watermark": event_time is not None,
        "column": event_time,
        "waits_for_watermark": is_event_time,
    }
    Fields(state, owner)
    return type(name, (_FunctionOperator,), members)


class _FunctionPartition(Partition):
    """The state and the time of the timeout of each key; a key may have only one of them."""

    def __init__(self, variable: Variable) -> None:
        super().__init__()
        self.states = Store(variable)
        self.timeouts: dict[Any, int] = {}


class _FunctionOperator(BatchOperator):
    """The operator that calls `function` for each key, as Spark does."""

    owner: str
    settings: PandasSettings
    function: Callable[..., Any]
    output_type: Any
    arrow: Any
    state_type: Any
    timeout: str
    has_watermark: bool
    column: str | None

    def open(self, context: Any) -> None:
        super().open(context)
        self._variable = Variable("state", "value", Fields(self.state_type, f"{self.owner}: the state"))
        self._empty: Any = None

    def output_for(self, parameters: Any, key_columns: tuple[str, ...], rows: Any) -> Any:
        if parameters:
            raise PlanError(f"{self.owner}: apply takes no parameters for it, got {', '.join(parameters)}")
        check_key(key_columns, rows, self.owner)
        rows = self.as_spark.check(rows, self.owner)
        if self.column is not None:
            check_event_time(rows, self.column, self.owner)
        return self.arrow

    def new_partition(self) -> _FunctionPartition:
        return _FunctionPartition(self._variable)

    def run(self, pid: int, partition: Any, groups: KeyGroups | None) -> Any:
        emitted: list[Any] = []
        if groups is not None:
            indices = groups.of(pid)
            self._empty = to_frame(groups.rows.slice(0, 0), self.settings)
            for i, chunks in zip(indices, frames_of(groups, indices, self.settings, from_rows=False), strict=True):
                self._call(pid, partition, groups.keys[i], iter(chunks), False, emitted)
        if self.timeout != GroupStateTimeout.NoTimeout:
            is_event_time = self.timeout == GroupStateTimeout.EventTimeTimeout
            limit_ms = partition.watermark_ms if is_event_time else partition.clock_ms
            expired = [key for key, at_ms in partition.timeouts.items() if at_ms < limit_ms]
            for key in sorted(expired, key=self.keys.order):
                self._call(pid, partition, key, iter([self._no_rows()]), True, emitted)
        return emitted

    def _no_rows(self) -> Any:
        """Return the frame for a key that has timed out; its columns are known, since some row set the timeout."""
        import pandas as pd

        return pd.DataFrame(columns=[] if self._empty is None else self._empty.columns)

    def _call(self, pid: int, partition: Any, key: Any, frames: Any, has_timed_out: bool, emitted: list[Any]) -> None:
        value = partition.states.held.get(key)
        if value is not None and self._variable.fields.is_mutable:
            value = self._variable.fields.fresh(value)  # A change inside it is stored only by an update.
        state = GroupState(
            value,
            partition.clock_ms,
            partition.watermark_ms if self.has_watermark else _NO_TIMEOUT,
            self.timeout,
            has_timed_out,
            self.has_watermark,
            value is not None,
            False,
            False,
            _NO_TIMEOUT,
            b"",
            self.state_type,
        )
        try:
            for frame in self.function(pandas_key(key), frames, state):
                emitted.append(from_frame(frame, self.output_type, self.arrow, self.settings))
            self._store_state(partition, key, state)
        except FluxError:
            raise
        except RAISED as error:
            raise wrap_error(error, self.function, pid, key, partition.batches) from error

    def _store_state(self, partition: Any, key: Any, state: Any) -> None:
        """Store the state after a call of the function, if the call changed it."""
        timeout_ms = int(state._timeout_timestamp)
        if not (state._updated or state._removed or timeout_ms != _NO_TIMEOUT):
            return
        if state._defined:
            partition.states.held[key] = self._variable.fields.keep(tuple(state._value))
        else:
            partition.states.held.pop(key, None)
        if timeout_ms != _NO_TIMEOUT:
            partition.timeouts[key] = timeout_ms
        else:
            partition.timeouts.pop(key, None)

    def columns(self, emitted: list[Any]) -> tuple[dict[str, Any], list[int]]:
        return columns_of_batches(emitted, self.arrow)

    def pieces(self, partition: Any) -> Iterator[dict[str, Any]]:
        if self._empty is not None:
            yield {"columns": list(self._empty.columns)}
        yield from partition.states.pieces(self.keys)
        if partition.timeouts:
            yield {"timeouts": self.keys.pack(list(partition.timeouts)), "at_ms": list(partition.timeouts.values())}

    def install(self, partition: Any, piece: dict[str, Any]) -> None:
        if "state" in piece:
            partition.states.install(piece, self.keys)
        elif "columns" in piece:
            import pandas as pd

            self._empty = pd.DataFrame(columns=piece["columns"])
        elif "timeouts" in piece:
            partition.timeouts.update(zip(self.keys.unpack(piece["timeouts"]), piece["at_ms"], strict=True))
