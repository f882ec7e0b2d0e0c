"""Sorted runs: the rows that a join keeps of both sides, in an order that finds all partners of a batch at once.

Each kept row has a *word* of 64 bits: its side, 31 bits of the hash of its key, and a tick. The tick is its time in
steps of a small part of the bound. A run is in the order of its words. So the rows of one key and one side are adjacent
in the order of their ticks. The partners of a row are in one stretch of the run. A directory over the first bits of the
words locates it, mostly to within a row or two. Where it does not, as for a key that half of all rows have, a binary
search by tick leaves hardly more than the partners. So the cost of a lookup is proportional to what it finds.

Words only find candidates; keys and times must still be compared. The rows themselves stay in arrival order: only
numbers are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..types.array_types import Int64s, Uint64s
from .key_order import by_radix

__all__ = ["SideRows", "SortedRun", "Ticks", "words_of"]

SideRows = tuple[pa.RecordBatch, pa.RecordBatch]  # The rows of side 0 and of side 1.

_SIDE_BIT = np.uint64(1 << 63)
_TICK_BITS = np.uint64(32)
_TICKS = 1 << 32
_HALF = _TICKS // 2
_LEAST, _MOST = -(2**63), 2**63 - 1
_MOST_DIRECTORY_BITS = 24
_FEW = 16  # So few candidates are not worth a binary search.


class Ticks:
    """Times as numbers of 32 bits in the same order: steps of a small part of a bound, counted from a middle time.

    Times too far from the middle share the last tick on their side. That keeps the order, and so the results. But
    lookups are slow if many rows share a tick, and then there should be other ticks.

    >>> ticks = Ticks(10_000, middle=50_000)
    >>> (ticks.of(np.array([50_000, 49_999, 60_000, 2**62])) - 2**31).tolist(), ticks.reach
    ([0, -1, 156, 2147483647], 158)
    >>> ticks.far(np.array([50_000, 2**62]))
    1
    """

    _PER_BOUND_BITS = 8

    def __init__(self, bound: int | float, middle: int | float) -> None:
        self._middle: Any = middle if np.isfinite(middle) else 0.0
        if isinstance(bound, int):
            # Whole numbers are shifted, so that nothing is rounded.
            self._shift = min(max(bound.bit_length() - self._PER_BOUND_BITS, 0), 31)
            reach, span = bound >> self._shift, _HALF << self._shift
            self._least, self._most = max(self._middle - span, _LEAST), min(self._middle + span - 1, _MOST)
        else:
            # A step is at least the smallest difference that floats of this size can represent.
            least = max(abs(self._middle) * 2.0**-30, np.finfo(np.float64).tiny)
            self._step = max(bound / (1 << self._PER_BOUND_BITS), least) if bound or self._middle else 1.0
            reach = 1 << self._PER_BOUND_BITS
            self._least, self._most = self._middle - _HALF * self._step, self._middle + _HALF * self._step
        # Times within the bound are at most so many ticks apart; rounding of floats may add one.
        self.reach = min(reach + 2, _TICKS)

    def far(self, when: npt.NDArray[Any]) -> int:
        """Return how many of the times share the last ticks."""
        if not len(when) or (when.min() >= self._least and when.max() <= self._most):
            return 0
        return int(np.count_nonzero((when < self._least) | (when > self._most)))

    def of(self, when: npt.NDArray[Any]) -> Int64s:
        """Return the ticks of times."""
        if when.dtype.kind == "f":
            with np.errstate(over="ignore"):
                steps = np.floor((when - self._middle) / self._step)
            return np.asarray(np.clip(steps, -_HALF, _HALF - 1).astype(np.int64) + _HALF)
        near = np.clip(when, self._least, self._most) if self.far(when) else when
        return np.asarray(((near - self._middle) >> self._shift) + _HALF)


def words_of(hashed: Uint64s, ticks: Int64s, left: int) -> Uint64s:
    """Return the words of rows, of which the first `left` are of side 0."""
    words = hashed >> np.uint64(33) << _TICK_BITS
    words |= ticks.view(np.uint64)
    words[left:] |= _SIDE_BIT
    return words


@dataclass(frozen=True)
class SortedRun:
    """Kept rows: `word` in ascending order, and `at`, the row of each word; all else is in the order of the rows.

    Rows of side 0 come before those of side 1; each side is in arrival order. `when` and `partition` have one entry for
    each row, and `rows` are the columns of each side.
    """

    word: Uint64s
    at: Int64s
    when: npt.NDArray[Any]
    partition: npt.NDArray[np.uint16]
    rows: SideRows

    def __len__(self) -> int:
        return len(self.word)

    @property
    def left(self) -> int:
        """The number of rows, and of words, of side 0."""
        return len(self.rows[0])

    @staticmethod
    def of(words: Uint64s, when: npt.NDArray[Any], partition: npt.NDArray[np.uint16], rows: SideRows) -> SortedRun:
        at = by_radix(words)
        return SortedRun(words.take(at), at, when, partition, rows)

    def merge(self, newer: SortedRun) -> SortedRun:
        """Return one run of this run and a newer one."""
        word = np.concatenate([self.word, newer.word])
        order = np.argsort(word, kind="stable")  # This only merges two sorted parts.
        at = np.concatenate([self.at, newer.at])
        at[self.left : len(self)] += newer.left
        at[len(self) : len(self) + newer.left] += self.left
        at[len(self) + newer.left :] += len(self)
        return SortedRun(
            word.take(order),
            at.take(order),
            self._concat_sides(newer, self.when, newer.when),
            self._concat_sides(newer, self.partition, newer.partition),
            (pa.concat_batches([self.rows[0], newer.rows[0]]), pa.concat_batches([self.rows[1], newer.rows[1]])),
        )

    def _concat_sides(self, newer: SortedRun, mine: npt.NDArray[Any], others: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the arrays of both runs in the row order of one run."""
        return np.concatenate([mine[: self.left], others[: newer.left], mine[self.left :], others[newer.left :]])

    def with_ticks(self, ticks: Ticks) -> SortedRun:
        """Return the same rows with other ticks."""
        words = np.empty_like(self.word)
        words[self.at] = self.word >> _TICK_BITS << _TICK_BITS
        words |= ticks.of(self.when).view(np.uint64)
        return SortedRun.of(words, self.when, self.partition, self.rows)

    def where(self, mask: npt.NDArray[np.bool_]) -> SortedRun:
        """Return the rows for which the mask holds."""
        if mask.all():
            return self
        entries, rows = np.flatnonzero(mask.take(self.at)), np.flatnonzero(mask)
        place = np.cumsum(mask) - 1
        return SortedRun(
            self.word.take(entries),
            place.take(self.at.take(entries)),
            self.when.take(rows),
            self.partition.take(rows),
            (self.rows[0].filter(pa.array(mask[: self.left])), self.rows[1].filter(pa.array(mask[self.left :]))),
        )

    def candidates(self, probes: Uint64s, reach: int) -> tuple[Int64s, Int64s]:
        """Return pairs of a probing word and a row of the other side that may have its key and be near.

        The pairs of one word are adjacent, and the words keep their order.
        """
        wanted = probes ^ _SIDE_BIT
        offsets, shift = self._directory
        bucket = (wanted >> shift).view(np.int64)
        first = offsets.take(bucket)
        count = offsets.take(bucket + 1) - first
        many = np.flatnonzero(count > _FEW)
        if len(many):
            first[many], count[many] = self._stretch(wanted[many], reach)
        some = np.flatnonzero(count)
        first, count = first.take(some), count.take(some)
        # The candidates of a word are adjacent: a range for each word, all made at once.
        ends = np.cumsum(count)
        entries = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - count), count)
        words = np.repeat(some, count)
        # Equal codes and near ticks are near words. The join compares keys, so near words of two codes do no harm.
        apart = self.word.take(entries)
        apart -= wanted.take(words) - np.uint64(reach)
        near = np.flatnonzero(apart <= np.uint64(2 * reach))
        return words.take(near), self.at.take(entries.take(near))

    def _stretch(self, wanted: Uint64s, reach: int) -> tuple[Int64s, Int64s]:
        """Return the first of the entries with each word's code and within its reach, and how many there are."""
        code, tick = wanted >> _TICK_BITS << _TICK_BITS, (wanted & np.uint64(_TICKS - 1)).view(np.int64)
        lowest, highest = (np.clip(tick + far, 0, _TICKS - 1).view(np.uint64) for far in (-reach, reach))
        first = np.searchsorted(self.word, code | lowest, "left")
        return first, np.searchsorted(self.word, code | highest, "right") - first

    @cached_property
    def newest(self) -> Any:
        """The greatest `when` of all rows."""
        return self.when.max()

    @cached_property
    def partitions(self) -> Int64s:
        """The partitions that have rows."""
        return np.flatnonzero(np.bincount(self.partition))

    @cached_property
    def _directory(self) -> tuple[Int64s, np.uint64]:
        """The first entry for each prefix of words, and how far a word is shifted to give its prefix."""
        bits = min(len(self).bit_length() + 1, _MOST_DIRECTORY_BITS)
        shift = np.uint64(64 - bits)
        counts = np.bincount((self.word >> shift).view(np.int64), minlength=(1 << bits) + 1)
        return np.cumsum(counts) - counts, shift
