"""What `Lines` promises: a row for each line that has come whole."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from flux.sources import Lines, SourceContext
from flux.types.errors import FluxError, PlanError

from .reading import Followed


@contextlib.asynccontextmanager
async def server(*connections: bytes) -> AsyncIterator[int]:
    """A server that sends one connection after the other what it is told, and closes it; gives its port."""
    left = list(connections)

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(left.pop(0) if left else b"")

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            lambda task_status: trio.serve_tcp(serve, 0, host="127.0.0.1", task_status=task_status)
        )
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def test_lines_are_rows_and_a_server_that_closes_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with (
            server("one\r\ntwö\nbroken o".encode(), b"thr\xffee\n\nfive\n") as port,
            contextlib.aclosing(Followed(Lines("127.0.0.1", port), Path("unused"))) as followed,
        ):
            assert await followed.more(5) == ["one", "twö", "thr\ufffdee", "", "five"]

    trio.run(main)
    assert "broke off in a line; 8 bytes are dropped" in caplog.text


def test_without_reconnecting_the_stream_ends_with_the_connection() -> None:
    async def main() -> list[Any]:
        async with server(b"one\ntwo\n") as port:
            source = Lines("127.0.0.1", port, reconnect=False)
            return [row async for batch in source.batches(SourceContext(Path())) for row in batch.rows.to_pylist()]

    assert trio.run(main) == [{"line": "one"}, {"line": "two"}]


def test_a_server_that_is_out_of_reach_is_tried_again_or_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with server() as port:
            pass
        with pytest.raises(FluxError, match=f"cannot connect to 127.0.0.1:{port}"):
            await Followed(Lines("127.0.0.1", port, reconnect=False), Path()).more(1)
        with trio.move_on_after(0.3):
            await Followed(Lines("127.0.0.1", port), Path()).more(1)

    trio.run(main)
    assert "trying again" in caplog.text


def test_a_line_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flux.sources.lines.LINE_MAX_BYTES", 100)

    async def main() -> None:
        async with server(b"x" * 1000) as port:
            with pytest.raises(FluxError, match="without an end of line"):
                await Followed(Lines("127.0.0.1", port), Path()).more(1)

    trio.run(main)


@pytest.mark.parametrize(("host", "port"), [("", 1), (None, 1), ("a", 0), ("a", 70_000), ("a", "80"), ("a", True)])
def test_an_address_that_is_none_is_a_plan_error(host: Any, port: Any) -> None:
    with pytest.raises(PlanError, match=r"Lines: (host|port) must be"):
        Lines(host, port)
