"""Table 5.1: one of four sites falls to half its speed, and the placement follows.

The best placement of 192 copies is 55 on each fast site and 27 on the slow one: 48 / 55 = 87.3 % of the rate without
load. What counts is when the placement is within 1 % of the best, what then is processed, and that nothing moves later.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from experiments.balance.pictures import draw_bars
from experiments.balance.trial import (
    Setting,
    Trial,
    at_least,
    at_most,
    sustained,
    trial,
    validity_findings,
)
from experiments.experiment import Experiment, Finding, Outcome, Progress

TOLERANCE = 0.01
SETTLE_MAX_S = 40.0
QUIET_S = 120.0
Case = tuple[int, int, Literal["sn", "any"]]  # Partitions of a stage, stages, order of the sink.
CASES: list[Case] = [(96, 1, "sn"), (96, 1, "any"), (96, 2, "sn"), (96, 2, "any")]
SMALL: list[Case] = [(16, 1, "sn"), (32, 1, "sn")]


def measure(of: Trial, quiet_s: float) -> dict[str, Any]:
    """Slow a site down and watch what happens."""
    loaded_s = time.monotonic()
    of.machines.load("site-2", 1)
    best_s = of.best_s()
    of.wait_settled(loaded_s, best_s, TOLERANCE, 2.0, SETTLE_MAX_S)
    settled_s = of.watch.settled_s(loaded_s, best_s, TOLERANCE)
    begin_s = time.monotonic()
    confirm_s = of.confirm_s(of.unloaded * of.unloaded_s / best_s)
    time.sleep(confirm_s)
    end_s = time.monotonic()
    rate = of.watch.rate(begin_s, end_s)
    time.sleep(max(0.0, quiet_s - (time.monotonic() - begin_s)))
    last = of.watch.samples[-1]
    return {
        **of.setting.about,
        "settled_s": settled_s,
        "rounds": last.rounds,
        "sustains_of_best": sustained(of, best_s),
        "best_of_unloaded": of.unloaded_s / best_s,
        "processed_of_unloaded": rate / of.unloaded,
        "processed_of_best": rate / of.unloaded / (of.unloaded_s / best_s),
        "changes_later": of.watch.changes(begin_s),
        **of.validity(),
    }


def run(quick: bool, progress: Progress) -> Outcome:
    """Every case three times; quick: one case once, and no long look afterwards."""
    rows = []
    cases = SMALL[1:] if quick else CASES + SMALL
    for partitions, stages, order in cases:
        for number in range(1 if quick else 3):
            progress(f"{2 * partitions * stages} copies, {stages} stages, order {order}, run {number + 1}")
            with trial(Setting(partitions=partitions, stages=stages, order=order)) as of:
                rows.append({"run": number, **measure(of, 5.0 if quick else QUIET_S)})
            progress(f"  {rows[-1]}")
    return Outcome(rows=rows, findings=_findings(rows), validity=validity_findings(rows))


def _findings(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    found: list[Finding] = []
    for copies in sorted({row["copies"] // row["stages"] for row in rows}, reverse=True):
        these = [row for row in rows if row["copies"] // row["stages"] == copies]
        thesis = {64: "9.2 s, ordered 27 s", 32: "6.8 s"}.get(copies, "")
        what = f"{copies} copies a stage"
        settled = [row["settled_s"] for row in these]
        found += at_most(f"{what}: seconds until within 1 % of the best placement", settled, 10.0, thesis)
        found.append(_most(f"{what}: the longest of these", settled, 15.0))
        found.append(_most(f"{what}: rounds", [row["rounds"] for row in these], 3))
        share = {64: "85.0 to 87 % of unloaded", 32: "80.5 % of unloaded"}.get(copies, "")
        found += at_least(f"{what}: processed, of the best", [row["processed_of_best"] for row in these], 0.99, share)
        found.append(_most(f"{what}: changes of the placement later", [row["changes_later"] for row in these], 0))
    return found


def _most(what: str, values: Sequence[float | None], limit: float) -> Finding:
    is_known = all(value is not None for value in values)
    most = max((value for value in values if value is not None), default=None)
    holds = is_known and most is not None and most <= limit
    return Finding(what=what, value=most if is_known else None, target=f"at most {limit:g}", holds=holds)


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """What is processed after the placement has settled, beside the thesis's values."""
    bars: list[tuple[str, float]] = []
    kinds = sorted({(row["copies"], row["stages"], row["order"]) for row in rows})
    for kind in kinds:
        these = [row for row in rows if (row["copies"], row["stages"], row["order"]) == kind]
        shares = [row["processed_of_unloaded"] for row in these]
        bars.append((f"{kind[0]} copies\n{kind[1]} stages, {kind[2]}", statistics.median(shares)))
    thesis = [("thesis\n64 copies", 0.85), ("thesis\n64, ordered", 0.87), ("thesis\n32 copies", 0.805)]
    limits = {f"best of 192 ({48 / 55:.1%})": 48 / 55, "without balance (50 %)": 0.5}
    draw_bars(path, "One of four sites at half speed", "part of the rate without load", bars, thesis, limits)


EXPERIMENT = Experiment(
    name="half-speed",
    claim="Table 5.1: one of four sites at half speed. Within seconds the placement is within 1 % of the best.",
    run=run,
    plot=plot,
    minutes="50; quick: 1",
    folder="balance",
)
