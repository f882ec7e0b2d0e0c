"""What balance costs beside the work: CPU time for each report of a site, on its way into the balance of a run.

Four sites with pairs, an ingress and an egress report ten times a second each, as in a run whose load is even. Measured
are the encoding at the site, the decoding in the controller, and all that the controller does with a report: estimates,
slow marks, the policy. The parts take turns in one process.

    python -m experiments.bench.balance_reports [--seconds N] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

from flux.balance import Level
from flux.controller.load_balance import LoadBalance, new_balancer
from flux.plan import Plan, Segment
from flux.protocols.balance_messages import StageWork, Work
from flux.protocols.messages import View
from flux.wire import frames
from flux.wire.membership import WorkDone, membership_frame, read_from_node

SITES = 4
REPORT_S = 0.1
ROWS_PER_S = 200_000
SETTLED_S = 5.0  # Reports before this are not measured.
SIZES = [(1, 96), (2, 96), (1, 1_024), (2, 1_024)]  # Stages, and partitions of each.


@dataclass(frozen=True)
class Feed:
    """Reports of a run of `stages` stages with `partitions` each, whose load is even; each with its arrival."""

    stages: int
    partitions: int
    seed: int = 1

    @property
    def plan(self) -> Plan:
        segment = Segment(columns=("n",), partitions=self.partitions, availability="pairs", steps=())
        return Plan(name="even", segments=(segment,) * self.stages, sites=SITES, standby=0, pool_rows=65_536)

    @property
    def view(self) -> View:
        return replace(self.plan.view(), number=1)

    def reports(self, seconds: float) -> Iterator[tuple[float, Work]]:
        """Return what all nodes report in this time."""
        random, view = np.random.default_rng(self.seed), self.view
        sites = [node for node in view.nodes if node.startswith("site")]
        for number in range(1, round(seconds / REPORT_S)):
            for place, node in enumerate(view.nodes):
                at_s = number * REPORT_S + 0.013 * place
                lags = tuple((site, float(lag)) for site, lag in zip(sites, random.uniform(0, 0.3, SITES), strict=True))
                is_site = node in sites
                busy_s = float(random.uniform(0.05, 0.07)) if is_site else 0.02
                yield (
                    at_s,
                    Work(
                        node=node,
                        number=number,
                        view=1,
                        elapsed_s=REPORT_S,
                        busy_s=busy_s,
                        stages=tuple(self._work(random, view, node, stage, busy_s) for stage in self._stages(is_site)),
                        lags=lags,
                        kept=tuple((site, int(lag * 65_536), 65_536) for site, lag in lags),
                    ),
                )

    def _stages(self, is_site: bool) -> range:
        return range(1, 1 + self.stages) if is_site else range(0)

    def _work(self, random: np.random.Generator, view: View, node: str, stage: int, busy_s: float) -> StageWork:
        held = sorted(view.held(stage, node))
        positions = int(ROWS_PER_S * REPORT_S)
        counts = random.poisson(positions / self.partitions, len(held)).tolist()
        rows = tuple((p, n) for p, n in zip(held, counts, strict=True) if n)
        return StageWork(stage=stage, positions=positions, rows=rows, busy_s=busy_s / self.stages)


class FeedClock:
    """The time of a feed, for what asks for it."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def measure(feed: Feed, seconds: float) -> dict[str, float]:
    """CPU microseconds of each part, for a report of a site; those of the ends are added to it."""
    clock, spent_s, reports = FeedClock(), {"encode": 0.0, "decode": 0.0, "take": 0.0}, 0
    with mock.patch("flux.controller.load_balance.time", clock):
        moved: list[Any] = []
        balance = LoadBalance(new_balancer(feed.plan, feed.view), Level(), 1, moved.append, moved.append, *[_drop] * 2)
        for at_s, work in feed.reports(seconds):
            clock.now_s = at_s
            times = [time.process_time()]
            packed = frames.encode(membership_frame(WorkDone(work=work)))
            times.append(time.process_time())
            message = read_from_node(frames.decode_header(packed[frames.PREFIX.size :]))
            times.append(time.process_time())
            assert isinstance(message, WorkDone)
            balance.take(message.work)
            times.append(time.process_time())
            if at_s > SETTLED_S:
                reports += bool(work.stages)
                for part, began, ended in zip(spent_s, times, times[1:], strict=False):
                    spent_s[part] += ended - began
    assert not any(type(each).__name__ in ("Move", "Slow") for each in moved), "the load is even"
    return {part: part_s / reports * 1e6 for part, part_s in spent_s.items()}


def _drop(*given: Any) -> None:
    """Nobody looks at what is said and shown."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="how long the run is that the reports are of")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = []
    for stages, partitions in SIZES:
        found = measure(Feed(stages, partitions), arguments.seconds)
        results.append({"stages": stages, "partitions": partitions, **found})
        if not arguments.json:
            shown = ", ".join(f"{part} {cost:4.0f}" for part, cost in found.items())
            print(f"{stages} x {partitions:>5} partitions: {shown} us, in all {sum(found.values()):4.0f}", flush=True)
    if arguments.json:
        print(json.dumps({"us_per_report": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
