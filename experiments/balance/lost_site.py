"""Tables 5.2 and 5.3: one of four sites is killed, with 15 or 145 MB of state, and its copies are rebuilt elsewhere.

Three ways: as it is; with all lost copies forced onto one site, so that balance must put it right; and with one of the
three others at half speed. Beside each: the same without balance, and with Flux-HA's 8 copies.
"""

from __future__ import annotations

import statistics
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from experiments.balance.pictures import draw_bars
from experiments.balance.trial import Setting, Trial, at_most, sustained, trial, validity_findings
from experiments.experiment import Experiment, Finding, Outcome, Progress
from flux.protocols import placement
from flux.protocols.messages import View

LOST, FORCED, SLOW = "site-2", "site-4", "site-3"
STATE_MB = (15, 145)
WAYS = ("as it is", "forced onto one site", "one survivor at half speed")
BEST = {"as it is": 0.75, "forced onto one site": 0.75, "one survivor at half speed": 48 / 77}
WATCHED_S = 30.0
TOLERANCE = 0.01


@contextmanager
def placing(way: str) -> Iterator[None]:
    """In one of the ways lost copies go to one site, wherever there is room. Processes are forks of this one."""
    own = placement.best_place

    def place(view: View, stage: int, partition: int, costs: dict[str, float]) -> str | None:
        is_free = FORCED not in view.live_copies(stage, partition)
        return FORCED if is_free and view.alive(FORCED) and LOST in view.dead else own(view, stage, partition, costs)

    if way == "forced onto one site":
        with patch.object(placement, "best_place", place):
            yield
    else:
        yield


def kill(of: Trial, way: str, state_mb: int) -> dict[str, Any]:
    """Kill a site, and watch what becomes of its copies."""
    killed_s = time.monotonic()
    if way == "one survivor at half speed":
        of.machines.load(SLOW, 1)
    of.run.kill(LOST)
    speeds = {site: of.machines.speed(site) for site in ("site-1", "site-3", "site-4")}
    best_s = of.best_s(speeds)
    time.sleep(WATCHED_S)
    whole = [s.at_s for s in of.watch.between(killed_s + 0.5, killed_s + WATCHED_S) if s.building == 0]
    rebuilt_s = whole[0] - killed_s if whole else None
    settled_s = of.watch.settled_s(killed_s + 0.5, best_s, TOLERANCE)
    return {
        **of.setting.about,
        "way": way,
        "state_mb": state_mb,
        "gap_s": of.watch.output_gap_s(killed_s, killed_s + WATCHED_S),
        "rebuilt_s": rebuilt_s,
        "settled_after_s": None if settled_s is None or rebuilt_s is None else max(0.0, settled_s + 0.5 - rebuilt_s),
        "sustains_of_best": sustained(of, best_s),
        "sustains_of_unloaded": of.unloaded_s / best_s * sustained(of, best_s),
        "processed_of_unloaded": of.watch.rate(killed_s + WATCHED_S - 15, killed_s + WATCHED_S) / of.unloaded,
        **of.validity(),
    }


def run(quick: bool, progress: Progress) -> Outcome:
    """Each way with each size of state, with and without balance, and with 8 copies; quick: one way, once."""
    rows = []
    for way in WAYS[1:2] if quick else WAYS:
        for state_mb in STATE_MB[:1] if quick else STATE_MB:
            for partitions, balance in ((96, "auto"),) if quick else ((96, "auto"), (96, "off"), (4, "off")):
                progress(f"{way}, {state_mb} MB, {2 * partitions} copies, balance {balance}")
                state_bytes = state_mb * 1_000_000 // (partitions // 2)
                setting = Setting(partitions=partitions, balance=balance, state_bytes=state_bytes)
                with placing(way), trial(setting) as of:
                    rows.append(kill(of, way, state_mb))
                progress(f"  {rows[-1]}")
    return Outcome(rows=rows, findings=_findings(rows), validity=validity_findings(rows))


def _findings(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    ours = [row for row in rows if row["balance"] == "auto"]
    found = at_most("output gap after the kill, s", [max(row["gap_s"] for row in ours)], 0.25)
    for way in WAYS:
        these = [row for row in ours if row["way"] == way]
        if not these:
            continue
        after = [row["settled_after_s"] for row in these]
        found += at_most(f"{way}: s from the last rebuilt copy until within 1 % of the best placement", after, 10.0)
        without = [row for row in rows if row["way"] == way and row["balance"] == "off" and row["copies"] > 8]
        if without and way != "as it is":
            share = max(row["sustains_of_best"] for row in without)
            found.append(
                Finding(
                    what=f"{way}: what the placement without balance sustains, of the best",
                    value=share,
                    target="visibly less than 1",
                    holds=share < 0.9,
                    thesis="50 % and 67 % of unloaded with 8 copies",
                )
            )
    return found


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """What the placement sustains in each way, with and without balance."""
    bars = []
    for way in WAYS:
        for copies, balance in ((192, "auto"), (192, "off"), (8, "off")):
            shares = [
                row["sustains_of_unloaded"]
                for row in rows
                if (row["way"], row["copies"], row["balance"]) == (way, copies, balance)
            ]
            if shares:
                name = textwrap.fill(f"{way}, {copies} copies, balance {balance}", 13)
                bars.append((name, statistics.median(shares)))
    thesis = [("thesis\n8 copies", 0.5), ("thesis\n8 copies,\nbest", 0.67)]
    title = "One of four sites is killed"
    draw_bars(path, title, "sustained, as a part of the rate before", bars, thesis, {"3 of 4 sites": 0.75})


EXPERIMENT = Experiment(
    name="lost-site",
    claim="Tables 5.2, 5.3: one of four sites is killed. Its copies are rebuilt, and the rest is put right in seconds.",
    run=run,
    plot=plot,
    minutes="16; quick: 1",
    folder="balance",
)
