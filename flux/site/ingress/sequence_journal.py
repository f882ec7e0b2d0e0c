"""Sequence journal: the sequence numbers that the ingress gave to rows, so that a replay gives them the same numbers.

Before rows are sent, their range of sequence numbers is written with the source's offset after them, and so is each
punctuation, by itself or among rows. An ingress that is restarted opens the journal and replays, in the same ranges,
all that not every copy is known to have: from the source, if that can go back to an offset. For a source that cannot,
the journal keeps the rows themselves until they are released.

Departure: a source that cannot replay loses nothing that was numbered. To replay such a range empty would be right only
if no copy had received it, and a restarted ingress cannot know that, because copies that got different rows under the
same numbers would differ for ever. What the last process had read and not numbered is lost.

Rows that are shed get no number. The source's offset after them and their count are written all the same: a source that
replays gives them again, and they are dropped again.

A flow may have several sources, whose rows are numbered as they arrive. Each range names its source, so that a replay
reads the sources in the same order.

What is released is not needed any more; the file is shortened when most of it is released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...storage.journal import Journal, reading
from ...wire.batches import batch_bytes
from .watermarks import NumberedWatermarks, number_watermarks

__all__ = ["Replay", "SequenceJournal", "Span"]

# Below this the file is left alone; above it, it is shortened when at least half of it is released.
SHORTEN_AT_BYTES = 4 << 20

_BASE, _ROWS, _MARK, _SHED, _RELEASED = "base", "rows", "mark", "shed", "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What was numbered (after, upto] at once: rows of one `source`, or the punctuation `mark` with its `value`.

    `offset` is the source's position after it. `digest` is a checksum of the rows' partitions; None if it is not known.
    `punctuations` are the watermarks among rows, and `reached` is the event time that the source has reached with them.
    `kept` holds the rows of a source that cannot replay. A span without numbers has the count of rows `shed` there.
    `watermarks_before` counts those that were cut off with the part before `after`. `idle` are the sources that were
    declared idle with a punctuation of the ingress.
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
    watermarks_before: int = 0
    idle: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows in the span."""
        return 0 if self.mark is not None else self.upto - self.after - len(self.punctuations)

    @property
    def is_of_its_source(self) -> bool:
        """Whether the source gave it: a punctuation may be the ingress's own."""
        return self.mark is None or self.offset is not None

    def numbers(self) -> npt.NDArray[np.int64]:
        """Return the sequence numbers of the rows."""
        return number_watermarks(self.after, self.rows, self.punctuations)

    @property
    def first_unmarked(self) -> int:
        """The number of its first row where the watermarks of the whole span are not counted."""
        return self.after + 1 - self.watermarks_before

    def slice_after(self, position: int) -> Span:
        """Return the part of it after `position`."""
        if position <= self.after:
            return self
        punctuations = tuple(mark for mark in self.punctuations if mark[0] > position)
        before = len(self.punctuations) - len(punctuations)
        return replace(self, after=position, digest=None, punctuations=punctuations, watermarks_before=before)

    def kept_rows(self) -> pa.RecordBatch:
        """Return the rows that were kept."""
        assert self.kept is not None
        with pa.ipc.open_stream(pa.py_buffer(self.kept)) as reader:
            rows = reader.read_next_batch()
        return rows.slice(rows.num_rows - self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What an ingress replays: the `spans` in order, from each source's offset on, after `skip_rows` of its rows."""

    offsets: dict[int, Any]
    skip_rows: dict[int, int]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class _Live:
    """A span that is not wholly released, and the position of its record in the file."""

    upto: int
    source: int | None  # None for a punctuation of the ingress itself.
    offset: Any
    rows: int
    shed: int
    reached: int | None
    position: int


class SequenceJournal:
    """The numbers given up to `upto`; every copy has what is up to `released`. Made by `open`.

    `rows` counts the rows with numbers, which punctuations have too; `shed` those that were shed. `reached` is the
    event time that each source has reached.
    """

    def __init__(self, journal: Journal) -> None:
        self.released = 0
        self.upto = 0
        self.offsets: dict[int, Any] = {}  # The position of each source that has given rows.
        self.ended = False
        self.rows = 0
        self.shed = 0
        self.reached: dict[int, int] = {}  # Of each source with event time.
        self.watermark: int | None = None  # The last one that the ingress set.
        self.idle: set[int] = set()  # The sources that were declared idle, and gave no rows since.
        self.replay = Replay(offsets={}, skip_rows={}, spans=())
        self._journal = journal
        # After what is wholly released: position, offsets, rows and rows shed up to there, and the event times reached;
        # then the spans after it.
        self._base: tuple[int, dict[int, Any], int, int, dict[int, int]] = (0, {}, 0, 0, {})
        self._live: deque[_Live] = deque()

    @classmethod
    def open(cls, path: Path, *, fsync: bool = False) -> SequenceJournal:
        """Open the journal at `path`, or begin it; `replay` is what is to be replayed.

        It survives the death of the process; of the machine only with `fsync`.
        """
        journal, records = Journal.open(path, fsync=fsync)
        opened = cls(journal)
        spans: deque[Span] = deque()
        for record in records:
            with reading(path, record):
                kind, *fields = msgpack.unpackb(record.content)
                if kind in (_ROWS, _MARK, _SHED):
                    spans.append(_span(kind, fields))
                    opened._add(spans[-1], record.position)
                else:
                    opened._note(kind, fields)
            while spans and spans[0].upto <= opened.released:
                spans.popleft()
        opened._forget()  # In a journal that had lost its end, what was released may stand before its numbers.
        opened.replay = opened._replay(spans)
        return opened

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
        """Write that the next rows, of `source`, and the watermarks among them, have the numbers up to `upto`.

        Call it before they are sent.
        """
        body = None if kept is None else batch_bytes(kept)
        span = Span(after=self.upto, upto=upto, offset=offset, when=when, digest=digest, kept=body, source=source)
        self._write(replace(span, punctuations=punctuations, reached=reached))

    def mark(
        self,
        kind: str,
        value: int | None = None,
        *,
        when: float,
        source: int = 0,
        offset: Any = None,
        idle: Iterable[int] = (),
    ) -> int:
        """Write a punctuation; it takes one number, which is returned.

        `offset` is the position of `source` after it, if it is the source's own. The sources `idle` are idle with it.
        """
        span = Span(after=self.upto, upto=self.upto + 1, offset=offset, when=when, mark=kind, value=value)
        self._write(replace(span, source=source, idle=tuple(sorted(idle))))
        return self.upto

    def leave_out(self, count: int, offset: Any, *, when: float, source: int = 0) -> None:
        """Write that the next `count` rows of the source were shed."""
        self._write(Span(after=self.upto, upto=self.upto, offset=offset, when=when, shed=count, source=source))

    def release(self, upto: int, *, at_once: bool = False) -> None:
        """Note that every copy has what is up to `upto`.

        It is written when a whole span is released by it, or `at_once`: before a call that lets the source drop rows.
        """
        self.released = max(self.released, upto)
        whole = self._forget()
        if whole or at_once:
            self._journal.append(msgpack.packb([_RELEASED, self.released]))
        if whole and self._journal.size > SHORTEN_AT_BYTES:
            self._shorten()

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    def _write(self, span: Span) -> None:
        shared = [span.after, span.upto, span.offset, span.when]
        if span.shed:
            record = [_SHED, *shared, span.source, span.shed]
        elif span.mark is None:
            record = [_ROWS, *shared, span.source, span.digest, span.kept, span.punctuations, span.reached]
        else:
            record = [_MARK, *shared, span.source, span.mark, span.value, span.idle]
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
        self._note_watermark(span)
        self._live.append(_Live(span.upto, source, span.offset, span.rows, span.shed, span.reached, position))
        if span.shed:
            self._forget()  # It has no numbers: it is released with what is before it.

    def _note_watermark(self, span: Span) -> None:
        if span.mark is None:
            self.watermark = span.punctuations[-1][1] if span.punctuations else self.watermark
            self.idle.discard(span.source)
        elif span.mark == "watermark" and not span.is_of_its_source:
            self.watermark = span.value
            self.idle.update(span.idle)

    def _note(self, kind: str, fields: list[Any]) -> None:
        if kind == _BASE:
            self.upto, offsets, self.ended, self.rows, self.shed, reached, self.watermark, idle = fields
            self.idle = set(idle)
            self.offsets, self.reached = dict(offsets), dict(reached)
            self._base = self.upto, dict(offsets), self.rows, self.shed, dict(reached)
        else:
            assert kind == _RELEASED, f"a record of kind {kind!r} in the sequence journal"
            # A record from before the file was shortened may follow what was written then.
            self.released = max(self.released, fields[0])
            self._forget()

    def _forget(self) -> bool:
        """Drop the spans that are wholly released; return whether there were any."""
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
        unreleased = tuple(span.slice_after(self.released) for span in spans)
        return Replay(
            offsets=dict(self._base[1]),
            skip_rows={spans[0].source: spans[0].rows - unreleased[0].rows} if spans else {},
            spans=unreleased,
        )

    def _shorten(self) -> None:
        keep_from = self._live[0].position if self._live else self._journal.size
        if self._journal.size - keep_from > self._journal.size // 2:
            return
        ended = self.ended and not self._live
        upto, offsets, rows, shed, reached = self._base
        # Watermark and idle sources are the present ones: a replay takes its watermarks from the spans.
        time = [list(reached.items()), self.watermark, sorted(self.idle)]
        base = [_BASE, upto, list(offsets.items()), ended, rows, shed, *time]
        first = (msgpack.packb(base), msgpack.packb([_RELEASED, self.released]))
        forward = self._journal.shorten(first, keep_from)
        self._live = deque(replace(span, position=span.position - forward) for span in self._live)


def _span(kind: str, fields: list[Any]) -> Span:
    after, upto, offset, when, source, *rest = fields
    if kind == _MARK:
        mark, value, idle = rest
        span = Span(after=after, upto=upto, offset=offset, when=when, mark=mark, value=value, source=source)
        return replace(span, idle=tuple(idle))
    if kind == _SHED:
        return Span(after=after, upto=upto, offset=offset, when=when, shed=rest[0], source=source)
    digest, kept, plain, reached = rest
    punctuations = tuple((sn, value) for sn, value in plain)
    span = Span(after=after, upto=upto, offset=offset, when=when, digest=digest, kept=kept, source=source)
    return replace(span, punctuations=punctuations, reached=reached)
