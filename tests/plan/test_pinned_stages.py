"""Which stages no policy moves: those that the user pins, and those that a move would end."""

from __future__ import annotations

from typing import Any

import pytest

import flux
from flux.model.operator import OperatorStep
from flux.plan import Plan, Segment


class Counts(flux.Operator):
    """It counts rows, and says nowhere how its count goes to another site."""

    def open(self, context: flux.Context) -> None:
        self.rows = 0


class Copied(Counts):
    def get_state(self) -> Any:
        return self.rows

    def install_state(self, state: Any) -> None:
        self.rows = state


class Keyed(flux.KeyedOperator):
    """A keyed operator's state can always go to another site."""


class Pooled(flux.PooledOperator):
    """One that does not say how its partitions go to another site."""


@pytest.mark.parametrize(
    ("factory", "availability", "is_pinned"),
    [
        (Counts, "none", True),
        (Counts, "pairs", False),
        (Copied, "none", False),
        (Keyed, "none", False),
        (Pooled, "none", True),
        (flux.operators.Distinct, "none", False),
    ],
)
def test_single_copies_that_cannot_be_moved_stay_where_they_are(
    factory: Any, availability: Any, is_pinned: bool
) -> None:
    step = OperatorStep(factory, {}, factory.__name__, ("n",), 4, 0)
    segment = Segment(columns=("n",), partitions=4, availability=availability, steps=(step,))
    plan = Plan(name="pinned", segments=(segment,), sites=3, standby=0, pool_rows=100)
    assert plan.pinned_stages == (frozenset({1}) if is_pinned else frozenset())
