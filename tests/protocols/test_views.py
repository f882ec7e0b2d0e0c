"""Views: who is in the dataflow, who is needed in it, and how stages hang together. Reference: 3.2.3.1; rule 19."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flux.protocols.messages import View

from .views import DIAMOND, FIRST, SPARE, TWO, WITHOUT_1, WITHOUT_BOTH, standby

# Partition 0 of stage 1 has a copy on site-1 only; the other is on its way to site-3.
COMING = replace(SPARE, dead=frozenset({"site-2"}), standby=(standby(1, 1, 0, 1, "site-3", "site-1"),))


def without(view: View, *nodes: str) -> View:
    return replace(view, dead=view.dead | set(nodes))


# Stages and edges.


def test_stages_are_a_chain_if_nothing_else_is_said() -> None:
    assert FIRST.edges == ((0, 1), (1, 2), (2, 3))
    assert [FIRST.inputs(stage) for stage in range(4)] == [(), (0,), (1,), (2,)]
    assert [FIRST.outputs(stage) for stage in range(4)] == [(0,), (1,), (2,), ()]


def test_a_stage_may_have_several_edges_on_each_side() -> None:
    assert DIAMOND.inputs(3) == (2, 3)
    assert DIAMOND.outputs(0) == (0, 1)
    assert DIAMOND.outputs(1) == (2, 5)


def test_the_ends_are_the_stages_with_edges_on_one_side_only() -> None:
    assert [stage for stage in range(6) if DIAMOND.is_end(stage)] == [0, 4, 5]
    assert [stage for stage in range(4) if FIRST.is_end(stage)] == [0, 3]


def test_a_stage_divides_what_it_sends_if_its_consumers_take_different_partitions() -> None:
    # Given consumers of which each takes all partitions, then a row is needed by every one of them.
    assert [FIRST.divides(stage) for stage in range(4)] == [False] * 4
    assert [TWO.divides(stage) for stage in range(4)] == [False] * 4
    # Two egresses, or a partition on another site, divide it.
    assert DIAMOND.divides(1) and DIAMOND.divides(0) is False
    apart = (("site-1", "site-2"), ("site-2", "site-3"))
    assert replace(SPARE, copies=(SPARE.copies[0], apart, *SPARE.copies[2:])).divides(0)


def test_a_copy_in_transfer_takes_its_partition_unless_its_site_has_died() -> None:
    assert COMING.takers(1) == (("site-1", "site-3"), ("site-1",))
    assert without(COMING, "site-3").takers(1) == (("site-1",), ("site-1",))


# Who is there.


def test_members_of_a_stage_are_those_that_have_a_copy_and_those_that_are_to_have_one() -> None:
    assert COMING.holders(1) == ("site-1",)
    assert COMING.members(1) == ("site-1", "site-3")
    assert COMING.members(2) == ("site-1",)


def test_a_stranger_is_not_alive_and_neither_are_the_dead() -> None:
    assert FIRST.alive("site-1") and not WITHOUT_1.alive("site-1")
    assert not FIRST.alive("site-9")


def test_a_copy_counts_when_it_is_finished() -> None:
    assert COMING.held(1, "site-3") == frozenset()
    assert COMING.held(1, "site-1") == {0, 1}


def test_who_must_acknowledge_are_the_members_of_an_operator() -> None:
    assert COMING.must_ack(1) == COMING.members(1)
    assert WITHOUT_1.must_ack(1) == ("site-2",)


def test_an_end_that_is_dead_must_acknowledge_until_it_is_replaced() -> None:
    vacant = without(FIRST, "egress")
    assert (vacant.must_ack(3), vacant.members(3)) == (("egress",), ())
    replaced = replace(vacant, nodes=(*vacant.nodes, "egress-2"), copies=(*vacant.copies[:3], (("egress-2",),)))
    assert replaced.must_ack(3) == ("egress-2",)


def test_an_operator_without_a_copy_is_lost_and_an_end_is_not() -> None:
    assert WITHOUT_BOTH.lost() == ((1, 0), (2, 0))
    assert without(FIRST, "ingress", "egress").lost() == ()


def test_a_copy_on_its_way_is_not_lost_yet() -> None:
    assert (2, 0) in without(COMING, "site-1").lost()
    assert (1, 0) not in without(COMING, "site-1").lost()


# Who is needed.


@pytest.mark.parametrize("view", [FIRST, TWO, DIAMOND], ids=["a pair", "two pairs", "a diamond"])
def test_while_every_partition_has_a_pair_only_the_ends_are_needed(view: View) -> None:
    ends = {node for node in view.nodes if not node.startswith("site")}
    assert {node for node in view.nodes if view.needs(node)} == ends


def test_the_holder_of_a_last_copy_is_needed() -> None:
    assert WITHOUT_1.needs("site-2")
    assert not WITHOUT_1.needs("site-1"), "it is dead, and nobody needs it"


def test_a_site_that_builds_a_copy_is_not_needed_while_its_donor_lives() -> None:
    assert not COMING.needs("site-3")
    assert COMING.needs("site-1")


def test_the_site_of_the_only_copy_on_its_way_is_needed() -> None:
    orphaned = without(COMING, "site-1")
    assert orphaned.needs("site-3")
    # Of another stage the copy is on its way elsewhere.
    other_stage = replace(orphaned, standby=(standby(1, 2, 0, 1, "site-3", "site-1"),))
    assert other_stage.needs("site-3") and not other_stage.needs("site-2")


def test_a_spare_site_is_needed_by_nobody() -> None:
    assert not SPARE.needs("site-3")
    assert not SPARE.needs("site-9")
