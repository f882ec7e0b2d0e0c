"""Sessions of bids by bidder, as in NEXMark's query 11: `SessionWindow` beside a `KeyedOperator` with timers.

Whole runs on two sites with pairs, from the first view until all output is at the sink. The variants take turns,
because the machine is noisy; ratios of medians are compared. The benchmark checks that both operators emit the same
sessions. A tumbling `TimeWindow` of the same aggregates gives the scale; `SessionWindow` with 512 partitions shows that
their number does not matter.

Bids are distributed as in NEXMark: three of four are of the bidder of the moment, the others of the last thousand
people. Each is up to a second out of order, which is the lateness of the source, so no row is dropped.

    python -m experiments.bench.session_window [--rows N] [--repeats N] [--bids-per-s N] [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import flux
from experiments import results
from flux.operators import SessionWindow, TimeWindow

SITES = 2
PARTITIONS, MANY_PARTITIONS = 32, 512
BATCH_ROWS = 65_536
GAP_MS = 10_000
LATENESS_MS = 1_000
BIDS_PER_PERSON = 46  # Of 50 events of NEXMark one is a person, three are auctions and 46 are bids.
ACTIVE_PEOPLE = 1_000
HOT_EVERY = 100  # One person in so many is the bidder of the moment.
AGGREGATES: dict[str, Any] = {"bids": "count", "total": ("sum", "price"), "most": ("max", "price")}


def bids(rows: int, bids_per_s: int) -> list[pa.RecordBatch]:
    """Return bids (bidder, price, ts), `bids_per_s` for each second of event time."""
    draw = np.random.default_rng(11)
    person = np.arange(rows) // BIDS_PER_PERSON
    recent = np.maximum(person - draw.integers(0, ACTIVE_PEOPLE, rows), 0)
    bidder = np.where(draw.random(rows) < 0.75, person // HOT_EVERY * HOT_EVERY + 1, recent)
    price = np.round(10 ** (draw.random(rows) * 6) * 100).astype(np.int64)
    ts = np.arange(rows) * 1_000 // bids_per_s + draw.integers(0, LATENESS_MS, rows)
    whole = pa.record_batch({"bidder": bidder, "price": price, "ts": ts})
    return [whole.slice(start, BATCH_ROWS) for start in range(0, rows, BATCH_ROWS)]


Session = tuple[int, int, int, int, int]  # Times of the earliest and the latest bid; number, sum and maximum.


class KeyedSessions(flux.KeyedOperator):
    """The same sessions, a row at a time: the open sessions of a bidder, and a timer at the end of each."""

    output: ClassVar = {
        "bidder": "int64",
        "window_start": "int64",
        "window_end": "int64",
        "bids": "int64",
        "total": "int64",
        "most": "int64",
    }

    def on_tuple(self, key: Any, row: Any, state: tuple[Session, ...] | None) -> Any:
        ts, price = row.ts, row.price
        if state is not None and len(state) == 1:
            start, last, count, total, most = state[0]
            if start <= ts < last + GAP_MS:
                if ts > last:
                    self.cancel_timer(last + GAP_MS)
                    self.set_timer(ts + GAP_MS)
                    last = ts
                return ((start, last, count + 1, total + price, price if price > most else most),), None
        first, last, count, total, most = ts, ts, 1, price, price
        apart = []
        for session in state or ():
            if session[0] - GAP_MS < ts < session[1] + GAP_MS:
                self.cancel_timer(session[1] + GAP_MS)
                first, last = min(first, session[0]), max(last, session[1])
                count, total, most = count + session[2], total + session[3], max(most, session[4])
            else:
                apart.append(session)
        self.set_timer(last + GAP_MS)
        return (*apart, (first, last, count, total, most)), None

    def on_timer(self, key: Any, time: int, state: tuple[Session, ...]) -> Any:
        names = list(self.output)
        over = [
            dict(zip(names, (key[0], start, last + GAP_MS, *rest), strict=True))
            for start, last, *rest in state
            if last + GAP_MS <= time
        ]
        return tuple(session for session in state if session[1] + GAP_MS > time) or None, over


SESSIONS = {"time": "ts", "gap_ms": GAP_MS, "aggregates": AGGREGATES}
WINDOWS = {"time": "ts", "size_ms": GAP_MS, "aggregates": AGGREGATES}
VECTORISED, KEYED = "SessionWindow", "KeyedOperator with timers"
VARIANTS: dict[str, tuple[Any, dict[str, Any], int]] = {
    VECTORISED: (SessionWindow, SESSIONS, PARTITIONS),
    KEYED: (KeyedSessions, {}, PARTITIONS),
    "tumbling TimeWindow": (TimeWindow, WINDOWS, PARTITIONS),
    f"SessionWindow, {MANY_PARTITIONS} partitions": (SessionWindow, SESSIONS, MANY_PARTITIONS),
}


def measure(batches: list[pa.RecordBatch], variant: str) -> tuple[dict[str, float], Any]:
    """Return the costs of one run with pairs, and its output sorted by bidder and session."""
    operator, parameters, partitions = VARIANTS[variant]
    flow = flux.Dataflow("bids")
    source = flow.source(flux.sources.Table(batches), event_time="ts", lateness_ms=LATENESS_MS)
    source.exchange("bidder", partitions=partitions).apply(operator, **parameters).sink(flux.sinks.Collect())
    with flow.start(sites=SITES) as run:
        began = time.perf_counter()
        report = run.wait()
        seconds = time.perf_counter() - began
    assert report.late == 0, f"{variant}: {report.late} rows were late, and none should be"
    ordered = report.table.sort_by([("bidder", "ascending"), ("window_start", "ascending")])
    return {"seconds": seconds, "cpu_s": sum(run.cpu_s.values()), "outputs": report.outputs}, ordered


def main(arguments: list[str] | None = None) -> int:
    """Run all variants in turn, and print the comparison."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.session_window",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--bids-per-s", type=int, default=10_000, help="of event time; there is a watermark for each second"
    )
    parser.add_argument("--quick", action="store_true", help="few rows, one repeat: only shows that it runs")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rows, options.repeats = 50_000, 1
    batches = bids(options.rows, options.bids_per_s)
    measured: list[dict[str, Any]] = []
    for repeat in range(options.repeats):
        sessions: dict[str, Any] = {}
        for name, (operator, *_) in VARIANTS.items():
            found, table = measure(batches, name)
            if operator is not TimeWindow:
                sessions[name] = table
            measured.append({"variant": name, "repeat": repeat, "rows": options.rows, **found})
            if not options.json:
                rate = options.rows / found["seconds"]
                print(f"  {repeat + 1}/{options.repeats} {name}: {rate / 1e3:.0f} k/s, {found['cpu_s']:.1f} CPU s")
        for name, table in sessions.items():
            assert table.equals(sessions[KEYED]), f"{name} emitted other sessions than the {KEYED}"
    path = results.write("bench", "session_window", measured, sites=SITES, bids_per_s=options.bids_per_s)
    figures = _figures(measured)
    print(json.dumps(figures) if options.json else f"{_lines(figures)}\nwritten to {path}")
    return 0


