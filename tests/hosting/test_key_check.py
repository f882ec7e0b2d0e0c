"""A step between exchange and operator that changes the key is found out where the rows are, whatever it is."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import flux
from flux.hosting.key_check import check_key_kept
from flux.model.batch import Batch
from flux.model.operator import OperatorStep
from flux.operators import Distinct, GroupBy
from flux.plan import Plan, Policy, Route
from flux.site.steps import Steps

ROWS = [{"k": n % 40, "v": n} for n in range(200)]
KINDS = {"k": "int64", "v": "int64"}


class Counts(flux.KeyedOperator):
    output = {"k": "int64", "n": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        count = (state or 0) + 1
        return count, [{"k": key[0], "n": count}]


class Tens(flux.Operator):
    output = KINDS

    def process(self, batch: Any) -> Any:
        return batch.emit({"k": batch["k"] // 10, "v": batch["v"]})


def tens(row: Any) -> dict[str, int]:
    return {"k": row.k // 10, "v": row.v}


def same(row: Any) -> dict[str, int]:
    return {"k": row.k, "v": row.v + 1}


def worded(row: Any) -> dict[str, Any]:
    return {"k": f"key {row.k}", "v": row.v}


def plan_of(between: Callable[[flux.Stream], flux.Stream], operator: Any = Counts, **exchange: Any) -> Plan:
    flow = flux.Dataflow("kept")
    exchanged = flow.source(flux.sources.Table(ROWS)).exchange("k", **{"partitions": 4, **exchange})
    parameters = {"aggregates": {"n": "count"}} if operator is GroupBy else {}
    between(exchanged).apply(operator, **parameters).sink(flux.sinks.Null())
    return flow._logical.plan(2, 0, "pairs", 1_000, Policy())


def emitted(plan: Plan) -> list[Any]:
    """What the segment makes of the rows, each in its partition."""
    rows, sn = pa.RecordBatch.from_pylist(ROWS), np.arange(1, len(ROWS) + 1)
    steps = Steps(plan, 1)
    steps.open(range(plan.partitions(1)))
    [made] = steps.process(Batch(rows, sn, None, plan.edges[0].route.partition(rows, sn, None))).values()
    return list(made.arrow.to_pylist())


BY_RANGE = {"by": "range", "boundaries": [10, 20, 30]}


@pytest.mark.parametrize("exchange", [{}, BY_RANGE], ids=["by hash", "by range"])
@pytest.mark.parametrize("operator", [Counts, Distinct, GroupBy])
@pytest.mark.parametrize(
    "between",
    [
        lambda s: s.map(tens, KINDS),
        lambda s: s.map(tens),
        lambda s: s.map(same, KINDS).map(tens, KINDS).filter(bool),
        lambda s: s.flat_map(lambda row: [tens(row)] * 2, KINDS),
        lambda s: s.map(worded, {"k": "string", "v": "int64"}),
        lambda s: s.apply(Tens),
    ],
    ids=["map", "undeclared", "several", "flat_map", "another type", "operator"],
)
def test_a_changed_key_is_an_error_that_says_what_to_do(between: Any, operator: Any, exchange: Any) -> None:
    says = r"a step between the exchange by 'k' and this one has changed the key, to \{'k': .*Put the step before"
    with pytest.raises(flux.OperatorError, match=says) as caught:
        emitted(plan_of(between, operator, **exchange))
    assert caught.value.step == operator.__name__
    assert caught.value.row is not None and caught.value.partition in range(4)


@pytest.mark.parametrize("exchange", [{}, BY_RANGE, {"partitions": 1}], ids=["by hash", "by range", "one partition"])
@pytest.mark.parametrize("operator", [Counts, GroupBy])
def test_a_key_that_was_kept_is_none(operator: Any, exchange: Any) -> None:
    made = emitted(plan_of(lambda s: s.map(same, KINDS).flat_map(lambda row: [same(row)], KINDS), operator, **exchange))
    assert Counter(row["k"] for row in made) == Counter(row["k"] for row in ROWS)
    assert {row["n"] for row in made} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("between", "is_asked"),
    [
        (lambda s: s, False),
        (lambda s: s.filter(bool).select("v", "k"), False),
        (lambda s: s.map(same, KINDS), True),
    ],
)
def test_rows_are_asked_only_where_the_plan_does_not_know(between: Any, is_asked: bool) -> None:
    asked = [step.name for step in plan_of(between).segment(1).steps if step.route is not None]
    assert asked == (["Counts"] if is_asked else [])


@pytest.mark.parametrize("cuts", [[], [9_999, 10_000, 10_001], list(range(0, 20_000, 777))])
def test_of_text_some_rows_are_asked_and_the_same_however_they_are_cut(cuts: list[int]) -> None:
    texts = [f"key {n % 700}" for n in range(20_000)]
    step = OperatorStep(Counts, {}, "Counts", ("k",), 4, 0, route=Route(partitions=4, columns=("k",)))
    before = pa.record_batch({"k": texts})
    partition = step.route.partition(before, np.arange(20_000), None)
    after = pa.record_batch({"k": [*texts[:10_000], *("changed" for _ in texts[10_000:])]})
    batch = Batch(after, np.arange(1, 20_001), None, partition)
    ask = partial(check_key_kept, step)
    with pytest.raises(flux.OperatorError, match=r"to \{'k': 'changed'\} in this row") as caught:
        list(map(ask, (batch.slice(start, stop) for start, stop in pairwise([0, *cuts, 20_000]))))
    assert caught.value.row == 10_016
    check_key_kept(step, Batch(before, np.arange(1, 20_001), None, partition))


def test_a_run_in_which_the_key_changes_stops_and_says_so() -> None:
    flow = flux.Dataflow("changed")
    exchanged = flow.source(flux.sources.Table(ROWS)).exchange("k", partitions=4)
    exchanged.map(tens, KINDS).apply(Counts).sink(flux.sinks.Null())
    with pytest.raises(flux.OperatorError, match="has changed the key"):
        flow.run(sites=2)
