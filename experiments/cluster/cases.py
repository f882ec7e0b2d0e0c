"""What the figures share: keys, the best placement, and runs of the simulated cluster under a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from flux.balance import BalancePolicy, Estimates, HillClimbing, ask
from flux.spec.timed import ClusterOutcome, ClusterSetting, RowDraw, TimedCluster

from .thesis_cluster import ThesisCluster

SITES = 32
GROUPS = 16_384
Rows = list[dict[str, Any]]
Floats = npt.NDArray[np.float64]


def simulate(setting: ClusterSetting, policy: BalancePolicy | None, until_s: float) -> ClusterOutcome:
    """Run a cluster under a policy: the thesis's policy on the thesis's own cluster, where moves hold partitions."""
    if isinstance(policy, HillClimbing):
        return ThesisCluster(setting, policy).run(until_s)
    if policy is None:
        return TimedCluster(setting, draw=draw_fast(setting)).run(until_s)
    return TimedCluster(setting, Estimates(), partial(ask, policy), draw_fast(setting)).run(until_s)


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
