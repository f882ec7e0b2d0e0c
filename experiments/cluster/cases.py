"""What the figures share: keys, the best placement, and runs of the simulated cluster under a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from flux.balance import (
    BalancePolicy,
    Estimates,
    HillClimbing,
    PartitionStatistics,
    ReceivedWork,
    SiteStatistics,
    Statistics,
    ask,
)
from flux.balance.statistics import LazySequence
from flux.protocols.balance_messages import Work
from flux.protocols.balancer import Estimator, RoundFacts
from flux.protocols.messages import View
from flux.spec.timed import ClusterOutcome, ClusterSetting, RowDraw, TimedCluster

SITES = 32
GROUPS = 16_384
SETTLED_S = 10.0  # A placement that has not changed for as long stays.
Rows = list[dict[str, Any]]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class ReportsAlone:
    """The estimator of a policy that reads the reports and nothing else, as `HillClimbing` does.

    `Estimates` would learn speeds from each of 3,200 reports per second, to no use.
    """

    view: View | None = None
    reports: tuple[ReceivedWork, ...] = ()

    def observe(self, work: Work, at_s: float) -> ReportsAlone:
        """Add a report; those of the last two seconds are kept."""
        received = ReceivedWork(at_s=at_s, work=work)
        if len(self.reports) < 2_000 or self.reports[0].at_s > at_s - 4.0:
            return replace(self, reports=(*self.reports, received))
        return replace(self, reports=(*(each for each in self.reports if each.at_s > at_s - 2.0), received))

    def relocate(self, view: View, reserved: frozenset[str], at_s: float) -> ReportsAlone:
        """Follow the placement of a new view."""
        return replace(self, view=view)

    def slow(self) -> frozenset[str]:
        """The thesis knows no slow sites."""
        return frozenset()

    def greatest_time_s(self) -> float:
        """It is not measured."""
        return 0.0

    def statistics(self, facts: RoundFacts) -> Statistics:
        """The reports since the last round, and where the copies are."""
        ended_s = facts.rounds[-1].ended_s or 0.0 if facts.rounds else 0.0
        names = [node for node in facts.view.nodes if node.startswith("site-")]
        return Statistics(
            at_s=facts.at_s,
            asked_s=facts.asked_s,
            sites=tuple(SiteStatistics(name=name, speed=1.0, time_s=0.0) for name in names),
            partitions=LazySequence(lambda: _placed(facts)),
            rounds=facts.rounds,
            reports=LazySequence(lambda: [each for each in self.reports if each.at_s > ended_s]),
        )


def _placed(facts: RoundFacts) -> list[PartitionStatistics]:
    held = {(standby.stage, standby.partition) for standby in facts.view.standby} | facts.catching_up
    return [
        PartitionStatistics(
            stage=stage, partition=partition, work=1.0, copies=copies, is_movable=(stage, partition) not in held
        )
        for stage, partitions in enumerate(facts.view.copies)
        if not facts.view.is_end(stage) and stage not in facts.pinned_stages
        for partition, copies in enumerate(partitions)
    ]


def simulate(
    setting: ClusterSetting, policy: BalancePolicy | None, until_s: float, stop_early: bool = False
) -> ClusterOutcome:
    """Run a cluster under a policy; with `stop_early` only until its placement has not changed for a while."""
    estimator: Estimator | None = None
    if policy is not None:
        estimator = ReportsAlone() if isinstance(policy, HillClimbing) else Estimates()
    answer = None if policy is None else partial(ask, policy)
    cluster = TimedCluster(setting, estimator, answer, draw_fast(setting))
    outcome = cluster.run(min(until_s, SETTLED_S) if stop_early else until_s)
    while stop_early and cluster.now_s < until_s:
        last_s = outcome.moved_s[-1] if outcome.moved_s else 0.0
        if outcome.is_settled and cluster.now_s - last_s >= SETTLED_S:
            break
        outcome = cluster.run(min(until_s, cluster.now_s + 2.0))
    return outcome


def draw_fast(setting: ClusterSetting) -> RowDraw:
    """Draw the rows of each partition at once, by chance."""
    shares = np.array(setting.known_shares)
    shares /= shares.sum()
    chances: dict[int, np.random.Generator] = {}

    def draw(producer: int, rows: int, upto: int) -> Mapping[int, int]:
        chance = chances.setdefault(producer, np.random.default_rng((setting.seed, producer)))
        counts = chance.multinomial(rows, shares)
        drawn = np.flatnonzero(counts)
        return dict(zip(drawn.tolist(), counts[drawn].tolist(), strict=True))

    return draw


def best_rate(setting: ClusterSetting, at_s: float) -> float:
    """The rows per second of the best placement at the true speeds, in whole partitions if these are equal.

    Of unequal ones it is what no placement can exceed: all work by all speed, or the heaviest on the fastest site.
    """
    speeds = np.array([setting.speed(name, at_s) for name in setting.names])
    shares = np.array(setting.known_shares)
    cost_s = setting.row_s + setting.produce_s
    if np.ptp(shares) > 1e-15:
        return float(1 / (cost_s * max(shares.sum() / speeds.sum(), shares.max() / speeds.max())))
    low, high = 0.0, float(shares.sum() / speeds.min())
    for _ in range(60):
        level = (low + high) / 2
        fitting = np.floor(level * speeds / shares[0] + 1e-9).sum()
        low, high = (low, level) if fitting >= len(shares) else (level, high)
    return 1 / (cost_s * high)


def self_similar(partitions: int, seed: int = 3) -> tuple[float, ...]:
    """80 % of the rows for a fifth of the groups, and so on within these: one group has a quarter of all rows."""
    edges = (np.arange(GROUPS + 1) / GROUPS) ** (np.log(0.8) / np.log(0.2))
    return _hashed(np.diff(edges), partitions, seed)


def flat(partitions: int, seed: int = 3) -> tuple[float, ...]:
    """80 % of the rows for a fifth of the groups, which are all alike, as are the others."""
    weights = np.full(GROUPS, 0.2 / (0.8 * GROUPS))
    weights[: GROUPS // 5] = 0.8 / (0.2 * GROUPS)
    return _hashed(weights, partitions, seed)


def _hashed(weights: Floats, partitions: int, seed: int) -> tuple[float, ...]:
    places = np.random.default_rng(seed).integers(0, partitions, len(weights))
    shares = np.bincount(places, weights, partitions)
    return tuple((shares / shares.sum()).tolist())


def loaded_sites(setting: ClusterSetting, count: int, first: Sequence[str] = (), seed: int = 7) -> list[str]:
    """Some sites by chance, always the same; those in `first` among them."""
    drawn = [setting.names[n] for n in np.random.default_rng(seed).permutation(setting.sites)]
    return [*first, *(name for name in drawn if name not in first)][:count]
