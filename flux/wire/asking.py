"""Asking: one question of a command to a run, and its answer, over a connection of its own.

Whoever leads a run (the program that started it, or its controller) listens for its processes; a command greets there
as they do, under the name `COMMAND`, and asks: `{"kind": "ask", "what": "status"}`. The answer is a map of plain
values, or an error as a document.
"""

from __future__ import annotations

import socket
from typing import Any, BinaryIO

from ..errors import AuthError, FluxError, from_dict
from . import address, frames

COMMAND = "command"
_CONNECT_TIMEOUT_S = 10.0


class Unanswered(FluxError):
    """Nobody is there, or who was there went away without an answer."""


def ask(where: str, greeting: dict[str, Any], what: str, timeout_s: float, **details: Any) -> dict[str, Any]:
    """The answer of whoever listens at `where`; raises the error it answers with, or `Unanswered`."""
    try:
        sock = address.connect_blocking(where, _CONNECT_TIMEOUT_S)
    except OSError as error:
        raise Unanswered(f"nobody answers at {where}: {error.strerror or error}") from error
    with sock, sock.makefile("rb") as incoming:
        sock.settimeout(timeout_s)
        try:
            sock.sendall(frames.encode(greeting) + frames.encode({"kind": "ask", "what": what, **details}))
            header = _received(incoming)
        except TimeoutError as error:
            raise Unanswered(f"no answer to {what!r} came from {where} within {timeout_s:g} s") from error
        except (OSError, frames.BadFrame) as error:
            raise Unanswered(f"the connection to {where} broke before the answer to {what!r} came: {error}") from error
    if "error" in header:
        raise from_dict(header["error"])
    answer: dict[str, Any] = header["answer"]
    return answer


def refusal() -> dict[str, Any]:
    """What is sent to whoever does not know the secret, before the connection is closed."""
    error = AuthError("the run does not accept this token: use the one that its controller was started with")
    return {"kind": "refused", "error": error.to_dict()}


def listens(where: str) -> bool:
    """Whether somebody listens at `where`."""
    try:
        with address.connect_blocking(where, _CONNECT_TIMEOUT_S):
            return True
    except (ConnectionRefusedError, FileNotFoundError):
        return False


def _received(incoming: BinaryIO | socket.SocketIO) -> dict[str, Any]:
    header_bytes, body_bytes = frames.decode_prefix(_exactly(incoming, frames.PREFIX.size))
    header = frames.decode_header(_exactly(incoming, header_bytes))
    _exactly(incoming, body_bytes)
    return header


def _exactly(incoming: BinaryIO | socket.SocketIO, size: int) -> bytes:
    data = incoming.read(size) or b""
    if len(data) < size:
        raise ConnectionError("the other end closed it")
    return data
