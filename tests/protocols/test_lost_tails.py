"""Journals that have lost their ends: no number is given a second meaning. Rules 39 to 41."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flux.protocols.controller import Controller
from flux.protocols.egress import Egress
from flux.protocols.ingress import Ingress
from flux.protocols.messages import Hello, Publish, Pull, ReportRefused, Send, Sourced, ViewsLost
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler

from .controllers import hello
from .refusing import assert_ignored, assert_refused
from .views import FIRST, NO_ROWS, WITHOUT_2, ack, attach, consumed, data, highest

AGAIN = replace(
    FIRST,
    number=2,
    nodes=(*FIRST.nodes, "ingress.2"),
    dead=frozenset({"ingress"}),
    copies=((("ingress.2",),), *FIRST.copies[1:]),
    incarnations=((0, 2),),
)
WITHOUT_EGRESS = replace(AGAIN, dead=frozenset({"ingress", "egress"}))
WITHOUT_SITE_1 = replace(AGAIN, number=3, dead=frozenset({"ingress", "site-1"}))


def ingress_again(numbered: int = 3) -> Ingress:
    """An ingress whose journal ends at `numbered`, and that nobody has reported a position to."""
    return Ingress("ingress.2", 9, 0, None, numbered)


def report_all(ingress: Ingress, position: int, view: int = 2) -> list[object]:
    """What the ingress does when all but itself have reported `position`."""
    return [effect for node in ("site-1", "site-2", "egress") for effect in ingress.step(highest(node, position, view))]


# Rule 39: sequence numbers.


def test_what_is_in_the_journal_is_numbered_again_at_once() -> None:
    assert ingress_again(numbered=3).step(AGAIN) == [Pull(after=0)]


def test_nothing_beyond_the_journal_is_numbered_before_all_positions_are_known() -> None:
    ingress = ingress_again(numbered=3)
    ingress.step(AGAIN)
    assert ingress.step(Sourced(after=0, upto=3, rows=1, body=NO_ROWS)) == []
    assert ingress.step(highest("site-1", 3, 2)) == []
    assert ingress.step(highest("egress", 1, 2)) == []
    assert ingress.step(highest("site-2", 2, 2)) == [Pull(after=3, given_upto=3)]


def test_the_source_is_asked_with_the_highest_number_that_any_node_has_seen() -> None:
    ingress = ingress_again(numbered=0)
    assert ingress.step(AGAIN) == []
    assert report_all(ingress, 7) == [Pull(after=0, given_upto=7)]


def test_rows_are_numbered_from_the_end_of_the_journal_though_copies_have_acknowledged_more() -> None:
    ingress = Ingress("ingress.2", 9, released=7, numbered=3)
    ingress.step(AGAIN)
    assert report_all(ingress, 7) == [Pull(after=3, given_upto=7)]


def test_a_position_of_an_earlier_view_does_not_count() -> None:
    ingress = ingress_again(numbered=0)
    ingress.step(AGAIN)
    ingress.step(highest("site-2", 7, 2))
    ingress.step(highest("egress", 7, 2))
    ingress.step(WITHOUT_SITE_1)
    assert_ignored(ingress, highest("site-1", 9, 2))
    assert ingress.step(highest("site-2", 8, 3)) == []
    assert ingress.step(highest("egress", 8, 3)) == [Pull(after=0, given_upto=8)]


def test_views_that_keep_coming_do_not_keep_a_restarted_ingress_waiting() -> None:
    """Each position arrives in another view: moves and slow marks make views faster than positions come."""
    ingress = ingress_again(numbered=0)
    ingress.step(AGAIN)
    effects = ingress.step(highest("site-1", 4, 2))
    for number, node in ((3, "site-2"), (4, "egress")):
        effects += ingress.step(replace(AGAIN, number=number, slow=frozenset({"site-1"} if number % 2 else ())))
        effects += ingress.step(highest(node, number, number))
    assert [effect for effect in effects if isinstance(effect, Pull)] == [Pull(after=0, given_upto=4)]


def test_a_later_position_of_a_node_counts_too() -> None:
    ingress = ingress_again(numbered=0)
    ingress.step(AGAIN)
    ingress.step(highest("site-1", 4, 2))
    ingress.step(replace(AGAIN, number=3))
    ingress.step(highest("site-1", 6, 3))
    ingress.step(highest("site-2", 0, 2))
    assert ingress.step(highest("egress", 0, 3)) == [Pull(after=0, given_upto=6)]


def test_a_site_that_joins_meanwhile_is_asked_too() -> None:
    ingress = ingress_again(numbered=0)
    ingress.step(AGAIN)
    ingress.step(highest("site-1", 4, 2))
    ingress.step(highest("site-2", 4, 2))
    ingress.step(replace(AGAIN, number=3, nodes=(*AGAIN.nodes, "site-3")))
    assert ingress.step(highest("egress", 0, 2)) == []
    assert ingress.step(highest("site-3", 0, 3)) == [Pull(after=0, given_upto=4)]


def test_a_dead_egress_is_waited_for_because_its_sink_may_be_ahead_of_all_others() -> None:
    ingress = ingress_again(numbered=0)
    ingress.step(WITHOUT_EGRESS)
    assert ingress.step(highest("site-1", 0, 2)) == []
    assert ingress.step(highest("site-2", 0, 2)) == []
    assert not ingress.knows_positions


def test_positions_that_are_known_are_not_asked_for_again() -> None:
    ingress = ingress_again(numbered=0)
    ingress.step(AGAIN)
    report_all(ingress, 0)
    ingress.step(WITHOUT_SITE_1)
    assert ingress.knows_positions
    assert_ignored(ingress, highest("site-2", 5, 3))


def test_a_second_position_of_one_node_in_one_view_is_refused() -> None:
    ingress = ingress_again(numbered=0)
    ingress.step(AGAIN)
    ingress.step(highest("site-1", 0, 2))
    assert_refused(ingress, highest("site-1", 0, 2), by="Ingress ingress.2")


def test_a_site_reports_what_it_has_received_and_not_only_what_it_has_consumed() -> None:
    site = Node("site-1", [Pooler("site-1", stage, 99) for stage in (1, 2)])
    site.step(FIRST)
    site.step(data("ingress", 0, 1, 0, 4))
    site.step(data("ingress", 0, 1, 4, 6))
    sent = [effect.message for effect in site.step(AGAIN) if isinstance(effect, Send) and effect.to == "ingress.2"]
    assert highest("site-1", 6, 2) in sent


def test_an_egress_that_has_received_nothing_reports_what_its_sink_has() -> None:
    egress = Node("egress", [Egress("egress", 3, durable=5)])
    sent = [effect.message for effect in egress.step(AGAIN) if isinstance(effect, Send) and effect.to == "ingress.2"]
    assert sent == [highest("egress", 5, 2)]


def test_the_first_ingress_is_sent_no_positions() -> None:
    site = Node("site-1", [Pooler("site-1", stage, 99) for stage in (1, 2)])
    site.step(FIRST)
    assert not [e for e in site.step(WITHOUT_2) if isinstance(e, Send) and e.message == highest("site-1", 0, 2)]


# Rule 40: views.


def restarted(number_from: int = 100) -> Controller:
    return Controller(FIRST, 1, number_from)


def test_a_restarted_controller_numbers_from_above_what_was_given_before() -> None:
    controller = restarted(100)
    for node in ("ingress", "site-1", "site-2", "egress"):
        controller.step(hello(FIRST, node, 1))
    [publish] = controller.step(hello(FIRST, "site-9", 0))
    assert isinstance(publish, Publish)
    assert (publish.view.number, publish.view.last_number) == (100, 1)


def test_a_view_that_follows_the_last_one_is_taken_whatever_its_number() -> None:
    site = Node("site-1", [Pooler("site-1", stage, 99) for stage in (1, 2)])
    site.step(FIRST)
    site.step(replace(FIRST, number=100, follows=1))
    assert site.number == 100


def test_a_node_that_has_seen_another_view_ends_the_run() -> None:
    site = Node("site-1", [Pooler("site-1", stage, 99) for stage in (1, 2)])
    site.step(FIRST)
    site.step(WITHOUT_2)
    [refused] = site.step(replace(FIRST, number=100, follows=1))
    assert isinstance(refused, ReportRefused)
    assert "has seen view 2, and view 100 of the controller follows view 1" in refused.text
    assert site.number == 2


@pytest.mark.parametrize(
    "greeting",
    [
        hello(FIRST, "site-1", 2),
        Hello(node="ingress.2", ends=(0,), incarnation=2, view=1),
        Hello(node="site-7", view=1),
    ],
    ids=["a later view", "an end of a lost view", "a site of a lost view"],
)
def test_a_controller_that_has_lost_views_ends_the_run(greeting: Hello) -> None:
    assert restarted().step(greeting) == [ViewsLost(node=greeting.node, seen=greeting.view, last=1)]


def test_a_controller_that_was_not_restarted_has_lost_nothing() -> None:
    assert_refused(Controller(FIRST), hello(FIRST, "site-1", 2), by="Controller")


# Rule 41: sinks.

EGRESS_AGAIN = replace(
    FIRST,
    number=2,
    nodes=(*FIRST.nodes, "egress.2"),
    dead=frozenset({"egress"}),
    copies=(*FIRST.copies[:3], (("egress.2",),)),
    incarnations=((3, 2),),
)


def producer() -> Pooler:
    """Stage 2 on site-1, of which the egress has acknowledged 4."""
    pooler = Pooler("site-1", 2, 99)
    pooler.step(FIRST)
    pooler.step(data("site-1", 1, 1, 0, 6))
    pooler.step(consumed(2, 6))
    pooler.step(ack("egress", 2, 4))
    pooler.step(EGRESS_AGAIN)
    return pooler


def test_a_restarted_egress_is_fed_from_what_was_acknowledged() -> None:
    assert [effect for effect in producer().step(attach("egress.2", 2, 1, 4, view=2)) if isinstance(effect, Send)]


def test_a_restarted_egress_that_asks_for_what_was_acknowledged_ends_the_run() -> None:
    [refused] = producer().step(attach("egress.2", 2, 1, 3, view=2))
    assert isinstance(refused, ReportRefused)
    assert "asks for the output after 3, and what is up to 4 was reported as written" in refused.text


def test_a_restarted_egress_that_states_less_than_was_acknowledged_ends_the_run_with_the_same_reason() -> None:
    machine = Egress("egress.2", 3, durable=3)
    sent = [send.message for send in machine.step(EGRESS_AGAIN) if isinstance(send, Send) and send.to == "site-1"]
    stated, attached = sent
    producing = producer()
    assert producing.step(stated) == producing.step(attached)
    [refused] = producer().step(stated)
    assert isinstance(refused, ReportRefused)
    assert "the sink's journal has lost its end" in refused.text
