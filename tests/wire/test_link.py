"""Links: what is sent arrives once and in order, over however many connections."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trio
import trio.testing

from flux.wire import frames, sockets
from flux.wire import link as link_module
from flux.wire.link import Link, LinkClosed, accept_loop, tune

PATIENCE_S = 60.0


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def patiently() -> None:
        with trio.fail_after(PATIENCE_S):
            await story()

    trio.run(patiently)


def connection() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair()
    tune(one)
    tune(other)
    return one, other


def linked() -> tuple[Link, Link]:
    one, other = connection()
    return Link("one", one), Link("other", other)


async def resume_both(one: Link, other: Link) -> tuple[socket.socket, socket.socket]:
    """A fresh connection between two links."""
    socks = connection()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.resume, socks[0])
        nursery.start_soon(other.resume, socks[1])
    return socks


async def received(link: Link, count: int) -> list[int]:
    """The numbers on the next frames; their bodies must be as long as they say."""
    numbers = []
    while len(numbers) < count:
        frame = await link.receive()
        assert frame is not None, f"{link.peer} ended behind {numbers[-3:]}"
        header, body = frame
        assert (0 if body is None else body.size) == header.get("size", 0)
        numbers.append(header["number"])
    return numbers


def send(link: Link, number: int, size: int = 0) -> None:
    body = pa.py_buffer(bytes(size)) if size else None
    link.send({"kind": "test", "number": number, "size": size}, body)


def test_frames_of_any_size_arrive_in_order() -> None:
    async def talk() -> None:
        one, other = linked()
        batches = [pa.record_batch({"n": list(range(size))}) for size in (1, 200_000, 3, 500_000)]
        got = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            for number, batch in enumerate(batches):
                one.send_batch({"kind": "batch", "number": number}, batch)
                one.send({"kind": "small", "number": number})
            while len(got) < 8:
                frame = await other.receive()
                assert frame is not None
                header, body = frame
                batch = other.decode_batch(header, body)
                if batch is not None:
                    assert batch.equals(batches[header["number"]])
                got.append((header["kind"], header["number"]))
            one.close()
            other.close()
        assert got == [(kind, number) for number in range(4) for kind in ("batch", "small")]

    run(talk)


def test_a_link_closed_under_its_reader_ends_the_reader() -> None:
    async def talk() -> None:
        one, other = linked()
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                assert await one.receive() is None
                assert one.closed and not one.broken

            nursery.start_soon(read)
            nursery.start_soon(one.write)
            await trio.testing.wait_all_tasks_blocked()
            one.close()
        other.close()

    run(talk)


def test_a_peer_that_vanishes_within_a_frame_leaves_a_broken_link() -> None:
    async def talk() -> None:
        one, other = connection()
        link = Link("other", other)
        one.sendall(frames.encode({"kind": "a"}, body_bytes=100) + b"only this")
        one.close()
        assert await link.receive() is None
        assert link.broken and not link.closed
        assert await link.receive() is None
        link.close()

    run(talk)


def test_a_peer_that_closes_its_link_says_so() -> None:
    async def talk() -> None:
        one, other = linked()
        one.close()
        assert await other.receive() is None
        assert other.closed and not other.broken

    run(talk)


@pytest.mark.parametrize("kind", ["resume", "got", "closed"])
def test_a_frame_of_a_kind_of_the_links_own_cannot_be_sent(kind: str) -> None:
    with pytest.raises(AssertionError, match="the link's own"):
        Link("other").send({"kind": kind})


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
        with pytest.raises(frames.BadFrame, match="not the process that this link was made with"):
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
            with pytest.raises(frames.BadFrame, match="it was sent 100, and has told of 64 before"):
                await one.resume(ours)
            for link in (one, other, another):
                link.close()

    run(talk)


def test_a_peer_that_never_says_how_far_it_has_come_is_given_up() -> None:
    async def talk() -> None:
        ours, theirs = connection()
        with pytest.raises(TimeoutError, match="other did not say within 5 s"):
            await Link("other").resume(ours)
        theirs.close()

    trio.run(talk, clock=trio.testing.MockClock(autojump_threshold=0))


def test_what_the_peer_has_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, size, count = 2 * 200_000, 20_000, 1_000
    for name, limit in (
        ("_BUFFER_BYTES", 100_000),
        ("_SEND_BYTES", 100_000),
        ("_TURN_BYTES", 200_000),
        ("_TELL_BYTES", 100_000),
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
            for number in range(link_module._TELL_FRAMES):
                send(one, number)
            await received(other, link_module._TELL_FRAMES)
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


def test_one_that_cannot_be_written_to_is_still_read_to_its_end() -> None:
    async def talk() -> None:
        ours, theirs = connection()
        link = Link("other", ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.write)
            await sockets.write_all(theirs, frames.encode({"kind": "last", "number": 7}))
            theirs.close()
            send(link, 0, 10_000_000)
            await trio.testing.wait_all_tasks_blocked()
            assert await received(link, 1) == [7]
            assert await link.receive() is None
            assert link.broken
            link.close()

    run(talk)


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frames.PREFIX.pack(b"Fx", frames.VERSION, 1 << 30, 0),
        frames.PREFIX.pack(b"Fx", frames.VERSION, 3, 0) + b"\xc1\xc1\xc1",
        frames.encode({"kind": "got", "n": 5}),
    ],
)
def test_a_malformed_frame_is_raised_and_harms_no_other_link(raw: bytes) -> None:
    async def talk() -> None:
        ours, theirs = connection()
        bad, (one, other) = Link("bad", ours), linked()
        await sockets.write_all(theirs, raw)
        with pytest.raises(frames.BadFrame):
            await bad.receive()
        bad.close()
        with contextlib.suppress(ConnectionResetError):
            assert theirs.recv(1_000) in (b"", bytes(link_module._CLOSED))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            send(one, 1)
            assert await received(other, 1) == [1]
            one.close()
            other.close()
        theirs.close()

    run(talk)


def test_a_reader_that_gives_up_within_a_frame_breaks_the_connection() -> None:
    async def talk() -> None:
        ours, theirs = connection()
        link = Link("other", ours)
        with trio.move_on_after(0.01):
            await link.receive()
        assert not link.broken  # Between frames it does no harm.
        await sockets.write_all(theirs, frames.encode({"kind": "test"}, body_bytes=10) + b"half")
        with trio.move_on_after(0.01):
            await link.receive()
        assert link.broken
        link.close()
        theirs.close()

    run(talk)


def test_memory_for_a_body_is_taken_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    empty = np.empty

    def counting(size: int, dtype: Any) -> Any:
        taken.append(size)
        return empty(size, dtype=dtype)

    monkeypatch.setattr(sockets.np, "empty", counting)
    monkeypatch.setattr(sockets, "_STEP_BYTES", 1_000)

    async def talk() -> None:
        ours, theirs = connection()
        link = Link("other", ours)
        header = frames.encode({"kind": "lie"}, body_bytes=frames.BODY_MAX_BYTES)
        await sockets.write_all(theirs, header + bytes(2_500))
        theirs.close()
        assert await link.receive() is None
        link.close()
        assert taken == [1_000, 2_000, 4_000]

        one, other = linked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            whole = pa.py_buffer(np.random.default_rng(0).bytes(70_001))
            one.send({"kind": "truth"}, whole)
            frame = await other.receive()
            assert frame is not None and frame[1].equals(whole)
            one.close()
            other.close()

    run(talk)


def test_a_fast_peer_does_not_keep_the_loop_from_others() -> None:
    async def talk() -> None:
        ours, theirs = connection()
        link = Link("other", ours)
        theirs.sendall(frames.encode({"kind": "flood"}) * 500)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            for _ in range(500):
                await link.receive()
            assert turns >= 5
            nursery.cancel_scope.cancel()
        link.close()
        theirs.close()

    run(talk)


def test_a_peer_that_takes_everything_at_once_does_not_keep_the_loop_from_others() -> None:
    """Else nobody hears what it tells, and everything is kept."""

    turns = 0
    turns_of_others: set[int] = set()  # Until each call.

    class Sink:
        """A connection that never blocks."""

        def __init__(self, real: socket.socket) -> None:
            self.fileno, self.close = real.fileno, real.close

        def sendmsg(self, parts: Any) -> int:
            turns_of_others.add(turns)
            return sum(len(part) for part in parts)

    async def talk() -> None:
        ours, theirs = connection()
        link = Link("other", Sink(ours))  # type: ignore[arg-type]
        for number in range(100):
            send(link, number, 1 << 20)

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            nursery.start_soon(link.write)
            await link.drain()
            assert len(turns_of_others) >= 5
            nursery.cancel_scope.cancel()
        link.close()
        theirs.close()

    run(talk)


def test_two_tasks_that_wait_the_same_way_take_turns() -> None:
    """As TLS may want: to read in order to write."""

    async def talk() -> None:
        ours, theirs = connection()
        woken = []

        async def wait() -> None:
            await sockets.until_ready(ours, BlockingIOError(), reading=True)
            woken.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            while not woken:  # The second looks again soon.
                await trio.sleep(0.001)
            theirs.send(b"x")
        assert len(woken) == 2
        ours.close()
        theirs.close()

    run(talk)


def test_a_listener_outlives_failures_to_accept() -> None:
    class Listener:
        """A listening socket that fails twice, as when all files are open."""

        def __init__(self, real: socket.socket) -> None:
            self.real = real
            self.failures = [OSError(errno.EMFILE, "too many open files"), ConnectionAbortedError()]

        def fileno(self) -> int:
            return self.real.fileno()

        def setblocking(self, flag: bool) -> None:
            self.real.setblocking(flag)

        def accept(self) -> tuple[socket.socket, Any]:
            if self.failures:
                raise self.failures.pop()
            return self.real.accept()

    async def talk() -> None:
        real = socket.create_server(("127.0.0.1", 0))
        dialled = socket.create_connection(real.getsockname())
        accepted: list[socket.socket] = []
        async with trio.open_nursery() as nursery:

            def on_accept(sock: socket.socket) -> None:
                accepted.append(sock)
                nursery.cancel_scope.cancel()

            await accept_loop(Listener(real), on_accept)  # type: ignore[arg-type]
        assert accepted[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for sock in (real, dialled, *accepted):
            sock.close()

    run(talk)
