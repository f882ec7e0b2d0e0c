"""Rows are counted in pairs: the counts are the same as one by one."""

from __future__ import annotations

import numpy as np
import pytest

from flux.exchange.partition_counts import PAIRED_MAX, SHORT_ROWS, PairCounts, count_rows


def _batches(partitions: int) -> list[np.ndarray[tuple[int], np.dtype[np.uint16]]]:
    random = np.random.default_rng(partitions)
    lengths = (0, 1, 2, 3, partitions, partitions**2 // 2, partitions**2 + 1, 20_001)
    return [random.integers(0, partitions, length).astype(np.uint16) for length in lengths]


@pytest.mark.parametrize("partitions", [1, 2, 7, 96, PAIRED_MAX, PAIRED_MAX + 1, 1_024])
def test_pairs_count_each_row_once(partitions: int) -> None:
    counts, batches = PairCounts(partitions), _batches(partitions)
    for partition in batches:
        counts.add(partition)
    expected = np.bincount(np.concatenate(batches), minlength=partitions)
    found = counts.take()
    assert found is not None
    assert found.tolist() == expected.tolist()


def test_counts_begin_anew_after_they_are_taken() -> None:
    counts = PairCounts(3)
    counts.add(np.array([2, 2, 0] * 5, np.uint16))
    first = counts.take()
    counts.add(np.array([1] * 9, np.uint16))
    second = counts.take()
    assert first is not None and second is not None
    assert (first.tolist(), second.tolist(), counts.take()) == ([5, 0, 10], [0, 9, 0], None)


@pytest.mark.parametrize("length", [1, 2, SHORT_ROWS - 1, SHORT_ROWS, SHORT_ROWS + 1])
@pytest.mark.parametrize("partitions", [1, 32, 96, PAIRED_MAX + 1])
def test_a_batch_has_the_counts_of_numpy(partitions: int, length: int) -> None:
    partition = np.random.default_rng(length).integers(0, partitions, length).astype(np.uint16)
    assert count_rows(partition).tolist() == np.bincount(partition).tolist()
