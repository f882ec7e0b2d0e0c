"""`MicroBatches`: any source cut into micro-batches, as Spark's operators expect their input.

A `flux.spark.Stream` has Spark's own micro-batches. For any other source, a micro-batch ends after every n rows. Rows
are counted from the beginning of the stream, whatever the source's own batches are, so that all runs have the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...site.ingress.batch_slicer import BatchSlicer
from ...sources import Source, SourceBatch, SourceContext
from ...types.errors import PlanError
from .batch_times import BatchTimes, check_event_time, delay_of

__all__ = ["MicroBatches"]

BATCH_ROWS = 10_000


class MicroBatches(Source):
    """The rows of `source`, with a micro-batch boundary after every `rows` rows and at the end.

    `event_time` names a column of timestamps, dates or milliseconds; the watermark is its maximum minus `delay`.

        flow.source(flux.spark.MicroBatches(flux.sources.Files("log/"), rows=5_000, event_time="ts", delay="1 minute"))
    """

    def __init__(self, source: Source, rows: int = BATCH_ROWS, event_time: str | None = None, delay: Any = 0) -> None:
        if not isinstance(source, Source):
            raise PlanError(
                "flux.spark.MicroBatches: a source such as flux.sources.Table(data) was expected, "
                f"got a {type(source).__name__}"
            )
        if type(source).start is not Source.start:
            raise PlanError(
                f"flux.spark.MicroBatches: {type(source).__name__} starts in the program that started the run, as "
                "flux.spark.Stream does, which has its own micro-batches: pass it to flow.source directly"
            )
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise PlanError(
                f"flux.spark.MicroBatches: rows must be at least 1, the size of a micro-batch; got {rows!r}"
            )
        self.schema = source.schema
        self.replays, self.is_endless = source.replays, source.is_endless
        self._source = source
        self._rows = rows
        self._event_time = event_time
        self._delay_ms = delay_of(delay)
        if event_time is not None:
            check_event_time(self.schema, event_time, "flux.spark.MicroBatches")

    def expect(self, flow: str, stateful_steps: Sequence[str]) -> None:
        self._source.expect(flow, stateful_steps)

    def bind(self, directory: Path) -> None:
        self._source.bind(directory)

    def release(self) -> None:
        self._source.release()

    def stop(self) -> None:
        self._source.stop()

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        """Yield the rows after offset `after`: inner offset, rows since it, micro-batch, rows in that, and times."""
        inner, skipped, batch_id, filled, times = after if after is not None else (None, 0, 0, 0, None)
        batch_times = BatchTimes(self._event_time, self._delay_ms, times)
        empty = pa.RecordBatch.from_pylist([], self.schema)

        def offset() -> Any:
            return [inner, skipped, batch_id, filled, batch_times.plain] if self.replays else None

        batches = self._source.batches(context) if inner is None else self._source.batches(context, inner)
        async with contextlib.aclosing(BatchSlicer(batches)) as slicer:
            await slicer.take(skipped)
            while True:
                if filled == self._rows:
                    punctuations = batch_times.punctuations(batch_id)
                    batch_id, filled = batch_id + 1, 0
                    yield SourceBatch(empty, offset=offset(), punctuations=punctuations)
                batch = await slicer.next(self._rows - filled)
                if batch is None:
                    break
                batch_times.observe(batch.rows)
                filled += batch.rows.num_rows
                inner, skipped = (inner, skipped + batch.rows.num_rows) if slicer.is_within_batch else (batch.offset, 0)
                yield SourceBatch(batch.rows, batch.received, offset())
        if filled:
            punctuations = batch_times.punctuations(batch_id)
            batch_id, filled = batch_id + 1, 0
            yield SourceBatch(empty, offset=offset(), punctuations=punctuations)
