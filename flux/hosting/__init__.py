"""Hosts, which run an operator of any form for the partitions of one site.

A pooler drives every operator through `Hosted`: a batch with rows of many partitions in, a batch in (sn, sub,
partition) order out. The three forms differ in the part that separates partitions. For an `Operator` it is
`per_partition`, with one stable sort for all; for a `KeyedOperator` it is `per_key`, with a dict per partition. A
`PooledOperator` does it itself.

Any error in user code becomes an `OperatorError` with the step, the callable and its line, the partition, and the row
if it is known. `OperatorError.row` is the sequence number, the one name of a row that is the same in every copy.
State is passed by reference: encode it before the next call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..model.operator import KeyedOperator, Operator, OperatorStep, PooledOperator, check_constructor, operator_class
from ..model.plain_calls import check_sync_methods
from ..types.errors import PlanError
from ..wire.state_types import StateTypes
from .hosted import ROW_WAS, Hosted
from .hosted_editions import HostedEditions, StepEdition
from .per_key import NAN, PerKey, keys_within
from .per_partition import PerPartition
from .pooled import Pooled
from .state_change import StateChange

__all__ = [
    "NAN",
    "ROW_WAS",
    "Hosted",
    "HostedEditions",
    "StateChange",
    "StepEdition",
    "checked_operator",
    "host",
    "hosted_editions",
    "keys_within",
    "operator_form",
]


class _Form(NamedTuple):
    """A form of operators, its host, and the method that every operator of the form must define."""

    base: type[Any]
    hosted: type[Hosted]
    method: str


_FORMS = (
    _Form(Operator, PerPartition, "process(self, batch)"),
    _Form(KeyedOperator, PerKey, "on_tuple(self, key, row, state)"),
    _Form(PooledOperator, Pooled, "process(self, batch)"),
)


def host(step: OperatorStep) -> Hosted:
    """Return the host for the step's operator, by its form."""
    declaring = operator_class(step.factory, step.name)
    kind, form = _kind_of(declaring), _form_of(declaring, step.factory, step.name)
    hosted = form.hosted(step, getattr(declaring, "state_in_memory", True))
    hosted.words = _state_types(kind, step.name)
    return hosted


def hosted_editions(step: OperatorStep) -> HostedEditions:
    """Return the host for a step whose code may change."""
    return HostedEditions(step, host)


def operator_form(factory: Any, name: str) -> type[Any]:
    """Return the base class of the operator: `Operator`, `KeyedOperator` or `PooledOperator`."""
    return _form_of(operator_class(factory, name), factory, name).base


def checked_operator(factory: Any, name: str) -> Any:
    """Return the operator class, as `operator_class` does; `PlanError` if it is not an operator."""
    declaring = operator_class(factory, name)
    kind, form = _kind_of(declaring), _form_of(declaring, factory, name)
    called = form.method.partition("(")[0]
    if getattr(kind, called) is getattr(form.base, called):
        raise PlanError(
            f"step {name!r}: a flux.{form.base.__name__} gets its rows in {form.method}, and {kind.__name__} does not "
            "define it. Define it"
        )
    check_sync_methods(f"step {name!r}", kind, form.base)
    if form.base is PooledOperator and hasattr(kind, "process_with_punctuations"):
        _check_on_punctuation(kind, name)
    if declaring is factory:
        check_constructor(factory, name)
    _state_types(kind, name)
    return declaring


def _check_on_punctuation(kind: type[PooledOperator], name: str) -> None:
    """Raise if an operator that takes rows with punctuations would miss punctuations without rows."""
    if kind.on_punctuation is PooledOperator.on_punctuation:
        raise PlanError(
            f"step {name!r}: {kind.__name__} defines process_with_punctuations, which gets rows and the punctuations "
            "among them; punctuations without rows go to on_punctuation. Define on_punctuation(self, p) too"
        )


def _kind_of(declaring: Any) -> type[Any]:
    return declaring if isinstance(declaring, type) else type(declaring)


def _form_of(declaring: Any, factory: Any, name: str) -> _Form:
    kind = _kind_of(declaring)
    for form in _FORMS:
        if issubclass(kind, form.base):
            return form
    what = repr(kind.__name__) if kind is factory else f"{name}, which returns instances of {kind.__name__}"
    raise PlanError(
        f"step {name!r}: expected an operator class (flux.Operator, KeyedOperator or PooledOperator), got {what}. "
        "Derive it from one of them, or wrap it"
    )


def _state_types(kind: type[Any], name: str) -> StateTypes:
    types = getattr(kind, "state_types", ())
    if not isinstance(types, tuple | list):
        raise PlanError(
            f"step {name!r}: state_types is a tuple of classes, got {types!r:.100}. Write state_types = "
            f"({getattr(types, '__name__', 'Visit')},)"
        )
    return StateTypes.of(kind, f"step {name!r}")
