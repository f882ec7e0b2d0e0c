"""Full load without a fault: is anybody taken for dead, and does memory grow?

The packets are the same few chunks over and over, made before the run, so that the source is no bottleneck.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import flux
from experiments import dmz, results
from experiments.memory import resident_mb
from experiments.soak.stream import CHUNK_ROWS, chunk
from experiments.soak.watching import Watch

CHUNKS = 16
SAMPLES = 120
GROWTH_MAX = 0.1  # Of the memory of all processes, from the second quarter of the time to the last.


def main(arguments: list[str] | None = None) -> None:
    """Run, print the figures, and fail if they are not what is claimed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.steady", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N")
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--quick", action="store_true", help="a quarter of a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    minutes = 0.25 if options.quick else options.minutes
    tell = (lambda line: None) if options.json else (lambda line: print(line, flush=True))
    samples, figures = steady(minutes, options.sites, options.partitions, tell)
    path = results.write("steady", "memory", samples, **figures)
    print(json.dumps(figures) if options.json else f"{figures}\nwritten to {path}")
    if figures["deaths"] or figures["views"] != 1 or figures["growth"] > GROWTH_MAX:
        raise SystemExit(1)


def steady(
    minutes: float, sites: int, partitions: int, tell: Callable[[str], None]
) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Full load for so long: the memory of each process (MB) at `SAMPLES` moments, and what it comes to."""
    chunks = [chunk(number) for number in range(CHUNKS)]

    def packets(offset: int, count: int) -> pa.RecordBatch:
        number, start = divmod(offset, CHUNK_ROWS)
        return chunks[number % CHUNKS].slice(start, count)

    source = flux.sources.Generator(packets, schema=dmz.PACKETS)
    samples: list[dict[str, float]] = []
    with dmz.flow(source, partitions, flux.sinks.Null()).start(sites=sites) as run:
        watch, began = Watch(run), time.monotonic()
        for number in range(1, SAMPLES + 1):
            _rest_until(began + 60 * minutes * number / SAMPLES)
            samples.append(_sample(run))
            if number % (SAMPLES // 12) == 0:
                tell(f"{_shown(samples[-1])}; {len(watch.deaths())} deaths, view {watch.view().number}")
        figures = {
            "minutes": (time.monotonic() - began) / 60,
            "input_rows": watch.numbered(),
            "input_rows_per_s": round(watch.numbered() / (time.monotonic() - began)),
            "deaths": [death.node for death in watch.deaths()],
            "views": watch.view().number,
            "growth": round(growth([sum(sample.values()) - sample["t_s"] for sample in samples]), 4),
            "growth_of_each": {
                name: round(growth([sample[name] for sample in samples]), 4) for name in samples[0] if name != "t_s"
            },
        }
    return samples, figures


def growth(memory: list[float]) -> float:
    """By what part it is more in the last quarter of the time than in the second, in which everything is full."""
    quarter = len(memory) // 4
    before, behind = statistics.median(memory[quarter : 2 * quarter]), statistics.median(memory[-quarter:])
    return behind / before - 1


def _sample(run: flux.Run) -> dict[str, float]:
    status = run.status()
    pids = {"program": os.getpid()} | {p.name: p.pid for p in status.processes if p.state == "up" and p.pid is not None}
    return {"t_s": round(status.t_s, 1)} | {name: round(resident_mb(pid), 1) for name, pid in pids.items()}


def _rest_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))


def _shown(sample: dict[str, float]) -> str:
    memory = ", ".join(f"{name} {mb:.0f}" for name, mb in sample.items() if name != "t_s")
    return f"{sample['t_s']:6.0f} s: {memory} MB"
