"""Partition counts: how many rows each partition has.

`numpy.bincount` takes 1.3 ns a number, most of it for what it does before it counts. So rows are counted two at a time:
the pairs of their partitions, in a table that is added up at the end. That takes 0.8 ns a row, if the table is small
enough to stay in the processor's caches.
"""

from __future__ import annotations

import numpy as np

from ..types.array_types import Int64s, Pids

PAIRED_MAX = 128  # Partitions: with more, the table of pairs costs more than it saves.
SHORT_ROWS = 16_384  # A single batch of fewer rows is counted one by one.


class PairCounts:
    """Counts of rows that are added batch by batch, of so many partitions."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._is_paired = partitions <= PAIRED_MAX
        self._single: Int64s = np.zeros(partitions, np.int64)
        self._pairs: Int64s = np.zeros(partitions * partitions if self._is_paired else 0, np.int64)
        self._has_pairs = self._has_any = False

    def add(self, partition: Pids) -> None:
        """Add rows with these partitions."""
        self._has_any = self._has_any or len(partition) > 0
        if not self._is_paired or 2 * len(partition) < len(self._pairs):  # The table takes longer than the rows.
            self._single += np.bincount(partition, minlength=self._partitions)
            return
        half = len(partition) // 2
        pairs = partition[:half] * np.uint16(self._partitions)
        pairs += partition[half : 2 * half]
        self._pairs += np.bincount(pairs, minlength=len(self._pairs))
        self._has_pairs = True
        if len(partition) % 2:
            self._single[partition[-1]] += 1

    def take(self) -> Int64s | None:
        """Return the rows of each partition since the last call; None if there are none."""
        if not self._has_any:
            return None
        found = self._single
        if self._has_pairs:
            table = self._pairs.reshape(self._partitions, self._partitions)
            found += table.sum(axis=0)
            found += table.sum(axis=1)
            self._pairs[:] = 0
        self._single = np.zeros_like(found)
        self._has_pairs = self._has_any = False
        return found


def count_rows(partition: Pids) -> Int64s:
    """Return how many rows each partition up to the greatest has, of at least one row.

    >>> count_rows(np.array([2, 0, 2], np.uint16)).tolist()
    [1, 0, 2]
    """
    partitions = int(partition.max()) + 1
    if partitions > PAIRED_MAX or len(partition) < max(SHORT_ROWS, 4 * partitions * partitions):
        return np.bincount(partition)
    counts = PairCounts(partitions)
    counts.add(partition)
    found = counts.take()
    assert found is not None, "there is a row"
    return found
