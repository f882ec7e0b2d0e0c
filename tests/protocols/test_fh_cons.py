"""FH-Cons: who feeds it, the frontier, take-over. Reference: 3.4.1, 3.4.2, fig. 3.11, fig. 3.12."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flux.protocols.fh_cons import FhCons
from flux.protocols.messages import Ack, Attach, Block, Effect, Send, View

from .refusing import assert_refused
from .views import CHANNELS, FIRST, WITHOUT_1, WITHOUT_2, WITHOUT_BOTH, ack, data

TITLE = "FH-Cons of edge 1 on site-1"
# Two partition pairs on each side, each site with one primary and one secondary.
TWO = View(
    number=1,
    nodes=("ingress", "site-1", "site-2", "egress"),
    dead=frozenset(),
    copies=(
        (("ingress",),),
        (("site-1", "site-2"), ("site-2", "site-1")),
        (("site-1", "site-2"), ("site-2", "site-1")),
        (("egress",),),
    ),
)


def fed(effects: list[Effect]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """The channels asked for, by (sender, position)."""
    asked: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for effect in effects:
        assert isinstance(effect, Send) and isinstance(effect.message, Attach)
        channels = asked.setdefault((effect.to, effect.message.position), [])
        for block in effect.message.channels:
            channels.extend((p, c) for p in block.producers for c in block.consumers)
    return asked


def consumer(name: str = "site-1") -> FhCons:
    cons = FhCons(name, 1)
    cons.step(FIRST)
    return cons


def lane_from(cons: FhCons, sender: str) -> int:
    """The stint of the lane from `sender` that carries rows."""
    return next(
        stint
        for stint, lane in cons.lanes.items()
        if lane.sender == sender and any(block.consumers for block in lane.channels)
    )


def test_each_copy_is_fed_by_the_same_copy_of_its_producer() -> None:
    # Fig. 3.11: primaries feed primaries, secondaries feed secondaries.
    asked = fed(FhCons("site-1", 1).step(TWO))
    assert asked == {("site-1", 0): [(0, 0), (1, 1)], ("site-2", 0): [(1, 0), (0, 1)]}


def test_the_egress_is_fed_by_the_primaries() -> None:
    asked = fed(FhCons("egress", 2).step(TWO))
    assert asked == {("site-1", 0): [(0, 0)], ("site-2", 0): [(1, 0)]}


def test_both_copies_of_the_first_stage_are_fed_by_the_ingress() -> None:
    for name in ("site-1", "site-2"):
        asked = fed(FhCons(name, 0).step(TWO))
        assert {sender for sender, _ in asked} == {"ingress"}


def test_a_producer_that_is_dead_in_the_first_view_is_never_asked() -> None:
    asked = fed(FhCons("site-1", 1).step(replace(TWO, dead=frozenset({"site-2"}))))
    assert {sender for sender, _ in asked} == {"site-1"}
    channels = [channel for blocks in asked.values() for channel in blocks]
    assert sorted(channels) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_the_frontier_is_the_least_of_all_lanes() -> None:
    cons = FhCons("site-1", 1)
    cons.step(TWO)
    stints = sorted(cons.lanes)
    cons.step(data(cons.lanes[stints[0]].sender, 1, stints[0], 0, 4))
    assert cons.frontier == 0
    cons.step(data(cons.lanes[stints[1]].sender, 1, stints[1], 0, 3))
    assert cons.frontier == 3


def test_a_frame_beyond_the_frontier_is_taken_once_for_each_part() -> None:
    cons = FhCons("egress", 2)
    cons.step(TWO)
    first, second = sorted(cons.lanes)
    cons.step(data("site-1", 2, first, 0, 4))
    cons.step(data("site-2", 2, second, 0, 3))
    assert [frame.upto for frame in cons.take(3)] == [4, 3]
    list(cons.acknowledge(3))
    cons.step(data("site-2", 2, second, 3, 4))
    assert [frame.upto for frame in cons.take(4)] == [4, 4]
    assert cons.pending == []


def test_taking_more_than_the_frontier_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="cannot consume 1 at frontier 0"):
        consumer().take(1)


def test_acks_go_to_every_copy_of_the_producers() -> None:
    # Rule 1: also to those that do not feed it.
    assert list(consumer().acknowledge(7)) == [
        Send(to="site-1", message=Ack(sender="site-1", view=1, edge=1, position=7)),
        Send(to="site-2", message=Ack(sender="site-1", view=1, edge=1, position=7)),
    ]


def test_acks_stop_going_to_the_dead() -> None:
    # 3.4.2 case 2: both FH-Cons ignore the dead connection and stop sending acks.
    cons = consumer()
    cons.step(WITHOUT_2)
    assert [effect.to for effect in cons.acknowledge(1) if isinstance(effect, Send)] == ["site-1"]


def test_take_over_attaches_at_the_exact_position_received() -> None:
    # Fig. 3.5 (2), fig. 3.13: not what was consumed, what was received.
    cons = FhCons("egress", 2)
    cons.step(FIRST)
    cons.step(data("site-1", 2, 1, 0, 3))
    assert cons.step(WITHOUT_1) == [
        Send(
            to="site-2",
            message=Attach(sender="egress", view=2, edge=2, stint=2, position=3, channels=CHANNELS),
        )
    ]
    assert cons.frontier == 3


def test_the_death_of_a_producer_that_feeds_nothing_changes_no_lane() -> None:
    cons = FhCons("egress", 2)
    cons.step(FIRST)
    lanes = dict(cons.lanes)
    assert cons.step(WITHOUT_2) == []
    assert cons.lanes == lanes


def test_channels_without_any_copy_hold_the_frontier_back() -> None:
    cons = FhCons("egress", 2)
    cons.step(FIRST)
    cons.step(data("site-1", 2, 1, 0, 3))
    cons.step(WITHOUT_1)
    cons.step(data("site-2", 2, 2, 3, 5, view=2))
    assert cons.step(WITHOUT_BOTH) == []
    assert cons.frontier == 5


def test_a_consumer_without_producers_alive_at_the_start_waits() -> None:
    cons = FhCons("egress", 2)
    assert cons.step(replace(WITHOUT_BOTH, number=1)) == []
    assert cons.frontier == 0


def test_a_gap_in_a_lane_is_refused() -> None:
    cons = consumer()
    stint = lane_from(cons, "site-1")
    cons.step(data("site-1", 1, stint, 0, 2))
    assert_refused(cons, data("site-1", 1, stint, 3, 4), by=TITLE)


def test_a_frame_that_comes_twice_is_refused() -> None:
    cons = consumer()
    stint = lane_from(cons, "site-1")
    cons.step(data("site-1", 1, stint, 0, 2))
    assert_refused(cons, data("site-1", 1, stint, 0, 2), by=TITLE)


def test_a_frame_of_an_unknown_stint_is_refused() -> None:
    assert_refused(consumer(), data("site-1", 1, 99, 0, 2), by=TITLE)


def test_a_frame_of_another_sender_in_the_lane_is_refused() -> None:
    cons = consumer()
    assert_refused(cons, data("site-2", 1, lane_from(cons, "site-1"), 0, 2), by=TITLE)


def test_acks_are_none_of_its_business() -> None:
    assert_refused(consumer(), ack("site-1", 1, 1), by=TITLE)


def test_blocks_keep_their_consumers_at_take_over() -> None:
    cons = FhCons("site-1", 1)
    cons.step(TWO)
    asked = fed(cons.step(replace(TWO, number=2, dead=frozenset({"site-2"}))))
    assert asked == {("site-1", 0): [(1, 0), (0, 1)]}
    assert all(isinstance(block, Block) for lane in cons.lanes.values() for block in lane.channels)
