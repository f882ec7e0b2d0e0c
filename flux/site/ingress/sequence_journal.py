"""Numbering: the ingress's journal of which rows got which numbers, so that the same rows get the same numbers again.

Before rows are sent, their range of sequence numbers is written down with the source's offset behind them, and so is
each punctuation, by itself or among rows. An ingress that takes another's place opens the journal and gives again, in
the same ranges, all that not every copy is known to have: from the source, if that can go back to an offset. Of one
that cannot, the journal keeps the rows themselves until they are released.

Departure: a source that cannot replay loses nothing that was numbered. To give such a range empty would be right
only if no copy had received it, and an ingress that begins cannot know: copies that saw different rows under the same
numbers would differ for ever. What its process had read and not numbered yet is lost.

Rows that are shed get no number. Where the source stood behind them is written down all the same, and how many they
were: one that is read again gives them again, and they are left out once more.

A flow may have several sources, whose rows are numbered as they come: each range says of which source its rows are, so
that they are taken from the same ones again in the same order.

What is released is not needed any more; the file is shortened when most of it is that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...storage.journal import Journal
from ...wire.batches import batch_bytes
from .watermarks import NumberedWatermarks, number_watermarks

__all__ = ["Replay", "SequenceJournal", "Span"]

# Below this the file is left alone; above it, it is shortened when at least half of it is released.
SHORTEN_AT_BYTES = 4 << 20

_BASE, _ROWS, _MARK, _SHED, _RELEASED = "base", "rows", "mark", "shed", "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What was numbered (after, upto] at once: rows of one `source`, or the punctuation `mark` with its `value`.

    `offset` is where the source stands behind it. `digest` tells rows from others, as far as their partitions differ;
    None if it is not known. `punctuations` are the watermarks among rows, and `reached` is how far event time has come
    with them. `kept` holds the rows of a source that cannot replay. A span without numbers says that so many rows were
    `shed` there.
    """

    after: int
    upto: int
    offset: Any
    when: float
    digest: int | None = None
    mark: str | None = None
    value: int | None = None
    kept: bytes | None = None
    shed: int = 0
    source: int = 0
    punctuations: NumberedWatermarks = ()
    reached: int | None = None

    @property
    def rows(self) -> int:
        """How many rows have their numbers here."""
        return 0 if self.mark is not None else self.upto - self.after - len(self.punctuations)

    @property
    def is_of_its_source(self) -> bool:
        """Whether it was the source that gave it: a punctuation may be the ingress's own."""
        return self.mark is None or self.offset is not None

    def numbers(self) -> npt.NDArray[np.int64]:
        """The numbers of the rows."""
        return number_watermarks(self.after, self.rows, self.punctuations)

    def behind(self, position: int) -> Span:
        """The part of it behind `position`."""
        if position <= self.after:
            return self
        punctuations = tuple(mark for mark in self.punctuations if mark[0] > position)
        return replace(self, after=position, digest=None, punctuations=punctuations)

    def kept_rows(self) -> pa.RecordBatch:
        """The rows that were kept."""
        assert self.kept is not None
        with pa.ipc.open_stream(pa.py_buffer(self.kept)) as reader:
            rows = reader.read_next_batch()
        return rows.slice(rows.num_rows - self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What an ingress gives again: from each source's offset on, behind so many rows of it, the `spans` in order."""

    offsets: dict[int, Any]
    skip_rows: dict[int, int]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class _Live:
    """A span that is not wholly released: where it ends, and where its record begins in the file."""

    upto: int
    source: int | None  # None for a punctuation of the ingress itself.
    offset: Any
    rows: int
    shed: int
    reached: int | None
    position: int


class SequenceJournal:
    """The numbers given so far, up to `upto`; every copy has what is up to `released`. Made by `open`.

    `rows` counts those that have numbers, which punctuations have too; `shed` the rows that were left out. `reached` is
    how far the event time of each source has come.
    """

    def __init__(self, journal: Journal) -> None:
        self.released = 0
        self.upto = 0
        self.offsets: dict[int, Any] = {}  # Where each source stands that has given rows.
        self.ended = False
        self.rows = 0
        self.shed = 0
        self.reached: dict[int, int] = {}  # How far event time has come in each source that tells it.
        self.replay = Replay(offsets={}, skip_rows={}, spans=())
        self._journal = journal
        # Behind what is wholly released: position, offsets, rows and rows shed up to there, and how far event time had
        # come; then the spans behind it.
        self._base: tuple[int, dict[int, Any], int, int, dict[int, int]] = (0, {}, 0, 0, {})
        self._live: deque[_Live] = deque()

    @classmethod
    def open(cls, path: Path, *, fsync: bool = False) -> SequenceJournal:
        """Open the journal at `path`, or begin it; `replay` is what is to be given again.

        It survives the death of the process; of the machine only with `fsync`.
        """
        journal, records = Journal.open(path, fsync=fsync)
        numbering = cls(journal)
        spans: deque[Span] = deque()
        for record in records:
            kind, *fields = msgpack.unpackb(record.content)
            if kind in (_ROWS, _MARK, _SHED):
                spans.append(_span(kind, fields))
                numbering._add(spans[-1], record.position)
            else:
                numbering._note(kind, fields)
            while spans and spans[0].upto <= numbering.released:
                spans.popleft()
        numbering.replay = numbering._replay(spans)
        return numbering

    def number(
        self,
        upto: int,
        offset: Any,
        *,
        when: float,
        digest: int | None = None,
        kept: pa.RecordBatch | None = None,
        source: int = 0,
        punctuations: NumberedWatermarks = (),
        reached: int | None = None,
    ) -> None:
        """Write down that the next rows, of `source`, and the watermarks among them, have the numbers up to `upto`.

        Do it before they are sent.
        """
        body = None if kept is None else batch_bytes(kept)
        span = Span(after=self.upto, upto=upto, offset=offset, when=when, digest=digest, kept=body, source=source)
        self._write(replace(span, punctuations=punctuations, reached=reached))

    def mark(self, kind: str, value: int | None = None, *, when: float, source: int = 0, offset: Any = None) -> int:
        """Write down a punctuation; it takes one number, which is returned.

        `offset` is where `source` stands behind it, if it is the source's own.
        """
        span = Span(
            after=self.upto, upto=self.upto + 1, offset=offset, when=when, mark=kind, value=value, source=source
        )
        self._write(span)
        return self.upto

    def leave_out(self, count: int, offset: Any, *, when: float, source: int = 0) -> None:
        """Write down that the next `count` rows of the source were shed."""
        self._write(Span(after=self.upto, upto=self.upto, offset=offset, when=when, shed=count, source=source))

    def release(self, upto: int, *, at_once: bool = False) -> None:
        """Note that every copy has what is up to `upto`.

        It is written when a whole span is released by it, or `at_once`: a source that is told so forgets the rows.
        """
        self.released = max(self.released, upto)
        whole = self._forget()
        if whole or at_once:
            self._journal.append(msgpack.packb([_RELEASED, self.released]))
        if whole and self._journal.size > SHORTEN_AT_BYTES:
            self._shorten()

    def close(self) -> None:
        """Let go of the file."""
        self._journal.close()

    def _write(self, span: Span) -> None:
        shared = [span.after, span.upto, span.offset, span.when]
        if span.shed:
            record = [_SHED, *shared, span.source, span.shed]
        elif span.mark is None:
            record = [_ROWS, *shared, span.source, span.digest, span.kept, span.punctuations, span.reached]
        else:
            record = [_MARK, *shared, span.source, span.mark, span.value]
        self._add(span, self._journal.append(msgpack.packb(record)))

    def _add(self, span: Span, position: int) -> None:
        assert span.after == self.upto < span.upto + span.shed, f"{span} does not follow {self.upto}"
        self.upto = span.upto
        if span.is_of_its_source:
            self.offsets[span.source] = span.offset
        self.ended = self.ended or span.mark == "end"
        self.rows += span.rows
        self.shed += span.shed
        source = span.source if span.is_of_its_source else None
        if span.reached is not None:
            self.reached[span.source] = span.reached
        self._live.append(_Live(span.upto, source, span.offset, span.rows, span.shed, span.reached, position))
        if span.shed:
            self._forget()  # Nobody releases it: if all before it is released, it is.

    def _note(self, kind: str, fields: list[Any]) -> None:
        if kind == _BASE:
            self.upto, offsets, self.ended, self.rows, self.shed, reached = fields
            self.offsets, self.reached = dict(offsets), dict(reached)
            self._base = self.upto, dict(offsets), self.rows, self.shed, dict(reached)
        else:
            assert kind == _RELEASED, f"a record of kind {kind!r} in the numbering"
            # What stood before the file was shortened may come behind what was written then.
            self.released = max(self.released, fields[0])
            self._forget()

    def _forget(self) -> bool:
        """Drop the spans that are wholly released; whether there were any."""
        forgotten = False
        while self._live and self._live[0].upto <= self.released:
            span = self._live.popleft()
            _, offsets, rows, shed, reached = self._base
            if span.source is not None:
                offsets[span.source] = span.offset
                if span.reached is not None:
                    reached[span.source] = span.reached
            self._base = span.upto, offsets, rows + span.rows, shed + span.shed, reached
            forgotten = True
        return forgotten

    def _replay(self, spans: deque[Span]) -> Replay:
        behind = tuple(span.behind(self.released) for span in spans)
        return Replay(
            offsets=dict(self._base[1]),
            skip_rows={spans[0].source: spans[0].rows - behind[0].rows} if spans else {},
            spans=behind,
        )

    def _shorten(self) -> None:
        keep_from = self._live[0].position if self._live else self._journal.size
        if self._journal.size - keep_from > self._journal.size // 2:
            return
        ended = self.ended and not self._live
        upto, offsets, rows, shed, reached = self._base
        base = [_BASE, upto, list(offsets.items()), ended, rows, shed, list(reached.items())]
        first = (msgpack.packb(base), msgpack.packb([_RELEASED, self.released]))
        forward = self._journal.shorten(first, keep_from)
        self._live = deque(replace(span, position=span.position - forward) for span in self._live)


def _span(kind: str, fields: list[Any]) -> Span:
    after, upto, offset, when, source, *rest = fields
    if kind == _MARK:
        mark, value = rest
        return Span(after=after, upto=upto, offset=offset, when=when, mark=mark, value=value, source=source)
    if kind == _SHED:
        return Span(after=after, upto=upto, offset=offset, when=when, shed=rest[0], source=source)
    digest, kept, plain, reached = rest
    punctuations = tuple((sn, value) for sn, value in plain)
    span = Span(after=after, upto=upto, offset=offset, when=when, digest=digest, kept=kept, source=source)
    return replace(span, punctuations=punctuations, reached=reached)
