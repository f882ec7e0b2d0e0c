"""Virtual processors: sites that behave as machines of a known speed, on any number of cores.

A step of an operator does its real work at once, which is little, and is *charged* rows x cost / speed on the time line
of its site. Its output is handed on when that time has passed. Until then the site takes messages, acknowledges and
sends as ever, and begins no other step. A step that waited begins where the last one ended, and so does one that the
machine gives within `TURN_S` of that: delays of the host do not add up. State in transfer is charged by its size, to
giver and taker.

Speeds are in memory that all processes share, and may change at any time. `n` busy programs beside a site leave it
1 / (1 + n) of its processor. What a site reports of its work, for balance, is in virtual time too.

At 1 ms a row the real work is a hundredth of the virtual: a run is valid if, without load, the rows processed are at
least 98 % of sites / (copies x cost).
"""

from __future__ import annotations

import mmap
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio

import flux
from flux.driver.launcher import Runnable
from flux.exchange.edge_bodies import LaneBody
from flux.model.batch import Batch
from flux.plan import Availability, Policy
from flux.protocols.balance_messages import Work
from flux.protocols.messages import Consume
from flux.protocols.node import Node
from flux.run import Run
from flux.site.config import ProcessConfig
from flux.site.work_meter import REPORT_EVERY_S, WorkMeter
from flux.site.worker import Worker
from flux.wire.link import Link
from flux.wire.reports import Report, StateSent
from flux.wire.transfer import StateChunk

SITES_MAX = 64
SLICE_S = 0.05  # Speeds may change within a step: it is charged in slices.
TURN_S = 0.01  # A machine gives the next step when it has the result of the last, and its loop may be late.
STATE_S_PER_MB = 0.005
AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")
_SPEED, _ROWS, _BUSY = range(3)


class Machines:
    """The processors of all sites; a row costs `cost_s` of each stage, at full speed."""

    def __init__(self, cost_s: Mapping[int, float]) -> None:
        self.cost_s = dict(cost_s)
        self._memory = mmap.mmap(-1, 8 * SITES_MAX * 3)
        self._words = np.frombuffer(self._memory, np.float64).reshape(3, SITES_MAX)
        self._words[_SPEED] = 1.0

    def load(self, site: str, programs: float) -> None:
        """Let so many busy programs share the processor of `site`."""
        self._words[_SPEED, _nth(site)] = 1.0 / (1.0 + programs)

    def speed(self, site: str) -> float:
        """The part of its processor that `site` has."""
        return float(self._words[_SPEED, _nth(site)])

    def rows(self, site: str | None = None) -> float:
        """Rows that `site`, or all sites together, have processed up to now."""
        return float(self._words[_ROWS].sum() if site is None else self._words[_ROWS, _nth(site)])

    def busy_s(self, site: str) -> float:
        """The time for which `site` has been at work."""
        return float(self._words[_BUSY, _nth(site)])

    def note(self, site: str, rows: int, busy_s: float) -> None:
        """Count a piece of work that `site` has finished."""
        self._words[_ROWS, _nth(site)] += rows
        self._words[_BUSY, _nth(site)] += busy_s


def _nth(site: str) -> int:
    return int(site.partition("-")[2])


class Processor:
    """The virtual processor of one site: one piece of work after the other."""

    def __init__(self, machines: Machines, site: str) -> None:
        self._machines = machines
        self._site = site
        self.is_busy = False
        self.busy_s = 0.0
        self.free_s = time.monotonic()  # When it has finished all that it was given.
        self._finished = trio.Event()

    async def work(self, cost_s: float, rows: int, since_s: float) -> float:
        """Work for as long as `cost_s` takes at the speed of the site; return how long that was.

        The work was there since `since_s`, and begins when the processor is free.
        """
        began_s = at_s = max(self.free_s, since_s)
        self.is_busy = True
        while cost_s > 0:
            speed = self._machines.speed(self._site)
            passed_s = min(cost_s / speed, SLICE_S)
            at_s += passed_s
            cost_s -= passed_s * speed
            await trio.sleep(max(0.0, at_s - time.monotonic()))
        self.free_s, self.is_busy = at_s, False
        self.busy_s += at_s - began_s
        self._machines.note(self._site, rows, at_s - began_s)
        finished, self._finished = self._finished, trio.Event()
        finished.set()
        return at_s - began_s

    async def wait_finished(self) -> None:
        """Wait until the work at hand is finished."""
        if self.is_busy:
            await self._finished.wait()


class _Jobs(deque[Consume]):
    """The jobs of a site. While its processor is busy there seem to be none."""

    def __init__(self, processor: Processor) -> None:
        super().__init__()
        self._processor = processor
        self._since_s: dict[tuple[int, int], float] = {}

    def __bool__(self) -> bool:
        return len(self) > 0 and not self._processor.is_busy

    def append(self, job: Consume) -> None:
        now_s, free_s = time.monotonic(), self._processor.free_s
        is_next = not self._processor.is_busy and now_s - free_s < TURN_S
        self._since_s.setdefault((job.stage, job.cohort), free_s if is_next else now_s)  # One job a cohort at a time.
        super().append(job)

    def since_s(self, job: Consume) -> float:
        """When a job arrived that is taken now."""
        return self._since_s.pop((job.stage, job.cohort))


