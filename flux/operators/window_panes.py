"""Panes: the state of windows of event time, by key and stretch of time, and the windows that close.

A pane has the accumulators of its rows, and the rows themselves for aggregates that need all values. `TimePanes` and
`SessionPanes` decide which panes are a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from ..types.array_types import Bools, Int64s, Pids, Slots
from .aggregates import Aggregate, KeptValues
from .keys import KeyTable
from .value_log import Grouped, ValueLog

__all__ = ["ClosedWindows", "WindowPanes"]


@dataclass(frozen=True)
class ClosedWindows:
    """Windows that are over, in output order."""

    keys: Sequence[Any]
    partition: Pids
    start: Int64s
    end: Int64s
    # The values of the accumulators for each window, and its rows, if they are kept.
    values: Mapping[str, npt.NDArray[Any]]
    logged: Grouped


class WindowPanes:
    """The panes of all keys at a site; abstract base."""

    def __init__(
        self,
        step: str,
        key: Sequence[str],
        aggregates: Sequence[Aggregate],
        rows: pa.Schema,
        fields: Mapping[str, Any],
    ) -> None:
        self._key = tuple(key)
        self.kept = KeptValues(aggregates, rows, step)
        kinds = {name: rows.field(name).type for name in key}
        self._table = KeyTable(step, kinds, {**fields, **self.kept.fields}, further=1)
        self._logged = list(dict.fromkeys(name for each in aggregates if each.needs_values for name in each.columns))
        self._log = ValueLog(self._logged)

    def add(self, rows: pa.RecordBatch, partition: Pids, instants: Int64s) -> None:
        """Add rows, none of which is late, with their partitions and event times."""
        raise NotImplementedError

    def has_due(self, floor: int) -> bool:
        """Return whether a window may close now that the highest floor has advanced to this one."""
        return True

    def close(self, before: Int64s, floor: Int64s) -> ClosedWindows | None:
        """Delete and return the windows that close as the floors of the partitions advance."""
        raise NotImplementedError

    def _find(self, rows: pa.RecordBatch, partition: Pids, pane: Int64s) -> tuple[Slots, Bools]:
        """Return the slot of each row's pane, and which are new."""
        slots, new = self._table.find_or_insert([rows.column(name) for name in self._key], partition, pane)
        if new.any():
            self.kept.begin(self._table.values, slots.compress(new))
        return slots, new

    def _accumulate(self, rows: pa.RecordBatch, slots: Slots, instants: Int64s) -> None:
        self.kept.add(self._table.values, slots, rows, instants)
        self._log.add(slots, {name: rows.column(name) for name in self._logged})

    def _delete(self, slots: Slots) -> None:
        self._table.delete(slots, for_good=True)
        self._log.forget(slots, len(self._table.partition))

    # State by partition.

    def pieces(self, pid: int) -> Iterator[dict[str, Any]]:
        """Yield the state of a partition, a piece at a time."""
        for piece in self._table.pieces(pid):
            yield self.kept.pack(piece)
        for logged, table in self._log.pieces(self._table.slots_of(pid)):
            yield {**self._table.rows_piece(logged), "logged": table}

    def install(self, pid: int, piece: Mapping[str, Any]) -> None:
        """Install what `pieces` yielded on another site."""
        if "logged" in piece:
            self._log.install(self._table.install_keys(pid, piece), piece)
            return
        slots = self._table.install(pid, piece)
        self.kept.installed(self._table.values, slots, piece)
        self._installed(slots, piece["values"])

    def _installed(self, slots: Slots, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Account for panes that were installed, with the values of their fields."""

    def drop(self, pid: int) -> Slots:
        """Forget a partition that has moved to another site; return its slots."""
        dropped = self._table.drop(pid)
        self._log.forget(dropped, len(self._table.partition))
        return dropped

    def sizes(self) -> dict[int, int]:
        """Return how many panes each partition has."""
        return self._table.sizes()
