"""Simulated runs on several machines: processes join, die and are started again, and the output is right."""

from __future__ import annotations

import pytest

from flux.simulation.remote_world import RemoteWorld

# What each seed found is in docs/bugs.rst.
ENDED_TWICE, LOST_ALL_VIEWS = 125, 131


def test_a_remote_world_without_faults_gives_the_output_of_a_plain_loop() -> None:
    world = RemoteWorld(7, faults_max=0)
    result = world.run()
    assert (result.violations, result.faults, result.deaths, world.outcome) == ((), (), 0, None)


@pytest.mark.parametrize("seed", [ENDED_TWICE, LOST_ALL_VIEWS, 120])
def test_remote_worlds_with_faults_give_right_output(seed: int) -> None:
    result = RemoteWorld(seed).run()
    assert result.violations == ()
    assert len(result.faults) > 3 and result.deaths > 0


def test_the_same_seed_gives_the_same_remote_world() -> None:
    assert RemoteWorld(104).run().digest == RemoteWorld(104).run().digest
