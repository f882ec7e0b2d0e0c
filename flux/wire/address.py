"""Addresses at which processes listen: `unix:PATH` on one machine, `tcp:HOST:PORT` between machines."""

from __future__ import annotations

import errno
import socket

import trio

from ..types.errors import FluxError
from .link import tune

_BACKLOG = 128


def listen(address: str) -> socket.socket:
    """Return a listening socket at `address`."""
    family, target = _parse(address)
    sock = socket.socket(family)
    try:
        if family == socket.AF_INET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        why = error.strerror or f"{error}; give a shorter temporary directory by TMPDIR"
        if error.errno == errno.EADDRINUSE and family == socket.AF_INET:
            why += "; end the process that listens there, or choose another port"
        raise FluxError(f"cannot listen at {address}: {why}") from error
    sock.setblocking(False)
    return sock


def bound(sock: socket.socket) -> str:
    """Return the address of a listening socket; for port 0, with the port that it got."""
    name = sock.getsockname()
    return f"unix:{name}" if sock.family == socket.AF_UNIX else f"tcp:{name[0]}:{name[1]}"


def is_wildcard(address: str) -> bool:
    """Whether it stands for every address of a machine: a process can listen there, and none can connect to it.

    >>> is_wildcard("tcp:0.0.0.0:7000"), is_wildcard("tcp:10.0.0.1:7000"), is_wildcard("unix:/tmp/0.0.0.0")
    (True, False, False)
    """
    family, target = _parse(address)
    return family != socket.AF_UNIX and target[0] in ("", "0.0.0.0", "::")


async def connect(address: str) -> socket.socket:
    """Return a tuned connection to the process that listens at `address`."""
    family, target = _parse(address)
    if not isinstance(target, str):
        # Here, because `connect` would resolve a name and block the loop.
        host, port = target
        found = await trio.socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
        target = str(found[0][4][0]), port
    sock = socket.socket(family)
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
                await trio.lowlevel.wait_writable(sock)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, f"cannot connect to {address}") from None
                return sock
    except BaseException:
        sock.close()
        raise


def connect_blocking(address: str, timeout_s: float) -> socket.socket:
    """Return a plain blocking connection, for a thread."""
    family, target = _parse(address)
    sock = socket.socket(family)
    sock.settimeout(timeout_s)
    try:
        sock.connect(target)
    except BaseException:
        sock.close()
        raise
    return sock


def _parse(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    scheme, _, rest = address.partition(":")
    if scheme == "unix" and rest:
        return socket.AF_UNIX, rest
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and host and port.isdigit():
        return socket.AF_INET, (host, int(port))
    raise ValueError(f"an address is unix:PATH or tcp:HOST:PORT, got {address!r}")
