"""Intake: one source at the ingress: where it stands, and its rows in the counts the ingress asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...sources import Source, SourceBatch, SourceContext
from ...sources.source import check_given
from ...types.errors import FluxError
from .batch_slicer import BatchSlicer
from .sequence_journal import SequenceJournal, Span


class SourceInput:
    """Source number `number` of a flow, which may write to `directory`; `is_again` if an ingress had it before."""

    def __init__(self, number: int, source: Source, directory: Path, is_again: bool) -> None:
        self.number = number
        self.source = source
        self.name = type(source).__name__
        self._directory = directory
        self._is_again = is_again
        # Where the source stands: an offset that it gave, and a number of rows behind it.
        self.offset: tuple[Any, int] = (None, 0)
        self._taking: BatchSlicer | None = None

    @property
    def taking(self) -> BatchSlicer:
        """Its rows, once it is open."""
        assert self._taking is not None
        return self._taking

    def take_from(self, batches: AsyncIterator[SourceBatch]) -> BatchSlicer:
        """From now on its rows are those of `batches`."""
        self._taking = BatchSlicer(batches)
        return self._taking

    def batches(self) -> AsyncIterator[SourceBatch]:
        """The source from where it is to go on."""
        if self._is_again and self.source.replays is None:
            raise FluxError(
                f"the ingress died, and source {self.name} does not say how another one is to go on: whether `batches` "
                "can begin behind an offset (replays = True) or gives only what is new (replays = False)"
            )
        self._directory.mkdir(exist_ok=True)
        context = SourceContext(self._directory)
        offset, _ = self.offset
        if self.source.replays and offset is not None:
            return self.source.batches(context, offset)
        return self.source.batches(context)

    async def next(self, most: int | None) -> SourceBatch | None:
        """The next rows, at most so many, with the source's place behind them noted; None at its end."""
        batch = await self.taking.next(most)
        if batch is None or not batch.rows.num_rows:
            return batch
        check_given(self.source, batch.rows)
        if self.source.replays and batch.offset is None and not self.taking.is_within_batch:
            raise FluxError(
                f"source {self.name} says that it replays, and gave a batch without an offset; "
                "give SourceBatch(rows, offset=...), or say replays = False"
            )
        offset, behind = self.offset
        within = self.taking.is_within_batch
        self.offset = (offset, behind + batch.rows.num_rows) if within else (batch.offset, 0)
        return batch

    # What an ingress numbered before.

    async def skip(self, count: int) -> None:
        """Rows that all copies have."""
        _, behind = self.offset
        skipped = await self.taking.take(behind + count)
        self._expect(skipped, behind + count, "rows that were received")
        for piece in skipped:
            if piece.received is not None:
                piece.received()

    async def take(self, count: int, which: str) -> list[SourceBatch]:
        """Rows that were given before: there must be as many."""
        pieces = await self.taking.take(count)
        self._expect(pieces, count, which)
        return pieces

    def stand(self, numbering: SequenceJournal) -> None:
        """Stand where the last row was numbered."""
        if self.number in numbering.offsets:
            self.offset = tuple(numbering.offsets[self.number])

    def kept(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """The rows, if the journal is to keep them because the source cannot give them again."""
        return rows if self.source.replays is False else None

    def _expect(self, pieces: list[SourceBatch], expected: int, which: str) -> None:
        came = sum(piece.rows.num_rows for piece in pieces)
        if came != expected:
            raise FluxError(
                f"the ingress was started again, and source {self.name} gave only {came:,} of the {expected:,} rows "
                f"that it had given before ({which}). What it reads was cut or replaced meanwhile; it must be the same "
                "when it is read again. Run the flow anew"
            )

    def differs(self, span: Span) -> FluxError:
        """What to raise when rows that were given before look otherwise now."""
        return FluxError(
            f"the ingress was started again, and source {self.name} gave other rows than before for the numbers "
            f"{span.after + 1:,} to {span.upto:,}. What it reads was changed meanwhile, or is made anew each time; it "
            "must be the same when it is read again. Run the flow anew"
        )
