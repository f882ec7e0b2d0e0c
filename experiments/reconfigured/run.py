"""Change a step that holds much state, under load: for how long is there no output, and when does the new code run?

The step holds so much state in each of two copies, on three sites. After it was filled, the rows come at a rate that
the sites can process twice over. The figures are the longest times without output in the 2 s before the change and the
3 s after it was asked for, how long it took until each partition had a copy with the new code and until all copies had
it, and for how long rows could have waited at the position of the change.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

import flux
from experiments import results
from flux.driver.report import output_gap

from .steps import ByPartition, Keyed

KINDS = ("group-by", "keyed", "keyed-migrated", "by-partition", "by-partition-migrated")
BEFORE_S, AFTER_S = 2.0, 3.0
PARTITIONS, SITES = 32, 3
MEBI = 1 << 20
KEY_BYTES = 1_000
# Rows per second at which the filled step is changed: about half of what three sites on two cores process.
RATES = {"group-by": 100_000, "keyed": 30_000, "by-partition": 50_000}
_GROUP_BYTES = 64  # About what a key of a GroupBy takes.
_FILLED_WITHIN_S = 600.0
FILLING_ROWS = 2_000_000  # Of a step whose state does not depend on how many keys there are.


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.reconfigured", description=__doc__)
    parser.add_argument(
        "--kind", choices=KINDS, default="group-by", help="what has the state, and whether it is migrated"
    )
    parser.add_argument("--state-mb", type=int, default=1024, help="state of one copy of the step, in MiB")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--catching-up", action="store_true", help="kill a site just before: copies catch up meanwhile")
    parser.add_argument("--quick", action="store_true", help="one run, with a tenth of the state")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if options.quick:
        options.runs, options.state_mb = 1, options.state_mb // 10
    taken = []
    for number in range(options.runs):
        found = one(options)
        taken.append({"run": number, **found})
        if not options.json:
            print(f"  {number + 1}/{options.runs} {_shown(found)}", flush=True)
    path = results.write("reconfigured", f"{options.kind}-{options.state_mb}", taken, **vars(options))
    figures = {name: statistics.median([row[name] for row in taken]) for name in taken[0] if name != "run"}
    figures |= {"runs": len(taken), "after_s_max": max(row["after_s"] for row in taken)}
    print(json.dumps(figures) if options.json else f"{_shown(figures)}\nwritten to {path}")


def one(options: argparse.Namespace) -> dict[str, Any]:
    """Fill a step, and change it once."""
    base = options.kind.removesuffix("-migrated")
    keys = (
        options.state_mb * MEBI // (_GROUP_BYTES if base == "group-by" else KEY_BYTES)
        if base != "by-partition"
        else 10_000
    )
    rate, filling = RATES[base], (keys if base != "by-partition" else FILLING_ROWS)
    flow = flux.Dataflow("reconfigured")
    source = flow.source(flux.sources.Generator(Rows(keys, filling, rate))).exchange("key", partitions=PARTITIONS)
    _add(source, base, options.state_mb * MEBI).sink(flux.sinks.Null())
    with flow.start(sites=SITES + options.catching_up) as run:
        run.wait_for_output(filling, timeout=_FILLED_WITHIN_S)
        run.wait_for_output(filling + int(rate * (BEFORE_S + 1)), timeout=_FILLED_WITHIN_S)
        if options.catching_up:
            run.kill(f"site-{SITES + 1}")
            time.sleep(1.0)
        asked_s = run.status().t_s
        change = run.reconfigure(_wanted(options.kind))
        change.wait_complete(120)
        time.sleep(max(0.0, asked_s + AFTER_S + 1.0 - run.status().t_s))
        outputs = run.output_log()
    assert change.committed_s is not None and change.delay_s is not None and change.complete_s is not None
    return {
        "before_s": output_gap(outputs, asked_s - BEFORE_S, BEFORE_S),
        "after_s": output_gap(outputs, asked_s, AFTER_S),
        "committed_s": change.committed_s,
        "delay_s": change.delay_s,
        "complete_s": change.complete_s,
        "held_s": change.held_s or 0.0,
        "attempts": change.attempts or 0,
    }


class Rows:
    """Each key once, as fast as they are taken, and then keys drawn evenly, at a rate."""

    def __init__(self, keys: int, filling: int, rate: float) -> None:
        self._keys, self._filling, self._rate = keys, filling, rate
        self._began_s: float | None = None

    def __call__(self, first: int, count: int) -> dict[str, Any]:
        numbers = np.arange(first, first + count)
        if first >= self._filling:
            self._began_s = self._began_s or time.monotonic()
            time.sleep(max(0.0, self._began_s + (first - self._filling) / self._rate - time.monotonic()))
            numbers = numbers[: max(1, int(self._rate / 100))]
        return {"key": np.where(numbers < self._filling, numbers % self._keys, numbers * 7_919 % self._keys)}


def _add(keyed: Any, base: str, state_bytes: int) -> Any:
    if base == "group-by":
        return keyed.apply(flux.operators.GroupBy, aggregates={"count": "count", "sum": ("sum", "key")})
    if base == "keyed":
        return keyed.apply(Keyed, key_bytes=KEY_BYTES)
    return keyed.apply(ByPartition, partition_bytes=state_bytes // PARTITIONS)


def _wanted(kind: str) -> dict[str, Any]:
    steps = f"{__package__}.steps"
    return {
        "group-by": {"GroupBy": flux.change(emit="rows")},
        "keyed": {"Keyed": flux.change(by=2)},
        "keyed-migrated": {"Keyed": flux.change(migrate=f"{steps}:wrapped")},
        "by-partition": {"ByPartition": flux.change(by=2)},
        "by-partition-migrated": {"ByPartition": flux.change(migrate=f"{steps}:renewed")},
    }[kind]


def _shown(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{name.removesuffix('_s')} {value * 1e3:.0f} ms" if name.endswith(("_s", "_s_max")) else f"{name} {value:,.0f}"
        for name, value in figures.items()
    )
