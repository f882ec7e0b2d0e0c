"""Running values: the state of a key after each of its rows, for all rows of a batch at once.

Rows are grouped by key, in row order within each group. A key continues from its state in the table. Sums of integers
are differences of one running sum over all rows, which is exact. Sums of floats depend on the order of additions, so
each key's values are added one after the other. Long groups take one call each. Short groups are processed together:
the first rows of all of them, then the second rows, and so on. The split minimises the number of calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..types.array_types import Int64s
from .row_groups import Groups

__all__ = ["Stretches"]


class Stretches:
    """Where each group of grouped rows begins, and how long it is."""

    def __init__(self, groups: Groups) -> None:
        self.begins: Int64s = np.flatnonzero(groups.first)
        self.last: Int64s = np.flatnonzero(groups.last)
        self.sizes: Int64s = self.last - self.begins + 1
        # The slot of each group.
        self.slots: Int64s = groups.slot.take(self.begins)
        self._longest_first = np.argsort(-self.sizes, kind="stable")

    def spread(self, of_group: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return for each row the value of its group."""
        return np.repeat(of_group, self.sizes)

    def cumulative_sums(self, x: Int64s, before: Int64s) -> Int64s:
        """Return running sums of integers, which start in each group from `before`."""
        total = np.cumsum(x)
        total += self.spread(before - total.take(self.begins) + x.take(self.begins))
        return total

    def accumulate(self, operation: Any, x: npt.NDArray[Any], before: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the running results of `operation` over the values of each group, which start from `before`."""
        out = np.empty_like(x)
        order = self._longest_first
        sizes, begins = self.sizes.take(order), self.begins.take(order)
        alone = int(np.argmin(np.arange(len(sizes)) + sizes)) if len(sizes) else 0
        for group in order[:alone].tolist():
            start, stop = self.begins[group], self.last[group] + 1
            stretch = out[start:stop]
            stretch[:] = x[start:stop]
            stretch[0] = operation(before[group], stretch[0])
            operation.accumulate(stretch, out=stretch)
        begins = begins[alone:]
        reached = before.take(order[alone:])
        for rank, count in enumerate(self._counts(sizes[alone:])):
            at = begins[:count] + rank
            reached = operation(reached[:count], x.take(at))
            out[at] = reached
        return out

    @staticmethod
    def _counts(sizes: Int64s) -> list[int]:
        """Return how many of these descending sizes are greater than 0, than 1, and so on."""
        if not len(sizes):
            return []
        per_size = np.bincount(sizes)
        counts: list[int] = (len(sizes) - np.cumsum(per_size))[:-1].tolist()
        return counts
