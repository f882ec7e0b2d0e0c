"""Processes: the processes that a local run has and had, and the state of each.

A site is one process. Ingress, egress and controller are started again when they die: each start is an *incarnation*.
A later incarnation of an ingress or egress is a node of its own, `ingress.2`, because nodes refuse what a dead node may
still have sent. The controller sends no rows and keeps its name.

These are records, written by the driver's thread. Nothing here starts or watches a process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import trio

from ..controller.failure_detector import StandstillClock
from ..plan.plan import CONTROLLER
from ..system import process_control
from ..types.errors import FluxError, PlanError
from .history import Gap
from .local.spawner import ProcessExited, ProcessStarted, SpawnerReport
from .local.stderr_tail import StderrTail
from .report import Interval

# A process that dies this often in this time, and was not killed by the run itself, is not started again.
CRASH_LIMIT = 5
CRASH_WINDOW_S = 10.0

ProcessState = Literal["starting", "up", "dead", "drained"]


def node_name(name: str, incarnation: int) -> str:
    """Return the name of the process among the nodes of the dataflow."""
    return name if incarnation == 1 or name == CONTROLLER else f"{name}.{incarnation}"


@dataclass
class Process:
    """One incarnation of one process. Times are of the monotonic clock."""

    name: str
    incarnation: int = 1
    replaces: Process | None = None  # Until this one is up.
    pid: int | None = None
    state: ProcessState = "starting"
    stderr: StderrTail = field(default_factory=StderrTail)
    killed_at: float | None = None  # When the driver killed it.
    stopped_at: float | None = None  # When it was stopped (SIGSTOP); it is killed because it was not continued.
    drained: bool = False  # It holds no partition any more: its end is not a failure.
    gone_at: float | None = None
    back_at: float | None = None  # When the next incarnation was up.
    gap: Gap | None = None  # In the output after its death, up to where the history is settled.
    close_up: list[Interval] | None = None  # The time around its death, once settled.
    recovered_at: float | None = None  # Of a site, once settled: when all copies were there again,
    bytes_moved: int = 0  # and the bytes transferred until then.
    exited: int | None = None  # The exit status; None if it runs, or if the status is not known.
    _pidfd: int | None = None
    _standstill: StandstillClock | None = None
    _cpu_s: float = 0.0

    @property
    def node(self) -> str:
        """Its name among the nodes."""
        return node_name(self.name, self.incarnation)

    @property
    def is_site(self) -> bool:
        """Whether it is a site: it holds partitions, and is not started again."""
        return self.name.startswith("site-")

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self.gone_at is not None

    @property
    def cpu_s(self) -> float:
        """Processor seconds it has used up to now."""
        if self.gone or self.pid is None:
            return self._cpu_s
        used_s = process_control.cpu_s_of(self.pid)
        return self._cpu_s if used_s is None else used_s  # It may have ended a moment ago.

    def started(self, report: ProcessStarted) -> None:
        """Note that the spawner has forked it."""
        self.pid, self._pidfd, self._standstill = report.pid, report.pidfd, StandstillClock(report.pid)

    def greeted(self) -> None:
        """Note that it has connected to the driver."""
        self.state = "up"
        if self.replaces is not None:
            self.replaces.back_at = time.monotonic()
            self.replaces = None

    def kill(self) -> None:
        """Send SIGKILL; it may be gone already."""
        if self._pidfd is not None:
            self.killed_at = self.killed_at or time.monotonic()
            self._send_kill(self._pidfd)

    def kill_if_stopped(self) -> None:
        """Send SIGKILL if it was stopped (SIGSTOP) and is not continued within the timeout."""
        if self._pidfd is not None and self._standstill is not None and self._standstill.lasts():
            self.stopped_at = self.stopped_at or self._standstill.began_at
            self._send_kill(self._pidfd)

    def _send_kill(self, pidfd: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            process_control.send_signal(pidfd, signal.SIGKILL)

    async def wait_gone(self) -> None:
        """Return when it is gone; at once if it was never forked."""
        if self._pidfd is not None:
            await trio.lowlevel.wait_readable(self._pidfd)

    def ended(self, report: ProcessExited | None) -> None:
        """Note that it is gone; there is no report if the spawner is gone too."""
        self.gone_at = time.monotonic()
        self.state = "drained" if self.drained else "dead"
        if report is not None:
            self.exited, self._cpu_s = report.status, report.cpu_s
        self.stderr.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def how_it_ended(self) -> str:
        """Return the exit status and the last output on standard error, for an error text."""
        if self.exited is None:
            how = "an unknown status"
        else:
            how = f"signal {-self.exited}" if self.exited < 0 else f"exit status {self.exited}"
            how += "" if self.stopped_at is None else ", as it had been stopped (SIGSTOP) and did not go on"
        tail = self.stderr.tail.strip()
        return (
            f"{how}. The last it wrote to standard error:\n{tail}" if tail else f"{how}, and wrote nothing to say why"
        )


class Processes:
    """All processes of a run by name, each in its present incarnation."""

    def __init__(self, crash_limit: int | None = CRASH_LIMIT) -> None:
        self.crash_limit = crash_limit
        self._present: dict[str, Process] = {}
        self._crashes: dict[str, list[float]] = {}
        self._cpu_s: dict[str, float] = {}

    def __iter__(self) -> Iterator[Process]:
        return iter(self._present.values())

    def begin(self, name: str) -> Process:
        """Add the next incarnation of `name` and return it."""
        earlier = self._present.get(name)
        process = Process(name, 1 if earlier is None else earlier.incarnation + 1, replaces=earlier)
        self._present[name] = process
        return process

    def enter(self, process: Process) -> None:
        """Add a process that was started elsewhere."""
        self._present[process.name] = process

    def next_site(self) -> str:
        """Return the name of a further site: the numbering continues."""
        return f"site-{1 + sum(process.is_site for process in self)}"

    def live(self, name: str) -> Process:
        """Return the process `name`; `ValueError` if there is none, or it is dead."""
        process = self._present.get(name)
        if process is None:
            raise ValueError(f"no process of this run is called {name!r}; there are {', '.join(self._present)}")
        if process.gone:
            was_drained = process.state == "drained"
            raise ValueError(f"{name} was drained, and has ended" if was_drained else f"{name} is dead already")
        return process

    def of(self, report: SpawnerReport) -> Process:
        """Return the process that a report is about."""
        process = self._present[report.name]
        assert process.incarnation == report.incarnation, f"{report} is of a process that was replaced: {process}"
        return process

    def of_node(self, node: str) -> Process | None:
        """Return the live process of the node `node`; None if there is none."""
        return next((process for process in self if process.node == node and not process.gone), None)

    def all_gone(self) -> bool:
        """Return whether no process runs any more."""
        return all(process.gone for process in self)

    def end(self, process: Process, report: ProcessExited | None) -> None:
        """Note the end of a process, and add up the processor time of its incarnations."""
        process.ended(report)
        self._cpu_s[process.name] = self._cpu_s.get(process.name, 0.0) + process.cpu_s

    @property
    def cpu_s(self) -> dict[str, float]:
        """Processor seconds of the processes that have ended, with all their incarnations."""
        return {process.name: self._cpu_s[process.name] for process in self if process.gone}

    def check_restart(self, process: Process) -> FluxError | None:
        """Return why a dead process is not to be started again; None if it is."""
        if process.killed_at is not None or process.stopped_at is not None:
            return None  # The run has killed it: that is not a crash.
        self._crashes.setdefault(process.name, []).append(time.monotonic())
        count = self.crashes(process.name)
        if self.crash_limit is None or count < self.crash_limit:
            return None
        return FluxError(
            f"the {process.name} process died {count} times within {CRASH_WINDOW_S:g} s and is not started again: the "
            f"run ends here. Output up to now is right. If kills from outside are meant to be that many, give the run "
            f"a higher crash_limit. Last it ended with {process.how_it_ended()}"
        )

    def crashes(self, name: str) -> int:
        """Return how many crashes of a process count against the limit now."""
        since = time.monotonic() - CRASH_WINDOW_S
        self._crashes[name] = [at for at in self._crashes.get(name, []) if at > since]
        return len(self._crashes[name])


def check_crash_limit(limit: int | None) -> None:
    """Raise `PlanError` if it is not a limit.

    >>> check_crash_limit(0)
    Traceback (most recent call last):
    flux.types.errors.PlanError: crash_limit is a number of deaths from 1, or None for no limit; got 0
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise PlanError(f"crash_limit is a number of deaths from 1, or None for no limit; got {limit!r}")
