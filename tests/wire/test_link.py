"""Links: what is sent arrives once and in order; what is malformed or too much does no harm."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trio
import trio.testing

from flux.wire import frames, sockets
from flux.wire import link as link_module
from flux.wire.link import _TURN_BYTES, Link, accept_loop, tune

from .linking import connection, linked, received, run, send


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
    sent_bytes: Counter[int] = Counter()  # By the turns that others have had until then.
    largest = 0

    class Sink:
        """A connection that never blocks."""

        def __init__(self, real: socket.socket) -> None:
            self.fileno, self.close = real.fileno, real.close

        def sendmsg(self, parts: Any) -> int:
            nonlocal largest
            size = sum(len(part) for part in parts)
            sent_bytes[turns] += size
            largest = max(largest, size)
            return size

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
            # Of two that are ready trio runs either first: two turns of the writer may follow each other, not three.
            assert sum(sent_bytes.values()) >= 100 << 20
            assert max(sent_bytes.values()) <= 2 * (_TURN_BYTES + largest)
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


def test_a_long_frame_that_comes_in_pieces_is_no_silence() -> None:
    clock = trio.testing.MockClock()

    async def trickle() -> None:
        sock, end = connection()
        link = Link("one", end)
        frame = frames.encode({"kind": "test"}, 100) + bytes(100)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.receive)
            for begin in (0, 20, 40):
                clock.jump(10.0)
                assert link.silent_s >= 10.0
                sock.send(frame[begin : begin + 20])
                await trio.testing.wait_all_tasks_blocked()  # A deadline would never come on this clock.
                assert link.silent_s == 0.0
            nursery.cancel_scope.cancel()
        sock.close()
        link.close()

    trio.run(trickle, clock=clock)


def test_a_silent_connection_to_another_machine_is_probed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        tune(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, interval, lost = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + interval * lost < 15
