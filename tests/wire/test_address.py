"""Addresses of both families: what listens there is reached there, and what is no address is refused."""

from __future__ import annotations

import socket

import pytest
import trio

from flux.types.errors import FluxError
from flux.wire import address

from .ipv6 import needs_ipv6


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", pytest.param("[::1]", marks=needs_ipv6)])
def test_what_listens_at_an_address_is_reached_there(host: str) -> None:
    with address.listen(f"tcp:{host}:0") as listener:
        where = address.bound(listener)
        if host != "localhost":
            assert where.startswith(f"tcp:{host}:")
        for sock in (address.connect_blocking(where, 10.0), trio.run(address.connect, where)):
            with sock:
                listener.accept()[0].close()
        assert address.own_address(where, 10.0) == where.rpartition(":")[0] + ":0"


@needs_ipv6
def test_a_name_is_tried_at_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    with address.listen("tcp:[::1]:0") as listener:
        port = listener.getsockname()[1]

        async def both(host: str, port: int, **hints: object) -> list[tuple[object, ...]]:
            v4, v6 = (socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET6, ("::1", port, 0, 0))
            return [(family, socket.SOCK_STREAM, 6, "", target) for family, target in (v6, v4)]

        monkeypatch.setattr(trio.socket, "getaddrinfo", both)
        with trio.run(address.connect, f"tcp:a-name:{port}"):
            listener.accept()[0].close()


@needs_ipv6
def test_a_port_in_use_is_said() -> None:
    with address.listen("tcp:[::1]:0") as listener:
        where = address.bound(listener)
        with pytest.raises(FluxError, match="end the process that listens there, or choose another port"):
            address.listen(where)


@pytest.mark.parametrize("text", ["::1:7000", "[::1]", "[10.0.0.5]:7000", "[]:7000", "host:70000", "host:", ":7000"])
def test_what_is_not_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 10\.0\.0\.5:7000 or \[fd00::5\]:7000"):
        address.host_and_port(text)
