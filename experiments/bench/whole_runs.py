"""What operators of the library cost in whole runs, with all that Flux does around them: `experiments.bench.operators`
measures them alone.

A run has two sites, 32 partitions, an ingress that reads the rows, numbers them and sets watermarks, and an egress that
orders what comes out. What is compared is the CPU time of all its processes, with one copy and with pairs, and that of
the plain computation on one core: a ratio of 0.5 means that Flux does half as many rows a second for each core that it
uses.

    python -m experiments.bench.whole_runs [--rows N] [--repeats N] [--only NAME] [--json]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import pyarrow as pa

import flux
from experiments.bench.operators import BATCH_ROWS, CASES, PARTITIONS, WATERMARK_EVERY_MS, WINDOW_MS, Case, asked, cpu_s
from flux.exchange.sides import SIDE
from flux.operators import Join

SITES = 2
TIMED: dict[str, Any] = {"event_time": "ts", "lateness_ms": 1_000, "watermark_every_ms": WATERMARK_EVERY_MS}


def source(rows: pa.RecordBatch) -> flux.sources.Table:
    return flux.sources.Table([rows.slice(start, BATCH_ROWS) for start in range(0, len(rows), BATCH_ROWS)])


def flow_of(case: Case, columns: Any) -> flux.Dataflow:
    """The case's operator behind an exchange, or its join of two streams."""
    flow = flux.Dataflow("bench")
    timed = TIMED if case.by_time else {}
    rows = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    if case.operator is not Join:
        behind = flow.source(source(rows), **timed).exchange(case.key, partitions=PARTITIONS)
        behind.apply(case.operator, **case.parameters).sink(flux.sinks.Null())
        return flow
    sides = []
    for side, last in enumerate("xn"):
        own = rows.filter(pa.array(columns[SIDE] == side))
        named = {name: own.column(f"{side}.{name}") for name in ("k", "ts", last)}
        sides.append(flow.source(source(pa.record_batch(named)), **timed))
    sides[0].join(sides[1], on="k", within={"ts": WINDOW_MS}, partitions=PARTITIONS).sink(flux.sinks.Null())
    return flow


def run(case: Case, columns: Any, availability: str) -> tuple[float, float]:
    """CPU seconds of all processes of a run, and seconds from its first view to its end."""
    with flow_of(case, columns).start(SITES, availability=availability) as running:
        began = time.perf_counter()
        running.wait()
        seconds = time.perf_counter() - began
    return sum(running.cpu_s.values()), seconds


def measure(case: Case, rows: int, repeats: int) -> dict[str, Any]:
    columns = case.columns(rows)
    taken: dict[str, list[tuple[float, float]]] = {"none": [], "pairs": []}
    plain = []
    case.plain(columns)  # Memory that is touched for the first time is dear, and only the first time.
    for _ in range(repeats):
        for availability, found in taken.items():
            found.append(run(case, columns, availability))
        plain.append(cpu_s(lambda: case.plain(columns))[0])
    plain_s = statistics.median(plain)
    result: dict[str, Any] = {"case": case.name, "rows": rows, "plain_ns_per_row": plain_s / rows * 1e9}
    for availability, found in taken.items():
        used_s, seconds = (statistics.median(each) for each in zip(*found, strict=True))
        result[availability] = {
            "cpu_ns_per_row": used_s / rows * 1e9,
            "rows_per_s": rows / seconds,
            "ratio": plain_s / used_s,
        }
    return result


def main() -> int:
    arguments = asked(__doc__, rows=4_000_000, repeats=3)
    results = []
    for case in CASES:
        if arguments.only not in case.name or "beside numpy" in case.name:
            continue
        result = measure(case, arguments.rows, arguments.repeats)
        results.append(result)
        if not arguments.json:
            told = [
                f"{name} {result[name]['cpu_ns_per_row']:5.0f} ns, {result[name]['rows_per_s'] / 1e6:.2f} M rows/s, "
                f"{result[name]['ratio']:.2f} times"
                for name in ("none", "pairs")
            ]
            print(f"{case.name:<24} plain {result['plain_ns_per_row']:4.0f} ns a row; {'; '.join(told)}", flush=True)
    if arguments.json:
        print(json.dumps({"batch_rows": BATCH_ROWS, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
