"""Watches a run with virtual processors: rows processed, output, placement, and how busy the host is.

Rates are of rows *processed*, not of rows sent: pools take rows for a while whatever the sites do. A placement is
judged by what it sustains: the greatest time per position of any site, at the true speeds.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Self

from experiments.machines import Machines, VirtualRun, host_times_s
from flux.plan.plan import INGRESS

SAMPLE_EVERY_S = 0.02


@dataclass(frozen=True)
class Sample:
    """One look at the run."""

    at_s: float
    rows: float
    inputs: int
    outputs: int
    copies: dict[str, int]
    speeds: dict[str, float]
    rounds: int
    building: int
    slow: tuple[str, ...]
    buffered: int  # In all pools;
    buffered_source: int  # and in that of the source alone.
    host_busy_s: float
    host_s: float


class Watch:
    """Samples of `run`, from the beginning of its block to its end."""

    def __init__(self, run: VirtualRun, machines: Machines) -> None:
        self._run = run
        self._machines = machines
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._is_over.wait(SAMPLE_EVERY_S):
            self.samples.append(self._look())

    def _look(self) -> Sample:
        state = self._run._run_state
        sites = {name: count for name, count in dict(state.copies).items() if name.startswith("site-")}
        busy_s, all_s = host_times_s()
        return Sample(
            at_s=time.monotonic(),
            rows=self._machines.rows(),
            inputs=state.history.input_rows,
            outputs=state.outputs,
            copies=sites,
            speeds={site: self._machines.speed(site) for site in sites},
            rounds=len(state.balance.rounds),
            building=state.building,
            slow=tuple(load.site for load in dict(state.balance.loads).values() if load.slow),
            buffered=sum(dict(state.buffered_rows).values()),
            buffered_source=state.buffered_rows.get(INGRESS, 0),
            host_busy_s=busy_s,
            host_s=all_s,
        )

    def at(self, at_s: float) -> Sample:
        """The first sample at or after `at_s`; the last one if there is none."""
        place = bisect_left(self.samples, at_s, key=lambda sample: sample.at_s)
        return self.samples[min(place, len(self.samples) - 1)]

    def between(self, begin_s: float, end_s: float) -> list[Sample]:
        """The samples of a time."""
        return [sample for sample in self.samples if begin_s <= sample.at_s <= end_s]

    def rate(self, begin_s: float, end_s: float) -> float:
        """Rows processed per second by all sites together."""
        first, last = self.at(begin_s), self.at(end_s)
        return (last.rows - first.rows) / (last.at_s - first.at_s)

    def input_rate(self, begin_s: float, end_s: float) -> float:
        """Rows taken in per second."""
        first, last = self.at(begin_s), self.at(end_s)
        return (last.inputs - first.inputs) / (last.at_s - first.at_s)

    def host_busy(self, begin_s: float, end_s: float) -> float:
        """The part of the time for which the processors of the host were busy."""
        first, last = self.at(begin_s), self.at(end_s)
        return (last.host_busy_s - first.host_busy_s) / max(last.host_s - first.host_s, 1e-9)

    def output_gap_s(self, begin_s: float, end_s: float) -> float:
        """The longest time without a row at the sink that touches (begin, end)."""
        samples = self.between(begin_s - 2.0, end_s)
        longest = 0.0
        last_s, count = samples[0].at_s, samples[0].outputs
        for sample in samples:
            if sample.outputs > count:
                last_s, count = sample.at_s, sample.outputs
            if sample.at_s >= begin_s:
                longest = max(longest, sample.at_s - last_s)
        return longest

    def settled_s(self, since_s: float, best_s: float, tolerance: float) -> float | None:
        """Seconds from `since_s` until the placement was within `tolerance` of the best, and stayed so."""
        settled: float | None = None
        for sample in self.between(since_s, self.samples[-1].at_s):
            is_good = sample.building == 0 and placement_time_s(sample) <= best_s / (1 - tolerance)
            if not is_good:
                settled = None
            elif settled is None:
                settled = sample.at_s - since_s
        return settled

    def changes(self, since_s: float) -> int:
        """How often the placement changed after `since_s`."""
        return sum(a.copies != b.copies for a, b in pairwise(self.between(since_s, self.samples[-1].at_s)))


def placement_time_s(sample: Sample) -> float:
    """The greatest time per position of any site, in rows' costs: its copies divided by its speed."""
    return max((count / sample.speeds[site] for site, count in sample.copies.items()), default=0.0)


def best_time_s(speeds: Mapping[str, float], copies: int, most: int) -> float:
    """The least greatest time per position of any placement of equal copies, with at most `most` on a site.

    >>> round(48 / best_time_s({"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.5}, 192, 96), 3)
    0.873
    """
    placed = dict.fromkeys(speeds, 0)
    for _ in range(copies):
        site = min((s for s in placed if placed[s] < most), key=lambda s: ((placed[s] + 1) / speeds[s], s))
        placed[site] += 1
    return max(count / speeds[site] for site, count in placed.items())
