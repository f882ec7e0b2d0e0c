"""Subsequence numbers: `sub` orders the rows that descend from one input row, through all steps.

Each step of a flow that may emit several rows for one has a *level*, which the plan counts from the source on. The step
writes the index of each row among those of the same input row into its own field of 16 bits. It leaves the fields of
earlier levels unchanged. Four fields are a word, the first level topmost; a row has as many words as the levels with
more than one row need. So comparing words from the first on compares descents, as the section numbers of a book do. A
field that a row does not have is zero, and orders before all descendants of a sibling.

A `sub` is None where all is zero; an array of one word for each row; or, in deeper flows, of shape (rows, words). The
number of words has no meaning: words of zeros may be present or not, as the other rows of a batch require.

Departure: DESIGN.md has one word and refuses a fifth such step. Here a fifth costs 8 bytes in each row after it. The
limit of a field remains: at most 65,536 rows can be emitted for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..types.array_types import Bools

__all__ = [
    "MAX_OUTPUTS_PER_ROW",
    "Subseqs",
    "at_level",
    "concat_subseqs",
    "from_arrow",
    "is_sub",
    "neighbours",
    "padded",
    "to_arrow",
    "words_of",
]

MAX_OUTPUTS_PER_ROW = 65_536
_FIELDS = 4  # Of a word.
_FIELD_BITS = 16

Subseqs: TypeAlias = npt.NDArray[np.uint64]


def words_of(sub: Subseqs | None) -> list[Subseqs]:
    """Return the words of all rows, in order of levels; none where all is zero."""
    if sub is None:
        return []
    return [sub] if sub.ndim == 1 else [sub[:, word] for word in range(sub.shape[1])]


def padded(sub: Subseqs | None, rows: int, count: int) -> Subseqs:
    """Return `sub` with at least `count` words for each row, padded with zeros.

    >>> padded(np.array([7], np.uint64), 1, 2).tolist(), padded(None, 2, 1).tolist()
    ([[7, 0]], [0, 0])
    """
    found = words_of(sub)
    if sub is not None and len(found) >= count:
        return sub
    if count == 1:
        return np.zeros(rows, np.uint64)
    wide = np.zeros((rows, count), np.uint64)
    for number, word in enumerate(found):
        wide[:, number] = word
    return wide


def at_level(inherited: Subseqs | None, index: npt.NDArray[np.int64], level: int) -> Subseqs:
    """Return the `sub` of rows with this index among their siblings, emitted by the step of `level`.

    >>> at_level(np.array([1 << 48], np.uint64), np.array([2]), 4).tolist() == [[1 << 48, 2 << 48]]
    True
    """
    word, field = divmod(level, _FIELDS)
    fields = index.astype(np.uint64) << np.uint64(_FIELD_BITS * (_FIELDS - 1 - field))
    if inherited is None and word == 0:
        return fields
    sub = padded(inherited, len(index), word + 1)
    if sub.ndim == 1:
        return sub | fields
    sub = sub.copy() if sub is inherited else sub
    sub[:, word] |= fields
    return sub


def neighbours(sub: Subseqs | None, rows: int) -> tuple[Bools, Bools]:
    """Return whether each row but the first has a greater `sub` than the row before it, and whether it has the same."""
    greater, same = np.zeros(max(rows - 1, 0), np.bool_), np.ones(max(rows - 1, 0), np.bool_)
    for word in words_of(sub):
        greater |= same & (word[1:] > word[:-1])
        same &= word[1:] == word[:-1]
    return greater, same


# As an Arrow column: of words, or of fixed-size lists of words.


def to_arrow(sub: Subseqs) -> Any:
    """Return the column that is sent over the wire."""
    if sub.ndim == 1:
        return pa.array(sub)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(sub).reshape(-1)), sub.shape[1])


def from_arrow(column: Any) -> Subseqs:
    """Return the `sub` that `to_arrow` encoded, without a copy."""
    if column.type == pa.uint64():
        one: Subseqs = column.to_numpy(zero_copy_only=True)
        return one
    several: Subseqs = column.flatten().to_numpy(zero_copy_only=True)
    return several.reshape(-1, column.type.list_size)


def is_sub(column: Any) -> bool:
    """Return whether a received column is a valid `sub`."""
    kind, values = column.type, column
    if pa.types.is_fixed_size_list(kind) and kind.list_size > 1 and not column.null_count:
        values = column.flatten()
    return bool(values.type == pa.uint64() and not values.null_count)


def concat_subseqs(parts: Sequence[tuple[Subseqs | None, int]]) -> Subseqs | None:
    """Return the `sub` of concatenated parts, each given as (sub, number of rows)."""
    if all(sub is None for sub, _ in parts):
        return None
    count = max(len(words_of(sub)) for sub, _ in parts)
    return np.concatenate([padded(sub, rows, count) for sub, rows in parts])
