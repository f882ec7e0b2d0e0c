"""Cohorts of FH-Cons: copies that were just built catch up and are fused. Reference: 3.4.3."""

from __future__ import annotations

from dataclasses import replace

from flux.protocols.fh_cons import FhCons
from flux.protocols.messages import Attach, Block, Effect, Merge, Send, Stop

from .refusing import assert_refused
from .views import SPARE, data, merge, merged, standby

TITLE = "FH-Cons of stage 1 on site-1"
# Three partitions of stage 1: site-1 holds 0 and 1 and is to have a copy of 2, built from site-3's.
COPIES = ((("ingress",),), (("site-1", "site-2"), ("site-2", "site-1"), ("site-2", "site-3")), *SPARE.copies[2:])
VIEW = replace(SPARE, copies=COPIES)
COMING = replace(VIEW, number=2, standby=(standby(7, 1, 2, 0, "site-1", "site-3"),))
GIVEN_UP = replace(VIEW, number=3)
LIVE = replace(VIEW, number=3, copies=(COPIES[0], (*COPIES[1][:2], ("site-1", "site-3")), *COPIES[2:]))
OLD, YOUNG = 0, 7
ALL_OLD, ALL_YOUNG = 1, 2  # The stints of their lanes: the ingress feeds both.


def at(old: int, young: int, step: int | None = None) -> FhCons:
    """site-1 at `old` with partitions 0 and 1, and a new copy of partition 2 at `young`."""
    cons = FhCons("site-1", 1, step)
    cons.step(VIEW)
    assert [type(effect.message) for effect in cons.add_cohort(OLD, frozenset({0, 1}), 0)] == [Attach]
    if old:
        receive(cons, ALL_OLD, old)
        go_to(cons, OLD, old)
    cons.step(COMING)
    cons.installed[YOUNG] = 2
    list(cons.add_cohort(YOUNG, frozenset({2}), young))
    return cons


def receive(cons: FhCons, lane_id: int, upto: int) -> list[Effect]:
    return cons.step(data("ingress", 0, lane_id, cons.lanes[lane_id].upto, upto, view=2))


def go_to(cons: FhCons, cohort: int, upto: int) -> None:
    cons.take(cohort, upto)
    cons.finish(cohort)


def test_a_new_copy_is_fed_from_its_own_position() -> None:
    cons = at(5, 3)
    assert (cons.frontier(OLD), cons.frontier(YOUNG)) == (5, 3)
    assert cons.lanes[ALL_YOUNG].channels == (Block(producers=(0,), consumers=(2,)),)


def test_an_ack_speaks_for_all_cohorts() -> None:
    cons = at(5, 3)
    assert cons.consumed == 3


def test_a_copy_behind_goes_no_further_than_the_oldest_cohort() -> None:
    cons = at(5, 3)
    receive(cons, ALL_YOUNG, 9)
    assert cons.reach(YOUNG) == 5


def test_a_copy_ahead_waits_for_the_oldest_cohort_which_stops_where_it_stands() -> None:
    cons = at(3, 5)
    receive(cons, ALL_YOUNG, 9)
    receive(cons, ALL_OLD, 9)
    assert cons.reach(YOUNG) == 5
    assert cons.reach(OLD) == 5


def test_the_oldest_cohort_goes_on_until_a_copy_behind_can_reach_it() -> None:
    cons = at(5, 3)
    receive(cons, ALL_OLD, 9)
    assert cons.reach(OLD) == 9
    # One step more and it would run after us for ever.
    receive(cons, ALL_YOUNG, 6)
    assert cons.reach(OLD) == 5


def test_a_copy_with_much_to_catch_up_with_takes_it_in_steps_and_the_oldest_cohort_does_not_wait() -> None:
    cons = at(9, 0, step=4)
    receive(cons, ALL_OLD, 12)
    receive(cons, ALL_YOUNG, 12)
    assert (cons.reach(YOUNG), cons.reach(OLD)) == (4, 12)
    go_to(cons, YOUNG, 4)
    assert (cons.reach(YOUNG), cons.reach(OLD)) == (8, 12)
    go_to(cons, YOUNG, 8)
    assert (cons.reach(YOUNG), cons.reach(OLD)) == (9, 9)  # The last step before they meet: now it does.


def test_a_step_is_no_longer_than_it_may_be_with_one_cohort_too() -> None:
    cons = FhCons("site-1", 1, step=4)
    cons.step(VIEW)
    list(cons.add_cohort(OLD, frozenset({0, 1}), 0))
    receive(cons, ALL_OLD, 5)
    assert cons.reach(OLD) == 4
    go_to(cons, OLD, 4)
    assert cons.reach(OLD) == 5


