"""Slow sites without others to take their copies: rows are kept for them up to a bound, and then the source is paced.

Of two sites one gets 1/23 of its processor. Each holds a copy of every partition, so there is nowhere to move to. The
other site goes on at the full rate while rows are kept for the slow one. When no more can be kept, the source waits for
it and goes at its pace; or, with `slow="give-up"`, its copies are given up, and it is tried again after a while. And
two of four sites get 1/23: nearly all of their copies move to the other two, which do at best half of the rate of four.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from experiments.balance import trial as trials
from experiments.balance.pictures import draw_lines
from experiments.balance.trial import Setting, Trial, at_most, trial, validity_findings
from experiments.experiment import Experiment, Finding, Outcome, Progress
from flux.site.spill import TRANSFER_POOLS_MAX

HOGS = 22
PACE = 1 / (1 + HOGS)
POOL_ROWS, POOL_ROWS_QUICK = 512, 256
WINDOW_S = 2.0
AFTER_S = 30.0  # Watched after the bound was reached.
MOVED_S = 40.0
FULL_MIN = 0.97
TOLERANCE = 0.01
TWO, FOUR = ("site-2",), ("site-2", "site-3")


@contextmanager
def pools(rows: int) -> Iterator[None]:
    """Pools of this bound in the runs started now."""
    with patch.object(trials, "POOL_ROWS", rows):
        yield


def slow_down(of: Trial, slow: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Slow sites down; yield now and then what status shows of them, and at what rate rows go in and out."""
    began_s, full = time.monotonic(), of.ideal / of.setting.degree
    for site in slow:
        of.machines.load(site, HOGS)
    while time.monotonic() < began_s + seconds:
        time.sleep(WINDOW_S)
        now_s = time.monotonic()
        status = of.run.status()
        shown = [process for process in status.processes if process.name in slow]
        kept = max(shown, key=lambda process: process.kept_rows or 0)
        first, last = of.watch.at(now_s - WINDOW_S), of.watch.samples[-1]
        yield {
            "t_s": now_s - began_s,
            "input_of_full": of.watch.input_rate(now_s - WINDOW_S, now_s) / full,
            "output_of_full": (last.outputs - first.outputs) / (last.at_s - first.at_s) / full,
            "kept_rows": kept.kept_rows or 0,
            "kept_rows_max": kept.kept_rows_max or 0,
            "time_left_s": kept.time_left_s,
            "is_waited_for": kept.time_left_s == 0.0,
            "is_slow": all(process.slow for process in shown),
            "copies_on_slow": sum(process.copies or 0 for process in shown),
            "failures": len(status.failures),
        }


