"""Simulated worlds on which mutants of the shell are tried. Not run every day: swarms run as many, of other seeds."""

from __future__ import annotations

import pytest

from flux.simulation.swarm import run_world


@pytest.mark.parametrize("seed", range(50_000, 50_240))
def test_the_world_of_a_seed_has_no_violation(seed: int) -> None:
    assert run_world(seed).violations == ()
