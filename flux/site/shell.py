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
import socket
import sys
import traceback
from collections import deque
from dataclasses import replace
from typing import Any, NoReturn

import trio

from ..errors import AuthError, FluxError
from ..plan.plan import CONTROLLER
from ..protocols.egress import Egress
from ..protocols.machine import Fenced
from ..protocols.messages import (
    Block,
    Complain,
    Connected,
    Consume,
    Data,
    Effect,
    Message,
    PeerMessage,
    Send,
    State,
    Tell,
    View,
)
from ..protocols.node import Node
from ..punctuation import Punctuation
from ..wire import address, frames
from ..wire.codec import from_plain, to_plain
from ..wire.connections import keep_dialling, let_in
from ..wire.greeting import Refused
from ..wire.link import Link, LinkClosed, accept_loop
from ..wire.rows import Channels, Rows, merge
from . import crash
from .heartbeat import Heartbeat
from .recording import SUFFIX, Recorder
from .surroundings import Surroundings, report_to_program

FENCED = 3  # The exit status of a process that was taken for dead.
CUT_PATIENCE_S = 2.0  # A connection that broke and was not made anew, and nobody is dead: the controller is told.

_INTRODUCTION_S = 30.0  # How long somebody who greets may be ahead of our view.
_PING_EVERY_S = 0.5
_SILENT_MAX_S = 3.0  # Longer than a busy operator keeps a process from its links.
_RETRY_S = 0.02
_DISTRUST_S = 1.0  # Who is not trusted now may be replaced by who is.
_ERROR_MAX_CHARS = 100_000
_LOAD_EVERY_S = 0.5


