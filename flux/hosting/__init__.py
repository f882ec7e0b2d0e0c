"""Runs an operator of any form for the partitions of one site.

A pooler drives every operator through `Hosted`: a batch with rows of many partitions in, a batch in (sn, sub,
partition) order out. The three forms differ in who tells partitions apart: for an `Operator` `per_partition` does it,
with one stable sort for all; for a `KeyedOperator` `per_key`, with a dict per partition; a `PooledOperator` itself.

Whatever goes wrong in user code becomes an `OperatorError` that names the step, the callable and its line, the
partition, and the row if one can tell. `OperatorError.row` is the sequence number, the one name of a row that is the
same in every copy. State is handed over by reference: encode it before the next call.
"""

from __future__ import annotations

from typing import Any

from ..errors import PlanError
from ..operator import KeyedOperator, Operator, OperatorStep, PooledOperator, check_constructor, made_by
from ..wire.values import Vocabulary
from .hosted import ROW_WAS, Hosted
from .per_key import NAN, PerKey, keys_of
from .per_partition import PerPartition
from .pooled import Pooled

__all__ = ["NAN", "ROW_WAS", "Hosted", "check_operator_class", "host", "keys_of"]

# The form, what drives it, and the method without which it does nothing.
_FORMS: tuple[tuple[type[Any], type[Hosted], str], ...] = (
    (Operator, PerPartition, "process(self, batch)"),
    (KeyedOperator, PerKey, "on_tuple(self, key, row, state)"),
    (PooledOperator, Pooled, "process(self, batch)"),
)


def host(step: OperatorStep) -> Hosted:
    """Return what drives the step's operator, by its form."""
    made, hosted, words = form_of(step.factory, step.name)
    driving = hosted(step, getattr(made, "state_in_memory", True))
    driving.words = words
    return driving


def check_operator_class(factory: Any, name: str) -> type[Any]:
    """Return the class of an operator, or raise `PlanError`: so that what is none is not found out on a site."""
    made, _, _ = form_of(factory, name)
    for form, _, method in _FORMS:
        called = method.partition("(")[0]
        if issubclass(made, form) and getattr(made, called) is getattr(form, called):
            raise PlanError(
                f"step {name!r}: a flux.{form.__name__} is given rows by {method}, and {made.__name__} does not define "
                "it. Define it"
            )
    if made is factory:
        check_constructor(made, name)
    return made


def form_of(factory: Any, name: str) -> tuple[type[Any], type[Hosted], Vocabulary]:
    """Return an operator's class, what drives it, and what its state is made of."""
    made = factory if isinstance(factory, type) else type(made_by(factory, name))
    for form, hosted, _ in _FORMS:
        if issubclass(made, form):
            return made, hosted, _words(made, name)
    what = repr(made.__name__) if made is factory else f"{name}, which makes instances of {made.__name__}"
    raise PlanError(
        f"step {name!r}: expected an operator class (flux.Operator, KeyedOperator or PooledOperator), came {what}. "
        "Derive it from one of them, or wrap it"
    )


def _words(made: type[Any], name: str) -> Vocabulary:
    types = getattr(made, "state_types", ())
    if not isinstance(types, tuple | list):
        raise PlanError(
            f"step {name!r}: state_types is a tuple of classes, came {types!r:.100}. Write state_types = "
            f"({getattr(types, '__name__', 'Visit')},)"
        )
    return Vocabulary.of(made, f"step {name!r}")
