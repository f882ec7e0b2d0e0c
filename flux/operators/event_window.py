"""What windows of event time share: parameters, output columns, late rows, and the rows that are not added yet.

`TimeWindow` and `SessionWindow` differ in their settings and in their panes, which find the rows that belong together.
Rows are buffered until a watermark may close a window, so watermarks that close none are cheap.

The *floor* of a partition is the last event time that is late there: no window that is still open has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

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
from .event_time_state import END_OF_TIME, EventClock, check_time_column, instants_of
from .keys import check_keys
from .row_groups import emitted_schema, unknown_parameters
from .window_panes import ClosedWindows, WindowPanes

__all__ = ["EventWindow", "WindowSettings"]

_BUFFER_ROWS = 65_536  # So many rows are buffered before they are added.


@dataclass(frozen=True)
class WindowSettings:
    """The parameters of `apply`; a subclass adds the lengths of its windows as fields."""

    time: str
    aggregates: tuple[Aggregate, ...]

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """Return the settings that a user gave; raise if one is invalid."""
        time = parameters.get("time")
        if not isinstance(time, str):
            raise ColumnError(f"time is the column of event time, such as time='ts'; got {time!r}")
        lengths = cls.lengths_of(parameters)
        return cls(time, parse_aggregates(parameters.get("aggregates")), **lengths)

    @classmethod
    def lengths_of(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a subclass; raise if one is invalid."""
        raise NotImplementedError

    def floor_of(self, watermark: Int64s) -> Int64s:
        """Return the floor of each partition."""
        raise NotImplementedError


class EventWindow(PooledOperator):
    """Abstract base of the operators that aggregate the rows of a key by event time."""

    changeable = ()

    is_by_key = True
    needs_order = True
    # A window ends after the watermark before the one that closes it: else that would have closed it.
    event_time = "window_end"

    settings_class: ClassVar[type[WindowSettings]]
    settings: WindowSettings

    def new_panes(self, rows: pa.Schema) -> WindowPanes:
        """Return the state for rows of this schema."""
        raise NotImplementedError

    def output_for(self, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
        settings = self._parse(type(self).__name__, parameters)
        check_time_column(settings.time, rows)
        end = window_type(rows.field(settings.time).type)
        times = [pa.field("window_start", end), pa.field("window_end", end)]
        results = [pa.field(each.name, each.type_for(rows)) for each in settings.aggregates]
        return emitted_schema([*check_keys(key_columns, rows), *times, *results])

    def open(self, context: Context) -> None:
        self.step, self.key = context.step, context.key_columns
        try:
            self.settings = self._parse(context.step, context.parameters)
        except ColumnError as error:
            raise PlanError(f"step {context.step!r}: {error}") from error
        if not self.key:
            name = type(self).__name__
            raise PlanError(f"step {context.step!r}: {name} groups by its exchange's columns. Put one before it")
        # Only the columns that are read are kept; the event time of rows is kept beside them, in milliseconds.
        used = (column for each in self.settings.aggregates for column in each.columns)
        self._kept = list(dict.fromkeys([*self.key, *used]))
        self._needed = list(dict.fromkeys([*self._kept, self.settings.time]))
        self._clock = EventClock(context.partitions)
        self._panes: WindowPanes | None = None
        self._clear_buffer()
        self._set_floor()

    def _parse(self, step: str, parameters: Mapping[str, Any]) -> WindowSettings:
        unknown_parameters(step, list(parameters), [field.name for field in fields(self.settings_class)])
        return self.settings_class.of(parameters)

    def _clear_buffer(self) -> None:
        # Rows that are not late, with their partitions and event times.
        self._buffer: list[tuple[pa.RecordBatch, Pids, Int64s]] = []
        self._buffer_rows: int = 0
        self._earliest_buffered: int = END_OF_TIME

    def _set_floor(self) -> None:
        self._floor = self.settings.floor_of(self._clock.watermark)
        self._highest_floor = int(self._floor.max())

    # Rows.

    def process(self, batch: Batch) -> Batch | None:
        instants, missing = instants_of(batch, self.settings.time, self.step)
        if self._panes is None:
            self._begin(batch.arrow.select(self._needed).schema)
        rows, partition = batch.arrow.select(self._kept), batch.partition
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
        self._buffer.append((rows, partition, instants))
        self._buffer_rows += len(instants)
        self._earliest_buffered = min(self._earliest_buffered, earliest)
        if self._buffer_rows >= _BUFFER_ROWS:
            self._add_buffered()
        return None

    def _begin(self, schema: pa.Schema) -> None:
        """Create the state for rows of this schema."""
        try:
            for aggregate in self.settings.aggregates:
                aggregate.type_for(schema)
        except ColumnError as error:
            raise OperatorError(str(error), self.step) from error
        self._schema = schema
        self._panes = self.new_panes(schema)

    def _add_buffered(self) -> None:
        if not self._buffer:
            return
        assert self._panes is not None
        rows, partition, instants = zip(*self._buffer, strict=True)
        self._clear_buffer()
        self._panes.add(pa.concat_batches(rows), np.concatenate(partition), np.concatenate(instants))

    # Time.

    def on_punctuation(self, p: Punctuation) -> tuple[Mapping[str, Any], Any] | None:
        if not self._clock.advance(p):
            return None
        before = self._floor
        self._set_floor()
        if self._panes is None or np.array_equal(before, self._floor):
            return None
        if not (self._earliest_buffered <= self._highest_floor or self._panes.has_due(self._highest_floor)):
            return None
        self._add_buffered()
        closed = self._panes.close(before, self._floor)
        return None if closed is None else (self._columns(self._panes, closed), closed.partition)

    def _columns(self, panes: WindowPanes, closed: ClosedWindows) -> dict[str, Any]:
        kind = window_type(self._schema.field(self.settings.time).type)
        columns: dict[str, Any] = dict(zip(self.key, closed.keys, strict=True))
        columns["window_start"] = pa.array(closed.start).cast(kind)
        columns["window_end"] = pa.array(closed.end).cast(kind)
        identity = [*self.key, "window_start"]

        def owner(at: int) -> tuple[str, int, None]:
            return entry_name(columns, identity, at), int(closed.partition[at]), None

        for each in self.settings.aggregates:
            if each.needs_values:
                columns[each.name] = closed.logged.result(each, columns, identity)
            else:
                columns[each.name] = panes.kept.result(each, closed.values, owner)
        return columns

    @classmethod
    def waits_for_watermarks(cls, parameters: Mapping[str, Any]) -> bool:
        """Return True: a window is emitted when a watermark has passed it."""
        return True

    @classmethod
    def in_time_from(cls, parameters: Mapping[str, Any], watermark: Int64s) -> Int64s | None:
        """Return for each watermark the first instant that is not late."""
        return cls.settings_class.of(parameters).floor_of(watermark) + 1

    def take_late(self) -> dict[int, int]:
        """Return the late-row counts that changed since the last call."""
        return self._clock.take_late()

    # State by partition.

    def get_partition_state(self, pid: int) -> Any:
        self._add_buffered()
        return self._pieces(pid)

    def _pieces(self, pid: int) -> Iterator[Any]:
        schema = None if self._panes is None else self._schema.empty_table()
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
