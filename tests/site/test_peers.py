"""Connections that are dead and do not say so are given up; a process that reaches nobody any more ends."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import trio
import trio.testing

from flux.protocols.messages import View
from flux.site.peers import Peers
from flux.wire.connections import Identity
from flux.wire.handshake import dial_handshake


class SilentLink:
    """A link on which nothing has come for a long time."""

    peer = "site-2"
    silent_s = 60.0
    broken = False

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.dropped = False

    def send(self, header: dict[str, Any]) -> None:
        self.sent.append(header)

    def drop(self) -> None:
        self.dropped = True


def minded(late_s: float) -> SilentLink:
    """The link when a process has looked after it once, so many seconds later than it wanted to."""
    link, clock = SilentLink(), trio.testing.MockClock()
    handler = SimpleNamespace(log=lambda text: None)
    peers = SimpleNamespace(links={link.peer: link}, _handler=handler, _is_cut_off=lambda: False)

    async def mind() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Peers.mind_links, peers)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(0.5 + late_s)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(mind, clock=clock)
    return link


def test_a_silent_connection_is_given_up() -> None:
    link = minded(late_s=0.0)
    assert link.sent == [{"kind": "ping"}]
    assert link.dropped


def test_a_process_that_was_kept_from_its_links_reads_them_first() -> None:
    link = minded(late_s=10.0)
    assert link.sent == [{"kind": "ping"}], "others must hear from it"
    assert not link.dropped


class Ended(Exception):
    """A process has ended."""


def alone_after(lease_s: float, kept_s: float = 0.0, peer: bool = False, controller: bool = False) -> float | None:
    """When a process with such connections ends, looked after for a minute; None if it goes on."""
    link, clock = SilentLink(), trio.testing.MockClock()
    link.silent_s, link.broken = 0.0, not peer
    peers = Peers.__new__(Peers)
    peers.links = {link.peer: link}  # type: ignore[dict-item]
    peers.controller = SimpleNamespace(stands=controller)  # type: ignore[assignment]
    peers.config = SimpleNamespace(lease_s=lease_s)  # type: ignore[assignment]

    def end(why: str) -> NoReturn:
        raise Ended(why)

    peers._handler = SimpleNamespace(end_as_dead=end)  # type: ignore[assignment]

    async def mind() -> float | None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stepping, clock, kept_s)
            try:
                with trio.move_on_after(60):
                    await peers.mind_links()
            except Ended:
                return trio.current_time()
            finally:
                nursery.cancel_scope.cancel()
        return None

    return trio.run(mind, clock=clock)


async def stepping(clock: trio.testing.MockClock, kept_s: float) -> None:
    """Time goes on in small steps, but for once when the process is kept from everything."""
    began = trio.current_time()
    while True:
        await trio.testing.wait_all_tasks_blocked()
        if kept_s and trio.current_time() > began + 5:
            clock.jump(kept_s)
            kept_s = 0
        clock.jump(0.25)


def test_a_process_that_reaches_nobody_ends_when_its_lease_is_over() -> None:
    ended = alone_after(lease_s=20)
    assert ended is not None and 20 < ended < 21.5


@pytest.mark.parametrize("reached", ["peer", "controller"])
def test_a_process_that_reaches_anybody_goes_on(reached: str) -> None:
    assert alone_after(lease_s=20, **{reached: True}) is None


def test_a_process_that_was_stopped_looks_around_before_it_ends() -> None:
    ended = alone_after(lease_s=20, kept_s=30)
    assert ended is not None and ended > 5 + 30 + 20


def test_a_process_that_has_not_been_in_a_view_waits_for_one() -> None:
    peers = Peers.__new__(Peers)
    peers.links, peers.controller = {}, SimpleNamespace(stands=False)  # type: ignore[assignment]
    assert not peers._is_cut_off()


# Who is dead is told so when it connects.


def refusal(peer: str) -> str | None:
    view = View(
        number=9,
        nodes=("ingress", "site-3", "site-5", "egress"),
        dead=frozenset({"site-5"}),
        copies=((("ingress",),), (("site-3",),), (("egress",),)),
        forgotten=4,
    )
    return Peers._why_refused(SimpleNamespace(_view=view), peer)


@pytest.mark.parametrize("peer", ["site-5", "site-4", "site-1"], ids=["dead", "forgotten", "long forgotten"])
def test_the_dead_are_told_so_also_when_no_view_lists_them_any_more(peer: str) -> None:
    assert "declared it dead" in str(refusal(peer))


@pytest.mark.parametrize("peer", ["site-3", "site-6", "egress", "egress.2"])
def test_members_and_those_who_may_become_one_are_let_in(peer: str) -> None:
    assert refusal(peer) is None


def test_before_the_first_view_everybody_is_let_in() -> None:
    assert Peers._why_refused(SimpleNamespace(_view=None), "site-1") is None


# Who connects before this process knows of it.

NODES = ("site-1", "site-2", "site-3")


def known_by(number: int, dead: frozenset[str] = frozenset()) -> View:
    return View(number=number, nodes=NODES, dead=dead, copies=())


def peers_of_site_2(nursery: trio.Nursery) -> Peers:
    """The peers of a site that has got no view yet."""

    def identity(name: str) -> Identity:
        return Identity(name=name, run="run", secret=b"secret of the run")

    def ignored(*_: Any) -> None:
        return None

    config = SimpleNamespace(identity=identity, route=None)
    handler = SimpleNamespace(nursery=nursery, log=ignored, forget_chunks=ignored)
    return Peers(config, "site-2", handler)  # type: ignore[arg-type]


async def first_byte_or_end(sock: socket.socket, peers: Peers, *views: View) -> bytes:
    """What site-1 finds on its connection when site-2 has got these views, one right after another."""
    sock.setblocking(False)
    await dial_handshake(sock, name="site-1", secret=b"secret of the run", run="run")
    await trio.testing.wait_all_tasks_blocked()
    for view in views:
        peers.link_up(view, {})
    with trio.fail_after(1):
        await trio.lowlevel.wait_readable(sock)
    return sock.recv(1)


def found_by_one_that_came_early(*views: View) -> bytes:
    async def connect() -> bytes:
        here, there = socket.socketpair()
        here.setblocking(False)
        async with trio.open_nursery() as nursery:
            peers = peers_of_site_2(nursery)
            peers.accepted(here)
            with there:
                found = await first_byte_or_end(there, peers, *views)
            nursery.cancel_scope.cancel()
        return found

    return trio.run(connect)


def test_a_peer_that_connects_before_the_view_that_has_it_is_linked_when_that_comes() -> None:
    assert found_by_one_that_came_early(known_by(1)), "the link begins"


@pytest.mark.parametrize("first", [(known_by(1),), ()], ids=["in a view that was late", "in no view"])
def test_the_connection_of_a_peer_that_is_dead_before_this_process_knows_of_it_is_closed(
    first: tuple[View, ...],
) -> None:
    assert found_by_one_that_came_early(*first, known_by(2, dead=frozenset({"site-1"}))) == b""
