"""Runs an operator of any form for the partitions of one site.

A pooler drives every operator through `Hosted`: a batch with rows of many partitions in, a batch in (sn, sub,
partition) order out. The three forms differ in who tells partitions apart: for an `Operator` `per_partition` does it,
with one stable sort for all; for a `KeyedOperator` `per_key`, with a dict per partition; a `PooledOperator` itself.

Whatever goes wrong in user code becomes an `OperatorError` that names the step, the callable and its line, the
partition, and the row if one can tell. `OperatorError.row` is the sequence number, the one name of a row that is the
same in every copy. State is handed over by reference: encode it before the next call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..model.operator import KeyedOperator, Operator, OperatorStep, PooledOperator, check_constructor, operator_class
from ..types.errors import PlanError
from ..wire.state_types import StateTypes
from .hosted import ROW_WAS, Hosted
from .per_key import NAN, PerKey, keys_within
from .per_partition import PerPartition
from .pooled import Pooled

__all__ = ["NAN", "ROW_WAS", "Hosted", "checked_operator", "host", "keys_within"]


class _Form(NamedTuple):
    """A form of operators, what drives it, and the method without which it does nothing."""

    base: type[Any]
    hosted: type[Hosted]
    method: str


_FORMS = (
    _Form(Operator, PerPartition, "process(self, batch)"),
    _Form(KeyedOperator, PerKey, "on_tuple(self, key, row, state)"),
    _Form(PooledOperator, Pooled, "process(self, batch)"),
)


def host(step: OperatorStep) -> Hosted:
    """Return what drives the step's operator, by its form."""
    says = operator_class(step.factory, step.name)
    kind, form = _kind_of(says), _form_of(says, step.factory, step.name)
    driving = form.hosted(step, getattr(says, "state_in_memory", True))
    driving.words = _words(kind, step.name)
    return driving


def checked_operator(factory: Any, name: str) -> Any:
    """Return the operator class, as `operator_class` does; `PlanError` if it is not an operator."""
    says = operator_class(factory, name)
    kind, form = _kind_of(says), _form_of(says, factory, name)
    called = form.method.partition("(")[0]
    if getattr(kind, called) is getattr(form.base, called):
        raise PlanError(
            f"step {name!r}: a flux.{form.base.__name__} is given rows by {form.method}, and {kind.__name__} does not "
            "define it. Define it"
        )
    if form.base is PooledOperator and hasattr(kind, "process_with_punctuations"):
        _check_hears(kind, name)
    if says is factory:
        check_constructor(factory, name)
    _words(kind, name)
    return says


def _check_hears(kind: type[PooledOperator], name: str) -> None:
    """Raise if who takes rows and punctuations together would not hear of punctuations that come without rows."""
    if kind.on_punctuation is PooledOperator.on_punctuation:
        raise PlanError(
            f"step {name!r}: {kind.__name__} defines process_marked, which is given rows and the punctuations among "
            "them; those that come without rows are given to on_punctuation. Define on_punctuation(self, p) too"
        )


def _kind_of(says: Any) -> type[Any]:
    return says if isinstance(says, type) else type(says)


def _form_of(says: Any, factory: Any, name: str) -> _Form:
    kind = _kind_of(says)
    for form in _FORMS:
        if issubclass(kind, form.base):
            return form
    what = repr(kind.__name__) if kind is factory else f"{name}, which makes instances of {kind.__name__}"
    raise PlanError(
        f"step {name!r}: expected an operator class (flux.Operator, KeyedOperator or PooledOperator), came {what}. "
        "Derive it from one of them, or wrap it"
    )


def _words(made: type[Any], name: str) -> StateTypes:
    types = getattr(made, "state_types", ())
    if not isinstance(types, tuple | list):
        raise PlanError(
            f"step {name!r}: state_types is a tuple of classes, came {types!r:.100}. Write state_types = "
            f"({getattr(types, '__name__', 'Visit')},)"
        )
    return StateTypes.of(made, f"step {name!r}")
