"""Inspection: what the process around the machines may ask of them, and the one thing in them that it may exchange.

A shell steps a machine and carries out its effects; it does not reach into fields. What it needs besides is here: how
much is buffered, how far cohorts are, and which bodies are not read soon. Such a body may be replaced by another one
with the same rows, for example by one in a file. No rule looks into bodies, so nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from .buffer import Buffer
from .egress import Egress
from .fh_cons import Cohort, FhCons
from .ingress import Ingress
from .messages import Body, Position, RowCounts, Trim
from .node import Node
from .pooler import Pooler


class BufferedBody(NamedTuple):
    """The body of a run; it is `spillable` if only copies in transfer or catching up still need it."""

    body: Body
    spillable: bool


def buffers(node: Node) -> Iterator[Buffer]:
    """The output buffers of a node, one for each stage that it produces."""
    return (machine.prod.buffer for machine in node.machines.values() if not isinstance(machine, Egress))


def consumers(node: Node) -> Iterator[FhCons]:
    """The consumer ends of a site's stages."""
    return (machine.cons for machine in node.machines.values() if isinstance(machine, Pooler))


def buffered_rows(node: Node) -> int:
    """Rows that the node keeps until its consumers have acknowledged them."""
    return sum(buffer.rows for buffer in buffers(node))


def is_full(ingress: Ingress) -> bool:
    """Whether the ingress has no room for further rows."""
    return ingress.prod.buffer.full()


def consumed(node: Node, stage: int) -> Position:
    """Up to here all cohorts of a stage on this site have consumed."""
    return _pooler(node, stage).cons.consumed


def cohorts(node: Node) -> Iterator[tuple[int, Cohort]]:
    """Every cohort on this site with its stage."""
    return ((cons.stage, cohort) for cons in consumers(node) for cohort in cons.cohorts.values())


def oldest_cohort(node: Node, stage: int) -> int | None:
    """The cohort of a stage that was there first; younger ones catch up with it. None if the site has no copy."""
    return min(_pooler(node, stage).cons.cohorts, default=None)


def held_partitions(node: Node, stage: int) -> list[int]:
    """The partitions of a stage that are on this site; an ingress and an egress hold none."""
    machine = node.machines.get(stage)
    if not isinstance(machine, Pooler):
        return []
    return sorted(frozenset[int]().union(*(cohort.partitions for cohort in machine.cons.cohorts.values())))


def younger_partitions(node: Node, stage: int) -> frozenset[int] | None:
    """The partitions of a stage that are not in its oldest cohort; None if the site has no copy."""
    machine = node.machines.get(stage)
    if not isinstance(machine, Pooler) or not machine.cons.cohorts:
        return None
    _, *younger = sorted(machine.cons.cohorts)
    return frozenset[int]().union(*(machine.cons.cohorts[cohort].partitions for cohort in younger))


class KeptForConsumer(NamedTuple):
    """What a node keeps for one consumer node, of the buffer in which this is most; see `kept_rows`."""

    lag: float
    rows: int
    rows_max: int


def kept_rows(node: Node) -> dict[str, KeptForConsumer]:
    """What this node keeps for each consumer node.

    The lag is the greatest part of the bound of any buffer that is kept for it. The rows, and how many may be kept, are
    those of the buffer in which the consumer is nearest to its own bound: a slow one has another than the rest.
    """
    found: dict[str, KeptForConsumer] = {}
    for buffer in buffers(node):
        for dest in buffer.floors:
            rows, rows_max = buffer.kept_for(dest), buffer.rows_max(dest)
            lag, last = rows / buffer.bound_rows, found.get(dest[1])
            if last is not None:
                lag = max(lag, last.lag)
                if rows * last.rows_max <= last.rows * rows_max:
                    rows, rows_max = last.rows, last.rows_max
            found[dest[1]] = KeptForConsumer(lag, rows, rows_max)
    return found


