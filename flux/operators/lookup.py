"""Lookup: each row with the row of a table that has its key. The table is given with the plan, or is a stream.

A table of the plan is at every site, and rows are looked up where they are, without an exchange. A stream is
partitioned by key like the rows that are looked up: each partition has the part of the table that its rows can need.
There the last row of each key is kept in a `ValueStore`, and the merged order of both streams decides which one a row
finds. So both copies of a partition find the same.

A stream may instead be broadcast: its edge gives each row to every partition (`Route` with `by="all"`), and the rows
that are looked up go to any. The result is the same. State is a whole table in each partition, and a row of the table
costs as many as there are partitions; in return, a key that most rows have makes no partition slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..exchange.sides import SIDE
from ..model.batch import Batch
from ..model.operator import Context, PooledOperator
from ..types.array_types import Bools, Int64s
from ..types.errors import PlanError
from .held_values import ValueStore
from .join_spec import JoinSpec
from .key_order import in_order
from .keys import KeyTable, KeyTableOperator

__all__ = ["Lookup", "TableLookup"]


class TableLookup(PooledOperator):
    """Adds the columns of a table's row to each row with its key; the table does not change."""

    changeable = ()

    is_one_to_many = False
    passes_rows_on = True

    def __init__(self, spec: JoinSpec, table: pa.Table) -> None:
        self._spec, self._table = spec, table
        self._known: KeyTable | None = None

    @staticmethod
    def check(spec: JoinSpec, table: pa.Table) -> None:
        """Raise `PlanError` if a key has several rows."""
        keys = _with_keys(table, spec).select(spec.theirs)
        counted = keys.group_by(list(spec.theirs)).aggregate([([], "count_all")])
        several = counted.filter(pc.field("count_all") > 1)
        if several.num_rows:
            key = several.slice(0, 1).select(spec.theirs).to_pylist()[0]
            raise PlanError(
                f"lookup: the table has {several.column('count_all')[0].as_py()} rows with "
                f"{', '.join(f'{name} {value!r}' for name, value in key.items())}; a key has one row. Leave the others "
                "out, or use join(..., within=None)"
            )

    def process(self, batch: Batch) -> Batch | None:
        spec = self._spec
        if self._known is None:
            self._rows = _with_keys(self._table, spec).combine_chunks()
            self._known = _key_table(spec, {"row": np.int64})
            none = np.zeros(self._rows.num_rows, np.uint16)
            keys = [self._rows.column(name).combine_chunks() for name in spec.theirs]
            slots, _ = self._known.find_or_insert(keys, none)
            self._known.values["row"][slots] = np.arange(len(slots))
        keys = [batch.column(name) for name in spec.ours]
        slots = self._known.find(keys, np.zeros(len(batch), np.uint16))
        is_found = (slots != 0) & _has_key(keys)
        row = pa.array(self._known.values["row"].take(slots), mask=~is_found)
        columns = [self._rows.column(name).combine_chunks().take(row) for name in spec.taken]
        return _emit(batch, spec, list(batch.arrow.columns), columns, is_found, np.arange(len(batch)))

    def get_partition_state(self, pid: int) -> None:
        return None

    def drop_partition(self, pid: int) -> None:
        pass


