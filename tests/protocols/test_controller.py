"""The controller: the first view, one for each death, and the rebuilding of copies. Reference: 3.2.3.1, 3.4.3.3."""

from __future__ import annotations

import pytest

from flux.protocols.controller import Controller
from flux.protocols.messages import Closed, CopyFailed, CopyReady, Hello, Lost, Move, Publish, Standby

from .controllers import building, hello, laid_out, published, running
from .refusing import assert_ignored, assert_refused
from .views import FIRST, PLAN, WITHOUT_1, WITHOUT_2, standby

EVERYONE = ("egress", "ingress", "site-1", "site-2")


def finish(controller: Controller) -> list[Standby]:
    """Have every copy built that the controller wants, one after the other; return them in order."""
    done = []
    while controller.view.standby:
        built = controller.view.standby[0]
        done.append(built)
        controller.step(CopyReady(node=built.node, version=built.version))
    return done


# Setting up, and deaths.


def test_the_first_view_comes_when_everyone_is_there() -> None:
    controller = Controller(PLAN)
    for node in PLAN.nodes[:-1]:
        assert controller.step(hello(PLAN, node)) == []
    assert controller.step(hello(PLAN, PLAN.nodes[-1])) == [Publish(view=FIRST, to=EVERYONE)]


def test_a_death_is_announced_once() -> None:
    controller = running(PLAN)
    assert controller.step(Closed(node="site-2")) == [Publish(view=WITHOUT_2, to=("egress", "ingress", "site-1"))]
    assert_ignored(controller, Closed(node="site-2"))


def test_the_dead_need_not_be_told_and_deaths_add_up() -> None:
    controller = running(PLAN)
    controller.step(Closed(node="site-1"))
    assert not WITHOUT_1.alive("site-1")
    effects = controller.step(Closed(node="site-2"))
    assert effects == [Lost(partitions=((1, 0), (2, 0)))]


@pytest.mark.parametrize(("end", "stage"), [("ingress", 0), ("egress", 3)])
def test_an_end_that_died_is_vacant_and_not_lost(end: str, stage: int) -> None:
    # It has one copy, and what that knew is in a journal or in its sink.
    view = published(running(PLAN).step(Closed(node=end)))
    assert (view.live_copies(stage, 0), view.lost()) == ((), ())


def test_second_greetings_are_refused() -> None:
    controller = Controller(PLAN)
    controller.step(Hello(node="site-1"))
    assert_refused(controller, Hello(node="site-1"), by="Controller")
    assert_refused(running(PLAN), Hello(node="site-1"), by="Controller")


def test_the_end_of_a_connection_that_never_joined_is_ignored() -> None:
    assert_ignored(running(PLAN), Closed(node="site-9"))


def test_the_controller_makes_views_and_takes_none() -> None:
    assert_refused(running(PLAN), FIRST, by="Controller")


# Placement.


def test_a_lost_copy_is_rebuilt_on_a_site_that_holds_nothing() -> None:
    controller = running(laid_out(4, ["1 2", "2 3", "3 1"]))
    view = published(controller.step(Closed(node="site-2")))
    assert building(view) == [(1, 0, 1, "site-1", "site-4")]


def test_without_a_spare_it_is_rebuilt_where_the_fewest_copies_are() -> None:
    controller = running(laid_out(4, ["1 2", "3 4"], ["3 1", "1 3"]))
    view = published(controller.step(Closed(node="site-2")))
    # site-3 has three copies, site-4 one; site-1 has the other copy.
    assert building(view) == [(1, 0, 1, "site-1", "site-4")]


def test_copies_on_their_way_count_as_load() -> None:
    controller = running(laid_out(5, ["1 2", "2 1"]), at_once=2)
    view = published(controller.step(Closed(node="site-1")))
    assert building(view) == [(1, 0, 0, "site-2", "site-3"), (1, 1, 1, "site-2", "site-4")]


def test_a_site_never_gets_two_copies_of_a_partition() -> None:
    controller = running(laid_out(2, ["1 2"]))
    assert published(controller.step(Closed(node="site-1"))).standby == ()


def test_a_copy_without_a_place_does_not_keep_later_ones_from_being_rebuilt() -> None:
    # Each site that lives has a copy of the first partition, which has three.
    view = published(running(laid_out(3, ["1 2 3", "3 1"])).step(Closed(node="site-3")))
    assert building(view) == [(1, 1, 0, "site-1", "site-2")]


def test_the_ends_hold_no_copies_of_operators() -> None:
    controller = running(laid_out(2, ["1 2"], ["2 1"]))
    assert published(controller.step(Closed(node="site-2"))).standby == ()


