"""The dead are told of once and then left out of views; who was left out and lives stays mute. Reference: 3.2.3.1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from flux.protocols.controller import Controller
from flux.protocols.messages import Closed, CopyFailed, CopyReady, Hello, PeerMessage, Suspected, View
from flux.protocols.view import number_of
from flux.protocols.view_retention import ViewRetention

from .controllers import hello, laid_out, published, running
from .good_input import NODES
from .refusing import assert_fenced, assert_refused
from .test_bad_input import each

PAIR = laid_out(3, ["1 2"])


def recovered() -> Controller:
    """Site 1 has died, and site 3 has its slot: nobody asks for it any more."""
    controller = running(PAIR)
    controller.step(Closed(node="site-1"))
    controller.step(CopyReady(node="site-3", version=1))
    return controller


def test_a_death_is_told_in_one_view() -> None:
    view = published(running(PAIR).step(Closed(node="site-3")))
    assert view.dead == {"site-3"} and "site-3" in view.nodes


def test_the_next_view_leaves_the_dead_out() -> None:
    controller = running(PAIR)
    controller.step(Closed(node="site-3"))
    view = published(controller.step(Hello(node="site-4")))
    assert view.dead == frozenset() and view.nodes == ("ingress", "site-1", "site-2", "egress", "site-4")
    assert view.forgotten == 3


def test_who_has_a_slot_is_listed_until_another_has_it() -> None:
    controller = running(laid_out(2, ["1 2"]))
    controller.step(Closed(node="site-1"))
    view = published(controller.step(Hello(node="site-3")))
    assert view.dead == {"site-1"} and view.copies[1] == (("site-1", "site-2"),)
    view = published(controller.step(CopyReady(node="site-3", version=1)))
    assert view.dead == frozenset() and view.copies[1] == (("site-3", "site-2"),)
    assert view.forgotten == 1


def test_who_died_before_the_first_view_is_told_of_in_it() -> None:
    controller = Controller(PAIR)
    controller.step(Closed(node="site-3"))
    controller.step(Closed(node="site-2"))
    for node in ("ingress", "site-1"):
        controller.step(hello(PAIR, node))
    view = published(controller.step(hello(PAIR, "egress")))
    assert (view.number, view.dead, view.forgotten) == (1, {"site-2", "site-3"}, 0)


def test_views_do_not_grow_with_the_sites_that_are_replaced() -> None:
    controller = recovered()
    nodes = len(controller.view.nodes)
    for number in range(4, 104):
        controller.step(Hello(node=f"site-{number}"))
        controller.step(Closed(node=controller.view.copies[1][0][0]))
        controller.step(CopyReady(node=f"site-{number}", version=controller.view.versions))
        assert not controller.view.standby and len(controller.view.nodes) <= nodes
    assert controller.view.copies[1] == (("site-103", "site-2"),)
    assert controller.view.forgotten == 102


@pytest.mark.parametrize("seen", [0, 1])
def test_a_forgotten_site_that_greets_again_is_fenced(seen: int) -> None:
    assert_fenced(recovered(), Hello(node="site-1", view=seen), view=3)


def test_so_it_is_by_a_controller_that_was_started_again() -> None:
    assert_fenced(Controller(recovered().view), Hello(node="site-1"), view=3)


@pytest.mark.parametrize("report", [CopyReady, CopyFailed])
def test_what_a_forgotten_site_reports_is_fenced(report: type[CopyReady] | type[CopyFailed]) -> None:
    assert_fenced(recovered(), report(node="site-1", version=1), view=3)


def test_a_forgotten_end_that_greets_again_is_fenced() -> None:
    controller = running(PAIR)
    published(controller.step(Hello(node="egress.2", ends=(2,), incarnation=2)))
    published(controller.step(Closed(node="site-3")))
    assert "egress" not in controller.view.nodes
    assert_fenced(controller, Hello(node="egress", ends=(2,), view=1), view=3)


def test_a_new_site_has_a_number() -> None:
    assert_refused(running(PAIR), Hello(node="mine"), by="Controller")


def test_a_site_that_was_started_after_the_forgotten_ones_is_taken_in() -> None:
    assert published(recovered().step(Hello(node="site-4"))).alive("site-4")


def test_a_doubt_about_the_forgotten_is_none_of_this_run() -> None:
    assert_refused(recovered(), Suspected(node="site-1"), by="Controller")


NO_NUMBERS = ["site-", "site-x", "site-1" + 15 * "0", "site-\u00b2", "ingress.2", "egress", "", "-7", "7"]


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_only_sites_have_numbers(name: str) -> None:
    assert number_of(name) == 0


# What the forgotten say to nodes.


def without(view: View, node: str) -> View:
    """The view when `node` has been forgotten."""
    left = tuple(other for other in view.nodes if other != node)
    return replace(view, nodes=left, dead=view.dead - {node}, forgotten=max(view.forgotten, number_of(node)))


@pytest.mark.parametrize("sender", ["site-7", "egress.2"])
@pytest.mark.parametrize(("node", "message"), each(*get_args(PeerMessage)))
def test_what_a_forgotten_node_says_late_is_fenced(node: str, message: Any, sender: str) -> None:
    made = NODES[node]()
    assert made.view is not None
    made.view = without(made.view, sender)
    assert_fenced(made, replace(message, sender=sender), view=made.number)


@pytest.mark.parametrize(("node", "message"), each(*get_args(PeerMessage)))
def test_what_a_new_node_says_early_is_held(node: str, message: Any) -> None:
    for sender in ("site-9", "egress.9"):
        made = NODES[node]()
        early = replace(message, sender=sender, view=made.number + 1)
        assert made.step(early) == [] and list(made.held) == [early]


# What the journal must keep.


def test_a_view_is_kept_until_all_who_live_have_seen_it() -> None:
    seen, view = ViewRetention(None), replace(PAIR, number=1)
    seen.publish(view)
    for node in view.nodes[:-1]:
        seen.take(node, 1)
    assert seen.by_all == 0
    seen.take(view.nodes[-1], 1)
    assert seen.by_all == 1


def test_the_dead_need_not_see_it() -> None:
    seen, view = ViewRetention(None), replace(PAIR, number=1)
    seen.publish(view)
    seen.publish(replace(view, number=2, dead=frozenset({"site-3"})))
    for node in ("ingress", "site-1", "site-2", "egress"):
        seen.take(node, 2)
    assert seen.by_all == 2
    seen.take("site-3", 1)
    assert seen.by_all == 2


def test_a_new_site_begins_with_the_view_that_lists_it() -> None:
    seen = ViewRetention(None)
    seen.publish(view := replace(PAIR, number=5))
    for node in view.nodes:
        seen.take(node, 5)
    seen.publish(replace(view, number=6, nodes=(*view.nodes, "site-4")))
    assert (seen.upto["site-4"], seen.by_all) == (5, 5)


def test_who_was_not_heard_since_a_restart_may_have_seen_nothing() -> None:
    view = replace(PAIR, number=9, dead=frozenset({"site-3"}))
    seen = ViewRetention(view)
    for node in ("ingress", "site-1", "site-2"):
        seen.take(node, 9)
    assert seen.by_all == 0
    seen.take("egress", 7)
    seen.take("egress", 6)
    assert seen.by_all == 7


def test_nobody_has_seen_a_view_before_the_first() -> None:
    assert ViewRetention(None).by_all == 0
