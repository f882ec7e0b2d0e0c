"""A batch: the rows an operator gets at once, and the only way it emits rows.

The user sees columns. Beside them a batch carries what Flux needs to keep rows in order and never lose or repeat one:
`sn`, the number the ingress gave to the input each row descends from; `sub`, which orders the descendants of one input
(see `flux.model.subseq`); and the partition of each row. Rows are in (sn, sub, producer partition) order.

`emit` creates the hidden columns. The user names the input row from which each output row stems. That alone gives the
output its place, so that it cannot depend on how rows were batched.

This file knows nothing of partition functions, frames or operators' life cycles.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..types.array_types import Int64s, Pids
from ..types.arrays import ColumnError, record_batch_of, to_numpy
from ..types.errors import OperatorError
from ..types.infer import concat
from ..types.to_python import UNREPRESENTABLE, first_unrepresentable, to_python
from .subseq import MAX_OUTPUTS_PER_ROW, Subseqs, at_level, concat_subseqs, neighbours, words_of

__all__ = ["ROW_MODULE", "Batch", "punctuation_rows", "row_type", "turn_order"]

ROW_MODULE = "flux.model.batch.row"  # Distinguishes the rows given to operators from other named tuples.


class Batch:
    """Rows of one or more partitions of one segment, as columns.

    `batch["src"]` is a read-only numpy array: object for strings and binary, masked where there are nulls,
    and of shape (rows, w) and type uint8 for a fixed_size_binary(w) column. `batch.arrow` is the record
    batch, `batch.rows()` yields named tuples of Python values, `batch.partition` holds the partition of
    each row.

    >>> rows = pa.RecordBatch.from_pydict({"n": [3, 0, 2]})
    >>> batch = Batch(rows, np.arange(3), None, np.zeros(3, np.uint16))
    >>> out = batch.emit({"x": [1, 1, 2, 2, 2]}, origin=[0, 0, 2, 2, 2])
    >>> out.sn.tolist(), (out.sub >> np.uint64(48)).tolist()
    ([0, 0, 2, 2, 2], [0, 1, 0, 1, 2])
    """

    __slots__ = (
        "_columns",
        "_names",
        "_reached",
        "arrow",
        "level",
        "origin",
        "output",
        "partition",
        "sn",
        "step",
        "sub",
    )

    def __init__(
        self,
        arrow: Any,
        sn: Int64s,
        sub: Subseqs | None,
        partition: Pids,
        level: int = 0,
        output: Any = None,
        step: str = "",
        origin: Int64s | None = None,
    ) -> None:
        assert len(sn) == len(partition) == arrow.num_rows, "hidden columns are as long as the user's"
        assert sub is None or len(sub) == len(sn)
        self.arrow = arrow
        self.sn = sn
        # None means all zero: no step up to here has emitted several rows for one.
        self.sub = sub
        self.partition = partition
        self.level = level
        self.output = output
        self.step = step
        # Of an emitted batch: for each row, the row of the input batch from which it stems.
        self.origin = origin
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self._names: dict[str, int] | None = None
        self._reached: int | None = None

    # Read by operators.

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        values = self._columns.get(name)
        if values is None:
            values = self._columns[name] = to_numpy(self.column(name))
        return values

    def column(self, name: str) -> Any:
        """Return a column as an Arrow array."""
        if self._names is None:
            self._names = {column: i for i, column in enumerate(self.arrow.schema.names)}
        place = self._names.get(name)
        if place is None:
            raise KeyError(f"this batch has no column {name!r}; its columns are {', '.join(self._names)}")
        return self.arrow.column(place)

    def rows(self) -> Iterator[Any]:
        """Yield each row as a named tuple of Python values (null is None); see `row_type`.

        A column is `row.src`, or `row["unit price"]` if its name is not an identifier.
        A timestamp in nanoseconds is a `datetime` if no digits are lost, and else a `pandas.Timestamp`, a subclass.
        """
        # `_reached` lets an error name the current row.
        rows = self.iter_rows()
        for self._reached, row in enumerate(rows):
            yield row
        self._reached = None

    def iter_rows(self) -> Iterator[Any]:
        """Yield the same as `rows`, for callers that track the current row themselves."""
        make = functools.partial(tuple.__new__, row_type(tuple(self.arrow.schema.names)))
        try:
            return map(make, zip(*map(to_python, self.arrow.columns), strict=True))
        except UNREPRESENTABLE as error:
            return self._iter_representable(error)

    def _iter_representable(self, error: Exception) -> Iterator[Any]:
        """Yield the rows before the first with a value that Python cannot represent; then raise the error for it."""
        found = first_unrepresentable(self.arrow)
        if found is None:
            raise error
        place, message = found
        if place:
            yield from self.slice(0, place).iter_rows()
        raise self._error(message, place)

    # Emitted by operators.

    def emit(self, columns: Mapping[str, Any], origin: Any = None) -> Batch | None:
        """Return `columns` as output rows, or None if there are none.

        `columns` maps every output column to numpy, Arrow or list values of one length; they are cast safely to the
        declared schema. `origin[i]` is the row of this batch from which output row i stems. Origins are non-decreasing;
        without `origin`, row i stems from row i.
        """
        try:
            arrow = record_batch_of(columns, self.output)
        except ColumnError as error:
            raise self._error(str(error), self._origin_row(error.place, origin)) from error
        count = arrow.num_rows
        if origin is None:
            if count not in (0, len(self)):
                raise self._error(
                    f"emit was given {count} rows for a batch of {len(self)} without `origin`. Say with "
                    "origin=indices which input row each output row stems from"
                )
            where = np.arange(count)
            index = None
        else:
            where = self._checked_origin(origin, count)
            index = _index_among_equals(where)
        if count == 0:
            return None
        whole = origin is None
        return Batch(
            arrow,
            self.sn if whole else self.sn.take(where),
            self._descendants(where, index),
            self.partition if whole else self.partition.take(where),
            self.level,
            self.output,
            self.step,
            where,
        )

    def _origin_row(self, place: int | None, origin: Any) -> int | None:
        """Return the input row of an output row, for an error; `origin` is not checked yet."""
        rows = range(len(self)) if origin is None else np.ravel(origin)
        if place is None or place >= len(rows):
            return None
        row = int(rows[place])
        return row if 0 <= row < len(self) else None

    def _checked_origin(self, origin: Any, count: int) -> Int64s:
        where = np.asarray(origin)
        if where.size and where.dtype.kind not in "iu":
            raise self._error(f"origin must be integers, the rows of this batch; got {where.dtype}")
        where = where.astype(np.int64, copy=False)
        if where.shape != (count,):
            raise self._error(f"origin must name one input row for each of {count} output rows; got {where.shape}")
        if count and (where[0] < 0 or where[-1] >= len(self) or (where[1:] < where[:-1]).any()):
            raise self._error(
                f"origin must be non-decreasing and within the batch's {len(self)} rows; got "
                f"{where.min()} to {where.max()}{' out of order' if (where[1:] < where[:-1]).any() else ''}. "
                "Emit rows in the order of the input rows they stem from"
            )
        return where

    def _descendants(self, where: Int64s, index: Int64s | None) -> Subseqs | None:
        """Return `sub` of the outputs: that of their input row, with their index at the level of this step."""
        inherited = None if self.sub is None else self.sub.take(where, axis=0)
        if index is None:
            return inherited
        most = int(index.max())
        if most >= MAX_OUTPUTS_PER_ROW:
            raise self._error(
                f"emitted {most + 1} rows for one; at most {MAX_OUTPUTS_PER_ROW} can be kept in order. Emit fewer, or "
                "one row with a list column",
                int(where[int(index.argmax())]),
            )
        return at_level(inherited, index, self.level)

    def _error(self, message: str, row: int | None = None) -> OperatorError:
        if row is None:
            row = self.reached()
        if row is None:
            return OperatorError(message, self.step or None)
        return OperatorError(message, self.step or None, int(self.partition[row]), int(self.sn[row]))

    # Used by Flux.

    def reached(self) -> int | None:
        """Return the row that `rows()` last yielded, or the only row of the batch; None if it is unknown."""
        return 0 if len(self) == 1 else self._reached

    def for_step(self, level: int, output: Any, step: str) -> Batch:
        """Return the same rows as the input of a step."""
        return Batch(self.arrow, self.sn, self.sub, self.partition, level, output, step)

    def numbered(self, sn: Int64s) -> Batch:
        """Return the same rows with other numbers, in the same order."""
        return Batch(self.arrow, sn, self.sub, self.partition, self.level, self.output, self.step, self.origin)

    def slice(self, start: int, stop: int) -> Batch:
        """Return rows `start` to `stop`, without a copy."""
        rows = slice(start, stop)
        return Batch(
            self.arrow.slice(start, stop - start),
            self.sn[rows],
            None if self.sub is None else self.sub[rows],
            self.partition[rows],
            self.level,
            self.output,
            self.step,
            None if self.origin is None else self.origin[rows],
        )

    def take(self, indices: Int64s) -> Batch:
        """Return the rows at `indices`, in that order."""
        return Batch(
            self.arrow.take(pa.array(indices)),
            self.sn[indices],
            None if self.sub is None else self.sub[indices],
            self.partition[indices],
            self.level,
            self.output,
            self.step,
            None if self.origin is None else self.origin[indices],
        )

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """Return the rows of all batches, one after the other, with the step of the first."""
        if len(batches) == 1:
            return batches[0]
        first = batches[0]
        return Batch(
            concat([b.arrow for b in batches]),
            np.concatenate([b.sn for b in batches]),
            concat_subseqs([(b.sub, len(b)) for b in batches]),
            np.concatenate([b.partition for b in batches]),
            first.level,
            first.output,
            first.step,
        )

    def ordered(self) -> Batch:
        """Return the rows in (sn, sub, partition) order; rows that agree in all three keep their order.

        Only rows of one sn can be out of order after a step, and few are: checking is cheap, sorting is rare.
        """
        later = self.sn[1:] > self.sn[:-1]
        if later.all():
            return self
        same_sn = self.sn[1:] == self.sn[:-1]
        greater, same = neighbours(self.sub, len(self))
        later |= same_sn & greater
        later |= same_sn & same & (self.partition[1:] >= self.partition[:-1])
        if later.all():
            return self
        keys: tuple[npt.NDArray[Any], ...] = (self.partition, *reversed(words_of(self.sub)), self.sn)
        return self.take(np.lexsort(keys))


def punctuation_rows(arrow: Any, sn: int, partition: Pids, level: int, output: Any = None, step: str = "") -> Batch:
    """Return the rows that a punctuation caused: they get its sn, and their index in their partition as sub.

    The index is per partition, because which partitions share a pooler may differ between copies. Rows beyond the last
    index share it. A partition's rows still keep their order, since merges are stable and the rows of one sn stay
    together. So a punctuation may cause any number of rows; one row may not.
    """
    index = _turns(partition)
    if index is None:
        order = turn_order(partition)
        arrow, partition = arrow.take(pa.array(order)), partition.take(order)
        index = _turns(partition)
        assert index is not None, "rows are in turn order now"
    np.minimum(index, MAX_OUTPUTS_PER_ROW - 1, out=index)
    numbers = np.full(len(index), sn, np.int64)
    rows = Batch(arrow, numbers, at_level(None, index, level), partition, level, output, step)
    # Rows that share the last index must be in the order of partitions.
    return rows.ordered() if len(index) and index[-1] == MAX_OUTPUTS_PER_ROW - 1 else rows


def turn_order(partition: Pids) -> Int64s:
    """Return the order in which partitions take turns: the first row of each, then the second of each, and so on.

    An operator that gathers its output in this order at a punctuation saves `punctuation_rows` a second gather.

    >>> turn_order(np.array([1, 0, 1, 0], np.uint16)).tolist()
    [1, 0, 3, 2]
    """
    grouped = np.argsort(partition, kind="stable")
    counts = np.bincount(partition)
    index = np.arange(len(partition)) - np.repeat(np.cumsum(counts) - counts, counts)
    # Numpy sorts 16 bits by radix; larger indices are rare.
    narrow = index.astype(np.uint16 if counts.max(initial=0) <= 1 << 16 else np.int64)
    return grouped.take(np.argsort(narrow, kind="stable"))


def _turns(partition: Pids) -> Int64s | None:
    """Return the index of each row in its partition if partitions take turns; None if they do not."""
    if not len(partition):
        return np.zeros(0, np.int64)
    index = np.zeros(len(partition), np.int64)
    np.cumsum(partition[1:] <= partition[:-1], out=index[1:])
    # The partitions within one turn differ. If turn i is as large as the number of partitions with more than i rows, it
    # has all of them: a partition that misses a turn would make a later turn too large.
    sizes, counts = np.bincount(index), np.bincount(partition)
    have_more = len(counts) - np.cumsum(np.bincount(counts))
    return index if np.array_equal(sizes, have_more[:-1]) else None


def _index_among_equals(values: Any) -> Any:
    """Return each value's index among its equals, which are adjacent; None if all values differ."""
    repeated = np.flatnonzero(values[1:] == values[:-1]) + 1
    if not len(repeated):
        return None
    places = np.arange(len(values))
    first = places.copy()
    first[repeated] = 0
    # The last place at which a new value began; the first value is never a repeated one.
    np.maximum.accumulate(first, out=first)
    return places - first


