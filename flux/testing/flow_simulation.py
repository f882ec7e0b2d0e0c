"""simulate: a whole dataflow, with its own operators, in the simulated world of `flux.spec`: no processes.

The machines are those of production. Messages arrive in any order that links allow, sites crash and restart, copies
move. Operators run as they do on a site, and between any two steps their state is bytes, as on the wire. The input of
every partition and every sink is compared with a plain run. That run takes one stage after the other, each partition
with all its rows at once, without machines, and at another time of day, where time stands still.

A seed fixes everything: the batches, the order of rows from several sources, the size of the buffers, the faults and
when they happen.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..dataflow import Dataflow
from ..plan import Plan, Policy
from ..plan.explain import heading
from ..protocols.messages import Move
from ..spec.dataflow import Row
from ..spec.invariants import Violated
from ..spec.walk import shrink, steps, story
from ..spec.world import Choice, World
from ..types.errors import FluxError, PlanError
from ..wire.frames import BadFrame
from .fake_clock import LATER_S, NOW_S, UNEVEN, FakeClock
from .flow_world import FlowScenario, first_difference, plain_outputs
from .source_prefix import SourcePrefix, pulls, source_prefixes

__all__ = ["Simulated", "simulate"]

FAULTS = {"crashes": 1, "restarts": 1, "moves": 2, "suspicions": 0, "cuts": 0, "arrivals": 0}
_SHRINK_TRIES_MAX = 150
_SHOWN_LINES = 30


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation without faults. In `lost` worlds every copy of a partition crashed: they end there.

    `outputs` counts the rows for all sinks in the last world. Each world has another order of the rows of several
    sources, so the count may differ between worlds.
    """

    seeds: int
    events: int
    lost: int
    outputs: int


class SimulationFailed(AssertionError):
    """A simulated world has other output than a plain run; the text names the world and how to replay it."""


def simulate(
    flow: Dataflow,
    faults: int | Mapping[str, int] = FAULTS,
    seeds: int | Iterable[int] = 20,
    *,
    sites: int = 3,
    standby: int = 1,
    rows: int = 60,
    partitions: int = 3,
    tell: bool = False,
) -> Simulated:
    """Run `flow` in one simulated world for each seed; raise `AssertionError` with the seed if one fails.

    `faults` maps each kind to its maximum: `crashes` of sites, `restarts` of ingress, egress and controller, `moves` of
    partitions, sites wrongly suspected (`suspicions`), `cuts` of links, and `arrivals` of new sites. A number stands
    for that many crashes. `seeds` is a count, starting from 0, or a list of seeds. Worlds are small: the first `rows`
    of each source, and at most `partitions` per segment, except those by range, whose boundaries are given. With
    `tell`, the events of each world are printed.
    """
    if not isinstance(flow, Dataflow):
        raise PlanError(f"simulate: the first argument is a flux.Dataflow; got {flow!r:.100}")
    if partitions < 1:
        raise PlanError(f"simulate: partitions is at least 1; got {partitions}")
    allowed, chosen = _check_faults(faults), _list_seeds(seeds)
    plan = make_small_plan(flow, sites, standby, partitions)
    prefixes = source_prefixes(flow._logical.sources, rows, flow.name)
    events = lost = outputs = 0
    clock = FakeClock(
        [root for segment in plan.segments for step in segment.steps for root in (step.factory, step.parameters)]
    )
    for seed in chosen:
        result = _simulate_one(_scenario(plan, prefixes, allowed, seed), seed, flow.name, tell, clock)
        events, lost, outputs = events + result.events, lost + result.lost, result.outputs
    return Simulated(len(chosen), events, lost, outputs)


def _check_faults(faults: int | Mapping[str, int]) -> dict[str, int]:
    allowed = dict(faults) if isinstance(faults, Mapping) else {"crashes": faults}
    unknown = sorted(allowed.keys() - FAULTS.keys())
    if unknown:
        raise PlanError(f"simulate: unknown kinds of faults: {', '.join(unknown)}; expected {', '.join(FAULTS)}")
    for kind, count in allowed.items():
        if not isinstance(count, int) or count < 0:
            raise PlanError(f"simulate: faults counts {kind}, 0 or more; got {count!r}")
    return allowed


def _list_seeds(seeds: int | Iterable[int]) -> list[int]:
    which = range(seeds) if isinstance(seeds, int) else seeds
    chosen = list(which) if isinstance(which, Iterable) else []
    if not chosen or not all(isinstance(seed, int) for seed in chosen):
        raise PlanError(
            f"simulate: seeds is the number of worlds, at least 1, or a list of seeds; got {seeds!r:.100}. Set "
            "seeds=20 for those from 0 to 19, or seeds=[17] for one world"
        )
    return chosen


def make_small_plan(flow: Dataflow, sites: int, standby: int, partitions: int) -> Plan:
    """Return the flow's plan, with few partitions."""
    return _limit_partitions(flow._logical.plan(sites, standby, "pairs", 1, Policy()), partitions)


def _limit_partitions(plan: Plan, partitions: int) -> Plan:
    """Return the same plan with at most `partitions` in each segment, except where their boundaries are given."""
    fixed = {edge.consumer for edge in plan.edges if edge.route.by == "range"}
    few = {stage: min(plan.partitions(stage), partitions) for stage in plan.stages if stage not in fixed}
    segments = tuple(
        replace(segment, partitions=few[stage], steps=tuple(replace(s, partitions=few[stage]) for s in segment.steps))
        if stage in few
        else segment
        for stage, segment in zip(plan.stages, plan.segments, strict=True)
    )
    edges = tuple(
        replace(edge, route=replace(edge.route, partitions=few[edge.consumer])) if edge.consumer in few else edge
        for edge in plan.edges
    )
    return replace(plan, segments=segments, edges=edges)


