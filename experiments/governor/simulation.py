"""Jobs whose costs are known, one after the other, each as large as a controller says.

A job takes a fixed time, a time for each row, and a time more if it takes a checkpoint; all of it by a random factor.
Time is a sum here: there is no clock but the processor's, which measures the controllers themselves.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from flux.governor import SizeController


@dataclass(frozen=True, kw_only=True)
class JobCosts:
    """What jobs take, as shares of the interval; of the rows that take an interval, `full_rows`, the rest is made."""

    fixed: float  # Of a job without rows: a/I.
    checkpoint: float  # What a job with a checkpoint takes more: c/I.
    noise: float = 0.08  # Each job takes from 1 - noise to 1 + noise of that.
    interval_s: float = 1.0
    every: int = 10
    full_rows: int = 4_000
    min_rows: int = 10
    first_rows: int = 2_000

    @property
    def row_s(self) -> float:
        """The time for each row: b."""
        return (1 - self.fixed) * self.interval_s / self.full_rows

    @property
    def bound(self) -> float:
        """The most rows a job can have in the mean of a region, of `full_rows`: no controller has more."""
        return max(0.0, (self.every * (1 - self.fixed) - self.checkpoint) / (1 - self.fixed) / self.every)

    def seconds(self, job: int, rows: int) -> float:
        """What a job takes without noise."""
        checkpoint = self.checkpoint if job % self.every == 0 else 0.0
        return (self.fixed + checkpoint) * self.interval_s + self.row_s * rows


@dataclass(kw_only=True)
class Played:
    """What each job was, in order."""

    costs: JobCosts
    sizes: list[int] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    processing_s: list[float] = field(default_factory=list)
    control_s: float = 0.0  # Time of the processor that the controller took for all of them.

    def share(self, warm: int) -> float:
        """Rows by interval from job `warm` on, of `full_rows`; time in which jobs lag counts."""
        interval_s = self.costs.interval_s
        ended_s = (len(self.sizes) - 1) * interval_s + self.delays_s[-1] + self.processing_s[-1]
        intervals = max(len(self.sizes) - warm, ended_s / interval_s - warm)
        return sum(self.sizes[warm:]) / intervals / self.costs.full_rows

    def mean_delay(self, warm: int) -> float:
        """Of the jobs from `warm` on, in intervals."""
        return statistics.mean(self.delays_s[warm:]) / self.costs.interval_s

    def full_time(self, warm: int) -> float:
        """What the larger half of the jobs takes in the mean, in intervals."""
        jobs = sorted(zip(self.sizes[warm:], self.processing_s[warm:], strict=True))
        return statistics.mean(seconds for _, seconds in jobs[len(jobs) // 2 :]) / self.costs.interval_s

    def checkpoint_sizes(self, warm: int) -> Sequence[int]:
        """The rows of the jobs that take a checkpoint."""
        every = self.costs.every
        return self.sizes[warm + -warm % every :: every]


def play(
    controller: SizeController, costs: JobCosts, jobs: int, seed: int, offered_rows: float | None = None
) -> Played:
    """Run so many jobs. With `offered_rows` a source has so many rows more in each interval; else it has enough."""
    rng = random.Random(seed)
    played = Played(costs=costs)
    interval_s, ended_s, taken = costs.interval_s, 0.0, 0
    for job in range(jobs):
        started_s = max(job * interval_s, ended_s)
        delay_s = started_s - job * interval_s
        began = time.process_time()
        rows = controller.size(job)
        played.control_s += time.process_time() - began
        if offered_rows is not None:
            rows = max(costs.min_rows, min(rows, int((job + 1) * offered_rows) - taken))
        taken += rows
        processing_s = costs.seconds(job, rows) * rng.uniform(1 - costs.noise, 1 + costs.noise)
        ended_s = started_s + processing_s
        began = time.process_time()
        controller.done(job, ended_s, rows, processing_s, delay_s)
        played.control_s += time.process_time() - began
        played.sizes.append(rows)
        played.delays_s.append(delay_s)
        played.processing_s.append(processing_s)
    return played