class StageBuffers(NamedTuple):
    """What a stage has in front of it on a site, and in its pool after it."""

    stage: int
    pending_rows: int
    pool_rows: int
    pool_rows_max: int


def stage_buffers(node: Node) -> Iterator[StageBuffers]:
    """The rows before and after each stage of a node; a sink has no pool."""
    for stage, machine in sorted(node.machines.items()):
        pending = 0 if isinstance(machine, Ingress) else _pending_rows(machine.cons)
        buffer = None if isinstance(machine, Egress) else machine.prod.buffer
        yield StageBuffers(stage, pending, buffer.rows if buffer else 0, buffer.bound_rows if buffer else 0)


def kept_by_destination(node: Node) -> Iterator[tuple[int, str, int, int]]:
    """The rows that this node keeps for each consumer node on each edge, and how many it may keep."""
    for buffer in buffers(node):
        for dest in buffer.floors:
            yield dest[0], dest[1], buffer.kept_for(dest), buffer.rows_max(dest)


def blocking_edges(node: Node) -> tuple[tuple[int, int], ...]:
    """The stages of this node that have input, and no room in their pool for output; each with the edge to blame.

    That is the edge of the consumer for which the pool keeps most. An ingress has input whenever it lacks a pull.
    """
    return tuple(
        [
            (stage, _fullest_edge(machine.prod.buffer))
            for stage, machine in node.machines.items()
            if not isinstance(machine, Egress) and machine.prod.buffer.full() and _has_input(machine)
        ]
    )


def _has_input(machine: Ingress | Pooler) -> bool:
    if isinstance(machine, Ingress):
        return not machine.pulling and not machine.ended
    cons = machine.cons
    return any(cohort.idle and cons.reach(number) > cohort.consumed for number, cohort in cons.cohorts.items())


def _fullest_edge(buffer: Buffer) -> int:
    return max(buffer.floors, key=buffer.kept_for)[0]


def _pending_rows(cons: FhCons) -> int:
    return sum([len(body) for bodies in pending_bodies(cons).values() for body in bodies])


def buffered_bodies(buffer: Buffer) -> list[BufferedBody]:
    """The bodies of all runs, in their order."""
    needed = min([floor for dest, floor in buffer.floors.items() if dest not in buffer.quota_rows], default=0)
    soon = needed if buffer.quota_rows else 0
    return [BufferedBody(run.body, run.upto <= soon) for run in buffer.runs]


def replace_buffered(buffer: Buffer, bodies: Sequence[Body]) -> None:
    """Put others in the place of the bodies of all runs, each with the same rows."""
    buffer.runs = [replace(run, body=body) for run, body in zip(buffer.runs, bodies, strict=True)]


def trim(node: Node, effect: Trim, cut: Callable[[Body, RowCounts], Body]) -> None:
    """Carry out a `Trim`: put the body that `cut` makes into the run, if the buffer still has it."""
    machine = node.machines[effect.stage]
    assert not isinstance(machine, Egress), "an egress keeps no output"
    buffer, run = machine.prod.buffer, effect.run
    if any(kept is run for kept in buffer.runs):
        shorter = replace(run, body=cut(run.body, run.counts))
        buffer.runs = [shorter if kept is run else kept for kept in buffer.runs]


def pending_bodies(cons: FhCons) -> dict[int, list[Body]]:
    """The bodies that wait for the operator, by cohort, in the order in which it takes them."""
    return {cohort: [pending.body for pending in waiting] for cohort, waiting in cons.pending.items()}


def replace_pending(cons: FhCons, cohort: int, bodies: Sequence[Body]) -> None:
    """Put others in the place of a cohort's bodies, each with the same rows."""
    waiting = zip(cons.pending[cohort], bodies, strict=True)
    cons.pending[cohort] = tuple(replace(pending, body=body) for pending, body in waiting)


def _pooler(node: Node, stage: int) -> Pooler:
    machine = node.machines[stage]
    assert isinstance(machine, Pooler), f"stage {stage} has no operator on {node.name}"
    return machine
