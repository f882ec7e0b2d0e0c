"""Load that goes from site to site faster than moves could follow is left to the pools. Reference: fig. 5.2."""

from __future__ import annotations

import pytest

from flux.balance import Level

from .fluid_cluster import FluidCluster, rotating

BEST = 7 / 8


@pytest.mark.parametrize("every_s", [0.5, 1.5])
def test_nothing_moves_while_pools_absorb_a_load_that_rotates(every_s: float) -> None:
    cluster = FluidCluster(Level(), rotating(every_s)).run(5.0)
    consumed = cluster.consumed
    cluster.run(45.0)
    assert cluster.moves == [] and cluster.marks == []
    assert (cluster.consumed - consumed) / 40.0 > (BEST - 0.02) * 2_000
