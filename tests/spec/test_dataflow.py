"""The dataflow of the simulated worlds and its plain run."""

from __future__ import annotations

import doctest

import pytest

import flux.spec.dataflow
from flux.protocols.messages import Pull
from flux.spec.dataflow import END, OperatorState, Row, Scenario, declustered, operate
from flux.spec.story import describe, show
from flux.spec.world import World

SCENARIO = Scenario(sites=3, copies=declustered(3, [3, 2]), batches=((1, 2, 3), (4, 5)), bound_rows=2)


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
    whole = operate(SCENARIO, 2, 0, OperatorState(), rows)
    for cut in range(reference.last_sn + 1):
        state, before = operate(SCENARIO, 2, 0, OperatorState(), reference.rows(2, 0, 0, cut))
        assert state == reference.state(2, 0, cut)
        state, after = operate(SCENARIO, 2, 0, state, reference.rows(2, 0, cut, reference.last_sn))
        assert (state, before + after) == whole


def test_the_operator_emits_none_one_or_two_rows() -> None:
    emitted = [len(operate(SCENARIO, 1, 0, OperatorState(), [Row(1, 0, 0, 0, value)])[1]) for value in (3, 4, 5)]
    assert emitted == [1, 2, 0]


def test_the_egress_sees_the_end_of_every_producer() -> None:
    reference = SCENARIO.reference
    assert reference.state(3, 0, reference.last_sn).ends == 2
    assert reference.state(3, 0, reference.last_sn - 1).ends == 0


def test_a_world_may_crash_sites_as_often_as_its_scenario_says() -> None:
    world = World(SCENARIO)
    assert world.may_crash() == ["site-1", "site-2", "site-3"]
    world.crash("site-2")
    assert world.may_crash() == []
    world.finish()


def test_at_rest_is_said_of_worlds_at_rest() -> None:
    with pytest.raises(AssertionError, match="choices are left"):
        World(SCENARIO).at_rest()


def test_only_events_have_lines() -> None:
    assert show(Pull(after=3)) == "pull after 3"
    with pytest.raises(AssertionError, match="no line for"):
        describe("sleep", "site-1", "", None)
