"""Steps are named by their class, later ones of a name with a number, or as the user says."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import flux
from flux.plan.plan import Plan
from flux.plan.policy import Policy
from flux.plan.step_places import place_of_step, step_names


class Same(flux.Operator):
    output: ClassVar = {"k": "int64"}

    def process(self, batch: flux.Batch) -> Any:
        return batch


def plan_of(flow: flux.Dataflow) -> Plan:
    return flow._logical.plan(2, 0, "pairs", 1_000, Policy())


def flow_of(*names: str | None) -> flux.Dataflow:
    flow = flux.Dataflow("names")
    stream = flow.source(flux.sources.Table([{"k": 1}])).exchange("k", partitions=2)
    for name in names:
        stream = stream.apply(Same) if name is None else stream.apply(Same).named(name)
    stream.sink(flux.sinks.Null())
    return flow


def test_the_second_of_a_name_has_a_number() -> None:
    assert step_names(plan_of(flow_of(None, "fraud", None))) == {"Same": (1, 0), "fraud": (1, 1), "Same#2": (1, 2)}


def test_a_step_that_the_user_named_is_called_so() -> None:
    plan = plan_of(flow_of("fraud"))
    assert [step.name for step in plan.segment(1).steps] == ["fraud"]
    assert place_of_step(plan, "fraud") == (1, 0)
    with pytest.raises(flux.ChangeError, match="has no step 'Same'; its steps are 'fraud'"):
        place_of_step(plan, "Same")


def test_a_name_is_for_one_step() -> None:
    with pytest.raises(flux.PlanError, match="has a step named 'fraud' already"):
        flow_of("fraud", "fraud")


@pytest.mark.parametrize("name", ["", 7, None])
def test_a_name_is_text(name: Any) -> None:
    stream = flux.Dataflow("x").source(flux.sources.Table([{"k": 1}])).map(lambda row: {"k": row.k}, {"k": "int64"})
    with pytest.raises(flux.PlanError, match="takes the name of a step"):
        stream.named(name)


def test_what_is_no_step_has_no_name() -> None:
    source = flux.Dataflow("x").source(flux.sources.Table([{"k": 1}]))
    for stream in (source, source.exchange("k")):
        with pytest.raises(flux.PlanError, match="what is before it here is not one step"):
            stream.named("fraud")


def test_a_step_in_the_ingress_cannot_be_changed_and_the_error_says_what_to_do() -> None:
    flow = flux.Dataflow("x")
    made = flow.source(flux.sources.Table([{"k": 1}])).map(lambda row: {"k": row.k}, {"k": "int64"}).named("parse")
    made.exchange("k", partitions=2).apply(Same).sink(flux.sinks.Null())
    with pytest.raises(flux.ChangeError, match=r"step 'parse' runs in the ingress.*Put an exchange before it"):
        place_of_step(plan_of(flow), "parse")
