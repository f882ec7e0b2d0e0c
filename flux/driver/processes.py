"""Processes: which processes a local run has, has had, and what became of each.

A site is one process. Ingress, egress and controller are started again when they die: each start is an
*incarnation*. A later incarnation of an end of the dataflow is a node of its own, `ingress.2`, because nodes
refuse what the dead may still have sent; the controller has no data to tell apart and keeps its name.

This is a book, kept by the program's thread; it starts and watches nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import trio

from ..controller.failure_detector import StandstillClock
from ..plan.plan import CONTROLLER
from ..types.errors import FluxError
from .history import Gap
from .local.spawner import ProcessExited, ProcessStarted, SpawnerReport
from .local.stderr_tail import StderrTail

# A process that dies this often in this time, and not because the program wanted it, will not live next time.
DEATHS_MAX = 5
DEATHS_WINDOW_S = 10.0

ProcessState = Literal["starting", "up", "dead", "drained"]
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def node_name(name: str, incarnation: int) -> str:
    """What the process is called among the nodes of the dataflow."""
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
    killed_at: float | None = None  # When the program wanted it dead.
    stopped_at: float | None = None  # It was stopped then, and is killed because it did not go on.
    drained: bool = False  # Nothing is on it any more: its end is no failure.
    gone_at: float | None = None
    back_at: float | None = None  # When the next incarnation was up.
    gap: Gap | None = None  # Of the output behind its death, as far as the history was settled.
    recovered_at: float | None = None  # Of a site, when all copies were there again, and what was moved until then:
    bytes_moved: int = 0  # once that is settled.
    exited: int | None = None  # The status; None also if it is gone and nobody knows.
    _pidfd: int | None = None
    _standstill: StandstillClock | None = None
    _cpu_s: float = 0.0

    @property
    def node(self) -> str:
        """Its name among the nodes."""
        return node_name(self.name, self.incarnation)

    @property
    def is_site(self) -> bool:
        """Whether it holds partitions, and is not started again."""
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
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return self._cpu_s  # It ended a moment ago, or this system has no such files.
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def started(self, report: ProcessStarted) -> None:
        """The spawner has forked it."""
        self.pid, self._pidfd, self._standstill = report.pid, report.pidfd, StandstillClock(report.pid)

    def greeted(self) -> None:
        """It has connected to the program."""
        self.state = "up"
        if self.replaces is not None:
            self.replaces.back_at = time.monotonic()
            self.replaces = None

    def kill(self) -> None:
        """SIGKILL; it may be gone already."""
        if self._pidfd is not None:
            self.killed_at = self.killed_at or time.monotonic()
            self._send_kill(self._pidfd)

    def kill_if_stopped(self) -> None:
        """SIGKILL if somebody has stopped it, and it does not go on: that is what it dies of."""
        if self._pidfd is not None and self._standstill is not None and self._standstill.lasts():
            self.stopped_at = self.stopped_at or self._standstill.began_at
            self._send_kill(self._pidfd)

    def _send_kill(self, pidfd: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    async def wait_gone(self) -> None:
        """Return when it is gone; at once if nobody has told which process it is."""
        if self._pidfd is not None:
            await trio.lowlevel.wait_readable(self._pidfd)

    def ended(self, report: ProcessExited | None) -> None:
        """It is gone; without a report, the spawner that would have known how is gone too."""
        self.gone_at = time.monotonic()
        self.state = "drained" if self.drained else "dead"
        if report is not None:
            self.exited, self._cpu_s = report.status, report.cpu_s
        self.stderr.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def how_it_ended(self) -> str:
        """For an error: the exit, and the last it wrote."""
        if self.exited is None:
            how = "an unknown status"
        else:
            how = f"signal {-self.exited}" if self.exited < 0 else f"exit status {self.exited}"
            how += "" if self.stopped_at is None else ", as it had been stopped (SIGSTOP) and did not go on"
        said = self.stderr.tail.strip()
        return (
            f"{how}. The last it wrote to standard error:\n{said}" if said else f"{how}, and wrote nothing to say why"
        )


class Processes:
    """All of them, by name; of those that were started again, the present incarnation."""

    def __init__(self) -> None:
        self._present: dict[str, Process] = {}
        self._deaths: dict[str, list[float]] = {}
        self._cpu_s: dict[str, float] = {}

    def __iter__(self) -> Iterator[Process]:
        return iter(self._present.values())

    def begin(self, name: str) -> Process:
        """The next incarnation of `name`."""
        earlier = self._present.get(name)
        process = Process(name, 1 if earlier is None else earlier.incarnation + 1, replaces=earlier)
        self._present[name] = process
        return process

    def enter(self, process: Process) -> None:
        """Take in one that nobody here has started."""
        self._present[process.name] = process

    def next_site(self) -> str:
        """The name of a further site: the numbering continues."""
        return f"site-{1 + sum(process.is_site for process in self)}"

    def live(self, name: str) -> Process:
        """The process `name`; `ValueError` if there is none, or it is dead."""
        process = self._present.get(name)
        if process is None:
            raise ValueError(f"no process of this run is called {name!r}; there are {', '.join(self._present)}")
        if process.gone:
            was_drained = process.state == "drained"
            raise ValueError(f"{name} was drained, and has ended" if was_drained else f"{name} is dead already")
        return process

    def of(self, report: SpawnerReport) -> Process:
        """The process a report is about."""
        process = self._present[report.name]
        assert process.incarnation == report.incarnation, f"{report} is of a process that was replaced: {process}"
        return process

    def of_node(self, node: str) -> Process | None:
        """The live process that is the node `node`."""
        return next((process for process in self if process.node == node and not process.gone), None)

    def all_gone(self) -> bool:
        """Whether nothing runs any more."""
        return all(process.gone for process in self)

    def end(self, process: Process, report: ProcessExited | None) -> None:
        """Note the end of a process, and add up what its incarnations have used."""
        process.ended(report)
        self._cpu_s[process.name] = self._cpu_s.get(process.name, 0.0) + process.cpu_s

    @property
    def cpu_s(self) -> dict[str, float]:
        """Processor seconds of the processes that have ended, with all their incarnations."""
        return {process.name: self._cpu_s[process.name] for process in self if process.gone}

    def check_restart(self, process: Process) -> FluxError | None:
        """Why the process, which has died, is not to be started again; None if it is."""
        if process.killed_at is not None:
            return None
        now = time.monotonic()
        deaths = [at for at in self._deaths.get(process.name, []) if at > now - DEATHS_WINDOW_S] + [now]
        self._deaths[process.name] = deaths
        if len(deaths) < DEATHS_MAX:
            return None
        return FluxError(
            f"the {process.name} process died {len(deaths)} times within {DEATHS_WINDOW_S:g} s and is not started "
            f"again: the run ends here. Output up to now is right. Last it ended with {process.how_it_ended()}"
        )
