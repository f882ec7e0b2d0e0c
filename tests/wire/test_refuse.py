"""A frame that makes no sense is refused: over the next connection it comes again, and nothing else twice."""

from __future__ import annotations

import pyarrow as pa
import trio
import trio.testing

from flux.wire.link import Link

from .linking import connection, linked, received, resume_both, run, send


def test_a_frame_that_was_refused_comes_again_and_nothing_is_lost_or_repeated() -> None:
    async def talk() -> None:
        one, other = linked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            nursery.start_soon(other.write)
            for number in range(500):  # More than are told at once: what is refused must not have been told.
                send(one, number, 20_000)
            found = []
            for _ in range(5):
                found += (await received(other, 100))[:-1]
                other.refuse()
                one.drop()
                await resume_both(one, other)
            found += await received(other, 500 - len(found))
            assert found == list(range(500))
            one.close()
            other.close()

    run(talk)


def test_the_schema_of_a_batch_that_was_refused_comes_again_with_it() -> None:
    async def talk() -> None:
        one, other = linked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            nursery.start_soon(other.write)
            for name in ("a", "b"):
                one.send_batch({"kind": "test"}, pa.record_batch({name: [1]}))
            assert await read(other) == ["a"]
            assert await read(other) == ["b"]
            other.refuse()
            one.drop()
            await resume_both(one, other)
            assert await read(other) == ["b"]
            one.send_batch({"kind": "test"}, pa.record_batch({"c": [1]}))
            assert await read(other) == ["c"]
            one.close()
            other.close()

    run(talk)


def test_to_refuse_when_nothing_was_read_only_gives_the_connection_up() -> None:
    async def talk() -> None:
        ends = connection()
        one, other = Link("other", ends[0]), Link("one", ends[1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            nursery.start_soon(other.write)
            send(one, 0)
            assert await received(other, 1) == [0]
            ends[0].close()
            assert await other.receive() is None
            other.refuse()
            one.drop()
            await resume_both(one, other)
            send(one, 1)
            assert await received(other, 1) == [1]
            one.close()
            other.close()

    run(talk)


async def read(link: Link) -> list[str]:
    frame = await link.receive()
    assert frame is not None
    batch = link.decode_batch(*frame)
    assert batch is not None
    names: list[str] = batch.schema.names
    return names
