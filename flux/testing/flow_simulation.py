"""simulate: a whole dataflow, with its own operators, in the simulated world of `flux.spec`: no processes.

The machines are those of production; messages arrive in any order that links allow, sites crash and come back, copies
move. Operators are run as a site runs them, and between any two steps their state is what it is on the wire: bytes.
What every partition and every sink are given is compared with a plain run: one stage after the other, each partition
with all its rows at once, without machines, and at another time of day, which stands still.

A seed fixes everything: how the rows are cut into batches and those of several sources follow each other, how much the
buffers hold, which faults come when.
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
_SHRINKING_TRIES = 150
_SHOWN_LINES = 30


@dataclass(frozen=True)
class Simulated:
    """What was simulated; nothing was found. In `lost` worlds every copy of a partition crashed: they end there.

    `outputs` are the rows for all sinks in the last world: rows of several sources follow each other in other ways in
    each, and so less or more may come of them.
    """

    seeds: int
    events: int
    lost: int
    outputs: int


class SimulationFailed(AssertionError):
    """A simulated world did not give what a plain run gives; the text says which, and how to see it again."""


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

    `faults` says how many there may be of each kind: `crashes` of sites, `restarts` of ingress, egress and controller,
    `moves` of partitions, sites wrongly suspected (`suspicions`), `cuts` of links, and `arrivals` of new sites; a
    number stands for that many crashes. `seeds` is how many, from 0 on, or which. Worlds are small: the first `rows` of
    each source, and at most so many `partitions` of each segment, but for those by range, whose boundaries are given.
    With `tell`, what happened is printed.
    """
    if not isinstance(flow, Dataflow):
        raise PlanError(f"simulate: the first argument is a flux.Dataflow; came {flow!r:.100}")
    if partitions < 1:
        raise PlanError(f"simulate: partitions is at least 1; came {partitions}")
    allowed, chosen = _allowed(faults), _chosen(seeds)
    plan = planned(flow, sites, standby, partitions)
    found = source_prefixes(flow._logical.sources, rows, flow.name)
    events = lost = outputs = 0
    clock = FakeClock(
        [root for segment in plan.segments for step in segment.steps for root in (step.factory, step.parameters)]
    )
    for seed in chosen:
        walked = _walked(_scenario(plan, found, allowed, seed), seed, flow.name, tell, clock)
        events, lost, outputs = events + walked.events, lost + walked.lost, walked.outputs
    return Simulated(len(chosen), events, lost, outputs)


def _allowed(faults: int | Mapping[str, int]) -> dict[str, int]:
    allowed = dict(faults) if isinstance(faults, Mapping) else {"crashes": faults}
    unknown = sorted(allowed.keys() - FAULTS.keys())
    if unknown:
        raise PlanError(f"simulate: there are no faults {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    for kind, count in allowed.items():
        if not isinstance(count, int) or count < 0:
            raise PlanError(f"simulate: faults counts {kind}, 0 or more; came {count!r}")
    return allowed


def _chosen(seeds: int | Iterable[int]) -> list[int]:
    which = range(seeds) if isinstance(seeds, int) else seeds
    chosen = list(which) if isinstance(which, Iterable) else []
    if not chosen or not all(isinstance(seed, int) for seed in chosen):
        raise PlanError(
            f"simulate: seeds is how many worlds, at least 1, or which; came {seeds!r:.100}. Say seeds=20 for those "
            "from 0 to 19, or seeds=[17] for that one"
        )
    return chosen


def planned(flow: Dataflow, sites: int, standby: int, partitions: int) -> Plan:
    """The flow's plan, with few partitions."""
    return _smaller(flow._logical.plan(sites, standby, "pairs", 1, Policy()), partitions)


def _smaller(plan: Plan, partitions: int) -> Plan:
    """The same plan with at most so many partitions, but where their boundaries are given."""
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


def _scenario(plan: Plan, found: Sequence[SourcePrefix], faults: Mapping[str, int], seed: int) -> FlowScenario:
    rng = random.Random(f"scenario {seed}")
    numbered = pulls(found, rng)
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
class _Walked:
    events: int
    lost: bool
    outputs: int


def _walked(scenario: FlowScenario, seed: int, name: str, tell: bool, clock: FakeClock) -> _Walked:
    """Walk a world to its end, at another time than that of the plain run."""
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
            if tell:
                print(story(scenario, done))
        raise SimulationFailed(text) from None
    except (FluxError, BadFrame) as error:
        text = f"{_headline(name, seed)}\n\n{type(error).__name__}: {error}\n\n{_again(seed)}"
        raise SimulationFailed(text) from error
    if tell:
        with clock.at(LATER_S, pace=UNEVEN):
            print(story(scenario, done))
    return _Walked(len(done), bool(world.lost), outputs)


def _failure(
    scenario: FlowScenario, seed: int, name: str, done: list[Choice], violation: Violated, clock: FakeClock
) -> str:
    differing = list(_differing(scenario))  # Before it is overwritten by what happens when this is made shorter.
    shortest = shrink(scenario, done, tries_max=_SHRINKING_TRIES)
    return "\n".join(
        [
            _headline(name, seed),
            "",
            f"{violation}",
            "",
            *differing,
            f"Stages: {'; '.join(_stages(scenario.plan_of_flow))}. What happened, as short as it could be made:",
            *_shown(story(scenario, shortest)),
            "",
            "What it means: what reached a partition, or a sink, is not what a plain run of the operators gives.",
            "What to do: the protocol is checked by itself (flux spec check), so look at the operators first: one "
            "whose output depends on where batches are cut, or whose state is not complete, gives this. "
            "flux.testing.check_operator(operator, rows=...) tells which, with a small example.",
            *(f"The clock is read at {place}: it differs from site to site." for place in clock.read_at),
            _again(seed),
        ]
    )


def _differing(scenario: FlowScenario) -> Iterator[str]:
    found = first_difference(scenario)
    if found is not None:
        last, expected, came = found
        yield f"The first row that differs, of stage {last.stage}, partition {last.partition}:"
        yield f"    expected: {_row(expected)}"
        yield f"    came:     {_row(came)}"
        yield ""


def _row(row: Row | None) -> str:
    return "nothing more" if row is None else f"{row.value!r:.160}, of input {row.sn}"


def _stages(plan: Plan) -> Iterator[str]:
    for number, segment in enumerate(plan.segments, 1):
        yield f"{number} is {heading(segment)} and {', '.join(step.name for step in segment.steps)}"
    for number, stage in enumerate(plan.sink_stages, 1):
        yield f"{stage} is the sink" if plan.sinks == 1 else f"{stage} is sink {number}"


def _shown(text: str) -> list[str]:
    lines = [f"    {line:.200}" for line in text.splitlines()]
    left = len(lines) - _SHOWN_LINES
    return [*lines[:2], f"    ... {left} lines, see tell=True ...", *lines[-_SHOWN_LINES:]] if left > 2 else lines


def _headline(name: str, seed: int) -> str:
    return f"dataflow {name!r} fails in the simulated world of seed {seed}."


def _again(seed: int) -> str:
    return f"To see it again: flux.testing.simulate(flow, seeds=[{seed}], ...) with the same settings and rows."
