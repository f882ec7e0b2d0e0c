"""Actions: what a report makes necessary, as data; a driver carries it out, over forked processes or over machines."""

from __future__ import annotations

from dataclasses import dataclass

from ..wire.reports import Command


class DriverAction:
    """What a driver does after a report."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class EndRun(DriverAction):
    """End the run with this error."""

    error: Exception


@dataclass(frozen=True, slots=True)
class WriteLog(DriverAction):
    """Write a line to the log."""

    level: int
    node: str
    text: str


@dataclass(frozen=True, slots=True)
class SendCommand(DriverAction):
    """Send a command to the process of this name."""

    to: str
    command: Command


@dataclass(frozen=True, slots=True)
class NodeDied(DriverAction):
    """The controller has declared a node dead."""

    node: str


@dataclass(frozen=True, slots=True)
class SiteEmpty(DriverAction):
    """No partition is left on a site that was to be drained: stop it."""

    site: str


@dataclass(frozen=True, slots=True)
class StreamEnded(DriverAction):
    """Every sink has the end of the stream."""


@dataclass(frozen=True, slots=True)
class ComparisonDone(DriverAction):
    """All copies were compared after the end of the stream; `error` if two had emitted different rows."""

    error: Exception | None
