"""Fig. 4.7: 0 to 32 of 32 sites are loaded: what the placement sustains after 44 s."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.experiment import Progress
from flux.spec.timed import ClusterSetting, slow_down

from .cases import Rows, best_rate, loaded_sites, simulate
from .figure_4_6 import LOADED_AT_S, policies

CLAIM = "at least 98 % of the best placement after 44 s, however many sites are loaded"
# The thesis's curves: static falls with the first loaded site; balanced falls in a straight line to 43 %.
THESIS = {"static": {0: 1.0, 1: 0.43, 32: 0.43}, "balanced": {0: 1.0, 32: 0.43}}
COUNTS = (0, 1, 2, 4, 8, 16, 24, 32)
UNTIL_S = 44.0
UNTIL_STATIC_S = 12.0  # The pools are full by then, and nothing changes.
UNTIL_QUICK_S = 12.0


def run(quick: bool, progress: Progress) -> Rows:
    """The sustained rate and the rate of the last two seconds, for each number of loaded sites and each policy."""
    rows: Rows = []
    sites = 8 if quick else 32
    for count in (0, 2, 4) if quick else COUNTS:
        for name, policy in policies().items():
            setting = ClusterSetting(sites=sites, batch_rows=16_384 * sites // 32)
            setting = replace(setting, slow_spells=slow_down(loaded_sites(setting, count), LOADED_AT_S))
            until_s = UNTIL_QUICK_S if quick else UNTIL_STATIC_S if policy is None else UNTIL_S
            outcome = simulate(setting, policy, until_s)
            end_s = outcome.samples[-1].at_s
            best = best_rate(setting, end_s)
            rows.append(
                {
                    "loaded": count,
                    "policy": name,
                    "sites": sites,
                    "sustained": round(outcome.sustained_rate / setting.unloaded_rate, 4),
                    "best": round(best / setting.unloaded_rate, 4),
                    "of_best": round(outcome.sustained_rate / best, 4),
                    "rate": round(outcome.rate(end_s - 2.0, end_s) / setting.unloaded_rate, 4),
                    "moves": len(outcome.moved_s),
                    "rounds": len(outcome.rounds),
                    "last_move_s": round(outcome.moved_s[-1], 2) if outcome.moved_s else None,
                    "simulated_s": round(end_s, 1),
                    "seed": setting.seed,
                }
            )
            progress(f"  {rows[-1]}")
    return rows


def summary(rows: Rows) -> dict[str, Any]:
    """The part of the best placement for each number of loaded sites, and the least."""
    found: dict[str, Any] = {}
    for name in policies():
        of_best = {row["loaded"]: row["of_best"] for row in rows if row["policy"] == name}
        if of_best:
            found[name] = {"of_best": of_best, "least": min(of_best.values())}
    return found
