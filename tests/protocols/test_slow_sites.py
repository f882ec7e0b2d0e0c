"""Slow sites and costs at the controller: views, donors, what is retired. Rules 34, 35, 38, 42."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flux.protocols.controller import Controller
from flux.protocols.fh_prod import FhProd
from flux.protocols.messages import Closed, CopyCosts, CopyReady, Hello, Move, Retire, Slow
from flux.protocols.view import RETIRED, View

from .controllers import building, laid_out, published, running

FOUR = laid_out(4, ["1 2", "2 1", "3 4"], ["1 2"])


def slow(*numbers: int) -> Slow:
    return Slow(nodes=tuple(f"site-{n}" for n in numbers))


def test_the_next_view_lists_the_slow_sites() -> None:
    controller = running(FOUR)
    assert published(controller.step(slow(1))).slow == {"site-1"}
    assert published(controller.step(slow(2))).slow == {"site-2"}
    assert published(controller.step(slow())).slow == frozenset()


def test_the_same_mark_again_changes_nothing() -> None:
    controller = running(FOUR)
    controller.step(slow(1))
    assert controller.step(slow(1)) == []


@pytest.mark.parametrize("node", ["ingress", "egress", "site-9"])
def test_only_sites_of_the_view_are_slow(node: str) -> None:
    controller = running(FOUR)
    assert controller.step(Slow(nodes=(node,))) == []


def test_nothing_is_slow_before_the_first_view() -> None:
    assert Controller(FOUR).step(slow(1)) == []


def test_a_dead_site_is_not_slow_any_more() -> None:
    controller = running(FOUR)
    controller.step(slow(1))
    assert published(controller.step(Closed(node="site-1"))).slow == frozenset()
    assert controller.step(slow(1)) == []


def test_the_mark_stays_in_later_views() -> None:
    controller = running(FOUR)
    controller.step(slow(1))
    assert published(controller.step(Hello(node="site-5"))).slow == {"site-1"}


def test_a_move_is_built_from_the_other_copy() -> None:
    controller = running(FOUR)
    controller.step(Move(stage=1, partition=0, slot=0, to="site-3"))
    controller.step(Move(stage=1, partition=1, slot=1, to="site-3"))
    assert building(controller.view) == [(1, 0, 0, "site-2", "site-3"), (1, 1, 1, "site-2", "site-3")]


def test_a_move_off_a_slow_site_is_built_from_the_other_copy_though_it_is_slow_too() -> None:
    controller = running(FOUR)
    controller.step(slow(1, 2))
    controller.step(Move(stage=1, partition=0, slot=0, to="site-3"))
    assert building(controller.view) == [(1, 0, 0, "site-2", "site-3")]


def test_a_single_copy_is_its_own_donor() -> None:
    controller = running(laid_out(2, ["1"]))
    controller.step(Move(stage=1, partition=0, slot=0, to="site-2"))
    assert building(controller.view) == [(1, 0, 0, "site-1", "site-2")]


def test_a_lost_copy_is_not_rebuilt_on_a_slow_site() -> None:
    controller = running(laid_out(4, ["1 2"]))
    controller.step(slow(3))
    assert building(published(controller.step(Closed(node="site-1")))) == [(1, 0, 0, "site-2", "site-4")]


def test_a_lost_copy_is_rebuilt_on_a_slow_site_if_there_is_no_other() -> None:
    controller = running(laid_out(3, ["1 2"]))
    controller.step(slow(3))
    assert building(published(controller.step(Closed(node="site-1")))) == [(1, 0, 0, "site-2", "site-3")]


def test_a_lost_copy_is_rebuilt_where_copies_cost_least() -> None:
    """Site 3 has one copy at 5, site 4 two at 2: with one more 10 and 6."""
    controller = running(laid_out(4, ["1 2"], ["3 4"], ["2 4"]))
    controller.step(CopyCosts(costs=(("site-2", 1.0), ("site-3", 5.0), ("site-4", 2.0))))
    assert building(published(controller.step(Closed(node="site-1")))) == [(1, 0, 0, "site-2", "site-4")]


def test_a_site_without_an_estimate_costs_the_average() -> None:
    controller = running(laid_out(4, ["1 2"]))
    controller.step(CopyCosts(costs=(("site-1", 1.0), ("site-2", 1.0), ("site-3", 4.0))))
    assert building(published(controller.step(Closed(node="site-1")))) == [(1, 0, 0, "site-2", "site-4")]


# Copies that are retired.

TWO = laid_out(2, ["1 2", "2 1"], ["1 2"])


def test_the_copies_of_a_slow_site_are_retired_and_their_slots_stay() -> None:
    controller = running(TWO)
    controller.step(slow(1))
    view = published(controller.step(Retire(node="site-1")))
    assert view.copies[1:3] == (((RETIRED, "site-2"), ("site-2", RETIRED)), ((RETIRED, "site-2"),))
    assert view.alive("site-1") and view.slow == {"site-1"} and view.standby == ()
    assert view.members(1) == view.holders(2) == ("site-2",)
    assert controller.step(Retire(node="site-1")) == [], "it has no copies any more"


def test_nothing_is_retired_of_a_site_that_is_not_slow() -> None:
    controller = running(TWO)
    assert controller.step(Retire(node="site-1")) == []
    assert Controller(TWO).step(Retire(node="site-1")) == []


def test_the_last_copy_and_the_last_one_that_is_not_slow_stay() -> None:
    both = running(TWO)
    both.step(slow(1, 2))
    assert both.step(Retire(node="site-1")) == []
    alone = running(TWO)
    alone.step(Closed(node="site-2"))
    alone.step(slow(1))
    assert alone.step(Retire(node="site-1")) == []


def test_one_copy_without_a_partner_that_is_not_slow_keeps_all_of_its_site() -> None:
    controller = running(laid_out(3, ["1 2", "1 3"]))
    controller.step(slow(1, 2))
    assert controller.step(Retire(node="site-1")) == []


def test_nothing_is_retired_while_a_copy_of_the_same_partition_is_in_transfer() -> None:
    controller = running(laid_out(3, ["1 2"]))
    controller.step(Move(stage=1, partition=0, slot=1, to="site-3"))
    controller.step(slow(1))
    assert controller.step(Retire(node="site-1")) == []
    controller.step(CopyReady(node="site-3", version=1))
    assert building(published(controller.step(Retire(node="site-1")))) == [(1, 0, 0, "site-3", "site-2")]


def test_a_retired_copy_is_rebuilt_when_its_site_is_not_slow_any_more() -> None:
    controller = running(laid_out(2, ["1 2"]))
    controller.step(slow(1))
    controller.step(Retire(node="site-1"))
    assert building(published(controller.step(slow()))) == [(1, 0, 0, "site-2", "site-1")]
    view = published(controller.step(CopyReady(node="site-1", version=1)))
    assert view.copies[1] == (("site-1", "site-2"),) and view.dead == frozenset()


def test_a_retired_copy_is_rebuilt_on_a_site_that_joins() -> None:
    controller = running(laid_out(2, ["1 2"]))
    controller.step(slow(1))
    controller.step(Retire(node="site-1"))
    assert building(published(controller.step(Hello(node="site-3")))) == [(1, 0, 0, "site-2", "site-3")]


def test_the_holder_of_what_is_left_is_not_suspected() -> None:
    controller = running(TWO)
    controller.step(slow(1))
    assert not controller.view.needs("site-2")
    controller.step(Retire(node="site-1"))
    assert controller.view.needs("site-2") and not controller.view.needs("site-1")


# Which copy feeds a consumer.


def view(*slow_sites: str, dead: str = "") -> View:
    nodes = ("ingress", "site-1", "site-2", "site-3", "egress")
    copies = ((("ingress",),), (("site-1", "site-2"),), (("egress",),))
    gone = frozenset({dead} if dead else ())
    return View(number=1, nodes=nodes, dead=gone, copies=copies, slow=frozenset(slow_sites))


@pytest.mark.parametrize(
    ("slow_sites", "now", "expected"),
    [
        ((), "", "site-1"),
        ((), "site-2", "site-2"),
        (("site-1",), "", "site-2"),
        (("site-1",), "site-1", "site-2"),
        (("site-2",), "site-2", "site-1"),
        (("site-1", "site-2"), "", "site-1"),
        (("site-1", "site-2"), "site-2", "site-2"),
    ],
)
def test_a_slow_copy_feeds_none_that_has_another_choice(slow_sites: tuple[str, ...], now: str, expected: str) -> None:
    assert view(*slow_sites).feeder(1, 0, 0, now) == expected


def test_a_slow_copy_feeds_if_the_other_is_dead() -> None:
    assert view("site-1", dead="site-2").feeder(1, 0, 1, "site-2") == "site-1"


def test_more_rows_are_kept_for_a_slow_consumer() -> None:
    prod = FhProd("ingress", 0, bound_rows=10, transfer_rows_max=80)
    prod.step(view())
    assert prod.buffer.quota_rows == {}
    prod.step(view("site-1"))
    assert prod.buffer.quota_rows == {(0, "site-1"): 80}


def moved(*slots: str) -> View:
    """A view with the sites of the one partition's copies."""
    return replace(view(), copies=((("ingress",),), (slots,), (("egress",),)))


@pytest.mark.parametrize(
    ("before", "after", "now", "expected"),
    [
        (("site-1", "site-2"), ("site-3", "site-2"), "site-1", "site-2"),
        (("site-1", "site-2"), ("site-3", "site-2"), "site-2", "site-2"),
        (("site-3", "site-2"), ("site-3", "site-2"), "", "site-3"),
        (("site-1",), ("site-3",), "site-1", "site-3"),
    ],
)
def test_a_copy_that_was_just_built_feeds_none_that_has_another_choice(
    before: tuple[str, ...], after: tuple[str, ...], now: str, expected: str
) -> None:
    assert moved(*after).feeder(1, 0, 0, now, moved(*before)) == expected
