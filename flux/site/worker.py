"""Worker: the process of a site: it runs the operators of its poolers.

A `Consume` covers all partitions of a segment on this site: the frames of its lanes are merged into one batch, the
operators process it, and their output is partitioned for the next exchange; each is one vectorised step. A punctuation
splits the batch: rows before it, the punctuation, rows after it.
"""

from __future__ import annotations

import logging
import mmap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from ..exchange.edge_bodies import LaneBody, rows_of_edges
from ..exchange.rows import SN, Rows
from ..exchange.stage_output import route_output
from ..model.batch import Batch
from ..model.punctuation import Punctuation
from ..protocols.change_messages import Rehearse
from ..protocols.inspection import cohorts, consumed, oldest_cohort
from ..protocols.messages import Consume, Consumed, Drop, Effect, Install, State
from ..protocols.node import Node
from ..protocols.pooler import Pooler
from ..system import process_control
from ..wire.codec import Word
from ..wire.frames import BadFrame
from ..wire.link import Link
from ..wire.membership import (
    EmittedDigests,
    FinalDigests,
    FinalDigestsWanted,
    FromController,
    FromNode,
    RowTexts,
    RowTextsWanted,
    RowWords,
    RowWordsWanted,
    membership_frame,
)
from ..wire.reports import ProcessStopped, RowsLate, StateInstalled
from ..wire.transfer import StateChunk
from .config import ProcessConfig
from .crash_note import SUFFIX, CrashNote, Job, note_in
from .digests import Digests, Skips
from .emitted_rows import EmittedRows
from .role import Role
from .shell import Shell
from .site_changes import SiteChanges
from .spill import TRANSFER_POOLS_MAX
from .state_transfer.copy_transfer import CopyTransfer
from .state_transfer.partition_copy import CopyInstaller
from .state_transfer.state_check import StateCheck
from .step_length import StepLength
from .steps import Steps

_STEP_MIN = 4_096  # Positions that an operator may take in one step, however small the pools are.


