"""Metrics endpoint: serves the metrics of a run over HTTP, for Prometheus; and nothing else.

Any program that reaches the port can read the metrics, and do no more: there is no password, and no other path or
method. The loop that serves it is that of a driver. So a connection has a few seconds and one request of bounded size,
there are few at a time, and metrics are computed at most a few times a second.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable

import trio

from ..types.errors import FluxError, PlanError
from ..wire import address
from ..wire.link import accept_loop
from ..wire.sockets import BLOCKED, close_gently, until_ready, write_all
from ..wire.strangers import Crowd
from .metrics import CONTENT_TYPE

CONNECTIONS_MAX = 16
REQUEST_MAX_BYTES = 8_192
_REQUEST_TIMEOUT_S = 5.0
_FRESH_S = 0.2
_LOCAL = "127.0.0.1"


def metrics_address(port: object, host: str = _LOCAL) -> str:
    """Return the address for `port`, a port or "HOST:PORT"; of a port alone, it is on `host`.

    >>> metrics_address(9464), metrics_address("0.0.0.0:9464")
    ('tcp:127.0.0.1:9464', 'tcp:0.0.0.0:9464')
    >>> metrics_address("metrics")
    Traceback (most recent call last):
    flux.types.errors.PlanError: metrics_port is a port from 0 to 65535 or "HOST:PORT", got 'metrics'
    """
    text = str(port) if isinstance(port, int | str) and not isinstance(port, bool) else ""
    try:
        if ":" in text:
            return address.tcp_address(*address.host_and_port(text))
        return address.tcp_address(host, address.host_and_port(f"localhost:{text}")[1])
    except ValueError:
        raise PlanError(f'metrics_port is a port from 0 to 65535 or "HOST:PORT", got {port!r:.100}') from None


def listen(where: str) -> socket.socket:
    """Return a socket on which metrics can be served; `FluxError` if the port is taken."""
    try:
        return address.listen(where)
    except FluxError as error:
        raise FluxError(f"metrics cannot be served: {error}. Give another metrics port, or 0 for any") from error


def metrics_url(listener: socket.socket) -> str:
    """Return where the metrics served on a listening socket can be read."""
    return f"http://{address.bound(listener).removeprefix('tcp:')}/metrics"


class MetricsEndpoint:
    """Serves what `text` returns, on `listener`."""

    def __init__(self, listener: socket.socket, text: Callable[[], str]) -> None:
        self._listener = listener
        self._text = text
        self._crowd = Crowd(CONNECTIONS_MAX)
        self._body = b""
        self._made_s = float("-inf")

    async def serve(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            with self._listener:
                await accept_loop(self._listener, lambda sock: nursery.start_soon(self._serve_one, sock))

    async def _serve_one(self, sock: socket.socket) -> None:
        with contextlib.closing(sock), self._crowd.admit(_REQUEST_TIMEOUT_S), contextlib.suppress(OSError):
            await write_all(sock, self._answer(await _request_line(sock)))
            await close_gently(sock)

    def _answer(self, line: str | None) -> bytes:
        method, path, *_ = [*(line or "").split(" "), "", ""]
        if line is None or not path.startswith("/"):
            return _response("400 Bad Request", b"expected a request of HTTP\n")
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"metrics can be read with GET\n", "Allow: GET, HEAD\r\n")
        if path.partition("?")[0] != "/metrics":
            return _response("404 Not Found", b"metrics are at /metrics\n")
        response = _response("200 OK", self._metrics(), content_type=CONTENT_TYPE)
        return response if method == "GET" else response.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    def _metrics(self) -> bytes:
        if time.monotonic() > self._made_s + _FRESH_S:
            self._body, self._made_s = self._text().encode(), time.monotonic()
        return self._body


async def _request_line(sock: socket.socket) -> str | None:
    """Return the first line of a request when all its headers are here; None if it is not one, or too long."""
    got = b""
    while b"\r\n\r\n" not in got:
        try:
            some = sock.recv(REQUEST_MAX_BYTES + 1 - len(got))
        except BLOCKED as blocked:
            await until_ready(sock, blocked, reading=True)
            continue
        got += some
        if not some or len(got) > REQUEST_MAX_BYTES:
            return None
    return got.partition(b"\r\n")[0].decode("latin-1")


def _response(status: str, body: bytes, headers: str = "", content_type: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{headers}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
