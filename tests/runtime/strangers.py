"""Those who connect to a process of a run and do not belong there: what each says, and what the log must say of it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flux.protocols.messages import VERSION
from flux.wire import frames
from flux.wire.connections import Identity
from flux.wire.handshake import Dialler

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Stranger:
    """`act` does it over a connection, given who a process of the run would be; `log` is in the one line about it."""

    act: Callable[[socket.socket, Identity], None]
    log: str


def visit(path: str, stranger: Stranger, own: Identity) -> None:
    """Connect and misbehave; return when the other end has closed the connection."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(path)
        try:
            stranger.act(sock, own)
            while sock.recv(4_096):
                pass
        except ConnectionError:
            pass  # It was closed while more was being said.


def saying(data: bytes) -> Callable[[socket.socket, Identity], None]:
    """Say it, and wait for what comes of it."""
    return lambda sock, own: sock.sendall(data)


def greeting(**changes: Any) -> Callable[[socket.socket, Identity], None]:
    """Greet as a process of the run would, but for some of what is said."""

    def act(sock: socket.socket, own: Identity) -> None:
        greet = Dialler(own.name, own.secret, own.run).greet()
        sock.sendall(frames.encode({**greet, **changes}))

    return act


def proving(secret: bytes) -> Callable[[socket.socket, Identity], None]:
    """Greet properly; what is proved is that it knows `secret`, if that is given, else the run's."""

    def act(sock: socket.socket, own: Identity) -> None:
        dialler = Dialler(own.name, secret or own.secret, own.run)
        sock.sendall(frames.encode(dialler.greet()))
        sock.sendall(frames.encode(dialler.prove(_answer(sock))))

    return act


def telling(header: dict[str, Any]) -> Callable[[socket.socket, Identity], None]:
    """Know the secret, and say what makes no sense."""

    def act(sock: socket.socket, own: Identity) -> None:
        proving(b"")(sock, own)
        assert _answer(sock)["kind"] == "welcome"
        sock.sendall(frames.encode(header))

    return act


def member(message: Any) -> Callable[[socket.socket, Identity], None]:
    """Know the secret, and send the controller this message."""
    return telling({"kind": "membership", "m": message})


def _answer(sock: socket.socket) -> dict[str, Any]:
    with sock.makefile("rb") as incoming:
        header_bytes, _ = frames.decode_prefix(incoming.read(frames.PREFIX.size))
        return frames.decode_header(incoming.read(header_bytes))


STRANGERS = {
    "another program": Stranger(saying(b"GET / HTTP/1.1\r\nHost: flux\r\n\r\n"), "not a Flux process"),
    "no msgpack": Stranger(saying(frames.PREFIX.pack(b"Fx", frames.VERSION, 8, 0) + b"\xc1" * 8), "is not msgpack"),
    "oversized header": Stranger(
        saying(frames.PREFIX.pack(b"Fx", frames.VERSION, 1 << 30, 0)), "1,073,741,824 + 0 bytes is over the limits"
    ),
    "a body": Stranger(saying(frames.PREFIX.pack(b"Fx", frames.VERSION, 10, 1 << 20)), "10 + 1,048,576 bytes"),
    "another wire": Stranger(
        saying(frames.PREFIX.pack(b"Fx", frames.VERSION + 1, 10, 0)), f"expected wire version {frames.VERSION}, got"
    ),
    "another protocol": Stranger(
        greeting(protocol=VERSION + 1),
        f"speaks protocol version {VERSION + 1}, this process {VERSION}; run one release",
    ),
    "another run": Stranger(greeting(run="of last week"), "greeted for run 'of last week', and this is run 'flux-"),
    "a bad nonce": Stranger(greeting(nonce=b"short"), "expected a nonce of 32 bytes"),
    "no greeting": Stranger(saying(frames.encode({"kind": "stop"})), "expected a greet, got 'stop'"),
    "another secret": Stranger(proving(b"guessed"), "does not know the secret of run 'flux-"),
    "with TLS": Stranger(
        saying(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), "it began with TLS, and this process"
    ),
    "the silent": Stranger(lambda sock, own: None, "did not send anything within 5 s"),
    "half a frame": Stranger(
        saying(frames.PREFIX.pack(b"Fx", frames.VERSION, 10, 0)), "did not finish the handshake within 5 s"
    ),
}
DEAD = Stranger(proving(b""), "was refused: ")
# At the controller, from who knows the secret.
CONFUSED = {
    "no address": Stranger(member({"$": "NodeAddress"}), "NodeAddress has the fields address; got ['$']"),
    "no message": Stranger(member(None), "expected a message, got None"),
    "no peer": Stranger(member({"$": "PeerUnreachable", "peer": 7}), "PeerUnreachable.peer: expected text, got 7"),
    "bad digests": Stranger(
        member({"$": "EmittedDigests", "stage": 1, "position": 1, "partitions": [1, 2], "digests": [3]}),
        "expected a digest for each partition of a stage, got EmittedDigests(",
    ),
    "no numbers": Stranger(
        member({"$": "EmittedDigests", "stage": 1, "position": 1, "partitions": ["a"], "digests": [3]}),
        "EmittedDigests.partitions: expected an integer of 64 bits, got 'a'",
    ),
    "newer": Stranger(member({"$": "NodeAddress", "address": "x", "zone": 1}), "NodeAddress has the fields address;"),
    "unknown": Stranger(telling({"kind": "sing"}), "expected a frame of kind 'membership', got 'sing'"),
}
