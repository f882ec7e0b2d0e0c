"""check_operator: whether an operator does what the protocol assumes of it, tried on inputs that hypothesis makes up.

Each claim is a property of its own, and they are tried in an order in which each may rely on those before: an operator
that draws random numbers does not depend on batching. For each, the operator is run over the same input in two ways
that must not matter. What is found is told with the smallest input that shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack
from hypothesis import strategies as st

from ..hosting import checked_operator
from ..types.arrays import ColumnError, schema_of
from ..types.errors import PlanError
from .fake_clock import FakeClock
from .fault_report import Fault, form_of
from .fault_search import SLOW_TRIES, Property, search
from .harness import Subject
from .properties import Properties
from .properties_subprocess import SubprocessProperties
from .strategies import PARTITIONS, Inputs
from .subprocess_run import name_of

__all__ = ["Checked", "check_operator"]

_ELSEWHERE = ("hash order", "process")
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
    drawn = Inputs(rows, _schema(schema), event_time, punctuations)
    here, elsewhere = Properties(subject, FakeClock([factory, subject.parameters])), _elsewhere(subject)
    try:
        claims = _tried(here, drawn, examples)
        if isinstance(elsewhere, str):
            return Checked(subject.name, claims, examples, dict.fromkeys(_ELSEWHERE, elsewhere))
        search(elsewhere.holds_everywhere, drawn.short(), min(examples, _ELSEWHERE_EXAMPLES), SLOW_TRIES)
        return Checked(subject.name, (*claims, *_ELSEWHERE), examples)
    except Fault as fault:
        raise (fault if isinstance(elsewhere, str) else elsewhere.made_sure(fault)) from None
    finally:
        if not isinstance(elsewhere, str):
            elsewhere.close()


def _tried(here: Properties, drawn: Inputs, examples: int) -> tuple[str, ...]:
    """Try the claims that can be tried in this process; return their names."""
    claims: dict[str, Property] = {
        "repeats": here.repeats,
        "clock": here.at_any_time,
        "batching": here.batching,
        "round trip": here.round_trip,
    }
    for name, claim in claims.items():
        search(claim, drawn.short(), examples)
        if name == "batching":
            _search_long(here, drawn, examples)
    if not drawn.any_rows:
        raise PlanError(
            f"check_operator: rows drew no row in any of the examples, {examples} for each claim, so nothing was "
            "checked. Let it draw some: st.lists(..., min_size=1), or more examples"
        )
    return tuple(claims)


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


def _search_long(claims: Properties, drawn: Inputs, examples: int) -> None:
    """Try long examples, a few. If one shows that batches matter, look harder for a short one to tell."""
    try:
        search(claims.batching_of_many, drawn.long(), max(3, examples // _LONG_SHARE))
    except Fault:
        search(claims.batching, drawn.short(), 5 * examples)
        raise


def _elsewhere(subject: Subject) -> SubprocessProperties | str:
    """The claims that need other processes; or why there can be none."""
    named = name_of(subject.factory)
    if named is None:
        return f"{subject.name} cannot be imported by a name, because it is not in a module; put it into one"
    try:
        msgpack.packb(subject.parameters)
    except TypeError as error:
        return f"the parameters cannot be given to another process: {error}"
    return SubprocessProperties(subject, named)