def test_a_slow_operator_takes_short_steps_until_it_is_fast_again() -> None:
    cons = FhCons("site-1", 1, step=4)
    cons.step(VIEW)
    list(cons.add_cohort(OLD, frozenset({0, 1}), 0))
    receive(cons, ALL_OLD, 9)
    reached = []
    for most in (2, 7, 0):
        cons.pace(most)
        reached.append(cons.reach(OLD))
    assert reached == [2, 4, 4], "the longest step bounds what the operator asks for"


def test_short_steps_do_not_keep_cohorts_apart() -> None:
    cons = at(9, 5, step=4)
    cons.pace(1)
    receive(cons, ALL_OLD, 12)
    receive(cons, ALL_YOUNG, 12)
    # In steps of 1 both would go on side by side: the oldest waits as it does for a copy one long step behind.
    assert (cons.reach(YOUNG), cons.reach(OLD)) == (6, 9)


def test_an_unordered_stage_cuts_the_frames_that_are_longer_than_a_step() -> None:
    cons = FhCons("site-1", 1, step=4)
    cons.step(replace(VIEW, unordered=frozenset({1})))
    list(cons.add_cohort(OLD, frozenset({0, 1}), 0))
    receive(cons, ALL_OLD, 9)
    spans = []
    while cons.reach(OLD) > cons.cohorts[OLD].consumed:
        [frame] = cons.take(OLD, cons.reach(OLD))
        spans.append((frame.after, frame.upto))
        cons.finish(OLD)
    assert spans == [(0, 4), (4, 8), (8, 9)] and not cons.pending[OLD]


def test_cohorts_meet_when_both_are_idle_at_one_position() -> None:
    cons = at(5, 3)
    assert cons.cohorts_to_fuse() is None
    receive(cons, ALL_YOUNG, 9)
    cons.take(YOUNG, 5)
    assert cons.cohorts_to_fuse() is None, "it is busy"
    cons.finish(YOUNG)
    assert cons.cohorts_to_fuse() == (YOUNG, OLD)


def fused() -> tuple[FhCons, list[Effect]]:
    cons = at(5, 5)
    receive(cons, ALL_YOUNG, 6)
    cohorts_to_fuse = cons.cohorts_to_fuse()
    assert cohorts_to_fuse == (YOUNG, OLD)
    return cons, list(cons.fuse(*cohorts_to_fuse))


def test_fused_cohorts_are_one_and_their_lanes_are_to_be() -> None:
    cons, effects = fused()
    assert [effect.message for effect in effects if isinstance(effect, Send)] == [
        merge("site-1", 0, ALL_YOUNG, ALL_OLD, view=2)
    ]
    assert cons.cohorts[OLD].partitions == {0, 1, 2}
    assert set(cons.cohorts) == {OLD}
    # What the young one had pending is the old one's now.
    assert [frame.upto for frame in cons.pending[OLD]] == [6]
    assert cons.frontier(OLD) == 5


def test_merged_lanes_are_one() -> None:
    cons, _ = fused()
    receive(cons, ALL_OLD, 6)
    cons.step(merged("ingress", 0, ALL_YOUNG, ALL_OLD, view=2))
    assert cons.lanes[ALL_OLD].channels == (
        Block(producers=(0,), consumers=(0,)),
        Block(producers=(0,), consumers=(1,)),
        Block(producers=(0,), consumers=(2,)),
    )
    assert list(cons.lanes) == [ALL_OLD]


def test_lanes_at_two_positions_are_not_merged() -> None:
    cons, _ = fused()
    assert_refused(cons, merged("ingress", 0, ALL_YOUNG, ALL_OLD, view=2), by=TITLE)


def test_lanes_of_two_cohorts_are_not_merged() -> None:
    cons = at(5, 5)
    assert_refused(cons, merged("ingress", 0, ALL_YOUNG, ALL_OLD, view=2), by=TITLE)
    assert_refused(cons, merged("ingress", 0, ALL_YOUNG, ALL_YOUNG, view=2), by=TITLE)


def test_lanes_of_different_senders_stay_apart() -> None:
    # Stage 2 on site-3 has two producers; fusing asks each sender to merge what it sends itself.
    cons = FhCons("site-3", 2)
    view = replace(
        SPARE,
        copies=(*SPARE.copies[:2], (("site-3", "site-2"), ("site-2", "site-1")), SPARE.copies[3]),
        standby=(standby(9, 2, 1, 0, "site-3", "site-1"),),
    )
    cons.step(view)
    list(cons.add_cohort(0, frozenset({0}), 0))
    list(cons.add_cohort(9, frozenset({1}), 0))
    merges = [effect for effect in cons.fuse(9, 0) if isinstance(effect, Send)]
    assert {effect.to for effect in merges} == {"site-1", "site-2"}
    assert all(isinstance(effect.message, Merge) for effect in merges)
    for effect in merges:
        assert cons.lanes[effect.message.into].sender == effect.to == cons.lanes[effect.message.lane_id].sender


