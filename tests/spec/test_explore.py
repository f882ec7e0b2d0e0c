"""Every state of small worlds, with a crash at every step."""

from __future__ import annotations

import pytest

from flux.spec.dataflow import Scenario
from flux.spec.explore import Explorer
from flux.spec.invariants import Checker, RecoveryEnds, all_checkers
from flux.spec.world import World

from . import small_worlds

TAKE_OVER = ("PAIRS_TIGHT", "THREE_SITES", "FOUR_SITES", "ALL_TO_ALL", "ONE_STAGE", "SINGLE")
CATCH_UP = ("SPARE", "MOVE", "MOVE_OF_A_PRODUCER", "MOVE_OF_A_CONSUMER", "TWO_COHORTS")


def checkers(scenario: Scenario) -> list[Checker]:
    """All of them; but where nothing is rebuilt, recovery cannot end."""
    return [c for c in all_checkers() if scenario.at_once or not isinstance(c, RecoveryEnds)]


@pytest.mark.parametrize("name", TAKE_OVER + CATCH_UP)
def test_every_reachable_state_obeys_the_invariants(name: str) -> None:
    scenario: Scenario = getattr(small_worlds, name)
    explored = Explorer(scenario, checkers(scenario)).run()
    print(f"{name}: {explored}")
    assert explored.violation is None, explored.path
    assert explored.ends > scenario.crashes, "a world ends in more than one way when sites crash"


def test_sleep_sets_leave_out_transitions_but_no_states() -> None:
    scenario = small_worlds.ONE_STAGE
    reduced = Explorer(scenario).run()
    full = Explorer(scenario)
    full._independent = [0] * len(full.choices)
    all_of_it = full.run()
    assert reduced.states == all_of_it.states
    assert reduced.ends == all_of_it.ends
    assert reduced.transitions < all_of_it.transitions


def test_a_world_too_large_is_said_to_be() -> None:
    with pytest.raises(MemoryError, match="smaller world"):
        Explorer(small_worlds.PAIRS_TIGHT).run(states_max=100)


@pytest.mark.parametrize("crash_at", [None, 5, 20, 40, 60])
@pytest.mark.parametrize("name", ["PAIRS_TIGHT", "SPARE", "MOVE"])
def test_explorer_and_world_agree_on_what_is_enabled_and_what_happens(name: str, crash_at: int | None) -> None:
    # Given one path without a crash and some with one, when the same choices are made in both, then both
    # see the same choices at every step, but for what the dead said, which the explorer drops at once.
    scenario: Scenario = getattr(small_worlds, name)
    explorer = Explorer(scenario)
    state = explorer._start()
    world = World(scenario)
    for step in range(10_000):
        bits = explorer._enabled(state)
        enabled = {choice for i, choice in enumerate(explorer.choices) if bits >> i & 1}
        moves = sorted((c for c in enabled if c[0] != "crash"), key=str)
        stale = {
            c for c in world.choices if c[0] == "deliver" and c[1] in world.crashed and _knows(world, str(c[2]), c[1])
        }
        assert set(moves) == set(world.choices) - stale
        if not moves and step != crash_at:
            break
        choice = ("crash", "site-1", "") if step == crash_at else moves[(step * 7) % len(moves)]
        state = explorer._successor(state, explorer.choices.index(choice))
        world.do(choice)
    world.finish()


def _knows(world: World, node: str, dead: str) -> bool:
    if node not in world.processes:
        return False
    view = world.processes[node].node.view
    return view is not None and dead in view.dead
