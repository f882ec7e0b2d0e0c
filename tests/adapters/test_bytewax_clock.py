"""The clock of the ingress: what bytewax does after a timeout is done while a source is silent, through kills."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

import flux
from flux.sources import Source, SourceBatch, SourceContext
from tests.adapters.bytewax_flows import Case, op, win
from tests.adapters.test_bytewax import wrapped

COUNT = 3
TEXT = {"k": "string", "kind": "string", "text": "string"}


class Gated(Source):
    """Rows of one key; those after the first `COUNT` come when the file `gate` is there."""

    schema = pa.schema({"k": pa.string(), "v": pa.int64()})
    replays = True
    emits_time = False

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    async def batches(self, context: SourceContext, after: Any = 0) -> AsyncIterator[SourceBatch]:
        for part in range(after or 0, 2):
            while part and not self.gate.exists():
                await trio.sleep(0.01)
            rows = {"k": ["a"] * COUNT, "v": range(part * COUNT, (part + 1) * COUNT)}
            yield SourceBatch(pa.record_batch(rows, self.schema), offset=part + 1)


def _collected(key: Any, rows: Any) -> dict[str, str]:
    return {"k": key[0], "kind": "", "text": str([row["v"] for row in rows])}


def _in_window(key: Any, event: Any) -> dict[str, str] | None:
    return None if event[1] != "E" else _collected(key, event[2])


def _windows(clock: Any) -> Any:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    tumbling = win.TumblingWindower(align_to=long_ago, length=timedelta(milliseconds=400))
    return lambda up: win.collect_window("c", up, clock, tumbling)


CASES = {
    "collect": Case(lambda up: op.collect("c", up, timedelta(milliseconds=300), 10), _collected, TEXT),
    "SystemClock": Case(_windows(win.SystemClock()), _in_window, TEXT),
    "EventClock": Case(
        _windows(win.EventClock(lambda row: datetime.fromtimestamp(row["v"] // COUNT, UTC), timedelta())),
        _in_window,
        TEXT,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_waits_for_time_to_pass_comes_while_the_source_is_silent(name: str, tmp_path: Path) -> None:
    flow = flux.Dataflow("clocked")
    source = flow.source(Gated(tmp_path / "gate"), clock_ms=50)
    source.exchange("k", partitions=2).apply(wrapped(CASES[name])).sink(flux.sinks.Collect())
    with flow.start(sites=2) as run:
        run.wait_for_output(1, timeout=60)
        run.kill("ingress")
        (tmp_path / "gate").touch()
        report = run.wait(timeout=60)
    assert [row["text"] for row in report.table.to_pylist()] == ["[0, 1, 2]", "[3, 4, 5]"]


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "100", 10**9])
def test_a_clock_that_cannot_be_is_a_plan_error(given: Any, tmp_path: Path) -> None:
    with pytest.raises(flux.PlanError, match="clock_ms is a whole number of milliseconds from 1"):
        flux.Dataflow("wrong").source(Gated(tmp_path), clock_ms=given)


def test_a_clock_is_there_before_the_first_row_and_never_goes_back() -> None:
    class Readings(flux.Operator):
        output = {"clock": "int64"}  # noqa: RUF012

        def __init__(self) -> None:
            self.last = 0

        def process(self, batch: flux.Batch) -> Any:
            return batch.emit({"clock": [self.last] * len(batch)})

        def on_punctuation(self, p: flux.Punctuation) -> None:
            if p.kind == "clock":
                assert p.value is not None and p.value >= self.last
                self.last = p.value

    flow = flux.Dataflow("readings")
    rows = flow.source(flux.sources.Table([{"n": n} for n in range(200)], rate=400, batch_rows=5), clock_ms=20)
    rows.exchange("n", partitions=1).apply(Readings).sink(flux.sinks.Collect())
    before_ms = int(datetime.now(UTC).timestamp() * 1_000)
    clocks = flow.run(sites=1, availability="none").table.column("clock").to_pylist()
    assert clocks == sorted(clocks) and clocks[0] >= before_ms and len(set(clocks)) > 3
