"""The check: small worlds explored to the end, and large ones at random.

`quick` takes well under a minute and stands in the tests; `deep` takes minutes. What was explored is in
the result, world by world; a violation comes with the one command that replays it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flux.protocols.messages import Move

from .dataflow import Scenario, declustered
from .explore import Explorer
from .walk import story, walk

ROOMY, TIGHT = 10, 1  # Rows per pool: one that never fills in a small world, one that always does.
ONE, TWO, TWO_BATCHES = ((1,),), ((1, 2),), ((1,), (2,))

# Each world is fixed by its scenario. Sites without copies are standbys, so a crash is followed by catch-up.
QUICK: dict[str, Scenario] = {
    "a pair, take-over": Scenario(sites=2, copies=declustered(2, [1]), batches=TWO_BATCHES, bound_rows=TIGHT),
    "a pair and a standby": Scenario(sites=3, copies=declustered(2, [1]), batches=TWO, bound_rows=ROOMY),
    "pair to pair, take-over, small pools": Scenario(
        sites=2, copies=declustered(2, [1, 1]), batches=TWO_BATCHES, bound_rows=TIGHT
    ),
}
DEEP: dict[str, Scenario] = {
    **QUICK,
    "a pair, a move by a third copy": Scenario(
        sites=3,
        copies=declustered(2, [1]),
        batches=ONE,
        bound_rows=ROOMY,
        crashes=0,
        moves=(Move(stage=1, partition=0, slot=0, to="site-3"),),
    ),
    "pair to pair, take-over": Scenario(sites=2, copies=declustered(2, [1, 1]), batches=TWO_BATCHES, bound_rows=ROOMY),
    "two to one, take-over": Scenario(sites=2, copies=declustered(2, [2, 1]), batches=TWO, bound_rows=ROOMY),
    "one to two, take-over": Scenario(sites=2, copies=declustered(2, [1, 2]), batches=TWO, bound_rows=ROOMY),
    "a pair and a standby, two crashes": Scenario(
        sites=3, copies=declustered(2, [1]), batches=ONE, bound_rows=ROOMY, crashes=2
    ),
    "a pair, a move and a crash": Scenario(
        sites=3,
        copies=declustered(2, [1]),
        batches=ONE,
        bound_rows=ROOMY,
        moves=(Move(stage=1, partition=0, slot=1, to="site-3"),),
    ),
}
QUICK_WALKS, DEEP_WALKS = 400, 5_000
STATES_MAX = 8_000_000

Progress = Callable[[str], None]


@dataclass
class Checked:
    """What a check covered, and what it found."""

    worlds: int = 0
    states: int = 0
    transitions: int = 0
    events: int = 0
    faults: int = 0
    seconds: float = 0.0
    explored: dict[str, dict[str, Any]] = field(default_factory=dict)
    violations: list[dict[str, str]] = field(default_factory=list)


def check(deep: bool = False, seed: int = 0, progress: Progress = lambda line: None) -> Checked:
    """Explore the small worlds to the end, then walk large ones from `seed` on."""
    began = time.perf_counter()
    checked = Checked()
    for name, scenario in (DEEP if deep else QUICK).items():
        _explore(checked, name, scenario, progress)
    _walk(checked, range(seed, seed + (DEEP_WALKS if deep else QUICK_WALKS)), progress)
    checked.seconds = time.perf_counter() - began
    return checked


def _explore(checked: Checked, name: str, scenario: Scenario, progress: Progress) -> None:
    explored = Explorer(scenario).run(STATES_MAX)
    checked.worlds += 1
    checked.states += explored.states
    checked.transitions += explored.transitions
    checked.faults += scenario.crashes
    checked.explored[name] = {"states": explored.states, "transitions": explored.transitions}
    progress(f"{name}: {explored}")
    if explored.violation is not None:
        told = story(scenario, explored.path)
        checked.violations.append({"world": name, "claim": str(explored.violation), "story": told})


def _walk(checked: Checked, seeds: Iterable[int], progress: Progress) -> None:
    for seed in seeds:
        walked = walk(seed)
        checked.worlds += 1
        checked.events += len(walked.choices)
        checked.faults += sum(choice[0] == "crash" for choice in walked.choices)
        if walked.violation is not None:
            replay = f"flux spec replay {seed}"
            checked.violations.append({"world": f"seed {seed}", "claim": str(walked.violation), "replay": replay})
        if seed % 500 == 499:
            progress(f"random worlds up to seed {seed}: {checked.events:,} events")
