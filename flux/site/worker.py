"""Worker: a site's process: it runs the operators of its poolers.

A `Consume` covers all partitions of a segment on this site: the frames of its lanes are merged into
one batch, the operators process it, and their output is partitioned for the next exchange; each is one
vectorised step. Punctuations cut the batch: rows before it, the punctuation, rows behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import trio

from ..batch import Batch
from ..errors import FluxError
from ..hashing import partition_of
from ..hosting import Hosted, host
from ..plan import Plan
from ..protocols.messages import Block, Consume, Consumed, Drop, Effect, Frame, Install, Standby, State
from ..protocols.node import Node
from ..protocols.pooler import Pooler
from ..punctuation import Punctuation
from ..wire import frames
from ..wire.link import Link
from ..wire.rows import PARTITION, SN, SUB, Rows, merge
from ..wire.transfer import Arrival
from ..wire.values import Vocabulary
from .at_work import SUFFIX, AtWork, Job
from .digests import Digests, Skips
from .moving import Installing, Receiving, moving, read
from .shell import Shell
from .skipping import Skipping
from .snapshot import Cut, Snapshots
from .surroundings import Surroundings

_READ_AT_ONCE_BYTES = 1 << 20


class Worker(Shell):
    """The process of site `name`."""

    def __init__(self, surroundings: Surroundings, name: str) -> None:
        plan = surroundings.plan
        stages = range(1, plan.egress_stage)
        super().__init__(surroundings, Node(name, [Pooler(name, stage, plan.pool_rows) for stage in stages]))
        self._segments: dict[int, list[Hosted]] = {}
        self._words: dict[tuple[int, int], Vocabulary] = {}  # Of which their states are made, by stage and step.
        self._digests = {stage: Digests(plan.partitions(stage)) for stage in stages}
        self._at_work = AtWork(surroundings.directory / f"{name}{SUFFIX}")
        self._snapshots = {stage: Snapshots() for stage in stages}
        self._installing = Installing()
        self._receiving = Receiving()

    def start(self, nursery: trio.Nursery) -> None:
        placed = self.plan.view()
        for stage in range(1, self.plan.egress_stage):
            held = [p for p, copies in enumerate(placed.copies[stage]) if self.name in copies]
            self._segments[stage] = _opened(self.plan, stage, held)
            self._words |= {(stage, number): step.words for number, step in enumerate(self._segments[stage])}

    def last_words(self) -> dict[str, Any]:
        for steps in self._segments.values():
            for step in steps:
                try:
                    step.close()
                except Exception as error:
                    self.log(f"closing {step.step.name}: {error}")
        return {"digests": self._final_digests()}

    def _final_digests(self) -> list[Any]:
        """Where each cohort stands and what it has emitted: at the end of a run all copies are at one place."""
        final = []
        for stage, pooler in self.node.machines.items():
            assert isinstance(pooler, Pooler)
            for cohort in pooler.cons.cohorts.values():
                held = sorted(cohort.partitions)
                final.append([stage, cohort.consumed, held, [self._digests[stage].get(p) for p in held]])
        return final

    def perform(self, job: Consume) -> None:
        whole = merge([self._rows(job, frame) for frame in job.frames])
        self._at_work.begin(Job(stage=job.stage, after=job.after, upto=job.upto, partitions=job.partitions))
        outputs = [batch for batch in self._outputs(job, whole) if batch is not None]
        self._at_work.end()
        body = self._partitioned(job.stage, outputs, whole.marks)
        self._compare(job, body, self._tell_skipped(job.stage))
        self.tell(Consumed(stage=job.stage, cohort=job.cohort, upto=job.upto, rows=len(body), body=body))

    def _tell_skipped(self, stage: int) -> Skips:
        """Report the rows that operators refused; return partition and number of each that was just now."""
        places: list[tuple[int, int]] = []
        for step in self._segments[stage]:
            if not isinstance(step, Skipping):
                continue
            totals, skipped = step.take_skipped()
            places += [(row.partition, row.sn) for row in skipped]
            if totals:
                rows = [[row.partition, row.nth, row.sn, *row.shown] for row in skipped if row.shown is not None]
                place = {"step": step.step.name, "level": step.step.level}
                self.program.send({"kind": "skipped", **place, "totals": list(totals.items()), "rows": rows})
        return places

    def _compare(self, job: Consume, body: Rows, skipped: Skips) -> None:
        """Have what was emitted compared with what the other copies emit."""
        partitions = sorted(job.partitions)
        for position, sums in self._digests[job.stage].add(body, job.after, job.upto, skipped):
            self.controller.send(
                {
                    "kind": "digests",
                    "stage": job.stage,
                    "position": position,
                    "partitions": partitions,
                    "digests": sums[partitions].tolist(),
                }
            )

    def carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Install):
            self._digests[effect.stage].put(effect.partition, effect.body.digest)
            self._installing.begin(effect, self._segments[effect.stage], self._tell_installed(effect))
        elif isinstance(effect, Drop):
            self._installing.finish(effect.stage, effect.partition)
            for step in self._segments[effect.stage]:
                step.drop_partition(effect.partition)
        else:
            super().carry_out(effect)

    def _tell_installed(self, effect: Install) -> Callable[[float], None]:
        """For those who watch the run: how long it took to install a copy."""
        assert self.node.view is not None
        place = (effect.stage, effect.partition, self.name)
        [version] = [s.version for s in self.node.view.standby if (s.stage, s.partition, s.node) == place]

        def tell(took_s: float) -> None:
            self.program.send({"kind": "installed", "version": version, "install_s": took_s})
            self._tell_skipped(effect.stage)  # Who had skipped rows may have died before it told.

        return tell

    def may_begin(self, job: Consume) -> bool:
        return not self._installing.install_one(job)

    def send_state(self, to: str, message: State) -> None:
        """State, position and output of one instant (rule 16); the machine asks between two steps of the operator."""
        link = self.link_to(to)
        if link.closed:
            return
        began = time.monotonic()
        standby = self._standby(message.version)
        assert standby is not None, f"nobody wants copy {message.version}"
        partition = standby.partition
        self._installing.finish(message.stage, partition)
        consumers = tuple(range(self.plan.partitions(message.stage + 1)))
        own = self.table((Block(producers=(partition,), consumers=consumers),), message.stage)
        steps, digest = self._segments[message.stage], self._digests[message.stage].get(partition)
        whose = f"stage {message.stage}, partition {partition}, on {self.name}"
        values = partial(moving, message, partition, own, steps, digest)
        for step in steps:
            step.init_trans(partition)
        cut = self._snapshots[message.stage].take(values, whose, all(step.state_in_memory for step in steps))
        for step in steps:
            step.end_trans(partition)
        self._nursery.start_soon(self._send_chunks, cut, link, message.version, time.monotonic() - began)

    async def _send_chunks(self, cut: Cut, link: Link, version: int, cut_s: float) -> None:
        """Pass a copy on as the link has room for it; if its site has died meanwhile, nobody wants it."""
        try:
            size_bytes = 0
            while await link.bulk_room() and (chunk := await cut.read()) is not None:
                link.send({"kind": "chunk", "version": version}, pa.py_buffer(chunk), bulk=True)
                size_bytes += len(chunk)
            moved = {"version": version, "to": link.peer, "bytes": size_bytes, "cut_s": cut_s}
            self.program.send({"kind": "moved", **moved})
            link.send({"kind": "chunk", "version": version, "last": True}, bulk=True)
        except FluxError as error:
            self.fail(error)
        finally:
            cut.close()

    def take_chunk(self, link: Link, header: dict[str, Any], body: Any) -> None:
        version, is_last = header.get("version"), header.get("last", False)
        if type(version) is not int:
            raise frames.BadFrame(f"expected a chunk of a copy, got {frames.shown(header)}")
        if self._standby(version, link.peer) is None:
            self._receiving.forget(link.peer, version)  # A later view does not want it any more.
            return
        arrival = self._receiving.take(link.peer, version, body)
        if is_last:
            self._receiving.forget(link.peer, version)
            self._nursery.start_soon(self._read_state, link, arrival)

    def forget_chunks(self, peer: str) -> None:
        self._receiving.forget_all(peer)

    async def _read_state(self, link: Link, arrival: Arrival) -> None:
        """Read a copy that has come, beside the loop if it is large; the machine is told when that is done."""
        try:
            if arrival.size_bytes < _READ_AT_ONCE_BYTES:
                message = read(arrival, self._words)
            else:
                message = await trio.to_thread.run_sync(read, arrival, self._words)
            if message.sender != link.peer:
                raise frames.BadFrame(f"expected the state of a partition of {link.peer}, got {message!r:.200}")
        except frames.BadFrame as error:
            self.fail(FluxError(f"{self.name} cannot read the state that {link.peer} sent: {error}"))
            link.close()
        if not link.closed:
            self.tell(message)

    def _standby(self, version: Any, donor: str | None = None) -> Standby | None:
        """The copy `version` that is to be built; None if there is none in the view."""
        standby = self.node.view.standby if self.node.view is not None else ()
        return next((s for s in standby if s.version == version and donor in (None, s.donor)), None)

    def _rows(self, job: Consume, frame: Frame) -> Rows:
        rows: Rows = frame.body.between(job.after, job.upto)
        return rows.select(self.table(frame.channels, frame.edge)) if frame.channels else rows

    def _outputs(self, job: Consume, whole: Rows) -> Iterator[Batch | None]:
        steps = self._segments[job.stage]
        rest = _batch(whole)
        for mark in whole.marks:
            before, rest = _split(rest, mark.sn)
            yield _through(steps, before)
            yield _punctuated(steps, replace(mark, partitions=job.partitions))
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
    if plan.policy.on_error == "skip":
        steps = [Skipping(step) for step in steps]
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
    # Rows that the mark caused in the stage before carry its number and come before it.
    cut = int(np.searchsorted(batch.sn, sn, side="right"))
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
