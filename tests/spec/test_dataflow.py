"""The dataflow of the simulated worlds and its plain run."""

from __future__ import annotations

import doctest
import random
from collections import Counter
from dataclasses import replace

import pytest

import flux.spec.dataflow
from flux.protocols.egress import Egress
from flux.protocols.messages import Ahead, Hello, Pull
from flux.spec.dataflow import EGRESS, END, OperatorState, Row, Scenario, declustered, operate
from flux.spec.process import Violated
from flux.spec.story import describe, show
from flux.spec.walk import steps
from flux.spec.world import NO_DETAIL, World

SCENARIO = Scenario(sites=3, copies=declustered(3, [3, 2]), batches=((1, 2, 3), (4, 5)), bound_rows=2)
# What stage 1 emits goes to stage 2 and to the egress, which takes from both.
JOIN = Scenario(
    sites=2,
    copies=declustered(2, [1, 1]),
    batches=((1, 4),),
    bound_rows=10,
    edges=((0, 1), (1, 2), (1, 3), (2, 3)),
)
CALM = replace(JOIN, crashes=0)


def test_copies_of_a_partition_are_on_different_sites() -> None:
    for sites in range(2, 6):
        for copies in declustered(sites, [8])[0]:
            assert len(set(copies)) == 2


def test_more_copies_than_sites_are_refused() -> None:
    with pytest.raises(AssertionError, match="need as many sites"):
        declustered(1, [1])


def test_examples_in_docstrings_hold() -> None:
    assert doctest.testmod(flux.spec.dataflow).failed == 0


def test_the_source_numbers_rows_and_ends_with_a_row_to_every_partition() -> None:
    first, last = SCENARIO.source
    assert [row.sn for row in first] == [1, 2, 3]
    assert [(row.sn, row.consumer) for row in last if row.value == END] == [(6, 0), (6, 1), (6, 2)]


def test_the_operator_does_not_depend_on_batches() -> None:
    reference = SCENARIO.reference
    rows = reference.rows(2, 0, 0, reference.last_sn)
    last = reference.last_sn
    whole = operate(SCENARIO, 2, 0, OperatorState(), rows, 0, last)
    for cut in range(last + 1):
        state, before = operate(SCENARIO, 2, 0, OperatorState(), reference.rows(2, 0, 0, cut), 0, cut)
        assert state == reference.state(2, 0, cut)
        state, after = operate(SCENARIO, 2, 0, state, reference.rows(2, 0, cut, last), cut, last)
        assert (state, before + after) == whole


def test_the_operator_emits_none_one_or_two_rows() -> None:
    rows = [Row(1, 0, 0, 0, 0, value) for value in (3, 4, 5)]
    assert [len(operate(SCENARIO, 1, 0, OperatorState(), [row], 0, 1)[1]) for row in rows] == [1, 2, 0]


def test_the_egress_sees_the_end_of_every_producer() -> None:
    reference = SCENARIO.reference
    assert reference.state(3, 0, reference.last_sn).ends == 2
    assert reference.state(3, 0, reference.last_sn - 1).ends == 0


def test_a_row_goes_along_every_edge_out_of_its_stage() -> None:
    first = JOIN.reference.rows(1, 0, 0, 1)
    _, out = operate(JOIN, 1, 0, OperatorState(), first, 0, 1)
    assert [(row.edge, row.sn, row.sub) for row in out] == [(1, 1, 0), (2, 1, 0), (1, 1, 1), (2, 1, 1)]
    assert len({row.value for row in out if row.edge == 1} ^ {row.value for row in out if row.edge == 2}) == 0


def test_a_join_merges_its_edges_by_number_and_ties_by_edge() -> None:
    rows = JOIN.reference.rows(3, 0, 0, JOIN.reference.last_sn)
    assert {row.edge for row in rows} == {2, 3}
    assert [(row.sn, row.sub, row.edge) for row in rows] == sorted((row.sn, row.sub, row.edge) for row in rows)


def test_a_join_ends_when_all_its_producers_have() -> None:
    assert JOIN.producers == (0, 1, 1, 2)
    assert JOIN.reference.state(3, 0, JOIN.reference.last_sn).ends == 2


