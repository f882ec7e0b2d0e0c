"""What rows of the stages cost, compared within each site: the sites' speeds do not enter."""

from __future__ import annotations

import numpy as np
import pytest

from flux.balance.stage_costs import StageCosts
from flux.protocols.balance_messages import StageWork, Work


def report(node: str, slowness: float, first: int, second: int, second_costs: float = 3.0) -> Work:
    """A site that needs `slowness` ms for a row of stage 1 and more for one of stage 2."""
    stages = (
        StageWork(stage=1, positions=10, rows=((0, first),), busy_s=first * slowness / 1_000),
        StageWork(stage=2, positions=10, rows=((0, second),), busy_s=second * slowness * second_costs / 1_000),
    )
    return Work(node=node, number=1, view=1, elapsed_s=0.1, busy_s=0.1, stages=stages)


def test_with_one_stage_a_row_costs_one() -> None:
    work = report("site-1", 1.0, 100, 0)
    costs = StageCosts().add(work, 1.0)
    assert costs.costs == {} and costs.of(1) == costs.of(2) == 1.0


def test_costs_are_found_though_each_site_has_another_mix_and_speed() -> None:
    costs = StageCosts()
    for number in range(20):
        at_s = number / 10
        costs = costs.add(report("site-1", 1.0, 100, 10), at_s).add(report("site-2", 5.0, 10, 10), at_s)
    # The main stage is the one with the most busy time at first.
    main = costs.main
    assert main == 1
    assert costs.of(2) / costs.of(1) == pytest.approx(3.0)
    assert costs.array(np.array([1, 2, 2])).tolist() == pytest.approx([1.0, 3.0, 3.0])


def test_the_main_stage_stays_the_measure() -> None:
    costs = StageCosts().add(report("site-1", 1.0, 100, 10), 0.0)
    assert costs.main == 1
    for number in range(1, 600):
        costs = costs.add(report("site-1", 1.0, 10, 100), float(number))
    assert costs.main == 1 and costs.of(1) == 1.0
    assert costs.of(2) == pytest.approx(3.0, rel=0.01)


def test_old_costs_fade() -> None:
    costs = StageCosts()
    for number in range(100):
        costs = costs.add(report("site-1", 1.0, 50, 50), float(number))
    for number in range(100, 200):
        costs = costs.add(report("site-1", 1.0, 50, 50, second_costs=6.0), float(number))
    assert costs.of(2) / costs.of(1) == pytest.approx(6.0, rel=0.05)
