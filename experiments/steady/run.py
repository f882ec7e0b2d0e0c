"""Even load without a fault: is a live process declared dead, does memory grow, does balance move anything?

The packets are the same few chunks over and over, made before the run, so that the source is no bottleneck. There are
no virtual processors: what the machine does beside the run is real.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import flux
from experiments import dmz, results
from experiments.memory import resident_mb
from experiments.soak.stream import CHUNK_ROWS, SOURCES, chunk
from experiments.soak.watching import Watch

CHUNKS = 16
SAMPLES = 120
START_S = 10.0  # Longer than a run takes to start.
GROWTH_MAX = 0.1  # Of the memory of all processes, from the second quarter of the time to the last.


NEW_KEYS_EVERY = 64  # Chunks, with --growing: then all keys are new ones.
BUSY_LOOP = "while True: pass"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is run, and what runs beside it."""

    minutes: float = 10.0
    sites: int = 4
    partitions: int = 32
    rate: float | None = None  # Rows per second; None for as many as there can be.
    beside: int = 0  # Busy loops.
    is_growing: bool = False


def main(arguments: list[str] | None = None) -> None:
    """Run, print the figures, and fail if they are not what is claimed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.steady", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N")
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--rate", type=float, metavar="ROWS", help="rows per second (default: full load)")
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="so many busy loops beside the run")
    parser.add_argument("--growing", action="store_true", help="new keys all the time: state grows from nothing")
    parser.add_argument("--quick", action="store_true", help="a quarter of a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    setting = Setting(
        minutes=0.25 if options.quick else options.minutes,
        sites=options.sites,
        partitions=options.partitions,
        rate=options.rate,
        beside=options.beside,
        is_growing=options.growing,
    )
    tell = (lambda line: None) if options.json else (lambda line: print(line, flush=True))
    samples, figures = steady(setting, tell)
    path = results.write("steady", "memory", samples, **figures)
    print(json.dumps(figures) if options.json else f"{figures}\nwritten to {path}")
    if unexpected(setting, figures):
        raise SystemExit(1)


def unexpected(setting: Setting, figures: dict[str, Any]) -> list[str]:
    """Return which of the figures are not as claimed. Beside busy loops copies may move: each round has its reason."""
    claims = {
        "deaths": not figures["deaths"],
        "views": figures["views"] == 1 or setting.beside > 0,
        "rounds": not figures["rounds"] or setting.beside > 0,
        "slow": not figures["slow"] or setting.beside > 0,
        "growth": figures["growth"] <= GROWTH_MAX or setting.is_growing,
    }
    return [name for name, holds in claims.items() if not holds]


def steady(setting: Setting, tell: Callable[[str], None]) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Return the memory of each process (MB) at `SAMPLES` moments of a run, and what became of the run."""
    chunks = [chunk(number) for number in range(CHUNKS)]
    ends_at = time.monotonic() + 60 * setting.minutes + START_S

    def packets(offset: int, count: int) -> pa.RecordBatch | None:
        if time.monotonic() >= ends_at:
            return None
        number, start = divmod(offset, CHUNK_ROWS)
        rows = chunks[number % CHUNKS].slice(start, count)
        return with_new_keys(rows, number // NEW_KEYS_EVERY) if setting.is_growing else rows

    source = flux.sources.Generator(packets, schema=dmz.PACKETS, rate=setting.rate)
    samples: list[dict[str, float]] = []
    flow = dmz.flow(source, setting.partitions, flux.sinks.Null())
    with busy_loops(setting.beside), flow.start(sites=setting.sites) as run:
        watch, began = Watch(run), time.monotonic()
        for number in range(1, SAMPLES + 1):
            _rest_until(began + 60 * setting.minutes * number / SAMPLES)
            samples.append(_sample(run))
            if number % (SAMPLES // 12) == 0:
                tell(f"{_shown(samples[-1])}; {len(watch.deaths())} deaths, view {watch.view().number}")
        took_s, rows = time.monotonic() - began, watch.numbered()
        deaths, views = [death.node for death in watch.deaths()], watch.view().number
        report = run.wait()
    figures = {
        "minutes": took_s / 60,
        "beside": setting.beside,
        "input_rows": rows,
        "input_rows_per_s": round(rows / took_s),
        "deaths": deaths,
        "views": views,
        "rounds": [{name: each[name] for name in ("when_s", "moves", "why")} for each in report.rounds],
        "slow": [{name: each[name] for name in ("site", "when_s", "until_s")} for each in report.slow],
        "growth": round(growth([sum(sample.values()) - sample["t_s"] for sample in samples]), 4),
        "growth_of_each": {
            name: round(growth([sample[name] for sample in samples]), 4) for name in samples[0] if name != "t_s"
        },
    }
    return samples, figures


def with_new_keys(rows: pa.RecordBatch, generation: int) -> pa.RecordBatch:
    """Return packets of other sources: those of each generation are its own."""
    sources = pc.add(rows["src"], pa.scalar(generation * SOURCES, pa.int32()))
    return rows.set_column(rows.schema.get_field_index("src"), rows.schema.field("src"), sources)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run so many programs beside this one that do nothing but take a processor."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


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
