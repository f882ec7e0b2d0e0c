"""The status of a run at one moment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .report import Failure

__all__ = ["ProcessStatus", "Status"]


@dataclass(frozen=True)
class ProcessStatus:
    """One process: a site, "ingress", "egress" or "controller"."""

    name: str
    # None: it was asked for and does not run yet.
    pid: int | None
    # "starting" until it has connected, "up", "dead" (declared so; its process may be stopped or partitioned off), or
    # "drained": its partitions were transferred to other sites and it has ended.
    state: str
    incarnation: int
    cpu_s: float
    # Copies of partitions that it holds, and rows that it keeps until others have acknowledged them.
    copies: int = 0
    buffered_rows: int = 0
    # Deaths of the last seconds that the run did not cause, and how many end the run; None: any number, or of a site.
    crashes: int = 0
    crash_limit: int | None = None
    # Where code of the user does not return, after `stuck_after_s`; else empty.
    stuck: str = ""
    # Of a site in a run that is balanced: the part of its time in which it works, its speed as a multiple of the
    # median, and the part of its producers' pools that is kept for it; None if they are not known.
    utilisation: float | None = None
    speed: float | None = None
    lag: float | None = None
    # Whether it is so slow that no other process waits for it.
    slow: bool = False
    # Rows that one of its producers keeps for it, and how many that may keep; None if they are not known.
    kept_rows: int | None = None
    kept_rows_max: int | None = None
    # Of a slow site: in how long the source will wait for it, if `kept_rows` grows as it does; 0: the source waits now.
    time_left_s: float | None = None


@dataclass(eq=False)
class Status(dict[str, Any]):
    """A snapshot of a run. It is also a dict, that of `to_dict()`: `json.dumps(run.status())` works.

    >>> Status("words", 1.5, [ProcessStatus("site-1", 77, "up", 1, 0.25)], True, 20, 10, 5.0, 2.5, [], False)["outputs"]
    10
    """

    name: str
    # Seconds since the start.
    t_s: float
    processes: list[ProcessStatus]
    # Whether every partition has all its copies, and the run has not failed.
    whole: bool
    inputs: int
    outputs: int
    # Rows per second, over the last seconds.
    input_rate: float
    output_rate: float
    failures: list[Failure]
    # Whether the source has ended and every row is durable at the sink.
    ended: bool
    # Of the output of the last seconds; None if there was none.
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    # Copies in transfer: lost ones, or those of a site that is drained.
    building: int = 0
    # Rows that operators refused, that were shed for want of room, and that were late.
    skipped: int = 0
    shed: int = 0
    late: int = 0
    # Why the run has failed; None if it has not.
    error: str | None = None
    # What balance is doing: "off", collecting statistics, or moving partitions.
    balance: str = "off"
    # A change of the code that is not complete; empty if there is none.
    change: str = ""
    # Whether the first view is not there yet: processes start, operators and sinks are opened.
    starting: bool = False

    @property
    def health(self) -> str:
        """How the run is, in a few words.

        >>> Status("words", 1.5, [], True, 20, 10, 5.0, 2.5, [], False).health
        'every partition has all its copies'
        """
        if self.error is not None:
            return f"failed: {self.error}"
        if self.ended:
            return "the source has ended, and all output is durable"
        if self.starting:
            return "it is starting"
        if self.building:
            return f"{self.building} copies are being built"
        return "every partition has all its copies" if self.whole else "copies are missing"

    def __post_init__(self) -> None:
        self.update(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot as JSON types."""
        return {
            "name": self.name,
            "t_s": self.t_s,
            "processes": [asdict(process) for process in self.processes],
            "whole": self.whole,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "input_rate": self.input_rate,
            "output_rate": self.output_rate,
            "failures": [asdict(failure) for failure in self.failures],
            "ended": self.ended,
            "latency_p50_ms": self.latency_p50_ms,
            "latency_p99_ms": self.latency_p99_ms,
            "building": self.building,
            "skipped": self.skipped,
            "shed": self.shed,
            "late": self.late,
            "change": self.change,
            "error": self.error,
            "balance": self.balance,
            "starting": self.starting,
            "health": self.health,
        }
