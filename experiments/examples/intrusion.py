"""Intrusion detection, the example of Thesis 2.2: which sources hold their sessions open unusually long?

Shows an operator of one's own beside one of the library. `Sessions` sees the packets between two hosts, one at a time,
and tells how long each session took; Flux keeps what it returns for each (src, dst), twice, and moves it when a site
dies. `CountWindow` then tells, for each application and source, maximum and mean of the last sessions, and what is over
a threshold is an alarm.

`experiments/dmz` is the same for benchmarks, with a vectorised `Sessions`.

    python -m experiments.examples.intrusion --rows 20000 --kill
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import flux
from experiments.examples.running import main

SOURCES, DESTINATIONS, APPLICATIONS = 50, 10, 4
HISTORY = 3
ALARM_MS = 30_000


def packets(rows: int, seed: int = 0) -> pa.Table:
    """Packets between hosts in the order in which they are seen; some starts and ends were missed."""
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "src": draw.integers(0, SOURCES, rows, np.int32),
            "dst": draw.integers(0, DESTINATIONS, rows, np.int32),
            "app": draw.integers(0, APPLICATIONS, rows, np.int32),
            "kind": pa.array(draw.choice(["start", "end", "data"], rows, p=[0.4, 0.4, 0.2])),
            "ts": np.cumsum(draw.integers(1, 100, rows)),
        }
    )


class Sessions(flux.KeyedOperator):
    """A start opens the session of two hosts, or opens it anew; an end closes it and tells how long it took, if known.

    The state of a key is (app, when it was opened); None, which is no state at all, while no session is open.
    """

    output = {"app": "int32", "src": "int32", "dst": "int32", "dur": "int64"}  # noqa: RUF012

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        if row.kind == "start":
            return (row.app, row.ts), None
        if row.kind == "end" and state is not None:
            app, since = state
            dur = None if since is None or row.ts is None else row.ts - since
            return None, [{"app": app, "src": row.src, "dst": row.dst, "dur": dur}]
        return state, None


def is_alarming(batch: Any) -> Any:
    """Which rows are alarms; a function of a batch, so that no row becomes a Python object."""
    return batch["avg_dur"] > ALARM_MS


def flow(source: flux.sources.Source) -> flux.Dataflow:
    """One row for each alarm: app, src, max_dur, avg_dur."""
    dataflow = flux.Dataflow("intrusion")
    alarms = (
        dataflow.source(source)
        .exchange("src", "dst", partitions=16)
        .apply(Sessions)
        .exchange("app", "src", partitions=16)
        .apply(flux.operators.CountWindow, history=HISTORY, slide=1)
        .filter(is_alarming, batch=True)
    )
    alarms.sink(flux.sinks.Collect())
    return dataflow


if __name__ == "__main__":
    raise SystemExit(main(__doc__, packets, flow))
