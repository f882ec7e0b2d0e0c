"""One run for `in_turn`: tumbling windows of rows that are made as they are read, by whatever Flux is on the path.

It imports nothing of the project but what a user imports, so that it runs with older trees too.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import flux
from flux.operators import TimeWindow

BATCH_ROWS, KEYS, PARTITIONS, SITES = 65_536, 1_000, 32, 2
WINDOW_MS, BATCH_MS = 10_000, 500
NUMBERS = ("sites", "standby", "flush_ms")


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows of rising time, each batch with the same keys and values."""
    rng = np.random.default_rng(7)
    keys, values = pa.array(rng.integers(0, KEYS, BATCH_ROWS)), pa.array(rng.standard_normal(BATCH_ROWS))
    late = rng.integers(0, 1_000, BATCH_ROWS)
    for number in range(rows // BATCH_ROWS):
        yield pa.record_batch({"k": keys, "ts": pa.array(number * BATCH_MS + late), "x": values})


def cpu_s() -> float:
    """The CPU time of this process and of those it has waited for."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main(rows: int, settings: list[str]) -> None:
    pairs = (setting.split("=", 1) for setting in settings)
    options: dict[str, Any] = {name: int(value) if name in NUMBERS else value for name, value in pairs}
    flow = flux.Dataflow("one run")
    times: dict[str, Any] = {"event_time": "ts", "lateness_ms": 1_000, "watermark_every_ms": 1_000}
    timed = flow.source(flux.sources.Table(batches(rows)), **times).exchange("k", partitions=PARTITIONS)
    aggregates: Any = {"s": ("sum", "x"), "c": "count"}
    window = timed.apply(TimeWindow, size_ms=WINDOW_MS, time="ts", aggregates=aggregates)
    window.sink(flux.sinks.Null())
    before_s = cpu_s()
    flow.run(**{"sites": SITES, **options})
    print(json.dumps({"cpu_s": cpu_s() - before_s, "flux": flux.__file__}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
