"""Fig. 5.2: a load that moves from site to site, and how much space the pools need to absorb it.

While the load is at one site, that site has half its speed. At best 7/8 of the rate without load is processed, if pools
absorb what differs meanwhile. A pool charged by destination (the DTSB) needs less than one that is divided between its
destinations (the plain Exchange) and than one that keeps whole runs. Moves would come too late each time: there must be
none, and with a load that moves every five seconds they must not cost anything.

What is compared is the pool of the source, the only one with several destinations. Its bound takes one batch more, so
batches are small. Sites keep output beside it for the egress, which takes rows in order: the lead of those without the
load over the one with it. That lead is what absorbs the load, so no kind of pool makes it less. It is two thirds of all
rows that are held.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from experiments.balance import trial as trials
from experiments.balance.pictures import draw_lines
from experiments.balance.trial import Setting, Trial, trial, validity_findings
from experiments.experiment import Experiment, Finding, Outcome, Progress
from flux.protocols.fh_prod import FhProd
from flux.protocols.view import View
from flux.site import shell

LIMIT = 0.875
GOAL = 0.86
PERIODS_S = (0.5, 1.5)
BOUNDS = (
    *(128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448, 480, 512, 576, 640, 704, 768, 832, 896, 960, 1024),
    *(1152, 1280, 1408, 1536, 1664, 1792, 1920, 2048, 2304, 2560, 2816, 3072, 3328, 3584, 3840, 4096),
)
KINDS = ("by destination", "divided", "whole runs")
SITES = 4
BATCH_ROWS = 16
LONG_S, LONG_FROM_S, LONG_UNTIL_S = 5.0, 40.0, 160.0


@contextmanager
def pools(kind: str, bound_rows: int) -> Iterator[None]:
    """Pools of this kind and bound in the processes started now, which are forks of this one."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(trials, "POOL_ROWS", bound_rows))
        stack.enter_context(patch.object(shell, "_LOAD_INTERVAL_S", 0.02))
        if kind == "divided":
            own = FhProd.__init__

            def divided(prod: FhProd, name: str, stage: int, bound: int, more: int | None, _: bool = False) -> None:
                own(prod, name, stage, bound, more, True)

            stack.enter_context(patch.object(FhProd, "__init__", divided))
        if kind == "whole runs":
            stack.enter_context(patch.object(View, "divides", lambda view, stage: False))
        yield


def rotate(of: Trial, period_s: float, until_s: float) -> float:
    """Let the load go round until the time is up; return when it began."""
    began_s = time.monotonic()
    turn = 0
    while time.monotonic() < began_s + until_s:
        site = f"site-{turn % SITES + 1}"
        of.machines.load(site, 1)
        turn += 1
        time.sleep(max(0.0, began_s + turn * period_s - time.monotonic()))
        of.machines.load(site, 0)
    return began_s


def absorb(kind: str, bound_rows: int, period_s: float, seconds: float) -> dict[str, Any]:
    """What is processed with pools of this kind and bound, and how much they hold at most."""
    with pools(kind, bound_rows), trial(Setting(batch_rows=BATCH_ROWS)) as of:
        before = of.watch.samples[-1].rounds
        began_s = rotate(of, period_s, seconds)
        samples = of.watch.between(began_s, began_s + seconds)
        return {
            **of.setting.about,
            "kind": kind,
            "period_s": period_s,
            "bound_rows": bound_rows,
            "processed_of_unloaded": of.watch.rate(began_s + 2 * period_s, began_s + seconds) / of.ideal,
            "held_peak": max(sample.buffered_source for sample in samples),
            "held_peak_everywhere": max(sample.buffered for sample in samples),
            "rounds": of.watch.samples[-1].rounds - before,
            **of.validity(),
        }


def long_rotation(balance: str) -> dict[str, Any]:
    """What is processed from second 40 to second 160 of a load that moves every five seconds."""
    with trial(Setting(balance=balance)) as of:
        began_s = rotate(of, LONG_S, LONG_UNTIL_S)
        samples = of.watch.between(began_s, began_s + LONG_UNTIL_S)
        return {
            **of.setting.about,
            "kind": f"balance {balance}",
            "period_s": LONG_S,
            "bound_rows": trials.POOL_ROWS,
            "processed_of_unloaded": of.watch.rate(began_s + LONG_FROM_S, began_s + LONG_UNTIL_S) / of.ideal,
            "held_peak": max(sample.buffered_source for sample in samples),
            "held_peak_everywhere": max(sample.buffered for sample in samples),
            "rounds": of.watch.samples[-1].rounds,
            **of.validity(),
        }


