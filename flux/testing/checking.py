"""check_operator: whether an operator does what the protocol assumes of it, tried on inputs that hypothesis makes up.

Each claim is a property of its own, and they are tried in an order in which each may rely on those before: an operator
that draws random numbers does not depend on batching. For each, the operator is run over the same input in two ways
that must not matter. What is found is told with the smallest input that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import hypothesis
import msgpack
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from ..errors import FluxError, PlanError
from ..hosting import checked_operator
from ..punctuation import Punctuation
from .clocks import LATER_S, NOW_S, Clock
from .elsewhere import Elsewhere, name_of
from .playing import Given, Mutated, Output, Subject, Way, play
from .telling import Fault, described, first_difference, is_rounding, raised, told

__all__ = ["Checked", "check_operator"]

PARTITIONS = 4
_MARKS_MAX, _CUTS_MAX, _MOVES_MAX = 3, 6, 4
_HASH_EXAMPLES = 60


@dataclass(frozen=True)
class Checked:
    """What was checked of an operator: nothing was found. `not_checked` says of which claim, and why."""

    operator: str
    claims: tuple[str, ...]
    examples: int
    not_checked: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Example:
    """An input, rows and punctuations, and one way to run it; events are counted from 1."""

    events: tuple[Any, ...]
    cuts: frozenset[int]
    moves: tuple[tuple[int, int], ...]
    schema: Any = None

    @cached_property
    def given(self) -> Given:
        return Given.of([*self.events, Punctuation(0, "end")], self.schema)

    @property
    def each_row(self) -> frozenset[int]:
        return frozenset(self.given.sn.tolist())

    def without(self, number: int) -> _Example:
        """The same without one event; what happens behind it, happens behind the one before."""
        events = self.events[: number - 1] + self.events[number:]
        cuts = frozenset(n - (n >= number) for n in self.cuts)
        moves = tuple((n - (n >= number), pid) for n, pid in self.moves if n - (n >= number) > 0)
        return replace(self, events=events, cuts=cuts - {0}, moves=moves)

    def simpler(self) -> Iterator[_Example]:
        """The same with one thing less."""
        for number in range(len(self.events), 0, -1):
            yield self.without(number)
        for cut in sorted(self.cuts):
            yield replace(self, cuts=self.cuts - {cut})
        for i in range(len(self.moves)):
            yield replace(self, moves=self.moves[:i] + self.moves[i + 1 :])


def check_operator(
    factory: Callable[[], Any],
    rows: st.SearchStrategy[Any],
    *,
    key: str | tuple[str, ...] | None = None,
    parameters: dict[str, Any] | None = None,
    schema: Any = None,
    event_time: str | None = None,
    punctuations: bool = True,
    examples: int = 100,
) -> Checked:
    """Property-test an operator of any form, also a wrapped one; `AssertionError` with a small example if it fails.

    `rows` is a hypothesis strategy for lists of rows as dicts, or for one row. `key` are the columns of the exchange in
    front of it, which need not be said if there is only one column; `parameters` what `apply` would be given; `schema`
    the types of the columns, if the values do not tell them. Watermarks, clocks and batch boundaries stand among the
    rows unless `punctuations` is False; with `event_time`, a column of milliseconds or datetimes, watermarks are near
    its values.

    Checked are, in this order: that it gives the same output each time, at any time of day; that it does not write to
    its input, or to what it has emitted; that its output does not depend on where batches are cut, on its state having
    gone to another site as bytes at any point, on which partitions share a site, and on the order of sets.
    """
    subject = _subject(factory, key, parameters or {})
    cases = _examples(rows, subject, schema, event_time, punctuations)
    clock = Clock()
    claims: dict[str, Callable[[_Example], None]] = {
        "repeats": lambda example: _repeats(subject, clock, example),
        "clock": lambda example: _clock(subject, clock, example),
        "batching": lambda example: _batching(subject, clock, example),
        "round trip": lambda example: _round_trip(subject, clock, example),
    }
    for claim in claims.values():
        _try(claim, cases, examples)
    reason = _try_elsewhere(subject, cases, min(examples, _HASH_EXAMPLES))
    done = (*claims, *(() if reason else ("hash order",)))
    return Checked(subject.name, done, examples, {"hash order": reason} if reason else {})


def _subject(factory: Any, key: Any, parameters: dict[str, Any]) -> Subject:
    name = getattr(factory, "__name__", repr(factory))
    if not callable(factory):
        raise PlanError(f"check_operator takes an operator class, or what makes an operator; got {factory!r:.100}")
    checked_operator(factory, name)
    columns = (key,) if isinstance(key, str) else tuple(key or ())
    return Subject(factory, columns, parameters, PARTITIONS, name)


# --- what is tried -----------------------------------------------------------------------------------------


def _examples(
    rows: st.SearchStrategy[Any], subject: Subject, schema: Any, event_time: str | None, punctuations: bool
) -> st.SearchStrategy[_Example]:
    @st.composite
    def examples(draw: Callable[[Any], Any]) -> _Example:
        drawn = draw(rows)
        if isinstance(drawn, dict):
            drawn = [drawn, *draw(st.lists(rows, max_size=20))]
        if schema is None:  # hypothesis gives the columns in any order; the smallest example should have one.
            drawn = [dict(sorted(row.items())) for row in drawn]
        marks = draw(_marks(len(drawn), _instants(drawn, event_time))) if punctuations else []
        events: list[Any] = list(drawn)
        for place, mark in reversed(marks):
            events.insert(place, mark)
        numbers = st.integers(1, len(events) + 1)
        cuts = draw(st.frozensets(numbers, max_size=_CUTS_MAX))
        moves = draw(st.lists(st.tuples(numbers, st.integers(0, PARTITIONS - 1)), max_size=_MOVES_MAX))
        return _Example(tuple(events), cuts, tuple(sorted(moves)), schema)

    return examples()


@st.composite
def _marks(draw: Callable[[Any], Any], rows: int, instants: list[int]) -> list[tuple[int, Punctuation]]:
    """Punctuations, each with the number of rows before it; time does not go back."""
    kinds = draw(st.lists(st.sampled_from(("watermark", "clock", "batch")), max_size=_MARKS_MAX))
    places = sorted(draw(st.lists(st.integers(0, rows), min_size=len(kinds), max_size=len(kinds))))
    near = st.sampled_from(instants).flatmap(lambda instant: st.integers(instant - 5, instant + 5))
    values = sorted(draw(st.lists(near, min_size=len(kinds), max_size=len(kinds))))
    marks = zip(places, kinds, values, strict=True)
    return [(place, Punctuation(0, kind, None if kind == "batch" else value)) for place, kind, value in marks]


def _instants(rows: list[dict[str, Any]], event_time: str | None) -> list[int]:
    """In milliseconds: those of the rows, and around zero if there are none."""
    found = [row.get(event_time) for row in rows] if event_time is not None else []
    instants = [int(i.timestamp() * 1_000) if hasattr(i, "timestamp") else i for i in found if i is not None]
    return [0, 50, 1_000, *(instant for instant in instants if isinstance(instant, int))]


def _try(claim: Callable[[_Example], None], cases: st.SearchStrategy[_Example], examples: int) -> None:
    """Try a claim on many examples; raise the smallest fault that was found."""
    found: list[tuple[Fault, _Example]] = []

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(cases)
    def holds(example: _Example) -> None:
        try:
            claim(example)
        except Fault as fault:
            found.append((fault, example))
            raise

    try:
        holds()
    except PlanError as error:
        error.__notes__ = []  # Of the example, which has nothing to do with it.
        raise error.with_traceback(None) from None
    except (Fault, Flaky):
        # The last one is the smallest; one that does not depend on its input alone may not show itself again.
        smallest = min(reversed(found), key=lambda each: each[0].size)
        fault = _made_smaller(claim, *smallest)
        raise Fault(str(fault), fault.claim, fault.size) from None


def _made_smaller(claim: Callable[[_Example], None], fault: Fault, example: _Example) -> Fault:
    """Leave out what the fault shows itself without; hypothesis has made values small, and the rest nearly."""
    for simpler in example.simpler():
        try:
            claim(simpler)
        except Fault as again:
            if again.claim == fault.claim:
                return _made_smaller(claim, again, simpler)
    return fault


# --- the claims --------------------------------------------------------------------------------------------


@contextmanager
def _blamed(subject: Subject, given: Given, way: str) -> Iterator[None]:
    """What the operator raises is told with the input that made it; what is wrong with the plan has no such input."""
    try:
        yield
    except PlanError:
        raise
    except Mutated as error:
        raise raised(subject.name, "input", given, way, error) from None
    except FluxError as error:
        raise raised(subject.name, "raises", given, way, error) from error


def _played(subject: Subject, clock: Clock, example: _Example, way: Way, now_s: float = NOW_S) -> list[Output]:
    chosen = _with_key(subject, example.given)
    with _blamed(subject, example.given, described(example.given, way)), clock.at(now_s):
        return play(chosen, example.given, way)


def _with_key(subject: Subject, given: Given) -> Subject:
    """By default the key is the one column there is."""
    names = given.rows.schema.names
    key = subject.key or tuple(names) or ("row",)
    if not subject.key and len(names) > 1:
        known = ", ".join(names)
        raise PlanError(f"check_operator: say which of the columns {known} are the key, as in key={names[0]!r}")
    unknown = [name for name in key if name not in names]
    if unknown and len(given.sn):
        raise PlanError(f"check_operator: the rows have no column {', '.join(unknown)}; they have {', '.join(names)}")
    return replace(subject, key=key)


def _repeats(subject: Subject, clock: Clock, example: _Example) -> None:
    _compare(subject, clock, example, "repeats", (Way(), "all at once"), (Way(), "the same, once more"))


def _clock(subject: Subject, clock: Clock, example: _Example) -> None:
    now = _played(subject, clock, example, Way())
    read_at = list(clock.read_at)
    later = _played(subject, clock, example, Way(), LATER_S)
    if first_difference(now, later) is not None:
        more = f"It reads the clock at {'; '.join(read_at[:5])}" if read_at else ""
        ways = (f"all at once, at {NOW_S:.0f} s", f"the same, at {LATER_S:.0f} s")
        raise told(subject.name, "clock", example.given, ways, (now, later), more)


def _batching(subject: Subject, clock: Clock, example: _Example) -> None:
    for cuts in (example.cuts, example.each_row):
        _compare(subject, clock, example, "batching", Way(), Way(cuts=cuts))


def _round_trip(subject: Subject, clock: Clock, example: _Example) -> None:
    behind = frozenset(number for number, _ in example.moves)
    for way in (
        Way(cuts=behind, moves=example.moves, reads=True),
        Way(cuts=behind, moves=example.moves),
        Way(cuts=behind, moves=example.moves, sites=2),
    ):
        # Cut in the same way, so that nothing but the moves tells them apart.
        _compare(subject, clock, example, "round trip", Way(cuts=behind), way)


def _compare(subject: Subject, clock: Clock, example: _Example, claim: str, one: Any, other: Any) -> None:
    pairs = [way if isinstance(way, tuple) else (way, described(example.given, way)) for way in (one, other)]
    outputs = [_played(subject, clock, example, way) for way, _ in pairs]
    if first_difference(*outputs) is None:
        return
    if claim == "batching" and is_rounding(*outputs):
        claim = "floats"
    raise told(subject.name, claim, example.given, (pairs[0][1], pairs[1][1]), (outputs[0], outputs[1]))


def _try_elsewhere(subject: Subject, cases: st.SearchStrategy[_Example], examples: int) -> str:
    """Try the claim that needs other processes; say why if that cannot be."""
    named = name_of(subject.factory)
    if named is None:
        return f"{subject.name} cannot be imported by a name, because it is not in a module; put it into one"
    try:
        msgpack.packb(subject.parameters)
    except TypeError as error:
        return f"the parameters cannot be given to another process: {error}"
    processes: dict[tuple[str, ...], Elsewhere] = {}

    def claim(example: _Example) -> None:
        chosen = _with_key(subject, example.given)
        if not len(example.given.sn):
            return
        if chosen.key not in processes:
            processes[chosen.key] = Elsewhere(chosen, named)
        with _blamed(subject, example.given, "with another PYTHONHASHSEED"):
            outputs = processes[chosen.key].play(example.given, Way())
        if first_difference(*outputs) is not None:
            ways = ("all at once, with PYTHONHASHSEED=1", "the same, with PYTHONHASHSEED=2")
            raise told(subject.name, "hash order", example.given, ways, (outputs[0], outputs[1]))

    try:
        _try(claim, cases, examples)
    finally:
        for process in processes.values():
            process.close()
    return ""
