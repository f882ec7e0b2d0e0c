"""check_operator: whether an operator does what the protocol assumes of it, tried on inputs that hypothesis generates.

Each claim is a property. The order of the properties lets each rely on the ones before it: an operator that draws
random numbers is not reported as one that depends on batching. For each property the operator runs over the same input
in two ways that must not matter. A fault is reported with the smallest input that shows it.
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

_SUBPROCESS_CLAIMS = ("hash order", "process")
_SUBPROCESS_EXAMPLES_MAX = 60
_LONG_SHARE = 10  # One in this many inputs of a claim is a long one, where length matters.


@dataclass(frozen=True)
class Checked:
    """The result of a check without faults. `not_checked` maps each claim that was skipped to the reason."""

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
    """Property-test an operator of any form, also a wrapped one; raise `AssertionError` with a small example.

    `rows` is a hypothesis strategy for lists of rows as dicts, or for one row. `key` names the columns of the exchange
    before the operator; it may be omitted if there is only one column. `parameters` are those of `apply`. `schema` has
    the types of the columns, where they cannot be inferred from the values. Watermarks, clocks and batch boundaries are
    placed among the rows unless `punctuations` is False. With `event_time`, a column of milliseconds or datetimes,
    watermarks are near its values.

    The checks, in this order. The operator emits the same output each time, at any time of day and however much time
    passes. It does not write to its input, or to what it has emitted. Its output does not depend on where batches are
    cut, on a transfer of its state to another site at any point, on which partitions share a site, on the order of
    sets, or on resuming in another process.
    """
    if examples < 1:
        raise PlanError(f"check_operator: examples is how many inputs are tried, at least 1; got {examples}")
    subject = _subject(factory, key, parameters or {})
    inputs = Inputs(rows, _schema(schema), event_time, punctuations)
    clock = FakeClock([factory, subject.parameters])
    in_process, subprocesses = Properties(subject, clock), _subprocess_properties(subject)
    try:
        claims = _try_claims(in_process, inputs, examples)
        if isinstance(subprocesses, str):
            return Checked(subject.name, claims, examples, dict.fromkeys(_SUBPROCESS_CLAIMS, subprocesses))
        search(subprocesses.holds_everywhere, inputs.short(), min(examples, _SUBPROCESS_EXAMPLES_MAX), SLOW_TRIES)
        return Checked(subject.name, (*claims, *_SUBPROCESS_CLAIMS), examples)
    except Fault as fault:
        raise (fault if isinstance(subprocesses, str) else subprocesses.confirm(fault)) from None
    finally:
        if not isinstance(subprocesses, str):
            subprocesses.close()


def _try_claims(in_process: Properties, inputs: Inputs, examples: int) -> tuple[str, ...]:
    """Try the claims that need no other process; return their names."""
    claims: dict[str, Property] = {
        "repeats": in_process.repeats,
        "clock": in_process.at_any_time,
        "batching": in_process.batching,
        "round trip": in_process.round_trip,
    }
    for name, claim in claims.items():
        search(claim, inputs.short(), examples)
        if name == "batching":
            _search_long(in_process, inputs, examples)
    if not inputs.has_rows:
        raise PlanError(
            f"check_operator: rows drew no row in any of the examples, {examples} for each claim, so nothing was "
            "checked. Let it draw some: st.lists(..., min_size=1), or more examples"
        )
    return tuple(claims)


def _subject(factory: Any, key: Any, parameters: dict[str, Any]) -> Subject:
    name = getattr(factory, "__name__", repr(factory))
    if not callable(factory):
        raise PlanError(f"check_operator takes an operator class, or a factory of operators; got {factory!r:.100}")
    operator = checked_operator(factory, name)
    columns = (key,) if isinstance(key, str) else tuple(key or ())
    return Subject(factory, columns, parameters, PARTITIONS, name, form_of(operator))


def _schema(declared: Any) -> Any:
    try:
        return schema_of(declared)
    except ColumnError as error:
        raise PlanError(f"check_operator: schema: {error}") from error


def _search_long(claims: Properties, inputs: Inputs, examples: int) -> None:
    """Try a few long examples. If one shows that batches matter, search for a short one to report."""
    try:
        search(claims.batching_of_many, inputs.long(), max(3, examples // _LONG_SHARE))
    except Fault:
        search(claims.batching, inputs.short(), 5 * examples)
        raise


def _subprocess_properties(subject: Subject) -> SubprocessProperties | str:
    """Return the claims that need other processes, or the reason why they cannot be checked."""
    named = name_of(subject.factory)
    if named is None:
        return f"{subject.name} cannot be imported by a name, because it is not in a module; put it into one"
    try:
        msgpack.packb(subject.parameters)
    except TypeError as error:
        return f"the parameters cannot be sent to another process: {error}"
    return SubprocessProperties(subject, named)
