"""Fig. 4.8: 80/20 keys: the thesis's hill climbing by its least collection time, and `Level` beside it.

Hill climbing runs on the thesis's own cluster, where a partition is held while it moves. Its U'_r is taken both as it
is printed, with T_d, and as the thesis derives it, with T_r.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.experiment import Progress
from flux.balance import BalancePolicy, HillClimbing, Level
from flux.spec.timed import ClusterSetting, slow_down

from .cases import Rows, best_rate, flat, loaded_sites, self_similar, simulate
from .thesis_cluster import PrintedHillClimbing, ThesisCluster

CLAIM = "Level reaches 98.5 % of the best placement, with keys that are self-similar and with flat ones"
THESIS = {
    "short": 0.5,  # Of static, when the collection time is too short.
    "better_from_s": 0.25,
    "better_from_with_8_loaded_s": 0.15,
}
COLLECT_S = (0.01, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0)
COLLECT_FEW_S = (0.01, 0.25)
KEYS = {"self-similar": (self_similar, 4_096), "flat": (flat, 16_384)}  # With the rows of a batch.
CASES = (("self-similar", 0), ("self-similar", 8), ("flat", 0))
UNTIL_S = {"hill climbing": 60.0, "level": 40.0, "static": 20.0}
UNTIL_QUICK_S = 6.0


def run(quick: bool, progress: Progress) -> Rows:
    """The rate over the run and what the last placement sustains, for each policy, keys and number of loaded sites."""
    rows: Rows = []
    for keys, loaded in CASES[-1:] if quick else CASES:
        for name, policy in policies(quick or keys == "flat").items():
            rows.append(one(keys, loaded, name, policy, UNTIL_QUICK_S if quick else None))
            progress(f"  {rows[-1]}")
    return rows


def policies(is_short: bool) -> dict[str, BalancePolicy | None]:
    """Nothing, ours, and the thesis's with its thresholds of chapter 4 and each least collection time."""
    found: dict[str, BalancePolicy | None] = {"static": None, "level": Level()}
    for each_s in COLLECT_FEW_S if is_short else COLLECT_S:
        found[f"hill climbing as printed, {each_s:g} s"] = PrintedHillClimbing(collect_min_s=each_s)
    for each_s in COLLECT_FEW_S:
        found[f"hill climbing as derived, {each_s:g} s"] = HillClimbing(collect_min_s=each_s)
    return found


def one(keys: str, loaded: int, name: str, policy: BalancePolicy | None, until_s: float | None) -> dict[str, Any]:
    """One run; the rate is that from the first second to the last: the thesis averages all 60."""
    shares_of, batch_rows = KEYS[keys]
    setting = ClusterSetting(batch_rows=batch_rows)
    shares = shares_of(setting.partitions)
    heaviest = setting.names[max(range(len(shares)), key=shares.__getitem__) % setting.sites]
    setting = replace(setting, shares=shares, slow_spells=slow_down(loaded_sites(setting, loaded, [heaviest]), 0.0))
    until_s = until_s or UNTIL_S[name.split(" as ")[0]]
    # Static is compared with hill climbing, on the same cluster.
    outcome = simulate(setting, policy, until_s) if policy else ThesisCluster(setting).run(until_s)
    best = best_rate(setting, until_s)
    end_s = outcome.samples[-1].at_s
    return {
        "keys": keys,
        "loaded": loaded,
        "policy": name.split(",")[0],
        "collect_min_s": policy.collect_min_s if isinstance(policy, HillClimbing) else None,
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
    """Level's part of the best, and hill climbing's rate as a part of static's with as many loaded sites and with none.

    Rates are those of the second half of each run: the first second fills the pools.
    """
    found: dict[str, Any] = {}
    for keys, loaded in dict.fromkeys((row["keys"], row["loaded"]) for row in rows):
        own = [row for row in rows if (row["keys"], row["loaded"]) == (keys, loaded)]
        static = next(row["rate_at_end"] for row in own if row["policy"] == "static")
        unloaded = next(
            row["rate_at_end"] for row in rows if (row["keys"], row["loaded"], row["policy"]) == (keys, 0, "static")
        )
        level = next(row for row in own if row["policy"] == "level")
        climbing = {
            form: {row["collect_min_s"]: row for row in own if row["policy"] == f"hill climbing as {form}"}
            for form in ("printed", "derived")
        }
        found[f"{keys}, {loaded} loaded"] = {
            "level_of_best": level["of_best"],
            "level_to_static": round(level["rate_at_end"] / static, 3),
            **{f"{form}_to_static": _ratios(climbing[form], static) for form in climbing},
            **{f"{form}_to_static_unloaded": _ratios(climbing[form], unloaded) for form in climbing},
        }
    return found


def _ratios(by_length: dict[float, dict[str, Any]], to: float) -> dict[float, float]:
    return {length_s: round(row["rate_at_end"] / to, 3) for length_s, row in by_length.items()}
