"""Requests: one question of a command or of a joining process to a run, and its answer, over a connection of its own.

The driver of a run, or the controller that takes its part in a remote run, listens for the processes of the run. A
command performs the handshake there under the name `COMMAND` and sends one request, a frozen dataclass. The answer is a
map of plain values, or an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import trio

from ..types.errors import FluxError, from_dict
from . import address, frames
from .codec import Codec, read_frame, subclasses_in
from .connections import Identity, dial
from .handshake import ANY_RUN
from .sockets import Reader, write_all
from .tls import Tls

COMMAND = "command"  # The name under which commands perform the handshake.
REQUEST_KIND, ANSWER_KIND = "request", "answer"  # The kinds of their frames.

Answer: TypeAlias = dict[str, Any]
PlainJob: TypeAlias = tuple[int, int, int, tuple[int, ...]]  # A `Job`: stage, after, upto, partitions.

_CONNECT_TIMEOUT_S = 10.0


class Request:
    """What a run is asked."""

    __slots__ = ()


# What a command requests.


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRequest(Request):
    """What is the run doing?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRequest(Request):
    """What are the metrics of the run?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRequest(Request):
    """How has the run ended? The answer comes when it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRequest(Request):
    """Kill a process as if by SIGKILL."""

    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest(Request):
    """Move everything off a site and stop it; an error after `within_s`."""

    site: str
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AddSiteRequest(Request):
    """Start a further site; a `standby` is a spare, to which no policy moves load."""

    standby: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWanted:
    """What is to become of one step; empty is what stays. Code is `module:name`, parameters are plain values."""

    step: str
    operator: str
    migrate: str
    modules: tuple[str, ...]
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconfigureRequest(Request):
    """Change these steps while rows flow; an error if that is not committed after `within_s`."""

    changes: tuple[StepWanted, ...]
    scheduler: str
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest(Request):
    """End the run now. The connection may close without an answer, because what answers ends too."""


# What a process requests that wants to join a run, or that saw one end.


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsRequest(Request):
    """With which settings is the plan made?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest(Request):
    """Be the `role` of a remote run, under this name if it is free; `flow` describes the dataflow."""

    role: str
    name: str | None
    flow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteDeath(Request):
    """The site `name` of a run has ended, at this work if it was busy."""

    run: str
    name: str
    job: PlainJob | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskJoinRequest(Request):
    """Be the site of a Spark task: its place in the cluster, the attempt at it, its process and the executor's."""

    index: int
    attempt: int
    pid: int
    host: str
    executor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSiteDeath(Request):
    """The site of a Spark task was ended by a signal, at this work if it was busy."""

    index: int
    attempt: int
    status: int
    job: PlainJob | None


# What is answered.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer, in plain values."""

    answer: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """The request cannot be met; `error` is what `FluxError.to_dict` gave."""

    error: dict[str, Any]


_REQUESTS = Codec([*subclasses_in(globals(), Request), StepWanted])
_ANSWERS = Codec([Answered, RequestFailed])


def request_frame(request: Request) -> dict[str, Any]:
    """Return the header of the frame that carries a request."""
    return {"kind": REQUEST_KIND, "m": _REQUESTS.to_plain(request)}


def read_request(header: dict[str, Any]) -> Request:
    """Return the request in a frame; `BadFrame` if there is none."""
    return cast(Request, read_frame(_REQUESTS, REQUEST_KIND, header, (Request,)))


def answer_frame(answer: Answer) -> dict[str, Any]:
    """Return the header of the frame that carries an answer."""
    return {"kind": ANSWER_KIND, "m": _ANSWERS.to_plain(Answered(answer=answer))}


def failure_frame(error: Exception) -> dict[str, Any]:
    """Return the header of the frame that says why there is no answer."""
    known = error if isinstance(error, FluxError) else FluxError(str(error))
    return {"kind": ANSWER_KIND, "m": _ANSWERS.to_plain(RequestFailed(error=known.to_dict()))}


class Unanswered(FluxError):
    """No process listens there, or it closed the connection without an answer."""


class RequestTimeout(Unanswered):
    """No answer within the timeout; a process may still listen there."""


def command(secret: bytes, tls: Tls | None = None) -> Identity:
    """Return the identity of a command that knows the secret of a run, and not its name."""
    return Identity(name=COMMAND, run=ANY_RUN, secret=secret, tls=tls)


def ask(where: str, own: Identity, request: Request, timeout_s: float) -> Answer:
    """Return the answer of the process that listens at `where`; raise the error it answers with, or `Unanswered`.

    `AuthError` says that one of both does not trust the other.
    """
    answered = trio.run(answer_to, where, own, request, timeout_s)
    if isinstance(answered, RequestFailed):
        raise from_dict(answered.error)
    return answered.answer


async def answer_to(where: str, own: Identity, request: Request, timeout_s: float) -> Answered | RequestFailed:
    """Return the answer of the process that listens at `where`, or why it gives none; raise `Unanswered`."""
    what = type(request).__name__
    try:
        with trio.fail_after(_CONNECT_TIMEOUT_S):
            sock = await dial(where, own)
    except (TimeoutError, trio.TooSlowError) as error:
        why = str(error) or f"no connection within {_CONNECT_TIMEOUT_S:g} s"
        raise RequestTimeout(f"no process answers at {where}: {why}") from error
    except OSError as error:
        raise Unanswered(f"no process answers at {where}: {error.strerror or error}") from error
    except frames.BadFrame as error:
        raise Unanswered(f"what answers at {where} is not Flux, or is another release: {error}") from error
    with sock:
        try:
            with trio.fail_after(timeout_s):
                await write_all(sock, frames.encode(request_frame(request)))
                header, _, _ = await Reader(sock).read_frame()
                return cast("Answered | RequestFailed", read_frame(_ANSWERS, ANSWER_KIND, header))
        except trio.TooSlowError as error:
            raise RequestTimeout(f"no answer to {what} from {where} within {timeout_s:g} s") from error
        except (OSError, frames.BadFrame) as error:
            raise Unanswered(f"the connection to {where} broke before the answer to {what}: {error}") from error


def listens(where: str) -> bool:
    """Whether a process listens at `where`."""
    try:
        with address.connect_blocking(where, _CONNECT_TIMEOUT_S):
            return True
    except (ConnectionRefusedError, FileNotFoundError):
        return False
