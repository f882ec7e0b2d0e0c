"""Load that stays at a site for some seconds and goes on: the placement goes back to what the averages say, and stays.

What begins like this is at first like a site that stays slow, so the first round follows it. That must not cost more
than it gains elsewhere.
"""

from __future__ import annotations

from flux.balance import Level
from flux.balance.level import GAIN_VOLATILE_MIN

from .fluid_cluster import FluidCluster, rotating

BEGAN_S, UNTIL_S = 5.0, 165.0


def test_a_load_that_rotates_every_five_seconds_costs_at_most_a_hundredth_by_balance() -> None:
    # Given what is processed without balance,
    still = FluidCluster(None, rotating(5.0, from_s=BEGAN_S)).run(UNTIL_S)
    # when the same load is balanced,
    cluster = FluidCluster(Level(), rotating(5.0, from_s=BEGAN_S)).run(UNTIL_S)
    # then it costs little, the placement is nearly even, and nothing has moved after the first half minute.
    assert cluster.consumed >= 0.99 * still.consumed
    assert max(cluster.counts) < 48 * (1 + GAIN_VOLATILE_MIN) + 1
    assert cluster.moves[-1][0] < BEGAN_S + 30.0
    assert cluster.marks == []
