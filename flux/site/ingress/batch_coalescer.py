"""Gathering: a source's batches, small ones put together while other rows are under way."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Self

import pyarrow as pa
import trio

from ...sources import SourceBatch
from .admission import Admission
from .batch_slicer import BatchSlicer


class BatchCoalescer:
    """The batches of a source, as `read` gets them, in pieces of a size that the admission says."""

    def __init__(self, batches: AsyncIterator[SourceBatch], admission: Admission) -> None:
        self._batches = batches
        self._admission = admission
        self._give, self._came = trio.open_memory_channel[SourceBatch | Exception](1)
        self._rest: SourceBatch | Exception | None = None  # What came behind the last piece and did not fit.
        self._reading = trio.CancelScope()

    async def read(self) -> None:
        """A task of its own, because a source that is interrupted while it waits cannot go on."""
        with self._reading, self._give:
            try:
                async with contextlib.aclosing(BatchSlicer(self._batches)) as taking:
                    while (batch := await taking.next()) is not None:
                        await self._give.send(batch)
            except Exception as error:
                await self._give.send(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SourceBatch:
        """The next piece; with rows under way it may wait a little for more rows, without them it does not."""
        first = await self._next()
        if isinstance(first, Exception):
            raise first
        if first.punctuations:
            return first  # Rows before and behind a mark are not put together.
        gathered, rows = [first], first.rows.num_rows
        wait_until = trio.current_time() + self._admission.linger_s
        while rows < self._admission.piece_rows and not self._admission.is_idle:
            try:
                with trio.fail_at(wait_until):
                    more = await self._next()
            except (trio.TooSlowError, StopAsyncIteration):
                break
            if (
                isinstance(more, Exception)
                or more.punctuations
                or rows + more.rows.num_rows > self._admission.piece_rows
            ):
                self._rest = more
                break
            gathered.append(more)
            rows += more.rows.num_rows
        return _together(gathered)

    async def aclose(self) -> None:
        """Let go of the source."""
        self._reading.cancel()

    async def _next(self) -> SourceBatch | Exception:
        if self._rest is not None:
            rest, self._rest = self._rest, None
            return rest
        try:
            return await self._came.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None


def _together(batches: list[SourceBatch]) -> SourceBatch:
    """One batch out of several; its offset is that behind the last."""
    if len(batches) == 1:
        return batches[0]
    received = [batch.received for batch in batches if batch.received is not None]

    def receive_all() -> None:
        for each in received:
            each()

    rows = pa.concat_batches([batch.rows for batch in batches])
    return SourceBatch(rows, receive_all if received else None, batches[-1].offset)