class Worker(Role):
    """The process of site `name`. In `note` it notes what it works on; it has a file of its own unless given."""

    reports_work = True

    def __init__(self, config: ProcessConfig, name: str, note: mmap.mmap | None = None) -> None:
        plan = config.plan
        stages = plan.stages
        self.shell = Shell(config, Node(name, [_pooler(name, stage, plan.pool_rows) for stage in stages]), self)
        self._plan = plan
        self._segments: dict[int, Steps] = {}
        self._inputs = {stage: self.shell.input_of(stage) for stage in stages}
        self._outputs = {stage: plan.output_edges(stage) for stage in stages}
        self._lengths = {stage: StepLength(_step_most(plan.pool_rows)) for stage in stages}
        self._digests = {stage: Digests(plan.partitions(stage)) for stage in stages}
        paired = [stage for stage in stages if plan.segment(stage).copies > 1]
        self._emitted = {stage: EmittedRows(plan.segment(stage).ordered) for stage in paired}
        self._crash_note = CrashNote(note or note_in(config.directory / f"{name}{SUFFIX}"))
        self._late: dict[int, dict[int, dict[int, int]]] = {}  # Late rows by stage, step and partition.
        self._checks: dict[int, StateCheck] = {}
        self._waits_s: Callable[[], float] = lambda: 0.0  # For a processor, until now,
        self._waited_s = 0.0  # and until the present step began.
        self._installer = CopyInstaller()
        self._transfer = CopyTransfer(self.shell, self._segments, self._digests, lambda: self._changes.follow())
        self._changes = SiteChanges(self.shell, self._segments, self._transfer.may_fork, self._installed)

    async def run(self) -> None:
        """Live until the driver sends `StopProcess`."""
        await self.shell.run()

    def start(self, nursery: trio.Nursery) -> None:
        self._waits_s = process_control.watch_waits()
        placed = self._plan.view()
        for stage in self._plan.stages:
            held = [p for p, copies in enumerate(placed.copies[stage]) if self.shell.name in copies]
            self._segments[stage] = Steps(self._plan, stage)
            self._segments[stage].open(held, self.shell.watch.calling)
            if self.shell.meter.is_balanced:
                self._segments[stage].time_partitions()
            is_paired = self._plan.segment(stage).copies > 1
            if is_paired or (self._plan.policy.is_balanced and stage not in self._plan.pinned_stages):
                place_of = partial(self._transfer.place_of, stage)
                self._checks[stage] = StateCheck(stage, self._segments[stage].hosted, held, place_of)
                fail = self.shell.fail if is_paired else self._warn_of_moves
                nursery.start_soon(self._checks[stage].run, fail, partial(self._watched, stage))

    def _watched(self, stage: int) -> AbstractContextManager[None]:
        """Watch code of the user that reads or installs the state of a stage."""
        title = self._plan.segment(stage).title
        return self.shell.watch.calling(f"step {title}", f"stage {stage}, its state is read or installed")

    @contextmanager
    def _moving(self, stage: int) -> Iterator[None]:
        """Count the time until the block ends as that of state in transfer, and watch the user's code."""
        with self.shell.meter.moving(), self._watched(stage):
            yield

    def _warn_of_moves(self, error: BaseException) -> None:
        """Say of single copies that cannot be moved that the run would end if balance moved them."""
        hint = "If balance moves that partition, the run ends. To leave it where it is: exchange(..., balance=False)"
        self.shell.log(f"{error}. {hint}", logging.WARNING)

    def stop(self) -> ProcessStopped:
        for check in self._checks.values():
            check.stop()
        for steps in self._segments.values():
            for step in steps:
                try:
                    step.close()
                except Exception as error:
                    self.shell.log(f"closing {step.step.name}: {error}")
        return ProcessStopped()

    def answer(self, request: FromController) -> FromNode:
        match request:
            case FinalDigestsWanted():
                return FinalDigests(digests=tuple(self._final_digests()))
            case RowWordsWanted(stage=stage, partition=partition) if stage in self._emitted:
                after, words = self._emitted[stage].words(partition, request.after, request.upto)
                return RowWords(after=after, words=tuple(words))
            case RowTextsWanted(stage=stage, partition=partition) if stage in self._emitted:
                return RowTexts(texts=tuple(self._emitted[stage].texts(partition, request.numbers)))
            case _:
                raise BadFrame(f"expected a question about a stage with copies, got {request!r}")

    def _final_digests(self) -> list[EmittedDigests]:
        """Return the position of each cohort and its digests: at the end of a run all copies are at one position."""
        final = []
        for stage, cohort in cohorts(self.shell.node):
            held = tuple(sorted(cohort.partitions))
            digests = tuple(Word(self._digests[stage].get(p)) for p in held)
            final.append(EmittedDigests(stage=stage, position=cohort.consumed, partitions=held, digests=digests))
        return final

    def may_begin(self, job: Consume) -> bool:
        if not self._installer.has_pieces:
            return True
        began_s = time.monotonic()
        with self._watched(job.stage):
            if not self._installer.install_one(job):
                return True
        self.shell.meter.note_moving(time.monotonic() - began_s)
        return False

    async def rehearse(self, asked: Rehearse) -> str:
        return await self._changes.prepare(asked)

    def _installed(self, stage: int) -> list[int]:
        """Return the partitions of a stage whose states are here, whole."""
        held = [p for of, own in cohorts(self.shell.node) if of == stage for p in own.partitions]
        return sorted(p for p in held if self._installer.has_all(stage, p))

    def tidy(self) -> bool:
        return self._changes.change_some_state()

    def perform(self, job: Consume) -> None:
        began_s, self._waited_s = time.monotonic(), self._waits_s()
        whole = self._inputs[job.stage].merged(job)
        first, last = _span(job, whole)
        self._crash_note.begin(Job(stage=job.stage, after=first, upto=last, partitions=job.partitions))
        punctuations = [replace(each, partitions=job.partitions) for each in whole.punctuations]
        self._note_watermark(job, punctuations)
        rows = whole.batch
        self._changes.follow()
        self._segments[job.stage].begin(job.edition, job.partitions)
        outputs = self._segments[job.stage].process(rows, punctuations)
        self._crash_note.end()
        body = route_output(self._outputs[job.stage], outputs, whole.punctuations)
        self._compare(job, body, self._report_skipped(job.stage))
        self._report_late(job.stage)
        self._finish(job, rows, body, time.monotonic() - began_s)

    def _finish(self, job: Consume, rows: Batch | None, body: LaneBody, busy_s: float) -> None:
        """Count a step that took `busy_s`, and hand its output to the machine."""
        costs_s = self._segments[job.stage].take_costs()
        self.shell.meter.note_step(self.shell.node, job, rows, busy_s, costs_s)
        reached = job.upto if job.ordered else max([job.upto, *_last_of(body)])
        done = Consumed(
            stage=job.stage,
            cohort=job.cohort,
            upto=job.upto,
            rows=len(body),
            emitted_upto=reached,
            most=self._next_step(job, busy_s),
            counts=self.shell.count_rows(job.stage, body),
            body=body,
        )
        self.shell.enqueue(done)

    def _note_watermark(self, job: Consume, punctuations: Sequence[Punctuation]) -> None:
        """Note the last watermark that the oldest cohort has passed."""
        values = [each.value for each in punctuations if each.kind == "watermark" and each.value is not None]
        if values and job.cohort == oldest_cohort(self.shell.node, job.stage):
            self.shell.meter.watermarks[job.stage] = values[-1]

    def key_counts(self, stage: int) -> Mapping[int, int]:
        return self._segments[stage].key_counts() if stage in self._segments else {}

    def repeat_reports(self) -> None:
        """Report all totals of skipped and of late rows again: a driver that was started again may not have them."""
        for stage, steps in self._segments.items():
            for report in steps.skipped_totals():
                self.shell.report(report)
            for number, totals in self._late.get(stage, {}).items():
                self._send_late(stage, number, totals)

    def _next_step(self, job: Consume, busy_s: float) -> int:
        """Return the positions that the next step may take, after one that took `busy_s` (rule 36)."""
        is_oldest = job.cohort == oldest_cohort(self.shell.node, job.stage)
        waited_s = self._waits_s() - self._waited_s
        return self._lengths[job.stage].after_step(job.upto - job.after, busy_s, is_oldest, waited_s)

    def _report_skipped(self, stage: int) -> Skips:
        """Report the rows that operators refused; return partition and number of each of them."""
        places: list[tuple[int, int]] = []
        for report, skipped in self._segments[stage].skipped():
            places += skipped
            if report is not None:
                self.shell.report(report)
        return places

    def _report_late(self, stage: int) -> None:
        """Report late-row counts that changed."""
        for number, step in enumerate(self._segments[stage]):
            if totals := step.take_late():
                self._late.setdefault(stage, {}).setdefault(number, {}).update(totals)
                self._send_late(stage, number, totals)

    def _send_late(self, stage: int, number: int, totals: Mapping[int, int]) -> None:
        step = self._segments[stage].hosted[number].step.name
        self.shell.report(RowsLate(step=step, stage=stage, number=number, totals=tuple(totals.items())))

    def _compare(self, job: Consume, body: LaneBody, skipped: Skips) -> None:
        """Have what was emitted compared with what the other copies emit."""
        partitions = sorted(job.partitions)
        for position, sums in self._digests[job.stage].add(body, job.after, job.upto, skipped):
            digests = tuple(sums[partitions].tolist())
            emitted = EmittedDigests(stage=job.stage, position=position, partitions=tuple(partitions), digests=digests)
            self.shell.peers.controller.send(membership_frame(emitted))
        if job.stage in self._emitted:
            self._emitted[job.stage].keep(body, job.after, job.upto, job.partitions, skipped)
        upto = consumed(self.shell.node, job.stage)
        for keeper in (self._digests[job.stage], self._inputs[job.stage]):
            keeper.forget(upto)

    def carry_out(self, effect: Effect) -> None:
        if isinstance(effect, (Install, Drop)) and effect.stage in self._checks:
            self._checks[effect.stage].forget(effect.partition)
        if isinstance(effect, Install):
            self._changes.follow()
            self._segments[effect.stage].expect(effect.partition, effect.edition)
            self._digests[effect.stage].put(effect.partition, effect.body.digest, effect.body.beyond)
            self.shell.meter.put_row_total(effect.stage, effect.partition, effect.body.rows)
            if effect.stage in self._emitted:
                self._emitted[effect.stage].on_installed(effect.partition)
            with self._moving(effect.stage):
                self._installer.begin(effect, self._segments[effect.stage].hosted, self._on_installed(effect))
        elif isinstance(effect, Drop):
            with self._moving(effect.stage):
                self._installer.finish(effect.stage, effect.partition)
                for step in self._segments[effect.stage]:
                    step.drop_partition(effect.partition)
        else:
            super().carry_out(effect)

    def _on_installed(self, effect: Install) -> Callable[[float], None]:
        """Return what reports how long it took to install a copy."""
        view = self.shell.node.view
        assert view is not None
        place = (effect.stage, effect.partition, self.shell.name)
        [version] = [s.version for s in view.standby if (s.stage, s.partition, s.node) == place]

        def report(took_s: float) -> None:
            self.shell.report(StateInstalled(version=version, install_s=took_s))
            self._report_skipped(effect.stage)  # The copy that skipped rows may have died before it reported them.

        return report

    # State transfer.

    def send_state(self, to: str, message: State) -> None:
        standby = self._transfer.standby(message.version)
        with self._moving(message.stage):
            if standby is not None:
                self._installer.finish(message.stage, standby.partition)
            self._transfer.send(to, message)

    def take_chunk(self, link: Link, chunk: StateChunk, body: Any) -> None:
        with self.shell.meter.moving():
            self._transfer.take_chunk(link, chunk, body)

    def forget_chunks(self, peer: str) -> None:
        self._transfer.forget_chunks(peer)


def _pooler(name: str, stage: int, pool_rows: int) -> Pooler:
    return Pooler(name, stage, pool_rows, TRANSFER_POOLS_MAX * pool_rows, _step_most(pool_rows))


def _step_most(pool_rows: int) -> int:
    # A full pool is processed in two steps: a copy that catches up with more than that lets others have their turn.
    return max(_STEP_MIN, pool_rows // 2)


def _span(job: Consume, rows: Rows) -> tuple[int, int]:
    """Return the range of numbers that is processed; an unordered stage may be given others than it passes."""
    if job.ordered or rows.wide is None:
        return job.after, job.upto
    return min(job.after, int(rows.hidden(SN)[0]) - 1), max(job.upto, rows.last_sn)


def _last_of(body: LaneBody) -> list[int]:
    return [rows.last_sn for rows in rows_of_edges(body) if len(rows)]
