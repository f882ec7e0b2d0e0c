"""Inspection: what the process around the machines may ask of them, and the one thing in them that it may exchange.

A shell steps a machine and carries out its effects; it does not reach into fields. What it needs besides is here: how
much is buffered, how far cohorts are, and which bodies are not read soon. Such a body may be replaced by another one
with the same rows, for example by one in a file. No rule looks into bodies, so nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from .buffer import Buffer
from .egress import Egress
from .fh_cons import Cohort, FhCons
from .ingress import Ingress
from .messages import Body, Position
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


def buffered_bodies(buffer: Buffer) -> list[BufferedBody]:
    """The bodies of all runs, in their order."""
    needed = min([floor for dest, floor in buffer.floors.items() if dest not in buffer.quota_rows], default=0)
    soon = needed if buffer.quota_rows else 0
    return [BufferedBody(run.body, run.upto <= soon) for run in buffer.runs]


def replace_buffered(buffer: Buffer, bodies: Sequence[Body]) -> None:
    """Put others in the place of the bodies of all runs, each with the same rows."""
    buffer.runs = [replace(run, body=body) for run, body in zip(buffer.runs, bodies, strict=True)]


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
