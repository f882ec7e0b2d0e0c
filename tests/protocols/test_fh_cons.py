"""FH-Cons: who feeds it, the frontier, take-over. Reference: 3.4.1, 3.4.2, fig. 3.11, fig. 3.12."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flux.protocols.fh_cons import FhCons
from flux.protocols.messages import Ack, Attach, Block, Data, Effect, Merge, Merged, Send, Stop, Stopped, View

from .refusing import assert_ignored, assert_refused
from .views import (
    CHANNELS,
    FIRST,
    SPARE,
    TWO,
    WITHOUT_1,
    WITHOUT_2,
    WITHOUT_BOTH,
    ack,
    data,
    merged,
    standby,
    stop,
    stopped,
)

TITLE = "FH-Cons of stage 2 on site-1"


def fed(effects: list[Effect]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """The channels asked for, by (sender, position); that lanes are to be one is said of each sender behind them."""
    asked: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for effect in effects:
        assert isinstance(effect, Send) and isinstance(effect.message, Attach | Merge)
        if isinstance(effect.message, Merge):
            continue
        channels = asked.setdefault((effect.to, effect.message.position), [])
        for block in effect.message.channels:
            channels.extend((p, c) for p in block.producers for c in block.consumers)
    return asked


def founded(name: str, stage: int, view: View) -> tuple[FhCons, list[Effect]]:
    """A consumer in its first view with the partitions it holds in it, and what it asked for."""
    cons = FhCons(name, stage)
    cons.step(view)
    return cons, list(cons.add_cohort(0, view.held(stage, name), 0))


def consumer(name: str = "site-1", stage: int = 2, view: View = FIRST) -> FhCons:
    return founded(name, stage, view)[0]


def lane_from(cons: FhCons, sender: str) -> int:
    """The stint of the lane from `sender`."""
    return next(lane_id for lane_id, lane in cons.lanes.items() if lane.sender == sender)


def consume(cons: FhCons, upto: int, cohort: int = 0) -> list[Effect]:
    """Have the operator go through everything up to `upto`."""
    cons.take(cohort, upto)
    cons.finish(cohort)
    return list(cons.acknowledge())


# Who feeds whom.


def test_each_copy_is_fed_by_the_same_copy_of_its_producer() -> None:
    # Fig. 3.11: primaries feed primaries, secondaries feed secondaries.
    _, asked = founded("site-1", 2, TWO)
    assert fed(asked) == {("site-1", 0): [(0, 0), (1, 1)], ("site-2", 0): [(1, 0), (0, 1)]}


def test_the_egress_is_fed_by_the_primaries() -> None:
    _, asked = founded("egress", 3, TWO)
    assert fed(asked) == {("site-1", 0): [(0, 0)], ("site-2", 0): [(1, 0)]}


def test_both_copies_of_the_first_stage_are_fed_by_the_ingress() -> None:
    for name in ("site-1", "site-2"):
        _, asked = founded(name, 1, TWO)
        assert {sender for sender, _ in fed(asked)} == {"ingress"}


def test_a_producer_that_is_dead_in_the_first_view_is_never_asked() -> None:
    _, effects = founded("site-1", 2, replace(TWO, dead=frozenset({"site-2"})))
    asked = fed(effects)
    assert {sender for sender, _ in asked} == {"site-1"}
    channels = [channel for blocks in asked.values() for channel in blocks]
    assert sorted(channels) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_consumer_without_producers_alive_at_the_start_waits() -> None:
    cons, asked = founded("egress", 3, replace(WITHOUT_BOTH, number=1))
    assert asked == []
    assert cons.frontier(0) == 0


# Frontier and acks.


def test_the_frontier_is_the_least_of_all_lanes() -> None:
    cons = consumer(view=TWO)
    stints = sorted(cons.lanes)
    cons.step(data(cons.lanes[stints[0]].sender, 1, stints[0], 0, 4))
    assert cons.frontier(0) == 0
    cons.step(data(cons.lanes[stints[1]].sender, 1, stints[1], 0, 3))
    assert cons.frontier(0) == 3


def test_a_frame_beyond_the_frontier_is_taken_once_for_each_part() -> None:
    cons = consumer("egress", 3, TWO)
    first, second = sorted(cons.lanes)
    cons.step(data("site-1", 2, first, 0, 4))
    cons.step(data("site-2", 2, second, 0, 3))
    assert [frame.upto for frame in cons.take(0, 3)] == [4, 3]
    cons.finish(0)
    cons.step(data("site-2", 2, second, 3, 4))
    assert [frame.upto for frame in cons.take(0, 4)] == [4, 4]
    assert cons.pending == {0: ()}


def test_taking_more_than_the_frontier_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="cannot consume 1 of"):
        consumer().take(0, 1)


def test_acks_go_to_every_copy_of_the_producers() -> None:
    # Rule 1: also to those that do not feed it.
    cons = consumer()
    cons.step(data("site-1", 1, 1, 0, 7))
    assert consume(cons, 7) == [
        Send(to="site-1", message=Ack(sender="site-1", view=1, edge=1, position=7)),
        Send(to="site-2", message=Ack(sender="site-1", view=1, edge=1, position=7)),
    ]
    assert list(cons.acknowledge()) == [], "and once"


def test_from_the_view_with_a_copy_in_transfer_to_it_a_site_acknowledges_anew() -> None:
    # Rule 3: its producers have gone back to what the donor had acknowledged.
    cons = consumer()
    cons.step(data("site-1", 1, 1, 0, 7))
    consume(cons, 7)
    view = replace(FIRST, number=2, standby=(standby(1, 2, 5, 0, "site-1", "site-2"),), versions=1)
    cons.step(view)
    assert [effect.message.position for effect in cons.acknowledge() if isinstance(effect, Send)] == [7, 7]
    cons.step(replace(view, number=3))
    assert list(cons.acknowledge()) == [], "once for each copy"


def test_acks_stop_going_to_the_dead() -> None:
    # 3.4.2 case 2: both FH-Cons ignore the dead connection and stop sending acks.
    cons = consumer()
    cons.step(WITHOUT_2)
    cons.step(data("site-1", 1, 1, 0, 1))
    assert [effect.to for effect in consume(cons, 1) if isinstance(effect, Send)] == ["site-1"]


# Take-over.


def test_take_over_attaches_at_the_exact_position_received() -> None:
    # Fig. 3.5 (2), fig. 3.13: not what was consumed, what was received.
    cons = consumer("egress", 3)
    cons.step(data("site-1", 2, 1, 0, 3))
    assert cons.step(WITHOUT_1) == [
        Send(
            to="site-2",
            message=Attach(sender="egress", view=2, edge=2, lane_id=2, position=3, channels=CHANNELS),
        )
    ]
    assert cons.frontier(0) == 3


def test_the_death_of_a_producer_that_feeds_nothing_changes_no_lane() -> None:
    cons = consumer("egress", 3)
    lanes = dict(cons.lanes)
    assert cons.step(WITHOUT_2) == []
    assert cons.lanes == lanes


def test_channels_without_any_copy_hold_the_frontier_back() -> None:
    cons = consumer("egress", 3)
    cons.step(data("site-1", 2, 1, 0, 3))
    cons.step(WITHOUT_1)
    cons.step(data("site-2", 2, 2, 3, 5, view=2))
    assert cons.step(WITHOUT_BOTH) == []
    assert cons.frontier(0) == 5


def test_channels_that_nobody_feeds_are_fed_by_a_standby_that_is_promoted() -> None:
    # Rule 17: both copies are dead, and the third one is built already.
    coming = (standby(1, 2, 0, 0, "site-3", "site-1"),)
    first = replace(FIRST, nodes=(*FIRST.nodes, "site-3"), standby=coming)
    cons = consumer("egress", 3, first)
    assert cons.step(replace(first, number=2, dead=frozenset({"site-1", "site-2"}))) == []
    assert cons.frontier(0) == 0
    promoted = (*FIRST.copies[:2], (("site-3", "site-2"),), FIRST.copies[3])
    asked = cons.step(replace(first, number=3, dead=frozenset({"site-1", "site-2"}), copies=promoted, standby=()))
    assert fed(asked) == {("site-3", 0): [(0, 0)]}
    assert [lane.sender for lane in cons.lanes.values()] == ["site-3"]


def test_blocks_keep_their_consumers_at_take_over() -> None:
    cons = consumer(view=TWO)
    asked = fed(cons.step(replace(TWO, number=2, dead=frozenset({"site-2"}))))
    assert asked == {("site-1", 0): [(1, 0), (0, 1)]}
    assert all(isinstance(block, Block) for lane in cons.lanes.values() for block in lane.channels)


# The sender changes while it lives (rule 13): its copy moved away.

MOVED = replace(
    SPARE, number=2, copies=(*SPARE.copies[:2], (("site-3", "site-2"), SPARE.copies[2][1]), SPARE.copies[3])
)


def moved_to_site_3() -> tuple[FhCons, list[Effect]]:
    """The egress, through 2 and with rows up to 3 and 5, when its first producer has moved from site-1 to site-3."""
    cons = consumer("egress", 3, SPARE)
    cons.step(data("site-1", 2, 1, 0, 5))
    cons.step(data("site-2", 2, 2, 0, 3))
    consume(cons, 2)
    return cons, cons.step(MOVED)


def test_a_channel_follows_its_producer_at_the_position_received() -> None:
    _, (told, stops, asked, merge) = moved_to_site_3()
    # State your position on join (rule 4), then stop the old sender, then attach to the copy that ran before the move.
    assert told == Send(to="site-3", message=Ack(sender="egress", view=2, edge=2, position=2))
    assert stops == Send(to="site-1", message=stop("egress", 2, 1, view=2))
    assert fed([asked]) == {("site-2", 5): [(0, 0)]}
    assert merge == Send(to="site-2", message=Merge(sender="egress", view=2, edge=2, lane_id=3, into=2))


def test_a_channel_follows_a_single_copy_to_the_site_it_moved_to() -> None:
    alone = (*SPARE.copies[:2], (("site-1",), SPARE.copies[2][1]), SPARE.copies[3])
    cons = consumer("egress", 3, replace(SPARE, copies=alone))
    cons.step(data("site-1", 2, 1, 0, 5))
    gone = (*SPARE.copies[:2], (("site-3",), SPARE.copies[2][1]), SPARE.copies[3])
    *_, asked = cons.step(replace(SPARE, number=2, copies=gone))
    assert fed([asked]) == {("site-3", 5): [(0, 0)]}


def test_a_consumer_stays_with_the_copy_that_took_over() -> None:
    # Its own copy, when it is back, was just built and is behind.
    cons = consumer("egress", 3, SPARE)
    cons.step(data("site-1", 2, 1, 0, 5))
    cons.step(data("site-2", 2, 2, 0, 3))
    consume(cons, 3)
    asked = fed(cons.step(replace(SPARE, number=2, dead=frozenset({"site-1"}))))
    assert asked == {("site-2", 5): [(0, 0)]}
    # The new copy is told the position, and nothing is asked of it.
    [told] = cons.step(replace(MOVED, number=3, dead=frozenset({"site-1"})))
    assert told == Send(to="site-3", message=Ack(sender="egress", view=3, edge=2, position=3))


def test_a_sender_is_asked_once_to_make_one_lane_of_two() -> None:
    cons = consumer("egress", 3, SPARE)
    cons.step(data("site-1", 2, 1, 0, 5))
    cons.step(data("site-2", 2, 2, 0, 3))
    *_, merge = cons.step(replace(SPARE, number=2, dead=frozenset({"site-1"})))
    assert merge == Send(to="site-2", message=Merge(sender="egress", view=2, edge=2, lane_id=3, into=2))
    later = cons.step(replace(SPARE, number=3, dead=frozenset({"site-1"})))
    assert not [effect for effect in later if isinstance(effect, Send) and isinstance(effect.message, Merge)]


def test_frames_of_a_lane_without_channels_are_dropped_until_the_stop_is_confirmed() -> None:
    cons, _ = moved_to_site_3()
    pending = cons.pending
    cons.step(data("site-1", 2, 1, 5, 6))
    assert cons.pending == pending and cons.lanes[1].upto == 6
    cons.step(stopped("site-1", 2, 1, view=2))
    assert 1 not in cons.lanes
    assert_ignored(cons, data("site-1", 2, 1, 6, 7, view=2))
    assert_ignored(cons, stopped("site-1", 2, 1, view=2))
    assert_ignored(cons, merged("site-1", 2, 1, 2, view=2))


def test_frames_sent_before_a_stop_is_known_count_for_the_channels_left() -> None:
    # Given a lane of two channels from site-1, of which one moves to site-3,
    both = replace(SPARE, copies=(*SPARE.copies[:2], (("site-1", "site-2"), ("site-1", "site-2")), SPARE.copies[3]))
    cons = consumer("egress", 3, both)
    one_moved = (("site-1", "site-2"), ("site-3", "site-2"))
    cons.step(replace(both, number=2, copies=(*SPARE.copies[:2], one_moved, SPARE.copies[3])))
    # when site-1 sends both because it does not know yet, then only the rows of the first count;
    cons.step(data("site-1", 2, 1, 0, 2))
    [frame] = cons.pending[0]
    assert frame.channels == CHANNELS
    # once it knows, all rows count.
    cons.step(stopped("site-1", 2, 1, view=2))
    cons.step(data("site-1", 2, 1, 2, 3, view=2))
    assert [frame.channels for frame in cons.pending[0]] == [CHANNELS, ()]


def test_a_stop_names_the_channels_of_its_lane_and_no_others() -> None:
    # Given two partitions that are each fed by both sites, when one of them leaves, then each lane loses its own part.
    cons = consumer(view=SPARE)
    one_moved = (("site-3", "site-2"), ("site-2", "site-1"))
    effects = cons.step(replace(SPARE, number=2, copies=(*SPARE.copies[:2], one_moved, SPARE.copies[3])))
    sent = [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Stop)]
    assert [(effect.to, effect.message.channels) for effect in sent] == [
        ("site-1", (Block(producers=(0,), consumers=(0,)),)),
        ("site-2", (Block(producers=(1,), consumers=(0,)),)),
    ]


def test_a_stop_nobody_asked_for_is_refused() -> None:
    cons = consumer()
    assert_refused(cons, stopped("site-1", 1, lane_from(cons, "site-1")), by=TITLE)


PRODUCER_COMING = replace(SPARE, number=2, standby=(standby(1, 1, 0, 0, "site-3", "site-1"),))


def test_a_producer_that_comes_later_is_told_the_position_even_if_nothing_changed() -> None:
    # Rule 4: its buffer would never drain otherwise.
    cons = consumer(view=SPARE)
    for lane_id, lane in cons.lanes.items():
        cons.step(data(lane.sender, 1, lane_id, 0, 4))
    consume(cons, 4)
    [told] = cons.step(PRODUCER_COMING)
    assert told == Send(to="site-3", message=Ack(sender="site-1", view=2, edge=1, position=4))
    assert cons.step(replace(PRODUCER_COMING, number=3)) == [], "and once"


def test_who_has_acknowledged_nothing_has_no_position_to_state() -> None:
    # A producer that was started again knows more of him than he does, and would have to refuse an ack of 0.
    assert consumer(view=SPARE).step(PRODUCER_COMING) == []
    idle = FhCons("site-3", 2)
    idle.step(SPARE)
    assert idle.step(PRODUCER_COMING) == []


# Refused.


def test_a_gap_in_a_lane_is_refused() -> None:
    cons = consumer()
    lane_id = lane_from(cons, "site-1")
    cons.step(data("site-1", 1, lane_id, 0, 2))
    assert_refused(cons, data("site-1", 1, lane_id, 3, 4), by=TITLE)


def test_a_frame_that_comes_twice_is_refused() -> None:
    cons = consumer()
    lane_id = lane_from(cons, "site-1")
    cons.step(data("site-1", 1, lane_id, 0, 2))
    assert_refused(cons, data("site-1", 1, lane_id, 0, 2), by=TITLE)


@pytest.mark.parametrize("message", [data("site-1", 1, 99, 0, 2), stopped("site-1", 1, 99), merged("site-1", 1, 99, 1)])
def test_an_unknown_stint_is_refused(message: Data | Stopped | Merged) -> None:
    for lane_id in (99, 0, -1):  # They begin at 1.
        assert_refused(consumer(), replace(message, lane_id=lane_id), by=TITLE)


@pytest.mark.parametrize("bodies", [(), ("one", "two")], ids=["none", "two"])
def test_a_frame_has_one_body(bodies: tuple[str, ...]) -> None:
    assert_refused(consumer(), replace(data("site-1", 1, 1, 0, 2), bodies=bodies), by=TITLE)


@pytest.mark.parametrize("message", [data("site-2", 1, 1, 0, 2), stopped("site-2", 1, 1), merged("site-2", 1, 1, 1)])
def test_another_sender_in_the_lane_is_refused(message: object) -> None:
    cons = consumer()
    assert lane_from(cons, "site-1") == 1
    assert_refused(cons, message, by=TITLE)


def test_acks_are_none_of_its_business() -> None:
    assert_refused(consumer(), ack("site-1", 1, 1), by=TITLE)
