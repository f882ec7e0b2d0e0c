"""Progress: how far the egress's sink is, so that an egress that takes another's place knows where to go on.

Before a range is given to the sink, it is written down with what it holds, and behind that, that the sink has taken
it. So the next egress knows how far the sink is, how many rows that were, and whether the end of the stream was among
them. Between the two, only a sink that keeps a position itself can say. Ranges without rows are noted here alone.

The positions of a sink that takes rows as they come are not those of the dataflow: what it has is no range. They count
what it was given, and how far the dataflow is with each is noted beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from ...storage.journal import Journal
from ...types.errors import FluxError
from ...wire.codec import from_plain, to_plain
from ...wire.reports import Reached

_SHORTEN_AT_BYTES = 256 * 1024
_GIVEN, _TAKEN = "given", "taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRows:
    """What the sink is given: the output in (after, upto], so many `rows`, behind `rows_before`; `end` if it ends.

    The last range before it that had rows went up to `written_upto`. `before` and `behind` say how far the dataflow is.
    """

    after: int
    upto: int
    rows: int
    rows_before: int
    written_upto: int
    end: bool
    before: Reached
    behind: Reached

    def to_plain(self) -> list[Any]:
        """Return the fields in msgpack types."""
        *numbers, before, behind = (getattr(self, name) for name in self.__slots__)
        return [*numbers, *([position, [to_plain(each) for each in ahead]] for position, ahead in (before, behind))]

    @classmethod
    def from_plain(cls, fields: Sequence[Any]) -> GivenRows:
        """Return what `to_plain` was called on."""
        *numbers, before, behind = fields
        reached = [(position, tuple(from_plain(each) for each in ahead)) for position, ahead in (before, behind)]
        return cls(**dict(zip(cls.__slots__, [*numbers, *reached], strict=True)))


_NOTHING = GivenRows(after=0, upto=0, rows=0, rows_before=0, written_upto=0, end=False, before=(0, ()), behind=(0, ()))


class SinkJournal:
    """The journal at `path`; everything up to `upto` is taken, that is `rows` rows, and all there is if `ended`.

    The dataflow has `reached` that position then; for an ordered sink both are the same.
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
            self._read(*msgpack.unpackb(record.content))
        self._settle()

    def resume(self, durable: int | None) -> None:
        """Go by what the sink says it has; by what is written here if it does not say."""
        given = self._given
        if durable is None:
            return
        if not given.written_upto <= durable <= (given.upto if given.rows else given.written_upto):
            raise FluxError(
                f"the sink says that it has the output up to {durable:,}, but the egresses of this run gave it what is "
                f"up to {given.written_upto:,}, and then up to {given.upto:,}. What it holds is of another run, or was "
                "changed: give it an empty place, and run the flow again"
            )
        if given.rows:
            self._taken = durable == given.upto
            self._settle()
            self.upto = max(self.upto, durable)

    def give(self, upto: int, rows: int, end: bool, reached: Reached | None = None) -> None:
        """Write down what the sink is given next, and how far the dataflow is with it."""
        last = self._given
        written_upto = last.upto if last.rows and self._taken else last.written_upto
        self._given = GivenRows(
            after=self.upto,
            upto=upto,
            rows=rows,
            rows_before=self.rows,
            written_upto=written_upto,
            end=end,
            before=self.reached,
            behind=(upto, ()) if reached is None else reached,
        )
        self._taken = False
        content = msgpack.packb([_GIVEN, *self._given.to_plain()])
        if self._journal.size > _SHORTEN_AT_BYTES:
            self._journal.shorten([content], self._journal.size)
        else:
            self._journal.append(content)

    def take(self) -> None:
        """Write down that the sink has taken it."""
        self._journal.append(msgpack.packb([_TAKEN]))
        self._taken = True
        self._settle()

    def close(self) -> None:
        """Let go of the file."""
        self._journal.close()

    def _read(self, kind: str, *fields: Any) -> None:
        if kind == _GIVEN:
            self._given = GivenRows.from_plain(fields)
        self._taken = kind == _TAKEN

    def _settle(self) -> None:
        given = self._given
        self.upto = given.upto if self._taken else given.after
        self.rows = given.rows_before + (given.rows if self._taken else 0)
        self.ended = given.end and self._taken
        position, ahead = given.behind if self._taken else given.before
        self.reached = position, ahead
