"""What the tests of links share."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import pyarrow as pa
import trio

from flux.wire.link import Link, tune

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
