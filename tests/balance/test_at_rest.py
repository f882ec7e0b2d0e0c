"""At rest nothing moves: with equal sites, and with reports that differ by chance, there is nothing to gain."""

from __future__ import annotations

import pytest

from flux.balance import Level

from .fluid_cluster import FluidCluster, even

MINUTE_S = 60.0


@pytest.mark.parametrize("load", [None, 0.7], ids=["saturated", "at 0.7 of it"])
def test_on_an_even_load_nothing_moves_and_no_site_is_slow(load: float | None) -> None:
    cluster = FluidCluster(Level(), even, load=load).run(MINUTE_S)
    assert cluster.moves == [] and cluster.marks == []


@pytest.mark.long
def test_on_an_even_load_nothing_moves_for_ten_minutes() -> None:
    cluster = FluidCluster(Level(), even, seed=2).run(10 * MINUTE_S)
    assert cluster.moves == [] and cluster.marks == []