@functools.lru_cache(maxsize=256)
def row_type(names: tuple[str, ...]) -> Any:
    """Return the class of rows with these columns; creating one takes longer than filling hundreds.

    It is a named tuple that takes names of columns as well: `row["unit price"]` and `row.get("unit price")` are for
    names that are not identifiers, which as attributes are `_0`, `_1` and so on.

    >>> row = row_type(("n", "unit price"))._make([1, 9.5])
    >>> row.n, row["unit price"], row.get("discount", 0), row[1], row._asdict()
    (1, 9.5, 0, 9.5, {'n': 1, 'unit price': 9.5})
    """
    places = {name: place for place, name in enumerate(names)}
    item = tuple.__getitem__

    def __getitem__(row: Any, key: Any) -> Any:
        if type(key) is int:
            return item(row, key)
        if not isinstance(key, str):
            return item(row, key)  # A slice; what is neither raises as a tuple does.
        if key not in places:
            raise KeyError(f"this row has no column {key!r}; its columns are {', '.join(places)}")
        return item(row, places[key])

    def get(row: Any, name: str, default: Any = None) -> Any:
        """Return the value of a column; `default` if there is no such column."""
        return item(row, places[name]) if name in places else default

    def _asdict(row: Any) -> dict[str, Any]:
        """Return the values by the names of their columns."""
        return dict(zip(names, row, strict=True))

    attributes = {"__getitem__": __getitem__, "_asdict": _asdict, "_columns": names}
    if "get" not in places:  # A column of that name comes first.
        attributes["get"] = get
    # Set on the class itself: one derived from it would have another class to search for each attribute.
    made = namedtuple("Row", names, rename=True, module=ROW_MODULE)  # type: ignore[misc]
    for name, value in attributes.items():
        setattr(made, name, value)
    return made