def test_a_world_may_crash_sites_as_often_as_its_scenario_says() -> None:
    world = World(SCENARIO)
    assert world.may_crash() == ["site-1", "site-2", "site-3"]
    world.do(("crash", "site-2", NO_DETAIL))
    assert world.may_crash() == []
    world.finish()


@pytest.mark.parametrize(
    ("scenario", "faults"),
    [
        (replace(CALM, restarts=1), {("crash", "ingress"), ("crash", "egress"), ("crash", "controller")}),
        (replace(CALM, suspicions=1), {("suspect", "site-1"), ("suspect", "site-2")}),
        (replace(CALM, cuts=1), {("cut", "ingress"), ("cut", "site-1"), ("cut", "site-2")}),
    ],
)
def test_a_world_allows_each_fault_as_often_as_its_scenario_says(
    scenario: Scenario, faults: set[tuple[str, str]]
) -> None:
    world = World(scenario)
    assert {(kind, name) for kind, name, _ in world.faults()} == faults
    world.do(world.faults()[0])
    assert world.faults() == []
    world.finish()


def test_a_site_that_was_suspected_goes_on_if_the_journal_of_a_restarted_controller_has_it_alive() -> None:
    world = World(replace(CALM, suspicions=1, restarts=1, lost_tails=True))
    world.do(("suspect", "site-1", NO_DETAIL))
    assert world.fenced == {"site-1"}
    world.do(("crash", "controller", NO_DETAIL))
    world.do(("restart", "controller", NO_DETAIL))  # The view without the site is lost.
    assert world.fenced == set()
    world.finish()
    assert "site-1" in {process.name for process in world.live()}


def test_at_rest_is_said_of_worlds_at_rest() -> None:
    with pytest.raises(AssertionError, match="choices are left"):
        World(SCENARIO).at_rest()


def test_only_events_have_lines() -> None:
    assert show(Pull(after=3)) == "pull after 3"
    assert (
        show(Hello(node="egress.2", view=0, ends=(3,), incarnation=2))
        == "hello, seen view 0, number 2 to serve stage 3"
    )
    with pytest.raises(AssertionError, match="no line for"):
        describe("sleep", "site-1", "", None)


# --- several sinks ----------------------------------------------------------------------------------------------------

SINKS = Scenario(
    sites=3,
    copies=declustered(2, [2, 2]),
    batches=((1, 4), (3, 5, 1), (7,)),
    bound_rows=5,
    sinks=3,
    edges=((0, 1), (0, 5), (1, 2), (1, 3), (2, 3), (2, 4)),
    unordered=frozenset({4}),
    restarts=2,
)


def test_each_sink_is_a_stage_of_the_one_egress() -> None:
    assert SINKS.plan.copies[3:] == (((EGRESS,),),) * 3
    assert SINKS.partitions == (1, 2, 2, 1, 1, 1)
    assert [SINKS.producers[stage] for stage in (3, 4, 5)] == [4, 2, 1]


@pytest.mark.parametrize("seed", range(12))
def test_every_sink_has_its_rows_in_the_end_though_the_egress_is_started_again(seed: int) -> None:
    world = World(SINKS)
    for choice in steps(world, random.Random(seed)):
        world.do(choice)
    world.at_rest()
    assert world.lost == ()
    [egress] = [process for process in world.live() if process.role == EGRESS]
    for stage in (3, 4, 5):
        rows = SINKS.reference.rows(stage, 0, 0, SINKS.last_sn)
        assert egress.history[stage, 0] == tuple(rows) and len(rows) > SINKS.producers[stage]


def test_an_egress_that_forgets_how_far_one_sink_was_ahead_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Egress, name: str, stage: int, durable: int = 0, ahead: tuple[Ahead, ...] = ()) -> None:
        begin(self, name, stage, durable, ())

    begin = Egress.__init__
    monkeypatch.setattr(Egress, "__init__", forgetful)
    seen = Counter[str]()
    for seed in range(60):
        world = World(SINKS)
        try:
            for choice in steps(world, random.Random(seed)):
                world.do(choice)
            world.at_rest()
        except Violated as violation:
            seen[str(violation).partition(":")[0]] += 1
    assert seen["dup-free"]
