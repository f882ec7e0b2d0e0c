"""The thesis's own protocol, tuple by tuple (spec/thesis): small worlds to the end, and larger ones with a fault."""

from __future__ import annotations

import pytest

from flux.spec.thesis.explore import explore
from flux.spec.thesis.scenario import Scenario
from flux.spec.thesis.sequences import Fault, sequences
from flux.spec.thesis.words import Copy

VALUES = [5, 7, 9, 4]


def test_a_dataflow_pair_survives_a_crash_at_any_step_and_is_whole_again() -> None:
    """Reference: 3.2.3, 3.2.4."""
    explored = explore(Scenario(values=(5,), partitions=(1,), crashes=1, standbys=1))
    assert not explored.violation, explored.story()
    assert explored.states > 10_000


@pytest.mark.parametrize("seed", range(12))
def test_partition_pairs_give_the_same_output_with_a_fault_as_without(seed: int) -> None:
    """Reference: 3.4.2, 3.4.3."""
    victim = Copy(1 + seed % 2, seed // 2 % 2, seed // 4 % 2)
    with_fault = sequences(VALUES, partitions=[2, 2], faults=[Fault(victim, after_steps=5 + 3 * seed)], seed=seed)
    without = sequences(VALUES, partitions=[2, 2], seed=1_000 + seed)
    assert with_fault.crashed
    assert with_fault.egress == without.egress
