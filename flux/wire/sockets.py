"""Sockets: reading and writing non-blocking sockets under trio, encrypted or not.

A plain socket that would block raises `BlockingIOError`. One with TLS raises which direction it waits for, which may be
the opposite of the call's. All else here is alike for both. A connection that ends in any way is an `OSError`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Any

import numpy as np
import pyarrow as pa
import trio

from ..system import network
from . import frames

BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_STEP_BYTES = 16 << 20  # A longer body gets memory as it arrives, not as it is announced.
_FRAMES_PER_TURN = 64  # A peer that sends faster than this process reads must not starve other tasks.
_BUSY_PAUSE_S = 0.001
_LINGER_S = 1.0
_LINGER_READS = 16


async def until_ready(sock: socket.socket, blocked: OSError, *, reading: bool) -> None:
    """Wait until the call that failed with `blocked` is worth trying again."""
    if not isinstance(blocked, BlockingIOError):
        reading = isinstance(blocked, ssl.SSLWantReadError)
    try:
        if reading:
            await network.wait_readable(sock)
        else:
            await network.wait_writable(sock)
    except trio.BusyResourceError:
        # TLS waits for the direction of another task's wait. It is rare: new keys.
        await trio.sleep(_BUSY_PAUSE_S)
    except trio.ClosedResourceError:
        raise ConnectionAbortedError("the connection was closed at this end") from None


async def write_all(sock: socket.socket, data: bytes) -> None:
    """Send `data` whole."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.sendmsg([rest]) :]
        except BLOCKED as blocked:
            await until_ready(sock, blocked, reading=False)


async def close_gently(sock: socket.socket) -> None:
    """Close a connection so that the last frame arrives: closing with unread data may discard it."""
    try:
        sock.setblocking(False)
        with contextlib.suppress(OSError), trio.move_on_after(_LINGER_S):
            network.shut_plain(sock, socket.SHUT_WR)
            for _ in range(_LINGER_READS):
                await network.wait_readable(sock)
                if not network.receive_plain(sock, frames.STRANGER_MAX_BYTES):
                    break
    finally:
        sock.close()


class Reader:
    """Reads the frames of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.within_a_frame = False  # A read cancelled now cannot resume: where the next frame begins is unknown.
        self.received_at = trio.current_time()  # When the last bytes arrived, be it a part of a frame.
        self._sock = sock
        self._prefix = memoryview(bytearray(frames.PREFIX.size))
        self._frames = 0  # Since the last wait.

    async def read_frame(
        self, header_max: int = frames.HEADER_MAX_BYTES, body_max: int = frames.BODY_MAX_BYTES
    ) -> tuple[dict[str, Any], Any, int]:
        """Return the next frame: its header, its body or None, and its size in bytes."""
        self._frames += 1
        if self._frames > _FRAMES_PER_TURN:
            self._frames = 0
            await trio.lowlevel.checkpoint()
        await self._fill(self._prefix)
        self.within_a_frame = True
        header_bytes, body_bytes = frames.decode_prefix(self._prefix, header_max, body_max)
        packed = bytearray(header_bytes)
        await self._fill(memoryview(packed))
        header = frames.decode_header(packed)
        body = pa.py_buffer(await self._read(body_bytes)) if body_bytes else None
        self.within_a_frame = False
        return header, body, frames.PREFIX.size + header_bytes + body_bytes

    async def _read(self, size: int) -> memoryview:
        """Return `size` bytes; memory for them is never more than `_STEP_BYTES` or twice what has arrived."""
        whole = np.empty(min(size, _STEP_BYTES), dtype=np.uint8)
        await self._fill(memoryview(whole))  # type: ignore[arg-type]
        while len(whole) < size:
            begun, whole = whole, np.empty(min(size, 2 * len(whole)), dtype=np.uint8)
            whole[: len(begun)] = begun
            await self._fill(memoryview(whole[len(begun) :]))  # type: ignore[arg-type]
        return memoryview(whole)  # type: ignore[arg-type]

    async def _fill(self, buffer: memoryview) -> None:
        while buffer:
            try:
                count = self._sock.recv_into(buffer)
            except BLOCKED as blocked:
                self._frames = 0
                await until_ready(self._sock, blocked, reading=True)
                continue
            if count == 0:
                raise ConnectionResetError("the other end has closed the connection")
            self.within_a_frame = True
            self.received_at = trio.current_time()
            buffer = buffer[count:]
