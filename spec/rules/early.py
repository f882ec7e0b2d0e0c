"""What is taken out: rules about stages that do not wait for the merge, and consume rows before their frontier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...protocols.egress import Egress
from ...protocols.fh_cons import FhCons
from ...protocols.fh_prod import FhProd, LaneOut
from ...protocols.messages import Ahead, Consume, Consumed, Effect, Merge, State
from ...protocols.pooler import Pooler
from .patch import Patch, sending


def cut_without_what_is_ahead(patch: Patch) -> None:
    """A state moves with its position only, and not with how far ahead of it each producer's rows were taken."""
    patch.put(Pooler, "_cut", sending(State, lambda state: replace(state, ahead=()), Pooler._cut))


def count_what_waits_as_taken(patch: Patch) -> None:
    """A state is said to be ahead by all that was received, also by what the operator was not given yet."""
    own = FhCons.ahead

    def ahead(cons: FhCons, partition: int, upto: int) -> tuple[Ahead, ...]:
        twin = cons.clone()
        twin.pending.clear()
        return own(twin, partition, upto)

    patch.put(FhCons, "ahead", ahead)


def begin_the_egress_at_its_position(patch: Patch) -> None:
    """An egress that is started again is fed from its position on, and not from where its sink is ahead of it."""
    own = Egress.__init__
    patch.put(Egress, "__init__", lambda egress, name, stage, durable=0, ahead=(): own(egress, name, stage, durable))


def keep_lanes_of_one_sender_apart(patch: Patch) -> None:
    """What one sender feeds a new copy from several places on is never made one lane."""
    patch.put(FhCons, "found", sending(Merge, lambda merge: None, FhCons.add_cohort))


def acknowledge_what_was_taken_early(patch: Patch) -> None:
    """A consumer acknowledges as far as it has taken rows of any producer, and not as far as those of all."""

    def acknowledge(cons: FhCons) -> Iterator[Effect]:
        position = max((lane.upto for lane in cons.lanes.values()), default=cons.acked)
        if position > cons.acked:
            cons.acked = position
            for edge, producers in cons.producers.items():
                yield from (cons._ack(edge, producer) for producer in producers)

    patch.put(FhCons, "acknowledge", acknowledge)


def end_a_run_at_the_frontier(patch: Patch) -> None:
    """What was emitted early is kept only as long as what is up to the frontier."""
    own = FhProd.put_and_feed

    def put_and_feed(prod: FhProd, message: Consumed) -> Iterator[Effect]:
        return own(prod, replace(message, emitted_upto=message.upto))

    patch.put(FhProd, "put_and_feed", put_and_feed)


def send_what_was_emitted_early(patch: Patch) -> None:
    """A lane goes as far as the last row that was emitted, also if others may come before it."""
    own = FhProd._reached

    def reached(prod: FhProd, lane: LaneOut) -> int:
        return max(own(prod, lane), prod.buffer.newest)

    patch.put(FhProd, "_reached", reached)


def take_early_rows_with_a_full_pool(patch: Patch) -> None:
    """Who may exceed a full pool takes all that is here, and not only what he needs to come after."""
    own = FhCons.begin

    def begin(cons: FhCons, cohort: int, upto: int, early: bool = True) -> Consume:
        return own(cons, cohort, upto)

    patch.put(FhCons, "begin", begin)


def take_early_rows_before_a_meeting(patch: Patch) -> None:
    """Cohorts that are to meet go on with rows beyond the place where they stand."""
    patch.put(FhCons, "has_early", lambda cons, cohort: cons.unordered and bool(cons.pending.get(cohort)))
