"""Spark reads the output of simulated runs: each batch as it was, and all of them once."""

from __future__ import annotations

import pytest

from flux.simulation.outlet_world import OutletWorld

DARK = (2_010, 2_055, 2_067)  # Worlds that lose power after some output.
WORLDS_QUICK, WORLDS_LONG = range(4), range(1_000, 1_200)


def test_a_query_reads_all_rows_once_in_a_world_without_faults() -> None:
    world = OutletWorld(0, faults_max=0)
    assert not world.run().violations
    assert sum(map(len, world.batches)) == world.flow.rows * world.flow.sources > 0


def test_a_query_that_dies_and_repeats_batches_reads_all_rows_once() -> None:
    worlds = [OutletWorld(seed) for seed in WORLDS_QUICK]
    assert not [violation for world in worlds for violation in world.run().violations]
    assert any("query" in fault for world in worlds for fault in world.faults), "some queries died"


def test_output_that_was_durable_is_there_after_a_loss_of_power_with_the_directory_that_was_made_for_it() -> None:
    results = [OutletWorld(seed).run() for seed in DARK]
    assert not [violation for result in results for violation in result.violations]
    assert all("loss of power" in result.faults[-1] for result in results)
    assert not any("with 0 rows" in result.faults[-1] for result in results)


def test_the_same_seed_gives_the_same_world() -> None:
    assert OutletWorld(1).run().digest == OutletWorld(1).run().digest


@pytest.mark.long
def test_many_worlds_give_right_batches() -> None:
    assert not [violation for seed in WORLDS_LONG for violation in OutletWorld(seed).run().violations]
