"""Held values: aggregates that are one of a key's values, of any type: its first or last, its least or greatest text.

The values are rows of a `ValueStore`; an array indexed by slot has their numbers. Candidates get a *rank*, in the order
of time or of values. The one with the greatest rank is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..types.array_types import Bools, Int64s, Slots
from .accumulators import Accumulator, Running, ValueColumns
from .key_order import in_order, order_numbers
from .running_values import Stretches

__all__ = ["HeldValues", "ValueStore"]

_COMPACT_FROM = 16_384  # With fewer rows than this, it is not worth looking for those still in use.
_NONE = np.int64(-(2**63))  # The rank of no value.


class ValueStore:
    """Rows of Arrow columns, each with a number; number 0 is a row of nulls.

    >>> store = ValueStore({"word": pa.string()})
    >>> numbers = store.add([pa.array(["to", "flux"])])
    >>> store.take(np.array([numbers[1], 0]))[0].to_pylist()
    ['flux', None]
    """

    def __init__(self, kinds: Mapping[str, Any]) -> None:
        self._chunks: list[list[Any]] = [[pa.nulls(1, kind)] for kind in kinds.values()]
        self._rows = 1
        self._compact_at = _COMPACT_FROM

    def add(self, columns: list[Any]) -> Int64s:
        """Store further rows; return their numbers."""
        numbers = np.arange(self._rows, self._rows + len(columns[0]))
        for chunks, column in zip(self._chunks, columns, strict=True):
            chunks.append(column)
        self._rows += len(numbers)
        return numbers

    def take(self, numbers: Int64s) -> list[Any]:
        """Return the columns of the rows with these numbers."""
        return [column.take(pa.array(numbers)) for column in self._whole()]

    def _whole(self) -> list[Any]:
        self._chunks = [[pa.concat_arrays(chunks)] if len(chunks) > 1 else chunks for chunks in self._chunks]
        return [chunks[0] for chunks in self._chunks]

    def compact(self, numbers: npt.NDArray[Any]) -> None:
        """If that is worthwhile, forget all rows but those with these numbers, and write their new numbers."""
        if self._rows < self._compact_at:
            return
        used = np.union1d(numbers.reshape(-1), np.zeros(1, np.int64))
        self._chunks = [[column.take(pa.array(used))] for column in self._whole()]
        numbers[...] = np.searchsorted(used, numbers)
        self._rows, self._compact_at = len(used), max(_COMPACT_FROM, 2 * len(used))


class HeldValues(Accumulator):
    """The first or the last value by time, or the least or the greatest one; `choice` says which.

    Of values with one time, the first is that of the earliest row, and the last that of the latest.
    """

    def __init__(self, name: str, kind: Any, choice: str) -> None:
        self._by_time = choice in ("first", "last")
        self._sign = 1 if choice in ("last", "max") else -1
        self.name = name
        self._held = ValueStore({name: kind})
        super().__init__(name, {"number": np.int64, "time": np.int64} if self._by_time else {"number": np.int64})

    def add(self, values: ValueColumns, slots: Slots, x: Any, time: Int64s | None = None) -> None:
        """Add rows as `Accumulator.add` does; `x` is an Arrow array without nulls."""
        self._held.compact(self.of(values, "number"))
        distinct, group = np.unique(slots, return_inverse=True)
        held = self._of_slots(values, distinct)
        rank = self._ranks(pa.concat_arrays([held[0], x]), _joined(held[1], time))
        best = rank[: len(distinct)].copy()
        np.maximum.at(best, group, rank[len(distinct) :])
        # Of equal values any will do: the last row of those with the greatest rank is written.
        wins = np.flatnonzero((rank[len(distinct) :] == best.take(group)) & (best > rank[: len(distinct)]).take(group))
        self._hold(values, slots.take(wins), x.take(pa.array(wins)), None if time is None else time.take(wins))

    def merge(self, into: ValueColumns, at: Slots, later: ValueColumns, slots: Slots) -> None:
        ours, theirs = self._of_slots(into, at), self._of_slots(later, slots)
        rank = self._ranks(pa.concat_arrays([ours[0], theirs[0]]), _joined(ours[1], theirs[1]))
        better = np.flatnonzero(rank[len(at) :] > rank[: len(at)])
        for name in self.fields:
            into[name][at.take(better)] = later[name].take(slots.take(better))

    def running(self, values: ValueColumns, stretches: Stretches, x: Any, valid: Bools | None) -> Running:
        """Add grouped rows, `x` being an Arrow array with nulls; rows of a key are in the order of time."""
        self._held.compact(self.of(values, "number"))
        before, groups = self._before(values, stretches, "number"), len(stretches.slots)
        rank = self._ranks(pa.concat_arrays([*self._held.take(before), x]), None)
        numbers = np.concatenate([before, self._held.add([x])])
        best = stretches.accumulate(np.maximum, rank[groups:], rank[:groups])
        order = np.argsort(rank, kind="stable")
        number = numbers.take(order).take(np.searchsorted(rank.take(order), best))
        number[best == _NONE] = 0
        running = {"number": number, "time": np.zeros(len(number), np.int64)}
        return self._store(values, stretches, {field: running[field] for field in self._names})

    def result(self, values: ValueColumns) -> Any:
        """Return the held values."""
        return self._held.take(self.of(values, "number"))[0]

    def install(self, values: ValueColumns, slots: Slots, x: Any) -> None:
        """Hold what `result` returned on another site."""
        self.of(values, "number")[slots] = self._held.add([x])

    def make_canonical(self, values: ValueColumns) -> None:
        """Remove the numbers, which differ from site to site."""
        self.of(values, "number")[:] = 0

    def _of_slots(self, values: ValueColumns, slots: Slots) -> tuple[Any, Int64s | None]:
        number = self.of(values, "number").take(slots)
        return self._held.take(number)[0], self.of(values, "time").take(slots) if self._by_time else None

    def _hold(self, values: ValueColumns, slots: Slots, x: Any, time: Int64s | None) -> None:
        self.of(values, "number")[slots] = self._held.add([x])
        if self._by_time:
            self.of(values, "time")[slots] = 0 if time is None else time

    def _ranks(self, candidates: Any, time: Int64s | None) -> Int64s:
        """Return ranks of candidates, of which earlier ones come first; nulls are no candidates."""
        if not self._by_time:
            numbers = order_numbers(candidates)[-1]
            rank = numbers if self._sign > 0 else ~numbers
        else:
            rank = np.empty(len(candidates), np.int64)
            order = slice(None) if time is None else in_order([time])
            rank[order] = self._sign * np.arange(len(candidates))
        if candidates.null_count:
            rank = np.where(candidates.is_valid().to_numpy(zero_copy_only=False), rank, _NONE)
        return rank


def _joined(held: Int64s | None, time: Int64s | None) -> Int64s | None:
    return None if held is None or time is None else np.concatenate([held, time])
