"""What a row of each stage costs relative to a row of the main one, compared within each site.

With one stage there is nothing to compare. With several, site s spends `busy[s, k] = rows[s, k] * cost[k] / speed[s]`
on stage k: costs and speeds are found in turn, from sums that fade with a half-life of 20 s. The main stage, which had
the most busy time at first, costs 1; so speeds do not jump when a cost is corrected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..protocols.balance_messages import Work
from .partition_work import HALF_LIFE_S
from .speeds import Floats

TURNS = 4


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StageCosts:
    """Fading sums of (busy seconds, rows, arrival) by site and stage, and the costs found from them."""

    sums: Mapping[tuple[str, int], tuple[float, float, float]] = field(default_factory=dict)
    costs: Mapping[int, float] = field(default_factory=dict)
    main: int | None = None

    def add(self, work: Work, at_s: float) -> StageCosts:
        """Return the costs after a report that arrived at `at_s`."""
        sums = dict(self.sums)
        for stage in work.stages:
            busy_s, rows, last_s = sums.get((work.node, stage.stage), (0.0, 0.0, at_s))
            kept = 0.5 ** ((at_s - last_s) / HALF_LIFE_S)
            count = sum([count for _, count in stage.rows])
            sums[work.node, stage.stage] = (busy_s * kept + stage.busy_s, rows * kept + count, at_s)
        stages = sorted({stage for (_, stage), (busy_s, rows, _) in sums.items() if busy_s > 0 and rows > 0})
        if len(stages) < 2:
            return StageCosts(sums=sums, costs=self.costs, main=self.main)
        costs = _in_turn(sums, stages, self.costs)
        main = self.main if self.main in costs else max(costs, key=lambda k: _total_s(sums, k))
        return StageCosts(sums=sums, costs={stage: cost / costs[main] for stage, cost in costs.items()}, main=main)

    def of(self, stage: int) -> float:
        """The cost of a row of `stage`."""
        return self.costs.get(stage, 1.0)

    def array(self, stages: npt.NDArray[np.intp]) -> Floats:
        """The cost of a row of each of `stages`."""
        result = np.ones(len(stages))
        for stage, cost in self.costs.items():
            result[stages == stage] = cost
        return result


CostSums = Mapping[tuple[str, int], tuple[float, float, float]]


def _total_s(sums: CostSums, stage: int) -> float:
    return sum(busy_s for (_, other), (busy_s, _, _) in sums.items() if other == stage)


def _in_turn(sums: CostSums, stages: list[int], last: Mapping[int, float]) -> dict[int, float]:
    """The costs by stage: sites' slowness from costs and costs from slowness, in turn.

    Sites and stages are few: floats are quicker than arrays here.
    """
    nothing = (0.0, 0.0, 0.0)
    sites = sorted({site for site, _ in sums})
    used = [[sums.get((site, stage), nothing) for stage in stages] for site in sites]
    busy = [sum([busy_s for busy_s, _, _ in of_site]) for of_site in used]
    cost = [last.get(stage, 0.0) for stage in stages]
    if min(cost) <= 0:
        found = [(sum([u[k][0] for u in used]), sum([u[k][1] for u in used])) for k in range(len(stages))]
        cost = [known if known > 0 else busy_s / rows for known, (busy_s, rows) in zip(cost, found, strict=True)]
    for _ in range(TURNS):
        done, rows_of = [0.0] * len(stages), [0.0] * len(stages)
        for of_site, busy_s in zip(used, busy, strict=True):
            if busy_s > 0:
                work = sum([u[1] * c for u, c in zip(of_site, cost, strict=True)])
                slowness = busy_s / max(work, 1e-12)
                done = [d + u[0] / slowness for d, u in zip(done, of_site, strict=True)]
                rows_of = [r + u[1] for r, u in zip(rows_of, of_site, strict=True)]
        cost = [max(d / max(r, 1e-12), 1e-12) for d, r in zip(done, rows_of, strict=True)]
    return dict(zip(stages, cost, strict=True))
