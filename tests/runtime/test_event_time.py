"""Event time in real processes: windows, ranks, distinct rows, running sums and timers are exact through kills."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import flux
from flux.operators import Distinct, GroupBy, TimeWindow, TopK

ROWS = 12_000
RATE = 8_000  # So that rows flow while sites die.
JITTER_MS, EVERY_MS, WINDOW_MS = 50, 100, 1_000
LATE_ROWS = 5


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Rows of 12 s, up to 50 ms out of order, some of them twice; at the end a few that are far too late."""
    rng = np.random.default_rng(3)
    ts = np.arange(ROWS) + rng.integers(0, JITTER_MS, ROWS)
    ts[-LATE_ROWS:] = 7
    n = np.where(rng.random(ROWS) < 0.2, np.arange(ROWS) - 1, np.arange(ROWS))
    n[-LATE_ROWS:] = -1 - np.arange(LATE_ROWS)
    words = np.array(["alpha", "beta", "gamma", "delta", "epsilon", "zeta"], dtype=object)
    return pd.DataFrame({"k": words[n % 6], "n": n, "ts": ts, "x": rng.standard_normal(ROWS)})


def source_of(frame: pd.DataFrame) -> flux.sources.Table:
    return flux.sources.Table(pa.Table.from_pandas(frame, preserve_index=False), rate=RATE, batch_rows=500)


def in_time(flow: flux.Dataflow, frame: pd.DataFrame) -> Any:
    return flow.source(source_of(frame), event_time="ts", lateness_ms=JITTER_MS, watermark_every_ms=EVERY_MS)


def test_the_first_windows_of_distinct_rows_are_those_of_pandas_through_kills(frame: pd.DataFrame) -> None:
    flow = flux.Dataflow("ranks")
    (
        in_time(flow, frame)
        .exchange("k", partitions=6)
        .apply(Distinct, on=("k", "n"))
        .apply(TimeWindow, time="ts", size_ms=WINDOW_MS, aggregates={"rows": "count", "total": ("sum", "x")})
        .exchange("window_start", partitions=4)
        .apply(TopK, k=2, by="total", time="window_start", size_ms=WINDOW_MS)
        .sink(flux.sinks.Collect())
    )
    with flow.start(sites=3, standby=1) as run:
        run.wait_for_output(4)
        run.kill("site-2")
        run.wait_for_output(8)
        run.kill("ingress")
        report = run.wait(timeout=120)
    distinct = frame.drop_duplicates(["k", "n"]).iloc[:-LATE_ROWS]
    windows = distinct.assign(start=distinct.ts // WINDOW_MS * WINDOW_MS).groupby(["start", "k"])["x"]
    expected = windows.agg(["count", "sum"]).reset_index().sort_values(["start", "sum"], ascending=[True, False])
    expected = expected.groupby("start").head(2)
    found = report.table.to_pandas().sort_values(["window_start", "rank"])
    assert found["window_start"].tolist() == expected["start"].tolist()
    assert found["k"].tolist() == expected["k"].tolist()
    assert found["rows"].tolist() == expected["count"].tolist()
    np.testing.assert_allclose(found["total"], expected["sum"], rtol=1e-12)
    assert report.late == LATE_ROWS and report.to_dict()["late"] == LATE_ROWS
    assert "site-2" in [failure.site for failure in report.failures]


class Idle(flux.KeyedOperator):
    """Tells of each key that nothing has come of for 2 ms, and how much had come."""

    output = {"k": "string", "at": "int64", "n": "int64", "total": "float64"}  # noqa: RUF012

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        self.cancel_timer()
        self.set_timer(row.ts + 2)
        return [row.n, row.total], None

    def on_timer(self, key: Any, time: int, state: Any) -> Any:
        n, total = state
        return None, [{"k": key[0], "at": time, "n": n, "total": total}]


def idle_in_a_loop(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    seen: dict[str, list[Any]] = {}
    timers: dict[str, int] = {}
    out, watermark = [], -(10**9)
    for k, ts, x in zip(frame.k, frame.ts.tolist(), frame.x.tolist(), strict=True):
        n, most, total = seen.get(k, [0, ts, 0.0])
        seen[k] = [n + 1, max(most, ts), total + x]
        timers[k] = seen[k][1] + 2
        reached = (ts - JITTER_MS) // EVERY_MS * EVERY_MS
        if reached > watermark:
            watermark = reached
            for key in [key for key, at in timers.items() if at <= watermark]:
                out.append((key, timers.pop(key), seen[key][0], seen[key][2]))
    return sorted(out + [(key, at, seen[key][0], seen[key][2]) for key, at in timers.items()])


def test_running_aggregates_and_timers_are_those_of_a_loop_through_a_kill(frame: pd.DataFrame) -> None:
    # Keys that come and go: each a few times within a second.
    rows = frame.assign(k=(frame.n // 40).astype(str))[["k", "ts", "x"]].iloc[:-LATE_ROWS]
    flow = flux.Dataflow("idle")
    (
        in_time(flow, rows)
        .exchange("k", partitions=6)
        .apply(GroupBy, aggregates={"n": "count", "total": ("sum", "x"), "ts": ("max", "ts")})
        .exchange("k", partitions=5)
        .apply(Idle)
        .sink(flux.sinks.Collect())
    )
    with flow.start(sites=3) as run:
        run.wait_for_output(50)
        run.kill("site-1")
        report = run.wait(timeout=120)
    assert sorted(tuple(row.values()) for row in report.table.to_pylist()) == idle_in_a_loop(rows)
    assert report.late == 0
