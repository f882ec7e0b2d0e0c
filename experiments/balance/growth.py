"""A fifth site takes its share at once, and a spare takes none while all is well."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.balance.pictures import draw_bars
from experiments.balance.trial import Setting, Trial, at_most, sustained, trial, validity_findings
from experiments.experiment import Experiment, Finding, Outcome, Progress

TOLERANCE = 0.01
WATCHED_S = 40.0
SPARE_S = 120.0


def grow(of: Trial) -> dict[str, Any]:
    """Add a site, and watch it get its share."""
    began_s = time.monotonic()
    name = of.run.add_site()
    up_s = time.monotonic()
    sites = (*(f"site-{n + 1}" for n in range(of.setting.sites)), name)
    best_s = of.best_s(dict.fromkeys(sites, 1.0))
    time.sleep(WATCHED_S)
    return {
        **of.setting.about,
        "what": "a fifth site",
        "settled_s": of.watch.settled_s(up_s, best_s, TOLERANCE),
        "gap_s": of.watch.output_gap_s(began_s, began_s + WATCHED_S),
        "sustains_of_best": sustained(of, best_s),
        "processed_of_unloaded": of.watch.rate(up_s + 15, up_s + WATCHED_S) / of.unloaded,
        "copies_on_spare": None,
        **of.validity(),
    }


def spare(of: Trial, seconds: float) -> dict[str, Any]:
    """An even load beside a spare: nothing is to move."""
    time.sleep(seconds)
    most = max(sample.copies.get("site-5", 0) for sample in of.watch.samples)
    return {
        **of.setting.about,
        "what": "a spare",
        "settled_s": None,
        "gap_s": None,
        "sustains_of_best": None,
        "processed_of_unloaded": 1.0,
        "copies_on_spare": most,
        **of.validity(),
    }


def run(quick: bool, progress: Progress) -> Outcome:
    """Three times a fifth site, once a spare; quick: each once, the spare for a short time."""
    rows = []
    for number in range(1 if quick else 3):
        progress(f"a fifth site, run {number + 1}")
        with trial(Setting()) as of:
            rows.append({"run": number, **grow(of)})
        progress(f"  {rows[-1]}")
    progress("a spare")
    with trial(Setting(standby=1)) as of:
        rows.append({"run": 0, **spare(of, 10.0 if quick else SPARE_S)})
    return Outcome(rows=rows, findings=_findings(rows), validity=validity_findings(rows))


def _findings(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    grown = [row for row in rows if row["what"] == "a fifth site"]
    on_spare = max(row["copies_on_spare"] for row in rows if row["what"] == "a spare")
    return [
        *at_most("s until within 1 % of the best placement of five", [row["settled_s"] for row in grown], 10.0),
        *at_most("output gap, s", [max(row["gap_s"] for row in grown)], 0.1),
        Finding(what="copies on a spare, at most", value=on_spare, target="0", holds=on_spare == 0),
    ]


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """What five sites process, beside four."""
    bars = [(f"run {row['run'] + 1}", row["processed_of_unloaded"]) for row in rows if row["what"] == "a fifth site"]
    limits = {"best of five (48 / 39)": 48 / 39, "four": 1.0}
    draw_bars(path, "A fifth site is added", "part of the rate of four", bars, (), limits)


EXPERIMENT = Experiment(
    name="growth",
    claim="A site that is added takes its share within seconds; a spare gets nothing while all is well.",
    run=run,
    plot=plot,
    minutes="6; quick: 2",
    folder="balance",
)
