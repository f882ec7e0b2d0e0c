"""Searches over every state that a small world of the thesis's protocol can reach, and for the shortest wrong path.

`explore` is a depth-first search with a visited set. A step back to a state on the current path is an endless loop,
and counts as a violation (recovery ends). `shortest` is a breadth-first search, for counterexamples that are stories.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from .fl_scenario import AnyScenario, LbScenario
from .fl_world import LbWorld
from .process_graph import Choice, GlobalState, ProcessGraph
from .roles import tables
from .words import Violated
from .world import World
from .worlds import LARGE, MOVES, SMALL, VARIANTS, wrong

STATES_MAX = 6_000_000


@dataclass(frozen=True)
class Explored:
    """The coverage of an exploration, and the violation it ended with, if any, with the choices that lead there."""

    states: int
    transitions: int
    ends: int
    seconds: float
    fired: Counter[tuple[str, str]] = field(repr=False)
    violation: str = ""
    path: tuple[Choice, ...] = ()

    def __str__(self) -> str:
        found = f"; {self.violation}" if self.violation else ""
        return (
            f"{self.states:,} states, {self.transitions:,} transitions, {self.ends:,} ends, {self.seconds:.1f} s{found}"
        )

    def story(self) -> str:
        """Return the path as "node: action", one step after the other."""
        return "; ".join(f"{node}: {action}" for action, node in self.path)


def successors(world: ProcessGraph, state: GlobalState) -> tuple[list[tuple[Choice, GlobalState]], bool]:
    """Return all possible next states, and whether the protocol itself is at rest; check a world at rest."""
    found = list(world.steps(state))
    is_at_rest = not found
    if is_at_rest:
        world.check_at_rest(state)
    found += world.arrivals(state)
    found += world.crashes(state)
    return found, is_at_rest


def world_of(scenario: AnyScenario) -> ProcessGraph:
    """Return the world of a scenario, of whatever kind."""
    return LbWorld(scenario) if isinstance(scenario, LbScenario) else World(scenario)


def explore(scenario: AnyScenario, states_max: int = STATES_MAX) -> Explored:
    """Visit every reachable state, depth first; stop at the first violation."""
    world, started = world_of(scenario), time.perf_counter()
    path: list[Choice] = []
    on_path: set[bytes] = set()
    done: set[bytes] = set()
    transitions = ends = 0
    violation = ""
    start = world.start()
    try:
        stack: list[tuple[bytes, Iterator[tuple[Choice, GlobalState]]]] = []
        following, at_rest = successors(world, start)
        on_path.add(_pack(start))
        stack.append((_pack(start), iter(following)))
        while stack:
            key, rest = stack[-1]
            step = next(rest, None)
            if step is None:
                stack.pop()
                on_path.discard(key)
                done.add(key)
                if path:
                    path.pop()
                continue
            choice, state = step
            transitions += 1
            packed = _pack(state)
            if packed in done:
                continue
            path.append(choice)
            if packed in on_path:
                raise Violated("recovery ends: the world can go in a circle for ever")
            if len(done) + len(on_path) > states_max:
                raise MemoryError(f"more than {states_max:,} states: choose a smaller world or a larger bound")
            following, at_rest = successors(world, state)
            ends += at_rest
            on_path.add(packed)
            stack.append((packed, iter(following)))
    except Violated as error:
        violation = str(error)
    states, seconds = len(done) + len(on_path), time.perf_counter() - started
    return Explored(states, transitions, ends, seconds, world.fired, violation, tuple(path) if violation else ())


def shortest(scenario: AnyScenario, states_max: int = STATES_MAX) -> Explored:
    """Find the shortest way to a violation, breadth first; without one, visit the whole world."""
    world, started = world_of(scenario), time.perf_counter()
    start = world.start()
    seen = {_pack(start)}
    origins: list[tuple[int, Choice]] = [(-1, ("", ""))]
    layer = [(0, start)]
    transitions = ends = 0
    while layer:
        following_layer = []
        for index, state in layer:
            try:
                for choice, after in successors(world, state)[0]:
                    transitions += 1
                    packed = _pack(after)
                    if packed not in seen:
                        if len(seen) > states_max:
                            raise MemoryError(
                                f"more than {states_max:,} states: choose a smaller world or a larger bound"
                            )
                        seen.add(packed)
                        origins.append((index, choice))
                        following_layer.append((len(origins) - 1, after))
            except Violated as error:
                path = _path(origins, index)
                seconds = time.perf_counter() - started
                return Explored(len(seen), transitions, ends, seconds, world.fired, str(error), path)
        layer = following_layer
    return Explored(len(seen), transitions, ends, time.perf_counter() - started, world.fired)


def replay(scenario: AnyScenario, story: Iterable[str]) -> str:
    """Take the choices of a story, each "node: action"; return the violation at its end, or an empty text.

    Where several choices have the same text, all are followed.
    """
    world = world_of(scenario)
    states = {world.start()}
    try:
        for line in story:
            after = {
                a for state in states for (what, node), a in successors(world, state)[0] if f"{node}: {what}" == line
            }
            if not after:
                raise ValueError(f"a story has the step {line!r}, which is not possible there in {scenario}")
            states = after
        for state in states:
            successors(world, state)
    except Violated as error:
        return str(error)
    return ""


def explore_all(say: Callable[[str], object] = print) -> bool:
    """Explore every world to its end, and every variant to its shortest counterexample; return whether all is right."""
    fired: dict[str, Counter[tuple[str, str]]] = {}
    is_good = True
    for name, scenario in {**SMALL, **MOVES, **LARGE}.items():
        explored = explore(scenario)
        fired.setdefault(scenario.kind, Counter()).update(explored.fired)
        is_good &= not explored.violation
        say(f"{name}: {explored}")
    for kind, counted in fired.items():
        never = unfired(kind, counted)
        is_good &= not never
        say(f"rows of {kind} that never fired: {never or 'none'}")
    for variant in VARIANTS:
        explored = shortest(wrong(variant))
        is_good &= bool(explored.violation)
        say(f"{variant}: {explored}\n{explored.story()}")
    return is_good


def _path(origins: list[tuple[int, Choice]], index: int) -> tuple[Choice, ...]:
    path = []
    while index > 0:
        index, choice = origins[index]
        path.append(choice)
    return tuple(reversed(path))


def _pack(state: GlobalState) -> bytes:
    return array("I", state).tobytes()


def unfired(kind: str, fired: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the rows of the tables that never fired."""
    every = [(role, row.name) for role, table in tables(kind).items() for row in table]
    return [row for row in every if row not in fired]
