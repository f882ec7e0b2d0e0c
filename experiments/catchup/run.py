"""Kill a site that has a standby while much state is held: how long is there no output until all is whole again?

The flow runs at half of its maximum rate on two sites. One is killed; the other gives the standby a copy of every
partition. Told are the longest times without output in the 2 s before the kill, in the 2 s after it, and from the kill
until 2 s after every partition has two copies again, in which the new ones catch up; how much was moved and how long
that took; and for how long the donor's and the receiver's loops were held for it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

import flux
from experiments import results
from flux.controller import failure_detector
from flux.driver.report import output_gap

from .flow import KINDS, flow, rows

WINDOW_S = 2.0
FILL_S = 4.0  # In this time the state comes to its size.
MEBI = 1 << 20


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.catchup", description=__doc__)
    parser.add_argument("--state-mb", type=int, default=100, help="state of one copy of the flow, in MiB")
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--kind", choices=KINDS, default="numpy", help="what the state is made of")
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--standby", type=int, default=1, help="with none, copies go to sites that hold others")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--pool-rows", type=int, default=None, help="what each producer keeps; default: Flux's own")
    parser.add_argument("--rate", type=float, default=None, help="rows per second; default: half of the maximum")
    parser.add_argument("--most-s", type=float, default=60.0, help="a rebuild that takes longer is given up")
    parser.add_argument("--missed-max", type=int, default=None, help="beats that a site may miss; default: Flux's own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one run")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if options.missed_max is not None:
        failure_detector.MISSED_MAX = options.missed_max
    taken = catch_up(options)
    path = results.write("catchup", f"{options.kind}-{options.state_mb}-{options.partitions}", taken, **vars(options))
    figures = summary(taken)
    print(json.dumps(figures) if options.json else f"{_shown(figures)}\nwritten to {path}")


def catch_up(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One kill a run."""
    rate = options.rate or maximum_rate(options) / 2
    draw = random.Random(options.seed)
    runs = 1 if options.quick else options.runs
    taken = []
    for number in range(runs):
        found = one(options, rate, f"site-{draw.randint(1, options.sites)}", draw.uniform(0.0, 0.5))
        taken.append({"run": number, "rate": rate, **found})
        if not options.json:
            print(f"  {number + 1}/{runs} {_shown(found)}", flush=True)
    return taken


def one(options: argparse.Namespace, rate: float, victim: str, later_s: float) -> dict[str, Any]:
    """Kill `victim` and watch until everything is whole; a stream for the longest rebuild is never used up."""
    data = rows(int(rate * 4)) * (1 + int(options.most_s / 4))
    settings = {} if options.pool_rows is None else {"pool_rows": options.pool_rows}
    dataflow = flow(data, options.kind, options.state_mb * MEBI, options.partitions, rate)
    with dataflow.start(sites=options.sites, standby=options.standby, **settings) as run:
        run.wait_for_output(1, timeout=options.most_s)
        run.wait_for_output(int(rate * FILL_S), timeout=options.most_s)
        time.sleep(WINDOW_S + later_s)
        run.kill(victim)
        failure = _recovered(run, options.most_s)
        time.sleep(WINDOW_S)
        outputs = run.output_log()
        moves = run.moved_log()
    assert failure.recovered_after_s is not None
    return {
        "before_s": output_gap(outputs, failure.when_s - WINDOW_S, WINDOW_S),
        "after_s": output_gap(outputs, failure.when_s, WINDOW_S),
        "rebuild_s": output_gap(outputs, failure.when_s, failure.recovered_after_s + WINDOW_S),
        "whole_after_s": failure.recovered_after_s,
        "moved_mb": sum(move.size_bytes for move in moves) / MEBI,
        "cut_most_s": max(move.snapshot_s for move in moves),
        "cut_all_s": sum(move.snapshot_s for move in moves),
        "install_most_s": max(move.install_s for move in moves),
        "install_all_s": sum(move.install_s for move in moves),
    }


def _recovered(run: flux.Run, most_s: float) -> Any:
    give_up_at = time.monotonic() + most_s
    while time.monotonic() < give_up_at:
        failures = run.status().failures
        if failures and failures[0].recovered_after_s is not None:
            return failures[0]
        time.sleep(0.05)
    raise SystemExit(f"the copies were not rebuilt within {most_s:g} s")


def maximum_rate(options: argparse.Namespace) -> float:
    """Rows per second at full speed with little state, the median of three runs."""
    count = 2_000_000
    data = rows(count)
    rates = []
    for _ in range(3):
        with flow(data, options.kind, options.partitions * MEBI, options.partitions).start(sites=2) as run:
            run.wait_for_output(1)
            began = time.monotonic()
            run.wait()
            rates.append(count / (time.monotonic() - began))
    return statistics.median(rates)


def summary(taken: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, and the greatest of the gaps."""
    figures: dict[str, Any] = {"runs": len(taken)}
    for name in taken[0]:
        if name != "run":
            figures[name] = statistics.median([row[name] for row in taken])
    return figures | {f"{name}_max": max(row[name] for row in taken) for name in ("before_s", "after_s", "rebuild_s")}


def _shown(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{name.removesuffix('_s')} {value * 1e3:.0f} ms" if name.endswith(("_s", "_s_max")) else f"{name} {value:,.0f}"
        for name, value in figures.items()
    )
