"""External sites, which the program has not forked. They join, get a name, and end with their connection.

Spark restarts a task when its executor is lost, or when it only lost contact with the executor, while the first attempt
still runs. So each place in the cluster has an index, and its attempts are numbered. A later attempt supersedes the
earlier one, which is drained and stopped; an earlier attempt that joins too late is refused.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ...driver.local.driver import Driver
from ...driver.local.site_hooks import SiteHooks
from ...driver.processes import Process
from ...plan import Plan
from ...site.crash_note import Job
from ...types.errors import FluxError
from ...wire.link import Link
from ...wire.reports import KillProcess, command_frame
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


class ExternalSites(SiteHooks):
    """The external sites of the run that `driver` drives; `executors` returns how many executors could run one."""

    death_known_within_s = 3.0  # In this time a task reports how its site ended, if the executor lives.

    def __init__(self, plan: Plan, make_driver: Callable[[SiteHooks], Driver], executors: Callable[[], int]) -> None:
        self._planned = plan.site_names
        self._executors = executors
        self._turned_away: Counter[int] = Counter()
        self.driver = make_driver(self)

    def admit(self, coming: TaskJoinRequest) -> ExternalSite | None:
        """Return the admitted site, from any thread; None if it should retry on another executor."""
        executors = self._executors()
        return self.driver.call_in_thread(lambda: self._admit(coming, executors))

    def note_death(self, death: TaskSiteDeath) -> None:
        """Note that a task found its site dead, from any thread."""
        self.driver.call_in_thread(lambda: self._note_death(death))

    def guest_at(self, index: int) -> ExternalSite | None:
        """Return the site of the latest attempt at a place."""
        with self.driver.changed:
            return max(self._guests(index), key=lambda guest: guest.coming.attempt, default=None)

    def guests_up(self) -> list[ExternalSite]:
        """Return the external sites that are up."""
        with self.driver.changed:
            return [guest for guest in self._guests() if guest.state == "up"]

    def _guests(self, index: int | None = None) -> list[ExternalSite]:
        guests = [process for process in self.driver.processes if isinstance(process, ExternalSite)]
        return [guest for guest in guests if index is None or guest.coming.index == index]

    # In the thread.

    def _admit(self, coming: TaskJoinRequest, executors: int) -> ExternalSite | None:
        with self.driver.changed:
            earlier = self._guests(coming.index)
            if any(guest.coming.attempt >= coming.attempt for guest in earlier):
                raise FluxError(f"attempt {coming.attempt} at site {coming.index} joins after a later one")
            if self.driver.stopping:
                raise FluxError("the run is over")
            crowd = self._crowd(coming)
            if crowd and self._turned_away[coming.index] < CROWDED_MAX and self._has_free(executors):
                self._turned_away[coming.index] += 1
                return None
            guest = ExternalSite(self._free_name(), pid=coming.pid, coming=coming, say=self.driver.run_in_thread)
            guest.stderr.handed_over()  # What it writes is in its executor's log.
            self.driver.processes.enter(guest)
            for other in earlier:
                if not other.gone:
                    self._supersede(other)
            if crowd:
                where = f"{coming.host}, process {coming.executor}"
                text = f"{guest.name} is on the same executor as {', '.join(crowd)} ({where}): they may die together"
                self.driver.log(logging.WARNING, text, node=guest.name)
            self.driver.changed.notify_all()
            return guest

    def _note_death(self, death: TaskSiteDeath) -> None:
        with self.driver.changed:
            for guest in self._guests(death.index):
                if guest.coming.attempt == death.attempt:
                    guest.exited = death.status
                    self.driver.examine(guest, None if death.job is None else Job.from_plain(death.job))
                    self.driver.changed.notify_all()

    def _crowd(self, coming: TaskJoinRequest) -> list[str]:
        """Return the sites on the same executor, which would die together."""
        others = [guest for guest in self._guests() if not guest.gone and guest.coming.index != coming.index]
        return [guest.name for guest in others if _where(guest.coming) == _where(coming)]

    def _has_free(self, executors: int) -> bool:
        """Whether one of this many executors has no site."""
        return executors > len({_where(guest.coming) for guest in self._guests() if not guest.gone})

    def _free_name(self) -> str:
        taken = {process.name for process in self.driver.processes}
        numbers = [int(guest.name.removeprefix("site-")) for guest in self._guests()]
        further = f"site-{max([len(self._planned), *numbers]) + 1}"
        return next((name for name in self._planned if name not in taken), further)

    def _supersede(self, guest: ExternalSite) -> None:
        if guest.link is None or self.driver.run_state.started_at is None:
            self.driver.end(guest)  # It never connected, or holds nothing yet.
            if guest.link is not None:
                guest.link.close()
            return
        self.driver.log(logging.WARNING, f"{guest.name} is superseded by a later attempt, and drained", node=guest.name)
        self.driver.ask_to_drain(guest.name)

    def on_connected(self, process: Process, link: Link) -> None:
        if isinstance(process, ExternalSite):
            process.link = link

    def on_disconnected(self, process: Process, link: Link) -> None:
        if isinstance(process, ExternalSite) and process.link is link:
            self.driver.end(process)

    def text_of_death(self, process: Process) -> str | None:
        return f"{process.node} on {process.coming.host} is gone" if isinstance(process, ExternalSite) else None


def _where(coming: TaskJoinRequest) -> tuple[str, int]:
    """Return the host and process of the executor that a site is on."""
    return coming.host, coming.executor
