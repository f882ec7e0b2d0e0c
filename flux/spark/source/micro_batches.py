"""`MicroBatches`: any source cut into micro-batches, as Spark's operators expect their input.

A `flux.spark.Stream` has Spark's micro-batches. Of another source one must say where they end: behind every n rows,
counted from the beginning, whatever the source's own batches are. So the same rows make the same micro-batches in each
run.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...site.ingress.batch_slicer import BatchSlicer
from ...sources import Source, SourceBatch, SourceContext
from ...types.errors import PlanError
from .batch_times import BatchTimes, check_event_time, delay_of

__all__ = ["MicroBatches"]

ROWS = 10_000


class MicroBatches(Source):
    """The rows of `source`, with the end of a micro-batch behind each `rows` of them and at the end.

    With `event_time`, a column of timestamps, dates or milliseconds, a watermark is `delay` behind the newest of them.

        flow.source(flux.spark.MicroBatches(flux.sources.Files("log/"), rows=5_000, event_time="ts", delay="1 minute"))
    """

    def __init__(self, source: Source, rows: int = ROWS, event_time: str | None = None, delay: Any = 0) -> None:
        if not isinstance(source, Source):
            raise PlanError(
                "flux.spark.MicroBatches: a source such as flux.sources.Table(data) was expected, "
                f"a {type(source).__name__} came"
            )
        if type(source).start is not Source.start:
            raise PlanError(
                f"flux.spark.MicroBatches: {type(source).__name__} begins in the program that started the run, as "
                "flux.spark.Stream does, which has micro-batches of its own: give it to flow.source as it is"
            )
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise PlanError(
                f"flux.spark.MicroBatches: rows is a number from 1, the size of a micro-batch; it is {rows!r}"
            )
        self.schema = source.schema
        self.replays, self.is_endless = source.replays, source.is_endless
        self._source = source
        self._rows = rows
        self._event_time = event_time
        self._delay_ms = delay_of(delay)
        if event_time is not None:
            check_event_time(self.schema, event_time, "flux.spark.MicroBatches")

    def bind(self, directory: Path) -> None:
        self._source.bind(directory)

    def release(self) -> None:
        self._source.release()

    def stop(self) -> None:
        self._source.stop()

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        """Yield the rows behind `after`: the inner offset, rows behind it, micro-batch, its rows so far, and times."""
        inner, behind, batch_id, filled, times = after if after is not None else (None, 0, 0, 0, None)
        known = BatchTimes(self._event_time, self._delay_ms, times)
        empty = pa.RecordBatch.from_pylist([], self.schema)

        def offset() -> Any:
            return [inner, behind, batch_id, filled, known.plain] if self.replays else None

        begun = self._source.batches(context) if inner is None else self._source.batches(context, inner)
        async with contextlib.aclosing(BatchSlicer(begun)) as taking:
            await taking.take(behind)
            while True:
                if filled == self._rows:
                    punctuations = known.punctuations(batch_id)
                    batch_id, filled = batch_id + 1, 0
                    yield SourceBatch(empty, offset=offset(), punctuations=punctuations)
                batch = await taking.next(self._rows - filled)
                if batch is None:
                    break
                known.see(batch.rows)
                filled += batch.rows.num_rows
                inner, behind = (inner, behind + batch.rows.num_rows) if taking.is_within_batch else (batch.offset, 0)
                yield SourceBatch(batch.rows, batch.received, offset())
        if filled:
            punctuations = known.punctuations(batch_id)
            batch_id, filled = batch_id + 1, 0
            yield SourceBatch(empty, offset=offset(), punctuations=punctuations)
