"""Runs an operator of any form for the partitions of one site.

A pooler drives every operator through `Hosted`: a batch with rows of many partitions in, a batch in (sn, sub,
partition) order out. The three forms differ in who tells partitions apart: for an `Operator` `per_partition` does it,
with one stable sort for all; for a `KeyedOperator` `per_key`, with a dict per partition; a `PooledOperator` itself.

Whatever goes wrong in user code becomes an `OperatorError` that names the step, the callable and its line, the
partition, and the row if one can tell. `OperatorError.row` is the sequence number, the one name of a row that is the
same in every copy. State is handed over by reference: encode it before the next call.
"""

from __future__ import annotations

from ..errors import PlanError
from ..operator import KeyedOperator, Operator, OperatorStep, PooledOperator
from ..wire.values import Vocabulary
from .hosted import ROW_WAS, Hosted
from .per_key import NAN, PerKey, keys_of
from .per_partition import PerPartition
from .pooled import Pooled

__all__ = ["NAN", "ROW_WAS", "Hosted", "host", "keys_of"]

_FORMS: tuple[tuple[type, type[Hosted]], ...] = (
    (Operator, PerPartition),
    (KeyedOperator, PerKey),
    (PooledOperator, Pooled),
)


def host(step: OperatorStep) -> Hosted:
    """Return what drives the step's operator, by its form."""
    made = step.factory if isinstance(step.factory, type) else type(step.factory())
    for form, hosted in _FORMS:
        if issubclass(made, form):
            driving = hosted(step, getattr(made, "state_in_memory", True))
            driving.words = Vocabulary.of(made, f"step {step.name!r}")
            return driving
    raise PlanError(
        f"step {step.name!r}: expected an operator class (flux.Operator, KeyedOperator or PooledOperator), "
        f"came {getattr(step.factory, '__name__', step.factory)!r}. Derive it from one of them, or wrap it"
    )
