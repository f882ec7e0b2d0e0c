"""Asking: one question of a command to a run, and its answer, over a connection of its own.

Whoever leads a run (the program that started it, or its controller) listens for its processes; a command greets there
as they do, under the name `COMMAND`, and asks: `{"kind": "ask", "what": "status"}`. The answer is a map of plain
values, or an error as a document.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import trio

from ..types.errors import FluxError, from_dict
from . import address, frames
from .connections import Identity, dial
from .handshake import ANY_RUN
from .sockets import Reader, write_all
from .tls import Tls

COMMAND = "command"
Answer: TypeAlias = dict[str, Any]

_CONNECT_TIMEOUT_S = 10.0


class Unanswered(FluxError):
    """Nobody is there, or who was there went away without an answer."""


class RequestTimeout(Unanswered):
    """Somebody may be there: no answer came in the time for it."""


def command(secret: bytes, tls: Tls | None = None) -> Identity:
    """A command that knows the secret of a run, and not what the run is called."""
    return Identity(name=COMMAND, run=ANY_RUN, secret=secret, tls=tls)


def ask(where: str, own: Identity, what: str, timeout_s: float, **details: Any) -> Answer:
    """The answer of whoever listens at `where`; raises the error it answers with, or `Unanswered`.

    `AuthError` says that it is not trusted, or does not trust this process.
    """
    answer, error = trio.run(_asked, where, own, {"kind": "ask", "what": what, **details}, timeout_s)
    if error is not None:
        raise from_dict(error)
    return answer


async def _asked(where: str, own: Identity, question: dict[str, Any], timeout_s: float) -> tuple[Answer, Answer | None]:
    what = question["what"]
    try:
        with trio.fail_after(_CONNECT_TIMEOUT_S):
            sock = await dial(where, own)
    except (TimeoutError, trio.TooSlowError) as error:
        why = str(error) or f"no connection within {_CONNECT_TIMEOUT_S:g} s"
        raise RequestTimeout(f"nobody answers at {where}: {why}") from error
    except OSError as error:
        raise Unanswered(f"nobody answers at {where}: {error.strerror or error}") from error
    except frames.BadFrame as error:
        raise Unanswered(f"what answers at {where} is no process of Flux, or of another release: {error}") from error
    with sock:
        try:
            with trio.fail_after(timeout_s):
                await write_all(sock, frames.encode(question))
                header, _, _ = await Reader(sock).read_frame()
                if "error" in header:
                    return {}, frames.field(header, "error", dict)
                return frames.field(header, "answer", dict), None
        except trio.TooSlowError as error:
            raise RequestTimeout(f"no answer to {what!r} came from {where} within {timeout_s:g} s") from error
        except (OSError, frames.BadFrame) as error:
            raise Unanswered(f"the connection to {where} broke before the answer to {what!r} came: {error}") from error


def listens(where: str) -> bool:
    """Whether somebody listens at `where`."""
    try:
        with address.connect_blocking(where, _CONNECT_TIMEOUT_S):
            return True
    except (ConnectionRefusedError, FileNotFoundError):
        return False
