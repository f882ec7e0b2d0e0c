"""check_operator: whether an operator does what the protocol assumes of it, tried on inputs that hypothesis makes up.

Each claim is a property of its own, and they are tried in an order in which each may rely on those before: an operator
that draws random numbers does not depend on batching. For each, the operator is run over the same input in two ways
that must not matter. What is found is told with the smallest input that shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack
from hypothesis import strategies as st

from ..columns import ColumnError, schema_of
from ..errors import PlanError
from ..hosting import checked_operator
from .claims import Claims, blamed, changed, with_key
from .clocks import Clock
from .drawing import PARTITIONS, Drawn, Example
from .elsewhere import Elsewhere, name_of
from .holding import Outside
from .playing import Subject, Way, play
from .searching import Claim, search
from .telling import Fault, Story, described, first_difference, form_of

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
    tried = Claims(subject, Clock([factory, subject.parameters]))
    claims: dict[str, Claim] = {
        "repeats": tried.repeats,
        "clock": tried.at_any_time,
        "batching": tried.batching,
        "round trip": tried.round_trip,
    }
    for name, claim in claims.items():
        search(claim, drawn.short(), examples)
        if name == "batching":
            _search_long(tried, drawn, examples)
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
    says = checked_operator(factory, name)
    columns = (key,) if isinstance(key, str) else tuple(key or ())
    return Subject(factory, columns, parameters, PARTITIONS, name, form_of(says))


def _schema(declared: Any) -> Any:
    try:
        return schema_of(declared)
    except ColumnError as error:
        raise PlanError(f"check_operator: schema: {error}") from error


def _search_long(claims: Claims, drawn: Drawn, examples: int) -> None:
    """Try long examples, a few. If one shows that batches matter, look harder for a short one to tell."""
    try:
        search(claims.batching_of_many, drawn.long(), max(3, examples // _LONG_SHARE))
    except Fault:
        search(claims.batching, drawn.short(), 5 * examples)
        raise


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
        chosen = with_key(subject, example.given)
        if len(example.given.sn):
            if chosen.key not in processes:
                processes[chosen.key] = Elsewhere(chosen, named)
            _elsewhere(chosen, processes[chosen.key], example)

    try:
        search(claim, drawn.short(), examples)
    finally:
        for process in processes.values():
            process.close()
    return ""


def _elsewhere(subject: Subject, processes: Elsewhere, example: Example) -> None:
    given = example.given
    number = min((number for number, _ in example.moves), default=0)
    way = described(given, Way(cuts=frozenset({number})))
    with blamed(subject, given, f"{way}, in another process"):
        one, other, rest = processes.play(given, number)
    if first_difference(one, other) is not None:
        with blamed(subject, given, way):
            same_hashes = processes.again(given)
        if first_difference(one, same_hashes) is None:
            ways = (f"{way}, with PYTHONHASHSEED=1", "the same, with PYTHONHASHSEED=2")
            raise Fault(Story(subject.name, "hash order", given, ways, (one, other)))
        ways = (f"{way}, in one process", "the same, in another")
        raise Fault(Story(subject.name, "process", given, ways, (one, other)))
    expected = [output for output in one if output.sn > number]
    if rest is not None and first_difference(expected, rest) is not None:
        ways = (f"{way}, in one process", f"the same; behind {number} all states go to another process, which goes on")
        nothing = replace(given, rows=given.rows.slice(0, 0), sn=given.sn[:0], marks=())
        play(subject, nothing, Way())  # An `open` that clears what is kept has left there what the last run did.
        places = Outside(subject.factory, subject.parameters).changed_by(lambda: play(subject, given, Way()))
        claim, more = ("shared", changed(places)) if places else ("process", "")
        raise Fault(Story(subject.name, claim, given, ways, (expected, rest), more=more))
