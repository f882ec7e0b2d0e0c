"""Source input: one source at the ingress, its offset, and its rows in the counts that the ingress asks for."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...sources import Source, SourceBatch, SourceContext
from ...sources.source import check_given
from ...system import filesystem
from ...types.errors import FluxError
from .batch_slicer import BatchSlicer
from .sequence_journal import SequenceJournal, Span


class SourceInput:
    """Source number `number` of a flow, which may write to `directory`; `is_again` if the ingress was restarted."""

    def __init__(self, number: int, source: Source, directory: Path, is_again: bool) -> None:
        self.number = number
        self.source = source
        self.name = type(source).__name__
        self._directory = directory
        self._is_again = is_again
        # The position: an offset that the source gave, and a number of rows after it.
        self.offset: tuple[Any, int] = (None, 0)
        self._slicer: BatchSlicer | None = None
        self.report_skipped: Callable[[int, int, str, str], None] | None = None  # Of the context; see there.
        self.has_ended = False
        self._waits_since: float | None = None  # None while rows that it gave wait to be numbered.

    @property
    def slicer(self) -> BatchSlicer:
        """The rows of the source, once it is open."""
        assert self._slicer is not None
        return self._slicer

    def take_from(self, batches: AsyncIterator[SourceBatch]) -> BatchSlicer:
        """Read the rows of `batches` from now on."""
        self._slicer = BatchSlicer(batches)
        return self._slicer

    def batches(self) -> AsyncIterator[SourceBatch]:
        """Open the source at the position where it resumes."""
        if self._is_again and self.source.replays is None:
            raise FluxError(
                f"the ingress died, and source {self.name} does not say how another one resumes: whether `batches` can "
                "begin after an offset (replays = True) or gives only what is new (replays = False)"
            )
        filesystem.make_directory(self._directory, 0o700)
        context = SourceContext(self._directory, self.report_skipped)
        offset, _ = self.offset
        if self.source.replays and offset is not None:
            return self.source.batches(context, offset)
        return self.source.batches(context)

    async def next(self, most: int | None) -> SourceBatch | None:
        """Return the next rows, at most so many, and note the position after them; None at the end."""
        self._waits_since = time.monotonic()
        batch = await self.slicer.next(most)
        self._waits_since, self.has_ended = None, batch is None
        if batch is None or not batch.rows.num_rows:
            return batch
        check_given(self.source, batch.rows)
        if self.source.replays and batch.offset is None and not self.slicer.is_within_batch:
            raise FluxError(
                f"source {self.name} says that it replays, and gave a batch without an offset; "
                "give SourceBatch(rows, offset=...), or say replays = False"
            )
        offset, rows_after = self.offset
        within = self.slicer.is_within_batch
        self.offset = (offset, rows_after + batch.rows.num_rows) if within else (batch.offset, 0)
        return batch

    def is_silent(self, now: float) -> bool:
        """Return whether it was asked for rows and has given none for its `idle_after_s`."""
        limit_s, since = self.source.idle_after_s, self._waits_since
        return limit_s is not None and since is not None and now - since >= limit_s

    # What an ingress numbered before.

    async def skip(self, count: int) -> None:
        """Skip rows that all copies have."""
        _, rows_after = self.offset
        skipped = await self.slicer.take(rows_after + count)
        self._expect(skipped, rows_after + count, "rows that were received")
        for piece in skipped:
            if piece.received is not None:
                piece.received()

    async def take(self, count: int, which: str) -> list[SourceBatch]:
        """Return rows that were given before: there must be as many."""
        pieces = await self.slicer.take(count)
        self._expect(pieces, count, which)
        return pieces

    def resume(self, journal: SequenceJournal) -> None:
        """Set the position to that after the last numbered row."""
        if self.number in journal.offsets:
            self.offset = tuple(journal.offsets[self.number])

    def kept(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the rows if the journal must keep them because the source cannot replay; else None."""
        return rows if self.source.replays is False else None

    def _expect(self, pieces: list[SourceBatch], expected: int, which: str) -> None:
        count = sum(piece.rows.num_rows for piece in pieces)
        if count != expected:
            raise FluxError(
                f"the ingress was started again, and source {self.name} gave only {count:,} of the {expected:,} rows "
                f"that it had given before ({which}). What it reads was cut or replaced meanwhile; it must be the same "
                "when it is read again. Run the flow anew"
            )

    def differs(self, span: Span) -> FluxError:
        """Return the error for rows that differ from those that were given before."""
        return FluxError(
            f"the ingress was started again, and source {self.name} gave other rows than before for the numbers "
            f"{span.after + 1:,} to {span.upto:,}. What it reads was changed meanwhile, or is made anew each time; it "
            "must be the same when it is read again. Run the flow anew"
        )
