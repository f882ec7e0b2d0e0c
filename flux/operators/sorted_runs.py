"""Runs: the rows that a join keeps of both its sides, in an order in which all partners of a batch are found at once.

Each kept row has a *word* of 64 bits: its side, 31 bits of the hash of its key, and a tick, which is its time in steps
of a small part of the bound. A run is in the order of its words. So the rows of one key and one side stand together in
the order of their ticks, and the partners of a row are in one stretch of the run. A directory over the first bits of
the words tells where to look, and mostly tells it to within a row or two. Where it does not, as for a key that half of
all rows have, a binary search by tick leaves hardly more than the partners: what a lookup costs goes by what it finds.

Words only find candidates; keys and times are to be compared. The rows themselves stay as they came: only numbers are
put in order.
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

SideRows = tuple[pa.RecordBatch, pa.RecordBatch]  # Of each side.

_SIDE_BIT = np.uint64(1 << 63)
_TICK_BITS = np.uint64(32)
_TICKS = 1 << 32
_HALF = _TICKS // 2
_LEAST, _MOST = -(2**63), 2**63 - 1
_MOST_DIRECTORY_BITS = 24
_FEW = 16  # Candidates that are not worth a search.


class Ticks:
    """Times as numbers of 32 bits in the same order: steps of a small part of a bound, counted from a middle time.

    Times too far from it share the last tick on their side. That keeps the order, and with it what is found; but it
    takes long if many do, and then there should be other ticks.

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
            # A step is no less than what floats of that size can tell apart.
            least = max(abs(self._middle) * 2.0**-30, np.finfo(np.float64).tiny)
            self._step = max(bound / (1 << self._PER_BOUND_BITS), least) if bound or self._middle else 1.0
            reach = 1 << self._PER_BOUND_BITS
            self._least, self._most = self._middle - _HALF * self._step, self._middle + _HALF * self._step
        # How many ticks two times may be apart that are within the bound; floats may be rounded across one more.
        self.reach = min(reach + 2, _TICKS)

    def far(self, when: npt.NDArray[Any]) -> int:
        """How many of the times share the last ticks."""
        if not len(when) or (when.min() >= self._least and when.max() <= self._most):
            return 0
        return int(np.count_nonzero((when < self._least) | (when > self._most)))

    def of(self, when: npt.NDArray[Any]) -> Int64s:
        """The ticks of times."""
        if when.dtype.kind == "f":
            with np.errstate(over="ignore"):
                steps = np.floor((when - self._middle) / self._step)
            return np.asarray(np.clip(steps, -_HALF, _HALF - 1).astype(np.int64) + _HALF)
        near = np.clip(when, self._least, self._most) if self.far(when) else when
        return np.asarray(((near - self._middle) >> self._shift) + _HALF)


def words_of(hashed: Uint64s, ticks: Int64s, left: int) -> Uint64s:
    """The words of rows, of which so many in front are of side 0."""
    words = hashed >> np.uint64(33) << _TICK_BITS
    words |= ticks.view(np.uint64)
    words[left:] |= _SIDE_BIT
    return words


@dataclass(frozen=True)
class SortedRun:
    """Kept rows: `word` in ascending order, and `at`, the row of each word; all else is in the order of the rows.

    Rows of side 0 stand before those of side 1 and, in each side, as they came. `when` and `partition` are theirs too,
    and `rows` the columns of each side.
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
        """How many rows, and words, are of side 0."""
        return len(self.rows[0])

    @staticmethod
    def of(words: Uint64s, when: npt.NDArray[Any], partition: npt.NDArray[np.uint16], rows: SideRows) -> SortedRun:
        at = by_radix(words)
        return SortedRun(words.take(at), at, when, partition, rows)

    def followed_by(self, newer: SortedRun) -> SortedRun:
        """One run out of two."""
        word = np.concatenate([self.word, newer.word])
        order = np.argsort(word, kind="stable")  # It only merges two parts that are sorted.
        at = np.concatenate([self.at, newer.at])
        at[self.left : len(self)] += newer.left
        at[len(self) : len(self) + newer.left] += self.left
        at[len(self) + newer.left :] += len(self)
        return SortedRun(
            word.take(order),
            at.take(order),
            self._and(newer, self.when, newer.when),
            self._and(newer, self.partition, newer.partition),
            (pa.concat_batches([self.rows[0], newer.rows[0]]), pa.concat_batches([self.rows[1], newer.rows[1]])),
        )

    def _and(self, newer: SortedRun, mine: npt.NDArray[Any], its: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What the rows of both have, in the order in which one run has them."""
        return np.concatenate([mine[: self.left], its[: newer.left], mine[self.left :], its[newer.left :]])

    def retimed(self, ticks: Ticks) -> SortedRun:
        """The same rows by other ticks."""
        words = np.empty_like(self.word)
        words[self.at] = self.word >> _TICK_BITS << _TICK_BITS
        words |= ticks.of(self.when).view(np.uint64)
        return SortedRun.of(words, self.when, self.partition, self.rows)

    def where(self, mask: npt.NDArray[np.bool_]) -> SortedRun:
        """The rows that the mask has."""
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

    def candidates(self, asking: Uint64s, reach: int) -> tuple[Int64s, Int64s]:
        """Pairs of an asking word and a row of the other side that may have its key, and be near.

        The pairs of one word are side by side, and the words are in their order.
        """
        wanted = asking ^ _SIDE_BIT
        offsets, shift = self._directory
        bucket = (wanted >> shift).view(np.int64)
        first = offsets.take(bucket)
        count = offsets.take(bucket + 1) - first
        many = np.flatnonzero(count > _FEW)
        if len(many):
            first[many], count[many] = self._stretch(wanted[many], reach)
        some = np.flatnonzero(count)
        first, count = first.take(some), count.take(some)
        # The candidates of a word follow each other: a range for each, all made at once.
        ends = np.cumsum(count)
        entries = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - count), count)
        words = np.repeat(some, count)
        # Equal codes and near ticks are near words; what is near across the end of a code is told by its key.
        apart = self.word.take(entries)
        apart -= wanted.take(words) - np.uint64(reach)
        near = np.flatnonzero(apart <= np.uint64(2 * reach))
        return words.take(near), self.at.take(entries.take(near))

    def _stretch(self, wanted: Uint64s, reach: int) -> tuple[Int64s, Int64s]:
        """Where the entries begin that have a word's code and are within its reach, and how many there are."""
        code, tick = wanted >> _TICK_BITS << _TICK_BITS, (wanted & np.uint64(_TICKS - 1)).view(np.int64)
        lowest, highest = (np.clip(tick + far, 0, _TICKS - 1).view(np.uint64) for far in (-reach, reach))
        first = np.searchsorted(self.word, code | lowest, "left")
        return first, np.searchsorted(self.word, code | highest, "right") - first

    @cached_property
    def newest(self) -> Any:
        """The greatest `when` of all."""
        return self.when.max()

    @cached_property
    def partitions(self) -> Int64s:
        """The partitions of which there are rows."""
        return np.flatnonzero(np.bincount(self.partition))

    @cached_property
    def _directory(self) -> tuple[Int64s, np.uint64]:
        """Where the entries begin whose words begin with each number, and how far words are shifted to give it."""
        bits = min(len(self).bit_length() + 1, _MOST_DIRECTORY_BITS)
        shift = np.uint64(64 - bits)
        counts = np.bincount((self.word >> shift).view(np.int64), minlength=(1 << bits) + 1)
        return np.cumsum(counts) - counts, shift
