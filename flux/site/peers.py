"""Peers: the connections of a process to the other nodes of its run, and the messages on them.

There is one link to each other live node. A connection that breaks is made again, and the link resumes where it was.
The same happens when a frame cannot be read: the connection is closed with a line in the log, and the peer repeats
what was not acknowledged. A frame that cannot be read again and again was not damaged in transfer: the link is given
up. As with any two live nodes that cannot reach each other, the controller then decides which of them goes.

A process that reaches neither the controller nor any peer cannot know whether the others go on without it. It does no
harm, because they refuse its messages, but it holds a port and memory: it ends when that has lasted for `lease_s`.
"""

from __future__ import annotations

import logging
import socket
import sys
from typing import Any, NoReturn, Protocol

import trio

from ..exchange.lane_frames import read_message
from ..plan.plan import CONTROLLER
from ..protocols.messages import Data, Message, View
from ..types.errors import AuthError, FluxError
from ..wire import frames
from ..wire.codec import from_plain
from ..wire.connections import keep_dialling, let_in
from ..wire.handshake import HandshakeRefused
from ..wire.link import Link, LinkClosed
from ..wire.membership import PeerUnreachable, membership_frame
from ..wire.transfer import CHUNK_KIND, StateChunk, read_chunk
from .config import ProcessConfig

UNREACHABLE_AFTER_S = 2.0  # A connection that stayed broken so long, with both ends alive, is reported.

_INTRODUCTION_TIMEOUT_S = 30.0  # How long a peer may be ahead of our view.
_PING_INTERVAL_S = 0.5
_SILENCE_MAX_S = 3.0  # Longer than a busy operator keeps a process from its links.
_RETRY_S = 0.02
_DISTRUST_S = 1.0  # A process that fails the handshake may be replaced by one that does not.
_UNREADABLE_MAX = 3  # Unreadable frames in a row before the link is given up.
_PING = {"kind": "ping"}  # Keeps a silent connection alive; it has no content.


class PeerHandler(Protocol):
    """What the process around the peers does."""

    nursery: trio.Nursery

    def enqueue(self, message: Message) -> None:
        """Put a message into the machine's inbox."""

    def take_chunk(self, link: Link, chunk: StateChunk, body: Any) -> None:
        """Take a chunk of the state of a copy in transfer."""

    def forget_chunks(self, peer: str) -> None:
        """Drop what has arrived of transfers from `peer`."""

    def end_as_dead(self, why: str) -> NoReturn:
        """End: the others have declared this process dead."""

    def fail(self, error: BaseException) -> None:
        """Report why this run cannot go on."""

    def log(self, text: str, level: int = logging.INFO) -> None:
        """Send a line for the driver's log."""


