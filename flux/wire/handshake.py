"""Handshake: the first frames on a connection: each end proves to the other that it knows the run's secret.

    dialler   greet      protocol, run, name, nonce
    listener  challenge  protocol, name, nonce
    dialler   proof      HMAC-SHA256 under the secret
    listener  welcome    the same in its own role;  or refused: a reason

A proof covers everything sent: both nonces, both names, the run, the version of the protocol, the role of the prover,
and the verdict. So nothing recorded on one connection can be replayed on another, nor in the other role. The dialler
proves first: a stranger that only dials gets nothing that depends on the secret. A refusal for a reason (the peer was
declared dead) carries a proof too, because its receiver will end. Other refusals do not, and mean only that this
connection is closed.

A command that was only given an address does not know the name of the run there: it greets for `ANY_RUN`.

What follows on the connection is not signed: where others can write to the network, use TLS (`tls`). Until a peer has
authenticated, it may send `frames.STRANGER_MAX_BYTES` at a time and nothing after `DEADLINE_S`.

`Dialler` and `Listener` are the handshake without a connection; `dial_handshake` and `answer_handshake` perform it over
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
_WELCOME = ""  # The reason for a peer that is not refused.

Refuse = Callable[[str], str | None]  # Returns why a peer of this name is refused; None if it is not.


class HandshakeRefused(FluxError):
    """One end authenticated the other and refused it for a reason, such as that it was declared dead."""

    def __init__(self, reason: str, event: str = "") -> None:
        super().__init__(f"{event}{': ' if event else ''}{reason}")
        self.reason = reason


def refuse_none(name: str) -> str | None:
    """Admit every peer that has authenticated."""
    return None


class Dialler:
    """The handshake at the end that made the connection."""

    def __init__(self, name: str, secret: bytes, run: str) -> None:
        self._own = {"protocol": VERSION, "run": run, "name": name, "nonce": secrets.token_bytes(_NONCE_BYTES)}
        self._run = run
        self._secret = secret
        self._listener = ""
        self._transcript: list[Any] = []

    def greet(self) -> dict[str, Any]:
        """Return the first frame."""
        return {"kind": "greet", **self._own}

    def prove(self, challenge: dict[str, Any]) -> dict[str, Any]:
        """Return the frame that answers the challenge."""
        _raise_refusal(challenge, _run_name(self._run))
        _expect(challenge, "challenge")
        if not _is_our_protocol(challenge):
            raise _other_protocol(challenge, "the other end")
        self._listener = _name(challenge, "name")
        own = self._own
        self._transcript = [VERSION, self._run, own["name"], self._listener, own["nonce"], _nonce(challenge)]
        return {"kind": "proof", "proof": _proof(self._secret, "dialler", self._transcript, _WELCOME)}

    def conclude(self, verdict: dict[str, Any]) -> str:
        """Return the listener's name, if it admitted this process and proved to be of the same run."""
        assert self._transcript, "no proof yet"
        if verdict["kind"] == "refused" and "proof" in verdict:
            reason = _text(verdict, "reason", _REASON_MAX_CHARS)
            self._check(verdict, reason)
            raise HandshakeRefused(reason, f"{self._listener!r} refused this process, {self._own['name']!r}")
        _raise_refusal(verdict, _run_name(self._run))
        _expect(verdict, "welcome")
        self._check(verdict, _WELCOME)
        return self._listener

    def _check(self, verdict: dict[str, Any], reason: str) -> None:
        if not _is_proof(verdict.get("proof"), self._secret, "listener", self._transcript, reason):
            raise AuthError(
                f"{self._listener!r} at the other end does not know the secret of {_run_name(self._run)}, and is not "
                "trusted. Is the address the right one, and was the same secret given to it?"
            )


class Listener:
    """The handshake at the end that accepted the connection; `refusal` is the frame to send before closing it."""

    def __init__(self, name: str, secret: bytes, run: str) -> None:
        self.refusal: dict[str, Any] | None = None
        self._name = name
        self._run = run
        self._secret = secret
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._peer = ""
        self._transcript: list[Any] = []

    def challenge(self, greeting: dict[str, Any]) -> dict[str, Any]:
        """Return the frame that answers a greeting."""
        _expect(greeting, "greet")
        if not _is_our_protocol(greeting):
            self.refusal = {"kind": "refused", "why": "protocol", "protocol": VERSION}
            raise _other_protocol(greeting, f"a process that calls itself {frames.format_value(greeting.get('name'))}")
        self._peer = _name(greeting, "name")
        run = _name(greeting, "run")
        if run not in (self._run, ANY_RUN):
            self.refusal = {"kind": "refused", "why": "run"}
            raise AuthError(
                f"{self._peer!r} greeted for run {run!r}, and this is run {self._run!r}; give it this run's name, or "
                "the address of its own run"
            )
        self._transcript = [VERSION, run, self._peer, self._name, _nonce(greeting), self._nonce]
        return {"kind": "challenge", "protocol": VERSION, "name": self._name, "nonce": self._nonce}

    def judge(self, proof: dict[str, Any], refuse: Refuse = refuse_none) -> tuple[str, dict[str, Any]]:
        """Return the dialler's name and the frame to send, if it proved to be of this run and is not refused."""
        assert self._transcript, "no greeting yet"
        _expect(proof, "proof")
        if not _is_proof(proof.get("proof"), self._secret, "dialler", self._transcript, _WELCOME):
            self.refusal = {"kind": "refused", "why": "secret"}
            raise AuthError(
                f"a process that calls itself {self._peer!r} does not know the secret of run {self._run!r}; if it "
                "belongs to the run, start it with the same secret"
            )
        reason = refuse(self._peer)
        if reason is not None:
            reason = reason[:_REASON_MAX_CHARS] or "no reason was given"
            self.refusal = {"kind": "refused", "reason": reason, "proof": self._prove(reason)}
            raise HandshakeRefused(reason, f"{self._peer!r} was refused")
        return self._peer, {"kind": "welcome", "proof": self._prove(_WELCOME)}

    def _prove(self, reason: str) -> bytes:
        return _proof(self._secret, "listener", self._transcript, reason)