def _scenario(plan: Plan, prefixes: Sequence[SourcePrefix], faults: Mapping[str, int], seed: int) -> FlowScenario:
    rng = random.Random(f"scenario {seed}")
    numbered = pulls(prefixes, rng, plan)
    view = plan.view()
    return FlowScenario(
        sites=len(plan.site_names),
        copies=view.copies[1 : len(plan.segments) + 1],
        sinks=plan.sinks,
        batches=tuple(tuple(range(a + 1, b + 1)) for a, b in pairwise([0, *(pull.upto for pull in numbered)])),
        bound_rows=rng.choice((1, 2, 5, 20, 1_000)),
        moves=tuple(_move(rng, plan) for _ in range(faults.get("moves", 0)) if plan.segments),
        edges=view.edges,
        unordered=view.unordered,
        slow_start=rng.random() < 0.3,
        chunks=rng.random() < 0.5,
        at_once=rng.choice((1, 2)),
        plan_of_flow=plan,
        pulls=numbered,
        crashes=faults.get("crashes", 0),
        restarts=faults.get("restarts", 0),
        suspicions=faults.get("suspicions", 0),
        cuts=faults.get("cuts", 0),
        arrivals=faults.get("arrivals", 0),
    )


def _move(rng: random.Random, plan: Plan) -> Move:
    stage = rng.randint(1, len(plan.segments))
    copies = 2 if plan.segments[stage - 1].availability == "pairs" else 1
    partition, slot = rng.randrange(plan.partitions(stage)), rng.randrange(copies)
    return Move(stage=stage, partition=partition, slot=slot, to=rng.choice(plan.site_names))


# --- one world ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _WorldResult:
    events: int
    lost: bool
    outputs: int


def _simulate_one(scenario: FlowScenario, seed: int, name: str, is_verbose: bool, clock: FakeClock) -> _WorldResult:
    """Run one world to its end, at another time of day than the plain run."""
    rng = random.Random(seed)
    done: list[Choice] = []
    try:
        with clock.at(NOW_S):
            outputs = sum(len(rows) for rows in plain_outputs(scenario))
        with clock.at(LATER_S, pace=UNEVEN):
            world = World(scenario)
            for choice in steps(world, rng):
                done.append(choice)
                world.do(choice)
            world.at_rest()
    except Violated as violation:
        with clock.at(LATER_S, pace=UNEVEN):
            text = _failure(scenario, seed, name, done, violation, clock)
            if is_verbose:
                print(story(scenario, done))
        raise SimulationFailed(text) from None
    except (FluxError, BadFrame) as error:
        text = f"{_headline(name, seed)}\n\n{type(error).__name__}: {error}\n\n{_again(seed)}"
        raise SimulationFailed(text) from error
    if is_verbose:
        with clock.at(LATER_S, pace=UNEVEN):
            print(story(scenario, done))
    return _WorldResult(len(done), bool(world.lost), outputs)


def _failure(
    scenario: FlowScenario, seed: int, name: str, done: list[Choice], violation: Violated, clock: FakeClock
) -> str:
    differing = list(_difference_lines(scenario))  # Taken now: shrinking runs the scenario again and overwrites it.
    shortest = shrink(scenario, done, tries_max=_SHRINK_TRIES_MAX)
    return "\n".join(
        [
            _headline(name, seed),
            "",
            f"{violation}",
            "",
            *differing,
            f"Stages: {'; '.join(_stages(scenario.plan_of_flow))}. The events, shrunk as far as possible:",
            *_story_lines(story(scenario, shortest)),
            "",
            "What it means: the input of a partition or a sink differs from that in a plain run of the operators.",
            "What to do: the protocol has its own checks (flux spec check), so look at the operators first. One whose "
            "output depends on where batches are cut, or whose state is not complete, fails in this way. "
            "flux.testing.check_operator(operator, rows=...) finds it, with a small example.",
            *(f"The clock is read at {place}: it differs from site to site." for place in clock.read_at),
            _again(seed),
        ]
    )


def _difference_lines(scenario: FlowScenario) -> Iterator[str]:
    found = first_difference(scenario)
    if found is not None:
        last, expected, got = found
        yield f"The first row that differs, of stage {last.stage}, partition {last.partition}:"
        yield f"    expected: {_row(expected)}"
        yield f"    got:      {_row(got)}"
        yield ""


def _row(row: Row | None) -> str:
    return "nothing more" if row is None else f"{row.value!r:.160}, of input {row.sn}"


def _stages(plan: Plan) -> Iterator[str]:
    for number, segment in enumerate(plan.segments, 1):
        yield f"{number} is {heading(segment)} and {', '.join(step.name for step in segment.steps)}"
    for number, stage in enumerate(plan.sink_stages, 1):
        yield f"{stage} is the sink" if plan.sinks == 1 else f"{stage} is sink {number}"


def _story_lines(text: str) -> list[str]:
    lines = [f"    {line:.200}" for line in text.splitlines()]
    left = len(lines) - _SHOWN_LINES
    return [*lines[:2], f"    ... {left} lines, see tell=True ...", *lines[-_SHOWN_LINES:]] if left > 2 else lines


def _headline(name: str, seed: int) -> str:
    return f"dataflow {name!r} fails in the simulated world of seed {seed}."


def _again(seed: int) -> str:
    return f"To replay it: flux.testing.simulate(flow, seeds=[{seed}], ...) with the same settings and rows."
