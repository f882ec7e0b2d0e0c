"""Two processes that keep a link up, each in the way that `connections` describes."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from flux import AuthError
from flux.wire import address, frames
from flux.wire.connections import Identity, dial, keep_dialling, let_in
from flux.wire.handshake import HandshakeRefused
from flux.wire.link import Link, LinkClosed, accept_loop
from flux.wire.strangers import LINES_MAX, LINES_PERIOD_S, STRANGERS_MAX

SITE = Identity(name="site-1", run="dmz", secret=b"0123456789abcdef0123456789abcdef")
CONTROLLER = replace(SITE, name="controller")
PATIENCE_S = 60.0


class Process:
    """The end that lets in: it has a link to one peer, and counts what comes."""

    def __init__(self, own: Identity, peer: str) -> None:
        self.own = own
        self.link = Link(peer)
        self.dead: set[str] = set()
        self.connections: list[socket.socket] = []
        self.seen: list[int] = []
        self.logged: list[str] = []
        self.listener = address.listen("tcp:127.0.0.1:0")
        self.where = address.bound(self.listener)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.link.write)
            nursery.start_soon(self._read)
            with self.listener:
                await accept_loop(self.listener, lambda sock: nursery.start_soon(self._serve, sock))

    async def _serve(self, sock: socket.socket) -> None:
        let = await let_in(sock, self.own, self.log, self._why_refused)
        if let is None:
            return
        peer, sock = let
        if peer != self.link.peer:
            sock.close()
            return
        try:
            await self.link.resume(sock)
            self.connections.append(sock)
        except (OSError, frames.BadFrame, LinkClosed) as error:
            self.logged.append(str(error))

    def log(self, level: int, text: str) -> None:
        self.logged.append(text)

    def _why_refused(self, name: str) -> str | None:
        return "declared dead in view 7" if name in self.dead else None

    async def _read(self) -> None:
        while await self.link.resumed():
            while (frame := await self.link.receive()) is not None:
                self.seen.append(frame[0]["number"])
                self.link.send({"kind": "echo", "number": frame[0]["number"]})


async def dialling(link: Link, where: str, own: Identity, seen: list[int], logged: list[str]) -> None:
    while not link.closed:
        try:
            await link.resume(await keep_dialling(where, own, link.peer, lambda _, text: logged.append(text)))
        except OSError:
            continue
        while (frame := await link.receive()) is not None:
            seen.append(frame[0]["number"])


def test_a_link_is_kept_up_however_often_it_is_cut() -> None:
    cuts, between = 8, 40

    async def story() -> None:
        there = Process(CONTROLLER, "site-1")
        here, echoed, logged = Link("controller"), [], []  # type: ignore[var-annotated]
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(there.run)
                nursery.start_soon(here.write)
                nursery.start_soon(dialling, here, there.where, SITE, echoed, logged)
                for cut in range(cuts):
                    for number in range(between):
                        here.send({"kind": "test", "number": cut * between + number})
                    while len(there.connections) <= cut or len(there.seen) <= cut * between:
                        await trio.sleep(0.001)
                    there.connections[cut].shutdown(socket.SHUT_RDWR)
                while len(echoed) < cuts * between:
                    await trio.sleep(0.001)
                nursery.cancel_scope.cancel()
        here.close()
        there.link.close()
        assert there.seen == echoed == list(range(cuts * between))
        assert len(there.connections) >= cuts

    trio.run(story)


def test_one_that_is_not_there_yet_is_waited_for() -> None:
    async def story() -> None:
        with address.listen("tcp:127.0.0.1:0") as taken:
            where = address.bound(taken)
        logged: list[str] = []
        got: list[socket.socket] = []

        async def wait_for_it() -> None:
            got.append(await keep_dialling(where, SITE, "controller", lambda _, text: logged.append(text)))

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_it)
                while not logged:
                    await trio.sleep(0.001)
                with address.listen(where) as listener:
                    await trio.lowlevel.wait_readable(listener)
                    sock, _ = listener.accept()
                    sock.setblocking(False)
                    let = await let_in(sock, CONTROLLER, lambda _, text: logged.append(text))
        assert let is not None and let[0] == "site-1"
        [line] = logged
        assert line.startswith(f"no connection to controller at {where}: ")
        for end in (sock, *got):
            end.close()

    trio.run(story)


def test_looking_up_a_name_does_not_keep_the_loop_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on, look_up = threading.Event(), threading.Event(), socket.getaddrinfo

    def slow(host: Any, port: Any, *details: int) -> Any:
        if details[-1] & socket.AI_NUMERICHOST:
            return look_up(host, port, *details)  # Which looks nothing up.
        asked.set()
        assert go_on.wait(PATIENCE_S), "whoever could let it go on is kept waiting"
        return look_up("127.0.0.1", port, *details)

    async def story() -> None:
        with trio.fail_after(PATIENCE_S), address.listen("tcp:127.0.0.1:0") as listener:
            monkeypatch.setattr("socket.getaddrinfo", slow)
            port = address.bound(listener).rpartition(":")[2]

            async def connect() -> None:
                (await address.connect(f"tcp:controller.example:{port}")).close()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(connect)
                while not asked.is_set():
                    await trio.sleep(0.001)
                go_on.set()

    trio.run(story)


@pytest.mark.parametrize(
    ("own", "error"),
    [(replace(SITE, secret=b"guessed"), AuthError), (SITE, HandshakeRefused)],
    ids=["stranger", "dead"],
)
def test_who_is_not_wanted_does_not_try_again_and_harms_no_link(own: Identity, error: type[Exception]) -> None:
    async def story() -> None:
        there = Process(CONTROLLER, "site-2")
        there.dead.add("site-1")
        here = Link("controller")
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(there.run)
                nursery.start_soon(here.write)
                await here.resume(await dial(there.where, replace(SITE, name="site-2"), "controller"))
                with pytest.raises(error):
                    await keep_dialling(there.where, own, "controller", there.log)
                here.send({"kind": "test", "number": 1})
                frame = await here.receive()
                assert frame is not None and frame[0] == {"kind": "echo", "number": 1}
                nursery.cancel_scope.cancel()
        here.close()
        there.link.close()
        [line] = there.logged
        assert line.startswith("closed a connection from 127.0.0.1:")

    trio.run(story)


def test_idle_strangers_are_bounded_and_hold_up_no_process_of_the_run() -> None:
    async def story() -> None:
        process = Process(CONTROLLER, "site-1")
        host, port = process.listener.getsockname()
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(process.run)
                strangers = [await trio.open_tcp_stream(host, port) for _ in range(STRANGERS_MAX + 20)]
                sock = await dial(process.where, SITE, "controller")
                # Of too many the oldest are closed: these, and one for the process of the run.
                for stranger in strangers[:20]:
                    assert await stranger.receive_some(1) == b""
                assert process.logged == []
                sock.close()
                for stranger in strangers:
                    await stranger.aclose()
                nursery.cancel_scope.cancel()

    trio.run(story)


def test_of_a_flood_of_strangers_the_log_has_some_lines_and_then_their_number() -> None:
    clock, further = trio.testing.MockClock(), 50

    async def story() -> None:
        process = Process(CONTROLLER, "site-1")
        host, port = process.listener.getsockname()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run)
            for _ in range(LINES_MAX + 1 + further):
                stranger = await trio.open_tcp_stream(host, port)
                await stranger.send_all(b"GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(trio.BrokenResourceError):
                    await stranger.receive_some(1)
                await stranger.aclose()
            *lines, last = list(process.logged)
            assert len(lines) == LINES_MAX and all(line.startswith("closed a connection from") for line in lines)
            assert "Further ones are counted" in last
            clock.jump(LINES_PERIOD_S)
            await trio.testing.wait_all_tasks_blocked()
            assert process.logged[-1] == f"closed {further} further connections like these in {LINES_PERIOD_S:g} s"
            nursery.cancel_scope.cancel()

    trio.run(story, clock=clock)
