"""Speed: the dataflow of thesis 2.2 with pairs and without, beside a plain loop over dicts.

All variants take turns within one run, because the machine is noisy; what counts are ratios of medians.
The loop gets its rows as Python tuples, made beforehand and not timed: the loop at its best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from experiments import dmz, results

SITES = 2


def measure_loop(rows: list[Any]) -> dict[str, float]:
    """One pass of the plain loop."""
    began, cpu = time.perf_counter(), time.process_time()
    dmz.loop(rows)
    return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


def measure_flux(batches: list[Any], availability: str, partitions: int) -> dict[str, float]:
    """One run of the dataflow, from its first view until everything is at the sink."""
    with dmz.flow(batches, partitions).start(SITES, availability=availability) as run:
        began = time.perf_counter()
        run.wait()
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "cpu_s": sum(run.cpu_s.values())}


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="few rows, three repeats: does it run at all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rows, options.repeats = 200_000, 3
    batches = dmz.packets(options.rows)
    rows = dmz.to_rows(batches)
    variants = {
        "loop": lambda: measure_loop(rows),
        "pairs": lambda: measure_flux(batches, "pairs", 32),
        "none": lambda: measure_flux(batches, "none", 32),
        "pairs, 16 partitions": lambda: measure_flux(batches, "pairs", 16),
        "pairs, 512 partitions": lambda: measure_flux(batches, "pairs", 512),
    }
    taken: list[dict[str, Any]] = []
    for repeat in range(options.repeats):
        for name, measure in variants.items():
            found = measure()
            taken.append({"variant": name, "repeat": repeat, "rows": options.rows, **found})
            if not options.json:
                print(f"  {repeat + 1}/{options.repeats} {name}: {options.rows / found['seconds'] / 1e6:.2f} M/s")
    path = results.write("bench", "speed", taken, sites=SITES, input_rows=options.rows)
    figures = _figures(taken, options.rows)
    if options.json:
        print(json.dumps(figures))
    else:
        _print(taken, options.rows, figures)
        print(f"written to {path}")


def _column(taken: list[dict[str, Any]], variant: str, column: str) -> list[float]:
    return [row[column] for row in taken if row["variant"] == variant]


def _figures(taken: list[dict[str, Any]], rows: int) -> dict[str, Any]:
    def rate(variant: str) -> list[float]:
        return [rows / seconds for seconds in _column(taken, variant, "seconds")]

    def cpu(variant: str) -> float:
        return statistics.median(_column(taken, variant, "cpu_s")) / rows * 1e6

    loop = statistics.median(rate("loop"))
    return {
        "events_per_s": {name: results.spread(rate(name)) for name in ("loop", "pairs", "none")},
        "pairs_over_loop": statistics.median(rate("pairs")) / loop,
        "none_over_loop": statistics.median(rate("none")) / loop,
        "cpu_s_per_million": {name: cpu(name) for name in sorted({row["variant"] for row in taken})},
        "cpu_512_over_16_partitions": cpu("pairs, 512 partitions") / cpu("pairs, 16 partitions"),
    }


def _print(taken: list[dict[str, Any]], rows: int, figures: dict[str, Any]) -> None:
    for name in ("loop", "pairs", "none"):
        rates = [rows / seconds for seconds in _column(taken, name, "seconds")]
        print(f"{name:6} {results.shown(rates, 1e-6)} million events/s")
    print(f"pairs {figures['pairs_over_loop']:.2f} times the loop, none {figures['none_over_loop']:.2f} times")
    for name, seconds in figures["cpu_s_per_million"].items():
        print(f"{name:22} {seconds:.3f} CPU s per million tuples")
    print(f"512 partitions over 16: {figures['cpu_512_over_16_partitions']:.3f}")
