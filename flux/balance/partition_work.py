"""The work of each partition per position, from the reports of all its copies.

Every copy of a partition sees the same rows at the same positions, however far it lags. So all reports of a partition
add up to one estimate. It is kept long, with a half-life of 20 s; where the last half second differs from it by more
than chance allows, it is begun anew. Chance is that of Poisson, widened where the rows of a stage vary more.

An operator that is called for one partition at a time reports what each one cost. Within a site these costs compare
exactly, and weigh the rows of its partitions. The cost of a row of one stage relative to another is compared within
each site too, so that the sites' speeds do not enter.

Reports come many times a second, so each takes few operations on whole arrays: all sums are rows of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..protocols.balance_messages import StageWork
from .speeds import Floats, median

HALF_LIFE_S = 20.0
HALF_LIFE_SHORT_S = 0.5
RESET_SIGMAS = 5.0
CHI_SQUARE_MEDIAN = 0.455  # Of one degree of freedom: what the median of squared residuals is by chance.
# The rows of the sums. Costs are of rows relative to the average row on the same site, and the cost rows are those that
# they are of. The excess is how much more than by chance the rows vary: a variance relative to Poisson's.
_ROWS, _ROWS_SHORT, _POSITIONS, _POSITIONS_SHORT, _COSTS, _COST_ROWS, _EXCESS = range(7)

Indices = npt.NDArray[np.intp]


@dataclass(eq=False, slots=True, kw_only=True)
class PartitionWork:
    """Sums over reports that fade with time, for each partition.

    Its methods return another one and change nothing, but for those `in_place`, which are for a copy of one's own.
    """

    sums: Floats  # (7, partitions)
    at_s: float = 0.0
    has_costs: bool = False  # Whether any report had exact costs.

    @classmethod
    def empty(cls, count: int) -> PartitionWork:
        """No report yet, for `count` partitions."""
        sums = np.zeros((7, count))
        sums[_EXCESS] = 1.0
        return cls(sums=sums)

    @property
    def rows(self) -> Floats:
        """(2, partitions): `[0]` long, `[1]` short."""
        return self.sums[: _ROWS_SHORT + 1]

    @property
    def positions(self) -> Floats:
        """(2, partitions): `[0]` long, `[1]` short."""
        return self.sums[_POSITIONS : _POSITIONS_SHORT + 1]

    @property
    def excess(self) -> Floats:
        """How much more than by chance the rows of each partition vary."""
        excess: Floats = self.sums[_EXCESS]
        return excess

    def copy(self) -> PartitionWork:
        """A copy that may be changed in place."""
        return PartitionWork(sums=self.sums.copy(), at_s=self.at_s, has_costs=self.has_costs)

    def fade(self, at_s: float) -> PartitionWork:
        """Return the sums as they count at `at_s`."""
        if at_s <= self.at_s:
            return self
        later = self.copy()
        later.fade_in_place(at_s)
        return later

    def add(self, work: StageWork, offset: int, held: Sequence[int] | Indices, copies: Floats) -> PartitionWork:
        """Return the sums with a site's report of a stage; see `add_in_place`."""
        if not work.positions:
            return self
        after = self.copy()
        after.add_in_place(work, offset, held, copies)
        return after

    def fade_in_place(self, at_s: float) -> None:
        """Make the sums count as they do at `at_s`."""
        passed_s = at_s - self.at_s
        if passed_s > 0:
            long, short = 0.5 ** (passed_s / HALF_LIFE_S), 0.5 ** (passed_s / HALF_LIFE_SHORT_S)
            self.sums *= np.array([[long], [short], [long], [short], [long], [long], [1.0]])
            self.at_s = at_s

    def add_in_place(self, work: StageWork, offset: int, held: Sequence[int] | Indices, copies: Floats) -> None:
        """Add a site's report of a stage, whose partitions are numbered from `offset`.

        The site has `held` of them; those that catch up are at other positions and do not count. `copies` are how many
        there are of each partition: these see the same rows, so their reports are not independent.
        """
        if not work.positions:
            return
        counted = np.asarray(held, dtype=np.intp) + offset
        if work.catching_up:
            counted = np.setdiff1d(counted, np.array(work.catching_up, dtype=np.intp) + offset)
        seen = self._seen(work, offset)[counted]
        part = self.sums[:, counted]
        _widen(part, seen, work.positions)
        part[_ROWS : _ROWS_SHORT + 1] += seen
        part[_POSITIONS : _POSITIONS_SHORT + 1] += work.positions
        _begin_anew(part, copies[counted])
        self.sums[:, counted] = part
        if work.costs_s:
            self._add_costs(work, offset)

    def per_position(self, stages: Indices) -> Floats:
        """Rows of each partition per position, weighed by what they cost; 0 without a report.

        Partitions of a stage that differ no more than chance makes them differ count as equal. Else a plan would place
        by chance: it would gather on a receiver those that look light and are not. Those of a stage are in a row.
        """
        rows, positions, excess = self.sums[_ROWS], self.sums[_POSITIONS], self.sums[_EXCESS]
        is_known = positions > 0
        rate = np.divide(rows, positions, out=np.zeros_like(rows), where=is_known)
        bounds = [0, *(np.flatnonzero(stages[1:] != stages[:-1]) + 1).tolist(), len(stages)]
        for begin, end in pairwise(bounds):
            known = np.flatnonzero(is_known[begin:end]) + begin
            count = len(known)
            if count > 2:
                found = rate[known]
                chance = float((excess[known] * found / positions[known]).sum()) / count
                mean = float(found.sum()) / count
                apart = found - mean
                variance = float((apart * apart).sum()) / count
                rate[known] = mean + apart * max(0.0, 1 - chance / max(variance, 1e-30))
        weighed: Floats = rate * self.weights() if self.has_costs else rate
        return weighed

    def weights(self) -> Floats:
        """The cost of a row of each partition relative to the average of its stage; 1 where it is not known."""
        costs, rows = self.sums[_COSTS], self.sums[_COST_ROWS]
        weights: Floats = np.divide(costs, rows, out=np.ones_like(costs), where=rows > 0)
        return weights

    def weighed(self, work: StageWork, offset: int) -> float:
        """The rows of a report, weighed by what they cost."""
        if not self.has_costs:
            return float(sum([count for _, count in work.rows]))
        return float((self._seen(work, offset) * self.weights()).sum())

    def _seen(self, work: StageWork, offset: int) -> Floats:
        """The rows that a report counts of each partition."""
        seen = np.zeros(self.sums.shape[1])
        if work.rows:
            partitions, counts = zip(*work.rows, strict=True)
            seen[np.array(partitions, dtype=np.intp) + offset] = counts
        return seen

    def _add_costs(self, work: StageWork, offset: int) -> None:
        rows = dict(work.rows)
        known = [(partition, cost) for partition, cost in work.costs_s if rows.get(partition)]
        total_s, total = sum([cost for _, cost in known]), sum([rows[partition] for partition, _ in known])
        if total_s > 0:
            self.has_costs = True
            index = np.array([partition for partition, _ in known], dtype=np.intp) + offset
            self.sums[_COSTS, index] += np.array([cost for _, cost in known]) * (total / total_s)
            self.sums[_COST_ROWS, index] += [rows[partition] for partition, _ in known]


def _widen(part: Floats, seen: Floats, positions: int) -> None:
    """Follow how much more than by chance rows vary: an average over some fifty reports."""
    is_known = part[_POSITIONS] > 0
    known = slice(None) if is_known.all() else is_known
    expected = part[_ROWS, known] / part[_POSITIONS, known] * positions
    if len(expected):
        apart = seen[known] - expected
        square = median(apart * apart / (expected + 1)) / CHI_SQUARE_MEDIAN
        part[_EXCESS, known] += (max(square, 1.0) - part[_EXCESS, known]) / 50


def _begin_anew(part: Floats, copies: Floats) -> None:
    """Forget the long sums of partitions whose short ones differ beyond chance."""
    recent = part[_ROWS_SHORT]
    expected = part[_ROWS] / part[_POSITIONS] * part[_POSITIONS_SHORT]
    variance = copies * part[_EXCESS] * (np.maximum(recent, expected) + RESET_SIGMAS)
    apart = recent - expected
    changed = apart * apart > RESET_SIGMAS**2 * variance
    if changed.any():
        part[_ROWS, changed] = recent[changed]
        part[_POSITIONS, changed] = part[_POSITIONS_SHORT, changed]
