"""Strategies for inputs of a user's rows, each with a way to run it.

Most are short, with punctuations among the rows. A few are long, to find faults that only large batches show: they
repeat the same rows in one partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hypothesis import strategies as st

from ..model.punctuation import Punctuation
from ..types.errors import PlanError
from .fake_clock import PACES, STEADY
from .harness import GivenInput

__all__ = ["Example", "Inputs"]

PARTITIONS = 4
_MARKS_MAX, _CUTS_MAX, _MOVES_MAX = 3, 6, 4
_RECUT_EVENTS_MAX, _MOVED_EVENTS_MAX = 16, 6  # Of examples for which other cuts and moves are tried.
_LONG_ROWS, _PIECES_ROWS = (2, 200), (1, 8)  # Minimum and maximum, of long inputs and of their batches.


@dataclass(frozen=True)
class Example:
    """An input, rows and punctuations, and one way to run it; events are counted from 1.

    `moves` are (number, shift): after that event the partition of the last row, plus the shift, moves to another site.
    So partitions are not drawn, and a row can be shrunk without regard to its partition.
    """

    events: tuple[Any, ...]
    cuts: frozenset[int]
    moves: tuple[tuple[int, int], ...]
    schema: Any = None
    partitions: int = PARTITIONS
    pace: int = STEADY  # Of the clock.

    @cached_property
    def given(self) -> GivenInput:
        return GivenInput.of([*self.events, Punctuation(0, "end")], self.schema)

    @property
    def each_row(self) -> frozenset[int]:
        return frozenset(self.given.sn.tolist())

    def without(self, first: int, last: int) -> Example:
        """Return the same without some events; cuts and moves after one of them are now after the one before."""

        def renumber(number: int) -> int:
            return number if number < first else max(first - 1, number - (last - first + 1))

        moves = tuple((renumber(number), shift) for number, shift in self.moves if renumber(number) > 0)
        return replace(
            self,
            events=self.events[: first - 1] + self.events[last:],
            cuts=frozenset(map(renumber, self.cuts)) - {0},
            moves=moves,
        )

    def with_one_cut(self) -> Iterator[Example]:
        """Yield the same with one cut, at each place: a shorter example may need its cut elsewhere."""
        if len(self.events) <= _RECUT_EVENTS_MAX:
            yield from (replace(self, cuts=frozenset({place})) for place in range(1, len(self.events)))

    def with_one_move(self) -> Iterator[Example]:
        """Yield the same with one move only, or with a move to another site and back."""
        if len(self.events) <= _MOVED_EVENTS_MAX:
            places = [(place, shift) for place in range(1, len(self.events) + 1) for shift in range(self.partitions)]
            yield from (replace(self, moves=(place,)) for place in places)
            yield from (replace(self, moves=(place, place)) for place in places if not place[1])

    def with_plainer_row(self) -> Iterator[Example]:
        """Yield the same with one row replaced by the plainest of them."""
        rows = [event for event in self.events if isinstance(event, dict)]
        plainest = min(rows, key=lambda row: len(repr(row)), default={})
        for i, event in enumerate(self.events):
            if isinstance(event, dict) and len(repr(event)) > len(repr(plainest)):
                yield replace(self, events=(*self.events[:i], plainest, *self.events[i + 1 :]))


@dataclass
class Inputs:
    """The inputs for a check, from the user's `rows`; raises `PlanError` if that draws something else than rows."""

    rows: st.SearchStrategy[Any]
    schema: Any
    event_time: str | None
    punctuations: bool
    has_rows: bool = False  # Whether a row has been drawn yet.

    def __post_init__(self) -> None:
        if not isinstance(self.rows, st.SearchStrategy):
            raise PlanError(
                "check_operator: rows is a strategy of hypothesis for a row or for lists of rows, such as "
                f"st.fixed_dictionaries({{'user': st.integers(0, 3)}}); got a {type(self.rows).__name__}"
            )

    def short(self) -> st.SearchStrategy[Example]:
        """Return a strategy for a few rows, with punctuations among them."""

        @st.composite
        def examples(draw: Callable[[Any], Any]) -> Example:
            rows = self._draw_rows(draw)
            punctuations = draw(_marks(len(rows), _instants(rows, self.event_time))) if self.punctuations else []
            events: list[Any] = list(rows)
            for place, mark in reversed(punctuations):
                events.insert(place, mark)
            numbers = st.integers(1, len(events) + 1)
            cuts = draw(st.frozensets(numbers, max_size=_CUTS_MAX))
            moves = draw(st.lists(st.tuples(numbers, st.integers(0, PARTITIONS - 1)), max_size=_MOVES_MAX))
            pace = draw(st.sampled_from(range(len(PACES))))
            return Example(tuple(events), cuts, tuple(sorted(moves)), self.schema, pace=pace)

        return examples()

    def long(self) -> st.SearchStrategy[Example]:
        """Return a strategy for many rows in one partition, to be run in one batch and in small ones."""

        @st.composite
        def examples(draw: Callable[[Any], Any]) -> Example:
            rows = self._draw_rows(draw)
            count, piece = draw(st.integers(*_LONG_ROWS)), draw(st.integers(*_PIECES_ROWS))
            many = (rows * count)[:count]
            return Example(tuple(many), frozenset(range(piece, len(many), piece)), (), self.schema, 1)

        return examples()

    def _draw_rows(self, draw: Callable[[Any], Any]) -> list[Any]:
        drawn = draw(self.rows)
        if isinstance(drawn, dict):
            drawn = [drawn, *draw(st.lists(self.rows, max_size=20))]
        if not isinstance(drawn, list) or not all(isinstance(row, dict) for row in drawn):
            raise PlanError(f"check_operator: rows draws dicts, or lists of dicts; it drew {drawn!r:.100}")
        self._check_event_time(drawn)
        self.has_rows = self.has_rows or bool(drawn)
        if self.schema is None:  # hypothesis draws columns in any order; the smallest example should have a fixed one.
            drawn = [dict(sorted(row.items())) for row in drawn]
        return drawn

    def _check_event_time(self, rows: list[dict[str, Any]]) -> None:
        column = self.event_time
        if column is None or not rows or any(column in row for row in rows):
            return
        known = ", ".join(sorted({name for row in rows for name in row}))
        raise PlanError(f"check_operator: the rows have no column {column}, which event_time names; they have {known}")


@st.composite
def _marks(draw: Callable[[Any], Any], rows: int, instants: list[int]) -> list[tuple[int, Punctuation]]:
    """Draw punctuations, each with the number of rows before it; their times do not decrease."""
    kinds = draw(st.lists(st.sampled_from(("watermark", "clock", "batch")), max_size=_MARKS_MAX))
    places = sorted(draw(st.lists(st.integers(0, rows), min_size=len(kinds), max_size=len(kinds))))
    near = st.sampled_from(instants).flatmap(lambda instant: st.integers(instant - 5, instant + 5))
    values = sorted(draw(st.lists(near, min_size=len(kinds), max_size=len(kinds))))
    punctuations = zip(places, kinds, values, strict=True)
    return [(place, Punctuation(0, kind, None if kind == "batch" else value)) for place, kind, value in punctuations]


def _instants(rows: list[dict[str, Any]], event_time: str | None) -> list[int]:
    """Return times in milliseconds, near which watermarks are drawn: a few near zero, and those of the rows."""
    found = [row.get(event_time) for row in rows] if event_time is not None else []
    instants = [int(i.timestamp() * 1_000) if hasattr(i, "timestamp") else i for i in found if i is not None]
    return [0, 50, 1_000, *(instant for instant in instants if isinstance(instant, int))]