class Shell:
    """A process with the machine `node`."""

    def __init__(self, surroundings: Surroundings, node: Node) -> None:
        self.surroundings = surroundings
        self.plan = surroundings.plan
        self.name = node.name
        self.node = node
        self.links: dict[str, Link] = {}
        self.inbox: deque[Message] = deque()
        self.jobs: deque[Consume] = deque()
        self.program = report_to_program()
        self.controller = Link(CONTROLLER)
        self._own = surroundings.identity(self.name)
        self._dead: frozenset[str] = frozenset()
        self._distrusted = ""
        self._working = trio.CancelScope()
        self._wake = trio.Event()
        self._viewed = trio.Event()  # Set, and made anew, with each view.
        self._channels: dict[tuple[int, int], Channels] = {}
        self._recorder: Recorder | None = None
        self._crashes = crash.watch(self.name, self._flush)
        self._failed: dict[str, Any] | None = None

    # What a particular process does.

    async def prepare(self) -> None:
        """Learn from the program what this process needs before its machine begins."""

    def start(self, nursery: trio.Nursery) -> None:
        """Start what else this process needs."""

    def may_begin(self, job: Consume) -> bool:
        """Whether nothing must be done before `job`; else some of that is done now."""
        return True

    def perform(self, job: Consume) -> None:
        """Do the work of a `Consume`; `tell` the machine when it is done. Abstract: an ingress has none to do."""
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

    def tell(self, message: Message) -> None:
        """Put a message into the machine's inbox."""
        self.inbox.append(message)
        self._wake.set()

    async def run(self) -> None:
        """Live until the program says stop."""
        listener = address.listen(self.surroundings.address(self.name))
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.program.connect(await self._find(self.program.peer, self.surroundings.leader))
            nursery.start_soon(self.program.write)
            await self.prepare()
            if self.surroundings.record is not None:
                self._recorder = Recorder(self.surroundings.record / f"{self.name}{SUFFIX}", self.node)
            nursery.start_soon(self._read_program)
            nursery.start_soon(self._keep_controller, address.bound(listener))
            nursery.start_soon(accept_loop, listener, self._accepted)
            nursery.start_soon(self._mind_links)
            nursery.start_soon(self._guarded_loop)
            nursery.start_soon(self._tell_load)

    async def _guarded_loop(self) -> None:
        with self._working:
            try:
                self.start(self._nursery)
                await self._loop()
            except Exception as error:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Tell the program why this run cannot go on; it ends the run, this process waits for that."""
        self._failed = {"kind": "error", "node": self.name, "error": _document(error)}
        self.program.send(self._failed)

    async def _loop(self) -> None:
        while not self._working.cancel_called:  # Its operators are closed then.
            while self.inbox:
                self._step(self.inbox.popleft())
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
        if self._recorder is not None:
            self._recorder.record(message, effects)
        for effect in effects if self._crashes is None else self._crashes.along(effects):
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Consume):
                self.jobs.append(effect)
            elif isinstance(effect, Complain):
                self.fail(FluxError(effect.text))
            elif isinstance(effect, Tell):
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
        parts = [body.on(message.edge).between(message.after, message.upto) for body in message.bodies]
        tables = [self.table(blocks, message.edge) for blocks in channels]
        rows = merge([part.select(table) for part, table in zip(parts, tables, strict=True)])
        if to == self.name:
            self.inbox.append(replace(message, bodies=(rows,)))
            return
        header = {
            "kind": "peer",
            "m": to_plain(message, _left_out),
            "marks": [(mark.sn, mark.kind, mark.value) for mark in rows.marks],
        }
        self.link_to(to).send_batch(header, rows.wide, rows.encode())

    def _flush(self) -> None:
        for link in (self.program, self.controller, *self.links.values()):
            link.flush()

    def link_to(self, peer: str) -> Link:
        """The link to a node; one that a later view says is dead has none, and what it is sent goes nowhere."""
        return self.links.get(peer) or _nowhere(peer)

    def send_state(self, to: str, message: State) -> None:
        """Send a copy's state, as it is now, to the site that is to hold it."""
        raise AssertionError(f"{self.name} has no state to send")

    def table(self, channels: tuple[Block, ...], edge: int) -> Channels:
        """The table of a lane's channels, made once: the machine hands out the same tuple each time."""
        known = self._channels.get((id(channels), edge))
        if known is None:
            ends = self.plan.edges[edge]
            known = Channels(channels, self.plan.partitions(ends.producer), self.plan.partitions(ends.consumer))
            self._channels[id(channels), edge] = known  # It keeps the tuple, so the id stays taken.
        return known

    # Connections to other nodes.

    def _accepted(self, sock: socket.socket) -> None:
        self._nursery.start_soon(self._serve, sock)

    async def _serve(self, sock: socket.socket) -> None:
        guest = await let_in(sock, self._own, self._log, self._why_refused)
        if guest is None:
            return
        peer, sock = guest
        try:
            link = await self._linked(peer)
            await link.resume(sock)
        except frames.BadFrame as error:
            self._log(logging.WARNING, f"closed a connection from {peer}: {error}")
            sock.close()
        except (OSError, LinkClosed):
            pass  # It broke again, or its link was closed meanwhile: who dials tries again, if it is wanted.

    def _why_refused(self, peer: str) -> str | None:
        return "others have taken it for dead, and go on without it" if peer in self._dead else None

    async def _linked(self, peer: str) -> Link:
        """The link to who has greeted; he may know of a view, and of us, before we know of him."""
        with trio.move_on_after(_INTRODUCTION_S):
            while peer not in self.links:
                await self._viewed.wait()
        if peer not in self.links:
            raise frames.BadFrame(f"{peer!r} is not in the view")
        return self.links[peer]

    async def _keep_peer(self, link: Link, dial: str | None) -> None:
        """Read from a peer for as long as its link lives, over one connection after another; one end dials."""
        while not link.closed:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report_if_cut, link)
                if dial is not None:
                    nursery.start_soon(self._dial, link, dial)
                await link.resumed()
                nursery.cancel_scope.cancel()
            try:
                while (frame := await link.receive()) is not None:
                    header, body = frame
                    if header["kind"] == "chunk":
                        self.take_chunk(link, header, body)
                    elif header["kind"] != "ping":
                        self.tell(self._decode(link, header, body))
            except (frames.BadFrame, ValueError, TypeError) as error:
                self.fail(FluxError(f"{self.name} cannot read what {link.peer} sent: {error}"))
                link.close()
        self.forget_chunks(link.peer)

    async def _dial(self, link: Link, where: str) -> None:
        while link.broken:
            try:
                await link.resume(await self._connect(where, link.peer))
            except (OSError, LinkClosed, frames.BadFrame):
                await trio.sleep(_RETRY_S)

    async def _connect(self, where: str, peer: str) -> socket.socket:
        """A connection to `peer`, however long it takes. Who refuses us for a reason knows better than we do."""
        while True:
            try:
                return await keep_dialling(where, self._own, peer, self._log)
            except Refused as refused:
                self._end_as_dead(str(refused))
            except (AuthError, frames.BadFrame) as error:
                if self._distrusted != str(error):
                    self._distrusted = str(error)
                    # The log is the program's, and it may be the program that is not trusted.
                    sys.stderr.write(f"flux: {self.name} does not talk to {peer} at {where}: {error}\n")
            await trio.sleep(_DISTRUST_S)

    async def _report_if_cut(self, link: Link) -> None:
        """A connection breaks when a process dies. If both live, the controller decides which of them goes."""
        while True:
            await trio.sleep(CUT_PATIENCE_S)
            self.controller.send({"kind": "cut", "peer": link.peer})

    async def _mind_links(self) -> None:
        """A connection may be dead and not say so: each end lets the other hear from it, and expects the same."""
        while True:
            slept_at = trio.current_time()
            await trio.sleep(_PING_EVERY_S)
            # What has come while this process was kept from its links, by its operator or the machine, is not read yet.
            was_kept = trio.current_time() > slept_at + 2 * _PING_EVERY_S
            for link in self.links.values():
                link.send({"kind": "ping"})
                if link.silent_s > _SILENT_MAX_S and not was_kept:
                    self.log(f"nothing was heard from {link.peer} for {_SILENT_MAX_S:g} s; connecting anew")
                    link.drop()

    def _link_up(self, view: View, addresses: dict[str, str]) -> None:
        """One connection to each other live node; of two, the one listed first in the view dials."""
        self._dead = view.dead
        mine = view.nodes.index(self.name)
        for index, peer in enumerate(view.nodes):
            if peer in view.dead:
                if peer in self.links:
                    self.links.pop(peer).close()
            elif index != mine and peer not in self.links:
                link = self.links[peer] = Link(peer)
                self._nursery.start_soon(link.write)
                # In a view that was missed there may be some that have died since, and have no address.
                dial = self._route(peer, addresses[peer]) if mine < index and peer in addresses else None
                self._nursery.start_soon(self._keep_peer, link, dial)

    def _route(self, peer: str, where: str) -> str:
        route = self.surroundings.route
        return where if route is None else route(self.name, peer, where)

    def _decode(self, link: Link, header: dict[str, Any], body: Any) -> PeerMessage:
        marks = tuple(Punctuation(*mark) for mark in header.get("marks", ()))
        rows = Rows(link.decode_batch(header, body), marks)
        message = from_plain(header.get("m"), lambda _: (rows,))
        if not isinstance(message, PeerMessage) or isinstance(message, State) or message.sender != link.peer:
            raise frames.BadFrame(f"expected a message of {link.peer}, got {message!r:.200}")
        return message

    def take_chunk(self, link: Link, header: dict[str, Any], body: Any) -> None:
        """A chunk of the state of a copy that is on its way here; `tell` the machine `State` when all is here."""
        raise frames.BadFrame(f"{self.name} holds no partitions and was sent state")

    def forget_chunks(self, peer: str) -> None:
        """What is missing of the states that `peer` was sending will not come."""

    # The controller. Without one a node carries on.

    async def _keep_controller(self, here: str) -> None:
        """Be connected to the controller, or to the next one that is started in its place."""
        Heartbeat(self.surroundings.address(CONTROLLER), self._own).start()
        while True:
            link = Link(CONTROLLER, await self._find(CONTROLLER, CONTROLLER))
            self.controller = link
            link.send({"kind": "here", "address": here})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.write)
                self.tell(Connected())
                try:
                    await self._read_controller(link)
                except (frames.BadFrame, ValueError, TypeError, KeyError) as error:
                    self.fail(FluxError(f"{self.name} cannot read what the controller sent: {error}"))
                link.close()

    async def _find(self, who: str, name: str) -> socket.socket:
        return await self._connect(self.surroundings.address(who), name)

    async def _read_controller(self, link: Link) -> None:
        while (frame := await link.receive()) is not None:
            header, _ = frame
            if header["kind"] == "fenced":
                self._end_as_dead(header["text"])
            view = from_plain(header["view"], lambda body: body)
            if not isinstance(view, View):
                raise frames.BadFrame(f"expected a view, got {view!r:.200}")
            self._link_up(view, header["addresses"])
            self.tell(view)
            self._viewed.set()
            self._viewed = trio.Event()

    def _end_as_dead(self, why: str) -> NoReturn:
        """Others have taken this process for dead and go on without it: it can only end."""
        sys.stderr.write(f"flux: {self.name} ends: {why}\n")
        leave(FENCED)

    async def _read_program(self) -> None:
        while True:
            while (frame := await self.program.receive()) is not None:
                header, _ = frame
                if header["kind"] == "stop":
                    self._working.cancel()
                    self.program.send({"kind": "bye", **self.last_words()})
                    await self.program.drain()
                    leave(header.get("status", 0))
                self.hear_program(header)
            if not self.surroundings.outlives_program:
                leave(0)
            await self._find_program()

    async def _find_program(self) -> None:
        """Connect to the program that is started in the place of the last; what is said meanwhile waits for it."""
        self.program.close()
        self.program = report_to_program()
        self._nursery.start_soon(self.program.write)
        self.program.connect(await self._find(self.program.peer, self.surroundings.leader))
        if self._failed is not None:
            self.program.send(self._failed)
        self.repeat_report()

    async def _tell_load(self) -> None:
        """Now and then, for those who watch the run: how much is kept here until others have it."""
        told = 0
        while True:
            machines = [machine for machine in self.node.machines.values() if not isinstance(machine, Egress)]
            rows = sum(machine.prod.buffer.rows for machine in machines)
            if rows != told:
                self.program.send({"kind": "load", "buffered_rows": rows})
                told = rows
            await trio.sleep(_LOAD_EVERY_S)

    def log(self, text: str) -> None:
        """One line for the program's log."""
        self._log(logging.INFO, text)

    def _log(self, level: int, text: str) -> None:
        self.program.send({"kind": "log", "node": self.name, "level": level, "text": text})


def leave(code: int) -> NoReturn:
    """End this process at once: it is a fork, and nothing of its parent's may run on the way out."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # What an operator printed; all that was the parent's went out before the fork.
    os._exit(code)


def _nowhere(peer: str) -> Link:
    link = Link(peer)
    link.close()
    return link


def _left_out(body: Any) -> None:
    """Bodies travel behind the header."""


def _document(error: BaseException) -> dict[str, Any]:
    """An error as plain values; the program raises it again."""
    known = error if isinstance(error, FluxError) else FluxError("".join(traceback.format_exception(error)))
    document = known.to_dict()
    # What user code says may be endless, and may hold what is no UTF-8.
    document["message"] = document["message"][:_ERROR_MAX_CHARS].encode("utf-8", "replace").decode()
    return document
