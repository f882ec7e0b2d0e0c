"""Simulated stream: a simulated socket with the methods of `trio.SocketStream`."""

from __future__ import annotations

from typing import Any

import trio

from ..system import network
from .simulated_network import SimulatedSocket

_READ_BYTES = 65_536


class SimulatedStream(trio.abc.HalfCloseableStream):
    """The stream of a connected socket. An end that is gone is a `BrokenResourceError`."""

    def __init__(self, sock: SimulatedSocket) -> None:
        self._sock: Any = sock
        self.socket = self  # What reads into memory of its own asks the socket for that.

    async def send_all(self, data: Any) -> None:
        rest = memoryview(bytes(data))
        while rest:
            try:
                rest = rest[self._sock.sendmsg([rest]) :]
            except BlockingIOError:
                await self.wait_send_all_might_not_block()
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await network.wait_writable(self._sock)

    async def send_eof(self) -> None:
        self._sock.shutdown(1)
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            try:
                data: bytes = self._sock.recv(max_bytes or _READ_BYTES)
            except BlockingIOError:
                await network.wait_readable(self._sock)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            else:
                return data

    async def recv_into(self, buffer: memoryview, most: int) -> int:
        """Read as `recv_into` of trio's sockets does."""
        data = await self.receive_some(most)
        buffer[: len(data)] = data
        return len(data)

    async def aclose(self) -> None:
        self._sock.close()
        await trio.lowlevel.checkpoint()
