"""Parameters of the library's operators that may change while rows flow; all others are refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import flux
from flux.hosting import StateChange, StepEdition, hosted_editions
from flux.hosting.edition_code import EditionCode
from flux.hosting.step_editions import changed_step
from flux.model.operator import OperatorStep, PooledOperator
from flux.model.punctuation import Punctuation
from flux.plan.change_spec import StepChange
from flux.types.errors import ChangeError

from .feeding import PARTITIONS, batch_of, step_of

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})


def change(**parameters: Any) -> StepChange:
    return StepChange(
        stage=1,
        place=0,
        since=1,
        operator="",
        sources=(),
        migrate="",
        migrate_sources=(),
        parameters=parameters,
        output=b"",
    )


def as_planned(step: OperatorStep) -> StepEdition:
    return StepEdition(step, StateChange())


def fed(hosted: Any, edition: int, rows: list[tuple[int, int]], first_sn: int) -> list[dict[str, Any]]:
    hosted.begin(edition, range(PARTITIONS))
    made = hosted.work(batch_of(rows, SCHEMA, [key % PARTITIONS for key, _ in rows], first_sn), ())
    return [] if made is None else list(made.arrow.to_pylist())


def ended(hosted: Any, edition: int, sn: int) -> list[dict[str, Any]]:
    hosted.begin(edition, range(PARTITIONS))
    made = hosted.work(None, (Punctuation(sn, "end"),))
    return [] if made is None else list(made.arrow.to_pylist())


def test_a_group_by_emits_at_the_end_after_a_change_and_its_aggregates_go_on() -> None:
    step = step_of(flux.operators.GroupBy, SCHEMA, ("k",), aggregates={"n": "count", "sum": ("sum", "v")})
    hosted = hosted_editions(step)
    hosted.open(range(PARTITIONS))
    assert fed(hosted, 0, [(1, 10), (2, 20)], 1) == [{"k": 1, "n": 1, "sum": 10}, {"k": 2, "n": 1, "sum": 20}]
    hosted.add(1, changed_step(step, as_planned(step), change(emit="watermarks"), EditionCode()))
    assert fed(hosted, 1, [(1, 5), (3, 7)], 3) == []
    made = sorted(ended(hosted, 1, 5), key=lambda row: row["k"])
    assert made == [{"k": 1, "n": 2, "sum": 15}, {"k": 3, "n": 1, "sum": 7}]


def test_a_top_k_ranks_more_rows_after_a_change_or_fewer() -> None:
    step = step_of(flux.operators.TopK, SCHEMA, ("k",), k=2, by="v")
    hosted = hosted_editions(step)
    hosted.open(range(PARTITIONS))
    fed(hosted, 0, [(1, 10), (1, 20), (1, 30)], 1)
    more = changed_step(step, as_planned(step), change(k=3), EditionCode())
    hosted.add(1, more)
    fed(hosted, 1, [(1, 5)], 4)
    assert [row["v"] for row in ended(hosted, 1, 5)][:2] == [30, 20]
    hosted.add(2, changed_step(step, more, change(k=1), EditionCode()))
    fed(hosted, 2, [(1, 35)], 6)
    assert [(row["v"], row["rank"]) for row in ended(hosted, 2, 7)] == [(35, 1)]


@pytest.mark.parametrize(
    ("operator", "parameters", "changed"),
    [
        (flux.operators.CountWindow, {"value": "v", "history": 3}, {"history": 5}),
        (flux.operators.TopK, {"k": 2, "by": "v"}, {"by": "k"}),
        (flux.operators.Distinct, {}, {"on": ["k", "v"]}),
        (flux.operators.TimeWindow, {"time": "v", "size_ms": 10, "aggregates": {"n": "count"}}, {"size_ms": 20}),
        (flux.operators.SessionWindow, {"time": "v", "gap_ms": 10, "aggregates": {"n": "count"}}, {"gap_ms": 20}),
        (flux.operators.GroupBy, {"aggregates": {"n": "count"}}, {"aggregates": {"n": ("sum", "v")}}),
    ],
)
def test_what_the_state_depends_on_is_refused_by_name(operator: Any, parameters: Any, changed: Any) -> None:
    step = replace(step_of(operator, SCHEMA, ("k",), **parameters), rows=SCHEMA)
    [name] = changed
    with pytest.raises(ChangeError, match=f"its state depends on {name}, which cannot be changed"):
        changed_step(step, as_planned(step), change(**changed), EditionCode())
    # What stays as it is may be named too.
    edition = changed_step(
        step, as_planned(step), change(**{name: parameters.get(name)} if name in parameters else {}), EditionCode()
    )
    assert isinstance(edition, StepEdition) and edition.change in (StateChange(), StateChange(keeps=True))


def test_every_operator_of_the_library_says_what_may_change() -> None:
    operators = [each for each in vars(flux.operators).values() if isinstance(each, type)]
    silent = [each.__name__ for each in operators if issubclass(each, PooledOperator) and each.changeable is None]
    assert len(operators) > 5 and silent == []
    for each in operators:
        if issubclass(each, PooledOperator) and each.changeable:
            assert hasattr(each, "on_change"), each
