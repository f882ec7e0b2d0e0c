"""Shell: the process around a node's machine: it carries messages in and effects out, and decides nothing.

One trio loop. Readers put messages into the inbox; the loop steps the machine for each and carries out
its effects. Work for the operator is done when the inbox is empty, so that what arrived meanwhile goes
into the next, larger, batch. What the machine asks of a particular process (an operator, a source, a
sink) is in its subclasses.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import traceback
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import trio

from ..exchange.channel_mask import ChannelMask
from ..exchange.lane_chunks import chunks
from ..exchange.merge import SchemaConflict, merge
from ..exchange.rows import Rows
from ..exchange.stage_input import StageInput
from ..plan.plan import CONTROLLER
from ..protocols.egress import Egress
from ..protocols.machine import Fenced, Refused
from ..protocols.messages import (
    Block,
    Connected,
    Consume,
    Data,
    Effect,
    Message,
    PeerMessage,
    ReportRefused,
    Send,
    SendToController,
    State,
    View,
)
from ..protocols.node import Node
from ..protocols.pooler import Pooler
from ..types.errors import FluxError, OperatorError
from ..wire import address, frames
from ..wire.codec import from_plain, to_plain
from ..wire.link import Link, accept_loop
from . import crash_points
from .config import ProcessConfig
from .heartbeat import Heartbeat
from .peers import Peers
from .recording import SUFFIX, Recorder
from .report_link import ReportLink
from .spill import Spill

FENCED = 3  # The exit status of a process that was taken for dead.
_ERROR_MAX_CHARS = 100_000
_LOAD_EVERY_S = 0.5
_TABLES_MAX = 256


class Shell(Peers):
    """A process with the machine `node`."""

    def __init__(self, config: ProcessConfig, node: Node) -> None:
        super().__init__(config, node.name)
        self.plan = config.plan
        self.node = node
        self.inbox: deque[Message] = deque()
        self.jobs: deque[Consume] = deque()
        self.reports = ReportLink()
        self._working = trio.CancelScope()
        self._wake = trio.Event()
        self._channels: dict[tuple[int, int], ChannelMask] = {}
        self._recorder: Recorder | None = None
        self._crashes = crash_points.watch(self.name, self._flush)
        self._failed: dict[str, Any] | None = None
        self._spilling = Spill(config.directory, partial(self.log, level=logging.WARNING))

    # What a particular process does.

    async def prepare(self) -> None:
        """Learn from the program what this process needs before its machine begins."""

    def start(self, nursery: trio.Nursery) -> None:
        """Start what else this process needs."""

    def may_begin(self, job: Consume) -> bool:
        """Whether nothing must be done before `job`; else some of that is done now."""
        return True

    def perform(self, job: Consume) -> None:
        """Do the work of a `Consume`; `enqueue` the machine when it is done. Abstract: an ingress has none to do."""
        raise NotImplementedError

    def carry_out(self, effect: Effect) -> None:
        """Carry out an effect that only this kind of process knows."""
        raise AssertionError(f"{self.name} cannot carry out {effect!r}")

    def hear_program(self, header: dict[str, Any]) -> None:
        """A message from the program that started the run."""

    def repeat_report(self) -> None:
        """The program was started again: tell what it must know and may have forgotten."""

    def last_words(self) -> dict[str, Any]:
        """What the program should still know when the run ends."""
        return {}

    # The loop.

    def enqueue(self, message: Message) -> None:
        self.inbox.append(message)
        self._wake.set()

    async def run(self) -> None:
        """Live until the program says stop."""
        listener = address.listen(self.config.address(self.name))
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.reports.connect(await self._find(self.reports.peer, self.config.leader))
            nursery.start_soon(self.reports.write)
            await self.prepare()
            if self.config.record is not None:
                self._recorder = Recorder(self.config.record / f"{self.name}{SUFFIX}", self.node)
            nursery.start_soon(self._read_program)
            nursery.start_soon(self._keep_controller, address.bound(listener))
            nursery.start_soon(accept_loop, listener, self.accepted)
            nursery.start_soon(self.mind_links)
            nursery.start_soon(self._guarded_loop)
            nursery.start_soon(self._tell_load)

    async def _guarded_loop(self) -> None:
        with self._working:
            try:
                self.start(self._nursery)
                await self._loop()
            except SchemaConflict as error:
                self.fail(OperatorError(f"{error}. Declare `output` with the operator before the sink"))
            except Exception as error:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Tell the program why this run cannot go on; it ends the run, this process waits for that."""
        self._failed = {"kind": "error", "node": self.name, "error": _document(error)}
        self.reports.send(self._failed)

    async def _loop(self) -> None:
        while not self._working.cancel_called:  # Its operators are closed then.
            while self.inbox:
                self._step(self.inbox.popleft())
            self._relieve()
            if self.jobs:
                job = self.jobs.popleft()
                if self.may_begin(job):
                    self._perform(job)
                else:
                    self.jobs.append(job)  # It has its turn again, and others before it.
                # Twice, so that readers and writers woken by the first turn have run by the second.
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
            else:
                self._wake = trio.Event()
                await self._wake.wait()

    def _relieve(self) -> None:
        for machine in self.node.machines.values():
            if not isinstance(machine, Egress):
                self._spilling.relieve(machine.prod.buffer)
            if isinstance(machine, Pooler):
                self._spilling.relieve_frames(machine.cons.pending.values(), self.plan.pool_rows)

    def _perform(self, job: Consume) -> None:
        if self._crashes is not None:
            self._crashes.before(job)
        self.perform(job)
        if self._crashes is not None:
            self._crashes.after(job)

    def _step(self, message: Message) -> None:
        if self._crashes is not None:
            self._crashes.step(message)
        try:
            effects = self.node.step(message)
        except Fenced:
            return  # What the dead had sent. One that lives learns it from the controller.
        except Refused as refused:
            raise FluxError(str(refused)) from refused
        if self._recorder is not None:
            self._recorder.record(message, effects)
        for effect in effects if self._crashes is None else self._crashes.along(effects):
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Consume):
                self.jobs.append(effect)
            elif isinstance(effect, ReportRefused):
                self.fail(FluxError(effect.text))
            elif isinstance(effect, SendToController):
                # If there is no controller now, the next one will ask.
                self.controller.send({"kind": "tell", "m": to_plain(effect.message, _left_out)})
            else:
                self.carry_out(effect)

    def _send(self, effect: Send) -> None:
        message: PeerMessage = effect.message
        if isinstance(message, Data):
            self._send_rows(effect.to, message, effect.channels)
        elif isinstance(message, State):
            self.send_state(effect.to, message)
        elif effect.to == self.name:
            self.inbox.append(message)
        else:
            self.link_to(effect.to).send({"kind": "peer", "m": to_plain(message, _left_out)})

    def _send_rows(self, to: str, message: Data, channels: tuple[tuple[Block, ...], ...]) -> None:
        message = replace(message, bodies=tuple([body.on(message.edge) for body in message.bodies]))
        first, *rest = chunks(message, channels)
        if to == self.name:
            for piece, blocks in (first, *rest):
                self.inbox.append(replace(piece, bodies=(self._rows_of(piece, blocks),)))
            return
        link = self.link_to(to)
        link.send_batch(*self._frame(*first))
        for piece, blocks in rest:
            link.send_batch_later(partial(self._frame, piece, blocks))

    def _rows_of(self, message: Data, channels: tuple[tuple[Block, ...], ...]) -> Rows:
        parts = [body.between(message.after, message.upto) for body in message.bodies]
        tables = [self.table(blocks, message.edge) for blocks in channels]
        return merge([part.select(table) for part, table in zip(parts, tables, strict=True)])

    def _frame(self, message: Data, channels: tuple[tuple[Block, ...], ...]) -> tuple[dict[str, Any], Any, Any]:
        rows = self._rows_of(message, channels)
        punctuations = [(mark.sn, mark.kind, mark.value) for mark in rows.punctuations]
        return {"kind": "peer", "m": to_plain(message, _left_out), "marks": punctuations}, rows.wide, rows.encode()

    def _flush(self) -> None:
        for link in (self.reports, self.controller, *self.links.values()):
            link.flush()

    def send_state(self, to: str, message: State) -> None:
        """Send a copy's state, as it is now, to the site that is to hold it."""
        raise AssertionError(f"{self.name} has no state to send")

    def input_of(self, stage: int) -> StageInput:
        """The lanes into a stage of this process."""
        plan = self.plan
        return StageInput(plan.inputs(stage), plan.sides(stage), plan.unsettled(stage), self.table)

    def table(self, channels: tuple[Block, ...], edge: int) -> ChannelMask:
        """The table of a lane's channels, made once: the machine hands out the same tuple each time."""
        known = self._channels.get((id(channels), edge))
        if known is None:
            if len(self._channels) >= _TABLES_MAX:
                self._channels.clear()  # Of lanes that are no more, for the most part.
            ends = self.plan.edges[edge]
            known = ChannelMask(channels, self.plan.partitions(ends.producer), self.plan.partitions(ends.consumer))
            self._channels[id(channels), edge] = known  # It keeps the tuple, so the id stays taken.
        return known

    # The controller. Without one a node carries on.

    async def _keep_controller(self, here: str) -> None:
        """Be connected to the controller, or to the next one that is started in its place."""
        Heartbeat(self.config.address(CONTROLLER), self._own).start()
        while True:
            link = Link(CONTROLLER, await self._find(CONTROLLER, CONTROLLER))
            self.controller = link
            link.send({"kind": "here", "address": here})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.write)
                self.enqueue(Connected())
                try:
                    await self._read_controller(link)
                except (frames.BadFrame, ValueError, TypeError, KeyError) as error:
                    # Another connection begins anew. A controller that takes us for dead meanwhile says so.
                    self.log(f"closed the connection to the controller: {error}", logging.WARNING)
                link.close()

    async def _find(self, who: str, name: str) -> socket.socket:
        return await self.connect(self.config.address(who), name)

    async def _read_controller(self, link: Link) -> None:
        while (frame := await link.receive()) is not None:
            header, _ = frame
            if header["kind"] == "fenced":
                self.end_as_dead(header["text"])
            view = from_plain(header["view"], lambda body: body)
            if not isinstance(view, View):
                raise frames.BadFrame(f"expected a view, got {view!r:.200}")
            self.link_up(view, header["addresses"])
            self.enqueue(view)
            # It is in the inbox before the next greeting: no controller will be asked for it again (rule 33).
            link.send({"kind": "seen", "number": view.number})

    def end_as_dead(self, why: str) -> NoReturn:
        sys.stderr.write(f"flux: {self.name} ends: {why}\n")
        leave(FENCED)

    async def _read_program(self) -> None:
        while True:
            while (frame := await self.reports.receive()) is not None:
                header, _ = frame
                if header["kind"] == "stop":
                    self._working.cancel()
                    self.reports.send({"kind": "bye", **self.last_words()})
                    await self.reports.drain()
                    leave(header.get("status", 0))
                if header["kind"] == "kill":  # It may be on another machine than whoever wants that.
                    os.kill(os.getpid(), signal.SIGKILL)
                self.hear_program(header)
            if not self.config.outlives_program:
                leave(0)
            await self._find_program()

    async def _find_program(self) -> None:
        """Connect to the program that is started in the place of the last; what must be said meanwhile waits for it."""
        self.reports.close()
        self.reports = ReportLink(again=True)
        self._nursery.start_soon(self.reports.write)
        self.reports.connect(await self._find(self.reports.peer, self.config.leader))
        if self._failed is not None:
            self.reports.send(self._failed)
        self.repeat_report()

    async def _tell_load(self) -> None:
        """Now and then, for those who watch the run: how much is kept here until others have it."""
        told = 0
        while True:
            machines = [machine for machine in self.node.machines.values() if not isinstance(machine, Egress)]
            rows = sum(machine.prod.buffer.rows for machine in machines)
            if rows != told:
                self.reports.send({"kind": "load", "buffered_rows": rows})
                told = rows
            await trio.sleep(_LOAD_EVERY_S)

    def log(self, text: str, level: int = logging.INFO) -> None:
        self.reports.send({"kind": "log", "node": self.name, "level": level, "text": text})


def leave(code: int) -> NoReturn:
    """End this process at once: it is a fork, and nothing of its parent's may run on the way out."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # What an operator printed; all that was the parent's went out before the fork.
    os._exit(code)


def _left_out(body: Any) -> None:
    """Bodies travel behind the header."""


def _document(error: BaseException) -> dict[str, Any]:
    """An error as plain values; the program raises it again."""
    known = error if isinstance(error, FluxError) else FluxError("".join(traceback.format_exception(error)))
    document = known.to_dict()
    # What user code says may be endless, and may hold what is no UTF-8.
    document["message"] = document["message"][:_ERROR_MAX_CHARS].encode("utf-8", "replace").decode()
    return document