async def dial_handshake(
    sock: socket.socket, *, name: str, secret: bytes, run: str, deadline_s: float = DEADLINE_S
) -> str:
    """Perform the handshake over a connection that this process made; return the listener's name.

    `AuthError` and `HandshakeRefused` are final; an `OSError`, such as a timeout, is worth a retry. When anything is
    raised the connection is closed.
    """
    dialler, reader = Dialler(name, secret, run), Reader(sock)
    with _close_on_error(sock, deadline_s):
        await _send(sock, dialler.greet())
        await _send(sock, dialler.prove(await _receive(reader)))
        return dialler.conclude(await _receive(reader))


async def answer_handshake(
    sock: socket.socket,
    *,
    name: str,
    secret: bytes,
    run: str,
    refuse: Refuse = refuse_none,
    deadline_s: float = DEADLINE_S,
) -> str:
    """Perform the handshake over a connection that was accepted; return the dialler's name.

    `refuse` is called for a dialler that has proved to be of the run; one with a reason is refused. When anything is
    raised (`AuthError`, `HandshakeRefused`, `BadFrame`, `OSError`) the connection is closed.
    """
    listener, reader = Listener(name, secret, run), Reader(sock)
    with _close_on_error(sock, deadline_s):
        try:
            await _send(sock, listener.challenge(await _receive(reader)))
            peer, welcome = listener.judge(await _receive(reader), refuse)
        except FluxError:
            if listener.refusal is not None:
                await _send_and_close(sock, listener.refusal)
            raise
        await _send(sock, welcome)
        return peer


@contextlib.contextmanager
def _close_on_error(sock: socket.socket, deadline_s: float) -> Iterator[None]:
    try:
        with trio.move_on_after(deadline_s) as deadline:
            yield
            return
        assert deadline.cancelled_caught
        raise TimeoutError(f"the other end did not finish the handshake within {deadline_s:g} s")
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
    """Send a dialler that greets without TLS the reason why it is refused, and close the connection."""
    await _send_and_close(sock, {"kind": "refused", "why": "tls"})


async def _send(sock: socket.socket, header: dict[str, Any]) -> None:
    await write_all(sock, frames.encode(header))


async def _send_and_close(sock: socket.socket, header: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        await _send(sock, header)
    await close_gently(sock)


async def _receive(reader: Reader) -> dict[str, Any]:
    header, _, _ = await reader.read_frame(frames.STRANGER_MAX_BYTES, 0)
    return header


def _proof(secret: bytes, role: str, transcript: list[Any], reason: str) -> bytes:
    return hmac.digest(secret, msgpack.packb(["flux greeting", role, reason, *transcript]), "sha256")


def _is_proof(given: Any, secret: bytes, role: str, transcript: list[Any], reason: str) -> bool:
    return isinstance(given, bytes) and hmac.compare_digest(given, _proof(secret, role, transcript, reason))


def _run_name(run: str) -> str:
    return "the run there" if run == ANY_RUN else f"run {run!r}"


def _raise_refusal(header: dict[str, Any], run: str) -> None:
    """Raise the error for a refusal without a proof, which is valid for this connection only."""
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
            "the other end accepts TLS only, and this process has no certificate: start it with "
            f"{TLS_OPTIONS}, as the other one"
        )
    raise frames.BadFrame(f"refused, for a reason unknown to this release: {frames.format_value(why)}")


def _is_our_protocol(header: dict[str, Any]) -> bool:
    theirs = header.get("protocol")
    return type(theirs) is int and theirs == VERSION


def _other_protocol(header: dict[str, Any], peer: str) -> AuthError:
    return AuthError(
        f"{peer} speaks protocol version {frames.format_value(header.get('protocol'))}, this process {VERSION}; run "
        "one release everywhere"
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
