"""A source that gives Flux the micro-batches of a trace: the rows, boundaries, clocks and watermarks that Spark had."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pyarrow as pa
import trio
from traces import INPUT, MicroBatch

import flux
from flux.sources import Source, SourceBatch, SourceContext


class Replayed(Source):
    """The rows of a trace. Its offsets are steps: two for each micro-batch, its rows and its boundary.

    A watermark that Spark had in a micro-batch was known at the end of the one before.
    """

    replays = True
    schema = INPUT

    def __init__(self, trace: Sequence[MicroBatch], pause_s: float = 0) -> None:
        self._trace = trace
        self._pause_s = pause_s

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        for step in range(after or 0, 2 * len(self._trace)):
            batch = self._trace[step // 2]
            if step % 2 == 0:
                yield SourceBatch(rows_of(batch), offset=step + 1)
                continue
            coming = self._trace[step // 2 + 1].watermark_ms if step // 2 + 1 < len(self._trace) else None
            watermark = () if coming is None else (("watermark", coming),)
            punctuations = (*watermark, ("clock", batch.clock_ms), ("batch", step // 2))
            yield SourceBatch(empty(), offset=step + 1, punctuations=punctuations)
            if self._pause_s:
                await trio.sleep(self._pause_s)


def empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], INPUT)


def rows_of(batch: MicroBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(INPUT.names, row, strict=True)) for row in batch.rows], INPUT)


def outputs(operators: Sequence[Any], keys: Sequence[str], trace: Sequence[MicroBatch]) -> list[tuple[Any, ...]]:
    """What Flux makes of the trace with these operators, one after the other, with pairs on two sites."""
    flow = flux.Dataflow("replayed")
    stream = flow.source(Replayed(trace))
    for operator in operators:
        stream = stream.exchange(*keys, partitions=4).apply(operator)
    stream.sink(flux.sinks.Collect())
    table = flow.run(sites=2).table
    return [tuple(row.values()) for row in table.to_pylist()]
