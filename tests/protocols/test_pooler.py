"""The pooler: when the operator runs, and how copies move. Reference: 3.4, fig. 3.10, 3.4.3."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flux.protocols.messages import (
    Ack,
    Attach,
    Consume,
    CopyFailed,
    CopyReady,
    Data,
    Drop,
    Effect,
    Install,
    Merge,
    RequestState,
    Send,
    SendToController,
    State,
    Stop,
)
from flux.protocols.pooler import Pooler

from .refusing import assert_refused
from .views import (
    FIRST,
    SPARE,
    WITHOUT_2,
    ack,
    attach,
    consumed,
    data,
    merge,
    merged,
    run,
    standby,
    state,
    stop,
    stopped,
    want,
)

TITLE = "Pooler of stage 1 on site-1"
MOVER = "State mover of stage 1 on site-1"


def pooler(bound_rows: int = 1) -> Pooler:
    made = Pooler("site-1", 1, bound_rows)
    made.step(FIRST)
    return made


def sends(effects: list[Effect]) -> list[tuple[str, type]]:
    return [(e.to, type(e.message)) for e in effects if isinstance(e, Send)]


def acks(effects: list[Effect]) -> list[tuple[int, int]]:
    """Position and progress of each ack."""
    sent = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Ack)]
    return [(message.position, message.reached) for message in sent]


def works(effects: list[Effect]) -> list[tuple[int, int, int]]:
    return [(e.cohort, e.after, e.upto) for e in effects if isinstance(e, Consume)]


# The operator.


def test_the_operator_runs_when_the_frontier_moves() -> None:
    (work,) = pooler().step(data("ingress", 0, 1, 0, 2))
    assert isinstance(work, Consume) and (work.stage, work.after, work.upto) == (1, 0, 2)
    assert work.partitions == {0}


def test_the_operator_does_one_thing_at_a_time() -> None:
    made = pooler(bound_rows=9)
    made.step(data("ingress", 0, 1, 0, 2))
    assert made.step(data("ingress", 0, 1, 2, 5)) == []
    (*_, work) = made.step(consumed(1, 2))
    assert isinstance(work, Consume) and (work.after, work.upto) == (2, 5)


def test_output_is_fed_before_its_input_is_acknowledged() -> None:
    made = pooler()
    made.step(attach("site-1", 1, 1, 0))
    made.step(data("ingress", 0, 1, 0, 2))
    assert [kind for _, kind in sends(made.step(consumed(1, 2)))] == [Data, Ack]


def test_a_full_pool_holds_the_operator_and_an_ack_lets_it_go() -> None:
    made = pooler(bound_rows=1)
    made.step(data("ingress", 0, 1, 0, 1))
    made.step(consumed(1, 1))
    assert made.step(data("ingress", 0, 1, 1, 2)) == []
    assert made.step(ack("site-1", 1, 1)) == []
    (work,) = made.step(ack("site-2", 1, 1))
    assert isinstance(work, Consume) and work.upto == 2


def test_the_death_of_a_consumer_makes_room_too() -> None:
    made = pooler(bound_rows=1)
    made.step(data("ingress", 0, 1, 0, 1))
    made.step(consumed(1, 1))
    made.step(data("ingress", 0, 1, 1, 2))
    made.step(ack("site-1", 1, 1))
    (work,) = made.step(WITHOUT_2)
    assert isinstance(work, Consume) and work.upto == 2


def test_the_operator_answers_what_it_was_given() -> None:
    made = pooler()
    assert_refused(made, consumed(1, 1), by=TITLE)
    made.step(data("ingress", 0, 1, 0, 2))
    assert_refused(made, consumed(1, 1), by=TITLE)
    assert_refused(made, consumed(1, 2, cohort=3), by=TITLE)


def test_lanes_are_stopped_and_merged_through_it() -> None:
    made = pooler()
    made.step(attach("site-2", 1, 1, 0))
    made.step(attach("site-2", 1, 2, 0))
    assert sends(made.step(merge("site-2", 1, 2, 1))) == [("site-2", type(merged("", 0, 0, 0)))]
    assert sends(made.step(stop("site-2", 1, 1))) == [("site-2", type(stopped("", 0, 0)))]


# The site that is to hold a new copy. Partition 2 of stage 1 comes from site-2 to site-1, which holds 0 and 1.

COPIES = (
    SPARE.copies[0],
    (("site-1", "site-2"), ("site-2", "site-1"), ("site-3", "site-2")),
    *SPARE.copies[2:],
)
VIEW = replace(SPARE, copies=COPIES, versions=3)
COMING = replace(
    VIEW,
    number=2,
    dead=frozenset({"site-3"}),
    standby=(standby(4, 1, 2, 0, "site-1", "site-2"),),
    versions=5,
)
LIVE = replace(COMING, number=3, standby=(), copies=(COPIES[0], (*COPIES[1][:2], ("site-1", "site-2")), *COPIES[2:]))
OLD, YOUNG = 0, 4


def asking(through: int = 3, bound_rows: int = 99) -> tuple[Pooler, list[Effect]]:
    """site-1, through `through` with its own partitions, when it learns of the copy it is to hold."""
    made = Pooler("site-1", 1, bound_rows)
    made.step(VIEW)
    made.step(data("ingress", 0, 1, 0, through))
    made.step(consumed(1, through))
    return made, made.step(COMING)


def test_the_state_is_asked_of_the_donor() -> None:
    _, effects = asking(3)
    asked = want("site-1", 1, YOUNG, view=2)
    assert Send(to="site-2", message=asked) in effects


@pytest.mark.parametrize("position", [1, 4], ids=["of a donor that lags", "of a donor that is ahead"])
def test_nothing_is_acknowledged_until_the_state_is_here_and_then_no_more_than_it_has(position: int) -> None:
    made, _ = asking(3)
    made.step(data("ingress", 0, 1, 3, 5, view=2))
    assert acks(made.step(consumed(1, 5))) == [(0, 5)], "it only reports how far it is"
    # What comes after the state is needed by the new copy, until it has consumed that too.
    assert acks(made.step(state("site-2", 1, YOUNG, position, view=2))) == [(position, 5)]
    made.step(data("ingress", 0, 2, position, 5, view=2))
    effects = made.step(consumed(1, 5, cohort=YOUNG))
    assert [e.message.position for e in effects if isinstance(e, Send) and isinstance(e.message, Ack)] == [5]


def test_the_state_is_installed_and_then_reported() -> None:
    made, _ = asking(3)
    effects = made.step(state("site-2", 1, YOUNG, 3, view=2, runs=(run(0, 3, rows=2),), body="state"))
    assert effects[0] == Install(stage=1, partition=2, body="state")
    assert SendToController(message=CopyReady(node="site-1", version=YOUNG)) in effects
    assert [e.message.position for e in effects if isinstance(e, Send) and isinstance(e.message, Attach)] == [3]
    # Its output that is not acknowledged came along (rule 16).
    assert made.prod.buffer.rows == 1 + 2


def test_the_new_copy_catches_up_and_is_fused() -> None:
    made, _ = asking(5)
    made.step(state("site-2", 1, YOUNG, 7, view=2))
    assert set(made.cons.cohorts) == {OLD, YOUNG}
    assert works(made.step(data("ingress", 0, 1, 5, 9, view=2))) == [(OLD, 5, 7)]
    effects = made.step(consumed(1, 7))
    assert set(made.cons.cohorts) == {OLD} and made.cons.cohorts[OLD].partitions == {0, 1, 2}
    assert ("ingress", Merge) in sends(effects)
    assert made.prod.cohorts == {OLD: frozenset({0, 1, 2})}


def test_lanes_of_cohorts_that_were_fused_become_one() -> None:
    made, _ = asking(5)
    made.step(state("site-2", 1, YOUNG, 5, view=2))
    assert sorted(made.cons.lanes) == [1, 2]
    assert made.step(merged("ingress", 0, 2, 1, view=2)) == []
    assert sorted(made.cons.lanes) == [1]
    assert works(made.step(data("ingress", 0, 1, 5, 6, view=2))) == [(OLD, 5, 6)]


def test_who_is_behind_may_exceed_the_pool() -> None:
    # Rule 8: others may be stuck in it until he has come after.
    made, _ = asking(5, bound_rows=1)
    assert made.prod.buffer.full()
    made.step(state("site-2", 1, YOUNG, 7, view=2, runs=(run(5, 7),)))
    assert works(made.step(data("ingress", 0, 1, 5, 9, view=2))) == [(OLD, 5, 7)]
    assert works(made.step(consumed(1, 7))) == [], "nobody is behind what the pool holds, and it is full"


def test_a_copy_is_asked_for_once() -> None:
    made, _ = asking()
    again = made.step(replace(COMING, number=3))
    assert not [kind for _, kind in sends(again) if kind is RequestState]
    made.step(state("site-2", 1, YOUNG, 3, view=2))
    assert not [kind for _, kind in sends(made.step(replace(COMING, number=4))) if kind is RequestState]


def test_a_dead_donor_is_reported_if_the_state_is_not_here() -> None:
    made, _ = asking()
    dead = replace(COMING, number=3, dead=frozenset({"site-2", "site-3"}))
    assert SendToController(message=CopyFailed(node="site-1", version=YOUNG)) in made.step(dead)
    built, _ = asking()
    built.step(state("site-2", 1, YOUNG, 3, view=2))
    assert not [effect for effect in built.step(dead) if isinstance(effect, SendToController)], "it is here, and stays"


def test_a_state_that_was_not_asked_for_or_comes_twice_is_refused() -> None:
    made, _ = asking()
    assert_refused(made, state("site-2", 1, 2, 3, view=2), by=MOVER)
    assert_refused(made, state("site-2", 1, 6, 3, view=2), by=MOVER)  # It was never begun.
    made.step(state("site-2", 1, YOUNG, 3, view=2))
    assert_refused(made, state("site-2", 1, YOUNG, 3, view=2), by=MOVER)
    made.step(LIVE)
    assert_refused(made, state("site-2", 1, YOUNG, 3, view=2), by=MOVER)


def test_a_copy_that_is_not_wanted_any_more_holds_back_no_acks() -> None:
    made, _ = asking(3)
    made.step(data("ingress", 0, 1, 3, 5, view=2))
    made.step(consumed(1, 5))
    effects = made.step(replace(COMING, number=3, standby=()))
    assert [e.message.position for e in effects if isinstance(e, Send) and isinstance(e.message, Ack)] == [5]
    assert not made.mover.awaited
    assert_refused(made, state("site-2", 1, YOUNG, 3, view=2), by=MOVER)


def test_a_copy_given_up_after_it_was_installed_is_dropped() -> None:
    made, _ = asking(3)
    made.step(state("site-2", 1, YOUNG, 3, view=2))
    effects = made.step(replace(COMING, number=3, standby=()))
    assert Drop(stage=1, partition=2) in effects
    assert made.cons.cohorts[OLD].partitions == {0, 1}


def test_a_copy_that_is_live_stays() -> None:
    made, _ = asking(3)
    made.step(state("site-2", 1, YOUNG, 3, view=2))
    effects = made.step(LIVE)
    assert not [effect for effect in effects if isinstance(effect, Drop)]
    assert made.cons.cohorts[OLD].partitions == {0, 1, 2}


def test_a_site_that_held_nothing_founds_its_first_cohort_with_the_state() -> None:
    made = Pooler("site-3", 1, 1)
    assert made.step(SPARE) == []
    made.step(replace(SPARE, number=2, standby=(standby(4, 1, 0, 0, "site-3", "site-2"),)))
    effects = made.step(state("site-2", 1, 4, 6, view=2))
    assert sends(effects) == [("ingress", Attach), ("ingress", Ack)]
    assert made.cons.cohorts[4].consumed == 6


# The donor.

GIVING = replace(VIEW, number=2, standby=(standby(4, 1, 1, 0, "site-3", "site-1"),), versions=5)


def donor(received: int = 0) -> Pooler:
    made = Pooler("site-1", 1, 99)
    made.step(VIEW)
    made.step(GIVING)
    if received:
        made.step(data("ingress", 0, 1, 0, received))
    return made


def states(effects: list[Effect]) -> list[State]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, State)]


def test_an_idle_donor_cuts_at_once() -> None:
    [cut] = states(donor().step(want("site-3", 1, 4, view=2)))
    assert (cut.version, cut.position, cut.runs) == (4, 0, ())


def test_a_busy_donor_cuts_between_two_steps_of_the_operator() -> None:
    made = donor(received=3)
    made.step(data("ingress", 0, 1, 3, 5, view=2))
    assert states(made.step(want("site-3", 1, 4, view=2))) == []
    effects = made.step(consumed(1, 3))
    [cut] = states(effects)
    # State, position and unacknowledged output are of one instant (rule 16), before the next step.
    assert (cut.position, cut.runs) == (3, (run(0, 3),))
    assert works(effects) == [(0, 3, 5)]
    assert [type(e) for e in effects].index(Consume) > effects.index(Send(to="site-3", message=cut))


def test_a_donor_that_lags_cuts_where_it_is() -> None:
    # The site of the new copy may have consumed far more.
    made = donor(received=2)
    made.step(consumed(1, 2))
    made.step(data("ingress", 0, 1, 2, 9, view=2))
    assert states(made.step(want("site-3", 1, 4, view=2))) == []
    made.step(data("ingress", 0, 1, 9, 50, view=2))
    [cut] = states(made.step(consumed(1, 9)))
    assert cut.position == 9


def test_a_donor_with_a_backlog_cuts_before_its_next_step() -> None:
    made = donor(received=2)
    made.step(data("ingress", 0, 1, 2, 9, view=2))
    made.step(want("site-3", 1, 4, view=2))
    [cut] = states(made.step(consumed(1, 2)))
    assert cut.position == 2


def test_a_state_is_cut_once() -> None:
    made = donor()
    assert states(made.step(want("site-3", 1, 4, view=2)))
    assert_refused(made, want("site-3", 1, 4, view=2), by=MOVER)


def test_a_state_is_cut_by_its_donor_for_its_site_only() -> None:
    assert_refused(donor(), want("site-2", 1, 4, view=2), by=MOVER)
    elsewhere = Pooler("site-1", 1, 99)
    elsewhere.step(replace(VIEW, standby=(standby(4, 1, 1, 0, "site-3", "site-2"),)))
    assert_refused(elsewhere, want("site-3", 1, 4), by=MOVER)


def test_a_copy_that_is_not_wanted_any_more_is_not_cut_for() -> None:
    made = donor()
    assert_refused(made, want("site-3", 1, 2, view=2), by=MOVER)
    assert_refused(made, want("site-3", 1, 6, view=2), by=MOVER)  # It was never begun.
    busy = donor(received=3)
    busy.step(want("site-3", 1, 4, view=2))
    busy.step(replace(GIVING, number=3, standby=()))
    assert states(busy.step(consumed(1, 3))) == []


# The site whose copy lives elsewhere from now on.

MOVED = replace(VIEW, number=3, copies=(COPIES[0], (COPIES[1][0], ("site-2", "site-3"), COPIES[1][2]), *COPIES[2:]))


def test_an_idle_operator_forgets_a_copy_at_once() -> None:
    effects = donor().step(MOVED)
    assert Drop(stage=1, partition=1) in effects
    assert ("ingress", Stop) in sends(effects)


def test_frames_count_whole_again_when_the_sender_has_stopped_feeding_the_copy_that_left() -> None:
    made = donor()
    made.step(MOVED)
    [work] = made.step(data("ingress", 0, 1, 0, 1, view=2))
    assert isinstance(work, Consume) and work.frames[0].channels == made.cons.lanes[1].channels
    assert made.step(stopped("ingress", 0, 1, view=3)) == []
    made.step(data("ingress", 0, 1, 1, 2, view=3))
    [*_, work] = made.step(consumed(1, 1))
    assert isinstance(work, Consume) and work.frames[0].channels == ()


def test_a_busy_operator_forgets_a_copy_when_it_is_through() -> None:
    made = donor(received=3)
    made.step(data("ingress", 0, 1, 3, 5, view=2))
    assert not [effect for effect in made.step(MOVED) if isinstance(effect, Drop)]
    effects = made.step(consumed(1, 3))
    assert [type(e) for e in effects if isinstance(e, Drop | Consume)] == [Drop, Consume]


def test_a_site_whose_last_copy_left_while_the_operator_is_busy_acknowledges_nothing_any_more() -> None:
    # Given a site through 3 and at work up to 5, when all its copies of the stage live elsewhere,
    made = donor(received=3)
    made.step(consumed(1, 3))
    made.step(data("ingress", 0, 1, 3, 5, view=2))
    elsewhere = (("site-3", "site-2"),) * 3
    left = made.step(replace(VIEW, number=3, copies=(COPIES[0], elsewhere, *COPIES[2:])))
    # then it is no consumer any more, and producers that know it would refuse its acks.
    assert Ack not in [kind for _, kind in sends([*left, *made.step(consumed(1, 5))])]


def test_a_copy_that_comes_back_waits_until_the_operator_has_forgotten_the_old_one() -> None:
    # Given a copy that moved away while the operator is busy, and is to come back,
    made = donor(received=3)
    made.step(MOVED)
    made.step(replace(MOVED, number=4, standby=(standby(5, 1, 1, 1, "site-1", "site-2"),)))
    # when its state is here before the operator is through, then it waits for the drop.
    assert made.step(state("site-2", 1, 5, 3, view=4)) == []
    effects = made.step(consumed(1, 3))
    kinds = [type(e) for e in effects if isinstance(e, Drop | Install)]
    assert kinds == [Drop, Install]


def test_a_state_that_waits_for_the_operator_limits_acks_too() -> None:
    # Given an operator at work up to 5, and a state of 3 that waits until it has forgotten the old copy,
    made = donor(received=5)
    made.step(MOVED)
    made.step(replace(MOVED, number=4, standby=(standby(5, 1, 1, 1, "site-1", "site-2"),)))
    made.step(state("site-2", 1, 5, 3, view=4))
    # when the operator is through, then nothing beyond 3 is acknowledged: the new copy needs it.
    effects = made.step(consumed(1, 5))
    assert acks(effects) == [(0, 5), (3, 5)]
