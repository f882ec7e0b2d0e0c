"""Removals of rules about stages that do not wait for the merge, and consume rows ahead of their frontier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...protocols.egress import Egress
from ...protocols.fh_cons import FhCons
from ...protocols.fh_prod import FhProd, LaneOut
from ...protocols.messages import Ahead, Consume, Consumed, Effect, Merge, State
from ...protocols.pooler import Pooler
from .patch import Patch, change_sent


def cut_without_what_is_ahead(patch: Patch) -> None:
    """A state moves with its position only, and not with how far ahead of it each producer's rows were consumed."""
    patch.put(Pooler, "_cut", change_sent(State, lambda state: replace(state, ahead=()), Pooler._cut))


def count_pending_rows_as_consumed(patch: Patch) -> None:
    """A state is ahead by all received rows, also by those that the operator has not processed yet."""
    own = FhCons.ahead

    def ahead(cons: FhCons, partition: int, upto: int) -> tuple[Ahead, ...]:
        twin = cons.clone()
        twin.pending.clear()
        return own(twin, partition, upto)

    patch.put(FhCons, "ahead", ahead)


def begin_the_egress_at_its_position(patch: Patch) -> None:
    """A restarted egress is fed from its position, and not from where its sink is ahead of it."""
    own = Egress.__init__
    patch.put(Egress, "__init__", lambda egress, name, stage, durable=0, ahead=(): own(egress, name, stage, durable))


def keep_lanes_of_one_sender_apart(patch: Patch) -> None:
    """Lanes of one sender to a new copy, from several positions, are never merged into one."""
    patch.put(FhCons, "add_cohort", change_sent(Merge, lambda merge: None, FhCons.add_cohort))


def acknowledge_early_rows(patch: Patch) -> None:
    """A consumer acknowledges up to its last row from any producer, and not up to the position that all have passed."""

    def acknowledge(cons: FhCons, is_receiving: bool = False) -> Iterator[Effect]:
        position = max((lane.upto for lane in cons.lanes.values()), default=cons.acked)
        if position > cons.acked:
            cons.acked = position
            for edge, producers in cons.producers.items():
                yield from (cons._ack(edge, producer) for producer in producers)

    patch.put(FhCons, "acknowledge", acknowledge)


def end_a_run_at_the_frontier(patch: Patch) -> None:
    """Early output is buffered only as long as output up to the frontier."""
    own = FhProd.put_and_feed

    def put_and_feed(prod: FhProd, message: Consumed) -> Iterator[Effect]:
        return own(prod, replace(message, emitted_upto=message.upto))

    patch.put(FhProd, "put_and_feed", put_and_feed)


def send_early_output(patch: Patch) -> None:
    """A lane is sent up to the last emitted row, also if others may still be emitted before it."""
    own = FhProd._reached

    def reached(prod: FhProd, lane: LaneOut) -> int:
        return max(own(prod, lane), prod.buffer.newest)

    patch.put(FhProd, "_reached", reached)


def take_early_rows_with_a_full_pool(patch: Patch) -> None:
    """A partition that may exceed a full pool takes all rows it has, and not only those it needs to catch up."""
    own = FhCons.begin

    def begin(cons: FhCons, cohort: int, upto: int, early: bool = True) -> Consume:
        return own(cons, cohort, upto)

    patch.put(FhCons, "begin", begin)


def take_early_rows_before_a_meeting(patch: Patch) -> None:
    """Cohorts that are to meet still take rows beyond the position where they meet."""
    patch.put(FhCons, "has_early", lambda cons, cohort: cons.unordered and bool(cons.pending.get(cohort)))
