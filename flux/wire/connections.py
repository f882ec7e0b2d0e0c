"""Connections: made and let in, with TLS if the run has it, and greeted: ready for `Link.resume`.

Of two processes one dials and the other lets in, always the same one. The one that dials keeps its link up by

    while not link.closed:
        try:
            await link.resume(await keep_dialling(where, own, link.peer, log))
        except OSError:
            continue                     # It broke again at once.
        while (frame := await link.receive()) is not None:
            ...

and for the other the connections that it lets in do that: `let_in`, find the peer's link, `resume` it; one task reads

    while await link.resumed():
        while (frame := await link.receive()) is not None:
            ...

Neither ends by itself when the peer is dead: whoever learns that closes the link, and cancels the dialling.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ..errors import FluxError
from . import address, greeting
from .frames import BadFrame
from .tls import Tls, secure

_PAUSE_S = 0.01  # Before the second try; twice as long before each further one.
_PAUSE_MAX_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who this process is to others."""

    name: str
    run: str
    secret: bytes
    tls: Tls | None = None

    def __repr__(self) -> str:
        return f"Identity({self.name!r} of run {self.run!r})"  # It may be logged; the secret may not.


async def dial(where: str, own: Identity, expected: str | None = None) -> socket.socket:
    """A connection to the process at `where`, which is `expected` if that is given.

    `OSError`: there is none now, try again. `AuthError`, `Refused`, `BadFrame`: there will be none.
    """
    sock = await address.connect(where)
    if own.tls is not None:
        sock = await secure(sock, own.tls, listening=False)
    peer = await greeting.greet(sock, name=own.name, secret=own.secret, run=own.run)
    if expected is not None and peer != expected:
        sock.close()
        raise BadFrame(f"expected {expected!r} at {where}, and {peer!r} answered")
    return sock


async def keep_dialling(where: str, own: Identity, expected: str, log: Callable[[str], None]) -> socket.socket:
    """A connection to `expected`, however long it takes; only what no other try would change is raised."""
    pause_s = _PAUSE_S
    while True:
        try:
            return await dial(where, own, expected)
        except OSError as error:
            if pause_s == _PAUSE_S:
                log(f"no connection to {expected} at {where}: {error}; trying again until there is one")
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


async def let_in(
    sock: socket.socket,
    own: Identity,
    log: Callable[[str], None],
    refuse: greeting.Refuse = greeting.everyone,
) -> tuple[str, socket.socket] | None:
    """Who it is on a connection that was accepted, and the connection to go on with.

    None if it is closed: it was no process of the run, or one for which `refuse` gave a reason. The log has one
    line about it, and nothing else has changed.
    """
    where = _origin(sock)
    try:
        if own.tls is not None:
            sock = await secure(sock, own.tls, listening=True)
        peer = await greeting.answer(sock, name=own.name, secret=own.secret, run=own.run, refuse=refuse)
    except (FluxError, BadFrame, OSError) as error:
        log(f"closed a connection from {where}: {error}")
        return None
    return peer, sock


def _origin(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return "this machine"
    try:
        host, port, *_ = sock.getpeername()
    except OSError:
        return "an end that is gone"
    return f"{host}:{port}"
