"""External sites, which the program has not forked. They join, get a name, and end with their connection.

Spark restarts a task when its executor is lost, or when it only lost contact with the executor, while the first attempt
still runs. So each place in the cluster has an index, and its attempts are numbered. A later attempt supersedes the
earlier one, which is drained and stopped; an earlier attempt that joins too late is refused.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio

from ...driver.local.driver import Driver
from ...driver.processes import Process
from ...site.crash_note import Job
from ...types.errors import FluxError
from ...wire.link import Link
from ...wire.reports import DeclareDead, KillProcess, command_frame
from ...wire.requests import TaskJoinRequest, TaskSiteDeath

CROWDED_MAX = 20  # How often a site is sent to another executor before it is accepted where it is.


@dataclass(kw_only=True)
class ExternalSite(Process):
    """A site in a Spark task; `pid` is its process id on its own machine."""

    coming: TaskJoinRequest
    say: Callable[[Callable[[], None]], None]  # Schedules a call in the program's thread.
    link: Link | None = None

    @property
    def cpu_s(self) -> float:
        return 0.0  # Known only on its own machine.

    def kill(self) -> None:
        if self.link is not None and not self.gone:
            self.killed_at = self.killed_at or time.monotonic()
            link = self.link
            self.say(lambda: link.send(command_frame(KillProcess())))


class ExternalSiteDriver(Driver):
    """The driver of a run with external sites; `executors` returns how many executors could run one."""

    _death_known_within_s = 3.0  # In this time a task reports how its site ended, if the executor lives.

    def __init__(self, *settings: Any, executors: Callable[[], int]) -> None:
        self._executors = executors
        self._turned_away: Counter[int] = Counter()
        super().__init__(*settings)

    def admit(self, coming: TaskJoinRequest) -> ExternalSite | None:
        """Return the admitted site, from any thread; None if it should retry on another executor."""
        executors = self._executors()
        return self._call_in_thread(lambda: self._admit(coming, executors))

    def note_death(self, death: TaskSiteDeath) -> None:
        """Note that a task found its site dead, from any thread."""
        self._call_in_thread(lambda: self._note_death(death))

    def guest_at(self, index: int) -> ExternalSite | None:
        """Return the site of the latest attempt at a place."""
        with self.changed:
            return max(self._guests(index), key=lambda guest: guest.coming.attempt, default=None)

    def guests_up(self) -> list[ExternalSite]:
        """Return the external sites that are up."""
        with self.changed:
            return [guest for guest in self._guests() if guest.state == "up"]

    def fail(self, error: FluxError) -> None:
        """Fail the run."""
        with self.changed:
            self._fail(error)
            self.changed.notify_all()

    def _guests(self, index: int | None = None) -> list[ExternalSite]:
        guests = [process for process in self.processes if isinstance(process, ExternalSite)]
        return [guest for guest in guests if index is None or guest.coming.index == index]

    # In the thread.

    def _admit(self, coming: TaskJoinRequest, executors: int) -> ExternalSite | None:
        with self.changed:
            earlier = self._guests(coming.index)
            if any(guest.coming.attempt >= coming.attempt for guest in earlier):
                raise FluxError(f"attempt {coming.attempt} at site {coming.index} joins after a later one")
            if self._stopping:
                raise FluxError("the run is over")
            crowd = self._crowd(coming)
            if crowd and self._turned_away[coming.index] < CROWDED_MAX and self._has_free(executors):
                self._turned_away[coming.index] += 1
                return None
            guest = ExternalSite(self._free_name(), pid=coming.pid, coming=coming, say=self._run_in_thread)
            guest.stderr.handed_over()  # What it writes is in its executor's log.
            self.processes.enter(guest)
            for other in earlier:
                if not other.gone:
                    self._supersede(other)
            if crowd:
                where = f"{coming.host}, process {coming.executor}"
                text = f"{guest.name} is on the same executor as {', '.join(crowd)} ({where}): they may die together"
                self._log(logging.WARNING, text, node=guest.name)
            self.changed.notify_all()
            return guest

    def _note_death(self, death: TaskSiteDeath) -> None:
        with self.changed:
            for guest in self._guests(death.index):
                if guest.coming.attempt == death.attempt:
                    guest.exited = death.status
                    self._examine(guest, None if death.job is None else Job.from_plain(death.job))
                    self.changed.notify_all()

    def _crowd(self, coming: TaskJoinRequest) -> list[str]:
        """Return the sites on the same executor, which would die together."""
        others = [guest for guest in self._guests() if not guest.gone and guest.coming.index != coming.index]
        return [guest.name for guest in others if _where(guest.coming) == _where(coming)]

    def _has_free(self, executors: int) -> bool:
        """Whether one of this many executors has no site."""
        return executors > len({_where(guest.coming) for guest in self._guests() if not guest.gone})

    def _free_name(self) -> str:
        taken = {process.name for process in self.processes}
        planned = self._config.plan.site_names
        return next((name for name in planned if name not in taken), None) or self._further_name(len(planned))

    def _further_name(self, planned: int) -> str:
        numbers = [int(guest.name.removeprefix("site-")) for guest in self._guests()]
        return f"site-{max([planned, *numbers]) + 1}"

    def _supersede(self, guest: ExternalSite) -> None:
        if guest.link is None or self.run_state.started_at is None:
            self._end(guest)  # It never connected, or holds nothing yet.
            return
        self._log(logging.WARNING, f"{guest.name} is superseded by a later attempt, and drained", node=guest.name)
        self._ask_to_drain(guest.name)

    async def _greeted(self, link: Link, over: trio.Event) -> None:
        await super()._greeted(link, over)
        process = self.processes.of_node(link.peer)
        if isinstance(process, ExternalSite):
            process.link = link

    def _left(self, link: Link) -> None:
        with self.changed:
            guest = self.processes.of_node(link.peer)
            if isinstance(guest, ExternalSite) and guest.link is link:
                self._end(guest)
                self.changed.notify_all()

    def _end(self, guest: ExternalSite) -> None:
        self.processes.end(guest, None)
        if guest.link is not None:
            guest.link.close()
        self._died(guest)

    def _died(self, process: Process) -> None:
        if not isinstance(process, ExternalSite):
            super()._died(process)
            return
        self.run_state.draining.discard(process.name)
        if self._stopping or process.drained:
            return
        self.run_state.deaths.append(process)
        with contextlib.suppress(KeyError):
            self._links["controller"].send(command_frame(DeclareDead(node=process.node)))
        self._log(logging.WARNING, f"{process.node} on {process.coming.host} is gone", node=process.node)


def _where(coming: TaskJoinRequest) -> tuple[str, int]:
    """Return the host and process of the executor that a site is on."""
    return coming.host, coming.executor
