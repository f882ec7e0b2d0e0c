"""What bytewax's operators make within is found in a dataflow; `collect` counts by the time of the stream."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import flux
from flux.types.errors import PlanError
from tests.adapters.bytewax_flows import CASES, Case, builder_of, by_bytewax, by_key, dataflow, op
from tests.adapters.moving_about import emitted
from tests.adapters.test_bytewax import events, some_rows, wrapped

COLLECT = Case(
    lambda up: op.collect("c", up, timedelta(seconds=2), 3),
    lambda key, rows: {"k": key[0], "kind": "", "text": str([row["v"] for row in rows])},
    {"k": "string", "kind": "string", "text": "string"},
)


@pytest.mark.parametrize("moves", [[], [0, 3, 4, 17, 30]])
def test_collecting_gives_what_bytewax_gives_while_no_time_goes_by(moves: list[int]) -> None:
    rows = some_rows(40, seed=3)
    assert by_key(emitted(wrapped(COLLECT), rows, key=("k",), moves=moves)) == by_bytewax(COLLECT, rows)


@pytest.mark.parametrize("moves", [[], [1, 3]])
def test_what_is_collected_comes_when_the_stream_says_that_the_time_is_over(moves: list[int]) -> None:
    """bytewax gives this logic the system's clock, and a user cannot give it another."""
    a, b = ({"k": k, "v": v, "ts": 0} for k, v in (("a", 1), ("b", 2)))
    given = [a, *events(1), b, *events(2), a, *events(3), b]
    got = [(row["k"], row["text"]) for row in emitted(wrapped(COLLECT), given, key=("k",), moves=moves)]
    assert got == [("a", "[1]"), ("b", "[2]"), ("a", "[1]"), ("b", "[2]")]


def test_collecting_where_nobody_tells_the_time_is_a_plan_error() -> None:
    flow = flux.Dataflow("collecting")
    rows = flow.source(flux.sources.Table(some_rows(4))).exchange("k")
    rows.apply(wrapped(COLLECT)).sink(flux.sinks.Collect())
    with pytest.raises(PlanError, match=r"notified by the clock, and no source .* Table"):
        flow.explain()


def test_a_dataflow_of_bytewax_may_be_given_for_the_logic_in_it() -> None:
    case = CASES["stateful map"]
    operator = flux.wrap_bytewax(dataflow(case, [], []), emit=case.emit, output=case.output)
    rows = some_rows(40)
    assert operator.__name__ == "case.map"
    assert by_key(emitted(operator, rows, key=("k",), moves=[5])) == by_bytewax(case, rows)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda up: op.map_value("m", up, str), "case has no stateful step"),
        (
            lambda up: op.stateful_map("two", op.stateful_map("one", up, lambda s, v: (s, v)), lambda s, v: (s, v)),
            "case has several stateful steps, case.one and case.two.*one of them",
        ),
    ],
)
def test_a_dataflow_without_one_logic_is_a_plan_error(build: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        flux.wrap_bytewax(dataflow(Case(build, lambda key, value: None, {}), [], []))


def test_an_operator_of_bytewax_is_no_builder_and_the_error_says_what_is() -> None:
    with pytest.raises(PlanError, match=r"wrap_bytewax\(fold_final\).*or a Dataflow of bytewax's"):
        flux.wrap_bytewax(op.fold_final)


def test_what_windows_emit_is_no_row_and_must_be_made_one() -> None:
    with pytest.raises(PlanError, match=r"emits \(window, kind, value\).*emit=lambda key, event"):
        flux.wrap_bytewax(builder_of(CASES["sliding windows"]))
