"""Links that go on over another connection: nothing is lost, repeated or reordered, and little is kept."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing

from flux.wire import frames, sockets
from flux.wire import link as link_module
from flux.wire.link import Link, LinkClosed

from .linking import connection, linked, received, resume_both, run, send


def test_frames_behind_the_break_are_repeated_and_no_others() -> None:
    async def talk() -> None:
        one, other = Link("other"), Link("one")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            nursery.start_soon(other.write)
            for number in range(5):
                send(one, number)
            socks = await resume_both(one, other)
            assert await received(other, 3) == [0, 1, 2]
            socks[0].shutdown(socket.SHUT_RDWR)
            assert await received(other, 2) == [3, 4]  # They were on their way.
            assert await other.receive() is None and other.broken
            assert await one.receive() is None and one.broken
            send(one, 5)
            await resume_both(one, other)
            send(one, 6)
            send(other, 100)
            assert await received(other, 2) == [5, 6]
            assert await received(one, 1) == [100]
            one.close()
            other.close()

    run(talk)


class Cutter:
    """Passes bytes on between two links, and cuts the connection at random places."""

    def __init__(self, one: Link, other: Link, seed: int) -> None:
        self.links = one, other
        self.cuts = 0
        self._draw = random.Random(seed)

    async def connect_again_and_again(self) -> None:
        while not any(link.closed for link in self.links):
            outer, inner = zip(connection(), connection(), strict=True)
            try:
                async with trio.open_nursery() as nursery:
                    for here, there in (inner, inner[::-1]):
                        nursery.start_soon(self._pass_on, here, there, nursery.cancel_scope)
                    for link, sock in zip(self.links, outer, strict=True):
                        nursery.start_soon(self._resume, link, sock)
            finally:
                for sock in inner:
                    trio.lowlevel.notify_closing(sock)
                    sock.close()
            self.cuts += 1
            for link in self.links:
                while not (link.broken or link.closed):
                    await trio.sleep(0.001)

    async def _resume(self, link: Link, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, LinkClosed):  # The cut may come first; the next connection will do.
            await link.resume(sock)

    async def _pass_on(self, here: socket.socket, there: socket.socket, scope: trio.CancelScope) -> None:
        left = self._draw.choice([5, 30, 1_000, 100_000, 3_000_000])
        buffer = bytearray(65_536)
        while left > 0:
            try:
                count = here.recv_into(buffer, min(left, len(buffer)))
            except BlockingIOError:
                await trio.lowlevel.wait_readable(here)
                continue
            except OSError:
                count = 0
            if not count:
                break
            left -= count
            try:
                await sockets.write_all(there, bytes(buffer[:count]))
            except OSError:
                break
        scope.cancel()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_cut_wherever_each_frame_arrives_once_and_in_order(seed: int) -> None:
    frames_each_way = 400
    draw = random.Random(seed)
    sizes = [draw.choice([0, 0, 0, 1, 5_000, 70_000, 400_000]) for _ in range(frames_each_way)]

    async def converse(link: Link, done: Callable[[], None]) -> None:
        for number, size in enumerate(sizes):
            send(link, number, size)
        got: list[int] = []
        while len(got) < frames_each_way:
            frame = await link.receive()
            if frame is None:
                assert await link.resumed()
                continue
            header, body = frame
            assert (0 if body is None else body.size) == header["size"]
            got.append(header["number"])
        assert got == list(range(frames_each_way))
        done()
        while not link.closed:  # Keep reading, so that the other end gets all of its own.
            assert await link.receive() is None
            await link.resumed()

    async def talk() -> None:
        links = Link("other"), Link("one")
        finished = []
        cutter = Cutter(*links, seed)

        def done() -> None:
            finished.append(True)
            if len(finished) == 2:
                for link in links:
                    link.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cutter.connect_again_and_again)
            for link in links:
                nursery.start_soon(link.write)
                nursery.start_soon(converse, link, done)
        assert cutter.cuts > 3

    run(talk)


def test_a_connection_that_is_not_known_to_be_broken_gives_way_to_a_new_one() -> None:
    async def talk() -> None:
        one, other = Link("other"), Link("one")
        seen: list[Any] = []

        async def read() -> None:
            while not other.closed:
                while (frame := await other.receive()) is not None:
                    seen.append(frame[0]["number"])
                await other.resumed()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            nursery.start_soon(other.write)
            await resume_both(one, other)
            nursery.start_soon(read)
            send(one, 0)
            await trio.testing.wait_all_tasks_blocked()
            await resume_both(one, other)
            send(one, 1)
            while len(seen) < 2:
                await trio.sleep(0.001)
            other.close()
            one.close()
        assert seen == [0, 1]

    run(talk)


def test_of_two_new_connections_the_last_one_is_used() -> None:
    async def talk() -> None:
        one, other = Link("other"), Link("one")
        stale, fresh = connection(), connection()
        overtaken = []

        async def resume_and_lose() -> None:
            with pytest.raises(OSError):
                await one.resume(stale[0])
            overtaken.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resume_and_lose)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(other.resume, fresh[1])
            await one.resume(fresh[0])
            await sockets.write_all(stale[1], frames.encode({"kind": "resume", "n": 0}))
        assert overtaken
        assert not one.broken
        for link in (one, other):
            link.close()
        stale[1].close()

    run(talk)


@pytest.mark.parametrize("n", [1, -1, None, "0", True, 2.0])
def test_a_peer_that_counts_what_was_not_sent_is_not_resumed(n: Any) -> None:
    async def talk() -> None:
        ours, theirs = connection()
        link = Link("other")
        await sockets.write_all(theirs, frames.encode({"kind": "resume", "n": n}))
        with pytest.raises(frames.BadFrame, match="not the process that this link began with"):
            await link.resume(ours)
        assert not link.connected
        theirs.close()

    run(talk)


def test_a_peer_started_again_under_the_same_name_is_not_resumed() -> None:
    """It lacks what its predecessor had received and we have forgotten."""

    async def talk() -> None:
        one, other, another = Link("other"), Link("one"), Link("one")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            socks = await resume_both(one, other)
            for number in range(100):
                send(one, number)
            await received(other, 100)
            socks[1].shutdown(socket.SHUT_RDWR)
            assert await one.receive() is None and one.broken
            ours, theirs = connection()
            nursery.start_soon(another.resume, theirs)
            with pytest.raises(frames.BadFrame, match="it was sent 100, and has acknowledged 64 before"):
                await one.resume(ours)
            for link in (one, other, another):
                link.close()

    run(talk)


def test_a_peer_that_never_says_how_far_it_has_come_is_given_up() -> None:
    async def talk() -> None:
        ours, theirs = connection()
        with pytest.raises(TimeoutError, match="no resume frame from other within 5 s"):
            await Link("other").resume(ours)
        theirs.close()

    trio.run(talk, clock=trio.testing.MockClock(autojump_threshold=0))


def test_what_the_peer_has_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, size, count = 2 * 200_000, 20_000, 1_000
    for name, limit in (
        ("_BUFFER_BYTES", 100_000),
        ("_SEND_BYTES", 100_000),
        ("_TURN_BYTES", 200_000),
        ("_ACK_BYTES", 100_000),
    ):
        monkeypatch.setattr(link_module, name, limit)
    bound = kernel + 100_000 + 2 * 200_000 + 100_000 + 4 * size

    async def talk() -> None:
        one, other = Link("other"), Link("one")
        most = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            await resume_both(one, other)

            async def listen() -> None:
                while await one.receive() is not None:
                    pass

            nursery.start_soon(listen)
            for number in range(count):
                send(one, number, size)
            for _ in range(count):
                await received(other, 1)
                most = max(most, one.kept_bytes)
            assert 5 * size < most <= bound < count * size / 10
            for number in range(link_module._ACK_FRAMES):
                send(one, number)
            await received(other, link_module._ACK_FRAMES)
            while one.kept_bytes >= size:  # However few bytes they have, frames are told by their number.
                await trio.sleep(0.001)
            one.close()
            other.close()

    run(talk)


def test_a_closed_link_keeps_nothing_and_takes_nothing() -> None:
    async def talk() -> None:
        one, other = linked()
        body = pa.allocate_buffer(20_000_000)
        held = pa.total_allocated_bytes()
        one.send({"kind": "test"}, body)
        del body
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            await trio.testing.wait_all_tasks_blocked()
            assert one.kept_bytes > 20_000_000
            one.close()
        assert one.kept_bytes == 0
        assert pa.total_allocated_bytes() <= held - 20_000_000
        send(one, 1)
        await one.drain()
        assert await one.receive() is None
        other.close()

    run(talk)
