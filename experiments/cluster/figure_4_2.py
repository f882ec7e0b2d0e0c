"""Fig. 4.2: the room that pools need for short imbalances: a load that rotates, and input sorted by destination.

Sorted input is read in two ways; the thesis's text (4.3) has both, its figure neither.

*All alike*: every producer has a block of rows for the first site, then for the second, and so on. No pool can do with
less than half of what the divided one needs. When a producer begins with a site, that site has just used up its last
block, if it never waits; the one before it still has one part in N of its block, the next before that two, and so on to
nearly all of it. That is half of a turn, whatever the pool is like. A divided pool needs nearly a block for each site.

*Each in its own order*: each producer goes through the sites in another order each time. Then a pool holds only what
chance brings together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.experiment import Progress
from flux.spec.timed import ClusterSetting, TimedCluster, draw_sorted, rotate

from .cases import Rows, draw_fast

CLAIM = "95 % of the unloaded rate with at most a quarter of the space that Exchange needs for it"
# Read off the text: it has no numbers but "about half of the unloaded case" without a buffer.
THESIS = {"rate_without_buffer": 0.5, "flux_beats_exchange": True}
KINDS: dict[str, dict[str, Any]] = {
    "flux": {},
    "exchange": {"divided": True},
    "river": {"divided": True, "by_free_space": True},
}
ROTATING, ALIKE, OWN_ORDER = "rotating load", "sorted, all alike", "sorted, each in its own order"
POOLS = {
    (ROTATING, "flux"): (64, 256, 512, 768, 1_024, 1_536, 2_048, 4_096),
    (ROTATING, "exchange"): (64, 512, 2_048, 4_096, 5_120, 6_144, 8_192),
    (ROTATING, "river"): (64, 256, 1_024),
    (ALIKE, "flux"): (1_024, 2_048, 3_072, 3_584, 4_096),
    (ALIKE, "exchange"): (4_096, 6_144, 7_168, 7_680, 8_192),
    # Of fewer sites: each producer is simulated, because they are not alike.
    (OWN_ORDER, "flux"): (256, 512, 640, 768, 1_024),
    (OWN_ORDER, "exchange"): (1_024, 2_048, 3_072, 3_584, 4_096),
}
REACHED = 0.95
BLOCK_ROWS = 256  # Of each producer for one site, when the input is sorted.
OWN_ORDER_SITES = 16
# The first run of each destination is free of charge: runs must be small beside the pools, and beside a block.
RUN_ROWS_MIN, RUN_ROWS_MAX, RUN_ROWS_SORTED = 64, 256, 16
ROTATION_S = 0.5
SORTED_S = {ALIKE: 2.4, OWN_ORDER: 1.2}  # Of which the first part fills the pools.


def run(quick: bool, progress: Progress) -> Rows:
    """The rate over one rotation, or several turns, by the size of the pools: Flux, Exchange and River's queue."""
    rows: Rows = []
    for (case, kind), pools in POOLS.items():
        for pool in pools[::3] if quick else pools:
            rows.append(one(case, kind, pool, 8 if quick else OWN_ORDER_SITES if case == OWN_ORDER else 32))
            progress(f"  {rows[-1]}")
    return rows


def one(case: str, kind: str, pool: int, sites: int) -> dict[str, Any]:
    """One run: the rate after the pools have filled."""
    run_rows = RUN_ROWS_SORTED if case != ROTATING else min(max(pool // 8, RUN_ROWS_MIN), RUN_ROWS_MAX)
    setting = ClusterSetting(
        sites=sites,
        partitions_per_site=1,
        pool_rows=pool,
        batch_rows=run_rows * sites,
        pinned_producers=case == OWN_ORDER,
    )
    setting = replace(setting, **KINDS[kind])
    if case == ROTATING:
        begin_s, until_s = 1.0, 1.0 + ROTATION_S * sites
        setting = replace(setting, slow_spells=rotate(setting.names, ROTATION_S, until_s))
        draw = draw_fast(setting)
    else:
        begin_s, until_s = SORTED_S[case] / 3, SORTED_S[case]
        is_alike = case == ALIKE  # Then one producer stands for all of them.
        draw = draw_sorted(sites, sites, BLOCK_ROWS * (sites if is_alike else 1), None if is_alike else setting.seed)
    outcome = TimedCluster(setting, draw=draw).run(until_s + setting.sample_s / 2)
    rate = outcome.rate(begin_s, until_s) / setting.unloaded_rate
    return {
        "case": case,
        "kind": kind,
        "sites": sites,
        "pool_rows": pool,
        "run_rows": run_rows,
        "rate": round(rate, 4),
        "seed": setting.seed,
    }


def summary(rows: Rows) -> dict[str, Any]:
    """The least pool with which each reaches 95 % of the unloaded rate, interpolated between those that were tried."""
    found: dict[str, Any] = {}
    for case in (ROTATING, ALIKE, OWN_ORDER):
        needs: dict[str, Any] = {kind: needed(rows, case, kind) for kind in KINDS}
        is_known = bool(needs["flux"] and needs["exchange"])
        part = round(needs["flux"] / needs["exchange"], 3) if is_known else None
        found[case] = {**needs, "part_of_exchange": part}
    return found


def needed(rows: Rows, case: str, kind: str) -> float | None:
    """The rows of a pool with which 95 % are reached; None if none of those tried does."""
    tried = [row for row in rows if (row["case"], row["kind"]) == (case, kind)]
    last = None
    for row in sorted(tried, key=lambda each: each["pool_rows"]):
        if row["rate"] >= REACHED:
            if last is None:
                return float(row["pool_rows"])
            part = (REACHED - last["rate"]) / (row["rate"] - last["rate"])
            return float(round(last["pool_rows"] + part * (row["pool_rows"] - last["pool_rows"])))
        last = row
    return None
