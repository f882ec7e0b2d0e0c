"""Fig. 4.8: 80/20 keys: hill climbing by its least collection time, and `Level` beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.experiment import Progress
from flux.balance import BalancePolicy, HillClimbing, Level
from flux.spec.timed import ClusterSetting, slow_down

from .cases import Rows, best_rate, flat, loaded_sites, self_similar, simulate

CLAIM = "Level reaches 98.5 % of the best placement, with keys that are self-similar and with flat ones"
THESIS = {
    "short": "half of static, when the collection time is too short",
    "better_from_s": 0.25,
    "better_from_with_8_loaded_s": 0.15,
}
COLLECT_S = (0.01, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0)
KEYS = {"self-similar": (self_similar, 4_096), "flat": (flat, 16_384)}  # With the rows of a batch.


def run(quick: bool, progress: Progress) -> Rows:
    """The rate over the run and what the last placement sustains, for each policy, keys and number of loaded sites."""
    rows: Rows = []
    until_s = 15.0 if quick else 60.0
    for keys in ("flat", "self-similar"):
        for loaded in (0,) if quick or keys == "flat" else (0, 8):
            policies: dict[str, BalancePolicy | None] = {"static": None, "level": Level()}
            times = (0.01, 0.25) if quick else COLLECT_S if keys == "self-similar" else (0.25,)
            policies |= {f"hill climbing {each:g} s": HillClimbing(collect_min_s=each) for each in times}
            for name, policy in policies.items():
                rows.append(one(keys, loaded, name, policy, until_s))
                progress(f"  {rows[-1]}")
    return rows


def one(keys: str, loaded: int, name: str, policy: BalancePolicy | None, until_s: float) -> dict[str, Any]:
    """One run from the first second to the last: the thesis averages all 60."""
    shares_of, batch_rows = KEYS[keys]
    setting = ClusterSetting(batch_rows=batch_rows)
    shares = shares_of(setting.partitions)
    heaviest = setting.names[max(range(len(shares)), key=shares.__getitem__) % setting.sites]
    setting = replace(setting, shares=shares, slow_spells=slow_down(loaded_sites(setting, loaded, [heaviest]), 0.0))
    collect_s = policy.collect_min_s if isinstance(policy, HillClimbing) else None
    if collect_s is not None:
        setting = replace(setting, report_s=min(0.05, collect_s))
    if policy is None or (isinstance(policy, Level) and keys == "flat"):
        until_s = min(until_s, 25.0)
    outcome = simulate(setting, policy, until_s)
    best = best_rate(setting, until_s)
    end_s = outcome.samples[-1].at_s
    return {
        "keys": keys,
        "loaded": loaded,
        "policy": name,
        "collect_min_s": collect_s,
        "rate": round(outcome.rate(1.0, end_s)),
        "rate_at_end": round(outcome.rate(end_s / 2, end_s)),
        "sustained": round(outcome.sustained_rate),
        "best": round(best),
        "of_best": round(outcome.sustained_rate / best, 4),
        "moves": len(outcome.moved_s),
        "rounds": len(outcome.rounds),
        "simulated_s": round(end_s, 1),
        "seed": setting.seed,
    }


def summary(rows: Rows) -> dict[str, Any]:
    """Level's part of the best, and hill climbing's rate as a part of static's."""
    found: dict[str, Any] = {}
    for keys, loaded in sorted({(row["keys"], row["loaded"]) for row in rows}):
        own = [row for row in rows if (row["keys"], row["loaded"]) == (keys, loaded)]
        static = next(row["rate"] for row in own if row["policy"] == "static")
        level = next(row for row in own if row["policy"] == "level")
        found[f"{keys}, {loaded} loaded"] = {
            "level_of_best": level["of_best"],
            "level_to_static": round(level["rate"] / static, 3),
            "hill_climbing_to_static": {
                row["collect_min_s"]: round(row["rate"] / static, 3) for row in own if row["collect_min_s"]
            },
            "hill_climbing_of_best": {row["collect_min_s"]: row["of_best"] for row in own if row["collect_min_s"]},
        }
    return found