def run(quick: bool, progress: Progress) -> Outcome:
    """For each kind and period the least bound that reaches the goal; quick: two bounds, one period."""
    rows: list[dict[str, Any]] = []
    seconds = 12.0 if quick else 24.0
    for period_s in PERIODS_S[:1] if quick else PERIODS_S:
        for kind in KINDS[:2] if quick else KINDS:
            for bound_rows in _halving(BOUNDS[12:14] if quick else BOUNDS, rows):
                progress(f"{kind}, every {period_s} s, {bound_rows} rows")
                rows.append(absorb(kind, bound_rows, period_s, seconds))
                progress(f"  {rows[-1]}")
    for balance in () if quick else ("off", "auto"):
        progress(f"every {LONG_S} s, balance {balance}")
        rows.append(long_rotation(balance))
        progress(f"  {rows[-1]}")
    return Outcome(rows=rows, findings=[] if quick else _findings(rows), validity=validity_findings(rows))


def _halving(bounds: Sequence[int], rows: Sequence[dict[str, Any]]) -> Iterator[int]:
    """The bounds to try, by halving what is left: the last of the `rows`, of the last bound, says where to go on."""
    below, above = -1, len(bounds)
    while above - below > 1:
        middle = (below + above) // 2
        yield bounds[middle]
        if rows[-1]["processed_of_unloaded"] >= GOAL:
            above = middle
        else:
            below = middle


def _least(rows: Sequence[dict[str, Any]], kind: str, period_s: float) -> dict[str, Any] | None:
    reached = [
        row
        for row in rows
        if (row["kind"], row["period_s"]) == (kind, period_s) and row["processed_of_unloaded"] >= GOAL
    ]
    return min(reached, key=lambda row: row["bound_rows"]) if reached else None


def _findings(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    found = []
    for period_s, limit in zip(PERIODS_S, (0.7, 0.6), strict=True):
        least = {kind: _least(rows, kind, period_s) for kind in KINDS}
        ours, divided, whole = (least[kind] for kind in KINDS)
        for what, column, other, most in (
            ("bound, of the divided buffer's", "bound_rows", divided, limit),
            ("rows held at peak, of the divided buffer's", "held_peak", divided, 0.9),
            ("rows held at peak, of a pool's that keeps whole runs", "held_peak", whole, 0.9),
        ):
            share = ours[column] / other[column] if ours and other else None
            found.append(
                Finding(
                    what=f"every {period_s} s: {what}",
                    value=share,
                    target=f"at most {most}",
                    holds=share is not None and share <= most,
                    thesis="0.5 at best" if column == "bound_rows" else "0.78 at best",
                )
            )
        moved = sum(row["rounds"] for row in rows if row["period_s"] == period_s)
        found.append(Finding(what=f"every {period_s} s: rounds", value=moved, target="0", holds=moved == 0))
    shares = {row["balance"]: row["processed_of_unloaded"] for row in rows if row["period_s"] == LONG_S}
    less = shares["off"] - shares["auto"]
    found.append(
        Finding(
            what=f"every {LONG_S} s: processed less than without balance, of the rate without load",
            value=less,
            target="at most 0.01",
            holds=less <= 0.01,
        )
    )
    return found


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """What is processed by the bound of the pool."""
    lines = {
        f"{kind}, every {period_s} s": [
            (row["bound_rows"], row["processed_of_unloaded"])
            for row in sorted(rows, key=lambda row: row["bound_rows"])
            if (row["kind"], row["period_s"]) == (kind, period_s)
        ]
        for period_s in PERIODS_S
        for kind in KINDS
    }
    thesis = {"the most that is possible": [(BOUNDS[0], LIMIT), (BOUNDS[-1], LIMIT)]}
    shown = {name: points for name, points in lines.items() if points}
    title = "A load that moves from site to site"
    draw_lines(path, title, "bound of the pool, rows", "part of the rate without load", shown, thesis)


EXPERIMENT = Experiment(
    name="rotating",
    claim="Fig. 5.2: a load that moves from site to site is absorbed by pools, with less space than a divided buffer.",
    run=run,
    plot=plot,
    minutes="30; quick: 2",
    folder="balance",
)