class Lookup(KeyTableOperator):
    """Each row of a stream with the last row of another stream that has its key: `a.lookup(b, on=...)`.

    A row of `b` replaces the row that its key had. The change takes effect at one position: a row of `a` finds the last
    row of `b` before it in the merged input, in the order of (sn, sub, edge, partition). A row of `a` without one is
    emitted with nulls, or with ``how="inner"`` not at all. Keys with a null find nothing. Nothing is emitted for rows
    of `b`. State is the last row of each key. A row of `b` with true in the column `deletes` removes the row of its
    key.
    """

    changeable = ()

    needs_order = True

    def open(self, context: Context) -> None:
        self._spec: JoinSpec = context.parameters["joined"]
        self._table = _key_table(self._spec, {"number": np.int64})
        self._rows = ValueStore({name: self._spec.sides[1].field(name).type for name in self._columns})

    @property
    def _columns(self) -> tuple[str, ...]:
        # The key too, so that a row without other columns has a number.
        return (*self._spec.theirs, *self._spec.taken)

    def process(self, batch: Batch) -> Batch | None:
        assert self._table is not None
        spec, table = self._spec, self._table
        left, right = (self._rows_of(batch, side) for side in (0, 1))
        self._rows.compact(table.values["number"])
        taken = [batch.column(f"1.{name}").take(pa.array(right)) for name in self._columns]
        slots, new = table.find_or_insert(taken[: len(spec.theirs)], batch.partition.take(right))
        table.values["number"][slots.compress(new)] = 0
        numbers = self._rows.add(taken)
        if spec.deletes is not None:
            numbers[_is_true(batch.column(f"1.{spec.deletes}").take(pa.array(right)))] = 0
        columns = [batch.column(f"0.{name}").take(pa.array(left)) for name in spec.sides[0].names]
        keys = [columns[spec.sides[0].names.index(name)] for name in spec.ours]
        own = table.find(keys, batch.partition.take(left))
        own[~_has_key(keys)] = 0
        found = self._last_before(own, left, slots, right, numbers)
        table.values["number"][slots] = numbers  # Of several rows of a key the last one stays.
        if spec.deletes is not None:
            table.delete(np.unique(slots[table.values["number"].take(slots) == 0]), for_good=True)
        if not len(left):
            return None
        theirs = self._rows.take(found)[len(spec.theirs) :]
        return _emit(batch, spec, columns, theirs, found != 0, left)

    def _rows_of(self, batch: Batch, side: int) -> Int64s:
        """Return the places of the rows of a side; rows of the table without a key are left out."""
        is_here = batch[SIDE] == side
        if side:
            is_here = is_here & _has_key([batch.column(f"1.{name}") for name in self._spec.theirs])
        return np.flatnonzero(is_here)

    def _last_before(self, own: Int64s, left: Int64s, slots: Int64s, right: Int64s, numbers: Int64s) -> Int64s:
        """Return the number of the last row of the table before each row at `left`, whose slot is `own`."""
        assert self._table is not None
        slot, place = np.concatenate([slots, own]), np.concatenate([right, left])
        order = in_order([slot, place])
        # The last entry of the table at or before each entry; it must be of the same slot.
        last = np.maximum.accumulate(np.where(order < len(slots), np.arange(len(order)), -1))
        entry = order.take(last)
        is_new = (last >= 0) & (slot.take(entry) == slot.take(order))
        found = self._table.values["number"].take(slot.take(order))
        found[is_new] = numbers.take(entry.compress(is_new))
        by_entry = np.empty(len(order), np.int64)
        by_entry[order] = found
        by_entry[slot == 0] = 0
        return by_entry[len(slots) :]

    # State by partition.

    def get_partition_state(self, pid: int) -> Iterator[Any]:
        for piece in super().get_partition_state(pid):
            held = pa.table(self._rows.take(piece["values"]["number"]), names=list(self._columns))
            yield {**piece, "values": {}, "held": held}

    def install_partition_state(self, pid: int, state: Any) -> None:
        assert self._table is not None
        slots = self._table.install(pid, state)
        self._table.values["number"][slots] = self._rows.add([each.combine_chunks() for each in state["held"].columns])


def _key_table(spec: JoinSpec, values: dict[str, Any]) -> KeyTable:
    return KeyTable("lookup", {name: spec.sides[1].field(name).type for name in spec.theirs}, values)


def _has_key(keys: list[Any]) -> Bools:
    """Return which rows have no null in their key."""
    has_key = np.ones(len(keys[0]), np.bool_)
    for key in keys:
        if key.null_count:
            has_key &= key.is_valid().to_numpy(zero_copy_only=False)
    return has_key


def _is_true(column: Any) -> Bools:
    """Return where a column of booleans is true; null is not."""
    return np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False))


def _with_keys(table: pa.Table, spec: JoinSpec) -> pa.Table:
    """Return the rows that have no null in their key."""
    mask: npt.NDArray[np.bool_] = _has_key([table.column(name) for name in spec.theirs])
    return table.filter(pa.array(mask))


def _emit(
    batch: Batch, spec: JoinSpec, ours: list[Any], theirs: list[Any], is_found: Bools, place: Int64s
) -> Batch | None:
    """Emit rows at their places; without their side, only those that were found."""
    columns = [*ours, *theirs]
    if not spec.preserved and not is_found.all():
        columns, place = [column.filter(pa.array(is_found)) for column in columns], place.compress(is_found)
    return batch.emit(dict(zip(spec.output.names, columns, strict=True)), place)