class _Meter(WorkMeter):
    """Measures work in the time of a virtual processor."""

    def __init__(self, plan: Any, processor: Processor) -> None:
        super().__init__(plan)
        self._processor = processor

    async def report_regularly(
        self, node: Callable[[], Node], report: Callable[[], None], send_work: Callable[[Work], None] | None
    ) -> None:
        self.start()
        while send_work is not None:
            await trio.sleep(REPORT_EVERY_S)
            await self._processor.wait_finished()  # As a real site reports when a step has ended.
            send_work(self.take(node()))

    def start(self) -> None:
        super().start()
        self._idle_s = lambda: time.monotonic() - self._processor.busy_s
        self._idle_before_s = self._idle_s()

    @contextmanager
    def moving(self) -> Iterator[None]:
        yield

    def note_moving(self, took_s: float) -> None:
        """Ignore real time."""

    def note_moved(self, took_s: float) -> None:
        """Count virtual time of state in transfer."""
        super().note_moving(took_s)


class VirtualWorker(Worker):
    """A site with a virtual processor."""

    def __init__(self, config: ProcessConfig, name: str, machines: Machines) -> None:
        super().__init__(config, name)
        self._machines = machines
        self._processor = Processor(machines, name)
        self._jobs = self.shell.jobs = _Jobs(self._processor)
        self._meter = self.shell.meter = _Meter(config.plan, self._processor)
        self._since_s = 0.0
        self._transfers: deque[float] = deque()
        self._report, self.shell.report = self.shell.report, self._take_report  # type: ignore[method-assign]

    def start(self, nursery: trio.Nursery) -> None:
        super().start(nursery)
        self._waits_s = lambda: 0.0  # For the real processor.

    def perform(self, job: Consume) -> None:
        self._since_s = self._jobs.since_s(job)
        super().perform(job)

    def _finish(self, job: Consume, rows: Batch | None, body: LaneBody, busy_s: float) -> None:
        self._processor.is_busy = True
        self.shell.nursery.start_soon(self._charge, job, rows, body, self._since_s)

    async def _charge(self, job: Consume, rows: Batch | None, body: LaneBody, since_s: float) -> None:
        while self._transfers:
            moved_s = await self._processor.work(self._transfers.popleft(), 0, since_s)
            self._meter.note_moved(moved_s)
        count = 0 if rows is None else len(rows)
        cost_s = count * self._machines.cost_s.get(job.stage, 0.0)
        super()._finish(job, rows, body, await self._processor.work(cost_s, count, since_s))

    # State in transfer is charged before the next step.

    def _take_report(self, report: Report) -> None:
        if isinstance(report, StateSent):
            self._transfers.append(report.size_bytes / 1e6 * STATE_S_PER_MB)
        self._report(report)

    def take_chunk(self, link: Link, chunk: StateChunk, body: Any) -> None:
        self._transfers.append((0 if body is None else len(body)) / 1e6 * STATE_S_PER_MB)
        super().take_chunk(link, chunk, body)


class VirtualRun(Run):
    """A run whose sites have the processors of `machines`."""

    def __init__(self, machines: Machines, *arguments: Any) -> None:
        self._machines = machines
        super().__init__(*arguments)

    def _make_site(self, name: str) -> Runnable:
        return VirtualWorker(self._config, name, self._machines)


def start(
    flow: flux.Dataflow,
    machines: Machines,
    sites: int,
    *,
    standby: int = 0,
    availability: Availability = "pairs",
    pool_rows: int,
    balance: Any,
    record: Any = None,
    **policy: Any,
) -> VirtualRun:
    """Start `flow` on sites with virtual processors."""
    logical = flow._logical
    plan = logical.plan(sites, standby, availability, pool_rows, Policy(balance=balance, **policy))
    return VirtualRun(machines, plan, logical.sources, logical.sinks, logical.outputs, record)


def host_times_s() -> tuple[float, float]:
    """The time for which the processors of the host were busy, and all of it, since it started."""
    with open("/proc/stat") as file:
        return host_times_of(file.readline(), is_nice_global=not _has_autogroups())


def host_times_of(line: str, is_nice_global: bool) -> tuple[float, float]:
    """Busy and all time, of the first line of /proc/stat.

    User time of processes with a lower priority does not count as busy if they give way, that is, if priorities hold
    between all processes. Linux may make each session a group that has its share whatever its priority.
    """
    _, nice, _, idle, waiting, *_ = ticks = list(map(float, line.split()[1:9]))
    return sum(ticks) - idle - waiting - (nice if is_nice_global else 0.0), sum(ticks)


def _has_autogroups() -> bool:
    return AUTOGROUPS.exists() and AUTOGROUPS.read_text().strip() == "1"
