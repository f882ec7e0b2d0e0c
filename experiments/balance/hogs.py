"""Table 5.4: many programs share the processor of one of four sites, which is left behind and emptied.

Nothing says which site is slow but what the sites measure. With pairs the output must not stop, because every partition
has another copy. With one copy nothing can go on without the slow site, until its partitions have moved. A slow site is
drained as well, beside one that is not slow, in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.balance.pictures import draw_bars
from experiments.balance.trial import Setting, Trial, at_most, sustained, trial, validity_findings
from experiments.experiment import Experiment, Finding, Outcome, Progress
from flux.plan import Availability

TOLERANCE = 0.02
SLOW = "site-2"
WATCHED_S = 25.0
DRAIN_TIMEOUT_S = 60.0


def overload(of: Trial, hogs: int) -> dict[str, Any]:
    """Load a site with `hogs` busy programs, and watch."""
    loaded_s = time.monotonic()
    of.machines.load(SLOW, hogs)
    best_s = of.best_s()
    time.sleep(WATCHED_S)
    return {
        **of.setting.about,
        "hogs": hogs,
        "gap_s": of.watch.output_gap_s(loaded_s, loaded_s + WATCHED_S),
        "settled_s": of.watch.settled_s(loaded_s, best_s, TOLERANCE),
        "sustains_of_best": sustained(of, best_s),
        "best_of_unloaded": of.unloaded_s / best_s,
        "processed_of_unloaded": of.watch.rate(loaded_s + 10, loaded_s + WATCHED_S) / of.unloaded,
        "rounds": of.watch.samples[-1].rounds,
        "moves": sum(each.last.moves for each in of.run._run_state.balance.rounds),
        **of.validity(),
    }


def drains(of: Trial, hogs: int) -> dict[str, Any]:
    """Drain a site of full speed, add another in its place, and drain a slow one; compare the times per copy."""
    took_s, copies, donors = {}, {}, {}
    for name, programs in (("site-1", 0), (SLOW, hogs)):
        of.machines.load(name, programs)
        copies[name] = of.watch.samples[-1].copies[name]
        since = len(of.run.moved_log())
        began_s = time.monotonic()
        of.run.drain(name, timeout=DRAIN_TIMEOUT_S)
        took_s[name] = time.monotonic() - began_s
        donors[name] = [each.donor for each in of.run.moved_log()[since:]].count(name)
        of.run.add_site()
        time.sleep(5.0)
    return {
        **of.setting.about,
        "hogs": hogs,
        "drain_s": took_s["site-1"],
        "drain_slow_s": took_s[SLOW],
        "times_as_long": (took_s[SLOW] / copies[SLOW]) / (took_s["site-1"] / copies["site-1"]),
        "donor_of": donors[SLOW],
        **of.validity(),
    }


def run(quick: bool, progress: Progress) -> Outcome:
    """Pairs and single copies under 11 and 22 hogs, five runs each, and drains; quick: 22 hogs once."""
    rows, drained = [], []
    kinds: tuple[Availability, ...] = ("pairs",) if quick else ("pairs", "none")
    for availability in kinds:
        for hogs in (22,) if quick else (11, 22):
            for number in range(1 if quick else 5):
                progress(f"{hogs} hogs, availability {availability}, run {number + 1}")
                with trial(Setting(availability=availability)) as of:
                    rows.append({"run": number, **overload(of, hogs)})
                progress(f"  {rows[-1]}")
    for number in range(0 if quick else 3):
        progress(f"drains, run {number + 1}")
        with trial(Setting(balance="off")) as of:
            drained.append({"run": number, **drains(of, 22)})
        progress(f"  {drained[-1]}")
    findings = [*_findings(rows), *_drain_findings(drained)]
    every = [*rows, *drained]
    columns = dict.fromkeys(name for row in every for name in row)
    return Outcome(
        rows=[{name: row.get(name) for name in columns} for row in every],
        findings=findings,
        validity=validity_findings(every),
    )


def _findings(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    found: list[Finding] = []
    for hogs, thesis in ((11, "70 % of unloaded in 25 s"), (22, "stuck at 49 %")):
        these = [row for row in rows if row["hogs"] == hogs and row["availability"] == "pairs"]
        if these:
            gaps = [row["gap_s"] for row in these]
            found += at_most(f"{hogs} hogs, pairs: output gap, s", gaps, 0.5)
            found.append(
                Finding(
                    what=f"{hogs} hogs, pairs: the longest gap, s",
                    value=max(gaps),
                    target="at most 0.8",
                    holds=max(gaps) <= 0.8,
                )
            )
            settled = [row["settled_s"] for row in these]
            found += at_most(f"{hogs} hogs, pairs: s until within 2 % of the best placement", settled, 5.0, thesis)
        these = [row for row in rows if row["hogs"] == hogs and row["availability"] == "none"]
        if these:
            settled = [row["settled_s"] for row in these]
            what = f"{hogs} hogs, one copy: s until within 2 % of the best placement"
            found += at_most(what, settled, 15.0, "72 % in 79 s" if hogs == 11 else "72 % in 161 s")
    return found


def _drain_findings(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    if not rows:
        return []
    times, donors = [row["times_as_long"] for row in rows], sum(row["donor_of"] for row in rows)
    return [
        *at_most("draining a site at 1/23 speed takes, times as long per copy as an unloaded one", times, 3.0),
        Finding(
            what="copies of which the slow site was the donor",
            value=donors,
            target="0",
            holds=donors == 0,
        ),
    ]


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """What is processed under load, beside the thesis's values."""
    bars = []
    for availability in ("pairs", "none"):
        for hogs in (11, 22):
            shares = [
                row["processed_of_unloaded"]
                for row in rows
                if (row["availability"], row["hogs"]) == (availability, hogs) and row.get("processed_of_unloaded")
            ]
            if shares:
                bars.append((f"{hogs} hogs\n{availability}", statistics.median(shares)))
    thesis = [("thesis\n11 hogs", 0.70), ("thesis\n22 hogs", 0.49), ("thesis\none copy", 0.72)]
    title = "Many programs on one of four sites"
    draw_bars(path, title, "part of the rate without load", bars, thesis, {"3 of 4": 0.75})


EXPERIMENT = Experiment(
    name="hogs",
    claim="Table 5.4: 11 and 22 programs share the processor of one of four sites. Output goes on, its copies move.",
    run=run,
    plot=plot,
    minutes="18; quick: 1",
    folder="balance",
)
