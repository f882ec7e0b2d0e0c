"""One trial: a run with virtual processors that is first measured without load, and then as an experiment wants it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.balance.even_load import BATCH_ROWS, even_flow
from experiments.balance.watch import Watch, best_time_s, placement_time_s
from experiments.experiment import Finding
from experiments.machines import Machines, VirtualRun, start
from flux.plan import Availability

COST_S = 0.001
POOL_ROWS = 2_048
WARM_S = 4.0
UNLOADED_S = 8.0
UNLOADED_MIN = 0.98
HOST_BUSY_MAX = 0.6


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is run: a flow with even work, on sites of full speed."""

    sites: int = 4
    standby: int = 0
    partitions: int = 96
    stages: int = 1
    order: Literal["sn", "any"] = "sn"
    availability: Availability = "pairs"
    state_bytes: int = 0
    batch_rows: int = BATCH_ROWS
    balance: Any = "auto"
    slow: Literal["wait", "give-up"] = "wait"
    record: Path | None = None

    @property
    def degree(self) -> int:
        return 2 if self.availability == "pairs" else 1

    @property
    def copies(self) -> int:
        """Copies of all partitions of all stages."""
        return self.partitions * self.degree * self.stages

    @property
    def about(self) -> dict[str, Any]:
        """The parameters as columns."""
        return {
            "sites": self.sites,
            "copies": self.copies,
            "stages": self.stages,
            "order": self.order,
            "availability": self.availability,
            "balance": self.balance if isinstance(self.balance, str) else type(self.balance).__name__,
        }


class Trial:
    """A run in progress, with what was measured of it before anything happened to it."""

    def __init__(self, setting: Setting, run: VirtualRun, machines: Machines, watch: Watch) -> None:
        self.setting = setting
        self.run = run
        self.machines = machines
        self.watch = watch
        time.sleep(WARM_S)
        begin_s = time.monotonic()
        time.sleep(UNLOADED_S)
        end_s = time.monotonic()
        self.unloaded = watch.rate(begin_s, end_s)
        self.begin_s = begin_s

    @property
    def ideal(self) -> float:
        """Rows per second that all sites process at full speed."""
        return self.setting.sites / COST_S

    def best_s(self, speeds: dict[str, float] | None = None, copies: int | None = None) -> float:
        """The least greatest time per position, at the speeds of now."""
        known = speeds or {site: self.machines.speed(site) for site in self.watch.samples[-1].copies}
        most = self.setting.partitions * self.setting.stages
        return best_time_s(known, self.setting.copies if copies is None else copies, most)

    @property
    def unloaded_s(self) -> float:
        """The time per position of the sites at first."""
        return self.setting.copies / self.setting.sites

    def confirm_s(self, rate: float) -> float:
        """How long to measure a rate, so that pools do not matter: 20 times what it takes to empty one."""
        return 20 * POOL_ROWS * self.setting.degree * self.setting.stages / rate

    def wait_settled(self, since_s: float, best_s: float, tolerance: float, quiet_s: float, most_s: float) -> None:
        """Wait until the placement has been within `tolerance` of the best for `quiet_s`, `most_s` at most."""
        while time.monotonic() < since_s + most_s:
            settled_s = self.watch.settled_s(since_s, best_s, tolerance)
            if settled_s is not None and time.monotonic() - since_s - settled_s >= quiet_s:
                return
            time.sleep(0.2)

    def validity(self) -> dict[str, float]:
        """How far the conditions held under which the values count."""
        return {
            "unloaded": self.unloaded / self.ideal,
            "host_busy": self.watch.host_busy(self.begin_s, self.watch.samples[-1].at_s),
        }


@contextmanager
def trial(setting: Setting) -> Iterator[Trial]:
    """Start a run and measure it without load."""
    machines = Machines(dict.fromkeys(range(1, setting.stages + 1), COST_S))
    flow = even_flow(
        setting.partitions,
        stages=setting.stages,
        order=setting.order,
        state_bytes=setting.state_bytes,
        batch_rows=setting.batch_rows,
        name="trial",
    )
    with (
        start(
            flow,
            machines,
            setting.sites,
            standby=setting.standby,
            availability=setting.availability,
            pool_rows=POOL_ROWS,
            balance=setting.balance,
            record=setting.record,
            slow=setting.slow,
        ) as run,
        Watch(run, machines) as watch,
    ):
        yield Trial(setting, run, machines, watch)


def sustained(of: Trial, best_s: float) -> float:
    """What the placement of now sustains, as a part of the best."""
    return best_s / placement_time_s(of.watch.samples[-1])


def validity_findings(rows: Iterable[dict[str, Any]]) -> list[Finding]:
    """Whether the sites did, without load, what their processors can, and how busy the host was."""
    found = list(rows)
    least, busiest = min(row["unloaded"] for row in found), max(row["host_busy"] for row in found)
    return [
        Finding(
            what="rows processed without load, of the ideal, the least of all runs",
            value=least,
            target=f"at least {UNLOADED_MIN}",
            holds=least >= UNLOADED_MIN,
        ),
        Finding(
            what="part of the time for which the host was busy, the most of all runs",
            value=busiest,
            target=f"under {HOST_BUSY_MAX}",
            holds=busiest < HOST_BUSY_MAX,
        ),
    ]


def at_most(what: str, values: Iterable[float | None], limit: float, thesis: str = "") -> list[Finding]:
    """The median and the greatest of some values against a limit; None is worse than any."""
    known = [float("inf") if value is None else value for value in values]
    middle = statistics.median(known)
    return [
        Finding(
            what=f"{what}, median of {len(known)}",
            value=None if middle == float("inf") else middle,
            target=f"at most {limit:g}",
            holds=middle <= limit,
            thesis=thesis,
        )
    ]


def at_least(what: str, values: Iterable[float], limit: float, thesis: str = "") -> list[Finding]:
    """The least of some values against a limit."""
    known = list(values)
    return [
        Finding(
            what=f"{what}, least of {len(known)}",
            value=min(known),
            target=f"at least {limit:g}",
            holds=min(known) >= limit,
            thesis=thesis,
        )
    ]
