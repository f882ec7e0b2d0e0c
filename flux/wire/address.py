"""Addresses at which processes listen: `unix:PATH` on one machine, `tcp:HOST:PORT` between machines.

HOST is a name or an IPv4 address, or an IPv6 address in brackets: `tcp:[::1]:7000`. Of the addresses that a name has,
those of IPv4 are tried first.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterable
from typing import Any, TypeAlias

import trio

from ..system import network
from ..types.errors import FluxError
from .link import tune

_BACKLOG = 128
_HOST_AND_PORT = re.compile(r"(?:\[(?P<v6>[^\[\]]*:[^\[\]]*)\]|(?P<host>[^\[\]:]+)):(?P<port>\d{1,5})")

SocketTarget: TypeAlias = tuple[socket.AddressFamily, Any]  # What a socket is bound or connected to.


def listen(address: str) -> socket.socket:
    """Return a listening socket at `address`."""
    sock = None
    try:
        family, target = _targets(address)[0]
        sock = network.open_socket(family)
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(_BACKLOG)
    except OSError as error:
        if sock is not None:
            sock.close()
        why = error.strerror or f"{error}; give a shorter temporary directory by TMPDIR"
        if error.errno == errno.EADDRINUSE and not address.startswith("unix:"):
            why += "; end the process that listens there, or choose another port"
        raise FluxError(f"cannot listen at {address}: {why}") from error
    sock.setblocking(False)
    return sock


def bound(sock: socket.socket) -> str:
    """Return the address of a listening socket; for port 0, with the port that it got."""
    name = sock.getsockname()
    return f"unix:{name}" if sock.family == socket.AF_UNIX else tcp_address(name[0], name[1])


def tcp_address(host: str, port: int) -> str:
    """Return the address of a port of a host; one of IPv6 gets its brackets.

    >>> tcp_address("::1", 7000), tcp_address("10.0.0.1", 7000)
    ('tcp:[::1]:7000', 'tcp:10.0.0.1:7000')
    """
    return f"tcp:[{host}]:{port}" if ":" in host else f"tcp:{host}:{port}"


def host_and_port(text: str) -> tuple[str, int]:
    """Return the parts of HOST:PORT, without brackets; `ValueError` if it is something else.

    >>> host_and_port("[::1]:7000")
    ('::1', 7000)
    """
    parts = _HOST_AND_PORT.fullmatch(text)
    if parts is None or int(parts["port"]) > 65_535:
        raise ValueError(f"an address is HOST:PORT, such as 10.0.0.5:7000 or [fd00::5]:7000, got {text!r}")
    return parts["v6"] or parts["host"], int(parts["port"])


def is_wildcard(address: str) -> bool:
    """Whether it stands for every address of a machine: a process can listen there, and none can connect to it.

    >>> is_wildcard("tcp:0.0.0.0:7000"), is_wildcard("tcp:10.0.0.1:7000"), is_wildcard("unix:/tmp/0.0.0.0")
    (True, False, False)
    >>> is_wildcard("tcp:[::]:7000")
    True
    """
    place = _parse(address)
    return not isinstance(place, str) and place[0] in ("0.0.0.0", "::")


async def connect(address: str) -> socket.socket:
    """Return a tuned connection to the process that listens at `address`."""
    place = _parse(address)
    if isinstance(place, str):
        return await _connect((socket.AF_UNIX, place), address)
    # Here, because `connect` would resolve a name and block the loop.
    found = await trio.socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
    refused: OSError | None = None
    for target in _ipv4_first(found):
        try:
            return await _connect(target, address)
        except OSError as error:
            refused = refused or error
    assert refused is not None, f"{address} has no address"
    raise refused


async def _connect(to: SocketTarget, address: str) -> socket.socket:
    family, target = to
    sock = network.open_socket(family)
    tune(sock)
    try:
        while True:
            try:
                sock.connect(target)
                return sock
            except BlockingIOError:  # A local listener's backlog is full, or the TCP handshake is in flight.
                if family == socket.AF_UNIX:
                    await trio.sleep(0.001)
                    continue
                await network.wait_writable(sock)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, f"cannot connect to {address}") from None
                return sock
    except BaseException:
        sock.close()
        raise


def connect_blocking(address: str, timeout_s: float) -> socket.socket:
    """Return a plain blocking connection, for a thread."""
    place = _parse(address)
    if not isinstance(place, str):
        return socket.create_connection(place, timeout_s)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout_s)
    try:
        sock.connect(place)
    except BaseException:
        sock.close()
        raise
    return sock


def own_address(peer: str, timeout_s: float) -> str:
    """Return where others reach this machine, at any port: its own end of a connection to `peer`."""
    with connect_blocking(peer, timeout_s) as sock:
        return tcp_address(sock.getsockname()[0], 0)


def _targets(address: str) -> list[SocketTarget]:
    place = _parse(address)
    if isinstance(place, str):
        return [(socket.AF_UNIX, place)]
    return _ipv4_first(socket.getaddrinfo(*place, type=socket.SOCK_STREAM))


def _ipv4_first(found: Iterable[tuple[Any, ...]]) -> list[SocketTarget]:
    return sorted(((family, target) for family, _, _, _, target in found), key=lambda each: each[0] != socket.AF_INET)


def _parse(address: str) -> str | tuple[str, int]:
    """Return a path, or host and port."""
    scheme, _, rest = address.partition(":")
    if scheme == "unix" and rest:
        return rest
    if scheme != "tcp":
        raise ValueError(f"an address is unix:PATH or tcp:HOST:PORT, got {address!r}")
    return host_and_port(rest)
