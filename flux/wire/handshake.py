"""Greeting: the first words on a connection: each end proves to the other that it knows the run's secret.

    dialler   greet      protocol, run, name, nonce
    listener  challenge  protocol, name, nonce
    dialler   proof      HMAC-SHA256 under the secret
    listener  welcome    the same in its own role;  or refused: a reason

A proof is over everything that was said: both nonces, both names, the run, the version of the protocol, the role of
who proves, and the verdict. So nothing heard on one connection is of any use on another, nor for the other role. The
dialler proves first: a stranger who only dials hears nothing that depends on the secret. A refusal for a reason
(the peer was declared dead) carries a proof too, because who hears it will end; the others do not, and mean only that
this connection is closed.

A command that was only given an address does not know what the run there is called: it greets for `ANY_RUN`.

What follows on the connection is not signed: where others can write to the network, use TLS (`tls`). Until it has
proved who it is, a peer may send `frames.STRANGER_MAX_BYTES` at a time and nothing after `DEADLINE_S`.

`Dialler` and `Listener` are the conversation without a connection; `dial_handshake` and `answer_handshake` hold it over
one.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import trio

from ..protocols.messages import VERSION
from ..types.errors import AuthError, FluxError
from . import frames
from .sockets import Reader, close_gently, write_all
from .tls import TLS_OPTIONS

DEADLINE_S = 5.0
ANY_RUN = "*"

_NONCE_BYTES = 32
_NAME_MAX_CHARS = 200
_REASON_MAX_CHARS = 1_000
_WELCOME = ""  # The reason of who is not refused.

Refuse = Callable[[str], str | None]  # Why a peer of this name is not let in; None if it is.


class HandshakeRefused(FluxError):
    """The other end knows us and will not talk to us, for a reason: we were declared dead. Or we refused it so."""

    def __init__(self, reason: str, who: str = "") -> None:
        super().__init__(f"{who}{': ' if who else ''}{reason}")
        self.reason = reason


def everyone(name: str) -> str | None:
    """Let in whoever proves to be of the run."""
    return None


class Dialler:
    """The end that made the connection."""

    def __init__(self, name: str, secret: bytes, run: str) -> None:
        self._own = {"protocol": VERSION, "run": run, "name": name, "nonce": secrets.token_bytes(_NONCE_BYTES)}
        self._run = run
        self._secret = secret
        self._listener = ""
        self._transcript: list[Any] = []

    def greet(self) -> dict[str, Any]:
        """What to say first."""
        return {"kind": "greet", **self._own}

    def prove(self, challenge: dict[str, Any]) -> dict[str, Any]:
        """What to say to the challenge."""
        _raise_refusal(challenge, _called(self._run))
        _expect(challenge, "challenge")
        if not _is_our_protocol(challenge):
            raise _other_protocol(challenge, "the other end")
        self._listener = _name(challenge, "name")
        own = self._own
        self._transcript = [VERSION, self._run, own["name"], self._listener, own["nonce"], _nonce(challenge)]
        return {"kind": "proof", "proof": _proof(self._secret, "dialler", self._transcript, _WELCOME)}

    def conclude(self, verdict: dict[str, Any]) -> str:
        """The listener's name, if it let us in and proved to be of our run."""
        assert self._transcript, "nothing was proved yet"
        if verdict["kind"] == "refused" and "proof" in verdict:
            reason = _text(verdict, "reason", _REASON_MAX_CHARS)
            self._check(verdict, reason)
            raise HandshakeRefused(reason, f"{self._listener!r} refused this process, {self._own['name']!r}")
        _raise_refusal(verdict, _called(self._run))
        _expect(verdict, "welcome")
        self._check(verdict, _WELCOME)
        return self._listener

    def _check(self, verdict: dict[str, Any], reason: str) -> None:
        if not _is_proof(verdict.get("proof"), self._secret, "listener", self._transcript, reason):
            raise AuthError(
                f"{self._listener!r} at the other end does not know the secret of {_called(self._run)}, and is not "
                "trusted. Is the address the right one, and was the same secret given to it?"
            )


