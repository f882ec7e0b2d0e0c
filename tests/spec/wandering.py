"""Random walks over one scenario of one's own choice, for rules that random scenarios rarely put to the test."""

from __future__ import annotations

import random

from flux.spec.dataflow import Scenario
from flux.spec.invariants import Violated
from flux.spec.world import NO_DETAIL, World

CRASH_CHANCE = 0.02  # Per choice, while the scenario allows a crash.


def wander(scenario: Scenario, seed: int) -> Violated | None:
    """Walk a world of `scenario` to its end; return what went wrong, if anything."""
    rng = random.Random(seed)
    world = World(scenario)
    slow = frozenset(node for node in (*scenario.nodes, "controller") if rng.random() < 0.3)
    try:
        while world.choices:
            doomed = world.may_crash()
            if doomed and rng.random() < CRASH_CHANCE:
                world.do(("crash", rng.choice(doomed), NO_DETAIL))
                continue
            choice = rng.choice(world.choices)
            where = choice[2] if choice[0] == "deliver" else choice[1]
            if where in slow and rng.random() < 0.9 and len(world.choices) > 1:
                continue
            world.do(choice)
        world.at_rest()
    except Violated as violation:
        return violation
    return None
