"""The controller started again, ends started again, and deaths before the first view. Reference: 3.2.3.1, 3.2.4."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flux.protocols.controller import Controller
from flux.protocols.messages import (
    VERSION,
    Closed,
    CopyFailed,
    CopyReady,
    Effect,
    Hello,
    Lost,
    Move,
    Publish,
    Resend,
    View,
)

from .controllers import hello, running
from .refusing import assert_fenced, assert_ignored, assert_refused
from .views import DIAMOND, FIRST, PLAN, SPARE, WITHOUT_2, standby


def started_again(view: View, *present: str) -> Controller:
    """A controller that found `view` in its journal; `present` have seen it too."""
    controller = Controller(view)
    for node in present:
        assert controller.step(hello(view, node, view.number)) == []
    return controller


def instead(end: str, incarnation: int, view: int = 0) -> Hello:
    """The greeting of a process that was started in the place of an end: egress-2 serves what egress did."""
    stage = {"ingress": 0, "egress": 3}[end]
    return Hello(node=f"{end}-{incarnation}", ends=(stage,), incarnation=incarnation, view=view)


def published(effects: list[Effect]) -> Publish:
    [effect] = effects
    assert isinstance(effect, Publish)
    return effect


# Deaths before the first view.


def test_the_first_view_does_not_wait_for_who_died_before_it() -> None:
    controller = Controller(PLAN)
    for node in ("ingress", "site-1", "egress"):
        assert controller.step(hello(PLAN, node)) == []
    first = published(controller.step(Closed(node="site-2")))
    assert first == Publish(view=replace(WITHOUT_2, number=1), to=("egress", "ingress", "site-1"))


def test_who_was_there_and_died_before_the_first_view_is_dead_in_it() -> None:
    controller = Controller(PLAN)
    controller.step(hello(PLAN, "site-2"))
    assert controller.step(Closed(node="site-2")) == []
    assert_fenced(controller, hello(PLAN, "site-2"), view=0)
    for node in ("ingress", "site-1"):
        controller.step(hello(PLAN, node))
    assert published(controller.step(hello(PLAN, "egress"))).view.dead == {"site-2"}


def test_what_has_no_copy_left_before_the_first_view_is_lost_when_all_others_are_there() -> None:
    controller = Controller(PLAN)
    for node in ("site-1", "site-2"):
        assert controller.step(Closed(node=node)) == []
    controller.step(hello(PLAN, "ingress"))
    assert controller.step(hello(PLAN, "egress")) == [Lost(partitions=((1, 0), (2, 0)))]


def test_a_site_that_is_not_in_the_plan_may_come_before_the_first_view() -> None:
    controller = Controller(PLAN)
    for node in ("site-3", "ingress", "site-1", "egress"):
        assert controller.step(hello(PLAN, node)) == []
    first = published(controller.step(Closed(node="site-2")))
    assert first.view.nodes == (*PLAN.nodes, "site-3")
    assert first.view.standby == (standby(1, 1, 0, 1, "site-3", "site-1"),)


def test_the_first_view_does_not_wait_for_an_end_that_died_before_it() -> None:
    controller = Controller(PLAN)
    for node in ("ingress", "site-1", "site-2"):
        controller.step(hello(PLAN, node))
    first = published(controller.step(Closed(node="egress")))
    assert first.view.live_copies(3, 0) == ()


# A controller that was started again: who is welcome, and what he is sent.


def test_who_has_seen_the_last_view_is_welcome_and_sent_nothing() -> None:
    controller = started_again(WITHOUT_2, "site-1")
    assert controller.present == {"site-1"}


@pytest.mark.parametrize("seen", [0, 1])
def test_who_has_seen_less_is_sent_the_rest_of_the_journal(seen: int) -> None:
    assert Controller(WITHOUT_2).step(hello(PLAN, "site-1", seen)) == [Resend(to="site-1", after=seen)]


@pytest.mark.parametrize("seen", [3, -1])
def test_who_has_seen_what_is_not_in_the_journal_is_refused(seen: int) -> None:
    # Then the journal is not the one of this dataflow, or has lost its end: to go on would be two truths.
    assert_refused(Controller(WITHOUT_2), hello(PLAN, "site-1", seen), by="Controller")


@pytest.mark.parametrize(
    "greeting",
    [hello(PLAN, "site-1"), hello(PLAN, "ingress"), Hello(node="site-9"), instead("ingress", 2)],
    ids=["expected", "expected end", "new site", "new end"],
)
def test_who_speaks_another_version_is_refused(greeting: Hello) -> None:
    for controller in (Controller(PLAN), Controller(FIRST)):
        assert_refused(controller, replace(greeting, version=VERSION + 1), by="Controller")


def test_the_dead_are_fenced_by_a_controller_started_again_too() -> None:
    assert_fenced(Controller(WITHOUT_2), hello(PLAN, "site-2", 1), view=2)


def test_a_stranger_that_claims_to_have_seen_views_is_refused() -> None:
    assert_refused(Controller(WITHOUT_2), Hello(node="site-9", view=1), by="Controller")
    assert_refused(Controller(WITHOUT_2), instead("ingress", 2, view=3), by="Controller")


def test_a_view_is_sent_to_who_is_there_and_the_others_get_it_when_they_come() -> None:
    controller = started_again(FIRST, "site-1", "ingress")
    assert published(controller.step(Closed(node="site-2"))).to == ("ingress", "site-1")
    assert controller.step(hello(PLAN, "egress", 1)) == [Resend(to="egress", after=1)]
    assert published(controller.step(hello(PLAN, "site-3"))).to == ("egress", "ingress", "site-1", "site-3")


def test_a_controller_started_again_publishes_nothing_while_nothing_changes() -> None:
    controller = started_again(FIRST, *FIRST.nodes)
    assert controller.view == FIRST
    assert controller.present == set(FIRST.nodes)


def test_who_is_closed_is_not_present_any_more() -> None:
    controller = running(PLAN)
    controller.step(Closed(node="site-2"))
    assert controller.present == {"ingress", "egress", "site-1"}


# A restart in any phase of a recovery or a move goes on where the view stands.

RECOVERING = replace(
    SPARE, number=2, dead=frozenset({"site-2"}), standby=(standby(1, 1, 0, 1, "site-3", "site-1"),), versions=1
)


def test_a_copy_that_was_finished_meanwhile_is_made_live_when_that_is_said_again() -> None:
    controller = started_again(RECOVERING, "site-3")
    view = published(controller.step(CopyReady(node="site-3", version=1))).view
    assert view.copies[1][0] == ("site-1", "site-3")
    assert [s.version for s in view.standby] == [2], "and the next one is begun, under a new number"


def test_a_copy_that_failed_meanwhile_is_begun_again_under_a_new_number() -> None:
    controller = started_again(RECOVERING, "site-3")
    view = published(controller.step(CopyFailed(node="site-3", version=1))).view
    assert view.standby == (standby(2, 1, 0, 1, "site-3", "site-1"),)


def test_what_was_said_to_the_one_before_and_is_in_the_journal_is_ignored_when_said_again() -> None:
    controller = running(replace(SPARE, number=0))
    controller.step(Move(stage=1, partition=0, slot=1, to="site-3"))
    controller.step(CopyReady(node="site-3", version=1))
    again = started_again(controller.view, "site-3")
    assert_ignored(again, CopyReady(node="site-3", version=1))


def test_a_site_that_died_while_there_was_no_controller_is_declared_dead_by_the_next() -> None:
    controller = started_again(FIRST, "site-1")
    assert published(controller.step(Closed(node="site-2"))).view == WITHOUT_2


# Ends that are started again.


def test_the_next_process_for_an_end_takes_the_place_of_the_dead_one() -> None:
    controller = running(PLAN)
    controller.step(Closed(node="egress"))
    view = published(controller.step(instead("egress", 2))).view
    assert view.copies[3] == (("egress-2",),)
    assert not view.alive("egress") and view.alive("egress-2")


def test_the_next_process_for_an_end_may_come_before_the_last_one_is_known_dead() -> None:
    # Whoever started it has seen the last one die.
    controller = running(PLAN)
    new = published(controller.step(instead("ingress", 2)))
    assert new.view.dead == {"ingress"} and new.view.copies[0] == (("ingress-2",),)
    assert new.to == ("egress", "ingress-2", "site-1", "site-2")
    assert_ignored(controller, Closed(node="ingress"))
    assert_fenced(controller, hello(PLAN, "ingress", 1), view=2)


def test_an_end_may_be_replaced_before_the_first_view() -> None:
    controller = Controller(PLAN)
    controller.step(hello(PLAN, "ingress"))
    assert controller.step(instead("ingress", 2)) == []
    for node in ("site-1", "site-2"):
        controller.step(hello(PLAN, node))
    first = published(controller.step(hello(PLAN, "egress")))
    assert first.view.copies[0] == (("ingress-2",),) and first.view.number == 1


def test_an_end_that_was_replaced_holds_no_copies_of_operators() -> None:
    controller = running(PLAN)
    controller.step(instead("ingress", 2))
    assert published(controller.step(Closed(node="site-2"))).view.standby == ()


def test_a_process_may_serve_several_ends() -> None:
    controller = running(replace(DIAMOND, number=0))
    both = Hello(node="ends-2", ends=(4, 5), incarnation=2)
    view = published(controller.step(both)).view
    assert (view.copies[4], view.copies[5]) == ((("ends-2",),), (("ends-2",),))
    assert view.dead == {"egress", "audit"}
    assert view.incarnations == ((4, 2), (5, 2))


def test_an_earlier_process_that_comes_late_is_ignored() -> None:
    controller = running(PLAN)
    controller.step(instead("egress", 3))
    assert_ignored(controller, instead("egress", 2))
    assert_ignored(controller, replace(instead("egress", 3), node="egress-three"))


def test_a_process_that_serves_no_end_of_this_dataflow_is_refused() -> None:
    for ends in ((1,), (9,), (-1,), (3, 1)):
        assert_refused(running(PLAN), Hello(node="egress-2", ends=ends, incarnation=2), by="Controller")


def test_the_incarnations_of_ends_are_in_the_journal_and_known_before_anybody_has_come() -> None:
    before = running(PLAN)
    before.step(instead("ingress", 3))
    assert before.view.incarnations == ((0, 3),)
    controller = Controller(before.view)
    assert_ignored(controller, instead("ingress", 2))
    assert controller.step(instead("ingress", 3, view=2)) == []
    assert published(controller.step(instead("ingress", 4))).view.incarnations == ((0, 4),)


def test_a_second_first_process_for_an_end_is_late() -> None:
    # The one in the plan may still come, and two would be one too many.
    controller = Controller(PLAN)
    assert_ignored(controller, Hello(node="ingress-again", ends=(0,)))
    assert controller.step(hello(PLAN, "ingress")) == []
