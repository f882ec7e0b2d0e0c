"""The ends of a dataflow: the ingress and the egress. Reference: 3.2.1.2."""

from __future__ import annotations

from dataclasses import replace

from flux.protocols.egress import Egress
from flux.protocols.ingress import Ingress
from flux.protocols.messages import (
    Ack,
    Attach,
    Consume,
    Data,
    Effect,
    EndOfSource,
    Merge,
    PendingInput,
    Pull,
    Released,
    Send,
    Sourced,
    Stop,
)
from flux.protocols.pooler import Pooler

from .refusing import assert_refused
from .views import FIRST, NO_ROWS, SPARE, WITHOUT_1, ack, attach, consumed, data, merge, merged, standby, stop, stopped


def sourced(after: int, upto: int, rows: int = 1) -> Sourced:
    return Sourced(after=after, upto=upto, rows=rows, body=NO_ROWS)


def started(bound_rows: int = 1) -> Ingress:
    ingress = Ingress("ingress", bound_rows)
    assert ingress.step(FIRST) == [Pull(after=0)]
    return ingress


def ranges(effects: list[Effect]) -> list[tuple[str, int, int]]:
    return [
        (effect.to, effect.message.after, effect.message.upto)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Data)
    ]


def test_the_source_is_pulled_once_at_a_time() -> None:
    ingress = started(bound_rows=5)
    assert ingress.step(attach("site-1", 0, 1, 0)) == []
    assert ingress.step(sourced(0, 2))[-1] == Pull(after=2)


def test_rows_go_to_both_copies() -> None:
    ingress = started()
    ingress.step(attach("site-1", 0, 1, 0))
    ingress.step(attach("site-2", 0, 1, 0))
    assert ranges(ingress.step(sourced(0, 2))) == [("site-1", 0, 2), ("site-2", 0, 2)]


def test_a_full_pool_stops_the_source_until_every_copy_is_through() -> None:
    ingress = started(bound_rows=1)
    assert ingress.step(sourced(0, 1)) == []
    assert ingress.step(ack("site-1", 0, 1)) == []
    assert ingress.step(ack("site-2", 0, 1)) == [Released(upto=1), Pull(after=1)]


def test_a_failed_copy_is_waited_for_no_longer() -> None:
    ingress = started(bound_rows=1)
    ingress.step(sourced(0, 1))
    ingress.step(ack("site-2", 0, 1))
    assert ingress.step(WITHOUT_1) == [Released(upto=1), Pull(after=1)]


def test_an_ended_source_is_not_pulled_again() -> None:
    ingress = started()
    assert ingress.step(EndOfSource()) == []
    assert ingress.step(attach("site-1", 0, 1, 0)) == []
    assert_refused(ingress, EndOfSource(), by="Ingress ingress")
    assert_refused(ingress, sourced(0, 1), by="Ingress ingress")


def test_rows_that_do_not_follow_the_pull_are_refused() -> None:
    ingress = started()
    assert_refused(ingress, sourced(1, 2), by="Ingress ingress")
    assert_refused(ingress, sourced(0, 0), by="Ingress ingress")


def test_rows_nobody_asked_for_are_refused() -> None:
    assert_refused(Ingress("ingress", 1), sourced(0, 1), by="Ingress ingress")
    assert_refused(Ingress("ingress", 1), EndOfSource(), by="Ingress ingress")


def test_the_egress_gives_the_sink_what_is_certain_and_acknowledges_what_is_durable() -> None:
    egress = Egress("egress", 3)
    egress.step(FIRST)
    frame = PendingInput(edge=2, after=0, upto=2, channels=(), body=NO_ROWS)
    work = Consume(stage=3, cohort=0, partitions=frozenset({0}), after=0, upto=2, frames=(frame,))
    assert egress.step(data("site-1", 2, 1, 0, 2)) == [work]
    # While the sink is busy, more may come; it is given when the sink is through.
    assert egress.step(data("site-1", 2, 1, 2, 3)) == []
    effects = egress.step(consumed(3, 2))
    assert [effect.to for effect in effects if isinstance(effect, Send)] == ["site-1", "site-2"]
    assert isinstance(effects[-1], Consume) and (effects[-1].after, effects[-1].upto) == (2, 3)


