"""Everything that may happen in small worlds, and that the exploration leaves out nothing that matters.

It takes about a minute of one core: so many worlds are walked or explored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest

from flux.protocols.egress import Egress
from flux.spec.commutation import Commutations
from flux.spec.dataflow import Scenario, declustered
from flux.spec.explore import Explorer
from flux.spec.invariants import all_checkers
from flux.spec.memo import DEAD, Compact, MemoState
from flux.spec.message_history import MessageHistory
from flux.spec.process import Checker
from flux.spec.recovery import RecoveryEnds
from flux.spec.world import NO_DETAIL, Choice, World

from . import small_worlds

TAKE_OVER = ("PAIRS_TIGHT", "THREE_SITES", "FOUR_SITES", "ALL_TO_ALL", "ONE_STAGE", "SINGLE")
CATCH_UP = ("SPARE", "MOVE", "MOVE_OF_A_PRODUCER", "MOVE_OF_A_CONSUMER", "TWO_COHORTS", "JOINS_A_FULL_LANE")
LARGE = ("ALL_TO_ALL", "JOINS_A_FULL_LANE")  # Half a minute each. The deep check has larger ones of their kind.
# Small enough to go through every order, with crashes of all sites, rebuilt copies, moves and lost partitions.
COMPARED = ("ONE_STAGE", "SINGLE", "PAIRS_ONE_BATCH", "MOVE", "MOVE_OF_A_CONSUMER", "SPARE_NOTHING")

Key = tuple[Any, ...] | None


def checkers(scenario: Scenario) -> list[Checker]:
    """All of them; but where nothing is rebuilt, recovery cannot end."""
    return [c for c in all_checkers() if scenario.at_once or not isinstance(c, RecoveryEnds)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if name in LARGE else name for name in TAKE_OVER + CATCH_UP],
)
def test_all_that_may_happen_obeys_the_invariants(name: str) -> None:
    scenario: Scenario = getattr(small_worlds, name)
    explored = Explorer(scenario, checkers(scenario)).run()
    print(f"{name}: {explored}")
    assert explored.violation is None, explored.path
    assert explored.ends > 0


# --- nothing is left out --------------------------------------------------------------------------------------


@dataclass
class Plain:
    """Every state of a world in every order, with a crash and its notice apart: what the exploration is measured by.

    A state is a row of cells, and the crashes that were not noticed yet.
    """

    scenario: Scenario
    ends: set[MemoState] = field(default_factory=set)
    states: set[tuple[MemoState, frozenset[int]]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.compact = Compact(self.scenario, checkers(self.scenario))
        todo: list[tuple[MemoState, frozenset[int]]] = [(self.compact.start(), frozenset())]
        while todo:
            state, unnoticed = todo.pop()
            if (state, unnoticed) in self.states:
                continue
            self.states.add((state, unnoticed))
            if self.compact.keeper(state).lost:
                continue
            following = list(self._events(state, unnoticed))
            if not following:
                self.ends.add(state)
            todo.extend(following)
            todo.extend(self._crashes(state, unnoticed))

    def _events(self, state: MemoState, unnoticed: frozenset[int]) -> Iterator[tuple[MemoState, frozenset[int]]]:
        for node, cell in enumerate(state):
            for action in self.compact.actions(cell):
                assert action.violation is None, action.violation
                yield self._after(state, {node: action.cell}, action.posts), unnoticed
        controller = self.compact.controller
        for site in unnoticed:
            _, cell, posts = self.compact.death(state[controller], site)
            yield self._after(state, {controller: cell}, posts), unnoticed - {site}

    def _crashes(self, state: MemoState, unnoticed: frozenset[int]) -> Iterator[tuple[MemoState, frozenset[int]]]:
        if state.count(DEAD) < self.scenario.crashes:
            for site in self.compact.sites:
                if state[site] != DEAD:
                    yield self._after(state, {site: DEAD}, ()), unnoticed | {site}

    def _after(self, state: MemoState, changes: dict[int, int], posts: tuple[tuple[int, int], ...]) -> MemoState:
        after = [changes.get(node, cell) for node, cell in enumerate(state)]
        for to, batch in posts:
            if after[to] != DEAD:
                after[to] = self.compact.append(after[to], batch)
        return tuple(after)


def key(compact: Compact, cell: int) -> Key:
    """A process, in words that two searches share."""
    process = compact.processes.values[compact.cells.values[cell].process]
    return None if process is None else (process.name, process.key())


def ends(compact: Compact, states: set[MemoState] | list[MemoState]) -> set[tuple[Key, ...]]:
    return {tuple(key(compact, cell) for cell in state) for state in states}


def visited(compact: Compact, states: set[MemoState] | list[MemoState]) -> set[Key]:
    cells = {cell for state in states for cell in state}
    return {key(compact, cell) for cell in cells}


def tried(explorer: Explorer) -> set[Key]:
    """Every process that the exploration reached, or stepped to find out whether events commute."""
    return {None if p is None else (p.name, p.key()) for p in explorer.compact.processes.values}


@cache
def every_order(name: str) -> Plain:
    return Plain(getattr(small_worlds, name))


@pytest.mark.long
@pytest.mark.parametrize("name", COMPARED)
def test_nothing_is_left_out_that_every_order_has(name: str) -> None:
    every = every_order(name)
    explorer = Explorer(every.scenario, checkers(every.scenario))
    explored = explorer.run()
    print(f"{name}: {len(every.states):,} states in every order; {explored}")
    assert explored.states < len(every.states)
    # All states at rest are reached, and no others.
    assert ends(explorer.compact, explorer.ends) == ends(every.compact, every.ends)
    # Every state of every process was reached, or tried to find out whether events commute.
    reachable = visited(every.compact, [state for state, _ in every.states])
    assert reachable <= tried(explorer)
    # And nothing is visited that cannot be: a violation that is found is one.
    assert visited(explorer.compact, explorer.states) <= reachable


@pytest.mark.long
@pytest.mark.parametrize("name", ["MOVE_OF_A_PRODUCER", "MOVE_TO_ITS_CONSUMER"])
def test_in_every_order_all_that_a_donor_says_may_overtake_the_state_that_it_gives(name: str) -> None:
    one_after_the_other: Scenario = getattr(small_worlds, name)
    every = Plain(replace(one_after_the_other, chunks=True))
    print(f"{name}: {len(every.states):,} states, {len(every_order(name).states):,} without overtaking")
    assert len(every.states) > len(every_order(name).states)
    for state in every.ends:
        for check in every.compact.watch.at_rest:
            check(every.scenario, every.compact.live(state), every.compact.keeper(state).view)


def test_a_claim_that_is_never_refuted_would_leave_something_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # The comparison above can fail: here it does, because everything is believed to commute.
    monkeypatch.setattr(Commutations, "_refute", lambda claims, claim, blame: None)
    every = every_order("PAIRS_ONE_BATCH")
    explorer = Explorer(every.scenario)
    explorer.run()
    assert not visited(every.compact, [state for state, _ in every.states]) <= tried(explorer)


def test_without_claims_every_order_is_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    # If a process could go round, claims would prove nothing.
    every = every_order("PAIRS_ONE_BATCH")
    with_claims = Explorer(every.scenario).run()
    monkeypatch.setattr(MessageHistory, "goes_round", lambda history: True)
    explorer = Explorer(every.scenario)
    explored = explorer.run()
    assert explored.violation is None
    assert with_claims.states < explored.states < len(every.states), "deaths are late, and noticed at once"
    assert ends(explorer.compact, explorer.ends) == ends(every.compact, every.ends)


def test_a_process_that_goes_round_is_seen() -> None:
    history = MessageHistory(Compact(small_worlds.ONE_STAGE, ()))
    history.step(1, -1, 2, ())
    history.step(2, -1, 3, ())
    history.step(3, -1, 3, ())  # It says nothing and stays as it is.
    assert not history.goes_round()
    history.step(3, -2, 1, ())
    assert history.goes_round()


# --- violations -------------------------------------------------------------------------------------------------


def test_any_error_of_a_machine_is_a_violation_with_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def consume(egress: Egress) -> Iterator[Any]:
        yield {}["no such key"]

    monkeypatch.setattr(Egress, "_consume", consume)
    explored = Explorer(small_worlds.ONE_STAGE).run()
    assert str(explored.violation) == "no assertion fails: KeyError('no such key')"
    kind, _, to = explored.path[-1]
    assert (kind, to) == ("deliver", "egress")


def test_a_world_too_large_is_said_to_be() -> None:
    with pytest.raises(MemoryError, match="smaller world"):
        Explorer(small_worlds.PAIRS_TIGHT).run(states_max=100)


def test_faults_that_are_not_explored_are_refused() -> None:
    with pytest.raises(ValueError, match="only crashes of sites"):
        Explorer(Scenario(sites=2, copies=declustered(2, [1]), batches=((),), bound_rows=1, restarts=1))


# --- a world and its compact form ---------------------------------------------------------------------------------


@pytest.mark.parametrize("crash_at", [None, 5, 20, 40, 60])
@pytest.mark.parametrize("name", ["PAIRS_TIGHT", "SPARE", "MOVE"])
def test_explorer_and_world_agree_on_what_may_happen_and_on_what_comes_of_it(name: str, crash_at: int | None) -> None:
    # Given one path without a crash and some with one, when the same choices are made in both, then both
    # see the same choices at every step.
    scenario: Scenario = getattr(small_worlds, name)
    explorer = Explorer(scenario)
    world = World(scenario)
    explorer._reach(explorer.compact.start(), -1, 0, 0)
    for step in range(10_000):
        state = explorer.states[-1]
        enabled: dict[Choice, Any] = {
            explorer.compact.choice(node, action.event): (node, action)
            for node, cell in enumerate(state)
            for action in explorer.compact.actions(cell)
            if not explorer.compact.keeper(state).lost
        }
        assert set(enabled) == set(world.choices)
        if step == crash_at:
            explorer._let_die(len(explorer.states) - 1, 1)
            world.do(("crash", "site-1", NO_DETAIL))
            world.do(("notice", "site-1", NO_DETAIL))
        elif enabled:
            choice = sorted(enabled, key=str)[(step * 7) % len(enabled)]
            explorer._follow(len(explorer.states) - 1, *enabled[choice])
            world.do(choice)
        else:
            break
    assert explorer.compact.keeper(state).lost == world.lost
    assert {p.name: p.key() for p in explorer.compact.live(state)} == {p.name: p.key() for p in world.live()}
    world.at_rest()
