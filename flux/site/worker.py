"""Worker: a site's process: it runs the operators of its poolers.

A `Consume` covers all partitions of a segment on this site: the frames of its lanes are merged into
one batch, the operators process it, and their output is partitioned for the next exchange; each is one
vectorised step. Punctuations cut the batch: rows before it, the punctuation, rows behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import trio

from ..batch import Batch
from ..hashing import partition_of
from ..hosting import Hosted, host
from ..plan import Plan
from ..protocols.messages import Consume, Consumed
from ..protocols.node import Node
from ..protocols.pooler import Pooler
from ..punctuation import Punctuation
from ..wire.rows import PARTITION, SN, SUB, Rows, merge
from .shell import Shell, Surroundings


class Worker(Shell):
    """The process of site `name`."""

    def __init__(self, surroundings: Surroundings, name: str) -> None:
        plan = surroundings.plan
        stages = range(1, plan.egress_stage)
        super().__init__(surroundings, Node(name, [Pooler(name, stage, plan.pool_rows) for stage in stages]))
        self._segments: dict[int, list[Hosted]] = {}

    def start(self, nursery: trio.Nursery) -> None:
        placed = self.plan.view()
        for stage in range(1, self.plan.egress_stage):
            held = [p for p, copies in enumerate(placed.copies[stage]) if self.name in copies]
            self._segments[stage] = _opened(self.plan, stage, held)

    def perform(self, job: Consume) -> None:
        whole = merge([frame.body.between(job.after, job.upto) for frame in job.frames])
        outputs = [batch for batch in self._outputs(job.stage, whole) if batch is not None]
        body = self._partitioned(job.stage, outputs, whole.marks)
        self.tell(Consumed(stage=job.stage, upto=job.upto, rows=len(body), body=body))

    def _outputs(self, stage: int, whole: Rows) -> Iterator[Batch | None]:
        steps = self._segments[stage]
        rest = _batch(whole)
        for mark in whole.marks:
            before, rest = _split(rest, mark.sn)
            yield _through(steps, before)
            yield _punctuated(steps, mark)
        yield _through(steps, rest)

    def _partitioned(self, stage: int, outputs: list[Batch], marks: tuple[Punctuation, ...]) -> Rows:
        """The output as rows of the next edge: hashed on its columns, to the consumer's partitions."""
        if not outputs:
            return Rows(None, marks)
        output = outputs[0] if len(outputs) == 1 else Batch.concat(outputs)
        if stage + 1 == self.plan.egress_stage:
            partition = np.zeros(len(output), dtype=np.uint16)
        else:
            following = self.plan.segments[stage]
            columns = [output.arrow.column(name) for name in following.columns]
            partition = partition_of(columns, following.partitions)
        return Rows.of(output.arrow, output.sn, output.sub, output.partition, partition, marks)


def _opened(plan: Plan, stage: int, held: list[int]) -> list[Hosted]:
    steps = [host(step) for step in plan.segments[stage - 1].steps]
    for step in steps:
        step.open(held)
    return steps


def _batch(rows: Rows) -> Batch | None:
    if rows.wide is None:
        return None
    return Batch(rows.user, rows.hidden(SN), rows.hidden(SUB), rows.hidden(PARTITION))


def _split(batch: Batch | None, sn: int) -> tuple[Batch | None, Batch | None]:
    if batch is None:
        return None, None
    cut = int(np.searchsorted(batch.sn, sn))
    before = batch.slice(0, cut) if cut else None
    return before, batch.slice(cut, len(batch)) if cut < len(batch) else None


def _through(steps: list[Hosted], batch: Batch | None) -> Batch | None:
    for step in steps:
        if batch is None:
            return None
        batch = step.process(batch)
    return batch


def _punctuated(steps: list[Hosted], mark: Punctuation) -> Batch | None:
    """A punctuation passes each step behind the output that it caused in the step before."""
    caused: Batch | None = None
    for step in steps:
        through = step.process(caused) if caused is not None else None
        own = step.punctuate(mark)
        parts = [part for part in (through, own) if part is not None]
        caused = Batch.concat(parts).ordered() if len(parts) > 1 else next(iter(parts), None)
    return caused
