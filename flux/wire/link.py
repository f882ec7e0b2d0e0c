"""Link: one connection: frames out through a queue, frames in through one reader.

A link decides nothing. Sockets are non-blocking and read and written until they would block, because
the loop that serves them is busy with an operator for milliseconds at a time: what the kernel has
buffered by then is taken in one go. The queue is not bounded here: a machine's pool bounds what it sends.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import trio

from . import frames

_BUFFER_BYTES = 4 << 20  # Kernel buffers asked for: about two frames of 32 Ki rows.
_SEND_PARTS_MAX = 64  # Parts of one sendmsg call.

Body: TypeAlias = Any  # A pa.Buffer, or None for a frame without one.


class LinkClosed(Exception):
    """The other end is gone."""


def tune(sock: socket.socket) -> None:
    """Non-blocking, with large kernel buffers (the system may grant less)."""
    sock.setblocking(False)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


class Link:
    """Frames to and from one peer; frames sent before the connection stands wait for it."""

    def __init__(self, peer: str, sock: socket.socket | None = None) -> None:
        self.peer = peer
        self._sock = sock
        self._out: deque[memoryview] = deque()
        self._wake = trio.Event()
        self._closed = False
        # By their bytes: to Arrow, schemas that differ in metadata alone are equal.
        self._schemas_out: dict[bytes, int] = {}
        self._schemas_in: dict[int, pa.Schema] = {}

    @property
    def connected(self) -> bool:
        """Whether the connection stands or has stood."""
        return self._sock is not None

    def connect(self, sock: socket.socket, greeting: dict[str, Any] | None = None) -> None:
        """The connection stands: what waited may go, behind the greeting."""
        assert self._sock is None, f"a second connection to {self.peer}"
        self._sock = sock
        if greeting is not None:
            self._out.appendleft(memoryview(frames.encode(greeting)))
        self._wake.set()

    def send(self, header: dict[str, Any], body: Body = None) -> None:
        """Queue one frame; it never blocks."""
        if self._closed:
            return
        size = 0 if body is None else body.size
        self._out.append(memoryview(frames.encode(header, size)))
        if body is not None and size:
            self._out.append(memoryview(body).cast("B"))
        self._wake.set()

    def send_batch(self, header: dict[str, Any], batch: pa.RecordBatch | None, encoded: Body = None) -> None:
        """Queue a frame whose body is a record batch; its schema travels once per link."""
        if batch is not None:
            schema = batch.schema.serialize().to_pybytes()
            number = self._schemas_out.get(schema)
            if number is None:
                number = self._schemas_out[schema] = len(self._schemas_out)
                header = {**header, "schema": schema}
            header = {**header, "of": number}
            encoded = encoded if encoded is not None else batch.serialize()
        self.send(header, encoded)

    def decode_batch(self, header: dict[str, Any], body: Body) -> pa.RecordBatch | None:
        """The record batch of a frame sent with `send_batch`, in the frame's own memory."""
        if "of" not in header:
            return None
        if "schema" in header:
            self._schemas_in[header["of"]] = pa.ipc.read_schema(pa.py_buffer(header["schema"]))
        try:
            return pa.ipc.read_record_batch(body, self._schemas_in[header["of"]])
        except (pa.ArrowInvalid, KeyError, OSError) as error:
            raise frames.BadFrame(f"the body from {self.peer} is not a record batch: {error}") from error

    async def write(self) -> None:
        """Send what is queued, for as long as the link lives."""
        while not self._closed:
            if self._sock is None or not self._out:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            try:
                self._write_some(self._sock)
            except BlockingIOError:
                with contextlib.suppress(trio.ClosedResourceError):
                    await trio.lowlevel.wait_writable(self._sock)
            except OSError:
                self.close()

    def _write_some(self, sock: socket.socket) -> None:
        while self._out:
            parts = [self._out[i] for i in range(min(len(self._out), _SEND_PARTS_MAX))]
            sent = sock.sendmsg(parts)
            while self._out and sent >= len(self._out[0]):
                sent -= len(self._out.popleft())
            if sent:
                self._out[0] = self._out[0][sent:]

    def flush(self) -> None:
        """Send what is queued, as far as the system takes it at once."""
        if self._sock is not None and not self._closed:
            with contextlib.suppress(OSError):
                self._write_some(self._sock)

    async def drain(self) -> None:
        """Return when everything queued has gone out, or the link is closed."""
        while self._out and not self._closed:
            await trio.sleep(0.001)

    async def receive(self) -> tuple[dict[str, Any], Body] | None:
        """The next frame; None when the other end has closed, between frames or within one."""
        try:
            header_bytes, body_bytes = frames.decode_prefix(await self._read(frames.PREFIX.size))
            header = frames.decode_header(await self._read(header_bytes))
            return header, pa.py_buffer(await self._read(body_bytes)) if body_bytes else None
        except LinkClosed:
            return None

    async def _read(self, size: int) -> memoryview:
        assert self._sock is not None
        buffer = memoryview(np.empty(size, dtype=np.uint8))  # type: ignore[arg-type]
        got = 0
        while got < size:
            try:
                try:
                    count = self._sock.recv_into(buffer[got:])
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(self._sock)
                    continue
            except (OSError, trio.ClosedResourceError) as error:
                raise LinkClosed(self.peer) from error
            if count == 0:
                raise LinkClosed(self.peer)
            got += count
        return buffer

    def close(self) -> None:
        """Close the connection; whoever waits for it ends."""
        if self._closed:
            return
        self._closed = True
        self._out.clear()
        self._wake.set()
        if self._sock is not None:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


async def accept_loop(listener: socket.socket, on_accept: Callable[[socket.socket], None]) -> None:
    """Hand every new connection to `on_accept`."""
    listener.setblocking(False)
    while True:
        await trio.lowlevel.wait_readable(listener)
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            continue
        tune(sock)
        on_accept(sock)
