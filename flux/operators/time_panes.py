"""Panes of windows of event time that have a fixed length.

Theory. Time is cut into *panes*, as long as they can be so that a window is made of whole ones: a tumbling window is
one pane, a sliding one `size / gcd(size, slide)`. State is kept by key and pane, and each row is added to one pane,
however many windows it is in. A window is emitted when the watermark has passed its end: its panes are then merged,
from the oldest to the newest. A pane is deleted when its last window has been emitted.

Windows are numbered: window k begins at ``k * slide``, and `closed` is the last that the watermark has passed. Nothing
is emitted until a window closes, so rows of small batches are buffered and added together. That makes many watermarks
cheap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model.batch import turn_order
from ..types.array_types import Int64s, Pids
from .aggregates import Aggregate
from .key_order import begins_of, in_order, order_numbers, rank_within
from .window_grids import WindowGrid
from .window_panes import ClosedWindows, WindowPanes

__all__ = ["TimePanes"]


class TimePanes(WindowPanes):
    """The panes of windows of fixed length."""

    def __init__(
        self, step: str, key: Sequence[str], aggregates: Sequence[Aggregate], rows: pa.Schema, grid: WindowGrid
    ) -> None:
        super().__init__(step, key, aggregates, rows, {"pane": np.int64})
        self._grid = grid

    def add(self, rows: pa.RecordBatch, partition: Pids, instants: Int64s) -> None:
        pane = self._grid.pane_of(instants)
        slots, new = self._find(rows, partition, pane)
        self._table.values["pane"][slots.compress(new)] = pane.compress(new)
        self._accumulate(rows, slots, instants)

    def close(self, before: Int64s, floor: Int64s) -> ClosedWindows | None:
        """Return the windows that close, by window and key; delete the panes that are in no further window."""
        live = self._table.live
        pid = self._table.partition.take(live)
        first, last = self._grid.windows_of(self._table.values["pane"].take(live))
        closed = self._grid.closed_at(floor).take(pid)
        begin = np.maximum(first, self._grid.closed_at(before).take(pid) + 1)
        windows = np.minimum(last, closed) - begin + 1
        due = np.flatnonzero(windows > 0)
        found = self._windows(live.take(due), begin.take(due), windows.take(due)) if len(due) else None
        done = live.compress(last <= closed)
        if len(done):
            self._delete(done)
        return found

    def _windows(self, slots: Int64s, begin: Int64s, windows: Int64s) -> ClosedWindows:
        """Return the windows `begin` to ``begin + windows - 1`` of each of these slots, by window and key."""
        numbers = [each for column in self._table.keys_of(slots) for each in order_numbers(column)]
        if self._grid.is_tumbling:
            order = in_order([begin, *numbers])
            order = order.take(turn_order(self._table.partition.take(slots.take(order))))
            slots, group = slots.take(order), np.arange(len(order))
            values = {name: self._table.values[name].take(slots) for name in self.kept.fields}
            return self._closed(slots, begin.take(order), values, slots, group)
        return self._merge_panes(slots, begin, windows, numbers)

    def _merge_panes(self, slots: Int64s, begin: Int64s, windows: Int64s, numbers: list[Int64s]) -> ClosedWindows:
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
        return self._closed(first, window.take(order).take(begins), merged, slots.take(entry), group)

    def _merge_groups(self, slots: Int64s, group: Int64s, rank: Int64s) -> Mapping[str, npt.NDArray[Any]]:
        """Return the panes of each group merged in their order; `rank` is a pane's place in its group."""
        values = self._table.values
        is_first = rank == 0
        merged = {name: values[name].take(slots.compress(is_first)) for name in self.kept.fields}
        for place in range(1, int(rank.max()) + 1):
            chosen = rank == place
            self.kept.merge(merged, group.compress(chosen), values, slots.compress(chosen))
        return merged

    def _closed(
        self, first: Int64s, window: Int64s, merged: Mapping[str, Any], slots: Int64s, group: Int64s
    ) -> ClosedWindows:
        """Return windows: `first` is a slot of each, `slots` are all slots and `group` their windows."""
        keys, partition = self._table.keys_of(first), self._table.partition.take(first)
        logged = self._log.grouped(slots, group, len(first))
        return ClosedWindows(keys, partition, *self._grid.bounds_of(window), merged, logged)
