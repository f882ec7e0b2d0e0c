"""OuterJoin: a join that also emits the rows that are in no pair, once no pair can follow.

Each kept row has a number in a further column, and a flag under that number says whether it has been in a pair. A row
that has not is kept until it is emitted: at the first watermark after it has left the bound, or at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..exchange.sides import SIDE
from ..model.batch import Batch, turn_order
from ..model.operator import Context, Punctuation
from ..types.array_types import Bools, Int64s
from .join import FoundPairs, Join, NewRows
from .key_order import in_order, order_numbers
from .retention import NO_ROWS, ArrivedRows
from .sorted_runs import SideRows, SortedRun

__all__ = ["OuterJoin"]

_FIRST_FLAGS = 1_024
_NUMBER = "\0number"  # The column of rows' numbers; no user's column has a name like that.


class OuterJoin(Join):
    """The join of ``a.join(b, ..., how="left")``, and of ``"right"`` and ``"outer"``.

    Pairs are those of `Join`, and are emitted where `Join` emits them. A row of `a` (``"left"``), of `b` (``"right"``)
    or of both (``"outer"``) that is in no pair is emitted once, with nulls in the columns of the other side; the
    columns of `on` always have the key.

    **When.** Such a row is emitted at a watermark: the first at which the join has forgotten it, so that no pair can
    follow. What is left is emitted at the end of the stream. A row that can have no pair at all, because its key or its
    value of the column is null, is emitted at once. The rows that one watermark causes are in the order of their
    values of the column, or of their sequence numbers; of equal ones, those of `a` come first, then the earlier ones.
    Partitions take turns, as in `TimeWindow`.

    Without watermarks rows in no pair are kept until the end of the stream.
    """

    def open(self, context: Context) -> None:
        super().open(context)
        self._is_paired: Bools = np.zeros(_FIRST_FLAGS, np.bool_)  # By number, from `_lowest` on.
        self._lowest = self._next_number = 0

    # Rows.

    def process(self, batch: Batch) -> Batch | None:
        self._found: tuple[pa.RecordBatch, pa.RecordBatch, Int64s] | None = None
        super().process_with_punctuations(batch, ())
        parts: list[tuple[Mapping[str, Any], Int64s]] = []
        if self._found is not None:
            parts.append((self._columns(*self._found[:2]), self._found[2]))
        for side in self._spec.preserved:
            alone = np.flatnonzero(self._has_no_pair & (batch[SIDE] == side))
            if len(alone):
                rows = {name: batch.column(f"{side}.{name}") for name in self._spec.sides[side].names}
                taken = {name: column.take(pa.array(alone)) for name, column in rows.items()}
                parts.append((self._columns_alone(side, taken, len(alone)), alone))
        if not parts:
            return None
        place = np.concatenate([each for _, each in parts])
        order = in_order([place])
        return batch.emit(_concat([columns for columns, _ in parts], order), place.take(order))

    def _split_sides(self, batch: Batch) -> tuple[SideRows, ArrivedRows, Bools]:
        rows, arrived, has_key = super()._split_sides(batch)
        self._has_no_pair = np.ones(len(batch), np.bool_)
        self._has_no_pair[arrived.place.compress(has_key)] = False
        left, right = (
            self._numbered(rows[side], np.full(len(rows[side]), side not in self._spec.preserved)) for side in (0, 1)
        )
        return (left, right), arrived, has_key

    def _numbered(self, rows: pa.RecordBatch, is_paired: Bools) -> pa.RecordBatch:
        """Return rows with further numbers, and set their flags."""
        first, self._next_number = self._next_number, self._next_number + len(rows)
        if self._next_number - self._lowest > len(self._is_paired):
            self._make_room()
        self._is_paired[first - self._lowest : self._next_number - self._lowest] = is_paired
        return rows.append_column(_NUMBER, pa.array(np.arange(first, self._next_number)))

    def _make_room(self) -> None:
        """Forget the flags of rows that are gone, and double the room if that is not enough."""
        lowest = min((_numbers(run).min() for run in self._runs if len(run)), default=self._next_number)
        kept = self._is_paired[int(min(lowest, self._next_number)) - self._lowest :]
        self._lowest += len(self._is_paired) - len(kept)
        capacity = max(_FIRST_FLAGS, 2 * (self._next_number - self._lowest))
        self._is_paired = np.concatenate([kept, np.zeros(max(0, capacity - len(kept)), np.bool_)])

    def _emit(self, batch: Batch, new: NewRows, found: list[FoundPairs]) -> None:
        if found:
            self._found = self._pairs(new, found)
            for rows in self._found[:2]:
                self._is_paired[rows.column(_NUMBER).to_numpy() - self._lowest] = True

    def _columns_alone(self, side: int, rows: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Return the output for rows of one side that are in no pair."""
        spec = self._spec
        values: dict[str, Any] = (
            dict(rows) if side == 0 else dict(zip(spec.ours, map(rows.get, spec.theirs), strict=True))
        )
        columns = [values.get(name) for name in spec.sides[0].names]
        columns += [rows[name] if side else None for name in spec.taken]
        return {
            field.name: pa.nulls(count, field.type) if column is None else column
            for field, column in zip(spec.output, columns, strict=True)
        }

    # Time.

    def on_punctuation(self, p: Punctuation) -> tuple[Mapping[str, Any], Any] | None:  # type: ignore[override]
        self._horizon.advance(NO_ROWS, (p,))
        due = [self._due(run, p) for run in self._runs] if p.kind in ("watermark", "end") else []
        parts = [(run, mask) for run, mask in zip(self._runs, due, strict=False) if mask.any()]
        emitted = self._unpaired_rows(parts) if parts else None
        for run, mask in parts:
            self._is_paired[_numbers(run)[mask] - self._lowest] = True
        self._runs = [run for run in self._runs if self._is_live(run).any()]
        return emitted

    def _due(self, run: SortedRun, p: Punctuation) -> Bools:
        """Return which rows of a run are in no pair, and can be in none."""
        due = ~self._paired_of(run)
        if p.partitions is not None:
            due &= np.isin(run.partition, list(p.partitions))
        return due if p.kind == "end" else due & ~super()._is_live(run)

    def _unpaired_rows(self, parts: list[tuple[SortedRun, Bools]]) -> tuple[Mapping[str, Any], Any]:
        columns, when, partition, sides = [], [], [], []
        for side in self._spec.preserved:
            for run, mask in parts:
                own = np.flatnonzero(mask[run.left :] if side else mask[: run.left])
                rows = run.rows[side].take(pa.array(own))
                values = {name: rows.column(name) for name in self._spec.sides[side].names}
                columns.append(self._columns_alone(side, values, len(own)))
                own += run.left if side else 0
                when.append(run.when.take(own))
                partition.append(run.partition.take(own))
                sides.append(np.full(len(own), side))
        # In the order of time; rows of one time and side stay in arrival order.
        order = in_order([order_numbers(pa.array(np.concatenate(when)))[0], np.concatenate(sides)])
        order = order.take(turn_order(np.concatenate(partition).take(order)))
        return _concat(columns, order), np.concatenate(partition).take(order)

    def _is_live(self, run: SortedRun, every: int = 1) -> Bools:
        return super()._is_live(run, every) | ~self._paired_of(run)[::every]

    def _forget(self) -> None:
        """Forget nothing between punctuations: rows in no pair have not been emitted yet."""

    def _paired_of(self, run: SortedRun) -> Bools:
        return self._is_paired.take(_numbers(run) - self._lowest)

    # State.

    def _piece_of(self, rows: pa.RecordBatch) -> dict[str, Any]:
        is_paired = self._is_paired.take(rows.column(_NUMBER).to_numpy() - self._lowest)
        return {**super()._piece_of(rows.drop_columns([_NUMBER])), "is_paired": is_paired}

    def _installed_rows(self, state: Any) -> pa.RecordBatch:
        return self._numbered(super()._installed_rows(state), state["is_paired"])

    def _no_rows(self, side: int) -> pa.RecordBatch:
        return super()._no_rows(side).append_column(_NUMBER, pa.array([], pa.int64()))


def _numbers(run: SortedRun) -> Int64s:
    """Return the numbers of the rows of a run, in their order."""
    return np.concatenate([side.column(_NUMBER).to_numpy() for side in run.rows])


def _concat(parts: Sequence[Mapping[str, Any]], order: Int64s) -> dict[str, Any]:
    """Return the columns of all parts, in this order."""
    return {name: pa.concat_arrays([part[name] for part in parts]).take(pa.array(order)) for name in parts[0]}
