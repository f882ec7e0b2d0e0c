"""Windows of event time: aggregates of the rows of each key within a stretch of time.

Theory. Time is cut into *panes*, as long as they can be so that a window is made of whole ones: a tumbling window is
one pane, a sliding one `size / gcd(size, slide)`. State is kept by key and pane, and each row is added to one pane,
however many windows it is in. A window is emitted when the watermark has passed its end: its panes are then merged,
from the oldest to the newest. A pane is deleted when its last window has been emitted.

Windows are numbered: window k begins at ``k * slide``, and `closed` is the last that the watermark has passed. Nothing
is emitted until a window closes, so rows of small batches are buffered and added together. That makes many watermarks
cheap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model.batch import Batch, turn_order
from ..model.event_time import milliseconds, window_type
from ..model.operator import Context, PooledOperator
from ..model.punctuation import Punctuation
from ..types.array_types import Int64s
from ..types.arrays import ColumnError
from ..types.errors import OperatorError, PlanError
from .aggregates import Aggregate, KeptValues, entry_name, numbers_of, parse_aggregates
from .event_time_state import EventClock, check_ms, check_time_column, instants_of
from .key_order import begins_of, in_order, order_numbers, rank_within
from .keys import KeyTable, check_keys
from .row_groups import emitted_schema, unknown_parameters
from .value_log import ValueLog, made_by_user

__all__ = ["TimeWindow"]

_PARAMETERS = ("time", "size_ms", "slide_ms", "aggregates")
_BUFFER_ROWS = 65_536  # So many rows are buffered before they are added.


@dataclass(frozen=True)
class _Settings:
    """The parameters of `apply(TimeWindow, ...)`."""

    time: str
    size_ms: int
    slide_ms: int
    aggregates: tuple[Aggregate, ...]

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> _Settings:
        time, size = parameters.get("time"), parameters.get("size_ms")
        slide = parameters.get("slide_ms")
        if not isinstance(time, str):
            raise ColumnError(f"time is the column of event time, such as time='ts'; got {time!r}")
        for name, value in (("size_ms", size), ("slide_ms", size if slide is None else slide)):
            check_ms(name, value)
        assert isinstance(size, int)
        slide = size if slide is None else slide
        if slide > size:
            raise ColumnError(f"slide_ms={slide} is longer than size_ms={size}: rows in between would be in no window")
        return cls(time, size, slide, parse_aggregates(parameters.get("aggregates"), values_kept=True))

    @property
    def pane_ms(self) -> int:
        return math.gcd(self.size_ms, self.slide_ms)

    def last_passed(self, watermark: Int64s) -> Int64s:
        """Return the last window that ends at or before the watermark."""
        passed: Int64s = (watermark - self.size_ms) // self.slide_ms
        return passed

    def windows_of(self, pane: Int64s) -> tuple[Int64s, Int64s]:
        """Return the first and the last window that a pane is in."""
        if self.pane_ms == self.size_ms:
            return pane, pane
        begins = pane * self.pane_ms
        return (begins - self.size_ms) // self.slide_ms + 1, begins // self.slide_ms


class TimeWindow(PooledOperator):
    """For each key, aggregates of the rows in each window of event time.

    >>> import flux
    >>> flow = flux.Dataflow("orders")
    >>> rows = [("a", 100, 5.0), ("a", 900, 2.5), ("b", 950, 1.0), ("a", 1_200, 4.0)]
    >>> table = flux.sources.Table([dict(zip(("shop", "ts", "amount"), row)) for row in rows])
    >>> orders = flow.source(table, event_time="ts", lateness_ms=100).exchange("shop", partitions=4)
    >>> aggregates = {"orders": "count", "total": ("sum", "amount")}
    >>> orders.apply(TimeWindow, time="ts", size_ms=1_000, aggregates=aggregates).sink(flux.sinks.Collect())
    >>> flow.run(sites=2).table.sort_by("shop").to_pylist()[0]
    {'shop': 'a', 'window_start': 0, 'window_end': 1000, 'orders': 2, 'total': 7.5}

    Parameters of `apply`: `time`, the column of event time (as `event_time` of the source); `size_ms`, and `slide_ms`
    if windows overlap; `aggregates`, see `flux.operators.aggregates`. The key is that of the exchange before it; nulls
    are a key like any other, and all NaN are one.

    Windows begin at multiples of `slide_ms` and last `size_ms`, without their end. A window is emitted when a watermark
    has reached its end: for each key with a row in it, the key columns, `window_start`, `window_end` and the
    aggregates. The end of the stream emits all windows. A window without rows is not emitted.

    The windows that one watermark closes are emitted in the same order in every run, whatever processes fail. Within a
    partition the order is by window and then by key, ascending, with NaN after all other floats and nulls last.
    Partitions take turns: the first row of each, in the order of their numbers, then the second of each, and so on. So
    another number of partitions gives another order; where that matters, sort the output by ``window_start`` and key.

    A row that arrives after its last window was emitted is late: it is dropped and counted (`report.late`), and so is a
    row without event time. A row that is late for some of its windows counts in the others.

    Sums of floats are added in row order within a pane; those of a sliding window are the sums of its panes, from the
    oldest to the newest. So they do not depend on the batches.
    """

    is_by_key = True
    needs_order = True
    # A window ends after the watermark before the one that closes it: else that would have closed it.
    event_time = "window_end"

    def output_for(self, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
        unknown_parameters("TimeWindow", list(parameters), _PARAMETERS)
        settings = _Settings.of(parameters)
        check_time_column(settings.time, rows)
        end = window_type(rows.field(settings.time).type)
        fields = check_keys(key_columns, rows)
        fields += [pa.field("window_start", end), pa.field("window_end", end)]
        return emitted_schema([*fields, *(pa.field(each.name, each.type_for(rows)) for each in settings.aggregates)])

    def open(self, context: Context) -> None:
        self._step, self._key = context.step, context.key_columns
        unknown_parameters(context.step, list(context.parameters), _PARAMETERS)
        try:
            self._settings = _Settings.of(context.parameters)
        except ColumnError as error:
            raise PlanError(f"step {context.step!r}: {error}") from error
        if not self._key:
            raise PlanError(f"step {context.step!r}: TimeWindow groups by its exchange's columns. Put one before it")
        # Only the columns that are read are kept.
        values = (column for each in self._settings.aggregates for column in each.columns)
        self._needed = list(dict.fromkeys([*self._key, self._settings.time, *values]))
        self._clock = EventClock(context.partitions)
        self._closed = self._settings.last_passed(self._clock.watermark)
        self._schema: pa.Schema | None = None
        self._buffer: list[pa.RecordBatch] = []
        self._buffer_partition: list[npt.NDArray[np.uint16]] = []
        self._buffer_rows = 0

    # Rows.

    def process(self, batch: Batch) -> Batch | None:
        if self._schema is None:
            instants_of(batch, self._settings.time, self._step)
            self._begin(batch.arrow.select(self._needed).schema)
        self._buffer.append(batch.arrow.select(self._needed))
        self._buffer_partition.append(batch.partition)
        self._buffer_rows += len(batch)
        if self._buffer_rows >= _BUFFER_ROWS:
            self._add_buffered()
        return None

    def _begin(self, schema: pa.Schema) -> None:
        """Create the state for rows of this schema."""
        aggregates = self._settings.aggregates
        try:
            for aggregate in aggregates:
                aggregate.type_for(schema)
        except ColumnError as error:
            raise OperatorError(str(error), self._step) from error
        self._schema = schema
        self._kept = KeptValues(aggregates, schema, self._step)
        keys = {name: schema.field(name).type for name in self._key}
        self._table = KeyTable(self._step, keys, {"pane": np.int64, **self._kept.fields}, further=1)
        logged = dict.fromkeys(column for each in aggregates if each.needs_values for column in each.columns)
        self._log = ValueLog(list(logged))

    def _add_buffered(self) -> None:
        if not self._buffer_rows:
            return
        several = len(self._buffer) > 1
        rows = pa.concat_batches(self._buffer) if several else self._buffer[0]
        partition = np.concatenate(self._buffer_partition) if several else self._buffer_partition[0]
        self._buffer, self._buffer_partition, self._buffer_rows = [], [], 0
        self._add(rows, partition)

    def _add(self, rows: pa.RecordBatch, partition: npt.NDArray[np.uint16]) -> None:
        settings = self._settings
        instants, missing = milliseconds(rows.column(settings.time))
        pane = instants // settings.pane_ms
        last = pane if settings.slide_ms == settings.pane_ms else instants // settings.slide_ms
        late = last <= self._closed.take(partition)
        if missing is not None:
            late |= missing
        if late.any():
            self._clock.count_late(partition.compress(late))
            chosen = np.flatnonzero(~late)
            rows, pane, partition = rows.take(pa.array(chosen)), pane.take(chosen), partition.take(chosen)
        if not rows.num_rows:
            return
        slots, new = self._table.find_or_insert([rows.column(name) for name in self._key], partition, pane)
        values = self._table.values
        if new.any():
            fresh = slots.compress(new)
            values["pane"][fresh] = pane.compress(new)
            self._kept.begin(values, fresh)
        self._kept.add(values, slots, {name: numbers_of(rows.column(name)) for name in self._kept.columns})
        self._log.add(slots, {name: rows.column(name) for name in rows.schema.names})

    # Time.

    def on_punctuation(self, p: Punctuation) -> tuple[Mapping[str, Any], Any] | None:
        if not self._clock.advance(p):
            return None
        before, after = self._closed, self._settings.last_passed(self._clock.watermark)
        if np.array_equal(before, after):
            return None
        self._add_buffered()
        self._closed = after
        return None if self._schema is None else self.emit_closed(before, after)

    def emit_closed(self, before: Int64s, after: Int64s) -> tuple[Mapping[str, Any], Any] | None:
        """Return the windows that `after` closes and `before` did not, by window and key; delete finished panes."""
        live = self._table.live
        values, pid = self._table.values, self._table.partition.take(live)
        first, last = self._settings.windows_of(values["pane"].take(live))
        closed = after.take(pid)
        begin = np.maximum(first, before.take(pid) + 1)
        windows = np.minimum(last, closed) - begin + 1
        due = np.flatnonzero(windows > 0)
        emitted = self._window_rows(live.take(due), begin.take(due), windows.take(due)) if len(due) else None
        done = live.compress(last <= closed)
        if len(done):
            self._table.delete(done, for_good=True)
            is_kept = np.ones(len(values["pane"]), np.bool_)
            is_kept[done] = False
            self._log.keep(is_kept)
        return emitted

    def _window_rows(self, slots: Int64s, begin: Int64s, windows: Int64s) -> tuple[Mapping[str, Any], Any]:
        """Return the windows `begin` to ``begin + windows - 1`` of each of these slots, by window and key."""
        numbers = [each for column in self._table.keys_of(slots) for each in order_numbers(column)]
        if self._settings.pane_ms == self._settings.size_ms:
            order = in_order([begin, *numbers])
            order = order.take(turn_order(self._table.partition.take(slots.take(order))))
            slots, group = slots.take(order), np.arange(len(order))
            values = {name: self._table.values[name].take(slots) for name in self._kept.fields}
            columns = self._columns(slots, begin.take(order), values, slots, group)
            return columns, self._table.partition.take(slots)
        return self._merge_panes(slots, begin, windows, numbers)

    def _merge_panes(
        self, slots: Int64s, begin: Int64s, windows: Int64s, numbers: list[Int64s]
    ) -> tuple[Mapping[str, Any], Any]:
        """Return the same for windows of several panes; `numbers` give the order of the keys of the slots."""
        entry = np.repeat(np.arange(len(slots)), windows)
        offset = np.arange(len(entry)) - np.repeat(np.cumsum(windows) - windows, windows)
        window = begin.take(entry) + offset
        by_key = [window, *(each.take(entry) for each in numbers)]
        order = in_order([*by_key, self._table.values["pane"].take(slots).take(entry)])
        entry = entry.take(order)
        begins = begins_of([each.take(order) for each in by_key])
        group, rank = rank_within(begins, len(entry))
        merged = self._merge_groups(slots.take(entry), group, rank)
        first = slots.take(entry.take(begins))
        columns = self._columns(first, window.take(order).take(begins), merged, slots.take(entry), group)
        return columns, self._table.partition.take(first)

    def _merge_groups(self, slots: Int64s, group: Int64s, rank: Int64s) -> Mapping[str, npt.NDArray[Any]]:
        """Return the panes of each group merged in their order; `rank` is a pane's place in its group."""
        values = self._table.values
        is_first = rank == 0
        merged = {name: values[name].take(slots.compress(is_first)) for name in self._kept.fields}
        for place in range(1, int(rank.max()) + 1):
            chosen = rank == place
            self._kept.merge(merged, group.compress(chosen), values, slots.compress(chosen))
        return merged

    def _columns(self, first: Int64s, window: Int64s, merged: Mapping[str, Any], slots: Int64s, group: Int64s) -> Any:
        assert self._schema is not None
        settings = self._settings
        kind = window_type(self._schema.field(settings.time).type)
        columns: dict[str, Any] = dict(zip(self._key, self._table.keys_of(first), strict=True))
        starts = window * settings.slide_ms
        columns["window_start"] = pa.array(starts).cast(kind)
        columns["window_end"] = pa.array(starts + settings.size_ms).cast(kind)
        logged = self._log.grouped(slots, group, len(first))
        identity = [*self._key, "window_start"]

        def owner(at: int) -> tuple[str, int, None]:
            return entry_name(columns, identity, at), int(self._table.partition[first[at]]), None

        for each in settings.aggregates:
            if each.what == "quantile":
                columns[each.name] = logged.quantile(each.columns[0], each.detail)
            elif callable(each.what):
                columns[each.name] = made_by_user(each, logged, columns, identity)
            else:
                columns[each.name] = self._kept.result(each, merged, owner)
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
        if self._schema is None:
            return
        for piece in self._table.pieces(pid):
            self._kept.make_canonical(piece["values"])
            yield piece
        for logged, table in self._log.pieces(self._table.slots_of(pid)):
            yield {**self._table.rows_piece(logged), "logged": table}

    def install_partition_state(self, pid: int, state: Any) -> None:
        if "clock" in state:
            self._add_buffered()
            self._clock.install(pid, state["clock"])
            self._closed = self._settings.last_passed(self._clock.watermark)
            if state["rows"] is not None and self._schema is None:
                self._begin(state["rows"].schema)
            return
        if "logged" in state:
            slots = self._table.install_keys(pid, state)
            table = state["logged"]
            columns = {name: table.column(name).combine_chunks() for name in table.schema.names}
            self._log.add(slots.take(state["at"]), columns)
        else:
            slots = self._table.install(pid, state)
            self._kept.installed(self._table.values, slots)  # Read `values` again: the table may have grown.

    def drop_partition(self, pid: int) -> None:
        self._add_buffered()
        if self._schema is not None:
            dropped = self._table.drop(pid)
            is_kept = np.ones(len(self._table.partition), np.bool_)
            is_kept[dropped] = False
            self._log.keep(is_kept)
        self._clock.drop(pid)
        self._closed = self._settings.last_passed(self._clock.watermark)

    def partition_info(self) -> dict[int, int]:
        return {} if self._schema is None else self._table.sizes()