def watched(of: Trial, slow: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """The rows of one run, until `seconds` are over, or for `AFTER_S` after no more could be kept."""
    about = {**of.setting.about, "policy": of.setting.slow, "slow_sites": len(slow), "pool_rows": trials.POOL_ROWS}
    found: list[dict[str, Any]] = []
    loaded_s = time.monotonic()
    reached_s: float | None = None
    for row in slow_down(of, slow, seconds):
        found.append({**about, **row})
        is_over = row["is_waited_for"] or (row["is_slow"] and not row["copies_on_slow"])
        reached_s = row["t_s"] if reached_s is None and is_over else reached_s
        if len(slow) == 1 and reached_s is not None and row["t_s"] > reached_s + AFTER_S:
            break
    settled_s = of.watch.settled_s(loaded_s, of.best_s(), TOLERANCE)
    conditions = of.validity()
    return [{**row, "settled_s": settled_s, **conditions} for row in found]


def run(quick: bool, progress: Progress) -> Outcome:
    """One slow site of two, where the source waits and where copies are given up; two of four. Quick: the first."""
    rows: list[dict[str, Any]] = []
    policies: tuple[Literal["wait", "give-up"], ...] = ("wait",) if quick else ("wait", "give-up")
    pool_rows = POOL_ROWS_QUICK if quick else POOL_ROWS
    for policy in policies:
        progress(f"one slow site of two, slow={policy!r}")
        with pools(pool_rows), trial(Setting(sites=2, slow=policy)) as of:
            bound_s = TRANSFER_POOLS_MAX * pool_rows * trials.COST_S
            rows += watched(of, TWO, 2 * bound_s + AFTER_S)
        progress(f"  {rows[-1]}")
    if not quick:
        progress("two slow sites of four")
        with trial(Setting(sites=4)) as of:
            rows += watched(of, FOUR, MOVED_S)
        progress(f"  {rows[-1]}")
    return Outcome(rows=rows, findings=_findings(rows), validity=validity_findings(rows))


def _of(rows: Sequence[dict[str, Any]], policy: str, slow_sites: int = 1) -> list[dict[str, Any]]:
    return [row for row in rows if (row["policy"], row["slow_sites"]) == (policy, slow_sites)]


def _findings(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    dead = max(row["failures"] for row in rows)
    found = [Finding(what="sites declared dead", value=dead, target="0", holds=dead == 0)]
    for policy in ("wait", "give-up"):
        if these := _of(rows, policy):
            found += _before_the_bound(policy, these)
    found += _paced(_of(rows, "wait"))
    if these := _of(rows, "give-up"):
        given_up = [row["output_of_full"] for row in these if row["is_slow"] and not row["copies_on_slow"]]
        rates = given_up[1:] or [0.0]
        found.append(
            _least("give-up: rate while no copies are on it, of the full one", sum(rates) / len(rates), FULL_MIN)
        )
    if these := _of(rows, "wait", len(FOUR)):
        settled = [row["output_of_full"] for row in these if row["t_s"] > MOVED_S / 2]
        rate = sum(settled) / len(settled)
        found.append(_least("two of four: rate after 20 s, of the full one, of which half is possible", rate, 0.485))
        settled = [these[-1]["settled_s"]]
        found += at_most("two of four: s until within 1 % of the best placement", settled, 15.0)
    return found


def _before_the_bound(policy: str, rows: Sequence[dict[str, Any]]) -> list[Finding]:
    """While rows were kept: the rate, and how well status foretold when the bound would be reached."""
    over = [row["t_s"] for row in rows if row["is_waited_for"] or (row["is_slow"] and not row["copies_on_slow"])]
    before = [row for row in rows if not over or row["t_s"] < over[0]]
    rates = [row["output_of_full"] for row in before[1:]] or [0.0]
    found = [_least(f"{policy}: rate until the bound, of the full one", sum(rates) / len(rates), FULL_MIN)]
    half_way = [row for row in before if row["time_left_s"] and row["kept_rows"] >= row["kept_rows_max"] / 2]
    wrong = None
    if over and half_way:
        real_s = over[0] - half_way[0]["t_s"]
        wrong = abs(half_way[0]["time_left_s"] - real_s) - WINDOW_S
        wrong = max(0.0, wrong) / real_s
    return [*found, *at_most(f"{policy}: how wrong the time left was half-way, as a part of it", [wrong], 0.2)]


def _paced(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    """After the bound: the source at the pace of the slow site, and no more kept than the bound and a pool."""
    reached = [row["t_s"] for row in rows if row["is_waited_for"]]
    after = [row for row in rows if reached and row["t_s"] > reached[0] + WINDOW_S]
    rates = [row["input_of_full"] for row in after]
    pace = sum(rates) / len(rates) / PACE if rates else None
    most = max((row["kept_rows"] / row["kept_rows_max"] for row in rows if row["kept_rows_max"]), default=None)
    return [
        Finding(
            what="wait: rate of the source after the bound, of the slow site's own",
            value=pace,
            target="0.8 to 1.2",
            holds=pace is not None and 0.8 <= pace <= 1.2,
        ),
        *at_most("wait: rows kept for the slow site, of their bound", [most], 1.05),
    ]


def _least(what: str, value: float, limit: float) -> Finding:
    return Finding(what=what, value=value, target=f"at least {limit:g}", holds=value >= limit)


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The rate of output against time."""
    cases = (("wait", 1, "one of two"), ("give-up", 1, "one of two, slow='give-up'"), ("wait", 2, "two of four"))
    lines = {
        name: [(row["t_s"], row["output_of_full"]) for row in _of(rows, policy, slow_sites)]
        for policy, slow_sites, name in cases
    }
    kept = [(row["t_s"], row["kept_rows"] / row["kept_rows_max"]) for row in _of(rows, "wait") if row["kept_rows_max"]]
    shown = {name: points for name, points in lines.items() if points}
    shown["one of two: rows kept, of their bound"] = kept
    title = f"Sites at 1/{1 + HOGS} of their speed"
    draw_lines(path, title, "s since they became slow", "part of the full rate", shown)


EXPERIMENT = Experiment(
    name="two-slow",
    claim="Rows are kept up to a bound for a slow site that must stay; then the source is paced, or it is given up.",
    run=run,
    plot=plot,
    minutes="6; quick: 2",
    folder="balance",
)
