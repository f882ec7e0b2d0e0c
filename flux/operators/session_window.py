"""Session windows of event time: aggregates of the rows of each key that are close to each other in time.

A session has no fixed length. It continues as long as rows arrive that are less than `gap_ms` of event time apart. It
is over when the watermark says that no such row can follow. `session_panes` finds the sessions. This file has the
parameters, the late rows and the output.

Rows are buffered until a watermark may close a session. So watermarks that close none are cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..model.batch import Batch
from ..model.event_time import window_type
from ..model.operator import Context, PooledOperator
from ..model.punctuation import Punctuation
from ..types.array_types import Int64s, Pids
from ..types.arrays import ColumnError
from ..types.errors import OperatorError, PlanError
from .aggregates import Aggregate, entry_name, parse_aggregates
from .event_time_state import END_OF_TIME, EventClock, check_ms, check_time_column, instants_of
from .keys import check_keys
from .row_groups import emitted_schema, unknown_parameters
from .session_panes import ClosedSessions, SessionPanes
from .value_log import made_by_user

__all__ = ["SessionWindow"]

_PARAMETERS = ("time", "gap_ms", "aggregates")
_BUFFER_ROWS = 65_536  # So many rows are buffered before they are added.


@dataclass(frozen=True)
class _SessionSettings:
    """The parameters of `apply(SessionWindow, ...)`."""

    time: str
    gap_ms: int
    aggregates: tuple[Aggregate, ...]

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> _SessionSettings:
        time, gap = parameters.get("time"), parameters.get("gap_ms")
        if not isinstance(time, str):
            raise ColumnError(f"time is the column of event time, such as time='ts'; got {time!r}")
        check_ms("gap_ms", gap)
        assert isinstance(gap, int)
        return cls(time, gap, parse_aggregates(parameters.get("aggregates"), values_kept=True))


@dataclass(frozen=True)
class _BufferedRows:
    """Rows that are not late and have not been added yet, with their partitions and event times."""

    rows: pa.RecordBatch
    partition: Pids
    instants: Int64s


class SessionWindow(PooledOperator):
    """For each key, aggregates of the rows in each session of event time.

    >>> import flux
    >>> flow = flux.Dataflow("clicks")
    >>> rows = [("ann", 100, 1), ("bob", 200, 5), ("ann", 900, 2), ("ann", 1_900, 4)]
    >>> table = flux.sources.Table([dict(zip(("user", "ts", "price"), row)) for row in rows])
    >>> clicks = flow.source(table, event_time="ts", lateness_ms=100).exchange("user", partitions=4)
    >>> aggregates = {"clicks": "count", "total": ("sum", "price")}
    >>> clicks.apply(SessionWindow, time="ts", gap_ms=1_000, aggregates=aggregates).sink(flux.sinks.Collect())
    >>> flow.run(sites=2).table.sort_by([("user", "ascending"), ("window_start", "ascending")]).to_pylist()[0]
    {'user': 'ann', 'window_start': 100, 'window_end': 1900, 'clicks': 2, 'total': 3}

    Parameters of `apply`: `time`, the column of event time (as `event_time` of the source); `gap_ms`; `aggregates`, see
    `flux.operators.aggregates`. The key is that of the exchange before it; nulls are a key like any other, and all NaN
    are one.

    Two rows of a key are in one session if their event times differ by less than `gap_ms`, or if rows between them
    connect them so. A row exactly `gap_ms` after the last one begins a new session. `window_start` is the time of the
    earliest row. `window_end` is the time of the latest row plus `gap_ms`: the first instant at which a row would not
    belong to the session. An out-of-order row may join two open sessions into one.

    A watermark that has reached the end of a session closes it: the key columns, `window_start`, `window_end` and the
    aggregates are emitted. The end of the stream closes all sessions.

    The sessions that one watermark closes are emitted in the same order in every run, whatever processes fail. Within a
    partition the order is by `window_end` and then by key, ascending, with NaN after all other floats and nulls last.
    Partitions take turns: the first row of each, in the order of their numbers, then the second of each, and so on. So
    another number of partitions gives another order; where that matters, sort the output.

    A row is late if the watermark has reached its time plus `gap_ms`, so that a session of this row alone would have
    been closed. It is dropped and counted (`report.late`), even if it is in the middle of an open session. So is a row
    without event time. An out-of-order row that is not late joins open sessions, never closed ones.

    Sums of floats are added in row order within a pane of `gap_ms`; those of a session are the sums of its panes, from
    the oldest to the newest. So they do not depend on the batches. State is one entry for each open session, and a few
    more for rows that may still be out of order. Quantiles and a user's functions keep the rows of open sessions.
    """

    is_by_key = True
    needs_order = True
    # A session ends after the watermark before the one that closes it: else that would have closed it.
    event_time = "window_end"

    def output_for(self, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
        unknown_parameters("SessionWindow", list(parameters), _PARAMETERS)
        settings = _SessionSettings.of(parameters)
        check_time_column(settings.time, rows)
        end = window_type(rows.field(settings.time).type)
        fields = check_keys(key_columns, rows)
        fields += [pa.field("window_start", end), pa.field("window_end", end)]
        return emitted_schema([*fields, *(pa.field(each.name, each.type_for(rows)) for each in settings.aggregates)])

    def open(self, context: Context) -> None:
        self._step, self._key = context.step, context.key_columns
        unknown_parameters(context.step, list(context.parameters), _PARAMETERS)
        try:
            self._settings = _SessionSettings.of(context.parameters)
        except ColumnError as error:
            raise PlanError(f"step {context.step!r}: {error}") from error
        if not self._key:
            raise PlanError(f"step {context.step!r}: SessionWindow groups by its exchange's columns. Put one before it")
        # Only the columns that are read are kept.
        used = (column for each in self._settings.aggregates for column in each.columns)
        self._needed = list(dict.fromkeys([*self._key, self._settings.time, *used]))
        self._clock = EventClock(context.partitions)
        self._schema: pa.Schema | None = None
        self._panes: SessionPanes | None = None
        self._clear_buffer()
        self._set_floor()

    def _clear_buffer(self) -> None:
        self._buffer: list[_BufferedRows] = []
        self._buffer_rows: int = 0
        self._earliest_buffered: int = END_OF_TIME

    def _set_floor(self) -> None:
        """Set the last event time of each partition that is late; sessions whose latest row has it are closed."""
        self._floor: Int64s = self._clock.watermark - self._settings.gap_ms
        self._highest_floor = int(self._floor.max())

    # Rows.

    def process(self, batch: Batch) -> Batch | None:
        instants, missing = instants_of(batch, self._settings.time, self._step)
        rows, partition = batch.arrow.select(self._needed), batch.partition
        if self._panes is None:
            self._begin(rows.schema)
        earliest = int(instants.min())
        if missing is not None or earliest <= self._highest_floor:
            late = instants <= self._floor.take(partition)
            if missing is not None:
                late |= missing
            if late.any():
                self._clock.count_late(partition.compress(late))
                chosen = np.flatnonzero(~late)
                if not len(chosen):
                    return None
                rows, partition, instants = rows.take(pa.array(chosen)), partition.take(chosen), instants.take(chosen)
                earliest = int(instants.min())
        self._buffer.append(_BufferedRows(rows, partition, instants))
        self._buffer_rows += len(instants)
        self._earliest_buffered = min(self._earliest_buffered, earliest)
        if self._buffer_rows >= _BUFFER_ROWS:
            self._add_buffered()
        return None

    def _begin(self, schema: pa.Schema) -> None:
        """Create the state for rows of this schema."""
        settings = self._settings
        try:
            for aggregate in settings.aggregates:
                aggregate.type_for(schema)
        except ColumnError as error:
            raise OperatorError(str(error), self._step) from error
        self._schema = schema
        self._panes = SessionPanes(self._step, self._key, settings.gap_ms, settings.aggregates, schema)

    def _add_buffered(self) -> None:
        if not self._buffer:
            return
        assert self._panes is not None
        rows, partition, instants = self._buffer[0].rows, self._buffer[0].partition, self._buffer[0].instants
        if len(self._buffer) > 1:
            rows = pa.concat_batches([each.rows for each in self._buffer])
            partition = np.concatenate([each.partition for each in self._buffer])
            instants = np.concatenate([each.instants for each in self._buffer])
        self._clear_buffer()
        self._panes.add(rows, partition, instants)

    # Time.

    def on_punctuation(self, p: Punctuation) -> tuple[Mapping[str, Any], Any] | None:
        if not self._clock.advance(p):
            return None
        self._set_floor()
        panes, floor = self._panes, self._highest_floor
        if panes is None or not (self._earliest_buffered <= floor or panes.has_due(floor)):
            return None
        self._add_buffered()
        closed = panes.close(self._floor)
        return None if closed is None else (self._columns(panes, closed), closed.partition)

    def _columns(self, panes: SessionPanes, closed: ClosedSessions) -> dict[str, Any]:
        assert self._schema is not None
        settings = self._settings
        kind = window_type(self._schema.field(settings.time).type)
        columns: dict[str, Any] = dict(zip(self._key, closed.keys, strict=True))
        columns["window_start"] = pa.array(closed.earliest).cast(kind)
        columns["window_end"] = pa.array(closed.latest + settings.gap_ms).cast(kind)
        identity = [*self._key, "window_start"]

        def owner(at: int) -> tuple[str, int, None]:
            return entry_name(columns, identity, at), int(closed.partition[at]), None

        for each in settings.aggregates:
            if each.what == "quantile":
                columns[each.name] = closed.logged.quantile(each.columns[0], each.detail)
            elif callable(each.what):
                columns[each.name] = made_by_user(each, closed.logged, columns, identity)
            else:
                columns[each.name] = panes.kept.result(each, closed.values, owner)
        return columns

    def take_late(self) -> dict[int, int]:
        """Return the late-row counts that changed since the last call."""
        return self._clock.take_late()

    # State by partition.

    def get_partition_state(self, pid: int) -> Any:
        self._add_buffered()
        return self._pieces(pid)

    def _pieces(self, pid: int) -> Iterator[Any]:
        schema = None if self._schema is None else self._schema.empty_table()
        yield {"clock": self._clock.get(pid), "rows": schema}
        if self._panes is not None:
            yield from self._panes.pieces(pid)

    def install_partition_state(self, pid: int, state: Any) -> None:
        if "clock" in state:
            self._clock.install(pid, state["clock"])
            self._set_floor()
            if state["rows"] is not None and self._panes is None:
                self._begin(state["rows"].schema)
            return
        assert self._panes is not None
        self._panes.install(pid, state)

    def drop_partition(self, pid: int) -> None:
        self._add_buffered()
        if self._panes is not None:
            self._panes.drop(pid)
        self._clock.drop(pid)
        self._set_floor()

    def partition_info(self) -> dict[int, int]:
        return {} if self._panes is None else self._panes.sizes()
