"""Peers: the connections of a process to the other nodes of its run, and what is heard over them.

There is one link to each other live node. A connection that breaks is made anew, and the link goes on where it was.
So it is with one on which something came that cannot be read: it is closed with a line in the log, and the peer sends
again what was not taken. What cannot be read again and again was not spoilt on the way: the link is given up, and as
with any two nodes that live and cannot reach each other, the controller decides which of them goes.

A process that reaches nobody any more, neither the controller nor any peer, cannot know whether the others go on
without it. It does no harm, because they refuse what it says, but it holds a port and memory: it ends when that has
lasted for `lease_s`.
"""

from __future__ import annotations

import logging
import socket
import sys
from typing import Any, NoReturn

import trio

from ..exchange.rows import Rows
from ..model.punctuation import Punctuation
from ..plan.plan import CONTROLLER
from ..protocols.messages import Data, Message, PeerMessage, State, View
from ..types.errors import AuthError, FluxError
from ..wire import frames
from ..wire.codec import from_plain
from ..wire.connections import keep_dialling, let_in
from ..wire.handshake import HandshakeRefused
from ..wire.link import Link, LinkClosed
from .config import ProcessConfig

CUT_PATIENCE_S = 2.0  # A connection that broke and was not made anew, and nobody is dead: the controller is told.

_INTRODUCTION_S = 30.0  # How long somebody who greets may be ahead of our view.
_PING_EVERY_S = 0.5
_SILENT_MAX_S = 3.0  # Longer than a busy operator keeps a process from its links.
_RETRY_S = 0.02
_DISTRUST_S = 1.0  # Who is not trusted now may be replaced by who is.
_UNREADABLE_MAX = 3  # As often a peer may send what cannot be read, without anything that can between.


