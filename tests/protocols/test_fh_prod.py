"""FH-Prod: lanes, cursors, cohorts, and what it refuses. Reference: 3.4.1, 3.4.3, fig. 3.13 to 3.15."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flux.protocols.fh_prod import FhProd
from flux.protocols.messages import Ack, Attach, Block, Data, Effect, Merge, OutputRun, Send, Stop, View

from .refusing import assert_ignored, assert_refused
from .views import (
    CHANNELS,
    FIRST,
    NO_ROWS,
    SPARE,
    WITHOUT_2,
    ack,
    attach,
    consumed,
    merge,
    merged,
    run,
    standby,
    stop,
    stopped,
)

TITLE = "FH-Prod of stage 1 on site-1"
ALL = frozenset({0})


def producer(bound_rows: int = 10, view: View = FIRST, partitions: frozenset[int] = ALL) -> FhProd:
    prod = FhProd("site-1", 1, bound_rows)
    assert prod.step(view) == []
    prod.add_cohort(0, partitions, 0)
    return prod


def sent(to: str, lane_id: int, after: int, upto: int, runs: int = 1, view: int = 1, channels: Any = CHANNELS) -> Send:
    """A frame on its way out: whole runs, and which of their rows go."""
    message = Data(
        sender="site-1", view=view, edge=1, lane_id=lane_id, after=after, upto=upto, bodies=(NO_ROWS,) * runs
    )
    return Send(to=to, message=message, channels=(channels,) * runs)


def told(to: str, message: Any) -> Send:
    return Send(to=to, message=message)


def uptos(effects: list[Effect]) -> list[int]:
    return [e.message.upto for e in effects if isinstance(e, Send) and isinstance(e.message, Data)]


# Lanes.


def test_a_lane_is_fed_what_is_there_in_one_frame_and_then_all_that_comes() -> None:
    prod = producer()
    assert prod.step(consumed(1, 2)) == []
    assert prod.step(consumed(1, 3)) == []
    assert prod.step(attach("site-2", 1, 1, 0)) == [sent("site-2", 1, 0, 3, runs=2)]
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
    prod.step(stop("site-2", 1, 1))
    assert_refused(prod, attach("site-2", 1, 1, 0), by=TITLE)


def test_the_stints_of_a_consumer_only_grow() -> None:
    prod = producer()
    prod.step(attach("site-2", 1, 4, 0))
    for lane_id in (3, 0, -1):
        assert_refused(prod, attach("site-2", 1, lane_id, 0), by=TITLE)
    assert prod.step(attach("site-1", 1, 1, 0)) == [], "another consumer numbers its own"
    assert prod.step(attach("site-2", 1, 6, 0)) == [], "those between were for others"


def test_output_that_does_not_go_on_is_refused() -> None:
    prod = producer()
    prod.step(consumed(1, 3))
    assert_refused(prod, consumed(1, 3), by=TITLE)
    assert_refused(prod, consumed(1, 2), by=TITLE)
    assert_refused(prod, consumed(1, 9, cohort=7), by=TITLE)


# Stop: the sender of some channels changes back (rule 13).

SQUARE = (Block(producers=(0, 1), consumers=(0, 1)),)
COLUMN = (Block(producers=(0, 1), consumers=(1,)),)


def test_a_stop_takes_channels_out_of_a_lane_and_says_so_in_it() -> None:
    prod = producer(partitions=frozenset({0, 1}))
    prod.step(attach("site-2", 1, 1, 0, channels=SQUARE))
    assert prod.step(stop("site-2", 1, 1, channels=COLUMN)) == [told("site-2", stopped("site-1", 1, 1))]
    left = (Block(producers=(0, 1), consumers=(0,)),)
    assert prod.step(consumed(1, 2)) == [sent("site-2", 1, 0, 2, channels=left)]


def test_a_lane_without_channels_is_gone() -> None:
    prod = producer()
    prod.step(attach("site-2", 1, 1, 0))
    assert prod.step(stop("site-2", 1, 1)) == [told("site-2", stopped("site-1", 1, 1))]
    assert prod.step(consumed(1, 2)) == []
    assert_refused(prod, stop("site-2", 1, 1), by=TITLE)


def test_a_lane_that_was_never_opened_cannot_be_stopped_or_merged() -> None:
    prod = producer()
    assert_refused(prod, stop("site-2", 1, 1), by=TITLE)
    assert_refused(prod, merge("site-2", 1, 1, 2), by=TITLE)


# Merge: lanes that have come equally far become one.


def test_lanes_at_one_position_are_merged_at_once() -> None:
    prod = producer()
    prod.step(attach("site-2", 1, 1, 0))
    prod.step(attach("site-2", 1, 2, 0, channels=COLUMN))
    assert prod.step(merge("site-2", 1, 2, 1)) == [told("site-2", merged("site-1", 1, 2, 1))]
    assert prod.step(consumed(1, 2)) == [sent("site-2", 1, 0, 2, channels=CHANNELS + COLUMN)]


def test_lanes_at_two_positions_are_merged_when_they_meet() -> None:
    prod = producer()
    prod.step(consumed(1, 3))
    prod.step(attach("site-2", 1, 1, 3))
    prod.step(attach("site-2", 1, 2, 5, channels=COLUMN))
    assert prod.step(merge("site-2", 1, 2, 1)) == []
    # The consumer is ahead on the second lane: nothing for it until both are at 5.
    assert prod.step(consumed(1, 4)) == [sent("site-2", 1, 3, 4)]
    assert prod.step(consumed(1, 5)) == [sent("site-2", 1, 4, 5), told("site-2", merged("site-1", 1, 2, 1))]
    assert prod.step(consumed(1, 6)) == [sent("site-2", 1, 5, 6, channels=CHANNELS + COLUMN)]


def test_a_lane_that_was_merged_is_known_by_its_old_name_too() -> None:
    # The consumer sends stop and merge before it knows that its lane is another's part.
    prod = producer()
    for lane_id in (1, 2, 3):
        prod.step(attach("site-2", 1, lane_id, 0, channels=(Block(producers=(0,), consumers=(lane_id,)),)))
    prod.step(merge("site-2", 1, 3, 2))
    prod.step(merge("site-2", 1, 2, 1))
    only = (Block(producers=(0,), consumers=(3,)),)
    assert prod.step(stop("site-2", 1, 3, channels=only)) == [told("site-2", stopped("site-1", 1, 1))]
    assert prod.step(merge("site-2", 1, 3, 1)) == [], "it is there already"
    assert [list(lane) for lane in prod.lanes] == [[1, "site-2", 1]]


def test_a_merge_into_a_lane_that_is_gone_or_never_was_is_refused() -> None:
    prod = producer()
    prod.step(attach("site-2", 1, 1, 0))
    prod.step(attach("site-2", 1, 2, 0))
    prod.step(stop("site-2", 1, 1))
    for into in (1, 9, 0):
        assert_refused(prod, merge("site-2", 1, 2, into), by=TITLE)


def meeting_at_5() -> FhProd:
    """Lanes 1 at 3 and 2 at 5, which are to be merged at 5; lane 3 is a part of lane 2 already."""
    prod = producer()
    prod.step(consumed(1, 3))
    prod.step(attach("site-2", 1, 1, 3))
    for lane_id in (2, 3):
        prod.step(attach("site-2", 1, lane_id, 5, channels=COLUMN))
    assert prod.step(merge("site-2", 1, 3, 2)) == [told("site-2", merged("site-1", 1, 3, 2))]
    assert prod.step(merge("site-2", 1, 2, 1)) == []
    return prod


def test_a_lane_with_a_part_of_it_is_merged_as_a_whole() -> None:
    assert told("site-2", merged("site-1", 1, 2, 1)) in meeting_at_5().step(consumed(1, 5))


def test_a_merge_that_is_asked_for_again_does_not_undo_one_that_waits() -> None:
    prod = meeting_at_5()
    assert_ignored(prod, merge("site-2", 1, 3, 2))


# Cohorts: copies that were just built.


def caught_up_to(produced: int, runs: tuple[OutputRun, ...] = ()) -> FhProd:
    """A site at 4 with partition 0, and a new copy of partition 1 that has come as far as `produced`."""
    prod = producer()
    prod.step(consumed(1, 4))
    prod.add_cohort(7, frozenset({1}), produced, runs)
    return prod


def test_a_lane_goes_as_far_as_the_last_of_its_producers() -> None:
    prod = caught_up_to(2)
    assert prod.step(attach("site-2", 1, 1, 0, channels=SQUARE)) == [sent("site-2", 1, 0, 2, channels=SQUARE)]
    assert uptos(prod.step(attach("site-2", 1, 2, 0))) == [4]
    assert uptos(prod.step(consumed(1, 3, cohort=7))) == [3]


def test_a_lane_goes_on_when_the_producer_that_held_it_back_is_taken_out() -> None:
    prod = caught_up_to(2)
    assert prod.step(attach("site-2", 1, 1, 2, channels=SQUARE)) == []
    behind, ahead = (Block(producers=(1,), consumers=(0, 1)),), (Block(producers=(0,), consumers=(0, 1)),)
    told_and_fed = [told("site-2", stopped("site-1", 1, 1)), sent("site-2", 1, 2, 4, channels=ahead)]
    assert prod.step(stop("site-2", 1, 1, channels=behind)) == told_and_fed


def test_a_lane_of_producers_that_are_not_here_stands_still() -> None:
    prod = caught_up_to(2)
    elsewhere = (Block(producers=(5,), consumers=(0,)),)
    assert prod.step(attach("site-2", 1, 1, 1, channels=elsewhere)) == []


def test_a_new_copy_brings_its_unacknowledged_output() -> None:
    # Rule 16; what all have acknowledged meanwhile is not kept again.
    prod = producer()
    prod.step(ack("site-1", 1, 2))
    prod.step(ack("site-2", 1, 2))
    prod.add_cohort(7, frozenset({1}), 4, (run(0, 2), run(2, 4, rows=3)))
    assert (prod.buffer.runs, prod.buffer.rows) == ([run(2, 4, rows=3)], 3)


def test_cohorts_fuse_at_one_position_only() -> None:
    prod = caught_up_to(3)
    with pytest.raises(AssertionError, match="at one position"):
        prod.fuse(7, 0)
    prod.step(consumed(1, 4, cohort=7))
    prod.fuse(7, 0)
    assert (prod.cohorts, prod.produced) == ({0: frozenset({0, 1})}, {0: 4})


def test_rows_of_a_copy_that_left_do_not_count_any_more() -> None:
    # Another site answers for them; what the partitions that stay have produced is kept until acknowledged.
    prod = producer(partitions=frozenset({0, 1}))
    prod.step(consumed(1, 4))
    prod.forget(frozenset({1}))
    assert prod.buffer.rows == 1
    first = (Block(producers=(0,), consumers=(0, 1)),)
    assert prod.step(attach("site-2", 1, 1, 0, channels=SQUARE)) == [sent("site-2", 1, 0, 4, channels=first)]


def test_rows_of_a_copy_that_left_while_the_operator_is_at_work_do_not_count_either() -> None:
    prod = producer(partitions=frozenset({0, 1}))
    prod.forget(frozenset({1}))
    prod.step(consumed(1, 4))
    assert [run.without for run in prod.buffer.runs] == [frozenset({1})]
    prod.leaving = frozenset()  # The operator has dropped it.
    prod.step(consumed(1, 5))
    assert [run.without for run in prod.buffer.runs] == [frozenset({1}), frozenset()]


def test_a_cohort_of_which_nothing_is_left_is_forgotten() -> None:
    prod = caught_up_to(4, runs=(run(0, 4),))
    prod.forget(frozenset({1}))
    prod.keep({0})
    assert set(prod.cohorts) == set(prod.produced) == {0}


def test_output_of_a_cohort_whose_last_partition_left_at_work_is_not_kept() -> None:
    prod = caught_up_to(3)
    prod.forget(frozenset({1}))
    rows = prod.buffer.rows
    prod.step(consumed(1, 4, cohort=7))
    assert prod.buffer.rows == rows


# Membership: who comes, goes, and comes back (rules 2, 9, 12).

COMING = replace(SPARE, number=2, standby=(standby(1, 2, 0, 0, "site-3", "site-2"),))
GONE = replace(SPARE, number=3)
BACK = replace(COMING, number=4)


def test_a_site_on_its_way_is_entitled_like_any_other() -> None:
    prod = producer(view=SPARE)
    prod.step(COMING)
    prod.step(consumed(1, 2))
    for name in ("site-1", "site-2"):
        prod.step(ack(name, 1, 2))
    assert prod.buffer.rows == 1
    prod.step(ack("site-3", 1, 2, view=2))
    assert prod.buffer.rows == 0


SAID_BEFORE = [
    ack("site-3", 1, 1, view=2),
    attach("site-3", 1, 1, 0, view=2),
    stop("site-3", 1, 1, view=2),
    merge("site-3", 1, 1, 2, view=2),
]


@pytest.mark.parametrize("message", SAID_BEFORE, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("views", [(COMING, GONE), (COMING, GONE, BACK)], ids=["left", "came back"])
def test_what_a_site_said_before_it_left_is_ignored(message: object, views: tuple[View, ...]) -> None:
    prod = producer(view=SPARE)
    for view in views:
        prod.step(view)
    assert_ignored(prod, message)


@pytest.mark.parametrize("message", SAID_BEFORE, ids=lambda message: type(message).__name__)
def test_what_a_site_says_now_that_is_no_consumer_is_refused(message: Ack | Attach | Stop | Merge) -> None:
    prod = producer(view=SPARE)
    for view in (COMING, GONE):
        prod.step(view)
    assert_refused(prod, replace(message, view=3), by=TITLE)


def test_a_site_that_comes_back_may_use_its_stints_again() -> None:
    prod = producer(view=SPARE)
    prod.step(COMING)
    prod.step(attach("site-3", 1, 1, 0, view=2))
    prod.step(attach("site-3", 1, 2, 0, view=2))
    prod.step(merge("site-3", 1, 2, 1, view=2))
    prod.step(GONE)
    assert not prod.lanes and not prod.merged and not prod.last_lane_ids and (1, "site-3") not in prod.since
    prod.step(BACK)
    assert prod.step(attach("site-3", 1, 2, 0, view=4)) == []
    assert prod.step(consumed(1, 1)) == [sent("site-3", 2, 0, 1, view=4)]


def test_a_site_that_holds_no_copy_any_more_keeps_no_output() -> None:
    prod = producer(view=SPARE)
    prod.step(consumed(1, 2))
    elsewhere = (("site-3", "site-2"), ("site-2", "site-3"))
    prod.step(replace(SPARE, number=2, copies=(SPARE.copies[0], elsewhere, *SPARE.copies[2:])))
    assert (prod.buffer.runs, prod.buffer.rows) == ([], 0)
