"""The protocol between a Spark task and the ingress: frames, limits, proofs of the shared secret.

Each request has its own TCP connection::

    ingress: hello {version, challenge}
    task:    proof {challenge, proof}            HMAC-SHA256 over both challenges, under the secret
    ingress: welcome {proof}                     so that the task authenticates the ingress before it sends a row
    task:    request {do: stage | commit | abort | stop | end, ...}
    ingress: answer {ok} or {error, kind}
    task:    chunks, for stage only; one of length zero marks the end
    ingress: answer {ok} or {error, kind}

A frame is four bytes of length and a msgpack map; a chunk is eight bytes of length and opaque bytes (together,
the chunks of an attempt are one Arrow IPC stream). Nothing is unpickled. Every length is checked against a
limit before a byte of it is read; the limit is small until the proof is verified.

This module opens no socket: one end does blocking I/O, the other uses trio. It is pickled by value for the
executors (see `session`), so its globals are plain values and it imports nothing of Flux.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any

import msgpack

VERSION = 1
FRAME_LENGTH_BYTES = 4
CHUNK_LENGTH_BYTES = 8
CHALLENGE_BYTES = 32

# An unauthenticated peer can make the ingress buffer this much. A commit of tens of thousands of partitions fits into
# the limit for authenticated ones.
HANDSHAKE_LIMIT_BYTES = 1024
FRAME_LIMIT_BYTES = 4 * 1024 * 1024

# One chunk is one Arrow batch of Spark's, some hundred kilobytes unless rows are huge. The ingress does not buffer
# chunks in memory, so this only catches a peer that is out of step with the stream.
CHUNK_LIMIT_BYTES = 8 * 1024 * 1024 * 1024

HANDSHAKE_TIMEOUT_S = 30.0

# The end of an Arrow IPC stream.
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

TASK = b"task"
INGRESS = b"ingress"

# Kinds of refusal, so that the other end can raise the matching exception.
AUTH = "auth"
PROTOCOL = "protocol"
STAGING = "staging"

# Both become parts of file names, so the alphabet has no separator and no leading dot.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_NUMBER_LIMIT = 2**63


class ProtocolError(Exception):
    """The other end sent what the protocol does not allow at this point."""


def pack(message: dict[str, Any]) -> bytes:
    """Return a message as a frame, length first."""
    body: bytes = msgpack.packb(message)
    if len(body) > FRAME_LIMIT_BYTES:
        raise ValueError(
            f"flux staging: a message of {len(body):,} bytes is over the limit of {FRAME_LIMIT_BYTES:,}; "
            "write with fewer partitions (coalesce the DataFrame)"
        )
    return len(body).to_bytes(FRAME_LENGTH_BYTES, "big") + body


def body_length(prefix: bytes, limit_bytes: int) -> int:
    """Return the length of the frame that begins with this prefix, if it is within the limit."""
    length = int.from_bytes(prefix, "big")
    if not 0 < length <= limit_bytes:
        raise ProtocolError(f"a frame of 1 to {limit_bytes:,} bytes was expected, got {length:,}")
    return length


def chunk_length(prefix: bytes) -> int:
    """Return the length of the chunk that begins with this prefix; zero is the end."""
    length = int.from_bytes(prefix, "big")
    if length > CHUNK_LIMIT_BYTES:
        raise ProtocolError(f"a chunk of at most {CHUNK_LIMIT_BYTES:,} bytes was expected, got {length:,}")
    return length


def unpack(body: bytes) -> dict[str, Any]:
    """Return the message in the body of a frame."""
    try:
        message = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"a msgpack map was expected, got invalid msgpack: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError(f"a msgpack map was expected, got a {type(message).__name__}")
    return message


def proof(secret: bytes, role: bytes, ingress_challenge: bytes, task_challenge: bytes) -> bytes:
    """Return the HMAC that proves knowledge of the secret in this role, over both challenges."""
    return hmac.new(secret, b"flux-staging/1 " + role + ingress_challenge + task_challenge, hashlib.sha256).digest()


def is_proof(given: Any, expected: bytes) -> bool:
    return isinstance(given, bytes) and hmac.compare_digest(given, expected)


def challenge_of(message: dict[str, Any]) -> bytes:
    challenge = message.get("challenge")
    if not isinstance(challenge, bytes) or len(challenge) != CHALLENGE_BYTES:
        raise ProtocolError(f"a challenge of {CHALLENGE_BYTES} bytes was expected, got {challenge!r:.80}")
    return challenge


def name_of(message: dict[str, Any], field: str) -> str:
    """Return a field that will be part of a file name."""
    value = message.get(field)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ProtocolError(f"{field}: a name of letters, digits, '_', '.', '-' was expected, got {value!r:.80}")
    return value


def number_of(message: dict[str, Any], field: str) -> int:
    value = message.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _NUMBER_LIMIT:
        raise ProtocolError(f"{field}: a whole number from 0 was expected, got {value!r:.80}")
    return value