def test_a_lane_whose_sender_does_not_feed_the_older_cohort_stays_as_it_is() -> None:
    # Given stage 2 on site-3: the old copy is a primary and fed by site-1, the new one a secondary and fed by site-2,
    view = replace(
        SPARE,
        copies=(
            SPARE.copies[0],
            (("site-1", "site-2"),),
            (("site-3", "site-2"), ("site-2", "site-1")),
            SPARE.copies[3],
        ),
        standby=(standby(9, 2, 1, 1, "site-3", "site-2"),),
    )
    cons = FhCons("site-3", 2)
    cons.step(view)
    list(cons.add_cohort(0, frozenset({0}), 0))
    list(cons.add_cohort(9, frozenset({1}), 0))
    # when they are fused, then there are no two lanes that could be one.
    assert list(cons.fuse(9, 0)) == []
    assert {lane.sender: lane.cohort for lane in cons.lanes.values()} == {"site-1": 0, "site-2": 0}


# Copies that are not wanted any more, or live elsewhere.


def test_a_copy_that_leaves_while_nobody_feeds_it_leaves_the_others_waiting() -> None:
    # Given partitions 0 and 1 of stage 2 on site-1, whose producers are all dead,
    view = replace(SPARE, nodes=(*SPARE.nodes, "site-4"), copies=(SPARE.copies[0], (("site-4",),), *SPARE.copies[2:]))
    cons = FhCons("site-1", 2)
    cons.step(view)
    list(cons.add_cohort(OLD, frozenset({0, 1}), 0))
    assert cons.step(replace(view, number=2, dead=frozenset({"site-4"}))) == []
    # when partition 1 moves away, then nobody is told to stop, and the lane of partition 0 still waits.
    moved = (SPARE.copies[2][0], ("site-2", "site-3"))
    copies = (*view.copies[:2], moved, SPARE.copies[3])
    assert cons.step(replace(view, number=3, dead=frozenset({"site-4"}), copies=copies)) == []
    assert [lane.channels for lane in cons.lanes.values()] == [(Block(producers=(0,), consumers=(0,)),)]


def test_a_copy_given_up_is_gone_with_its_lane() -> None:
    cons = at(5, 3)
    assert cons.gone(GIVEN_UP) == {2}
    [stopping] = cons.step(GIVEN_UP)
    assert isinstance(stopping, Send) and isinstance(stopping.message, Stop)
    assert set(cons.cohorts) == {OLD} and not cons.installed
    assert not cons.lanes[ALL_YOUNG].channels and cons.lanes[ALL_YOUNG].stops == 1


def test_a_copy_that_is_live_stays() -> None:
    cons = at(5, 3)
    assert cons.gone(LIVE) == frozenset()
    assert cons.step(LIVE) == []
    assert not cons.installed and set(cons.cohorts) == {OLD, YOUNG}


def test_a_cohort_at_work_stays_until_it_is_through() -> None:
    cons = at(5, 3)
    receive(cons, ALL_YOUNG, 4)
    cons.take(YOUNG, 4)
    cons.step(GIVEN_UP)
    assert not cons.cohorts[YOUNG].partitions
    cons.finish(YOUNG)
    assert set(cons.cohorts) == {OLD}


def test_pending_frames_lose_the_rows_of_a_copy_that_left() -> None:
    # Given partition 1 of a cohort of two with a frame pending, when its copy moves away,
    cons = at(5, 5)
    receive(cons, ALL_OLD, 6)
    moved = (COPIES[1][0], ("site-2", "site-3"), COPIES[1][2])
    cons.step(replace(COMING, number=3, copies=(COPIES[0], moved, *COPIES[2:])))
    # then only the rows of partition 0 count.
    [frame] = cons.pending[OLD]
    assert frame.channels == (Block(producers=(0,), consumers=(0,)),)


def test_a_site_that_leaves_the_stage_forgets_its_lanes_and_starts_at_nothing_if_it_comes_back() -> None:
    cons = at(5, 5)
    list(cons.acknowledge())
    assert cons.acked == 5
    elsewhere = tuple(("site-2", "site-3") for _ in range(3))
    assert cons.step(replace(VIEW, number=3, copies=(COPIES[0], elsewhere, *COPIES[2:]))) == []
    assert not cons.lanes and not cons.pending and not cons.cohorts
    assert (cons.acked, cons.consumed) == (0, 0)
    assert cons.lane_id == 2, "stints are never used twice"
