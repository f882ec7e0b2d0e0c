"""Sub: what orders the rows that descend from one input row, whatever has become of it on the way.

Each step of a flow that may make several rows of one has a *level*, which the plan counts from the source on. It writes
the index of each row among those of the same input row into its own field of 16 bits, and leaves those of the levels
before it as they are. Four fields are a word, the first level topmost; a row has as many words as there are levels with
more than one row. So comparing words from the first on compares descents, as sections of a book are by their numbers;
what a row does not have is zero, and comes before everything that descends from a sibling.

A `sub` is None where all is zero; an array of a word for each row; or, in deeper flows, one of the shape (rows, words).
How many words it has says nothing: those of zeros may be there or not, as the other rows of a batch ask for.

Departure: DESIGN.md has one word, and refuses a fifth such step. What a flow with a fifth pays is 8 bytes in each row
that comes behind it. What is left is the limit of a field: at most 65,536 rows can be made of one.
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
    "appended",
    "at_level",
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
    """The words of all rows, the first ones first; none where all is zero."""
    if sub is None:
        return []
    return [sub] if sub.ndim == 1 else [sub[:, word] for word in range(sub.shape[1])]


def padded(sub: Subseqs | None, rows: int, count: int) -> Subseqs:
    """The same with so many words for each row, or with as many as there are, if that is more.

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
    """The `sub` of rows with this index among their siblings, made by the step of `level`.

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
    """Whether each row but the first has a greater `sub` than the one before it; and whether it has the same."""
    greater, same = np.zeros(max(rows - 1, 0), np.bool_), np.ones(max(rows - 1, 0), np.bool_)
    for word in words_of(sub):
        greater |= same & (word[1:] > word[:-1])
        same &= word[1:] == word[:-1]
    return greater, same


# As a column of Arrow: of words, or of lists of them that are all as long.


def to_arrow(sub: Subseqs) -> Any:
    """The column that goes over the wire."""
    if sub.ndim == 1:
        return pa.array(sub)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(sub).reshape(-1)), sub.shape[1])


def from_arrow(column: Any) -> Subseqs:
    """What `to_arrow` was given, without a copy."""
    if column.type == pa.uint64():
        one: Subseqs = column.to_numpy(zero_copy_only=True)
        return one
    several: Subseqs = column.flatten().to_numpy(zero_copy_only=True)
    return several.reshape(-1, column.type.list_size)


def is_sub(column: Any) -> bool:
    """Whether a column that somebody sent is one of these."""
    kind, values = column.type, column
    if pa.types.is_fixed_size_list(kind) and kind.list_size > 1 and not column.null_count:
        values = column.flatten()
    return bool(values.type == pa.uint64() and not values.null_count)


def appended(parts: Sequence[tuple[Subseqs | None, int]]) -> Subseqs | None:
    """The `sub` of rows that follow each other, of parts with so many rows each."""
    if all(sub is None for sub, _ in parts):
        return None
    count = max(len(words_of(sub)) for sub, _ in parts)
    return np.concatenate([padded(sub, rows, count) for sub, rows in parts])
