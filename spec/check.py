"""The check: small worlds explored to the end, large ones at random, and bad input.

`quick` takes well under a minute and runs in the tests; `deep` takes minutes. The result lists what was explored,
world by world; a violation has the one command that replays it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from typing import Any

from ..protocols.change_messages import Reconfigure
from ..protocols.messages import Move
from .bad_input import probe
from .dataflow import Scenario, declustered
from .explore import Explorer
from .scenario_walk import WORLDS, wander
from .walk import Walked, shrink, story, walk
from .world import FAULTS

ROOMY, TIGHT = 10, 1  # Rows per pool: one that is never full in a small world, one that always is.
ONE, TWO, TWO_BATCHES = ((1,),), ((1, 2),), ((1,), (2,))
PAIR, PAIR_TO_PAIR = declustered(2, [1]), declustered(2, [1, 1])
ALONE_TO_ALONE = ((("site-1",),), (("site-1",),))
TWO_TO_ONE, ONE_TO_TWO = declustered(2, [2, 1]), declustered(2, [1, 2])

# Each world is fixed by its scenario. Sites without copies are standbys, so a crash is followed by catch-up.
QUICK: dict[str, Scenario] = {
    "a pair, take-over": Scenario(sites=2, copies=PAIR, batches=TWO_BATCHES, bound_rows=TIGHT),
    "a shortcut, take-over, any order": Scenario(
        sites=2, copies=PAIR, batches=TWO, bound_rows=ROOMY, edges=((0, 1), (0, 2), (1, 2)), unordered=frozenset({2})
    ),
    "a pair and a standby": Scenario(sites=3, copies=PAIR, batches=TWO, bound_rows=ROOMY),
    "pair to pair, take-over, small pools": Scenario(
        sites=2, copies=PAIR_TO_PAIR, batches=TWO_BATCHES, bound_rows=TIGHT
    ),
}
# The ones that take longest come first, so that no core is idle at the end.
DEEP: dict[str, Scenario] = {
    "two to one, a standby": Scenario(sites=3, copies=TWO_TO_ONE, batches=ONE, bound_rows=ROOMY),
    "pair to pair, a standby, small pools": Scenario(
        sites=3, copies=PAIR_TO_PAIR, batches=TWO_BATCHES, bound_rows=TIGHT
    ),
    "a pair and two standbys, two crashes": Scenario(sites=4, copies=PAIR, batches=TWO, bound_rows=ROOMY, crashes=2),
    "pair to pair, a standby, two crashes": Scenario(
        sites=3, copies=PAIR_TO_PAIR, batches=ONE, bound_rows=ROOMY, crashes=2
    ),
    "one to two, a standby": Scenario(sites=3, copies=ONE_TO_TWO, batches=ONE, bound_rows=ROOMY),
    "pair to pair, a standby": Scenario(sites=3, copies=PAIR_TO_PAIR, batches=TWO, bound_rows=ROOMY),
    "a pair and a standby, one row after the other": Scenario(
        sites=3, copies=PAIR, batches=TWO_BATCHES, bound_rows=ROOMY
    ),
    "a pair and a standby, two crashes": Scenario(sites=3, copies=PAIR, batches=ONE, bound_rows=ROOMY, crashes=2),
    "pair to pair, take-over": Scenario(sites=2, copies=PAIR_TO_PAIR, batches=TWO_BATCHES, bound_rows=ROOMY),
    "two to one, take-over": Scenario(sites=2, copies=TWO_TO_ONE, batches=TWO, bound_rows=ROOMY),
    "two to one, take-over, small pools": Scenario(sites=2, copies=TWO_TO_ONE, batches=TWO_BATCHES, bound_rows=TIGHT),
    "two to one, take-over, any order": Scenario(
        sites=2, copies=TWO_TO_ONE, batches=ONE, bound_rows=ROOMY, unordered=frozenset({2, 3})
    ),
    "a shortcut, a move, any order": Scenario(
        sites=2,
        copies=ALONE_TO_ALONE,
        batches=ONE,
        bound_rows=ROOMY,
        crashes=0,
        moves=(Move(stage=2, partition=0, slot=0, to="site-2"),),
        edges=((0, 1), (0, 2), (1, 2), (2, 3)),
        unordered=frozenset({2}),
    ),
    # The stage that catches up has taken rows of the ingress that are ahead of those of stage 1.
    "a shortcut, a standby, any order": Scenario(
        sites=3,
        copies=((("site-1",),), (("site-1", "site-2"),)),
        batches=ONE,
        bound_rows=ROOMY,
        edges=((0, 1), (0, 2), (1, 2), (2, 3)),
        unordered=frozenset({2}),
    ),
    "one to two, take-over": Scenario(sites=2, copies=ONE_TO_TWO, batches=TWO, bound_rows=ROOMY),
    "two pairs on three sites, pools by destination": Scenario(
        sites=3, copies=declustered(3, [2]), batches=ONE, bound_rows=TIGHT, counted=True
    ),
    "a pair, a move by a third copy": Scenario(
        sites=3,
        copies=PAIR,
        batches=ONE,
        bound_rows=ROOMY,
        crashes=0,
        moves=(Move(stage=1, partition=0, slot=0, to="site-3"),),
    ),
    "a pair, a move and a crash": Scenario(
        sites=3,
        copies=PAIR,
        batches=ONE,
        bound_rows=ROOMY,
        moves=(Move(stage=1, partition=0, slot=1, to="site-3"),),
    ),
    "a pair, a change": Scenario(
        sites=2,
        copies=PAIR,
        batches=ONE,
        bound_rows=ROOMY,
        crashes=0,
        changes=(Reconfigure(number=1, stages=frozenset({1})),),
    ),
    **QUICK,
}
QUICK_WALKS, DEEP_WALKS = 400, 5_100
QUICK_CHANGING, DEEP_CHANGING = 50, 5_000
QUICK_SCALE, DEEP_SCALE = 1, 20  # Of the streams of random worlds: the long ones have 2,000 events each.
QUICK_PROBES, DEEP_PROBES = 20, 200
QUICK_WANDERS, DEEP_WANDERS = 10, 500  # Of each world of `wander`.
SEEDS_AT_ONCE = 25
STATES_MAX = 30_000_000

PROGRESS_EVERY_S = 1.0

CheckProgress = Callable[[str], None]


@dataclass
class CheckResult:
    """What a check covered, and what it found."""

    worlds: int = 0
    large: int = 0
    states: int = 0
    transitions: int = 0
    events: int = 0
    probes: int = 0
    faults: int = 0
    walked: int = 0  # Events of large random worlds,
    walking_s: float = field(default=0.0, compare=False)  # and the CPU time that they took.
    seconds: float = 0.0
    explored: dict[str, dict[str, Any]] = field(default_factory=dict)
    violations: list[dict[str, str]] = field(default_factory=list)

    def add(self, other: CheckResult) -> None:
        """Add what a part of the check covered."""
        for name in ("worlds", "large", "states", "transitions", "events", "probes", "faults", "walked", "walking_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.explored |= other.explored
        self.violations += other.violations


@dataclass(frozen=True)
class CheckPart:
    """One piece of a check, for one core: a small world to be explored or wandered through, or some random ones."""

    name: str
    scenario: Scenario | None = None
    wanders: range = range(0)
    walks: range = range(0)
    changing: range = range(0)  # Walks during which the code changes.
    probes: range = range(0)
    scale: int = 1

    def run(self) -> CheckResult:
        checked = CheckResult()
        if self.scenario is not None:
            _explore(checked, self.name, self.scenario)
        if self.wanders:
            _wander(checked, self.name, self.wanders)
        _walk(checked, self.walks, self.scale)
        _walk(checked, self.changing, self.scale, changes=True)
        _probe(checked, self.probes)
        summary = checked.explored.get(self.name, {}).get("summary", f"{checked.events:,} events")
        _report(f"{self.name}: {summary}")
        return checked


def check(deep: bool = False, seed: int = 0, progress: CheckProgress = lambda line: None) -> CheckResult:
    """Explore the small worlds to the end, walk large ones from `seed` on, and try bad input, on all cores."""
    began = time.perf_counter()
    checked = CheckResult()
    parts = list(_parts(deep, seed))
    context = get_context("fork")
    lines: SimpleQueue[str] = context.SimpleQueue()
    with ProcessPoolExecutor(mp_context=context, initializer=_report_to, initargs=(lines,)) as cores:
        results = [cores.submit(part.run) for part in parts]
        waiting = set(results)
        while waiting:
            waiting = wait(waiting, timeout=PROGRESS_EVERY_S).not_done
            while not lines.empty():
                done = f"{len(parts) - len(waiting)}/{len(parts)}"
                progress(f"[{done}, {time.perf_counter() - began:.0f} s] {lines.get()}")
    for result in results:  # In the order of the parts, whatever the order in which they were done.
        checked.add(result.result())
    checked.seconds = time.perf_counter() - began
    return checked


def _parts(deep: bool, seed: int) -> Iterator[CheckPart]:
    for name, scenario in (DEEP if deep else QUICK).items():
        yield CheckPart(name, scenario)
    for name in WORLDS:
        yield CheckPart(name, wanders=range(seed, seed + (DEEP_WANDERS if deep else QUICK_WANDERS)))
    for seeds in _cut(seed, DEEP_WALKS if deep else QUICK_WALKS):
        scale = DEEP_SCALE if deep else QUICK_SCALE
        yield CheckPart(f"random worlds {seeds.start} to {seeds.stop - 1}", walks=seeds, scale=scale)
    for seeds in _cut(seed, DEEP_CHANGING if deep else QUICK_CHANGING):
        yield CheckPart(f"random worlds that change, {seeds.start} to {seeds.stop - 1}", changing=seeds)
    for seeds in _cut(seed, DEEP_PROBES if deep else QUICK_PROBES):
        yield CheckPart(f"bad input, worlds {seeds.start} to {seeds.stop - 1}", probes=seeds)


def _cut(first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, SEEDS_AT_ONCE):
        yield range(start, min(start + SEEDS_AT_ONCE, first + count))


# --- on one core ------------------------------------------------------------------------------------------

_report: CheckProgress = print


def _report_to(lines: SimpleQueue[str]) -> None:
    global _report
    _report = lines.put
    gc.freeze()  # Imported modules are not garbage, and worlds make little of it.
    gc.set_threshold(50_000)


def _explore(checked: CheckResult, name: str, scenario: Scenario) -> None:
    explored = Explorer(scenario).run(STATES_MAX, lambda line: _report(f"{name}: {line}"))
    checked.worlds += 1
    checked.states += explored.states
    checked.transitions += explored.transitions
    checked.faults += scenario.crashes
    checked.explored[name] = {
        "states": explored.states,
        "transitions": explored.transitions,
        "seconds": round(explored.seconds, 1),
        "summary": str(explored),
    }
    if explored.violation is not None:
        text = story(scenario, explored.path)
        checked.violations.append({"world": name, "claim": str(explored.violation), "story": text})


def _walk(checked: CheckResult, seeds: range, scale: int, changes: bool = False) -> None:
    for seed in seeds:
        began = time.process_time()
        walked = walk(seed, scale=scale, changes=changes)
        checked.walking_s += time.process_time() - began
        checked.large += 1
        checked.walked += len(walked.choices)
        _count(checked, walked)
        if walked.violation is not None:
            replay = f"flux spec replay {seed}" + (f" --scale {scale}" if scale > 1 else "")
            replay += " --changes" * changes
            checked.violations.append({"world": f"seed {seed}", "claim": str(walked.violation), "replay": replay})


def _wander(checked: CheckResult, name: str, seeds: range) -> None:
    for seed in seeds:
        walked = wander(WORLDS[name], seed)
        _count(checked, walked)
        if walked.violation is not None:
            text = story(walked.scenario, shrink(walked.scenario, walked.choices))
            checked.violations.append({"world": f"{name}, seed {seed}", "claim": str(walked.violation), "story": text})


def _count(checked: CheckResult, walked: Walked) -> None:
    checked.worlds += 1
    checked.events += len(walked.choices)
    checked.faults += sum(choice[0] in FAULTS for choice in walked.choices)


def _probe(checked: CheckResult, seeds: range) -> None:
    for seed in seeds:
        checked.probes += 1
        violation = probe(seed)
        if violation is not None:
            checked.violations.append({"world": f"bad input, seed {seed}", "claim": str(violation)})
