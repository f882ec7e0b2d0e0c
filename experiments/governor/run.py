"""Rows and delay by each controller of `flux.governor`, on simulated jobs, beside the most that any of them can have.

A job takes a, and b for each row, and c more if it takes a checkpoint; I is the interval. Without `--fixed` and
`--checkpoint` all pairs of a and c are tried that leave at least a fortieth of the rows; with them only the pair that
was measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments import results
from experiments.experiment import Finding
from flux.governor import Governor, Naive, Pid, SizeController

from .simulation import JobCosts, Played, play

FIXED, CHECKPOINT = (0.1, 0.35, 0.6, 0.8, 0.9), (0.2, 0.5, 0.7, 1.6, 3.0)
BOUND_LEAST = 0.025
WARM = 100  # Jobs at the beginning that no figure counts.
HISTORIES_S = (10, 60, 320)


def _pid(costs: JobCosts) -> SizeController:
    return Pid(costs.interval_s, min_rate=costs.min_rows / costs.interval_s, first=costs.first_rows)


def _naive(costs: JobCosts) -> SizeController:
    least = costs.min_rows / costs.interval_s
    return Naive(costs.interval_s, costs.every, min_rate=least, first=costs.first_rows)


def _governor(costs: JobCosts) -> SizeController:
    return Governor(costs.interval_s, costs.every, costs.first_rows, costs.min_rows)


def _exact(costs: JobCosts) -> SizeController:
    return Governor(costs.interval_s, costs.every, costs.first_rows, costs.min_rows, exact=True)


CONTROLLERS: Mapping[str, Callable[[JobCosts], SizeController]] = {
    "pid": _pid,
    "naive": _naive,
    "governor": _governor,
    "exact": _exact,
}


def measure(costs: JobCosts, jobs: int, runs: int) -> list[dict[str, Any]]:
    """A row for each controller: means over runs with different noise."""
    rows = []
    for name, make in CONTROLLERS.items():
        played = [play(make(costs), costs, jobs, seed) for seed in range(runs)]

        def mean(value: Callable[[Played], float], of: Sequence[Played] = played) -> float:
            return statistics.mean(value(each) for each in of)

        sizes = [size for each in played for size in each.checkpoint_sizes(WARM)]
        rows.append(
            {
                "fixed": costs.fixed,
                "checkpoint": costs.checkpoint,
                "noise": costs.noise,
                "every": costs.every,
                "bound": costs.bound,
                "controller": name,
                "share": mean(lambda each: each.share(WARM)),
                "delay": mean(lambda each: each.mean_delay(WARM)),
                "full_time": mean(lambda each: each.full_time(WARM)),
                "checkpoint_rows_min": min(sizes),
                "checkpoint_rows_max": max(sizes),
            }
        )
    return rows


def measure_overhead(costs: JobCosts, jobs: int) -> list[dict[str, Any]]:
    """What a job costs in the exact controller itself, as a share of the interval, by the length of the history."""
    rows = []
    for history_s in HISTORIES_S:
        made = Governor(costs.interval_s, costs.every, costs.first_rows, costs.min_rows, history_s, exact=True)
        played = play(made, costs, jobs, seed=0)
        rows.append({"history_s": history_s, "overhead": played.control_s / jobs / costs.interval_s})
    return rows


def findings(rows: Sequence[Mapping[str, Any]], overhead: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What must hold, each by the setting in which it holds the least; None where no setting is of that kind."""
    settings: dict[tuple[float, float], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        settings.setdefault((row["fixed"], row["checkpoint"]), {})[row["controller"]] = row

    def judge(
        what: str, limit: float, value: Callable[[Any], float], where: Callable[[float, float, Any], bool]
    ) -> Finding:
        found = [value(of) for (a, c), of in settings.items() if where(a, c, of)]
        least = min(found, default=None)
        return Finding(what=what, value=least, target=f">= {limit:g}", holds=least is None or least >= limit)

    made = [
        judge("exact: rows, of PID's", 0.98, lambda of: of["exact"]["share"] / of["pid"]["share"], lambda *_: True),
        judge(
            "exact: rows, of PID's, where the bound is 1.4 of PID",
            1.1,
            lambda of: of["exact"]["share"] / of["pid"]["share"],
            lambda a, c, of: of["pid"]["bound"] >= 1.4 * of["pid"]["share"],
        ),
        judge(
            "exact: rows, of the bound, up to a/I 0.8 and c/I 1",
            0.9,
            lambda of: of["exact"]["share"] / of["exact"]["bound"],
            lambda a, c, of: a <= 0.8 and c <= 1,
        ),
        judge(
            "exact: PID's delay, of its own, up to a/I 0.6, c/I 0.5 to 1.6",
            1 / 0.6,
            lambda of: of["pid"]["delay"] / max(of["exact"]["delay"], 1e-9),
            lambda a, c, of: a <= 0.6 and 0.5 <= c <= 1.6,
        ),
        judge(
            "governor: time of full jobs, of I, where they are half of all",
            0.95,
            lambda of: of["governor"]["full_time"],
            lambda a, c, of: of["governor"]["share"] > 0.55,
        ),
        judge(
            "naive: rows of checkpoint jobs, by the least it means, up to a/I 0.6 and c/I 1",
            5,
            lambda of: of["naive"]["checkpoint_rows_min"] / of["governor"]["checkpoint_rows_min"],
            lambda a, c, of: a <= 0.6 and c <= 1,
        ),
        judge(
            "governor: rows of checkpoint jobs, least by most",
            1,
            lambda of: of["governor"]["checkpoint_rows_min"] / of["governor"]["checkpoint_rows_max"],
            lambda *_: True,
        ),
    ]
    worst = max(row["overhead"] for row in overhead)
    return [*made, Finding(what="exact: overhead, of I", value=worst, target="<= 0.0012", holds=worst <= 0.0012)]


def main(arguments: list[str] | None = None) -> None:
    """Play all settings and print the figures; exit with 1 if something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m experiments.governor", description=__doc__)
    parser.add_argument("--fixed", type=float, help="a/I: what a job without rows takes, as a share of the interval")
    parser.add_argument("--checkpoint", type=float, help="c/I: what a checkpoint adds, as a share of the interval")
    parser.add_argument("--noise", type=float, default=0.08, help="jobs take from 1 - NOISE to 1 + NOISE of that")
    parser.add_argument("--every", type=int, default=10, help="jobs from one checkpoint to the next")
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--runs", type=int, default=5, help="with different noise; the figures are means")
    parser.add_argument("--quick", action="store_true", help="one run of each: does it run at all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if options.jobs <= 2 * WARM:
        parser.error(f"--jobs: {options.jobs} are too few: the first {WARM} do not count")
    pairs = [
        (fixed, checkpoint)
        for fixed in (FIXED if options.fixed is None else (options.fixed,))
        for checkpoint in (CHECKPOINT if options.checkpoint is None else (options.checkpoint,))
    ]
    settings = [JobCosts(fixed=a, checkpoint=c, noise=options.noise, every=options.every) for a, c in pairs]
    settings = [costs for costs in settings if costs.fixed < 1 and costs.bound >= BOUND_LEAST]
    if not settings:
        parser.error("jobs without rows and the checkpoint leave no time for rows: nothing to compare")
    rows = []
    for costs in settings:
        rows += measure(costs, options.jobs, 1 if options.quick else options.runs)
        if not options.json:
            print(_shown(costs, rows[-len(CONTROLLERS) :]), flush=True)
    overhead = measure_overhead(settings[0], options.jobs)
    found = findings(rows, overhead)
    path = results.write("governor", "simulated", rows, noise=options.noise, jobs=options.jobs, runs=options.runs)
    figures = {
        "settings": rows,
        "overhead": overhead,
        "findings": [vars(finding) for finding in found],
        "csv": str(path),
    }
    print(json.dumps(figures) if options.json else f"{_judged(overhead, found)}\nwritten to {path}")
    if not all(finding.holds for finding in found):
        raise SystemExit(1)


def _shown(costs: JobCosts, rows: Sequence[Mapping[str, Any]]) -> str:
    by_controller = "  ".join(f"{row['controller']} {row['share']:.3f}, {row['delay']:.2f}" for row in rows)
    return f"a/I {costs.fixed:<4} c/I {costs.checkpoint:<3} bound {costs.bound:.3f}: rows, delay/I  {by_controller}"


def _judged(overhead: Sequence[Mapping[str, Any]], found: Sequence[Finding]) -> str:
    lines = [f"history {row['history_s']:>3} s: overhead {row['overhead']:.4%} of I" for row in overhead]
    for finding in found:
        value = "none" if finding.value is None else f"{finding.value:.4g}"
        verdict = "holds" if finding.holds else "FALLS SHORT"
        lines.append(f"{verdict:>11}  {finding.what}: {value} (target {finding.target})")
    return "\n".join(lines)