def test_the_sink_answers_what_it_was_given() -> None:
    egress = Egress("egress", 3)
    egress.step(FIRST)
    assert_refused(egress, consumed(3, 0), by="Egress egress")
    egress.step(data("site-1", 2, 1, 0, 2))
    assert_refused(egress, consumed(3, 1), by="Egress egress")
    egress.step(consumed(3, 2))
    assert_refused(egress, consumed(3, 2), by="Egress egress")
    assert_refused(egress, consumed(3, 2, cohort=1), by="Egress egress")


# Copies of the first and of the last stage that live elsewhere from now on.


def test_the_ingress_takes_channels_out_of_lanes_and_merges_them() -> None:
    ingress = started()
    ingress.step(attach("site-1", 0, 1, 0))
    ingress.step(attach("site-1", 0, 2, 0))
    [told] = ingress.step(merge("site-1", 0, 2, 1))
    assert told == Send(to="site-1", message=merged("ingress", 0, 2, 1))
    [told] = ingress.step(stop("site-1", 0, 1))
    assert told == Send(to="site-1", message=stopped("ingress", 0, 1))


def test_a_copy_on_its_way_holds_the_source_back_until_it_has_caught_up() -> None:
    ingress = Ingress("ingress", 1)
    ingress.step(SPARE)
    ingress.step(replace(SPARE, number=2, standby=(standby(1, 1, 0, 0, "site-3", "site-1"),)))
    ingress.step(sourced(0, 1))
    assert ingress.step(ack("site-1", 0, 1)) == []
    assert ingress.step(ack("site-2", 0, 1)) == []
    assert ingress.step(ack("site-3", 0, 1, view=2)) == [Released(upto=1), Pull(after=1)]


def test_a_copy_on_its_way_holds_the_source_back_when_as_much_is_kept_as_may_be_for_it() -> None:
    ingress = Ingress("ingress", 1, transfer_rows_max=2)
    ingress.step(SPARE)
    ingress.step(replace(SPARE, number=2, standby=(standby(1, 1, 0, 0, "site-3", "site-1"),)))
    ingress.step(sourced(0, 1))
    assert ingress.step(ack("site-1", 0, 1)) == []
    assert ingress.step(ack("site-2", 0, 1)) == [Pull(after=1)]
    ingress.step(sourced(1, 2))
    ingress.step(ack("site-1", 0, 2))
    assert ingress.step(ack("site-2", 0, 2)) == []
    assert ingress.step(ack("site-3", 0, 1, view=2)) == [Released(upto=1), Pull(after=2)]


def test_a_copy_of_another_stage_on_its_way_lets_nobody_keep_more() -> None:
    ingress = Ingress("ingress", 1, transfer_rows_max=2)
    ingress.step(SPARE)
    ingress.step(replace(SPARE, number=2, standby=(standby(1, 2, 0, 0, "site-2", "site-1"),)))
    ingress.step(sourced(0, 1))
    assert ingress.step(ack("site-1", 0, 1)) == []


def test_the_egress_takes_from_the_copy_that_ran_when_the_primary_has_moved() -> None:
    egress = Egress("egress", 3)
    egress.step(SPARE)
    egress.step(data("site-1", 2, 1, 0, 2))
    egress.step(data("site-2", 2, 2, 0, 2))
    egress.step(consumed(3, 2))
    moved = (("site-3", "site-2"), SPARE.copies[2][1])
    effects = egress.step(replace(SPARE, number=2, copies=(*SPARE.copies[:2], moved, SPARE.copies[3])))
    assert [(e.to, type(e.message)) for e in effects if isinstance(e, Send)] == [
        ("site-3", Ack),
        ("site-1", Stop),
        ("site-2", Attach),
        ("site-2", Merge),
    ]
    assert egress.step(stopped("site-1", 2, 1, view=2)) == []
    assert_refused(egress, stopped("site-2", 2, 3, view=2), by="FH-Cons of stage 3 on egress")


def test_lanes_of_the_egress_that_are_merged_are_one() -> None:
    egress = Egress("egress", 3)
    both = (("site-1", "site-2"), ("site-1", "site-2"))
    view = replace(SPARE, copies=(*SPARE.copies[:2], both, SPARE.copies[3]))
    egress.step(view)
    # Partition 1 goes to site-3 and comes back to the primary's site: two lanes from site-1. Its other copy is slow.
    away, slow = (both[0], ("site-3", "site-2")), frozenset({"site-2"})
    egress.step(replace(view, number=2, copies=(*SPARE.copies[:2], away, SPARE.copies[3]), slow=slow))
    egress.step(stopped("site-1", 2, 1, view=2))
    egress.step(replace(view, number=3, slow=slow))
    assert [lane.sender for lane in egress.cons.lanes.values() if lane.channels] == ["site-1", "site-1"]
    assert egress.step(merged("site-1", 2, 3, 1, view=3)) == []
    assert [lane.sender for lane in egress.cons.lanes.values() if lane.channels] == ["site-1"]


