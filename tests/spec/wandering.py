"""Random walks over one scenario of one's own choice, for rules that random scenarios rarely put to the test."""

from __future__ import annotations

import random
from collections.abc import Iterator

from flux.protocols.messages import Move
from flux.spec.dataflow import Scenario, declustered
from flux.spec.invariants import Violated
from flux.spec.process import CONTROLLER
from flux.spec.walk import walk
from flux.spec.world import NO_DETAIL, World

WALKS, WANDERINGS = 40, 130  # Seeds of random worlds, and of each world below.
BATCHES = ((1,), (2,), (3, 4), (5,))


def move(stage: int, partition: int, slot: int, to: int) -> Move:
    return Move(stage=stage, partition=partition, slot=slot, to=f"site-{to}")


# One copy that goes to and fro.
TO_AND_FRO = Scenario(
    sites=2,
    copies=((("site-1",),),),
    batches=BATCHES,
    bound_rows=1,
    crashes=0,
    moves=tuple(move(1, 0, 0, to) for to in (2, 1, 2, 1)),
)
# Producers that join each other while their consumer moves as well.
JOINING = Scenario(
    sites=3,
    copies=((("site-1",), ("site-2",)), (("site-3",),)),
    batches=BATCHES,
    bound_rows=2,
    crashes=0,
    moves=(move(1, 1, 0, 1), move(2, 0, 0, 1), move(2, 0, 0, 2), move(1, 0, 0, 3)),
)
# A site that is ahead takes the copy of one that is behind.
AHEAD = Scenario(
    sites=2,
    copies=((("site-1",), ("site-2",)),),
    batches=tuple((n,) for n in range(8)),
    bound_rows=20,
    crashes=0,
    moves=(move(1, 0, 0, 2),),
)
# Everything moves.
EVERYTHING = Scenario(
    sites=2,
    copies=((("site-1",), ("site-2",)), (("site-1",), ("site-2",))),
    batches=BATCHES,
    bound_rows=1,
    crashes=0,
    moves=tuple(move(stage, partition, 0, to) for to in (1, 2, 1, 2) for stage in (1, 2) for partition in (0, 1)),
)
# Everything moves, and two sites crash.
STORM = Scenario(
    sites=4,
    copies=declustered(3, [2, 2]),
    batches=BATCHES,
    bound_rows=1,
    crashes=2,
    at_once=2,
    moves=tuple(
        move(stage, partition, slot, to)
        for to in (4, 1, 2, 3)
        for stage in (1, 2)
        for partition in (0, 1)
        for slot in (0, 1)
    ),
)
WORLDS = {"to and fro": TO_AND_FRO, "joining": JOINING, "ahead": AHEAD, "everything": EVERYTHING, "storm": STORM}
SLOW_CHANCE, PATIENCE = 0.2, 0.95  # Of nodes and links; how often a slow one is passed over.
CRASH_CHANCES = (0.003, 0.02)  # Per choice, while the scenario allows a crash: late or soon.


def wander(scenario: Scenario, seed: int) -> Violated | None:
    """Walk a world of `scenario` to its end; return what went wrong, if anything."""
    rng = random.Random(seed)
    crash_chance = rng.choice(CRASH_CHANCES)
    world = World(scenario)
    # Slow nodes lag behind, and what slow links carry comes late.
    names = (*scenario.nodes, CONTROLLER)
    slow: set[object] = {node for node in names if rng.random() < SLOW_CHANCE}
    slow |= {(a, b) for a in names for b in names if rng.random() < SLOW_CHANCE}
    try:
        while world.choices:
            doomed = world.may_crash()
            if doomed and rng.random() < crash_chance:
                world.do(("crash", rng.choice(doomed), NO_DETAIL))
                continue
            choice = rng.choice(world.choices)
            kind, name, detail = choice
            lags = detail in slow or (name, detail) in slow if kind == "deliver" else name in slow
            if not lags or rng.random() > PATIENCE:
                world.do(choice)
        world.at_rest()
    except Violated as violation:
        return violation
    return None


def violations() -> Iterator[Violated]:
    """Whatever goes wrong in random worlds and in those above."""
    for seed in range(WANDERINGS):
        for world in WORLDS.values():
            if (found := wander(world, seed)) is not None:
                yield found
        if seed < WALKS and (found := walk(seed).violation) is not None:
            yield found