class Peers:
    """The other nodes, as the process `name` knows them."""

    def __init__(self, config: ProcessConfig, name: str) -> None:
        self.config = config
        self.name = name
        self.links: dict[str, Link] = {}
        self.controller = Link(CONTROLLER)
        self._own = config.identity(name)
        self._view: View | None = None
        self._distrusted = ""
        self._viewed = trio.Event()  # Set, and made anew, with each view.
        self._given_up: set[Link] = set()  # What comes over them cannot be read.

    # What the process around them does.

    _nursery: trio.Nursery

    def enqueue(self, message: Message) -> None:
        """Put a message into the machine's inbox."""
        raise NotImplementedError

    def take_chunk(self, link: Link, header: dict[str, Any], body: Any) -> None:
        """A chunk of the state of a copy that is on its way here; `enqueue` the machine `State` when all is here."""
        raise frames.BadFrame(f"{self.name} holds no partitions and was sent state")

    def forget_chunks(self, peer: str) -> None:
        """What is missing of the states that `peer` was sending will not come."""

    def end_as_dead(self, why: str) -> NoReturn:
        """Others have taken this process for dead and go on without it: it can only end."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Tell the program why this run cannot go on."""
        raise NotImplementedError

    def log(self, text: str, level: int = logging.INFO) -> None:
        """One line for the program's log."""
        raise NotImplementedError

    # Connections that others make.

    def accepted(self, sock: socket.socket) -> None:
        """Somebody has connected."""
        self._nursery.start_soon(self._serve, sock)

    async def _serve(self, sock: socket.socket) -> None:
        guest = await let_in(sock, self._own, self._note, self._why_refused)
        if guest is None:
            return
        peer, sock = guest
        try:
            link = await self._linked(peer)
            if link in self._given_up:
                sock.close()  # It may dial as often as it likes; the controller hears from both.
                return
            await link.resume(sock)
        except frames.BadFrame as error:
            self.log(f"closed a connection from {peer}: {error}", logging.WARNING)
            sock.close()
        except (OSError, LinkClosed):
            pass  # It broke again, or its link was closed meanwhile: who dials tries again, if it is wanted.

    def _note(self, level: int, text: str) -> None:
        self.log(text, level)

    def _why_refused(self, peer: str) -> str | None:
        view = self._view
        is_dead = view is not None and (peer in view.dead or view.has_forgotten(peer))
        return "others have taken it for dead, and go on without it" if is_dead else None

    async def _linked(self, peer: str) -> Link:
        """The link to who has greeted; he may know of a view, and of us, before we know of him."""
        with trio.move_on_after(_INTRODUCTION_S):
            while peer not in self.links:
                await self._viewed.wait()
        if peer not in self.links:
            raise frames.BadFrame(f"{peer!r} is not in the view")
        return self.links[peer]

    # Links, and connections that this process makes.

    def link_to(self, peer: str) -> Link:
        """The link to a node; one that a later view says is dead has none, and what it is sent goes nowhere."""
        return self.links.get(peer) or _nowhere(peer)

    def link_up(self, view: View, addresses: dict[str, str]) -> None:
        """One connection to each other live node; of two, the one listed first in the view dials."""
        self._view = view
        for peer in [peer for peer in self.links if not view.alive(peer)]:
            self.links.pop(peer).close()
        mine = view.nodes.index(self.name)
        for index, peer in enumerate(view.nodes):
            if view.alive(peer) and index != mine and peer not in self.links:
                link = self.links[peer] = Link(peer)
                self._nursery.start_soon(link.write)
                # In a view that was missed there may be some that have died since, and have no address.
                dial = self._route(peer, addresses[peer]) if mine < index and peer in addresses else None
                self._nursery.start_soon(self._keep_peer, link, dial)
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
                self.log(f"closed the connection to {link.peer}: {error}. {again}", logging.WARNING)
                if unreadable == _UNREADABLE_MAX:
                    self.give_up(link)
        self._given_up.discard(link)
        self.forget_chunks(link.peer)

    def _take(self, link: Link, header: dict[str, Any], body: Any) -> None:
        if header["kind"] == "chunk":
            self.take_chunk(link, header, body)
        elif header["kind"] != "ping":
            try:
                self.enqueue(_decoded(link, header, body))
            except frames.BadValues as error:
                self.fail(FluxError(f"{self.name} cannot take rows of {self._maker(header)} from {link.peer}: {error}"))
                self.give_up(link)

    def _maker(self, header: dict[str, Any]) -> str:
        """Who made the rows of a message."""
        plan, message = self.config.plan, from_plain(header.get("m"), lambda _: ())
        if not isinstance(message, Data) or not 0 <= message.edge < len(plan.edges):
            raise frames.BadFrame(f"expected rows of an edge, got {message!r:.200}")
        edge = plan.edges[message.edge]
        return f"step {plan.segment(edge.producer).steps[edge.tap].name!r}" if edge.tap >= 0 else "a source"

    def give_up(self, link: Link) -> None:
        """What this peer sends cannot be read, and will not be: it is as if nothing came through."""
        self._given_up.add(link)
        link.drop()

    async def _dial(self, link: Link, where: str) -> None:
        while link.broken:
            try:
                await link.resume(await self.connect(where, link.peer))
            except (OSError, LinkClosed, frames.BadFrame):
                await trio.sleep(_RETRY_S)

    async def connect(self, where: str, peer: str) -> socket.socket:
        """A connection to `peer`, however long it takes. Who refuses us for a reason knows better than we do."""
        while True:
            try:
                return await keep_dialling(where, self._own, peer, self._note)
            except HandshakeRefused as refused:
                self.end_as_dead(str(refused))
            except (AuthError, frames.BadFrame) as error:
                if self._distrusted != str(error):
                    self._distrusted = str(error)
                    # The log is the program's, and it may be the program that is not trusted.
                    sys.stderr.write(f"flux: {self.name} does not talk to {peer} at {where}: {error}\n")
            await trio.sleep(_DISTRUST_S)

    # Those that cannot be reached.

    async def _report_if_cut(self, link: Link) -> None:
        """A connection breaks when a process dies. If both live, the controller decides which of them goes."""
        while True:
            await trio.sleep(CUT_PATIENCE_S)
            self.controller.send({"kind": "cut", "peer": link.peer})

    async def mind_links(self) -> None:
        """A connection may be dead and not say so: each end lets the other hear from it, and expects the same."""
        reached_at = trio.current_time()
        while True:
            slept_at = trio.current_time()
            await trio.sleep(_PING_EVERY_S)
            now = trio.current_time()
            # What has come while this process was kept from its links, by its operator or the machine, is not read yet.
            was_kept = now > slept_at + 2 * _PING_EVERY_S
            for link in self.links.values():
                link.send({"kind": "ping"})
                if link.silent_s > _SILENT_MAX_S and not was_kept:
                    self.log(f"nothing was heard from {link.peer} for {_SILENT_MAX_S:g} s; connecting anew")
                    link.drop()
            if was_kept or not self._is_cut_off():
                reached_at = now
            elif now - reached_at > self.config.lease_s:
                self.end_as_dead(
                    f"it has reached neither the controller nor any other process for {self.config.lease_s:g} s, "
                    "and the others may go on without it"
                )

    def _is_cut_off(self) -> bool:
        """Whether there is nobody to hear from; who has not been in a view yet waits for the controller."""
        alone = all(link.broken for link in self.links.values())
        return bool(self.links) and alone and not self.controller.stands


def _decoded(link: Link, header: dict[str, Any], body: Any) -> PeerMessage:
    punctuations = tuple(Punctuation(*mark) for mark in header.get("marks", ()))
    rows = Rows(link.decode_batch(header, body), punctuations)
    message = from_plain(header.get("m"), lambda _: (rows,))
    if not isinstance(message, PeerMessage) or isinstance(message, State) or message.sender != link.peer:
        raise frames.BadFrame(f"expected a message of {link.peer}, got {message!r:.200}")
    return message


def _nowhere(peer: str) -> Link:
    link = Link(peer)
    link.close()
    return link
