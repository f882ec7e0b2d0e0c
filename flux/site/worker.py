"""Worker: a site's process: it runs the operators of its poolers.

A `Consume` covers all partitions of a segment on this site: the frames of its lanes are merged into
one batch, the operators process it, and their output is partitioned for the next exchange; each is one
vectorised step. Punctuations cut the batch: rows before it, the punctuation, rows behind it.
"""

from __future__ import annotations

import logging
import mmap
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import trio

from ..exchange.channel_mask import ChannelMask
from ..exchange.edge_bodies import LaneBody, make_body, rows_of_edges
from ..exchange.rows import PARTITION, SN, SUB, Rows
from ..model.batch import Batch
from ..model.punctuation import Punctuation
from ..protocols.messages import Block, Consume, Consumed, Drop, Effect, Install, Standby, State
from ..protocols.node import Node
from ..protocols.pooler import Pooler
from ..types.errors import FluxError, StateError
from ..wire import frames
from ..wire.link import Link
from ..wire.state_types import StateTypes
from ..wire.transfer import Arrival, StateOwner
from .config import ProcessConfig
from .crash_note import SUFFIX, CrashNote, Job, note_in
from .digests import Digests, Skips
from .shell import Shell
from .spill import TRANSFER_POOLS_MAX
from .state_transfer.partition_copy import CopyInstaller, CopyReceiver, copy_values, read_copy
from .state_transfer.snapshot import Snapshot, Snapshotter
from .steps import StepOutputs, Steps

_READ_AT_ONCE_BYTES = 1 << 20
_STEP_MIN = 4_096  # Positions that an operator takes in one step, however small the pools are.


