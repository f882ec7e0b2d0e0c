"""check_operator: whether an operator does what the protocol assumes of it, tried on inputs that hypothesis makes up.

Each claim is a property of its own, and they are tried in an order in which each may rely on those before: an operator
that draws random numbers does not depend on batching. For each, the operator is run over the same input in two ways
that must not matter. What is found is told with the smallest input that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis
import msgpack
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from ..columns import ColumnError, schema_of
from ..errors import FluxError, PlanError
from ..hosting import checked_operator
from .clocks import LATER_S, NOW_S, Clock
from .drawing import PARTITIONS, Drawn, Example
from .elsewhere import Elsewhere, name_of
from .holding import Outside
from .playing import Given, Mutated, Output, Subject, Way, play
from .telling import Fault, described, first_difference, is_rounding, raised, told

__all__ = ["Checked", "check_operator"]

_ELSEWHERE_EXAMPLES = 60
_LONG_SHARE = 10  # One of so many inputs of a claim is a long one, where that matters.


@dataclass(frozen=True)
class Checked:
    """What was checked of an operator: nothing was found. `not_checked` says of which claim, and why."""

    operator: str
    claims: tuple[str, ...]
    examples: int
    not_checked: dict[str, str] = field(default_factory=dict)


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

    Checked are, in this order: that it gives the same output each time, at any time of day and however much time goes
    by; that it does not write to its input, or to what it has emitted; that its output does not depend on where batches
    are cut, on its state having gone to another site as bytes at any point, on which partitions share a site, on the
    order of sets, and on going on in another process.
    """
    if examples < 1:
        raise PlanError(f"check_operator: examples is how many inputs are tried, at least 1; came {examples}")
    subject = _subject(factory, key, parameters or {})
    drawn = Drawn(rows, _schema(schema), event_time, punctuations)
    clock = Clock([factory, subject.parameters])
    claims: dict[str, Callable[[Example], None]] = {
        "repeats": lambda example: _repeats(subject, clock, example),
        "clock": lambda example: _clock(subject, clock, example),
        "batching": lambda example: _batching(subject, clock, example),
        "round trip": lambda example: _round_trip(subject, clock, example),
    }
    for name, claim in claims.items():
        _try(claim, drawn.short(), examples)
        if name == "batching":
            _try_long(claim, lambda example: _long(subject, clock, example), drawn, examples)
    if not drawn.any_rows:
        raise PlanError(
            f"check_operator: rows drew no row in any of the examples, {examples} for each claim, so nothing was "
            "checked. Let it draw some: st.lists(..., min_size=1), or more examples"
        )
    reason = _try_elsewhere(subject, drawn, min(examples, _ELSEWHERE_EXAMPLES))
    others = ("hash order", "process")
    return Checked(
        subject.name, (*claims, *(() if reason else others)), examples, dict.fromkeys(others, reason) if reason else {}
    )


def _subject(factory: Any, key: Any, parameters: dict[str, Any]) -> Subject:
    name = getattr(factory, "__name__", repr(factory))
    if not callable(factory):
        raise PlanError(f"check_operator takes an operator class, or what makes an operator; got {factory!r:.100}")
    checked_operator(factory, name)
    columns = (key,) if isinstance(key, str) else tuple(key or ())
    return Subject(factory, columns, parameters, PARTITIONS, name)


def _schema(declared: Any) -> Any:
    try:
        return schema_of(declared)
    except ColumnError as error:
        raise PlanError(f"check_operator: schema: {error}") from error


# --- what is tried -----------------------------------------------------------------------------------------


def _try(claim: Callable[[Example], None], cases: st.SearchStrategy[Example], examples: int) -> None:
    """Try a claim on many examples; raise the smallest fault that was found."""
    found: list[tuple[Fault, Example]] = []

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
    def holds(example: Example) -> None:
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


