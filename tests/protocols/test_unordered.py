"""Stages that do not wait for the merge: what they take, what they acknowledge, and what goes with their state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flux.protocols.channels import producers_to
from flux.protocols.egress import Egress
from flux.protocols.fh_cons import FhCons
from flux.protocols.fh_prod import FhProd
from flux.protocols.messages import Ack, Ahead, Attach, Block, Consume, Consumed, Data, Merge, Send, State, View
from flux.protocols.pooler import Pooler
from flux.protocols.state_mover import StateMover

from .refusing import assert_refused
from .views import NO_ROWS, attach, consumed, data, merged, run, standby, state, want

# Stage 1 has two partitions with one copy each, stage 2 one, on a site of its own; stage 2 and the egress take rows as
# they come.
VIEW = View(
    number=1,
    nodes=("ingress", "site-1", "site-2", "site-3", "site-4", "egress"),
    dead=frozenset(),
    copies=((("ingress",),), (("site-1",), ("site-2",)), (("site-3",),), (("egress",),)),
    unordered=frozenset({2, 3}),
)
MOVING = replace(VIEW, number=2, standby=(standby(1, 2, 0, 0, "site-4", "site-3"),), versions=1)
# The egress behind two producers.
ENDS = replace(VIEW, copies=((("ingress",),), (("site-1",), ("site-2",)), (("egress",),)), unordered=frozenset({2}))
FIRST_AHEAD = Ahead(edge=1, producers=(0,), position=5)


def pooler(bound_rows: int = 99, view: View = VIEW) -> Pooler:
    """Stage 2 on site-3: lane 1 is site-1's, lane 2 is site-2's."""
    machine = Pooler("site-3", 2, bound_rows)
    machine.step(view)
    return machine


def works(effects: list[Any]) -> list[Consume]:
    return [effect for effect in effects if isinstance(effect, Consume)]


def sent(effects: list[Any], kind: type[Any]) -> list[Any]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def emitted(upto: int, emitted_upto: int, rows: int = 1) -> Consumed:
    return replace(consumed(2, upto, rows), emitted_upto=emitted_upto)


def spans(work: Consume) -> list[tuple[int, int]]:
    return [(frame.after, frame.upto) for frame in work.frames]


# --- what is taken, and when ----------------------------------------------------------------------------------


def test_rows_are_taken_before_the_frontier_reaches_them() -> None:
    [work] = works(pooler().step(data("site-1", 1, 1, 0, 5)))
    assert (work.after, work.upto, work.ordered) == (0, 0, False)
    assert spans(work) == [(0, 5)]


def test_an_ordered_stage_waits_for_them() -> None:
    machine = pooler(view=replace(VIEW, unordered=frozenset()))
    assert not works(machine.step(data("site-1", 1, 1, 0, 5)))
    [work] = works(machine.step(data("site-2", 1, 2, 0, 3)))
    assert (work.upto, work.ordered, spans(work)) == (3, True, [(0, 5), (0, 3)])
    assert [(frame.after, frame.upto) for frame in machine.cons.pending[0]] == [(0, 5)]


def test_frames_are_taken_whole_and_once() -> None:
    machine = pooler()
    machine.step(data("site-1", 1, 1, 0, 5))
    machine.step(data("site-2", 1, 2, 0, 3))
    machine.step(data("site-1", 1, 1, 5, 6))
    [work] = works(machine.step(emitted(0, 5)))
    assert (work.after, work.upto) == (0, 3)
    assert spans(work) == [(0, 3), (5, 6)]
    assert machine.cons.pending[0] == ()


def test_nothing_is_begun_while_the_operator_is_busy_or_nothing_has_come() -> None:
    machine = pooler()
    machine.step(data("site-1", 1, 1, 0, 5))
    assert not works(machine.step(data("site-1", 1, 1, 5, 6)))
    [work] = works(machine.step(emitted(0, 5)))
    assert not works(machine.step(emitted(0, 6)))
    assert work.upto == 0


def test_what_is_acknowledged_is_the_frontier() -> None:
    machine = pooler()
    machine.step(data("site-1", 1, 1, 0, 5))
    assert not sent(machine.step(emitted(0, 5)), Ack)
    machine.step(data("site-2", 1, 2, 0, 3))
    acks = sent(machine.step(emitted(3, 3)), Ack)
    assert {ack.position for ack in acks} == {3}


def test_a_full_pool_takes_no_rows_early() -> None:
    machine = pooler(bound_rows=1)
    machine.step(data("site-1", 1, 1, 0, 5))
    machine.step(emitted(0, 5))
    assert not works(machine.step(data("site-1", 1, 1, 5, 6)))


def test_a_full_pool_goes_on_to_what_it_holds_and_takes_only_what_that_needs() -> None:
    machine = pooler(bound_rows=1)
    machine.step(data("site-1", 1, 1, 0, 5))
    machine.step(emitted(0, 5))
    machine.step(data("site-1", 1, 1, 5, 6))
    [work] = works(machine.step(data("site-2", 1, 2, 0, 5)))
    assert (work.upto, spans(work)) == (5, [(0, 5)])
    assert [(frame.after, frame.upto) for frame in machine.cons.pending[0]] == [(5, 6)]


def test_cohorts_that_are_to_meet_take_no_rows_early() -> None:
    cons = FhCons("site-3", 2)
    list(cons.step(VIEW))
    list(cons.add_cohort(0, frozenset({0}), 0))
    cons.step(data("site-1", 1, 1, 0, 5))
    assert cons.has_early(0)
    list(cons.add_cohort(7, frozenset({0}), 4))
    assert not cons.has_early(0)


def test_nothing_to_take_is_a_mistake() -> None:
    cons = FhCons("site-3", 2)
    list(cons.step(VIEW))
    list(cons.add_cohort(0, frozenset({0}), 0))
    with pytest.raises(AssertionError, match="nothing to consume"):
        cons.take(0, 0)


# --- what is emitted ------------------------------------------------------------------------------------------


def producer(unordered: bool = True) -> FhProd:
    prod = FhProd("site-3", 2, 99)
    list(prod.step(VIEW if unordered else replace(VIEW, unordered=frozenset())))
    prod.add_cohort(0, frozenset({0}), 0)
    prod.step(attach("egress", 2, 1, 0))
    return prod


def test_what_was_emitted_early_is_kept_and_sent_when_the_frontier_has_passed_it() -> None:
    prod = producer()
    assert not prod.step(emitted(0, 5))
    assert [(r.after, r.upto) for r in prod.buffer.runs] == [(0, 5)]
    [frame] = sent(prod.step(emitted(3, 2)), Data)
    assert (frame.after, frame.upto, len(frame.bodies)) == (0, 3, 2)
    [frame] = sent(prod.step(emitted(6, 0)), Data)
    assert (frame.after, frame.upto, len(frame.bodies)) == (3, 6, 2)


def test_a_run_ends_with_what_it_holds_and_not_with_the_frontier() -> None:
    prod = producer()
    prod.step(emitted(3, 5))
    prod.step(Ack(sender="egress", view=1, edge=2, position=3))
    assert [(r.after, r.upto) for r in prod.buffer.runs] == [(0, 5)]


def test_a_step_without_output_that_does_not_move_the_frontier_leaves_no_run() -> None:
    prod = producer()
    prod.step(emitted(3, 0, rows=0))
    prod.step(emitted(3, 0, rows=0))
    assert [(r.after, r.upto) for r in prod.buffer.runs] == [(0, 3)]


def test_output_of_nobody_or_that_goes_back_is_refused() -> None:
    prod = producer()
    prod.step(emitted(3, 5))
    assert_refused(prod, emitted(2, 5), by=prod.title)
    assert_refused(prod, replace(emitted(4, 5), cohort=9), by=prod.title)


def test_an_ordered_stage_emits_nothing_beyond_its_position() -> None:
    prod = producer(unordered=False)
    assert_refused(prod, emitted(3, 4), by=prod.title)
    assert sent(prod.step(emitted(3, 3)), Data)


# --- what goes with a state -----------------------------------------------------------------------------------


def test_a_cut_says_how_far_each_producer_was_taken_and_not_what_waits() -> None:
    machine = pooler()
    machine.step(data("site-1", 1, 1, 0, 5))
    machine.step(MOVING)
    machine.step(want("site-4", 2, 1, view=2))
    machine.step(data("site-1", 1, 1, 5, 6, view=2))
    machine.step(data("site-1", 1, 1, 6, 8, view=2))
    [cut] = sent(machine.step(emitted(0, 5)), State)
    assert (cut.position, cut.ahead) == (0, (FIRST_AHEAD,))
    assert [(r.after, r.upto) for r in cut.runs] == [(0, 5)]


def test_producers_that_were_taken_equally_far_are_named_together() -> None:
    machine = pooler(view=replace(VIEW, copies=(*VIEW.copies[:1], (("site-1",),) * 3, *VIEW.copies[2:])))
    [lane] = machine.cons.lanes.values()
    machine.cons.lanes[1] = lane._replace(upto=4)
    assert machine.cons.ahead(0, 3) == (Ahead(edge=1, producers=(0, 1, 2), position=4),)
    assert machine.cons.ahead(0, 4) == ()
    assert machine.cons.ahead(1, 3) == ()


def test_an_ordered_stage_is_never_ahead() -> None:
    machine = pooler(view=replace(VIEW, unordered=frozenset()))
    machine.step(data("site-1", 1, 1, 0, 5))
    assert machine.cons.ahead(0, 0) == ()


def test_a_new_copy_is_fed_each_producer_from_where_it_was_taken() -> None:
    machine = Pooler("site-4", 2, 99)
    machine.step(VIEW)
    machine.step(MOVING)
    effects = machine.step(replace(state("site-3", 2, 1, 3, view=2, runs=(run(0, 5),)), ahead=(FIRST_AHEAD,)))
    attaches = [(a.position, a.channels[0].producers) for a in sent(effects, Attach)]
    assert attaches == [(5, (0,)), (3, (1,))]
    assert machine.cons.cohorts[1].consumed == machine.cons.frontier(1) == 3


def test_what_one_sender_feeds_from_several_places_comes_in_one_lane_in_the_end() -> None:
    copies = (*MOVING.copies[:1], (("site-1",), ("site-1",)), *MOVING.copies[2:])
    machine = Pooler("site-4", 2, 99)
    machine.step(replace(MOVING, copies=copies))
    effects = machine.step(replace(state("site-3", 2, 1, 3, view=2), ahead=(FIRST_AHEAD,)))
    assert [(m.lane_id, m.into) for m in sent(effects, Merge)] == [(2, 1)]
    machine.step(data("site-1", 1, 1, 5, 6, view=2))
    machine.step(data("site-1", 1, 2, 3, 6, view=2))
    machine.step(merged("site-1", 1, 2, 1, view=2))
    assert [lane.upto for lane in machine.cons.lanes.values()] == [6]
    # Of one lane the rows of one producer are at work, and those of the other wait.
    assert machine.cons.ahead(0, 3) == (replace(FIRST_AHEAD, position=6),)


@pytest.mark.parametrize(
    ("view", "position"), [(MOVING, 3), (MOVING, 2), (replace(MOVING, unordered=frozenset({3})), 4)]
)
def test_a_state_that_is_ahead_wrongly_is_refused(view: View, position: int) -> None:
    mover = StateMover("site-4", 2)
    list(mover.step(view))
    list(mover.ask(()))
    wrong = replace(state("site-3", 2, 1, 3, view=2), ahead=(replace(FIRST_AHEAD, position=position),))
    assert_refused(mover, wrong, by=mover.title)
    mover.step(replace(wrong, ahead=()))
    assert 1 in mover.arrived


def test_producers_of_a_consumer_are_those_with_a_channel_to_it() -> None:
    channels = (Block(producers=(0, 2), consumers=(1,)), Block(producers=(3,), consumers=(0, 1)))
    assert producers_to(channels, 1) == {0, 2, 3}
    assert producers_to(channels, 0) == {3}


# --- the egress -----------------------------------------------------------------------------------------------


def test_an_egress_says_how_far_ahead_its_sink_will_be() -> None:
    egress = Egress("egress", 2)
    egress.step(ENDS)
    [work] = works(egress.step(data("site-1", 1, 1, 0, 5)))
    assert (work.upto, work.ordered, work.ahead) == (0, False, (FIRST_AHEAD,))
    egress.step(data("site-2", 1, 2, 0, 5))
    [work] = works(egress.step(Consumed(stage=2, cohort=0, upto=0, rows=0, body=NO_ROWS)))
    assert (work.upto, work.ahead) == (5, ())


def test_an_egress_that_is_started_again_begins_where_its_sink_is_ahead() -> None:
    egress = Egress("egress-2", 2, durable=3, ahead=(FIRST_AHEAD,))
    again = replace(ENDS, nodes=(*ENDS.nodes[:-1], "egress-2"), copies=(*ENDS.copies[:-1], (("egress-2",),)))
    attaches = sent(egress.step(again), Attach)
    assert [(a.position, a.channels[0].producers) for a in attaches] == [(5, (0,)), (3, (1,))]
    [work] = works(egress.step(data("site-2", 1, 2, 3, 4)))
    assert (work.after, work.upto, work.ahead) == (3, 4, (FIRST_AHEAD,))


def test_an_ordered_egress_is_not_ahead() -> None:
    egress = Egress("egress", 2)
    egress.step(replace(ENDS, unordered=frozenset()))
    assert not works(egress.step(data("site-1", 1, 1, 0, 5)))
    [work] = works(egress.step(data("site-2", 1, 2, 0, 3)))
    assert (work.upto, work.ordered, work.ahead) == (3, True, ())
