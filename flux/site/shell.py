"""Shell: the process around a node's machine: it carries messages in and effects out, and decides nothing.

One trio loop. Readers put messages into the inbox; the loop steps the machine for each and carries out its effects.
Work for the operator is done when the inbox is empty, so that what arrived meanwhile goes into the next, larger, batch.
What only a site, an ingress or an egress does is its role (`role`).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from collections import deque
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
import trio

from ..exchange.edge_bodies import LaneBody, cut_body, row_counts
from ..exchange.lane_frames import LaneFrames, message_frame
from ..exchange.merge import SchemaConflict
from ..exchange.stage_input import StageInput
from ..model.error_location import traceback_of, user_line
from ..plan.plan import CONTROLLER
from ..protocols.balance_messages import Work
from ..protocols.change_messages import Rehearse, Rehearsed
from ..protocols.inspection import buffered_rows, buffers, consumers, trim
from ..protocols.machine import Fenced, Refused
from ..protocols.messages import (
    Block,
    Connected,
    Consume,
    Data,
    Effect,
    Message,
    ReportRefused,
    RowCounts,
    Send,
    SendToController,
    State,
    Trim,
    View,
)
from ..protocols.node import Node
from ..system import process_control
from ..types.errors import FluxError, OperatorError, is_out_of_memory
from ..wire import address, frames
from ..wire.link import Link, accept_loop
from ..wire.membership import (
    Dismissed,
    ForMachine,
    FromMachine,
    NewView,
    NodeAddress,
    ViewReceived,
    WorkDone,
    membership_frame,
    read_from_controller,
)
from ..wire.reports import KillProcess, Load, LogLine, ProcessFailed, Report, StopProcess, read_command
from ..wire.transfer import StateChunk
from . import crash_points
from .config import ProcessConfig
from .heartbeat import Heartbeat
from .peers import Peers
from .recording import SUFFIX, Recorder
from .report_link import ReportLink
from .role import Role
from .spill import Spill
from .stuck_watch import StuckWatch
from .work_meter import WorkMeter

FENCED = 3  # The exit status of a process that was declared dead.
OUT_OF_MEMORY = 4
_ERROR_MAX_CHARS = 100_000
_TRACEBACK_MAX_CHARS = 20_000
_LOAD_INTERVAL_S = 0.5


class Shell:
    """A process with the machine `node`; `role` does what only this kind of process does."""

    nursery: trio.Nursery

    def __init__(self, config: ProcessConfig, node: Node, role: Role) -> None:
        self.config = config
        self.plan = config.plan
        self.name = node.name
        self.node = node
        self.role = role
        self.inbox: deque[Message] = deque()
        self.jobs: deque[Consume] = deque()
        self.reports = ReportLink()
        self.peers = Peers(config, node.name, self)
        self.meter = WorkMeter(config.plan)
        plan = config.plan
        self.lanes = LaneFrames(
            [(plan.partitions(edge.producer), plan.partitions(edge.consumer)) for edge in plan.edges]
        )
        self._edges = {stage: [edge.number for edge in plan.output_edges(stage)] for stage in (0, *plan.stages)}
        self._working = trio.CancelScope()
        self._wake = trio.Event()
        self.watch = StuckWatch(plan, plan.policy.stuck_after_s)
        self._recorder: Recorder | None = None
        self._crashes = crash_points.watch(self.name, self._flush)
        self._failed: ProcessFailed | None = None
        self._spill = Spill(config.directory, partial(self.log, level=logging.WARNING))

    # What roles use.

    def enqueue(self, message: Message) -> None:
        """Put a message into the machine's inbox."""
        self.inbox.append(message)
        self._wake.set()

    def report(self, report: Report) -> None:
        """Send a report to the driver."""
        self.reports.send_report(report)

    def report_rows(self, report: Report, rows: pa.RecordBatch | None) -> None:
        """Send a report with rows to the driver."""
        self.reports.send_report(report, rows)

    def log(self, text: str, level: int = logging.INFO) -> None:
        """Send a line for the driver's log."""
        self.report(LogLine(node=self.name, level=level, text=text))

    def fail(self, error: BaseException) -> None:
        """Report why this run cannot go on; the driver ends the run, and this process waits for that.

        One that only lacks memory ends instead, if the run can go on without it.
        """
        self._end_if_out_of_memory(error)
        self._failed = ProcessFailed(node=self.name, error=_document(error))
        self.report(self._failed)

    def count_rows(self, stage: int, body: LaneBody) -> RowCounts:
        """Count the rows of what a stage emitted, if not all of its consumers take the same ones (rule 37)."""
        view = self.node.view
        return row_counts(self._edges[stage], body) if view is not None and view.divides(stage) else ()

    def input_of(self, stage: int) -> StageInput:
        """Return the lanes into a stage of this process."""
        plan = self.plan
        return StageInput(plan.inputs(stage), plan.sides(stage), plan.unsettled(stage), self.lanes.mask)

    # The loop.

    async def run(self) -> None:
        """Live until the driver sends `StopProcess`."""
        listener = address.listen(self.config.address(self.name))
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            self.reports.connect(await self._find(self.reports.peer, self.config.leader))
            nursery.start_soon(self.reports.write)
            # Before the role opens operators or sinks: the loop waits for as long as that takes.
            Heartbeat(self.config.address(CONTROLLER), self.config.identity(self.name), self.watch).start()
            self.node = await self.role.prepare() or self.node
            if self.config.record is not None:
                self._recorder = Recorder(self.config.record / f"{self.name}{SUFFIX}", self.node)
            nursery.start_soon(self._read_driver)
            nursery.start_soon(self._keep_controller, address.bound(listener))
            nursery.start_soon(accept_loop, listener, self.peers.accepted)
            nursery.start_soon(self.peers.mind_links)
            nursery.start_soon(self._guarded_loop)
            nursery.start_soon(self._report_load)
            works = self.meter.is_balanced and self.role.reports_work
            send_work = self._send_work if works else None
            nursery.start_soon(self.meter.report_regularly, lambda: self.node, self._report_measures, send_work)

    async def _guarded_loop(self) -> None:
        with self._working:
            try:
                self.role.start(self.nursery)
                await self._loop()
            except SchemaConflict as error:
                self.fail(OperatorError(f"{error}. Declare `output` with the operator before the sink"))
            except Exception as error:
                self.fail(error)

    async def _loop(self) -> None:
        while not self._working.cancel_called:  # Its operators are closed then.
            while self.inbox:
                self._step(self.inbox.popleft())
            self._relieve()
            if self.jobs:
                job = self.jobs.popleft()
                if self.role.may_begin(job):
                    self._perform(job)
                else:
                    self.jobs.append(job)  # It has its turn again, after the others.
                # Twice, so that readers and writers woken by the first turn have run by the second.
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
            elif self.role.tidy():
                await trio.lowlevel.checkpoint()
            else:
                self._wake = trio.Event()
                self.meter.pool_waits.begin(self.node)
                await self._wake.wait()
                self.meter.pool_waits.end()

    def _relieve(self) -> None:
        for buffer in buffers(self.node):
            self._spill.relieve_buffer(buffer)
        for cons in consumers(self.node):
            self._spill.relieve_pending(cons, self.plan.pool_rows)

    def _perform(self, job: Consume) -> None:
        if self._crashes is not None:
            self._crashes.before(job)
        self.watch.begin(job)
        self.role.perform(job)
        self.watch.end()
        if self._crashes is not None:
            self._crashes.after(job)

    def _step(self, message: Message) -> None:
        if self._crashes is not None:
            self._crashes.step(message)
        try:
            effects = self.node.step(message)
        except Fenced:
            return  # A dead node had sent it. One that lives learns from the controller that it was declared dead.
        except Refused as refused:
            raise FluxError(str(refused)) from refused
        if self._recorder is not None:
            self._recorder.record(message, effects)
        if isinstance(message, View):
            self.lanes.cut_at(edition.position for edition in message.editions)
        for effect in effects if self._crashes is None else self._crashes.along(effects):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._send(effect)
        elif isinstance(effect, Consume):
            self.jobs.append(effect)
        elif isinstance(effect, Trim):
            trim(self.node, effect, partial(cut_body, self._edges[effect.stage]))
        elif isinstance(effect, ReportRefused):
            self.fail(FluxError(effect.text))
        elif isinstance(effect, SendToController):
            # If there is no controller now, the next one will ask.
            self.peers.controller.send(membership_frame(FromMachine(message=effect.message)))
        elif isinstance(effect, Rehearse):
            self.nursery.start_soon(self._rehearse, effect)
        else:
            self.role.carry_out(effect)

    async def _rehearse(self, asked: Rehearse) -> None:
        self.enqueue(Rehearsed(number=asked.number, problem=await self.role.rehearse(asked)))

    def _send(self, effect: Send) -> None:
        message = effect.message
        if isinstance(message, Data):
            self._send_rows(effect.to, message, effect.channels)
        elif isinstance(message, State):
            self.role.send_state(effect.to, message)
        elif effect.to == self.name:
            self.inbox.append(message)
        else:
            self.peers.link_to(effect.to).send(message_frame(message))

    def _send_rows(self, to: str, message: Data, channels: tuple[tuple[Block, ...], ...]) -> None:
        if to == self.name:
            self.inbox.extend(self.lanes.to_self(message, channels))
            return
        link = self.peers.link_to(to)
        first, *rest = self.lanes.to_peer(message, channels)
        link.send_batch(*first())
        for frame in rest:
            link.send_batch_later(frame)

    def _flush(self) -> None:
        for link in (self.reports, self.peers.controller, *self.peers.links.values()):
            link.flush()

    # What peers call.

    def take_chunk(self, link: Link, chunk: StateChunk, body: Any) -> None:
        self.role.take_chunk(link, chunk, body)

    def forget_chunks(self, peer: str) -> None:
        self.role.forget_chunks(peer)

    def end_as_dead(self, why: str) -> NoReturn:
        """End: the others have declared this process dead and go on without it."""
        sys.stderr.write(f"flux: {self.name} ends: {why}\n")
        leave(FENCED)

    def _end_if_out_of_memory(self, error: BaseException) -> None:
        """End for want of memory, if other sites hold all that this one has: they may have the memory it lacks.

        The crash note says at which rows. If another site ends there too, the rows are to blame, and the run ends.
        """
        view = self.node.view
        if not is_out_of_memory(error) or view is None or view.needs(self.name):
            return
        sys.stderr.write(f"flux: {self.name} ends for want of memory, and its partners go on: {error}\n")
        leave(OUT_OF_MEMORY)

    # The controller. Without one a node carries on.

    async def _keep_controller(self, here: str) -> None:
        """Stay connected to the controller, or to the next one that is started in its place."""
        while True:
            link = Link(CONTROLLER, await self._find(CONTROLLER, CONTROLLER))
            self.peers.controller = link
            link.send(membership_frame(NodeAddress(address=here)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.write)
                self.enqueue(Connected())
                try:
                    await self._read_controller(link)
                except frames.BadFrame as error:
                    # The next connection starts afresh. A controller that has declared this node dead then says so.
                    self.log(f"closed the connection to the controller: {error}", logging.WARNING)
                link.close()

    def _send_work(self, work: Work) -> None:
        self.peers.controller.send(membership_frame(WorkDone(work=work)))

    async def _find(self, process: str, name: str) -> socket.socket:
        return await self.peers.connect(self.config.address(process), name)

    async def _read_controller(self, link: Link) -> None:
        while (frame := await link.receive()) is not None:
            message = read_from_controller(frame[0])
            if isinstance(message, Dismissed):
                self.end_as_dead(message.why)
            if isinstance(message, ForMachine):
                self.enqueue(message.message)
                continue
            if not isinstance(message, NewView):
                link.send(membership_frame(self.role.answer(message)))
                continue
            self.peers.link_up(message.view, message.addresses)
            self.enqueue(message.view)
            # It is in the inbox before the next handshake: no controller will be asked for it again (rule 33).
            link.send(membership_frame(ViewReceived(number=message.view.number)))

    # The driver.

    async def _read_driver(self) -> None:
        while True:
            refused: frames.BadFrame | None = None
            try:
                await self._obey()
            except frames.BadFrame as error:
                refused = error
            if refused is None and not self.config.outlives_program:
                leave(0)
            await self._find_driver()
            if refused is not None:
                self.log(f"closed the last connection to the driver: {refused}", logging.WARNING)

    async def _obey(self) -> None:
        while (frame := await self.reports.receive()) is not None:
            command = read_command(frame[0])
            if isinstance(command, StopProcess):
                self._working.cancel()
                stopped = self.role.stop()
                self.meter.take(self.node)
                self._report_measures()
                self.report(stopped)
                await self.reports.drain()
                leave(command.status)
            if isinstance(command, KillProcess):
                process_control.kill_self()
            self.role.on_command(command)

    async def _find_driver(self) -> None:
        """Connect to the driver again, or to the next one; what must be reported meanwhile waits for it."""
        self.reports.close()
        self.reports = ReportLink(again=True)
        self.nursery.start_soon(self.reports.write)
        self.reports.connect(await self._find(self.reports.peer, self.config.leader))
        if self._failed is not None:
            self.report(self._failed)
        self.role.repeat_reports()
        self._report_measures()

    def _report_measures(self) -> None:
        self.report(self.meter.measures(self.node, self.role.key_counts))

    async def _report_load(self) -> None:
        """Report now and then how much is buffered here until consumers acknowledge it."""
        reported = 0
        while True:
            rows = buffered_rows(self.node)
            if rows != reported:
                self.report(Load(buffered_rows=rows))
                reported = rows
            await trio.sleep(_LOAD_INTERVAL_S)


def leave(code: int) -> NoReturn:
    """End this process at once: it is a fork, and nothing of its parent's may run on the way out."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # What an operator printed; all that was the parent's went out before the fork.
    process_control.exit_now(code)


def _document(error: BaseException) -> dict[str, Any]:
    """Return an error as plain values; the driver raises it again."""
    known = error if isinstance(error, FluxError) else _internal(error)
    known.traceback = traceback_of(error)[-_TRACEBACK_MAX_CHARS:]
    document = known.to_dict()
    # What user code says may be endless, and may not be UTF-8.
    for name, most in (("message", _ERROR_MAX_CHARS), ("traceback", _TRACEBACK_MAX_CHARS)):
        document[name] = document[name][:most].encode("utf-8", "replace").decode()
    return document


def _internal(error: BaseException) -> FluxError:
    line = user_line(error)
    where = "" if line is None else f" at {line}"
    return FluxError(
        f"{type(error).__name__}: {error}{where}. No error of a user should look like this: please report it, with "
        "what --traceback prints"
    )
