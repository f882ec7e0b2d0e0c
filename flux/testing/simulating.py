"""simulate: a whole dataflow, with its own operators, in the simulated world of `flux.spec`: no processes.

The machines are those of production; messages arrive in any order that links allow, sites crash and come back, copies
move. Operators are run as a site runs them, and between any two steps their state is what it is on the wire: bytes.
What every partition and the sink are given is compared with a plain run, one row after the other, without machines.

A seed fixes everything: how the rows are cut into batches, how much the buffers hold, which faults come when.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
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
from ..hashing import partition_of
from ..hosting import Hosted, host
from ..plan import Plan, Policy, Segment
from ..protocols.messages import Move
from ..punctuation import Punctuation
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
    source = flow._source
    assert source is not None, "a flow without a source has no plan"
    return replace(plan, segments=tuple(_smaller(segment, partitions) for segment in plan.segments)), source


def _smaller(segment: Segment, partitions: int) -> Segment:
    few = min(segment.partitions, partitions)
    return replace(segment, partitions=few, steps=tuple(replace(step, partitions=few) for step in segment.steps))


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
        bodies = []
        for number, batch in enumerate(self.batches):
            sn = np.arange(batch[0] + 1, batch[-1] + 2)
            body = list(self._sent(0, 0, self.table.slice(batch[0], len(batch)), sn, np.zeros(len(sn), np.uint64)))
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
        outputs = [_through(steps_here, _batch_of([row for row in given if row.value != END], partition))]
        if is_over:
            outputs.append(_punctuated(steps_here, Punctuation(self.last_sn, "end", None, frozenset({partition}))))
        out = [row for output in outputs if output is not None for row in self._emitted(stage, partition, output)]
        out += self.ended(stage, partition, self.last_sn) if is_over else ()
        return Kept.of(seen, ends, _packed(steps_here, partition)), sorted(out)

    def _restored(self, stage: int, partition: int, state: OperatorState) -> list[Hosted]:
        steps_here = [host(step) for step in self.plan_of_flow.segments[stage - 1].steps]
        packed = state.packed if isinstance(state, Kept) else None
        for number, step in enumerate(steps_here):
            step.open([partition] if packed is None else [])
            if packed is not None:
                step.init_trans(partition)
                for piece in decode(packed[number], words=step.words):
                    step.install_partition_state(partition, piece)
                step.end_trans(partition)
        return steps_here

    def _emitted(self, stage: int, partition: int, output: Batch) -> Iterator[Row]:
        sub = np.zeros(len(output), np.uint64) if output.sub is None else output.sub
        return self._sent(stage, partition, output.arrow, output.sn, sub)

    def _sent(self, stage: int, partition: int, arrow: Any, sn: Any, sub: Any) -> Iterator[Row]:
        """Rows on their way to the consumers of all edges of a stage."""
        cells = [Cells(arrow.slice(i, 1), text) for i, text in enumerate(_texts(arrow))]
        for edge, following, count in self.outputs[stage]:
            consumers = self._consumers(following, arrow, count)
            for i, value in enumerate(cells):
                yield Row(int(sn[i]), int(sub[i]), edge, partition, int(consumers[i]), value)

    def _consumers(self, stage: int, arrow: Any, count: int) -> Sequence[int]:
        if stage == self.stages + 1:
            return [0] * len(arrow)
        columns = [arrow.column(name) for name in self.plan_of_flow.segments[stage - 1].columns]
        consumers: Sequence[int] = partition_of(columns, count).tolist()
        return consumers


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


def _through(steps_here: list[Hosted], batch: Batch | None) -> Batch | None:
    for step in steps_here:
        if batch is None:
            return None
        batch = step.process(batch)
    return batch


def _punctuated(steps_here: list[Hosted], mark: Punctuation) -> Batch | None:
    """A punctuation passes each step behind the output that it caused in the step before."""
    caused: Batch | None = None
    for step in steps_here:
        parts = [step.process(caused) if caused is not None else None, step.punctuate(mark)]
        filled = [part for part in parts if part is not None]
        caused = Batch.concat(filled).ordered() if filled else None
    return caused


def _packed(steps_here: list[Hosted], partition: int) -> tuple[bytes, ...]:
    packed = []
    for step in steps_here:
        step.init_trans(partition)
        state = step.get_partition_state(partition)
        pieces = list(state) if isinstance(state, GeneratorType) else [state]
        packed.append(encode(pieces, f"step {step.step.name!r}, partition {partition}", words=step.words))
        step.end_trans(partition)
    return tuple(packed)