def test_a_site_that_comes_later_takes_what_is_lost() -> None:
    controller = running(PLAN)
    controller.step(Closed(node="site-2"))
    view = published(controller.step(Hello(node="site-3")))
    assert view.nodes == (*PLAN.nodes, "site-3")
    assert building(view) == [(1, 0, 1, "site-1", "site-3")]


def test_a_site_that_comes_when_nothing_is_lost_is_a_standby() -> None:
    view = published(running(PLAN).step(Hello(node="site-3")))
    assert (view.number, view.standby, view.alive("site-3")) == (2, (), True)


# Order and number.


def test_copies_are_rebuilt_from_source_to_destination() -> None:
    controller = running(laid_out(3, ["1 2", "2 1"], ["2 1"]))
    controller.step(Closed(node="site-1"))
    order = [(built.stage, built.partition) for built in finish(controller)]
    assert order == [(1, 0), (1, 1), (2, 0)]
    assert "site-1" not in {node for stage in controller.view.copies for copies in stage for node in copies}


def test_the_next_stage_waits_for_the_last_copy_of_the_stage_before() -> None:
    controller = running(laid_out(4, ["1 2", "2 1"], ["2 1"]), at_once=2)
    controller.step(Closed(node="site-1"))
    assert [s.stage for s in controller.view.standby] == [1, 1]
    controller.step(CopyReady(node=controller.view.standby[0].node, version=controller.view.standby[0].version))
    assert [s.stage for s in controller.view.standby] == [1]
    finish(controller)
    assert controller.view.live_copies(2, 0) == ("site-2", controller.view.copies[2][0][1])


@pytest.mark.parametrize(("at_once", "expected"), [(1, 1), (2, 2), (4, 3)])
def test_as_many_copies_of_a_stage_are_built_at_once_as_allowed(at_once: int, expected: int) -> None:
    controller = running(laid_out(4, ["1 2", "1 3", "4 1"]), at_once=at_once)
    assert len(published(controller.step(Closed(node="site-1"))).standby) == expected


def test_versions_are_never_used_twice() -> None:
    controller = running(laid_out(4, ["1 2", "2 1"], ["2 1"]))
    controller.step(Closed(node="site-1"))
    controller.step(CopyFailed(node=controller.view.standby[0].node, version=1))
    versions = [built.version for built in finish(controller)]
    assert versions == [2, 3, 4]


# Done and Failed.


def test_a_copy_that_is_done_takes_its_slot() -> None:
    controller = running(laid_out(3, ["1 2"]))
    controller.step(Closed(node="site-1"))
    view = published(controller.step(CopyReady(node="site-3", version=1)))
    assert (view.copies[1][0], view.standby) == (("site-3", "site-2"), ())


def test_a_copy_that_failed_is_begun_again() -> None:
    controller = running(laid_out(3, ["1 2"]))
    controller.step(Closed(node="site-1"))
    view = published(controller.step(CopyFailed(node="site-3", version=1)))
    assert view.standby == (standby(2, 1, 0, 0, "site-3", "site-2"),)


@pytest.mark.parametrize("kind", [CopyReady, CopyFailed])
@pytest.mark.parametrize(
    ("node", "version"),
    [("site-3", 2), ("site-2", 1), ("site-9", 1)],
    ids=["of a version never begun", "of another site", "of a stranger"],
)
def test_a_report_of_what_that_site_does_not_build_is_refused(
    kind: type[CopyReady | CopyFailed], node: str, version: int
) -> None:
    controller = running(laid_out(3, ["1 2"]))
    controller.step(Closed(node="site-1"))
    assert_refused(controller, kind(node=node, version=version), by="Controller")


@pytest.mark.parametrize("kind", [CopyReady, CopyFailed])
def test_a_report_of_a_copy_that_is_live_or_given_up_is_ignored(kind: type[CopyReady | CopyFailed]) -> None:
    # Rule 12: it was on its way when the view changed, or is said again.
    controller = running(laid_out(3, ["1 2"]))
    controller.step(Closed(node="site-1"))
    controller.step(CopyFailed(node="site-3", version=1))
    assert_ignored(controller, kind(node="site-3", version=1))
    controller.step(CopyReady(node="site-3", version=2))
    assert_ignored(controller, kind(node="site-3", version=2))


# Deaths during recovery (rule 17).


def test_the_death_of_a_standby_starts_another_one() -> None:
    controller = running(laid_out(4, ["1 2"]))
    controller.step(Closed(node="site-1"))
    view = published(controller.step(Closed(node="site-3")))
    assert view.standby == (standby(2, 1, 0, 0, "site-4", "site-2"),)


