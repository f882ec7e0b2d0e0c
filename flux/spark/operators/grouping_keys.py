"""Rows grouped by key, in the order in which Spark's operators get them, and the keys of their state.

Spark sorts a partition's rows by key before it groups them: nulls first, then by value, NaN last. Rows of a key keep
their order of arrival. Here all partitions of a site are sorted in one vectorised step.
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

__all__ = ["KeyColumns", "KeyGroups", "group_rows", "key_order"]

_NAN = float("nan")


class KeyColumns:
    """The columns of the key: their names, and their types once the first rows have arrived."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.schema: pa.Schema | None = None
        self._order: Callable[[Key], Any] | None = None

    def learn(self, schema: pa.Schema) -> None:
        """Take the types from the schema of the first rows."""
        if self.schema is None:
            self.schema = pa.schema([schema.field(name) for name in self.names])

    def order(self, key: Key) -> Any:
        """Return a sort key for the order of Spark's state store."""
        if self._order is None:
            assert self.schema is not None
            self._order = byte_order([spark_type(field.type) for field in self.schema])
        return self._order(key)

    def of(self, rows: Any) -> list[Key]:
        """Return the key of each row. As in Spark, all NaN are one key, -0.0 is 0.0, and times are instants."""
        columns = []
        for name in self.names:
            column = rows.column(name)
            cells = to_python(column)
            if pa.types.is_floating(column.type):
                cells = [cell if cell is None else _NAN if cell != cell else cell + 0.0 for cell in cells]
            columns.append(cells)
        return wrap_zoned(list(zip(*columns, strict=True)), map(rows.column, self.names))

    def pack(self, keys: Sequence[Key]) -> Any:
        """Return keys as a table."""
        assert self.schema is not None
        return pa.table([list(column) for column in zip(*keys, strict=True)], schema=self.schema)

    def unpack(self, table: Any) -> list[Key]:
        """Return the keys of a table."""
        self.learn(table.schema)
        return self.of(table.combine_chunks())


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """The rows of some partitions, sorted by partition and key; rows[starts[i]:stops[i]] have `keys[i]`."""

    rows: Any
    keys: list[Key]
    starts: list[int]
    stops: list[int]
    partitions: npt.NDArray[np.uint16]  # The partition of each group.

    def of(self, pid: int) -> range:
        """Return the groups of one partition."""
        first, last = np.searchsorted(self.partitions, (pid, pid + 1))
        return range(int(first), int(last))


def group_rows(rows: Any, partition: npt.NDArray[np.uint16], keys: KeyColumns) -> KeyGroups:
    """Sort and group rows by partition and key; those of one key keep their order."""
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


def key_order(keys: Sequence[Key], columns: KeyColumns) -> list[int]:
    """Return the indices of keys in the order in which Spark processes them."""
    table = columns.pack(keys).combine_chunks()
    ranks = [_ranks(table.column(name).combine_chunks()) for name in columns.names]
    indices: list[int] = np.lexsort(tuple(reversed(ranks))).tolist()
    return indices


def _ranks(column: Any) -> Any:
    """Return numbers that sort as the column does in Spark; equal for values that are the same key."""
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
    ranks = np.zeros(len(encoded.dictionary) + 1, np.int64)  # The last is the rank of null.
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(1, len(ranks))
    return ranks[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
