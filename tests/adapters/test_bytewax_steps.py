"""The stateful steps of bytewax's tests, examples and tutorials give in Flux what they give in bytewax."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import flux
from flux.model.punctuation import Punctuation
from tests.adapters.bytewax_flows import builder_of, by_key, dataflow, op, run_main
from tests.adapters.bytewax_steps import EXAMPLES, STEPS, TESTS, Step, changes
from tests.adapters.moving_about import emitted

PAGE = Path(__file__).parents[2] / "docs/bytewax.rst"
NOW = Punctuation(0, "clock", 1_790_000_000_000)


def operator_of(step: Step) -> Any:
    case = step.case
    return flux.wrap_bytewax(
        builder_of(case), value=case.value, emit=case.emit, output=case.output, state_types=step.state_types
    )


def by_flux(step: Step, moves: list[int]) -> dict[Any, list[str]]:
    given = [*([NOW] if step.needs_clock else []), *step.rows]
    return by_key(emitted(operator_of(step), given, key=("k",), moves=moves))


def by_bytewax(step: Step) -> dict[Any, list[str]]:
    """With an epoch for each row, as bytewax's tests have it: rows are not gathered to batches."""
    out: list[Any] = []
    run_main(dataflow(step.case, step.rows, out), epoch_interval=timedelta())
    return by_key(row for key, value in out if (row := step.case.emit((key,), value)) is not None)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_gives_what_bytewax_gives_wherever_its_keys_move(name: str) -> None:
    step = STEPS[name]
    expected = by_bytewax(step)
    assert expected, "nothing comes out, so it shows nothing"
    assert by_flux(step, []) == expected
    assert by_flux(step, list(range(0, len(step.rows), 2))) == expected


def test_the_page_counts_the_steps_and_what_they_need() -> None:
    count = Counter(need for step in STEPS.values() for need in changes(step) or {"nothing"})
    page = " ".join(PAGE.read_text().split())
    assert f"of these {len(STEPS)} steps ({len(TESTS)} of its tests, {len(EXAMPLES)} of its examples" in page
    assert f"{count['nothing']} run as they are, {count['state_types']} once" in page
    assert f"and {count['needs_clock']} where a source" in page


def test_a_step_that_returns_no_pair_is_an_error_that_names_it() -> None:
    def wrong(state: Any, value: Any) -> Any:
        return value

    step = Step(lambda up: op.stateful_map("wrong", up, wrong), [("a", 1)])
    with pytest.raises(flux.OperatorError, match="2-tuple"):
        by_flux(step, [])
