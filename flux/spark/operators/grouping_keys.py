"""Rows by key: a micro-batch in the order in which Spark's operators get it, and the keys of their state.

Spark sorts a partition's rows by key before it groups them: nulls first, then by value, NaN last. Rows of a key stay in
the order in which they came. Here all partitions of a site are sorted in one vectorised step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...model.zoned_keys import wrap_zoned
from ...types.array_types import Key
from ...types.to_python import to_python
from .spark_columns import spark_type
from .unsafe_row_order import byte_order

__all__ = ["KeyColumns", "KeyGroups", "grouped", "in_order"]

_NAN = float("nan")


class KeyColumns:
    """The columns of the key: their names, and their types once a row has been seen."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.schema: pa.Schema | None = None
        self._order: Callable[[Key], Any] | None = None

    def learn(self, schema: pa.Schema) -> None:
        """See the types in the schema of some rows."""
        if self.schema is None:
            self.schema = pa.schema([schema.field(name) for name in self.names])

    def order(self, key: Key) -> Any:
        """What sorts keys as Spark's state store has them."""
        if self._order is None:
            assert self.schema is not None
            self._order = byte_order([spark_type(field.type) for field in self.schema])
        return self._order(key)

    def of(self, rows: Any) -> list[Key]:
        """The key of each row. All NaN are one key, -0.0 is 0.0, and times are instants, as Spark has it."""
        columns = []
        for name in self.names:
            column = rows.column(name)
            cells = to_python(column)
            if pa.types.is_floating(column.type):
                cells = [cell if cell is None else _NAN if cell != cell else cell + 0.0 for cell in cells]
            columns.append(cells)
        return wrap_zoned(list(zip(*columns, strict=True)), map(rows.column, self.names))

    def pack(self, keys: Sequence[Key]) -> Any:
        """Keys as a table."""
        assert self.schema is not None
        return pa.table([list(column) for column in zip(*keys, strict=True)], schema=self.schema)

    def unpack(self, table: Any) -> list[Key]:
        """The keys of a table."""
        self.learn(table.schema)
        return self.of(table.combine_chunks())


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """The rows of some partitions, sorted by partition and key; rows[starts[i]:stops[i]] have `keys[i]`."""

    rows: Any
    keys: list[Key]
    starts: list[int]
    stops: list[int]
    partitions: npt.NDArray[np.uint16]  # Of each group.

    def of(self, pid: int) -> range:
        """The groups of one partition."""
        first, last = np.searchsorted(self.partitions, (pid, pid + 1))
        return range(int(first), int(last))


def grouped(rows: Any, partition: npt.NDArray[np.uint16], keys: KeyColumns) -> KeyGroups:
    """Sort rows by partition and key; those of one key keep their order."""
    ranks = [_ranks(rows.column(name)) for name in keys.names]
    order = np.lexsort((*reversed(ranks), partition))
    rows, partition = rows.take(pa.array(order)), partition[order]
    begins = np.ones(len(order), np.bool_)
    if len(order) > 1:
        begins[1:] = partition[1:] != partition[:-1]
        for rank in ranks:
            sorted_rank = rank[order]
            begins[1:] |= sorted_rank[1:] != sorted_rank[:-1]
    starts = np.flatnonzero(begins)
    firsts = rows.select(list(keys.names)).take(pa.array(starts))
    stops = [*starts[1:].tolist(), len(order)]
    return KeyGroups(rows, keys.of(firsts), starts.tolist(), stops, partition[starts])


def in_order(keys: Sequence[Key], columns: KeyColumns) -> list[int]:
    """The places of keys in the order in which Spark comes to them."""
    table = columns.pack(keys).combine_chunks()
    ranks = [_ranks(table.column(name).combine_chunks()) for name in columns.names]
    places: list[int] = np.lexsort(tuple(reversed(ranks))).tolist()
    return places


def _ranks(column: Any) -> Any:
    """Numbers that sort as the column does in Spark; equal for values that are one key."""
    kind = column.type
    if column.null_count == 0 and pa.types.is_integer(kind):
        return column.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        values = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False) + 0.0
        ranks = np.unique(values, return_inverse=True)[1] + 1
        return np.where(np.asarray(pc.is_null(column)), 0, ranks)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    encoded = column.dictionary_encode()
    ranks = np.zeros(len(encoded.dictionary) + 1, np.int64)  # The last one is that of null.
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(1, len(ranks))
    return ranks[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