# Ends that are started again.

INGRESS_AGAIN = replace(
    FIRST,
    number=2,
    nodes=(*FIRST.nodes, "ingress-2"),
    dead=frozenset({"ingress"}),
    copies=((("ingress-2",),), *FIRST.copies[1:]),
)
EGRESS_AGAIN = replace(
    FIRST,
    number=2,
    nodes=(*FIRST.nodes, "egress-2"),
    dead=frozenset({"egress"}),
    copies=(*FIRST.copies[:3], (("egress-2",),)),
)


def ingress_again(released: int = 3) -> Ingress:
    ingress = Ingress("ingress-2", 9, released)
    assert ingress.step(INGRESS_AGAIN) == [Pull(after=released)]
    return ingress


def test_an_ingress_started_again_numbers_from_what_was_released() -> None:
    ingress = ingress_again(released=3)
    ingress.step(attach("site-1", 0, 2, 3, view=2))
    assert ranges(ingress.step(sourced(3, 5))) == [("site-1", 3, 5)]


def test_an_ingress_started_again_sends_nothing_until_it_is_past_what_its_consumer_has() -> None:
    # Rule 14. The same rows get the same numbers: the consumer had them up to 7 from the last ingress.
    ingress = ingress_again(released=3)
    assert ingress.step(attach("site-1", 0, 2, 7, view=2)) == []
    assert ranges(ingress.step(sourced(3, 6))) == []
    assert ranges(ingress.step(sourced(6, 9))) == [("site-1", 7, 9)]


def test_an_ingress_started_again_keeps_to_what_was_released() -> None:
    ingress = ingress_again(released=3)
    assert_refused(ingress, attach("site-1", 0, 2, 2, view=2), by="FH-Prod of stage 0 on ingress-2")
    assert_refused(ingress, ack("site-1", 0, 2, view=2), by="FH-Prod of stage 0 on ingress-2")


def test_the_positions_that_are_stated_to_an_ingress_started_again_release_what_is_sourced_again() -> None:
    ingress = ingress_again(released=3)
    assert ingress.step(ack("site-1", 0, 7, view=2)) == []
    assert ingress.step(ack("site-2", 0, 5, view=2)) == [Released(upto=5)]
    ingress.step(sourced(3, 5))
    assert ingress.prod.buffer.rows == 0, "everybody has it"
    ingress.step(sourced(5, 6))
    assert ingress.prod.buffer.rows == 1


def test_a_site_states_its_position_to_an_ingress_started_again_and_attaches_behind_what_it_has() -> None:
    made = Pooler("site-1", 1, 9)
    made.step(FIRST)
    made.step(data("ingress", 0, 1, 0, 2))
    made.step(consumed(1, 2))
    made.step(data("ingress", 0, 1, 2, 5))
    made.step(replace(FIRST, number=2, dead=frozenset({"ingress"})))
    told, asked = made.step(replace(INGRESS_AGAIN, number=3))
    assert told == Send(to="ingress-2", message=ack("site-1", 0, 2, view=3))
    assert asked == Send(to="ingress-2", message=attach("site-1", 0, 3, 5, view=3))


def test_an_egress_started_again_states_what_is_durable_and_attaches_there() -> None:
    egress = Egress("egress-2", 3, durable=4)
    assert egress.step(EGRESS_AGAIN) == [
        Send(to="site-1", message=ack("egress-2", 2, 4, view=2)),
        Send(to="site-2", message=ack("egress-2", 2, 4, view=2)),
        Send(to="site-1", message=attach("egress-2", 2, 1, 4, view=2)),
    ]
    [work] = egress.step(data("site-1", 2, 1, 4, 6, view=2))
    assert isinstance(work, Consume) and (work.after, work.upto) == (4, 6)


def test_an_egress_started_again_with_an_empty_sink_begins_at_the_beginning() -> None:
    egress = Egress("egress-2", 3)
    assert egress.step(EGRESS_AGAIN) == [Send(to="site-1", message=attach("egress-2", 2, 1, 0, view=2))]
