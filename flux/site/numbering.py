"""Numbering: the ingress's journal of which rows got which numbers, so that the same rows get the same numbers again.

Before rows are sent, their range of sequence numbers is written down with the source's offset behind them, and so
is each punctuation. An ingress that takes another's place opens the journal and gives again, in the same ranges, all
that not every copy is known to have: from the source, if that can go back to an offset. Of a source that cannot, the
journal keeps the rows themselves until they are released.

Departure: a source that cannot replay loses nothing that was numbered. To give such a range empty would be right
only if no copy had received it, and an ingress that begins cannot know: copies that saw different rows under the same
numbers would differ for ever. What its process had read and not numbered yet is lost.

What is released is not needed any more; the file is shortened when most of it is that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa

from ..journal import Journal

__all__ = ["Numbering", "Replay", "Span"]

# Below this the file is left alone; above it, it is shortened when at least half of it is released.
SHORTEN_AT_BYTES = 4 << 20

_BASE, _ROWS, _MARK, _RELEASED = "base", "rows", "mark", "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What was numbered (after, upto] at once: rows, or the punctuation `mark` with its `value`.

    `offset` is where the source stands behind it. `digest` tells rows from others, as far as their
    partitions differ; None if it is not known. `kept` holds the rows of a source that cannot replay.
    """

    after: int
    upto: int
    offset: Any
    when: float
    digest: int | None = None
    mark: str | None = None
    value: int | None = None
    kept: bytes | None = None

    def behind(self, position: int) -> Span:
        """The part of it behind `position`."""
        return self if position <= self.after else replace(self, after=position, digest=None)

    def kept_rows(self) -> pa.RecordBatch:
        """The rows that were kept."""
        assert self.kept is not None
        with pa.ipc.open_stream(pa.py_buffer(self.kept)) as reader:
            rows = reader.read_next_batch()
        return rows.slice(rows.num_rows - (self.upto - self.after))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What an ingress gives again: from the source's `offset`, behind `skip_rows` rows, the `spans` in order."""

    offset: Any
    skip_rows: int
    spans: tuple[Span, ...]


class Numbering:
    """The numbers given so far, up to `upto`; every copy has what is up to `released`. Made by `open`."""

    def __init__(self, journal: Journal) -> None:
        self.released = 0
        self.upto = 0
        self.offset: Any = None
        self.ended = False
        self.replay = Replay(offset=None, skip_rows=0, spans=())
        self._journal = journal
        # Behind what is wholly released: position and offset; then where in the file each span begins.
        self._base: tuple[int, Any] = (0, None)
        self._live: deque[tuple[int, Any, int]] = deque()  # (upto, offset behind it, position in the file)

    @classmethod
    def open(cls, path: Path, *, fsync: bool = False) -> Numbering:
        """Open the journal at `path`, or begin it; `replay` is what is to be given again.

        It survives the death of the process; of the machine only with `fsync`.
        """
        journal, records = Journal.open(path, fsync=fsync)
        numbering = cls(journal)
        spans: deque[Span] = deque()
        for record in records:
            kind, *fields = msgpack.unpackb(record.content)
            if kind in (_ROWS, _MARK):
                spans.append(_span(kind, fields))
                numbering._add(spans[-1], record.position)
            else:
                numbering._note(kind, fields)
            while spans and spans[0].upto <= numbering.released:
                spans.popleft()
        numbering.replay = numbering._replay(spans)
        return numbering

    def number(
        self, upto: int, offset: Any, *, when: float, digest: int | None = None, kept: pa.RecordBatch | None = None
    ) -> None:
        """Write down that the next rows have the numbers up to `upto`; do it before they are sent."""
        body = None if kept is None else _encoded(kept)
        self._write(Span(after=self.upto, upto=upto, offset=offset, when=when, digest=digest, kept=body))

    def mark(self, kind: str, value: int | None = None, *, when: float) -> int:
        """Write down a punctuation; it takes one number, which is returned."""
        self._write(Span(after=self.upto, upto=self.upto + 1, offset=self.offset, when=when, mark=kind, value=value))
        return self.upto

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
        if span.mark is None:
            record = [_ROWS, *shared, span.digest, span.kept]
        else:
            record = [_MARK, *shared, span.mark, span.value]
        self._add(span, self._journal.append(msgpack.packb(record)))

    def _add(self, span: Span, position: int) -> None:
        assert span.after == self.upto < span.upto, f"{span} does not follow {self.upto}"
        self.upto = span.upto
        self.offset = span.offset
        self.ended = self.ended or span.mark == "end"
        self._live.append((span.upto, span.offset, position))

    def _note(self, kind: str, fields: list[Any]) -> None:
        if kind == _BASE:
            self.upto, self.offset, self.ended = fields
            self._base = self.upto, self.offset
        else:
            assert kind == _RELEASED, f"a record of kind {kind!r} in the numbering"
            # What stood before the file was shortened may come behind what was written then.
            self.released = max(self.released, fields[0])
            self._forget()

    def _forget(self) -> bool:
        """Drop the spans that are wholly released; whether there were any."""
        forgotten = False
        while self._live and self._live[0][0] <= self.released:
            upto, offset, _ = self._live.popleft()
            self._base = upto, offset
            forgotten = True
        return forgotten

    def _replay(self, spans: deque[Span]) -> Replay:
        upto, offset = self._base
        return Replay(
            offset=offset,
            skip_rows=self.released - upto if spans else 0,
            spans=tuple(span.behind(self.released) for span in spans),
        )

    def _shorten(self) -> None:
        keep_from = self._live[0][2] if self._live else self._journal.size
        if self._journal.size - keep_from > self._journal.size // 2:
            return
        upto, offset = self._base
        ended = self.ended and not self._live
        first = (msgpack.packb([_BASE, upto, offset, ended]), msgpack.packb([_RELEASED, self.released]))
        forward = self._journal.shorten(first, keep_from)
        self._live = deque((upto, offset, position - forward) for upto, offset, position in self._live)


def _span(kind: str, fields: list[Any]) -> Span:
    after, upto, offset, when, *rest = fields
    if kind == _MARK:
        mark, value = rest
        return Span(after=after, upto=upto, offset=offset, when=when, mark=mark, value=value)
    digest, kept = rest
    return Span(after=after, upto=upto, offset=offset, when=when, digest=digest, kept=kept)


def _encoded(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded
