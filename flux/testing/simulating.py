"""simulate: a whole dataflow, with its own operators, in the simulated world of `flux.spec`: no processes.

The machines are those of production; messages arrive in any order that links allow, sites crash and come back, copies
move. Operators are run as a site runs them, and between any two steps their state is what it is on the wire: bytes.
What every partition and the sink are given is compared with a plain run, one row after the other, without machines.

A seed fixes everything: how the rows are cut into batches, how much the buffers hold, which faults come when.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import GeneratorType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import trio

from ..batch import Batch
from ..dataflow import Dataflow
from ..errors import FluxError, PlanError
from ..plan import Plan, Policy
from ..protocols.messages import Move
from ..punctuation import Punctuation
from ..site.steps import Steps, Taps
from ..sources.source import Source, SourceContext
from ..spec.dataflow import END, OperatorState, Row, Scenario
from ..spec.invariants import Violated
from ..spec.walk import shrink, steps, story
from ..spec.world import Choice, World
from ..wire.state import decode, encode

__all__ = ["Simulated", "simulate"]

FAULTS = {"crashes": 1, "restarts": 1, "moves": 2, "suspicions": 0, "cuts": 0, "arrivals": 0}
_SHRINKING_TRIES = 150
_SHOWN_LINES = 30


@dataclass(frozen=True)
class Simulated:
    """What was simulated; nothing was found. In `lost` worlds every copy of a partition crashed: they end there."""

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
    the source, and at most so many `partitions` of each segment. With `tell`, what happened is printed.
    """
    allowed = {"crashes": faults} if isinstance(faults, int) else dict(faults)
    unknown = sorted(allowed.keys() - FAULTS.keys())
    if unknown:
        raise PlanError(f"simulate: there are no faults {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    plan, source = planned(flow, sites, standby, partitions)
    table = _first_rows(source, rows)
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    events = lost = outputs = 0
    for seed in chosen:
        walked = _walked(_scenario(plan, table, allowed, seed), seed, flow.name, tell)
        events, lost, outputs = events + walked.events, lost + walked.lost, walked.outputs
    return Simulated(len(chosen), events, lost, outputs)


def planned(flow: Dataflow, sites: int, standby: int, partitions: int) -> tuple[Plan, Source]:
    """The flow's plan, with few partitions, and its source."""
    plan = flow._plan(sites, standby, "pairs", 1, Policy())
    if len(flow._sources) != 1 or plan.sinks != 1 or any(segment.sides for segment in plan.segments):
        raise PlanError(
            f"simulate runs dataflows with one source and one sink, without joins, so far; {flow.name!r} has "
            f"{len(flow._sources)} and {plan.sinks}. Give it a part of the dataflow"
        )
    return _smaller(plan, partitions), flow._sources[0]


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


def _first_rows(source: Source, count: int) -> pa.RecordBatch:
    """The first rows of a source, read here."""

    async def read() -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        with TemporaryDirectory() as folder:
            batches = source.batches(SourceContext(Path(folder)))
            try:
                async for batch in batches:
                    found.append(batch.rows.slice(0, count - sum(map(len, found))))
                    if sum(map(len, found)) >= count:
                        break
            finally:
                if isinstance(batches, AsyncGenerator):
                    await batches.aclose()
        return found

    found = [batch for batch in trio.run(read) if len(batch)]
    if not found:
        raise PlanError("simulate: the source gave no rows; give it some, such as flux.sources.Table([{...}, ...])")
    return pa.concat_batches(found)


def _scenario(plan: Plan, table: pa.RecordBatch, faults: Mapping[str, int], seed: int) -> FlowScenario:
    rng = random.Random(f"scenario {seed}")
    cuts = sorted({0, len(table), *(rng.randint(0, len(table)) for _ in range(rng.randint(0, 8)))})
    spans = list(pairwise(cuts))
    view = plan.view()
    moves = tuple(_move(rng, plan) for _ in range(faults.get("moves", 0)))
    return FlowScenario(
        sites=len(plan.site_names),
        copies=view.copies[1:-1],
        batches=tuple(tuple(range(*span)) for span in spans),
        bound_rows=rng.choice((1, 2, 5, 20, 1_000)),
        moves=moves,
        edges=view.edges,
        unordered=view.unordered,
        slow_start=rng.random() < 0.3,
        chunks=rng.random() < 0.5,
        at_once=rng.choice((1, 2)),
        plan_of_flow=plan,
        table=table,
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


def _walked(scenario: FlowScenario, seed: int, name: str, tell: bool) -> _Walked:
    """Walk a world to its end."""
    rng = random.Random(seed)
    done: list[Choice] = []
    try:
        plain = scenario.reference.rows(scenario.stages + 1, 0, 0, scenario.last_sn)
        outputs = sum(row.value != END for row in plain)
        world = World(scenario)
        for choice in steps(world, rng):
            done.append(choice)
            world.do(choice)
        world.at_rest()
    except Violated as violation:
        if tell:
            print(story(scenario, done))
        raise SimulationFailed(_failure(scenario, seed, name, done, violation)) from None
    except FluxError as error:
        text = f"{_headline(name, seed)}\n\n{type(error).__name__}: {error}\n\n{_again(seed)}"
        raise SimulationFailed(text) from error
    if tell:
        print(story(scenario, done))
    return _Walked(len(done), bool(world.lost), outputs)


def _failure(scenario: FlowScenario, seed: int, name: str, done: list[Choice], violation: Violated) -> str:
    shortest = shrink(scenario, done, tries_max=_SHRINKING_TRIES)
    return "\n".join(
        [
            _headline(name, seed),
            "",
            f"{violation}",
            "",
            f"Stages: {'; '.join(_stages(scenario.plan_of_flow))}. What happened, as short as it could be made:",
            *_shown(story(scenario, shortest)),
            "",
            "What it means: what reached a partition, or the sink, is not what a plain run of the operators gives.",
            "What to do: the protocol is checked by itself (flux spec check), so look at the operators first: one "
            "whose output depends on where batches are cut, or whose state is not complete, gives this. "
            "flux.testing.check_operator(operator, rows=...) tells which, with a small example.",
            _again(seed),
        ]
    )


def _stages(plan: Plan) -> Iterator[str]:
    for number, segment in enumerate(plan.segments, 1):
        yield f"{number} is {', '.join(step.name for step in segment.steps)} by {', '.join(segment.columns)}"


def _shown(text: str) -> list[str]:
    lines = [f"    {line:.200}" for line in text.splitlines()]
    left = len(lines) - _SHOWN_LINES
    return [*lines[:2], f"    ... {left} lines, see tell=True ...", *lines[-_SHOWN_LINES:]] if left > 2 else lines


def _headline(name: str, seed: int) -> str:
    return f"dataflow {name!r} fails in the simulated world of seed {seed}."


def _again(seed: int) -> str:
    return f"To see it again: flux.testing.simulate(flow, seeds=[{seed}], ...) with the same settings and rows."


# --- the dataflow in that world ------------------------------------------------------------------------------


class Cells:
    """A row of the user's, as a value: equal to another that prints alike."""

    __slots__ = ("arrow", "text")

    def __init__(self, arrow: pa.RecordBatch, text: str) -> None:
        self.arrow = arrow  # Of one row.
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cells) and self.text == other.text

    def __lt__(self, other: object) -> bool:
        # What the end of the stream caused has its number, and comes before it.
        return self.text < other.text if isinstance(other, Cells) else True

    def __gt__(self, other: object) -> bool:
        return self.text > other.text if isinstance(other, Cells) else False

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return self.text


class Kept(OperatorState):
    """What a copy keeps: the states of its operators as bytes. Equal to another that has seen as much.

    The bytes are not compared, because equal states may be written in different ways, such as those of sets.
    """

    packed: tuple[bytes, ...] | None = None

    @classmethod
    def of(cls, seen: int, ends: int, packed: tuple[bytes, ...] | None) -> Kept:
        kept = cls(seen, ends)
        kept.packed = packed
        return kept


@dataclass(frozen=True)
class FlowScenario(Scenario):
    """A scenario whose rows and operators are those of a plan."""

    plan_of_flow: Any = None
    table: Any = None

    knows_states: ClassVar[bool] = False

    __hash__ = object.__hash__

    @cached_property
    def source(self) -> tuple[tuple[Row, ...], ...]:
        """What the ingress numbers, one body for each pull; the end comes with the last."""
        first = Steps(self.plan_of_flow, 0)
        first.open([0])
        bodies = []
        for number, batch in enumerate(self.batches):
            sn, nowhere = np.arange(batch[0] + 1, batch[-1] + 2), np.zeros(len(batch), np.uint16)
            taps = first.process(Batch(self.table.slice(batch[0], len(batch)), sn, None, nowhere))
            body = list(self._sent(0, 0, taps))
            if number == len(self.batches) - 1:
                body += self.ended(0, 0, self.last_sn)
            bodies.append(tuple(sorted(body)))
        return tuple(bodies)

    def first_state(self) -> OperatorState:
        return Kept.of(0, 0, None)

    def operate(
        self,
        stage: int,
        partition: int,
        state: OperatorState,
        rows: Iterable[Row],
        after: int,
        upto: int,
        trail: list[OperatorState] | None = None,
    ) -> tuple[OperatorState, list[Row]]:
        """Run the operators of a segment for one partition, from its state to the next."""
        given = list(rows)
        seen, ends = state.digest, state.ends
        for row in given:
            ends += row.value == END
            seen += 1
            if trail is not None:
                trail.append(Kept.of(seen, ends, None))
        is_over = ends == self.producers[stage] and upto >= self.last_sn and state.ends < ends
        if stage == self.stages + 1:
            return Kept.of(seen, ends, None), []
        steps_here = self._restored(stage, partition, state)
        batch = _batch_of([row for row in given if row.value != END], partition)
        out = list(self._sent(stage, partition, steps_here.process(batch))) if batch is not None else []
        if is_over:
            mark = Punctuation(self.last_sn, "end", None, frozenset({partition}))
            out += self._sent(stage, partition, steps_here.punctuate(mark))
            out += self.ended(stage, partition, self.last_sn)
        return Kept.of(seen, ends, _packed(steps_here, partition)), sorted(out)

    def _restored(self, stage: int, partition: int, state: OperatorState) -> Steps:
        steps_here = Steps(self.plan_of_flow, stage)
        packed = state.packed if isinstance(state, Kept) else None
        steps_here.open([partition] if packed is None else [])
        for step, pieces in zip(steps_here, packed or (), strict=False):
            step.init_trans(partition)
            for piece in decode(pieces, words=step.words):
                step.install_partition_state(partition, piece)
            step.end_trans(partition)
        return steps_here

    def _sent(self, stage: int, partition: int, taps: Taps) -> Iterator[Row]:
        """What came out of a stage, as rows on their way to the consumers of all its edges."""
        for number in self.plan_of_flow.outputs(stage):
            edge = self.plan_of_flow.edges[number]
            output = taps.get(edge.tap)
            if output is None:
                continue
            consumers = edge.route.partition(output.arrow, output.sn, output.sub)
            sub = np.zeros(len(output), np.uint64) if output.sub is None else output.sub
            for i, text in enumerate(_texts(output.arrow)):
                cells = Cells(output.arrow.slice(i, 1), text)
                yield Row(int(output.sn[i]), int(sub[i]), number, partition, int(consumers[i]), cells)


def _texts(arrow: pa.RecordBatch) -> list[str]:
    try:
        return [repr(row) for row in arrow.to_pylist()]
    except ValueError:  # Nanoseconds, for which Python has no type.
        columns = [column.cast(pa.string()).to_pylist() for column in arrow.columns]
        return [repr(dict(zip(arrow.schema.names, row, strict=True))) for row in zip(*columns, strict=True)]


def _batch_of(rows: list[Row], partition: int) -> Batch | None:
    if not rows:
        return None
    arrow = pa.concat_batches([row.value.arrow for row in rows])
    sub = np.array([row.sub for row in rows], np.uint64)
    sn = np.array([row.sn for row in rows], np.int64)
    return Batch(arrow, sn, sub if sub.any() else None, np.full(len(rows), partition, np.uint16))


def _packed(steps_here: Steps, partition: int) -> tuple[bytes, ...]:
    packed = []
    for step in steps_here:
        step.init_trans(partition)
        state = step.get_partition_state(partition)
        pieces = list(state) if isinstance(state, GeneratorType) else [state]
        packed.append(encode(pieces, f"step {step.step.name!r}, partition {partition}", words=step.words))
        step.end_trans(partition)
    return tuple(packed)
