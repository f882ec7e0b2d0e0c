"""Batches that are made when their turn comes: in order with all others, and no more than one at a time in memory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import trio
import trio.testing

from flux.wire.link import Link

from .linking import connection, resume_both, run

ROWS = 100_000  # Of eight bytes: more than the kernel takes of ten such.


def batch(number: int, name: str = "n", rows: int = 3) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array([number] * rows)})


async def told(link: Link, count: int) -> list[tuple[str, int]]:
    """The name and the first value of the column of each batch."""
    found: list[tuple[str, int]] = []
    while len(found) < count:
        frame = await link.receive()
        assert frame is not None
        read = link.decode_batch(*frame)
        assert read is not None
        found.append((read.schema.names[0], read.column(0)[0].as_py()))
    return found


def test_what_is_made_later_comes_in_its_place_and_schemas_with_the_first_that_has_them() -> None:
    """A batch behind it has a schema that nobody knows yet, and neither has been sent when it is queued."""

    async def talk() -> None:
        ends = connection()
        one, other = Link("other", ends[0]), Link("one", ends[1])
        one.send_batch({"kind": "test"}, batch(0, "a"))
        one.send_batch_later(lambda: ({"kind": "test"}, batch(1, "b"), None))
        one.send_batch({"kind": "test"}, batch(2, "c"))
        one.send_batch({"kind": "test"}, batch(3, "b"))
        one.send_batch_later(lambda: ({"kind": "test"}, batch(4, "c"), None))
        one.send_batch({"kind": "test"}, batch(5, "a"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            assert await told(other, 6) == [("a", 0), ("b", 1), ("c", 2), ("b", 3), ("c", 4), ("a", 5)]
            one.send_batch({"kind": "test"}, batch(6, "d"))
            assert await told(other, 1) == [("d", 6)]
            one.close()
            other.close()

    run(talk)


def test_a_peer_that_does_not_read_lets_few_be_made() -> None:
    made: list[int] = []

    async def talk() -> None:
        ends = connection()
        one, other = Link("other", ends[0]), Link("one", ends[1])

        def make(number: int) -> Any:
            made.append(number)
            return {"kind": "test"}, batch(number, rows=ROWS), None

        for number in range(100):
            one.send_batch_later(lambda number=number: make(number))  # type: ignore[misc]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            await trio.testing.wait_all_tasks_blocked()
            assert 0 < len(made) < 50
            nursery.start_soon(other.write)
            nursery.start_soon(_hear, one)
            assert await told(other, 100) == [("n", number) for number in range(100)]
            one.close()
            other.close()
        assert made == list(range(100))

    run(talk)


def test_what_was_made_is_repeated_over_the_next_connection_and_not_made_again() -> None:
    made: list[int] = []

    async def talk() -> None:
        ends = connection()
        one, other = Link("other", ends[0]), Link("one", ends[1])

        def make() -> Any:
            made.append(1)
            return {"kind": "test"}, batch(1), None

        one.send_batch_later(make)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            await trio.testing.wait_all_tasks_blocked()
            one.drop()
            other.drop()
            nursery.start_soon(other.write)
            await resume_both(one, other)
            assert await told(other, 1) == [("n", 1)]
            one.close()
            other.close()
        assert made == [1]

    run(talk)


async def _hear(link: Link) -> None:
    while await link.receive() is not None:
        pass
