"""How late rows are, at several rates, with and without a limit; the variants take turns on a noisy machine."""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any, ClassVar

import numpy as np

import flux
from experiments import results

SITES = 2
LIMITS_MS = (None, 200.0, 50.0)
RATES = (None, 100_000.0, 2_000.0)  # Rows per second; None: as fast as they are taken.


class Passing(flux.PooledOperator):
    """Passes rows on; it has no state."""

    output: ClassVar = {"k": "int64", "v": "int64"}

    def process(self, batch: Any) -> Any:
        return batch.emit({"k": batch["v"], "v": batch["k"]})

    def get_partition_state(self, pid: int) -> None:
        pass

    def drop_partition(self, pid: int) -> None:
        pass


def numbers(offset: int, count: int) -> dict[str, Any]:
    """Rows from `offset` on."""
    v = np.arange(offset, offset + count)
    return {"k": v * 7919 % 1_000, "v": v}


def flow(rows: int, rate: float | None) -> flux.Dataflow:
    """Two stages that pass rows on."""
    made = flux.Dataflow("latency")
    stream = made.source(flux.sources.Generator(numbers, rows=rows, rate=rate))
    for column in ("k", "v"):
        stream = stream.exchange(column, partitions=16).apply(Passing)
    stream.sink(flux.sinks.Null())
    return made


def measure(rate: float | None, limit_ms: float | None, seconds: float) -> dict[str, Any]:
    """One run of about so many seconds."""
    rows = int(seconds * (rate or 500_000))
    with flow(rows, rate).start(SITES, max_latency_ms=limit_ms) as run:
        report = run.wait()
    told = [interval for interval in report.timeline if interval.latency_p50_ms is not None]
    settled = told[len(told) // 4 :]
    return {
        "rate": rate,
        "limit_ms": limit_ms,
        "rows": rows,
        "rows_per_s": report.inputs / report.duration_s,
        "p50_ms": statistics.median(interval.latency_p50_ms or 0.0 for interval in settled),
        "p99_ms": statistics.median(interval.latency_p99_ms or 0.0 for interval in settled),
        "cpu_s_per_million": sum(run.cpu_s.values()) / rows * 1e6,
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.latency", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="about how long a run takes")
    parser.add_argument("--quick", action="store_true", help="one repeat of a second: does it run at all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if options.quick:
        options.repeats, options.seconds = 1, 1.0
    taken = []
    for repeat in range(options.repeats):
        for rate in RATES:
            for limit_ms in LIMITS_MS:
                taken.append({"repeat": repeat, **measure(rate, limit_ms, options.seconds)})
                if not options.json:
                    print(shown(taken[-1]), flush=True)
    path = results.write("latency", "latency", taken, sites=SITES)
    print(json.dumps(taken) if options.json else f"written to {path}")


def shown(found: dict[str, Any]) -> str:
    """One line for people."""
    rate = "full speed" if found["rate"] is None else f"{found['rate']:,.0f}/s"
    limit = "no limit" if found["limit_ms"] is None else f"{found['limit_ms']:g} ms"
    return (
        f"{rate:>11}, {limit:>8}: {found['rows_per_s'] / 1e6:6.3f} M rows/s, latency {found['p50_ms']:6.1f} ms median, "
        f"{found['p99_ms']:6.1f} ms p99, {found['cpu_s_per_million']:7.2f} CPU s per million rows"
    )
