"""The reference models of the thesis's protocol: explored to the end, every row fired, wrong where they should be.

It takes about a minute of one core: so many worlds are walked or explored.
"""

from __future__ import annotations

import doctest
import importlib
from collections import Counter
from functools import cache

import pytest

from flux.spec.thesis import (
    DATAFLOW_PAIRS,
    KINDS,
    LITERAL,
    PARTITION_PAIRS,
    WITHOUT,
    Copy,
    Explored,
    Fault,
    Scenario,
    Sequences,
    Violated,
    explore,
    one_to_one,
    sequences,
    shortest,
    show,
    tables,
    unfired,
)
from flux.spec.thesis.counterexamples import STORIES, steps
from flux.spec.thesis.explore import replay
from flux.spec.thesis.worlds import SMALL, VARIANTS, right, wrong

# Stories that a second's search finds again; `explore_all` searches for the rest.
QUICK = ("r_done_only", "one_reset", "put_guard", "del_of_the_dead", "abort_forgets", "cu_done_of_active", "reversal")
QUICK += (
    *("received_is_processed", "all_processed", "quiescing", "ordered_delivery", "whole_rounds"),
    "buffer_in_connections",
)


@cache
def explored(name: str) -> Explored:
    return explore(SMALL[name])


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_every_reachable_state_obeys_the_invariants(name: str) -> None:
    found = explored(name)
    print(f"{name}: {found}")
    assert not found.violation, found.story()
    assert found.ends > 0


@pytest.mark.parametrize("kind", [pytest.param(DATAFLOW_PAIRS), pytest.param(PARTITION_PAIRS, marks=pytest.mark.long)])
def test_every_row_of_every_table_fires_in_the_exploration(kind: str) -> None:
    fired = Counter[tuple[str, str]]()
    for name, scenario in SMALL.items():
        if scenario.kind == kind:
            fired += explored(name).fired
    assert unfired(kind, fired) == []


@pytest.mark.parametrize("seed", range(40))
def test_random_runs_with_two_crashes_obey_the_invariants(seed: int) -> None:
    script = [
        Fault(Copy(1 + (seed + k) % 2, 0, (seed // 2 + k) % (2 + k)), after_steps=seed * 7 % 90 + 9 * k) for k in (0, 1)
    ]
    recovered = sequences([5, 7, 3], (1, 1), script, seed, capacity=1 + seed % 3, standby_after=seed % 20)
    assert len(recovered.live) == 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_story_of_a_variant_ends_in_its_violation(variant: str) -> None:
    violation, _ = STORIES[variant]
    assert replay(wrong(variant), steps(variant)) == violation


@pytest.mark.parametrize("variant", QUICK)
def test_no_story_is_shorter_and_the_repaired_reading_has_none(variant: str) -> None:
    found = shortest(wrong(variant))
    assert len(found.path) == len(steps(variant))
    assert not explore(right(variant)).violation


def test_every_variant_has_a_story_or_a_test_of_its_own() -> None:
    of_its_own = {"internal_buffer"}  # Needs two producers: tests/test_thesis.py, by seeds.
    assert set(VARIANTS) | of_its_own == {*LITERAL, *WITHOUT}
    assert set(STORIES) == set(VARIANTS)


def test_a_variant_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no_such"):
        Scenario(values=(), variant=frozenset({"no_such"}))


def test_a_world_too_large_is_said_to_be() -> None:
    with pytest.raises(MemoryError, match="smaller world"):
        explore(Scenario(values=(5, 7)), states_max=100)


def test_a_story_that_cannot_happen_is_said_to_be() -> None:
    with pytest.raises(ValueError, match="is not possible there"):
        replay(Scenario(values=(5,)), ["egress: receive"])


def test_bounded_buffers_and_a_merge_in_order_can_deadlock_without_any_fault() -> None:
    """The merge waits for a tuple of every producer. All input of one partition fills the buffers on its way while the
    other producer has nothing to say, not even the end. Not repaired: it is the thesis's rule (3.3.1), and the answer
    is to tell consumers of progress, as the production machines do; here runs of several partitions are given room."""

    def to_one(value: int, stage: int, partitions: int) -> int:
        return 0

    with pytest.raises(Violated, match="for ever"):
        sequences([5, 7, 3, 4, 6, 8], (2, 1), route=to_one, fan=one_to_one, capacity=1)
    assert len(sequences([5, 7, 3, 4, 6, 8], (2, 1), route=to_one, fan=one_to_one).egress) == 6


@pytest.mark.parametrize("partitions", [(1,), (1, 1), (2, 2), (1, 1, 1)])
def test_no_fault_and_no_order_of_events_changes_a_sequence(partitions: tuple[int, ...]) -> None:
    values = [5, 7, 3, 250, 11]
    plain = sequences(values, partitions)
    for seed in range(6):
        stage = 1 + seed % len(partitions)
        faulty = sequences(values, partitions, [Fault(Copy(stage, 0, seed % 2), after_steps=10 * seed)], seed)
        assert faulty.egress == plain.egress
        assert_copies_agree(faulty, plain)


def assert_copies_agree(faulty: Sequences, plain: Sequences) -> None:
    """A copy consumed a prefix of what it consumes without faults, a standby the rest from its state on."""
    for copy, consumed in faulty.consumed.items():
        whole = plain.consumed[Copy(*copy.pair, 0)]
        if copy in faulty.crashed:
            assert consumed == whole[: len(consumed)]
        else:
            assert consumed == whole[faulty.installed.get(copy, 0) :][: len(consumed)]
            assert len(consumed) + min(faulty.installed.get(copy, 0), len(whole)) == len(whole)


def test_the_examples_in_the_docstrings_run() -> None:
    module = importlib.import_module("flux.spec.thesis.sequences")
    failed, attempted = doctest.testmod(module)
    assert attempted > 0 and failed == 0


def test_the_same_seed_is_the_same_run() -> None:
    runs = [sequences([5, 7, 3], (1, 1), [Fault(Copy(2, 0, 0), 25)], seed=3) for _ in range(2)]
    assert runs[0] == runs[1]


def test_tables_name_a_figure_or_section_for_every_row() -> None:
    for kind in KINDS:
        for role, table in tables(kind).items():
            names = [row.name for row in table]
            assert len(set(names)) == len(names), f"{role} has two rows of one name"
            assert all(row.cites.startswith(("fig. ", "3.", "4.", "5.")) for row in table)
    assert "fig. 3.13" in show()
