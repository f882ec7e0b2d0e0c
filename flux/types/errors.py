"""The errors that Flux raises to its users.

All derive from `FluxError`, so that one `except` catches them. Each names the part of the dataflow, what it expected,
what it got and what to do: an error is usually read from the log of a machine that is no longer there. The text
is complete when the error is created; the attributes are for programs. Errors cross process boundaries as documents:
`to_dict()` encodes and `from_dict()` decodes them. Nothing is unpickled, and an error of a newer release arrives as a
plain `FluxError` with its text intact.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = [
    "RAISED",
    "AuthError",
    "ChangeError",
    "DataLost",
    "FluxError",
    "NoSites",
    "OperatorError",
    "PlanError",
    "SinkError",
    "SourceEnded",
    "SourceError",
    "StateError",
    "from_dict",
    "is_out_of_memory",
    "unwrap_group",
]

# What user code may raise. A library that calls sys.exit() must not end a process as if the run had succeeded.
RAISED = (Exception, SystemExit)

# A message lists this many partitions before it says "and N more": a run may lose thousands at once.
_PARTITIONS_SHOWN = 8


class FluxError(Exception):
    """Any error that Flux reports; the base class of all others.

    `traceback` is that of the process in which the error arose, with Flux's own frames; `--traceback` prints it.
    """

    traceback: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the error as msgpack or JSON types: its class, its text and its attributes.

        >>> PlanError("no source").to_dict()
        {'error': 'PlanError', 'message': 'no source'}
        """
        document = {"error": type(self).__name__, "message": self.args[0] if self.args else ""}
        return document if self.traceback is None else {**document, "traceback": self.traceback}


class PlanError(FluxError):
    """The dataflow, its data or its settings cannot be run as written; raised before anything is processed."""


class OperatorError(FluxError):
    """User code raised, or emitted invalid rows; the run stops at that row, on both copies alike.

    >>> str(OperatorError("division by zero", step="WindowStats", partition=3, row=17))
    "step 'WindowStats', partition 3, row 17: division by zero"
    """

    def __init__(
        self, message: str, step: str | None = None, partition: int | None = None, row: int | None = None
    ) -> None:
        super().__init__(message)
        self.step = step
        self.partition = partition
        self.row = row

    def __str__(self) -> str:
        place = [
            text
            for value, text in (
                (self.step, f"step {self.step!r}"),
                (self.partition, f"partition {self.partition}"),
                (self.row, f"row {self.row}"),
            )
            if value is not None
        ]
        message = str(self.args[0])
        return f"{', '.join(place)}: {message}" if place else message

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"step": self.step, "partition": self.partition, "row": self.row}


class SourceError(FluxError):
    """A source raised, or gave rows that its schema does not allow; output before that is right."""


class SinkError(FluxError):
    """A sink raised; output before that is durable."""


class DataLost(FluxError):
    """Every copy of some partitions is lost. The dataflow stops: it never continues with a gap.

    `safe_upto` is the last sequence number up to which the output is complete; None if there is none. `copies` is the
    number of copies that the partitions had: 1 with `availability="none"`.

    >>> str(DataLost([("stats", 4), ("stats", 7)], safe_upto=1200)).split("; ")[0]
    'both copies are lost of 2 partitions: stats/4, stats/7. Output is complete up to sequence number 1200'
    """

    def __init__(
        self, partitions: Iterable[Any], safe_upto: int | None = None, message: str | None = None, *, copies: int = 2
    ) -> None:
        self.partitions: list[Any] = list(partitions)
        self.safe_upto = safe_upto
        self.copies = copies
        super().__init__(message if message is not None else self._describe())

    def _describe(self) -> str:
        shown = ", ".join(_partition_name(p) for p in self.partitions[:_PARTITIONS_SHOWN])
        more = len(self.partitions) - _PARTITIONS_SHOWN
        plural = "" if len(self.partitions) == 1 else "s"
        complete = (
            "No output is known to be complete"
            if self.safe_upto is None
            else f"Output is complete up to sequence number {self.safe_upto}"
        )
        again = "from the start" if self.safe_upto is None else "from the source rows after it"
        if self.copies == 1:
            lost, advice = "the only copy is lost", 'with availability="pairs" to survive the death of a site'
        else:
            lost, advice = "both copies are lost", "with more sites or a standby to survive as many failures at once"
        return (
            f"{lost} of {len(self.partitions)} partition{plural}: {shown}"
            f"{f' and {more} more' if more > 0 else ''}. {complete}; restart the flow {again}, {advice}"
        )

    def to_dict(self) -> dict[str, Any]:
        partitions = [list(p) if isinstance(p, tuple) else p for p in self.partitions]
        return super().to_dict() | {"partitions": partitions, "safe_upto": self.safe_upto, "copies": self.copies}


class StateError(FluxError):
    """An operator's state could not be read, moved or installed."""


class AuthError(FluxError):
    """A peer did not prove that it knows the run's secret, or this process could not prove it to the peer."""


class ChangeError(FluxError):
    """A change of code was refused, and nothing has changed; `reason` says why."""

    @property
    def reason(self) -> str:
        return str(self.args[0]) if self.args else ""


class NoSites(FluxError):
    """There is no live site, or too few, to hold the partitions."""


class SourceEnded(FluxError):
    """The source ended before the awaited output was emitted: there will be no more output."""


def unwrap_group(error: BaseException) -> BaseException:
    """Return the error inside trio's exception groups; the first if there are several."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _partition_name(partition: Any) -> str:
    return "/".join(map(str, partition)) if isinstance(partition, list | tuple) else str(partition)


_BY_NAME: dict[str, type[FluxError]] = {
    kind.__name__: kind
    for kind in (FluxError, PlanError, ChangeError, SourceError, SinkError, StateError, AuthError, NoSites, SourceEnded)
}


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or what caused it, is that the system gives no more memory.

    >>> error = FluxError("it says that it is its own cause")
    >>> error.__cause__ = error
    >>> is_out_of_memory(error)
    False
    """
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, MemoryError):
            return True
        seen.add(id(error))
        error = error.__cause__
    return False


def from_dict(document: dict[str, Any]) -> FluxError:
    """Return the error that `to_dict` described.

    >>> from_dict(OperatorError("bad", step="Sums", partition=1, row=2).to_dict()).partition
    1
    """
    error = _from_dict(document)
    error.traceback = document.get("traceback")
    return error


def _from_dict(document: dict[str, Any]) -> FluxError:
    message = str(document.get("message", ""))
    name = document.get("error")
    if name == "OperatorError":
        places = {place: document.get(place) for place in ("step", "partition", "row")}
        return OperatorError(message, **places)
    if name == "DataLost":
        partitions = [tuple(p) if isinstance(p, list) else p for p in document.get("partitions", [])]
        return DataLost(partitions, document.get("safe_upto"), message, copies=document.get("copies", 2))
    return _BY_NAME.get(str(name), FluxError)(message)
