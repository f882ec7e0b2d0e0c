"""Rows of a batch grouped by slot, so that a keyed operator of the library can work on whole columns.

Within a group rows keep their order; groups are in any order, the same for the same slots. Each slot gets the number of
one of its rows, which for batches of usual size has 16 bits: such numbers are sorted by radix, in one stable pass. For
larger batches the pairs (slot, row), packed into one word, are sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model.batch import Batch
from ..types.arrays import ColumnError
from ..types.errors import OperatorError, PlanError
from ..types.normalize import repeated

__all__ = ["Groups", "column_of", "emitted_schema", "group_by_slot", "in_row_order", "unknown_parameters"]

# A word holds 40 bits of slot and 24 of row.
_ROW_BITS = np.uint64(24)
_ROW_MASK = np.uint64((1 << 24) - 1)
MAX_ROWS = 1 << 24
_RADIX_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows of a batch by group; all arrays are in grouped order."""

    # Each entry's row in the batch, and its slot.
    row: npt.NDArray[np.int64]
    slot: npt.NDArray[np.int64]
    # Whether the entry is the first, or the last, of its group.
    first: npt.NDArray[np.bool_]
    last: npt.NDArray[np.bool_]


def group_by_slot(slots: npt.NDArray[np.int64]) -> Groups:
    """Return rows grouped by slot, in row order within each."""
    assert len(slots) <= MAX_ROWS, "larger batches are cut before"
    if 0 < len(slots) <= _RADIX_ROWS:
        number = np.empty(int(slots.max()) + 1, np.uint16)
        number[slots] = np.arange(len(slots), dtype=np.uint16)
        row = np.argsort(number.take(slots), kind="stable")
        slot = slots.take(row)
    else:
        row, slot = _sorted_pairs(slots)
    first = np.ones(len(slots), np.bool_)
    np.not_equal(slot[1:], slot[:-1], out=first[1:])
    last = np.ones(len(slots), np.bool_)
    last[:-1] = first[1:]
    return Groups(row, slot, first, last)


def _sorted_pairs(slots: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    pairs = slots.astype(np.uint64)
    pairs <<= _ROW_BITS
    pairs |= np.arange(len(slots), dtype=np.uint64)
    pairs.sort()
    row = (pairs & _ROW_MASK).view(np.int64)
    pairs >>= _ROW_BITS
    return row, pairs.view(np.int64)


def in_row_order(rows: npt.NDArray[np.int64], count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return distinct rows of a batch of `count` rows in ascending order, and the place that each had.

    >>> [found.tolist() for found in in_row_order(np.array([4, 1, 2]), 6)]
    [[1, 2, 4], [1, 2, 0]]
    """
    place = np.full(count, -1)
    place[rows] = np.arange(len(rows))
    ascending = np.flatnonzero(place >= 0)
    return ascending, place.take(ascending)


def column_of(batch: Batch, name: str, step: str) -> Any:
    """Return a column; raise `OperatorError` if the batch does not have it."""
    try:
        return batch.column(name)
    except KeyError as error:
        raise OperatorError(str(error.args[0]), step) from None


def emitted_schema(fields: Sequence[Any]) -> pa.Schema:
    """Return the schema of an operator's output: the columns of its key or input, and those that it adds."""
    names = [field.name for field in fields]
    twice = repeated(names)
    if twice:
        raise ColumnError(
            f"it would emit {', '.join(map(repr, twice))} twice; its columns are {', '.join(names)}. Give an aggregate "
            "another name, or rename the column with select(new='old') before the exchange"
        )
    return pa.schema(fields)


def unknown_parameters(step: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raise if the operator does not have a parameter of `apply`: it is probably misspelt."""
    unknown = [name for name in given if name not in known]
    if unknown:
        raise PlanError(f"step {step!r}: unknown parameters {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
