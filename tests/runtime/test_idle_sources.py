"""A source that is silent holds back the watermark no longer: decided once, the same for all copies and ingresses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

import flux
from flux.operators import TimeWindow
from flux.sources import Source, SourceBatch, SourceContext

ROWS, RATE, WINDOW_MS = 4_000, 2_000, 100
EARLY = 5  # Rows that the other source gives before it falls silent.


def events(offset: int, count: int) -> dict[str, Any]:
    return {"k": ["a"] * count, "ts": range(offset, offset + count)}


class Sometimes(Source):
    """A few rows, and when the file `gate` exists, two more: one far too late, and one of the last window."""

    schema = pa.schema({"k": pa.string(), "ts": pa.int64()})
    replays = True
    emits_time = False

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    async def batches(self, context: SourceContext, after: Any = 0) -> AsyncIterator[SourceBatch]:
        if not after:
            yield SourceBatch(pa.record_batch({"k": ["b"] * EARLY, "ts": range(EARLY)}, self.schema), offset=1)
        while not self.gate.exists():
            await trio.sleep(0.01)
        if (after or 0) < 2:
            yield SourceBatch(pa.record_batch({"k": ["b", "b"], "ts": [7, ROWS - 1]}, self.schema), offset=2)


def flow_of(gate: Path, **settings: Any) -> flux.Dataflow:
    flow = flux.Dataflow("idle")
    steady = flow.source(flux.sources.Generator(events, rows=ROWS, rate=RATE), event_time="ts", watermark_every_ms=20)
    other = flow.source(Sometimes(gate), event_time="ts", watermark_every_ms=20, **settings)
    windows = steady.union(other).exchange("k", partitions=3)
    windows = windows.apply(TimeWindow, time="ts", size_ms=WINDOW_MS, aggregates={"rows": "count"})
    windows.sink(flux.sinks.Collect())
    return flow


def test_a_silent_source_holds_back_no_window_also_after_the_ingress_was_killed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with flow_of(gate, idle_after_s=0.2).start() as run:
        run.wait_for_output(4, timeout=60)
        run.kill("ingress")
        run.wait_for_output(12, timeout=60)
        run.kill("ingress")
        run.wait_for_output(20, timeout=60)
        gate.touch()
        report = run.wait(timeout=60)
    found = {(row["k"], row["window_start"]): row["rows"] for row in report.table.to_pylist()}
    steady = {("a", start): WINDOW_MS for start in range(0, ROWS, WINDOW_MS)}
    assert found == {**steady, ("b", 0): EARLY, ("b", ROWS - WINDOW_MS): 1}
    assert report.late == 1


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), "1", True])
def test_seconds_that_cannot_be_are_a_plan_error(seconds: Any, tmp_path: Path) -> None:
    with pytest.raises(flux.PlanError, match="idle_after_s is a number of seconds above 0"):
        flow_of(tmp_path, idle_after_s=seconds)


def test_idle_after_s_without_event_time_is_a_plan_error() -> None:
    flow = flux.Dataflow("timeless")
    stream = flow.source(flux.sources.Generator(events), idle_after_s=1)
    stream.sink(flux.sinks.Null())
    with pytest.raises(flux.PlanError, match=r"source Generator: idle_after_s=1 .* it has no event time"):
        flow.explain()
    timed = flux.Dataflow("timed")
    timed.source(flux.sources.Generator(events), idle_after_s=1).event_time("ts").sink(flux.sinks.Null())
    assert "idle after 1 s without rows" in timed.explain()
