"""Batch coalescer: a source's batches, small ones concatenated while other rows are in flight."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Self

import pyarrow as pa
import trio

from ...sources import SourceBatch
from ...sources.source import check_batch
from ...types.errors import RAISED
from .admission import Admission
from .batch_slicer import BatchSlicer


class BatchCoalescer:
    """The batches of a source, read by `read`, in pieces of the admission's size."""

    def __init__(self, batches: AsyncIterator[SourceBatch], admission: Admission) -> None:
        self._batches = batches
        self._admission = admission
        self._send_channel, self._receive_channel = trio.open_memory_channel[SourceBatch | BaseException](1)
        self._rest: SourceBatch | BaseException | None = None  # What was read after the last piece and did not fit.
        self._reading = trio.CancelScope()

    async def read(self) -> None:
        """Read the source, in a task of its own: a source that is cancelled while it waits cannot go on."""
        with self._reading, self._send_channel:
            try:
                async with contextlib.aclosing(BatchSlicer(self._batches)):  # It closes a source that can be closed.
                    async for batch in self._batches:
                        await self._send_channel.send(check_batch(batch))
            except RAISED as error:
                await self._send_channel.send(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SourceBatch:
        """Return the next piece. With rows in flight it may wait a little for more rows, else it does not."""
        first = await self._next()
        if isinstance(first, BaseException):
            raise first
        if first.punctuations:
            return first  # Rows before and after a punctuation are not concatenated.
        batches, rows = [first], first.rows.num_rows
        wait_until = trio.current_time() + self._admission.linger_s
        while rows < self._admission.piece_rows and not self._admission.is_idle:
            try:
                with trio.fail_at(wait_until):
                    more = await self._next()
            except (trio.TooSlowError, StopAsyncIteration):
                break
            if (
                isinstance(more, BaseException)
                or more.punctuations
                or rows + more.rows.num_rows > self._admission.piece_rows
            ):
                self._rest = more
                break
            batches.append(more)
            rows += more.rows.num_rows
        return _concat(batches)

    async def aclose(self) -> None:
        """Stop reading the source."""
        self._reading.cancel()

    async def _next(self) -> SourceBatch | BaseException:
        if self._rest is not None:
            rest, self._rest = self._rest, None
            return rest
        try:
            return await self._receive_channel.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None


def _concat(batches: list[SourceBatch]) -> SourceBatch:
    """Return one batch of several; its offset is that of the last."""
    if len(batches) == 1:
        return batches[0]
    received = [batch.received for batch in batches if batch.received is not None]

    def receive_all() -> None:
        for each in received:
            each()

    rows = pa.concat_batches([batch.rows for batch in batches])
    return SourceBatch(rows, receive_all if received else None, batches[-1].offset)