class Worker(Shell):
    """The process of site `name`; `note` is where it notes what it works on, its own file unless given."""

    def __init__(self, config: ProcessConfig, name: str, note: mmap.mmap | None = None) -> None:
        plan = config.plan
        stages = plan.stages
        super().__init__(config, Node(name, [_pooler(name, stage, plan.pool_rows) for stage in stages]))
        self._segments: dict[int, Steps] = {}
        self._words: dict[tuple[int, int], StateTypes] = {}  # Of which their states are made, by stage and step.
        self._inputs = {stage: self.input_of(stage) for stage in stages}
        self._digests = {stage: Digests(plan.partitions(stage)) for stage in stages}
        self._at_work = CrashNote(note or note_in(config.directory / f"{name}{SUFFIX}"))
        self._snapshots = {stage: Snapshotter() for stage in stages}
        self._installing = CopyInstaller()
        self._receiving = CopyReceiver()
        self._edges = [plan.outputs(stage) for stage in range(plan.sink_stages.stop)]

    def start(self, nursery: trio.Nursery) -> None:
        placed = self.plan.view()
        for stage in self.plan.stages:
            self._segments[stage] = Steps(self.plan, stage)
            self._segments[stage].open(p for p, copies in enumerate(placed.copies[stage]) if self.name in copies)
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
        inputs = self._inputs[job.stage]
        whole = inputs.merged(job)
        first, last = _span(job, whole)
        self._at_work.begin(Job(stage=job.stage, after=first, upto=last, partitions=job.partitions))
        punctuations = [replace(mark, partitions=job.partitions) for mark in whole.punctuations]
        taps = self._segments[job.stage].process(_batch(whole), punctuations)
        self._at_work.end()
        body = self._partitioned(job.stage, taps, whole.punctuations)
        self._compare(job, body, self._tell_skipped(job.stage))
        self._tell_late(job.stage)
        reached = job.upto if job.ordered else max([job.upto, *_last_of(body)])
        self.enqueue(
            Consumed(stage=job.stage, cohort=job.cohort, upto=job.upto, rows=len(body), emitted_upto=reached, body=body)
        )

    def _tell_skipped(self, stage: int) -> Skips:
        """Report the rows that operators refused; return partition and number of each that was just now."""
        places: list[tuple[int, int]] = []
        for told, skipped in self._segments[stage].skipped():
            places += skipped
            if told:
                self.reports.send(told)
        return places

    def _tell_late(self, stage: int) -> None:
        """Report how many rows came too late, as far as that is news."""
        for number, step in enumerate(self._segments[stage]):
            if totals := step.take_late():
                place = {"step": step.step.name, "place": [stage, number]}
                self.reports.send({"kind": "late", **place, "totals": list(totals.items())})

    def _compare(self, job: Consume, body: LaneBody, skipped: Skips) -> None:
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
        pooler = self.node.machines[job.stage]
        assert isinstance(pooler, Pooler)
        for keeper in (self._digests[job.stage], self._inputs[job.stage]):
            keeper.forget(pooler.cons.consumed)

    def carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Install):
            self._digests[effect.stage].put(effect.partition, effect.body.digest, effect.body.beyond)
            self._installing.begin(effect, self._segments[effect.stage].hosted, self._tell_installed(effect))
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

        def report(took_s: float) -> None:
            self.reports.send({"kind": "installed", "version": version, "install_s": took_s})
            self._tell_skipped(effect.stage)  # Who had skipped rows may have died before it told.

        return report

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
        own = {edge: self._channels_of(partition, edge) for edge in self.plan.outputs(message.stage)}
        steps, digest = self._segments[message.stage].hosted, self._digests[message.stage].moving(partition)
        place = f"stage {message.stage}, partition {partition}, on {self.name}"
        whose = StateOwner(place, tuple(step.step.name for step in steps))
        values = partial(copy_values, message, partition, own, steps, digest)
        for step in steps:
            step.init_trans(partition)
        cut = self._snapshots[message.stage].take(values, whose, all(step.state_in_memory for step in steps))
        for step in steps:
            step.end_trans(partition)
        moved = {"version": message.version, "stage": message.stage, "partition": partition, "to": to}
        moved["cut_s"] = time.monotonic() - began
        self._nursery.start_soon(self._send_chunks, cut, link, moved, began)

    def _channels_of(self, partition: int, edge: int) -> ChannelMask:
        """All that `partition` sends on `edge`."""
        ends = self.plan.edges[edge]
        consumers = tuple(range(self.plan.partitions(ends.consumer)))
        block = Block(producers=(partition,), consumers=consumers)
        return ChannelMask((block,), self.plan.partitions(ends.producer), len(consumers))

    async def _send_chunks(self, cut: Snapshot, link: Link, moved: dict[str, Any], began: float) -> None:
        """Pass a copy on as the link has room for it; if its site has died meanwhile, nobody wants it."""
        try:
            version, size_bytes = moved["version"], 0
            while await link.bulk_room() and (chunk := await cut.read()) is not None:
                link.send({"kind": "chunk", "version": version}, pa.py_buffer(chunk), bulk=True)
                size_bytes += len(chunk)
            self.reports.send({"kind": "moved", **moved, "bytes": size_bytes, "send_s": time.monotonic() - began})
            link.send({"kind": "chunk", "version": version, "last": True}, bulk=True)
        except FluxError as error:
            self.fail(error)
        finally:
            cut.close()

    def take_chunk(self, link: Link, header: dict[str, Any], body: Any) -> None:
        version, is_last = header.get("version"), header.get("last", False)
        if type(version) is not int:
            raise frames.BadFrame(f"expected a chunk of a copy, got {frames.format_value(header)}")
        if self._standby(version, link.peer) is None:
            self._receiving.forget(link.peer, version)  # A later view does not want it any more.
            return
        try:
            arrival = self._receiving.take(link.peer, version, body)
        except frames.BadFrame as error:
            self._receiving.forget(link.peer, version)
            self._cannot_use(link, error)
            return
        if is_last:
            self._receiving.forget(link.peer, version)
            self._nursery.start_soon(self._read_state, link, arrival)

    def forget_chunks(self, peer: str) -> None:
        self._receiving.forget_all(peer)

    async def _read_state(self, link: Link, arrival: Arrival) -> None:
        """Read a copy that has come, beside the loop if it is large; the machine is told when that is done."""
        try:
            if arrival.size_bytes < _READ_AT_ONCE_BYTES:
                message = read_copy(arrival, self._edges, self._words)
            else:
                message = await trio.to_thread.run_sync(read_copy, arrival, self._edges, self._words)
            if message.sender != link.peer:
                raise frames.BadFrame(f"expected the state of a partition of {link.peer}, got {message!r:.200}")
        except frames.BadFrame as error:
            self._cannot_use(link, error)
            return
        except StateError as error:
            # It is the operator's doing, and would be so on any other site.
            self.fail(error)
            return
        if not link.closed:
            self.enqueue(message)

    def _cannot_use(self, link: Link, error: frames.BadFrame) -> None:
        """A copy cannot be read, and its chunks do not come again: another pair of sites must do it."""
        self.log(
            f"closed the connection to {link.peer}, which sent state that cannot be read: {error}", logging.WARNING
        )
        self.give_up(link)

    def _standby(self, version: Any, donor: str | None = None) -> Standby | None:
        """The copy `version` that is to be built; None if there is none in the view."""
        standby = self.node.view.standby if self.node.view is not None else ()
        return next((s for s in standby if s.version == version and donor in (None, s.donor)), None)

    def _partitioned(self, stage: int, taps: StepOutputs, punctuations: tuple[Punctuation, ...]) -> LaneBody:
        """The output as rows of the edges out of the stage, each to the partitions of its consumer."""
        edges = self.plan.outputs(stage)
        rows: dict[int, Rows] = {}
        for edge in edges:
            ends = self.plan.edges[edge]
            output = taps.get(ends.tap)
            if output is not None:
                partition = ends.route.partition(output.arrow, output.sn, output.sub)
                rows[edge] = Rows.of(output.arrow, output.sn, output.sub, output.partition, partition, punctuations)
        return make_body(edges, rows, punctuations)


def _pooler(name: str, stage: int, pool_rows: int) -> Pooler:
    # A full pool is worked on in two steps: who catches up with more than that lets others have their turn.
    return Pooler(name, stage, pool_rows, TRANSFER_POOLS_MAX * pool_rows, max(_STEP_MIN, pool_rows // 2))


def _span(job: Consume, rows: Rows) -> tuple[int, int]:
    """The numbers that are worked on; a stage that is not ordered may be given others than it comes past."""
    if job.ordered or rows.wide is None:
        return job.after, job.upto
    return min(job.after, int(rows.hidden(SN)[0]) - 1), max(job.upto, rows.last_sn)


def _last_of(body: LaneBody) -> list[int]:
    return [rows.last_sn for rows in rows_of_edges(body) if len(rows)]


def _batch(rows: Rows) -> Batch | None:
    if rows.wide is None:
        return None
    return Batch(rows.user, rows.hidden(SN), rows.hidden(SUB), rows.hidden(PARTITION))
