"""Batch slicer: a source's rows in the counts that the ingress asks for, whatever the sizes of the source's batches.

A source that is replayed may give batches of other sizes than the first time, but ranges that were numbered must hold
the same rows. A batch's `offset` and `received` go with its last row, or with its punctuations, which are a piece of
their own after the rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from ...sources import SourceBatch
from ...sources.source import check_batch


class BatchSlicer:
    """The rows of `batches`, from the first on."""

    def __init__(self, batches: AsyncIterator[SourceBatch]) -> None:
        self._batches = batches
        self._rest: SourceBatch | None = None  # Of a batch that was returned in part.

    async def next(self, most: int | None = None) -> SourceBatch | None:
        """Return the next piece, of at most so many rows; None at the end of the source. It may be empty."""
        batch = self._rest
        if batch is None:
            try:
                batch = check_batch(await anext(self._batches))
            except StopAsyncIteration:
                return None
        self._rest = None
        count = batch.rows.num_rows if most is None else min(most, batch.rows.num_rows)
        if count == batch.rows.num_rows and not (count and batch.punctuations):
            return batch
        self._rest = replace(batch, rows=batch.rows.slice(count))
        return SourceBatch(batch.rows.slice(0, count))

    @property
    def is_within_batch(self) -> bool:
        """Whether a batch was returned in part: the source has no offset for such a place."""
        return self._rest is not None

    async def take(self, count: int) -> list[SourceBatch]:
        """Return the pieces of the next `count` rows; fewer if the source ends before."""
        pieces = []
        while count and (piece := await self.next(count)) is not None:
            pieces.append(piece)
            count -= piece.rows.num_rows
        return pieces

    async def aclose(self) -> None:
        """Close the source: a generator is not to be left to the garbage collector."""
        close = getattr(self._batches, "aclose", None)
        if close is not None:
            await close()
