"""Sink journal: the position of a sink, so that the next egress resumes where the last one was.

Two records are written for each range: one before it is given to the sink, one when the sink has taken it. So the next
egress knows the position of the sink, the number of rows, and whether the stream has ended. If only the first record is
there, a sink that keeps a position itself decides. Ranges without rows are noted here alone.

The positions of an unordered sink are not those of the dataflow, because what it has is not a range. They count what it
was given, and the position of the dataflow is noted with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from ...storage.journal import Journal, reading
from ...types.errors import FluxError
from ...wire.codec import from_plain, to_plain
from ...wire.reports import Reached

_SHORTEN_AT_BYTES = 256 * 1024
_GIVEN, _TAKEN = "given", "taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRows:
    """What the sink is given: the output in (after, upto], `rows` after `rows_before`; `end` if the stream ends.

    The last range before it that had rows ended at `written_upto`. The position of the dataflow is `reached_before`
    without it, and `reached_after` with it.
    """

    after: int
    upto: int
    rows: int
    rows_before: int
    written_upto: int
    end: bool
    reached_before: Reached
    reached_after: Reached

    def to_plain(self) -> list[Any]:
        """Return the fields in msgpack types."""
        *numbers, before, after = (getattr(self, name) for name in self.__slots__)
        return [*numbers, *([position, [to_plain(each) for each in ahead]] for position, ahead in (before, after))]

    @classmethod
    def from_plain(cls, fields: Sequence[Any]) -> GivenRows:
        """Return what `to_plain` was called on."""
        *numbers, before, after = fields
        reached = [(position, tuple(from_plain(each) for each in ahead)) for position, ahead in (before, after)]
        return cls(**dict(zip(cls.__slots__, [*numbers, *reached], strict=True)))


_NOTHING = GivenRows(
    after=0, upto=0, rows=0, rows_before=0, written_upto=0, end=False, reached_before=(0, ()), reached_after=(0, ())
)


class SinkJournal:
    """The journal at `path`: the sink has taken `rows` rows, all up to `upto`, and the whole stream if `ended`.

    `reached` is the position of the dataflow; for an ordered sink both are the same.
    """

    def __init__(self, path: Path) -> None:
        self._journal, records = Journal.open(path)
        self.upto = 0
        self.rows = 0
        self.ended = False
        self.reached: Reached = (0, ())
        self._given = _NOTHING
        self._taken = True
        for record in records:
            with reading(path, record):
                self._read(*msgpack.unpackb(record.content))
        self._settle()

    def resume(self, durable: int | None) -> None:
        """Resume at the position that the sink returned, or at that of the journal if it returned none."""
        given = self._given
        if durable is None:
            return
        if not given.written_upto <= durable <= (given.upto if given.rows else given.written_upto):
            raise FluxError(
                f"the sink says that it has the output up to {durable:,}, but the egresses of this run gave it what is "
                f"up to {given.written_upto:,}, and then up to {given.upto:,}. What it holds is of another run, or was "
                "changed, or the egress's journal has lost its end, as it may when a machine loses power: give it an "
                "empty place, and run the flow again"
            )
        if given.rows:
            self._taken = durable == given.upto
            self._settle()
            self.upto = max(self.upto, durable)

    def give(self, upto: int, rows: int, end: bool, reached: Reached | None = None) -> None:
        """Write what the sink is given next, and the position of the dataflow with it."""
        last = self._given
        written_upto = last.upto if last.rows and self._taken else last.written_upto
        self._given = GivenRows(
            after=self.upto,
            upto=upto,
            rows=rows,
            rows_before=self.rows,
            written_upto=written_upto,
            end=end,
            reached_before=self.reached,
            reached_after=(upto, ()) if reached is None else reached,
        )
        self._taken = False
        content = msgpack.packb([_GIVEN, *self._given.to_plain()])
        if self._journal.size > _SHORTEN_AT_BYTES:
            self._journal.shorten([content], self._journal.size)
        else:
            self._journal.append(content)

    def take(self) -> None:
        """Write that the sink has taken it."""
        self._journal.append(msgpack.packb([_TAKEN]))
        self._taken = True
        self._settle()

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    def _read(self, kind: str, *fields: Any) -> None:
        if kind == _GIVEN:
            self._given = GivenRows.from_plain(fields)
        elif kind != _TAKEN:
            raise ValueError(f"expected a record of kind {_GIVEN} or {_TAKEN}, got {kind!r:.80}")
        self._taken = kind == _TAKEN

    def _settle(self) -> None:
        given = self._given
        self.upto = given.upto if self._taken else given.after
        self.rows = given.rows_before + (given.rows if self._taken else 0)
        self.ended = given.end and self._taken
        position, ahead = given.reached_after if self._taken else given.reached_before
        self.reached = position, ahead