def test_the_death_of_a_donor_starts_again_from_another_copy() -> None:
    # A move has two live copies: the donor dies, and the other one gives the state.
    controller = running(laid_out(3, ["1 2"]))
    controller.step(Move(stage=1, partition=0, slot=1, to="site-3"))
    assert building(controller.view) == [(1, 0, 1, "site-1", "site-3")]
    view = published(controller.step(Closed(node="site-1")))
    assert view.standby == (standby(1, 1, 0, 1, "site-3", "site-1"),)  # It may have the state by now.
    view = published(controller.step(CopyFailed(node="site-3", version=1)))
    assert view.standby == (standby(2, 1, 0, 0, "site-3", "site-2"),)


def test_the_death_of_the_last_donor_leaves_the_answer_to_the_standby() -> None:
    def with_dead_donor() -> Controller:
        controller = running(laid_out(3, ["1 2"]))
        controller.step(Closed(node="site-1"))
        view = published(controller.step(Closed(node="site-2")))
        assert view.standby == (standby(1, 1, 0, 0, "site-3", "site-2"),)
        return controller

    # Installed, it is promoted; not installed, the partition is lost.
    view = published(with_dead_donor().step(CopyReady(node="site-3", version=1)))
    assert view.live_copies(1, 0) == ("site-3",)
    assert with_dead_donor().step(CopyFailed(node="site-3", version=1)) == [Lost(partitions=((1, 0),))]
    assert with_dead_donor().step(Closed(node="site-3")) == [Lost(partitions=((1, 0),))]


# Moves.


def test_a_copy_that_was_to_replace_a_live_one_takes_the_place_of_a_dead_one() -> None:
    controller = running(laid_out(3, ["1 2"]))
    controller.step(Move(stage=1, partition=0, slot=1, to="site-3"))
    controller.step(Closed(node="site-1"))
    view = published(controller.step(CopyReady(node="site-3", version=1)))
    assert view.copies[1][0] == ("site-3", "site-2")
    assert not view.standby


def test_a_move_builds_a_third_copy_and_then_replaces_one() -> None:
    controller = running(laid_out(3, ["1 2"]))
    view = published(controller.step(Move(stage=1, partition=0, slot=1, to="site-3")))
    assert view.copies[1][0] == ("site-1", "site-2")
    view = published(controller.step(CopyReady(node="site-3", version=1)))
    assert view.copies[1][0] == ("site-1", "site-3")


@pytest.mark.parametrize("to", ["site-1", "site-2", "site-4", "site-9"], ids=["here", "there", "dead", "unknown"])
def test_a_move_that_is_not_possible_is_ignored(to: str) -> None:
    controller = running(laid_out(4, ["1 2"]))
    controller.step(Closed(node="site-4"))
    assert_ignored(controller, Move(stage=1, partition=0, slot=0, to=to))


@pytest.mark.parametrize(
    "move",
    [
        Move(stage=1, partition=0, slot=0, to="egress"),
        Move(stage=0, partition=0, slot=0, to="site-3"),
        Move(stage=1, partition=9, slot=0, to="site-3"),
        Move(stage=1, partition=0, slot=2, to="site-3"),
    ],
    ids=["to an end", "of an end", "no such partition", "no such slot"],
)
def test_a_move_of_what_cannot_move_is_ignored(move: Move) -> None:
    assert_ignored(running(laid_out(3, ["1 2"])), move)


def test_a_move_before_the_first_view_is_ignored() -> None:
    assert_ignored(Controller(laid_out(3, ["1 2"])), Move(stage=1, partition=0, slot=0, to="site-3"))


def test_a_move_of_a_partition_that_is_lost_is_ignored() -> None:
    controller = running(laid_out(3, ["1"]))
    assert controller.step(Closed(node="site-1")) == [Lost(partitions=((1, 0),))]
    assert_ignored(controller, Move(stage=1, partition=0, slot=0, to="site-3"))


def test_a_partition_is_moved_once_at_a_time() -> None:
    controller = running(laid_out(4, ["1 2", "2 1"]))
    controller.step(Move(stage=1, partition=0, slot=0, to="site-3"))
    assert_ignored(controller, Move(stage=1, partition=0, slot=1, to="site-4"))
    view = published(controller.step(Move(stage=1, partition=1, slot=1, to="site-4")))
    assert len(view.standby) == 2


def test_recovery_waits_for_moves_of_its_stage_within_what_may_be_at_once() -> None:
    controller = running(laid_out(4, ["1 2", "2 3"]))
    controller.step(Move(stage=1, partition=0, slot=0, to="site-4"))
    view = published(controller.step(Closed(node="site-3")))
    assert building(view) == [(1, 0, 0, "site-2", "site-4")]
    view = published(controller.step(CopyReady(node="site-4", version=1)))
    assert building(view) == [(1, 1, 1, "site-2", "site-1")]