class Listener:
    """The end that accepted the connection. `parting` is what to say before it is closed, if anything."""

    def __init__(self, name: str, secret: bytes, run: str) -> None:
        self.parting: dict[str, Any] | None = None
        self._name = name
        self._run = run
        self._secret = secret
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._peer = ""
        self._transcript: list[Any] = []

    def challenge(self, greeting: dict[str, Any]) -> dict[str, Any]:
        """What to say to who greets."""
        _expect(greeting, "greet")
        if not _is_our_protocol(greeting):
            self.parting = {"kind": "refused", "why": "protocol", "protocol": VERSION}
            raise _other_protocol(greeting, f"who calls itself {frames.format_value(greeting.get('name'))}")
        self._peer = _name(greeting, "name")
        run = _name(greeting, "run")
        if run not in (self._run, ANY_RUN):
            self.parting = {"kind": "refused", "why": "run"}
            raise AuthError(
                f"{self._peer!r} greeted for run {run!r}, and this is run {self._run!r}; give it this run's name, or "
                "the address of its own run"
            )
        self._transcript = [VERSION, run, self._peer, self._name, _nonce(greeting), self._nonce]
        return {"kind": "challenge", "protocol": VERSION, "name": self._name, "nonce": self._nonce}

    def judge(self, proof: dict[str, Any], refuse: Refuse = everyone) -> tuple[str, dict[str, Any]]:
        """The dialler's name and what to say to it, if it proved to be of our run and nothing is against it."""
        assert self._transcript, "nobody has greeted yet"
        _expect(proof, "proof")
        if not _is_proof(proof.get("proof"), self._secret, "dialler", self._transcript, _WELCOME):
            self.parting = {"kind": "refused", "why": "secret"}
            raise AuthError(
                f"who calls itself {self._peer!r} does not know the secret of run {self._run!r}; if it belongs to the "
                "run, start it with the same secret"
            )
        reason = refuse(self._peer)
        if reason is not None:
            reason = reason[:_REASON_MAX_CHARS] or "no reason was given"
            self.parting = {"kind": "refused", "reason": reason, "proof": self._prove(reason)}
            raise HandshakeRefused(reason, f"{self._peer!r} was refused")
        return self._peer, {"kind": "welcome", "proof": self._prove(_WELCOME)}

    def _prove(self, reason: str) -> bytes:
        return _proof(self._secret, "listener", self._transcript, reason)


async def dial_handshake(
    sock: socket.socket, *, name: str, secret: bytes, run: str, deadline_s: float = DEADLINE_S
) -> str:
    """Greet over a connection that this process made; return the listener's name.

    `AuthError` and `HandshakeRefused` are final; an `OSError`, such as a timeout, is worth another try. When anything
    is raised the connection is closed.
    """
    dialler, reader = Dialler(name, secret, run), Reader(sock)
    with _closed_unless_greeted(sock, deadline_s):
        await _say(sock, dialler.greet())
        await _say(sock, dialler.prove(await _hear(reader)))
        return dialler.conclude(await _hear(reader))


async def answer_handshake(
    sock: socket.socket,
    *,
    name: str,
    secret: bytes,
    run: str,
    refuse: Refuse = everyone,
    deadline_s: float = DEADLINE_S,
) -> str:
    """Answer a greeting on a connection that was accepted; return the dialler's name.

    `refuse` is asked about one that has proved to be of the run: a reason sends it away. When anything is raised
    (`AuthError`, `HandshakeRefused`, `BadFrame`, `OSError`) the connection is closed.
    """
    listener, reader = Listener(name, secret, run), Reader(sock)
    with _closed_unless_greeted(sock, deadline_s):
        try:
            await _say(sock, listener.challenge(await _hear(reader)))
            peer, welcome = listener.judge(await _hear(reader), refuse)
        except FluxError:
            if listener.parting is not None:
                await _part(sock, listener.parting)
            raise
        await _say(sock, welcome)
        return peer


