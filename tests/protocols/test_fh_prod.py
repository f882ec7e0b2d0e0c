"""FH-Prod: lanes, cursors, and what it refuses. Reference: 3.4.1, fig. 3.13."""

from __future__ import annotations

from flux.protocols.fh_prod import FhProd
from flux.protocols.messages import Data, Send

from .refusing import assert_refused
from .views import CHANNELS, FIRST, NO_ROWS, WITHOUT_2, ack, attach, consumed

TITLE = "FH-Prod of edge 1 on site-1"


def producer(bound_rows: int = 10) -> FhProd:
    prod = FhProd("site-1", 1, bound_rows)
    assert prod.step(FIRST) == []
    return prod


def sent(to: str, stint: int, after: int, upto: int, view: int = 1) -> Send:
    message = Data(sender="site-1", view=view, edge=1, stint=stint, after=after, upto=upto, body=NO_ROWS)
    return Send(to=to, message=message, channels=CHANNELS)


def test_a_lane_is_fed_what_is_there_and_then_all_that_comes() -> None:
    prod = producer()
    assert prod.step(consumed(1, 2)) == []
    assert prod.step(consumed(1, 3)) == []
    assert prod.step(attach("site-2", 1, 1, 0)) == [sent("site-2", 1, 0, 2), sent("site-2", 1, 2, 3)]
    assert prod.step(consumed(1, 7)) == [sent("site-2", 1, 3, 7)]


def test_a_lane_opened_inside_a_run_gets_the_rest_of_it() -> None:
    prod = producer()
    prod.step(consumed(1, 5))
    assert prod.step(attach("site-2", 1, 4, 3)) == [sent("site-2", 4, 3, 5)]


def test_a_consumer_ahead_of_the_producer_gets_nothing_until_it_is_passed() -> None:
    # Rule 14: a copy that has produced less sends nothing until it passes the position.
    prod = producer()
    assert prod.step(attach("site-2", 1, 1, 4)) == []
    assert prod.step(consumed(1, 4)) == []
    assert prod.step(consumed(1, 6)) == [sent("site-2", 1, 4, 6)]


def test_one_consumer_may_have_several_lanes_at_positions_of_their_own() -> None:
    prod = producer()
    prod.step(consumed(1, 3))
    prod.step(attach("site-2", 1, 1, 3))
    assert prod.step(attach("site-2", 1, 2, 1)) == [sent("site-2", 2, 1, 3)]
    assert prod.step(consumed(1, 4)) == [sent("site-2", 1, 3, 4), sent("site-2", 2, 3, 4)]


def test_sending_releases_nothing_and_acks_do() -> None:
    # Rule 1.
    prod = producer()
    for name in ("site-1", "site-2"):
        prod.step(attach(name, 1, 1, 0))
    prod.step(consumed(1, 2))
    assert prod.buffer.rows == 1
    prod.step(ack("site-1", 1, 2))
    assert prod.buffer.rows == 1
    prod.step(ack("site-2", 1, 2))
    assert prod.buffer.rows == 0


def test_a_failed_consumer_loses_its_lanes_and_its_claims() -> None:
    # Fig. 3.5 (1): fail.
    prod = producer()
    prod.step(attach("site-1", 1, 1, 0))
    prod.step(attach("site-2", 1, 1, 0))
    prod.step(consumed(1, 1))
    prod.step(ack("site-1", 1, 1))
    assert prod.step(WITHOUT_2) == []
    assert prod.buffer.rows == 0
    assert prod.step(consumed(1, 2)) == [sent("site-1", 1, 1, 2, view=2)]


def test_the_same_ack_twice_changes_nothing() -> None:
    prod = producer()
    prod.step(ack("site-2", 1, 3))
    before = prod.key()
    assert prod.step(ack("site-2", 1, 3)) == []
    assert prod.key() == before


def test_an_ack_that_goes_back_is_refused() -> None:
    prod = producer()
    prod.step(ack("site-2", 1, 3))
    assert_refused(prod, ack("site-2", 1, 2), by=TITLE)


def test_an_ack_or_attach_of_a_stranger_is_refused() -> None:
    prod = producer()
    assert_refused(prod, ack("egress", 1, 1), by=TITLE)
    assert_refused(prod, attach("egress", 1, 1, 0), by=TITLE)


def test_an_attach_below_what_was_dropped_is_refused() -> None:
    # Rule 14: the rows are gone; feeding from later would be a hole.
    prod = producer()
    prod.step(consumed(1, 3))
    for name in ("site-1", "site-2"):
        prod.step(ack(name, 1, 3))
    assert_refused(prod, attach("site-2", 1, 1, 2), by=TITLE)
    assert prod.step(attach("site-2", 1, 1, 3)) == []


def test_a_stint_names_one_lane_for_ever() -> None:
    prod = producer()
    prod.step(attach("site-2", 1, 1, 0))
    assert_refused(prod, attach("site-2", 1, 1, 0), by=TITLE)


def test_output_that_does_not_go_on_is_refused() -> None:
    prod = producer()
    prod.step(consumed(1, 3))
    assert_refused(prod, consumed(1, 3), by=TITLE)
    assert_refused(prod, consumed(1, 2), by=TITLE)
