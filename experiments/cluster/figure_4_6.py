"""Fig. 4.6: one of 32 sites is loaded at 1 s: how the rate falls, and how soon moves bring it back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from experiments.experiment import Progress
from flux.balance import BalancePolicy, HillClimbing, Level
from flux.spec.timed import ClusterSetting, slow_down

from .cases import Rows, best_rate, simulate

CLAIM = "99 % of the best placement within 4 s"
THESIS = {"steady_after_s": 9.0, "moves": 32, "felt_at_s": 5.0, "steady_at_s": 14.0}
LOADED_AT_S = 1.0
REACHED = 0.99


def policies() -> dict[str, BalancePolicy | None]:
    """Nothing, the thesis's policy with the thresholds of chapter 4, and ours."""
    return {
        "static": None,
        "hill climbing": HillClimbing(imbalance=1.2, utilisation=0.9, collect_min_s=0.01),
        "level": Level(),
    }


def run(quick: bool, progress: Progress) -> Rows:
    """The rate of each half second under each policy, and what the placement sustains."""
    rows: Rows = []
    sites, until_s = (8, 12.0) if quick else (32, 24.0)
    for name, policy in policies().items():
        setting = ClusterSetting(
            sites=sites,
            slow_spells=slow_down(["site-6"], LOADED_AT_S),
            batch_rows=8_192 * sites // 32,
        )
        outcome = simulate(setting, policy, 8.0 if policy is None else until_s)
        best = best_rate(setting, until_s)
        samples = [sample for sample in outcome.samples if round(sample.at_s * 10) % 5 == 0]
        for before, sample in pairwise(samples):
            rate = (sample.rows - before.rows) / (sample.at_s - before.at_s)
            rows.append(
                {
                    "policy": name,
                    "sites": sites,
                    "at_s": round(sample.at_s, 2),
                    "rate": round(rate / setting.unloaded_rate, 4),
                    "sustained": round(sample.sustained_rate / setting.unloaded_rate, 4),
                    "best": round(best / setting.unloaded_rate, 4),
                    "moves": sample.moves,
                    "first_move_s": round(outcome.moved_s[0], 2) if outcome.moved_s else None,
                    "reached_s": outcome.reached_s(REACHED * best, LOADED_AT_S),
                    "seed": setting.seed,
                }
            )
        progress(f"  {name}: {rows[-1]}")
    return rows


def summary(rows: Rows) -> dict[str, Any]:
    """When each policy's placement sustained 99 % of the best, after the load began and after the first move."""
    found: dict[str, Any] = {}
    for name in policies():
        last = [row for row in rows if row["policy"] == name][-1]
        reached_s, first_s = last["reached_s"], last["first_move_s"]
        found[name] = {
            "of_best": round(last["sustained"] / last["best"], 4),
            "reached_after_load_s": None if reached_s is None else round(reached_s - LOADED_AT_S, 2),
            "reached_after_first_move_s": None
            if reached_s is None or first_s is None
            else round(reached_s - first_s, 2),
            "least_rate": min(row["rate"] for row in rows if row["policy"] == name and row["at_s"] > LOADED_AT_S),
            "moves": last["moves"],
        }
    return found
