"""Batches of a source with rows and punctuations: the punctuations come after the rows, also after a restart."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

import flux
from flux.site.ingress.batch_slicer import BatchSlicer
from flux.sources import Source, SourceBatch, SourceContext
from flux.types.errors import FluxError

BATCHES, ROWS = 40, 5


class Punctuated(Source):
    """Batches of rows, each with a punctuation after it."""

    schema = pa.schema({"n": pa.int64()})
    replays = True
    is_endless = False

    def __init__(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        for batch in range(after or 0, BATCHES):
            await trio.sleep(self.pause_s)
            rows = pa.record_batch({"n": pa.array(range(ROWS * batch, ROWS * (batch + 1)), pa.int64())})
            yield SourceBatch(rows, offset=batch + 1, punctuations=(("batch", batch),))


class Sums(flux.Operator):
    """The sum of the rows since the last punctuation."""

    output = {"closed": "int64", "total": "int64"}

    def __init__(self) -> None:
        self.total = 0

    def process(self, batch: Any) -> None:
        self.total += int(batch["n"].sum())

    def on_punctuation(self, p: Any) -> Any:
        if p.kind != "batch":
            return None
        total, self.total = self.total, 0
        return {"closed": [p.value], "total": [total]}

    def get_state(self) -> int:
        return self.total

    def install_state(self, state: int) -> None:
        self.total = state


def test_a_slicer_gives_the_rows_and_then_the_punctuations() -> None:
    async def main() -> None:
        batches: Any = Punctuated().batches(SourceContext(Path("unused")))
        slicer = BatchSlicer(batches)
        first, rest, marks = [await slicer.next(most) for most in (3, 3, 3)]
        assert first is not None and rest is not None and marks is not None
        assert [piece.rows.num_rows for piece in (first, rest, marks)] == [3, 2, 0]
        assert [piece.offset for piece in (first, rest, marks)] == [None, None, 1]
        assert [piece.punctuations for piece in (first, rest, marks)] == [(), (), (("batch", 0),)]
        await slicer.aclose()

    trio.run(main)


def test_an_unknown_punctuation_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(FluxError, match=r"a punctuation of a source is .*'watermark'.*; got 'closed'"):
        SourceBatch(pa.record_batch({"n": [1]}), punctuations=(("closed", 1),))


@pytest.mark.parametrize("max_latency_ms", [None, 50])
@pytest.mark.parametrize("kills", [0, 3])
def test_punctuations_come_after_the_rows_of_their_batch(kills: int, max_latency_ms: float | None) -> None:
    flow = flux.Dataflow("punctuated")
    rows = flow.source(Punctuated(pause_s=0.02 if kills else 0.0))
    rows.map(lambda row: {"k": 0, "n": row.n}, output={"k": "int64", "n": "int64"}).exchange("k", partitions=1).apply(
        Sums
    ).sink(flux.sinks.Collect())
    with flow.start(max_latency_ms=max_latency_ms) as run:
        for nth in range(kills):
            run.wait_for_output(3 + 10 * nth)
            run.kill("ingress")
        table = run.wait(timeout=60).table
    sums = [sum(range(ROWS * batch, ROWS * (batch + 1))) for batch in range(BATCHES)]
    assert table.to_pylist() == [{"closed": batch, "total": total} for batch, total in enumerate(sums)]
