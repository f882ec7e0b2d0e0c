"""The source `Lines`: lines of text from a TCP server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import trio

from ..types.errors import FluxError, PlanError
from .source import Source, SourceBatch, SourceContext

log = logging.getLogger("flux")

RECEIVE_BYTES = 256 * 1024
LINE_MAX_BYTES = 1 << 20

# Pauses between attempts to connect: short at first, for a server that is being restarted.
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class Lines(Source):
    """The lines that a TCP server at `host` and `port` sends, as UTF-8 text in the column `line`.

    When the server closes the connection or is unreachable, the source retries for as long as the run lasts. Without
    `reconnect`, the stream ends when the server closes. A line is read when its end has arrived; a line that a broken
    connection cuts off is dropped, and logged. Bytes that are not UTF-8 become U+FFFD.

    A server does not send a line twice. Lines with a sequence number are safe, because Flux keeps them. Lines that a
    killed ingress had read and not numbered are lost, and so are those sent until it is restarted.
    """

    schema = pa.schema({"line": pa.string()})
    replays = False
    emits_time = False

    def __init__(self, host: str, port: int, reconnect: bool = True) -> None:
        if not isinstance(host, str) or not host:
            raise PlanError(f"Lines: host must be a name or an address; it is {host!r}")
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
            raise PlanError(f"Lines: port must be a number from 1 to 65,535; it is {port!r}")
        self.host = host
        self.port = port
        self.reconnect = reconnect

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        """Yield lines as they arrive."""
        while True:
            stream = await self._connect()
            try:
                rest = b""
                while received := await self._receive(stream):
                    *lines, rest = (rest + received).split(b"\n")
                    if len(rest) > LINE_MAX_BYTES:
                        raise FluxError(
                            f"Lines: {self.host}:{self.port} sent {len(rest):,} bytes without an end of line; at most "
                            f"{LINE_MAX_BYTES:,} are taken for a line. Is it a server that sends text?"
                        )
                    if lines:
                        yield SourceBatch(_batch(lines))
            finally:
                await trio.aclose_forcefully(stream)
            if rest:
                log.warning("Lines: %s:%d broke off in a line; %d bytes are dropped", self.host, self.port, len(rest))
            if not self.reconnect:
                return

    async def _connect(self) -> trio.SocketStream:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await trio.open_tcp_stream(self.host, self.port)
            except OSError as error:
                if not self.reconnect:
                    raise FluxError(
                        f"Lines: cannot connect to {self.host}:{self.port}: {error}. Start the server there, or say "
                        "reconnect=True to wait for it"
                    ) from error
                log.warning("Lines: cannot connect to %s:%d, trying again: %s", self.host, self.port, error)
            await trio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _receive(self, stream: trio.SocketStream) -> bytes:
        """Return what arrived; nothing at the end of the connection, however it ended."""
        try:
            return bytes(await stream.receive_some(RECEIVE_BYTES))
        except trio.BrokenResourceError as error:
            log.warning("Lines: the connection to %s:%d broke: %s", self.host, self.port, error.__cause__ or error)
            return b""


def _batch(lines: list[bytes]) -> pa.RecordBatch:
    texts = [line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines]
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=Lines.schema)
