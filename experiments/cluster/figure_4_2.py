"""Fig. 4.2: how much room the pools need for short imbalances: a load that rotates, and input sorted by destination."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.experiment import Progress
from flux.spec.timed import ClusterSetting, TimedCluster, draw_sorted, rotate

from .cases import Rows, draw_fast

CLAIM = "95 % of the unloaded rate with at most a quarter of the space that Exchange needs for it"
# Read off the text: it has no numbers but "about half of the unloaded case" without a buffer.
THESIS = {"rate_without_buffer": 0.5, "flux_beats_exchange": True}
KINDS = {"flux": {}, "exchange": {"divided": True}, "river": {"divided": True, "by_free_space": True}}
POOLS = {
    "flux": (64, 256, 512, 1_024, 1_536, 2_048, 4_096),
    "exchange": (64, 512, 2_048, 4_096, 6_144, 8_192),
    "river": (64, 256, 1_024),
}
REACHED = 0.95
BLOCK_ROWS = 256  # Of each producer for one site, when the input is sorted.
BATCH_ROWS_MIN, BATCH_ROWS_MAX = 2_048, 8_192  # Over all 32 producers; between them an eighth of the pools.


def run(quick: bool, progress: Progress) -> Rows:
    """The rate over one rotation by the size of the pools, for Flux, Exchange and River's queue."""
    rows: Rows = []
    sites, each_s = (8, 0.5) if quick else (32, 0.5)
    for case in ("sorted", "rotating"):
        for kind, options in KINDS.items():
            for pool in POOLS[kind][::3] if quick else POOLS[kind]:
                if case == "sorted" and kind == "river":
                    continue  # Rows go where there is room: there is no order by destination.
                rows.append(one(case, kind, options, pool, sites, each_s))
                progress(f"  {rows[-1]}")
    return rows


def one(case: str, kind: str, options: dict[str, Any], pool: int, sites: int, each_s: float) -> dict[str, Any]:
    """One run: the rate from 1 s on, after the pools have filled, over a whole rotation."""
    # A run of sorted input must be small beside a block: the first run of each destination is free of charge.
    batch_rows = min(max(pool * 4, BATCH_ROWS_MIN), BATCH_ROWS_MAX if case == "rotating" else BATCH_ROWS_MIN)
    batch_rows = batch_rows * sites // 32
    setting = ClusterSetting(sites=sites, partitions_per_site=1, pool_rows=pool, batch_rows=batch_rows)
    setting = replace(setting, **options)
    until_s = 1.0 + each_s * sites
    draw = draw_fast(setting)
    if case == "rotating":
        setting = replace(setting, slow_spells=rotate(setting.names, each_s, until_s))
    else:
        until_s = 5.0
        draw = draw_sorted(setting.partitions, sites, BLOCK_ROWS * sites)
    outcome = TimedCluster(setting, draw=draw).run(until_s + setting.sample_s / 2)
    rate = outcome.rate(1.0, until_s) / setting.unloaded_rate
    return {
        "case": case,
        "kind": kind,
        "sites": sites,
        "pool_rows": pool,
        "batch_rows": batch_rows,
        "rate": round(rate, 4),
        "seed": setting.seed,
    }


def summary(rows: Rows) -> dict[str, Any]:
    """The least pool with which each reaches 95 % of the unloaded rate, interpolated between those that were tried."""
    found: dict[str, Any] = {}
    for case in ("rotating", "sorted"):
        needs = {kind: needed(rows, case, kind) for kind in KINDS}
        found[case] = needs
        if needs["flux"] and needs["exchange"]:
            found[f"{case}_part_of_exchange"] = round(needs["flux"] / needs["exchange"], 3)
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