class Peers:
    """The links of the process `name` to the other nodes and to the controller."""

    def __init__(self, config: ProcessConfig, name: str, handler: PeerHandler) -> None:
        self.config = config
        self.name = name
        self._handler = handler
        self.links: dict[str, Link] = {}
        self.controller = Link(CONTROLLER)
        self._own = config.identity(name)
        self._view: View | None = None
        self._distrusted = ""
        self._viewed = trio.Event()  # Set and replaced with each view.
        self._given_up: set[Link] = set()  # Their peers send what cannot be read.

    # Connections that others make.

    def accepted(self, sock: socket.socket) -> None:
        """Serve a connection that another process made."""
        self._handler.nursery.start_soon(self._serve, sock)

    async def _serve(self, sock: socket.socket) -> None:
        guest = await let_in(sock, self._own, self._note, self._why_refused)
        if guest is None:
            return
        peer, sock = guest
        try:
            link = await self._linked(peer)
            if link is None or link in self._given_up:
                sock.close()  # It may dial again: one that is dead is refused then, and of a link given up both report.
                return
            await link.resume(sock)
        except frames.BadFrame as error:
            self._handler.log(f"closed a connection from {peer}: {error}", logging.WARNING)
            sock.close()
        except (OSError, LinkClosed):
            pass  # It broke again, or its link was closed meanwhile: the end that dials tries again if it is needed.

    def _note(self, level: int, text: str) -> None:
        self._handler.log(text, level)

    def _why_refused(self, peer: str) -> str | None:
        view = self._view
        is_dead = view is not None and (peer in view.dead or view.has_forgotten(peer))
        return "the others have declared it dead, and go on without it" if is_dead else None

    async def _linked(self, peer: str) -> Link | None:
        """Return the link to a peer, which may know of a view, and of us, before we know of it; None if it is dead."""
        with trio.move_on_after(_INTRODUCTION_TIMEOUT_S):
            while peer not in self.links and self._why_refused(peer) is None:
                await self._viewed.wait()
        if peer not in self.links and self._why_refused(peer) is None:
            raise frames.BadFrame(f"{peer!r} is not in the view")
        return self.links.get(peer)

    # Links, and connections that this process makes.

    def link_to(self, peer: str) -> Link:
        """Return the link to a node. One that a later view declares dead has none: what is sent to it goes nowhere."""
        return self.links.get(peer) or _nowhere(peer)

    def link_up(self, view: View, addresses: dict[str, str]) -> None:
        """Keep one connection to each other live node; of two, the one listed first in the view dials."""
        self._view = view
        for peer in [peer for peer in self.links if not view.alive(peer)]:
            self.links.pop(peer).close()
        mine = view.nodes.index(self.name)
        for index, peer in enumerate(view.nodes):
            if view.alive(peer) and index != mine and peer not in self.links:
                link = self.links[peer] = Link(peer)
                self._handler.nursery.start_soon(link.write)
                # A view that was missed may list nodes that have died since, and have no address.
                dial = self._route(peer, addresses[peer]) if mine < index and peer in addresses else None
                self._handler.nursery.start_soon(self._keep_peer, link, dial)
        self._viewed.set()
        self._viewed = trio.Event()

    def _route(self, peer: str, where: str) -> str:
        route = self.config.route
        return where if route is None else route(self.name, peer, where)

    async def _keep_peer(self, link: Link, dial: str | None) -> None:
        """Read from a peer for as long as its link lives, over one connection after another; one end dials."""
        unreadable = 0
        while not link.closed:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report_if_cut, link)
                if dial is not None and link not in self._given_up:
                    nursery.start_soon(self._dial, link, dial)
                await link.resumed()
                nursery.cancel_scope.cancel()
            try:
                while (frame := await link.receive()) is not None:
                    self._take(link, *frame)
                    unreadable = 0
            except (frames.BadFrame, ValueError, TypeError) as error:
                unreadable += 1
                link.refuse()
                again = "It is to send that again" if unreadable < _UNREADABLE_MAX else "That was the last time"
                self._handler.log(f"closed the connection to {link.peer}: {error}. {again}", logging.WARNING)
                if unreadable == _UNREADABLE_MAX:
                    self.give_up(link)
        self._given_up.discard(link)
        self._handler.forget_chunks(link.peer)

    def _take(self, link: Link, header: dict[str, Any], body: Any) -> None:
        if header["kind"] == CHUNK_KIND:
            self._handler.take_chunk(link, read_chunk(header), body)
        elif header["kind"] != _PING["kind"]:
            try:
                self._handler.enqueue(read_message(link, header, body))
            except frames.BadValues as error:
                self._handler.fail(
                    FluxError(f"{self.name} cannot take rows of {self._maker(header)} from {link.peer}: {error}")
                )
                self.give_up(link)

    def _maker(self, header: dict[str, Any]) -> str:
        """Return what made the rows of a message."""
        plan, message = self.config.plan, from_plain(header.get("m"), lambda _: ())
        if not isinstance(message, Data) or not 0 <= message.edge < len(plan.edges):
            raise frames.BadFrame(f"expected rows of an edge, got {message!r:.200}")
        edge = plan.edges[message.edge]
        return f"step {plan.segment(edge.producer).steps[edge.tap].name!r}" if edge.tap >= 0 else "a source"

    def give_up(self, link: Link) -> None:
        """Read nothing more from a peer: what it sends cannot be read, and will not be."""
        self._given_up.add(link)
        link.drop()

    async def _dial(self, link: Link, where: str) -> None:
        while link.broken:
            try:
                await link.resume(await self.connect(where, link.peer))
            except (OSError, LinkClosed, frames.BadFrame):
                await trio.sleep(_RETRY_S)

    async def connect(self, where: str, peer: str) -> socket.socket:
        """Return a connection to `peer`, however long it takes; end if it refuses this process for a reason."""
        while True:
            try:
                return await keep_dialling(where, self._own, peer, self._note)
            except HandshakeRefused as refused:
                self._handler.end_as_dead(str(refused))
            except (AuthError, frames.BadFrame) as error:
                if self._distrusted != str(error):
                    self._distrusted = str(error)
                    # Log lines go to the driver, and it may be the driver that is not trusted.
                    sys.stderr.write(f"flux: {self.name} does not talk to {peer} at {where}: {error}\n")
            await trio.sleep(_DISTRUST_S)

    # Peers that cannot be reached.

    async def _report_if_cut(self, link: Link) -> None:
        """Report a connection that stays broken: if both ends live, the controller decides which of them goes."""
        while True:
            await trio.sleep(UNREACHABLE_AFTER_S)
            self.controller.send(membership_frame(PeerUnreachable(peer=link.peer)))

    async def mind_links(self) -> None:
        """Send pings, and expect some: a connection may be dead without an error."""
        reached_at = trio.current_time()
        while True:
            slept_at = trio.current_time()
            await trio.sleep(_PING_INTERVAL_S)
            now = trio.current_time()
            # What arrived while the operator or the machine kept this process from its links is not read yet.
            was_kept = now > slept_at + 2 * _PING_INTERVAL_S
            for link in self.links.values():
                link.send(_PING)
                if link.silent_s > _SILENCE_MAX_S and not was_kept:
                    self._handler.log(f"no frame from {link.peer} for {_SILENCE_MAX_S:g} s; connecting again")
                    link.drop()
            if was_kept or not self._is_cut_off():
                reached_at = now
            elif now - reached_at > self.config.lease_s:
                self._handler.end_as_dead(
                    f"it has reached neither the controller nor any other process for {self.config.lease_s:g} s, "
                    "and the others may go on without it"
                )

    def _is_cut_off(self) -> bool:
        """Return whether no other process is reached; one that was in no view yet waits for the controller."""
        alone = all(link.broken for link in self.links.values())
        return bool(self.links) and alone and not self.controller.stands


def _nowhere(peer: str) -> Link:
    link = Link(peer)
    link.close()
    return link