def _try_long(short: Callable[[Example], None], long: Callable[[Example], None], drawn: Drawn, examples: int) -> None:
    """Try a claim on a few long examples. If it does not hold for one, look harder for a short one to tell."""
    try:
        _try(long, drawn.long(), max(3, examples // _LONG_SHARE))
    except Fault:
        _try(short, drawn.short(), 5 * examples)
        raise


def _made_smaller(claim: Callable[[Example], None], fault: Fault, example: Example) -> Fault:
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


def _played(subject: Subject, clock: Clock, example: Example, way: Way, later: bool = False) -> list[Output]:
    chosen = replace(_with_key(subject, example.given), partitions=example.partitions)
    moment = clock.at(LATER_S, goes_on=True) if later else clock.at(NOW_S)
    with _blamed(subject, example.given, described(example.given, way)), moment:
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


def _repeats(subject: Subject, clock: Clock, example: Example) -> None:
    def run() -> list[Output]:
        return _played(subject, clock, example, Way())

    one, other = run(), run()
    if first_difference(one, other) is None:
        return
    outside = Outside(subject.factory, subject.parameters)
    changed = outside.changed_by(run)
    claim, more = "repeats", ""
    if changed and _repeats_without(outside, run):
        claim, more = "shared", _changed(changed)
    raise told(subject.name, claim, example.given, ("all at once", "the same, once more"), (one, other), more)


def _repeats_without(outside: Outside, run: Callable[[], list[Output]]) -> bool:
    """Whether it gives the same each time if nothing remains outside of its instances from one run to the next."""
    outputs = []
    for _ in range(2):
        with outside.copied():
            outputs.append(run())
    return first_difference(*outputs) is None


def _changed(places: list[str]) -> str:
    return f"It changed {', '.join(places[:5])}."


def _clock(subject: Subject, clock: Clock, example: Example) -> None:
    way = Way(cuts=example.cuts)  # Time may go by within a batch and between batches.
    now = _played(subject, clock, example, way)
    later = _played(subject, clock, example, way, later=True)
    if first_difference(now, later) is not None:
        more = f"It reads the clock at {'; '.join(clock.read_at[:5])}" if clock.read_at else ""
        ways = (
            f"{described(example.given, way)}, at {NOW_S:.0f} s",
            f"the same, from {LATER_S:.0f} s on, and time goes by",
        )
        raise told(subject.name, "clock", example.given, ways, (now, later), more)


def _batching(subject: Subject, clock: Clock, example: Example) -> None:
    for cuts in (example.cuts, example.each_row):
        _compare(subject, clock, example, "batching", Way(), Way(cuts=cuts))


def _long(subject: Subject, clock: Clock, example: Example) -> None:
    _compare(subject, clock, example, "batching", Way(), Way(cuts=example.cuts))


def _round_trip(subject: Subject, clock: Clock, example: Example) -> None:
    behind = frozenset(number for number, _ in example.moves)
    for way in (
        Way(cuts=behind, moves=example.moves, reads=True),
        Way(cuts=behind, moves=example.moves),
        Way(cuts=behind, moves=example.moves, sites=2),
    ):
        # Cut in the same way, so that nothing but the moves tells them apart.
        _compare(subject, clock, example, "round trip", Way(cuts=behind), way)


def _compare(subject: Subject, clock: Clock, example: Example, claim: str, one: Way, other: Way) -> None:
    outputs = _played(subject, clock, example, one), _played(subject, clock, example, other)
    if first_difference(*outputs) is None:
        return
    if claim == "batching" and is_rounding(*outputs):
        claim = "floats"
    ways = described(example.given, one), described(example.given, other)
    raise told(subject.name, claim, example.given, ways, outputs)


# --- in other processes --------------------------------------------------------------------------------------


def _try_elsewhere(subject: Subject, drawn: Drawn, examples: int) -> str:
    """Try the claims that need other processes; say why if that cannot be."""
    named = name_of(subject.factory)
    if named is None:
        return f"{subject.name} cannot be imported by a name, because it is not in a module; put it into one"
    try:
        msgpack.packb(subject.parameters)
    except TypeError as error:
        return f"the parameters cannot be given to another process: {error}"
    processes: dict[tuple[str, ...], Elsewhere] = {}

    def claim(example: Example) -> None:
        chosen = _with_key(subject, example.given)
        if len(example.given.sn):
            if chosen.key not in processes:
                processes[chosen.key] = Elsewhere(chosen, named)
            _elsewhere(chosen, processes[chosen.key], example)

    try:
        _try(claim, drawn.short(), examples)
    finally:
        for process in processes.values():
            process.close()
    return ""


def _elsewhere(subject: Subject, processes: Elsewhere, example: Example) -> None:
    given = example.given
    number = min((number for number, _ in example.moves), default=0)
    way = described(given, Way(cuts=frozenset({number})))
    with _blamed(subject, given, f"{way}, in another process"):
        one, other, rest = processes.play(given, number)
    if first_difference(one, other) is not None:
        with _blamed(subject, given, way):
            same_hashes = processes.again(given)
        if first_difference(one, same_hashes) is None:
            ways = (f"{way}, with PYTHONHASHSEED=1", "the same, with PYTHONHASHSEED=2")
            raise told(subject.name, "hash order", given, ways, (one, other))
        raise told(subject.name, "process", given, (f"{way}, in one process", "the same, in another"), (one, other))
    expected = [output for output in one if output.sn > number]
    if rest is not None and first_difference(expected, rest) is not None:
        ways = (f"{way}, in one process", f"the same; behind {number} all states go to another process, which goes on")
        nothing = replace(given, rows=given.rows.slice(0, 0), sn=given.sn[:0], marks=())
        play(subject, nothing, Way())  # An `open` that clears what is kept has left there what the last run did.
        changed = Outside(subject.factory, subject.parameters).changed_by(lambda: play(subject, given, Way()))
        claim, more = ("shared", _changed(changed)) if changed else ("process", "")
        raise told(subject.name, claim, given, ways, (expected, rest), more)
