"""What shows itself only now and then is told with what was seen, and as chance: hypothesis alone would say flaky."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import strategies as st

from flux.testing import Fault, check_operator
from flux.types.errors import PlanError

from . import faulty

ROWS = st.lists(
    st.fixed_dictionaries({"word": st.sampled_from(["to", "be"]), "value": st.floats(0, 100)}), min_size=1, max_size=6
)


def fault_of(operator: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        check_operator(operator, rows=ROWS, key="word", examples=40)
    return caught.value


def test_what_is_raised_once_and_not_again_is_told_with_its_cause() -> None:
    calls = itertools.count()

    class Once(faulty.Totals):
        def process(self, batch: Any) -> Any:
            if next(calls) == 50:
                raise ValueError("the fiftieth")
            return super().process(batch)

    fault = fault_of(Once)
    text = str(fault)
    assert fault.claim == "chance"
    assert text.startswith("Once is non-deterministic: it does not do the same each time.\n\nThe input, in order:"), (
        text
    )
    assert "raised ValueError: the fiftieth" in text
    assert "the fault occurred once, and then in none of 5 runs of the same input." in text


def test_rare_randomness_is_not_taken_for_a_matter_of_batches() -> None:
    rng = random.Random(3)

    class Rarely(faulty.Totals):
        def process(self, batch: Any) -> Any:
            if rng.random() < 0.005:
                return None
            return super().process(batch)

    fault = fault_of(Rarely)
    assert fault.claim in ("repeats", "chance"), str(fault)
    assert "It is non-deterministic: the fault occurred once, and then in " in str(fault)


def test_rows_that_do_not_depend_on_hypothesis_alone_are_a_plan_error() -> None:
    drawn = itertools.count()

    @st.composite
    def moody(draw: Any) -> Any:
        count = 1 + next(drawn) % 3
        return [{"word": draw(st.sampled_from(["to", "be"])), "value": draw(st.floats(0, 9))} for _ in range(count)]

    with pytest.raises(PlanError, match=r"^check_operator: rows is non-deterministic.*Inconsistent data generation"):
        check_operator(faulty.Totals, rows=moody(), key="word", examples=40)


def test_what_is_wrong_with_the_plan_now_and_then_is_told_with_its_cause() -> None:
    calls = itertools.count()

    def moody() -> Any:
        if next(calls) == 60:
            raise PlanError("not today")
        return faulty.Totals()

    with pytest.raises(PlanError, match="not today"):
        check_operator(moody, rows=ROWS, key="word", examples=40)
