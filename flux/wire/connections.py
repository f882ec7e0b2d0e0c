"""Connections: dialled or accepted, with TLS if the run has it, and after the handshake: ready for a link.

Of two processes always the same one dials, and the other accepts. The one that dials keeps its link up by

    while not link.closed:
        try:
            await link.resume(await keep_dialling(where, own, link.peer, log))
        except OSError:
            continue                     # It broke again at once.
        while (frame := await link.receive()) is not None:
            ...

For the other, accepted connections keep it up: `let_in`, find the peer's link, `resume` it. One task reads

    while await link.resumed():
        while (frame := await link.receive()) is not None:
            ...

Neither ends by itself when the peer is dead: the caller closes the link then, and cancels the dialling.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ..system import network
from ..types.errors import AuthError, FluxError
from . import address, handshake
from .frames import MAGIC, BadFrame
from .strangers import await_authentication, log_closed
from .tls import HANDSHAKE, TLS_OPTIONS, Tls, secure

_RETRY_PAUSE_S = 0.01  # Before the first retry; twice as long before each further one.
_RETRY_PAUSE_MAX_S = 0.1
# The first byte, TLS and the handshake have a deadline each, with an error of its own.
_STRANGER_TIMEOUT_S = 4 * handshake.DEADLINE_S

Log = Callable[[int, str], None]  # A level of `logging`, and one line.


@dataclass(frozen=True, kw_only=True)
class Identity:
    """How this process identifies itself to others."""

    name: str
    run: str
    secret: bytes
    tls: Tls | None = None

    def __repr__(self) -> str:
        return f"Identity({self.name!r} of run {self.run!r})"  # It may be logged; the secret may not.


async def dial(where: str, own: Identity, expected: str | None = None) -> socket.socket:
    """Return a connection to the process at `where`, which must be `expected` if that is given.

    `OSError`: there is none now, retry. `AuthError`, `HandshakeRefused`, `BadFrame`: there will be none.
    """
    sock = await address.connect(where)
    if own.tls is not None:
        sock = await secure(sock, own.tls, listening=False)
    peer = await handshake.dial_handshake(sock, name=own.name, secret=own.secret, run=own.run)
    if expected is not None and peer != expected:
        sock.close()
        raise BadFrame(f"expected {expected!r} at {where}, got an answer of {peer!r}")
    return sock


async def keep_dialling(where: str, own: Identity, expected: str, log: Log) -> socket.socket:
    """Return a connection to `expected`, however long it takes; raise only what no retry would change."""
    pause_s = _RETRY_PAUSE_S
    while True:
        try:
            return await dial(where, own, expected)
        except OSError as error:
            if pause_s == _RETRY_PAUSE_S:
                log(logging.INFO, f"no connection to {expected} at {where}: {error}; retrying until there is one")
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, _RETRY_PAUSE_MAX_S)


async def let_in(
    sock: socket.socket, own: Identity, log: Log, refuse: handshake.Refuse = handshake.refuse_none
) -> tuple[str, socket.socket] | None:
    """Return the name of the peer on an accepted connection, and the connection to go on with.

    None if it is closed: the peer is not a process of the run, or `refuse` gave a reason. The log has one line about
    it, or of very many one with their number, and nothing else has changed. A peer that leaves without a byte is a port
    probe, of which there may be many: it gets no line. Nor does one of too many that have not authenticated.
    """
    where = _origin(sock)
    try:
        with await_authentication(_STRANGER_TIMEOUT_S):
            if not (first := await _first_byte(sock)):
                sock.close()
                return None
            await _refuse_other_transport(sock, first, own.tls)
            if own.tls is not None:
                sock = await secure(sock, own.tls, listening=True)
            peer = await handshake.answer_handshake(sock, name=own.name, secret=own.secret, run=own.run, refuse=refuse)
            return peer, sock
        sock.close()
    except (FluxError, BadFrame, OSError) as error:
        broke = isinstance(error, OSError) and not isinstance(error, TimeoutError)
        log_closed(log, logging.INFO if broke else logging.WARNING, f"closed a connection from {where}: {error}")
    return None


async def _first_byte(sock: socket.socket) -> bytes:
    """Return the first byte, which is still to be read; empty if the peer has left."""
    try:
        with trio.move_on_after(handshake.DEADLINE_S):
            while True:
                try:
                    return sock.recv(1, socket.MSG_PEEK)
                except BlockingIOError:
                    await network.wait_readable(sock)
                except ConnectionResetError:
                    return b""
        raise TimeoutError(f"the other end did not send anything within {handshake.DEADLINE_S:g} s")
    except BaseException:
        sock.close()
        raise


async def _refuse_other_transport(sock: socket.socket, first: bytes, tls: Tls | None) -> None:
    """Refuse TLS on a plain run, and plain frames on a run with TLS, with an error that says so."""
    if tls is None and first == HANDSHAKE:
        sock.close()
        raise AuthError(
            f"it began with TLS, and this process was started without: give all of a run {TLS_OPTIONS}, or none"
        )
    if tls is not None and first == MAGIC[:1]:
        await handshake.refuse_plain(sock)
        raise AuthError(f"it began without TLS, and this run uses it: start it with {TLS_OPTIONS}")


def _origin(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return "this machine"
    try:
        host, port, *_ = sock.getpeername()
    except OSError:
        return "an end that is gone"
    return f"{host}:{port}"
