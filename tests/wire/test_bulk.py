"""Bulk frames of a link: they let others pass, keep their own order, and take bounded memory."""

from __future__ import annotations

import pyarrow as pa
import trio
import trio.testing

from flux.wire.link import Link

from .linking import connection, received, resume_both, run, send

CHUNK_BYTES = 512 << 10
WINDOW_FRAMES = 8  # As many of them are on their way at most.
BULK, DATA = 1_000, 0  # What the numbers of each begin with.


def send_bulk(link: Link, number: int) -> None:
    body = pa.py_buffer(bytes(CHUNK_BYTES))
    link.send({"kind": "test", "number": BULK + number, "size": CHUNK_BYTES}, body, bulk=True)


def test_what_is_sent_later_passes_bulk_frames() -> None:
    async def talk() -> None:
        ends = connection()
        one, other = Link("other", ends[0]), Link("one", ends[1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            nursery.start_soon(other.write)
            nursery.start_soon(one.receive)  # It hears what has come to the other end.
            for number in range(100):
                send_bulk(one, number)
            await trio.testing.wait_all_tasks_blocked()
            for number in range(10):
                send(one, DATA + number, 1_000)
            numbers = await received(other, 110)
            one.close()
            other.close()
        data = [place for place, number in enumerate(numbers) if number < BULK]
        assert data[0] <= WINDOW_FRAMES + 1, f"the first was behind {data[0]} chunks"
        assert data[-1] <= WINDOW_FRAMES + 20, "between two others goes one chunk, no more"
        assert [number for number in numbers if number >= BULK] == list(range(BULK, BULK + 100))
        assert [number for number in numbers if number < BULK] == list(range(10))

    run(talk)


def test_a_peer_that_does_not_read_is_sent_no_more_than_the_window() -> None:
    async def talk() -> None:
        ends = connection()
        one = Link("other", ends[0])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            for number in range(100):
                send_bulk(one, number)
            await trio.testing.wait_all_tasks_blocked()
            assert one.kept_bytes <= (WINDOW_FRAMES + 1) * (CHUNK_BYTES + 1_000)
            one.close()
            ends[1].close()

    run(talk)


def test_bulk_frames_are_repeated_over_the_next_connection() -> None:
    async def talk() -> None:
        one, other = Link("other"), Link("one")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            nursery.start_soon(other.write)
            for number in range(40):
                send_bulk(one, number)
                send(one, DATA + number)
            await resume_both(one, other)
            numbers = await received(other, 5)
            for _ in range(3):
                other.drop()  # What the system had taken is lost.
                assert await one.receive() is None
                await resume_both(one, other)
                numbers += await received(other, 3)
            nursery.start_soon(one.receive)
            numbers += await received(other, 80 - len(numbers))
            one.close()
            other.close()
        assert [number for number in numbers if number >= BULK] == list(range(BULK, BULK + 40))
        assert [number for number in numbers if number < BULK] == list(range(40))

    run(talk)


def test_room_for_bulk_comes_as_the_peer_takes_it_and_ends_with_the_link() -> None:
    async def talk() -> None:
        ends = connection()
        one, other = Link("other", ends[0]), Link("one", ends[1])
        sent = 0

        async def feed() -> None:
            nonlocal sent
            while await one.bulk_room():
                send_bulk(one, sent)
                sent += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            nursery.start_soon(other.write)
            nursery.start_soon(one.receive)  # It hears what has come to the other end.
            nursery.start_soon(feed)
            await trio.testing.wait_all_tasks_blocked()
            assert sent <= 2 * WINDOW_FRAMES
            assert await received(other, 50) == list(range(BULK, BULK + 50))
            assert sent >= 50
            one.close()
            other.close()

    run(talk)
