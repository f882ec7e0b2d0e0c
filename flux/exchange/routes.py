"""Routes: the partition of the next stage for each row.

A route is part of the plan and the same on every site and in every copy: two copies of a producer must send a row to
the same partition, or the copies of the consumer would get different rows.

Departure: River, and DESIGN.md after it, weigh content-insensitive routing by the current free space of the consumers.
Here `by="any"` uses the position of a row alone, because free space differs from copy to copy and from run to run.
Positions are hashed first, so that a filter which keeps every other row does not starve every other partition. A slow
consumer is relieved by moving partitions away from it.

`by="all"` gives each row to every partition, for a table that all of them need. The rows of one row have its position;
in each partition there is one of them, so the order of a partition's input is not affected.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model.batch import Batch
from ..model.subseq import Subseqs, words_of
from ..types.array_types import Pids
from ..types.cast import cast_values
from ..types.errors import PlanError
from ..types.hashing import mix, partition_of

By = Literal["hash", "range", "any", "all"]

_HALF = np.uint64(32)


@dataclass(frozen=True, kw_only=True)
class Route:
    """How the rows of an edge are distributed over `partitions`; a sink has one partition.

    By range, partition i gets the values from `boundaries[i - 1]` up to, and not including, `boundaries[i]`. Nulls go
    to the first partition, NaN to the last.
    """

    partitions: int = 1
    by: By = "hash"
    columns: tuple[str, ...] = ()
    boundaries: tuple[Any, ...] = ()

    def distribute(self, batch: Batch) -> tuple[Batch, Pids]:
        """Return the rows to send and the partition of each; `by="all"` repeats a row for every partition.

        >>> rows = Batch(pa.record_batch({"n": [7, 8]}), np.array([3, 4]), None, np.zeros(2, np.uint16))
        >>> sent, partition = Route(partitions=2, by="all").distribute(rows)
        >>> sent.sn.tolist(), partition.tolist()
        ([3, 3, 4, 4], [0, 1, 0, 1])
        """
        if self.by != "all" or self.partitions == 1:
            return batch, self.partition(batch.arrow, batch.sn, batch.sub)
        every = np.arange(self.partitions, dtype=np.uint16)
        return batch.take(np.repeat(np.arange(len(batch)), self.partitions)), np.tile(every, len(batch))

    def partition(self, rows: pa.RecordBatch, sn: npt.NDArray[np.int64], sub: Subseqs | None) -> Pids:
        """Return the partition of each row; not for `by="all"`.

        >>> Route(partitions=3, by="range", columns=("n",), boundaries=(10, 20)).partition(
        ...     pa.record_batch({"n": [9, 10, 25, None]}), np.arange(4), None).tolist()
        [0, 1, 2, 0]
        """
        if self.partitions == 1:
            return np.zeros(rows.num_rows, dtype=np.uint16)
        if self.by == "hash":
            return partition_of([rows.column(name) for name in self.columns], self.partitions)
        if self.by == "range":
            return _by_range(rows.column(self.columns[0]), self.boundaries)
        assert self.by == "any"
        return _by_position(sn, sub, self.partitions)


def _by_position(sn: npt.NDArray[np.int64], sub: Subseqs | None, partitions: int) -> npt.NDArray[np.uint16]:
    mixed = sn.astype(np.uint64)
    for number, word in enumerate(words_of(sub), start=1):
        word = word.copy()
        for _ in range(number):  # A different hash for each word; zero, which may be left out, stays zero.
            mix(word)
        mixed += word
    mix(mixed)
    mixed >>= _HALF
    mixed *= np.uint64(partitions)
    mixed >>= _HALF
    return mixed.astype(np.uint16)


def _by_range(column: Any, boundaries: Sequence[Any]) -> npt.NDArray[np.uint16]:
    # Each distinct value once: text has few, and numbers cost little more this way.
    encoded = column.dictionary_encode()
    bounds = pa.array(boundaries, column.type)
    found = _places(encoded.dictionary, bounds)
    indices = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
    partition = found[indices] if len(found) else np.zeros(len(column), dtype=np.uint16)
    if column.null_count:
        partition[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return partition


def _places(values: Any, bounds: Any) -> npt.NDArray[np.uint16]:
    """Return for each value the number of bounds that are not above it."""
    order = pc.sort_indices(pa.concat_arrays([bounds, values]))  # Stable: a bound precedes an equal value.
    is_bound = order.to_numpy(zero_copy_only=False) < len(bounds)
    places = np.empty(len(order), dtype=np.uint16)
    places[order.to_numpy(zero_copy_only=False)] = np.cumsum(is_bound)
    return places[len(bounds) :]


def boundaries_of(sample: Any, partitions: int) -> tuple[Any, ...]:
    """Return boundaries that cut a sample, an Arrow array, in parts of about the same size.

    >>> boundaries_of(pa.array([5, 1, 4, 2, 3, 0]), 3)
    (2, 4)
    """
    if isinstance(sample, pa.ChunkedArray):
        sample = sample.combine_chunks()
    values = sample.drop_null()
    if pa.types.is_floating(values.type):
        values = values.filter(pc.invert(pc.is_nan(values)))
    if not len(values):
        raise PlanError('by="range": the sample holds no value; give boundaries=[...] instead')
    in_order = values.take(pc.sort_indices(values))
    places = [min(len(values) - 1, len(values) * part // partitions) for part in range(1, partitions)]
    return tuple(in_order.take(pa.array(places, pa.int64())).to_pylist())


def check_in_order(kind: Any, column: str) -> None:
    """Raise if values of this type have no order, so that an exchange by range is impossible."""
    try:
        _by_range(pa.array([], kind), ())
    except pa.ArrowException as error:
        raise PlanError(
            f'exchange({column!r}, by="range"): values of {kind} cannot be put in order: cast the column before, with '
            "select or map"
        ) from error


def checked_boundaries(given: Any, kind: Any, column: str, partitions: int) -> tuple[Any, ...]:
    """Return the user's boundaries as values of the column; `PlanError` if they are invalid."""
    expected = f'exchange({column!r}, by="range"): boundaries are {partitions - 1} values of {kind}, in order'
    if isinstance(given, Set):
        raise PlanError(f"{expected}; a set has no order. Give a list")
    try:
        values = cast_values(list(given), kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise PlanError(f"{expected}, one less than partitions; got {given!r:.200}: {error}") from error
    bounds = values.to_pylist()
    in_order = values.take(pc.sort_indices(values)).to_pylist() == bounds
    if len(bounds) != partitions - 1 or None in bounds or not in_order:
        raise PlanError(f"{expected}, one less than partitions={partitions}; got {given!r:.200}")
    return tuple(bounds)
