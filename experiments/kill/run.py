"""Kill a random site at a random moment: is the output exact, and how long is there none?

`exact`: runs at full speed; each output must equal a plain run's, in order, or the exit status is 1.
`gap`: runs at half the maximum rate; the longest interval without a row at the sink within 2 s after the
kill, beside the same statistic from the 2 s windows of the same run before the kill.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

from experiments import dmz, results
from flux.driver.report import output_gap

WINDOW_S = 2.0


def main(arguments: list[str] | None = None) -> None:
    """Run one of the two experiments and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.kill", description=__doc__)
    parser.add_argument("what", choices=("exact", "gap"))
    parser.add_argument("--runs", type=int, default=None, help="default 50 for exact, 20 for gap")
    parser.add_argument("--sites", type=int, default=None, help="default: 2 to 4 in turn for exact, 2 for gap")
    parser.add_argument("--rows", type=int, default=1_000_000, help="input rows of a run of `exact`")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="three runs")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    runs = 3 if options.quick else options.runs or {"exact": 50, "gap": 20}[options.what]
    experiment = exact if options.what == "exact" else gap
    taken = experiment(runs, options.sites, options.rows, random.Random(options.seed), not options.json)
    path = results.write("kill", options.what, taken, seed=options.seed, runs=runs)
    figures = summary(options.what, taken)
    print(json.dumps(figures) if options.json else f"{figures}\nwritten to {path}")
    if options.what == "exact" and figures["exact"] < figures["runs"]:
        raise SystemExit(1)


def exact(runs: int, sites: int | None, rows: int, draw: random.Random, verbose: bool) -> list[dict[str, Any]]:
    """Full speed, one kill a run, output compared with the plain run's."""
    batches = dmz.packets(rows)
    expected = dmz.plain_table(batches)
    taken = []
    for number in range(runs):
        count = sites or 2 + number % 3
        victim = f"site-{draw.randint(1, count)}"
        moment = draw.uniform(0.0, 0.9)  # Of the output.
        began = time.monotonic()
        with dmz.flow(batches).start(sites=count) as run:
            run.wait_for_output(int(moment * expected.num_rows))
            time.sleep(draw.uniform(0.0, 0.02))  # Anywhere between two batches of output.
            run.kill(victim)
            report = run.wait()
        found = {
            "run": number,
            "sites": count,
            "victim": victim,
            "moment": moment,
            "rows": report.outputs,
            "equal": report.table is not None and report.table.equals(expected),
            "gap_s": report.failures[0].output_gap_s if report.failures else None,
            "seconds": time.monotonic() - began,
        }
        taken.append(found)
        if verbose:
            print(f"  {number + 1}/{runs} {victim} of {count} at {moment:.0%}: equal {found['equal']}", flush=True)
    return taken


def gap(runs: int, sites: int | None, rows: int, draw: random.Random, verbose: bool) -> list[dict[str, Any]]:
    """Half the maximum rate, one kill a run, the longest interval without output after it and before."""
    count = sites or 2
    fastest = maximum_rate(count)
    rate = fastest / 2
    lasts_s = 7.0
    batches = dmz.packets(int(rate * lasts_s))
    taken = []
    for number in range(runs):
        victim = f"site-{draw.randint(1, count)}"
        after_s = draw.uniform(3.2, 3.8)
        with dmz.flow(batches, rate=rate).start(sites=count) as run:
            time.sleep(after_s)
            run.kill(victim)
            report = run.wait()
        failure = report.failures[0]
        found = {
            "run": number,
            "sites": count,
            "rate": rate,
            "victim": victim,
            "gap_s": failure.output_gap_s,
            "detected_s": failure.detected_after_s,
            "without_kill_s": output_gap(run.output_log(), failure.when_s - WINDOW_S, WINDOW_S),
        }
        taken.append(found)
        if verbose:
            print(
                f"  {number + 1}/{runs} {victim}: {found['gap_s'] * 1e3:.0f} ms after the kill, "
                f"{found['without_kill_s'] * 1e3:.0f} ms before it",
                flush=True,
            )
    return taken


def maximum_rate(sites: int, rows: int = 2_000_000) -> float:
    """Rows per second at full speed, the median of three runs."""
    batches = dmz.packets(rows)
    rates = []
    for _ in range(3):
        with dmz.flow(batches).start(sites=sites) as run:
            began = time.monotonic()
            run.wait()
            rates.append(rows / (time.monotonic() - began))
    return statistics.median(rates)


def summary(what: str, taken: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures that count."""
    if what == "exact":
        return {"runs": len(taken), "exact": sum(row["equal"] for row in taken)}
    after = sorted(row["gap_s"] for row in taken)
    return {
        "runs": len(taken),
        "rate": taken[0]["rate"],
        "gap_s": results.spread(after) | {"p90": after[int(len(after) * 0.9)]},
        "without_kill_s": results.spread([row["without_kill_s"] for row in taken]),
    }
