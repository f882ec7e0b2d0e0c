"""Drawing: inputs that hypothesis makes up of a user's rows, each with a way to run it.

Most are short, with punctuations among the rows. A few are long, so that what begins with a large batch is found: the
same rows again and again, in one partition.
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
_RECUT_EVENTS, _MOVED_EVENTS = 16, 6  # At most, of examples of which other arrangements are tried.
_LONG_ROWS, _PIECES_ROWS = (2, 200), (1, 8)  # At least and at most, of long inputs and of what these are cut into.


@dataclass(frozen=True)
class Example:
    """An input, rows and punctuations, and one way to run it; events are counted from 1.

    `moves` are (number, shift): behind that event a partition goes to another site, that of the last row or one so many
    further. So whose it is need not be drawn, and a row can be made smaller without regard to its partition.
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
        """The same without some events; what happens behind one of them, happens behind the one before."""

        def behind(number: int) -> int:
            return number if number < first else max(first - 1, number - (last - first + 1))

        moves = tuple((behind(number), shift) for number, shift in self.moves if behind(number) > 0)
        return replace(
            self,
            events=self.events[: first - 1] + self.events[last:],
            cuts=frozenset(map(behind, self.cuts)) - {0},
            moves=moves,
        )

    def recut(self) -> Iterator[Example]:
        """The same, cut in one place only: what is shorter may have to be cut elsewhere."""
        if len(self.events) <= _RECUT_EVENTS:
            yield from (replace(self, cuts=frozenset({place})) for place in range(1, len(self.events)))

    def moved(self) -> Iterator[Example]:
        """The same with one move only, or with one there and back."""
        if len(self.events) <= _MOVED_EVENTS:
            places = [(place, shift) for place in range(1, len(self.events) + 1) for shift in range(self.partitions)]
            yield from (replace(self, moves=(place,)) for place in places)
            yield from (replace(self, moves=(place, place)) for place in places if not place[1])

    def plainer(self) -> Iterator[Example]:
        """The same with one row like the plainest of them."""
        rows = [event for event in self.events if isinstance(event, dict)]
        plainest = min(rows, key=lambda row: len(repr(row)), default={})
        for i, event in enumerate(self.events):
            if isinstance(event, dict) and len(repr(event)) > len(repr(plainest)):
                yield replace(self, events=(*self.events[:i], plainest, *self.events[i + 1 :]))


@dataclass
class Inputs:
    """The inputs for a check, of the user's `rows`; `PlanError` if that draws something else than rows."""

    rows: st.SearchStrategy[Any]
    schema: Any
    event_time: str | None
    punctuations: bool
    any_rows: bool = False  # Whether a row has been drawn yet.

    def __post_init__(self) -> None:
        if not isinstance(self.rows, st.SearchStrategy):
            raise PlanError(
                "check_operator: rows is a strategy of hypothesis for a row or for lists of rows, such as "
                f"st.fixed_dictionaries({{'user': st.integers(0, 3)}}); came a {type(self.rows).__name__}"
            )

    def short(self) -> st.SearchStrategy[Example]:
        """A few rows, and punctuations among them."""

        @st.composite
        def examples(draw: Callable[[Any], Any]) -> Example:
            rows = self._some(draw)
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
        """Many rows in one partition, to be given at once and in small pieces."""

        @st.composite
        def examples(draw: Callable[[Any], Any]) -> Example:
            rows = self._some(draw)
            count, piece = draw(st.integers(*_LONG_ROWS)), draw(st.integers(*_PIECES_ROWS))
            many = (rows * count)[:count]
            return Example(tuple(many), frozenset(range(piece, len(many), piece)), (), self.schema, 1)

        return examples()

    def _some(self, draw: Callable[[Any], Any]) -> list[Any]:
        drawn = draw(self.rows)
        if isinstance(drawn, dict):
            drawn = [drawn, *draw(st.lists(self.rows, max_size=20))]
        if not isinstance(drawn, list) or not all(isinstance(row, dict) for row in drawn):
            raise PlanError(f"check_operator: rows draws dicts, or lists of dicts; it drew {drawn!r:.100}")
        self._check_event_time(drawn)
        self.any_rows = self.any_rows or bool(drawn)
        if self.schema is None:  # hypothesis gives the columns in any order; the smallest example should have one.
            drawn = [dict(sorted(row.items())) for row in drawn]
        return drawn

    def _check_event_time(self, rows: list[dict[str, Any]]) -> None:
        column = self.event_time
        if column is None or not rows or any(column in row for row in rows):
            return
        known = ", ".join(sorted({name for row in rows for name in row}))
        raise PlanError(f"check_operator: the rows have no column {column}, which event_time says; they have {known}")


@st.composite
def _marks(draw: Callable[[Any], Any], rows: int, instants: list[int]) -> list[tuple[int, Punctuation]]:
    """Punctuations, each with the number of rows before it; time does not go back."""
    kinds = draw(st.lists(st.sampled_from(("watermark", "clock", "batch")), max_size=_MARKS_MAX))
    places = sorted(draw(st.lists(st.integers(0, rows), min_size=len(kinds), max_size=len(kinds))))
    near = st.sampled_from(instants).flatmap(lambda instant: st.integers(instant - 5, instant + 5))
    values = sorted(draw(st.lists(near, min_size=len(kinds), max_size=len(kinds))))
    punctuations = zip(places, kinds, values, strict=True)
    return [(place, Punctuation(0, kind, None if kind == "batch" else value)) for place, kind, value in punctuations]


def _instants(rows: list[dict[str, Any]], event_time: str | None) -> list[int]:
    """In milliseconds: those of the rows, and around zero if there are none."""
    found = [row.get(event_time) for row in rows] if event_time is not None else []
    instants = [int(i.timestamp() * 1_000) if hasattr(i, "timestamp") else i for i in found if i is not None]
    return [0, 50, 1_000, *(instant for instant in instants if isinstance(instant, int))]
