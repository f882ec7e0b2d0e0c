"""The endpoint of metrics: it serves one page to HTTP clients, and bounds what strangers can do."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from flux.driver import metrics_endpoint
from flux.driver.metrics import CONTENT_TYPE
from flux.driver.metrics_endpoint import (
    CONNECTIONS_MAX,
    REQUEST_MAX_BYTES,
    MetricsEndpoint,
    listen,
    metrics_address,
    metrics_url,
)
from flux.types.errors import FluxError, PlanError

PAGE = "flux_run_seconds 1.5\n"
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n"
DEADLINE_S = 20.0


@asynccontextmanager
async def served(text: Callable[[], str] = lambda: PAGE) -> AsyncIterator[int]:
    listener = listen("tcp:127.0.0.1:0")
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(MetricsEndpoint(listener, text).serve)
            yield listener.getsockname()[1]
            nursery.cancel_scope.cancel()


async def read_all(stream: trio.SocketStream) -> bytes:
    got = b""
    try:
        async for some in stream:
            got += some
    except trio.BrokenResourceError:
        pass
    return got


async def answered(port: int, *pieces: bytes) -> tuple[str, dict[str, str], str]:
    """Send a request; return the status, the headers and the body of the response."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        for piece in pieces:
            await stream.send_all(piece)
        head, _, body = (await read_all(stream)).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return status.removeprefix("HTTP/1.1 "), headers, body.decode()


@pytest.mark.parametrize(
    "pieces",
    [
        (SCRAPE,),
        (SCRAPE[:9], SCRAPE[9:]),
        (b"GET /metrics?name=flux HTTP/1.0\r\n\r\n",),
        (SCRAPE.replace(b"*/*", b"x" * 7_000),),
    ],
    ids=["whole", "in pieces", "with a query", "with long headers"],
)
def test_metrics_are_served_to_any_client(pieces: tuple[bytes, ...]) -> None:
    async def main() -> None:
        async with served() as port:
            status, headers, body = await answered(port, *pieces)
            assert (status, body) == ("200 OK", PAGE)
            assert headers["Content-Type"] == CONTENT_TYPE and int(headers["Content-Length"]) == len(PAGE)

    trio.run(main)


def test_a_client_may_ask_for_the_headers_alone() -> None:
    async def main() -> None:
        async with served() as port:
            status, headers, body = await answered(port, SCRAPE.replace(b"GET", b"HEAD"))
            assert (status, headers["Content-Length"], body) == ("200 OK", str(len(PAGE)), "")

    trio.run(main)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /status HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nstop", "405 Method Not Allowed"),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (b"\r\n\r\n", "400 Bad Request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "400 Bad Request"),
        (b"GET metrics HTTP/1.1\r\n\r\n", "400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * REQUEST_MAX_BYTES + b"\r\n\r\n", "400 Bad Request"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_nothing_else_is_served(request_bytes: bytes, status: str) -> None:
    async def main() -> None:
        async with served(lambda: pytest.fail("nothing else computes metrics")) as port:
            assert (await answered(port, request_bytes))[0] == status

    trio.run(main)


def test_of_too_many_connections_the_oldest_is_closed_and_prometheus_is_still_served() -> None:
    async def main() -> None:
        async with served() as port:
            streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
            for stream in streams:
                await stream.send_all(b"GET /met")
            # Each further one closes one that was there before.
            assert (await answered(port, SCRAPE))[0] == "200 OK"
            assert await read_all(streams[0]) == b""
            assert (await answered(port, SCRAPE))[0] == "200 OK"
            for stream in streams:
                await stream.aclose()

    trio.run(main)


def test_a_connection_that_asks_for_nothing_is_closed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "_REQUEST_TIMEOUT_S", 0.05)

    async def main() -> None:
        async with served() as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
            assert await read_all(stream) == b""

    trio.run(main)


def test_metrics_are_computed_at_most_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "_FRESH_S", 60.0)
    made: list[int] = []

    def text() -> str:
        made.append(1)
        return PAGE

    async def main() -> None:
        async with served(text) as port:
            for _ in range(20):
                assert (await answered(port, SCRAPE))[2] == PAGE

    trio.run(main)
    assert len(made) == 1


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do() -> None:
    with listen("tcp:127.0.0.1:0") as listener:
        port = listener.getsockname()[1]
        assert metrics_url(listener) == f"http://127.0.0.1:{port}/metrics"
        with pytest.raises(FluxError, match=r"metrics cannot be served: .*in use.* Give another metrics port"):
            listen(f"tcp:127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("given", "host", "expected"),
    [
        (9464, "10.0.0.1", "tcp:10.0.0.1:9464"),
        ("9464", "::1", "tcp:[::1]:9464"),
        ("0.0.0.0:9464", "10.0.0.1", "tcp:0.0.0.0:9464"),
        ("[::]:9464", "10.0.0.1", "tcp:[::]:9464"),
        (0, "127.0.0.1", "tcp:127.0.0.1:0"),
    ],
)
def test_a_port_alone_is_on_the_host_of_the_run(given: int | str, host: str, expected: str) -> None:
    assert metrics_address(given, host) == expected


@pytest.mark.parametrize("given", [65_536, -1, "", "x", "x:", "a:b:1", True, 1.5, b"9464"])
def test_what_is_no_port_is_refused(given: object) -> None:
    with pytest.raises(PlanError, match="metrics_port is a port"):
        metrics_address(given)


def test_a_client_that_goes_harms_nothing() -> None:
    async def main() -> None:
        async with served() as port:
            for _ in range(5):
                with socket.create_connection(("127.0.0.1", port)) as client:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # It resets.
                    client.sendall(SCRAPE[:10])
            assert (await answered(port, SCRAPE))[0] == "200 OK"

    trio.run(main)
