"""Connections: made and let in, with TLS if the run has it, and greeted: ready for a link.

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

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ..types.errors import AuthError, FluxError
from . import address, handshake
from .frames import MAGIC, BadFrame
from .tls import HANDSHAKE, TLS_OPTIONS, Tls, secure

_PAUSE_S = 0.01  # Before the second try; twice as long before each further one.
_PAUSE_MAX_S = 0.1

Log = Callable[[int, str], None]  # A level of `logging`, and one line.


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
    peer = await handshake.dial_handshake(sock, name=own.name, secret=own.secret, run=own.run)
    if expected is not None and peer != expected:
        sock.close()
        raise BadFrame(f"expected {expected!r} at {where}, and {peer!r} answered")
    return sock


async def keep_dialling(where: str, own: Identity, expected: str, log: Log) -> socket.socket:
    """A connection to `expected`, however long it takes; only what no other try would change is raised."""
    pause_s = _PAUSE_S
    while True:
        try:
            return await dial(where, own, expected)
        except OSError as error:
            if pause_s == _PAUSE_S:
                log(logging.INFO, f"no connection to {expected} at {where}: {error}; trying again until there is one")
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


def dial_in_thread(where: str, own: Identity, timeout_s: float) -> socket.socket:
    """As `dial`, for a thread without a loop: the connection is a blocking one."""

    async def patiently() -> socket.socket:
        with trio.move_on_after(timeout_s):
            return await dial(where, own)
        raise TimeoutError(f"no connection to {where} within {timeout_s:g} s")

    sock = trio.run(patiently)
    sock.settimeout(timeout_s)
    return sock


async def let_in(
    sock: socket.socket, own: Identity, log: Log, refuse: handshake.Refuse = handshake.everyone
) -> tuple[str, socket.socket] | None:
    """Who it is on a connection that was accepted, and the connection to go on with.

    None if it is closed: it was no process of the run, or one for which `refuse` gave a reason. The log has one
    line about it, and nothing else has changed. Who leaves without a word only looked whether somebody listens: there
    are programs that do so all the time, and no line.
    """
    where = _origin(sock)
    try:
        if not (first := await _first_byte(sock)):
            sock.close()
            return None
        await _refuse_the_other_way(sock, first, own.tls)
        if own.tls is not None:
            sock = await secure(sock, own.tls, listening=True)
        peer = await handshake.answer_handshake(sock, name=own.name, secret=own.secret, run=own.run, refuse=refuse)
    except (FluxError, BadFrame, OSError) as error:
        broke = isinstance(error, OSError) and not isinstance(error, TimeoutError)
        log(logging.INFO if broke else logging.WARNING, f"closed a connection from {where}: {error}")
        return None
    return peer, sock


async def _first_byte(sock: socket.socket) -> bytes:
    """What comes first, and is still to be read; empty if nothing ever will."""
    try:
        with trio.move_on_after(handshake.DEADLINE_S):
            while True:
                try:
                    return sock.recv(1, socket.MSG_PEEK)
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(sock)
                except ConnectionResetError:
                    return b""
        raise TimeoutError(f"the other end did not say anything within {handshake.DEADLINE_S:g} s")
    except BaseException:
        sock.close()
        raise


async def _refuse_the_other_way(sock: socket.socket, first: bytes, tls: Tls | None) -> None:
    """With TLS and without do not understand each other; here both can be told apart, and the reason be said."""
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
