"""Sites that do not answer, and links that are cut: who may be declared dead, and who never. Reference: rule 19."""

from __future__ import annotations

import pytest

from flux.protocols.controller import Controller
from flux.protocols.messages import Closed, CopyReady, Effect, LinkDown, Message, Move, Publish, Suspected, View

from .controllers import building, hello, laid_out, published, running
from .refusing import assert_ignored, assert_refused


def dead(effects: list[Effect]) -> frozenset[str]:
    return published(effects).dead


PAIRS = laid_out(3, ["1 2", "2 1"], ["2 3"])  # Two copies on site-1, three on site-2, one on site-3.


# Suspected.


def test_a_site_that_does_not_answer_is_declared_dead() -> None:
    controller = running(PAIRS)
    [effect] = controller.step(Suspected(node="site-3"))
    assert isinstance(effect, Publish) and effect.view.dead == {"site-3"}
    # It may be alive, and is not told: what it says from now on is fenced.
    assert "site-3" not in effect.to and "site-3" not in controller.present


def test_what_a_suspected_site_had_is_rebuilt() -> None:
    controller = running(laid_out(3, ["1 2"]))
    assert building(published(controller.step(Suspected(node="site-1")))) == [(1, 0, 0, "site-2", "site-3")]


def test_the_holder_of_a_last_copy_may_not_go_on_suspicion() -> None:
    controller = running(laid_out(2, ["1 2"]))
    controller.step(Closed(node="site-1"))
    assert_ignored(controller, Suspected(node="site-2"))


def test_the_holder_of_a_last_copy_may_go_when_another_is_live() -> None:
    controller = running(laid_out(3, ["1 2"]))
    controller.step(Closed(node="site-1"))
    assert_ignored(controller, Suspected(node="site-2"))
    controller.step(CopyReady(node="site-3", version=1))
    assert dead(controller.step(Suspected(node="site-2"))) == {"site-2"}


def test_the_only_copy_on_its_way_may_not_go_on_suspicion() -> None:
    controller = running(laid_out(3, ["1 2"]))
    controller.step(Closed(node="site-1"))
    controller.step(Closed(node="site-2"))
    assert [s.node for s in controller.view.standby] == ["site-3"]
    assert_ignored(controller, Suspected(node="site-3"))


def test_a_site_that_only_builds_a_copy_may_go() -> None:
    controller = running(laid_out(3, ["1 2"]))
    controller.step(Move(stage=1, partition=0, slot=0, to="site-3"))
    view = published(controller.step(Suspected(node="site-3")))
    assert (view.dead, view.standby) == ({"site-3"}, ())


@pytest.mark.parametrize("node", ["ingress", "egress"])
def test_the_ends_never_go_on_suspicion(node: str) -> None:
    # Whoever started them knows whether they live; they hold what nobody else has.
    assert_ignored(running(PAIRS), Suspected(node=node))


def test_the_dead_are_not_suspected_twice() -> None:
    controller = running(PAIRS)
    controller.step(Suspected(node="site-3"))
    assert_ignored(controller, Suspected(node="site-3"))


def test_who_never_joined_cannot_be_suspected() -> None:
    assert_refused(running(PAIRS), Suspected(node="site-9"), by="Controller")


def test_a_site_that_hangs_before_the_first_view_does_not_hold_it_back() -> None:
    controller = Controller(PAIRS)
    for node in PAIRS.nodes:
        if node != "site-3":
            assert controller.step(hello(PAIRS, node)) == []
    assert dead(controller.step(Suspected(node="site-3"))) == {"site-3"}


# Cut: two nodes that are both alive and cannot reach each other.


def test_of_two_sites_that_cannot_reach_each_other_the_one_with_fewer_copies_goes() -> None:
    for a, b in (("site-1", "site-3"), ("site-3", "site-1")):
        assert dead(running(PAIRS).step(LinkDown(a=a, b=b))) == {"site-3"}
    assert dead(running(PAIRS).step(LinkDown(a="site-1", b="site-2"))) == {"site-1"}


def test_of_two_with_as_many_copies_the_one_that_came_last_goes() -> None:
    plan = laid_out(2, ["1 2"])
    for a, b in (("site-1", "site-2"), ("site-2", "site-1")):
        assert dead(running(plan).step(LinkDown(a=a, b=b))) == {"site-2"}


def test_copies_on_their_way_count() -> None:
    # site-3 and site-4 have a copy each; the one that site-4 builds makes it two.
    controller = running(laid_out(4, ["1 2", "1 2", "3 4"]))
    controller.step(Move(stage=1, partition=0, slot=0, to="site-4"))
    assert dead(controller.step(LinkDown(a="site-3", b="site-4"))) == {"site-3"}


def needed_first() -> View:
    """site-1 has fewer copies than site-2, and the only one of a partition."""
    return laid_out(3, ["1", "2 3", "3 2"])


def test_the_holder_of_a_last_copy_never_goes_and_the_other_does() -> None:
    assert needed_first().needs("site-1")
    for a, b in (("site-1", "site-2"), ("site-2", "site-1")):
        assert dead(running(needed_first()).step(LinkDown(a=a, b=b))) == {"site-2"}


@pytest.mark.parametrize(("a", "b"), [("ingress", "site-2"), ("site-2", "egress")])
def test_of_a_site_and_an_end_the_site_goes(a: str, b: str) -> None:
    assert dead(running(PAIRS).step(LinkDown(a=a, b=b))) == {"site-2"}


def test_if_neither_may_go_nobody_does() -> None:
    assert_ignored(running(laid_out(2, ["1", "2"])), LinkDown(a="site-1", b="site-2"))
    assert_ignored(running(laid_out(2, ["1", "2"])), LinkDown(a="site-1", b="egress"))
    assert_ignored(running(PAIRS), LinkDown(a="ingress", b="egress"))


def test_the_second_report_of_a_cut_changes_nothing() -> None:
    # Both ends notice it, each for himself.
    controller = running(PAIRS)
    controller.step(LinkDown(a="site-1", b="site-3"))
    assert_ignored(controller, LinkDown(a="site-3", b="site-1"))


def test_a_node_is_never_cut_off_from_itself() -> None:
    assert_ignored(running(PAIRS), LinkDown(a="site-3", b="site-3"))


@pytest.mark.parametrize(
    "message",
    [LinkDown(a="site-9", b="site-1"), LinkDown(a="site-1", b="site-9"), LinkDown(a="site-8", b="site-9")],
    ids=["first", "second", "both"],
)
def test_a_cut_from_who_never_joined_is_refused(message: Message) -> None:
    assert_refused(running(PAIRS), message, by="Controller")