@contextlib.contextmanager
def _closed_unless_greeted(sock: socket.socket, deadline_s: float) -> Iterator[None]:
    try:
        with trio.move_on_after(deadline_s) as patience:
            yield
            return
        assert patience.cancelled_caught
        raise TimeoutError(f"the other end did not finish its greeting within {deadline_s:g} s")
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        sock.close()
        raise
    except ssl.SSLError as error:
        sock.close()
        raise AuthError(f"the other end does not accept this process's certificate: {error.reason}") from error
    except BaseException:
        sock.close()
        raise


async def refuse_plain(sock: socket.socket) -> None:
    """Tell a dialler that greets without TLS why it is not let in, and close the connection."""
    await _part(sock, {"kind": "refused", "why": "tls"})


async def _say(sock: socket.socket, header: dict[str, Any]) -> None:
    await write_all(sock, frames.encode(header))


async def _part(sock: socket.socket, header: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        await _say(sock, header)
    await close_gently(sock)


async def _hear(reader: Reader) -> dict[str, Any]:
    header, _, _ = await reader.read_frame(frames.STRANGER_MAX_BYTES, 0)
    return header


def _proof(secret: bytes, role: str, transcript: list[Any], reason: str) -> bytes:
    return hmac.digest(secret, msgpack.packb(["flux greeting", role, reason, *transcript]), "sha256")


def _is_proof(given: Any, secret: bytes, role: str, transcript: list[Any], reason: str) -> bool:
    return isinstance(given, bytes) and hmac.compare_digest(given, _proof(secret, role, transcript, reason))


def _called(run: str) -> str:
    return "the run there" if run == ANY_RUN else f"run {run!r}"


def _raise_refusal(header: dict[str, Any], run: str) -> None:
    """An unproved refusal says that this connection is of no use, and no more."""
    if header["kind"] != "refused":
        return
    why = header.get("why")
    if why == "protocol":
        raise _other_protocol(header, "the other end")
    if why == "run":
        raise AuthError(f"the other end is of another run, not of {run}; is the address the right one?")
    if why == "secret":
        raise AuthError(
            f"the other end did not accept our proof: this process has another secret than {run}; give both the same "
            "one"
        )
    if why == "tls":
        raise AuthError(
            "the other end talks over TLS only, and this process was given no certificate: start it with "
            f"{TLS_OPTIONS}, as the other one was"
        )
    raise frames.BadFrame(f"refused, for no reason that this release knows: {frames.format_value(why)}")


def _is_our_protocol(header: dict[str, Any]) -> bool:
    theirs = header.get("protocol")
    return type(theirs) is int and theirs == VERSION


def _other_protocol(header: dict[str, Any], who: str) -> AuthError:
    return AuthError(
        f"{who} speaks protocol version {frames.format_value(header.get('protocol'))}, this process {VERSION}; run one "
        "release everywhere"
    )


def _expect(header: dict[str, Any], kind: str) -> None:
    if header["kind"] != kind:
        raise frames.BadFrame(f"expected a {kind}, got {frames.format_value(header['kind'])}")


def _name(header: dict[str, Any], field: str) -> str:
    name = _text(header, field, _NAME_MAX_CHARS)
    if not name:
        raise frames.BadFrame(f"{field} is empty")
    return name


def _text(header: dict[str, Any], field: str, max_chars: int) -> str:
    text = header.get(field)
    if not isinstance(text, str) or len(text) > max_chars:
        raise frames.BadFrame(
            f"expected {field} as text of at most {max_chars} characters, got {frames.format_value(text)}"
        )
    return text


def _nonce(header: dict[str, Any]) -> bytes:
    nonce = header.get("nonce")
    if not isinstance(nonce, bytes) or len(nonce) != _NONCE_BYTES:
        raise frames.BadFrame(f"expected a nonce of {_NONCE_BYTES} bytes, got {frames.format_value(nonce)}")
    return nonce
