"""Running values: what is kept of a key behind each of its rows, for all rows of a batch at once.

Rows stand grouped by key, in row order within each. A key goes on from what the table has of it. Sums of integers are
differences of one running sum over all rows, which is exact. Floats depend on the order of their additions, so each
key's are added one after the other: long groups each in one call, short ones together, the first rows of all of them,
then the second ones, and so on. How many groups are long is chosen so that the calls are few.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..types.array_types import Int64s
from .row_groups import Groups

__all__ = ["Stretches"]


class Stretches:
    """Where, of rows that are grouped, each group begins and how long it is."""

    def __init__(self, groups: Groups) -> None:
        self.begins: Int64s = np.flatnonzero(groups.first)
        self.last: Int64s = np.flatnonzero(groups.last)
        self.sizes: Int64s = self.last - self.begins + 1
        # The slot of each group.
        self.slots: Int64s = groups.slot.take(self.begins)
        self._longest_first = np.argsort(-self.sizes, kind="stable")

    def spread(self, of_group: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return for each row what is said of its group."""
        return np.repeat(of_group, self.sizes)

    def summed(self, x: Int64s, before: Int64s) -> Int64s:
        """Return running sums of integers, in each group from what was before it."""
        total = np.cumsum(x)
        total += self.spread(before - total.take(self.begins) + x.take(self.begins))
        return total

    def accumulated(self, operation: Any, x: npt.NDArray[Any], before: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return what `operation` makes of each group's values one after the other, from what was before it."""
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
        """How many of these sizes, which descend, are greater than 0, than 1, and so on."""
        if not len(sizes):
            return []
        per_size = np.bincount(sizes)
        counts: list[int] = (len(sizes) - np.cumsum(per_size))[:-1].tolist()
        return counts