def _figures(measured: list[dict[str, Any]]) -> dict[str, Any]:
    rows = measured[0]["rows"]
    by_name = {name: [row for row in measured if row["variant"] == name] for name in VARIANTS}
    rates = {name: [rows / row["seconds"] for row in found] for name, found in by_name.items()}
    cpu = {name: statistics.median(row["cpu_s"] for row in found) / rows * 1e6 for name, found in by_name.items()}
    many = f"SessionWindow, {MANY_PARTITIONS} partitions"
    return {
        "events_per_s": {name: results.spread(rate) for name, rate in rates.items()},
        "cpu_s_per_million": cpu,
        "sessions": by_name[VECTORISED][0]["outputs"],
        "over_keyed": statistics.median(rates[VECTORISED]) / statistics.median(rates[KEYED]),
        "over_keyed_of_each_repeat": [a / b for a, b in zip(rates[VECTORISED], rates[KEYED], strict=True)],
        "over_keyed_by_cpu": cpu[KEYED] / cpu[VECTORISED],
        "cpu_of_many_partitions": cpu[many] / cpu[VECTORISED],
    }


def _lines(figures: dict[str, Any]) -> str:
    cpu = figures["cpu_s_per_million"]
    lines = [
        f"{name:32}{rate['median'] / 1e3:8.0f} ({rate['min'] / 1e3:.0f} to {rate['max'] / 1e3:.0f}) thousand events/s"
        f"{cpu[name]:8.2f} CPU s per million"
        for name, rate in figures["events_per_s"].items()
    ]
    each = ", ".join(f"{ratio:.1f}" for ratio in figures["over_keyed_of_each_repeat"])
    lines.append(
        f"SessionWindow {figures['over_keyed']:.1f} times the {KEYED} (each repeat {each}), by CPU "
        f"{figures['over_keyed_by_cpu']:.1f} times; {figures['sessions']} sessions, the same for both"
    )
    lines.append(f"{MANY_PARTITIONS} partitions over {PARTITIONS}, by CPU: {figures['cpu_of_many_partitions']:.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
