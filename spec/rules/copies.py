"""Removals of rules about copies: how their state moves, and when the operator may run."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from ...protocols.buffer import Buffer
from ...protocols.fh_cons import FhCons
from ...protocols.fh_prod import FhProd
from ...protocols.messages import (
    Ack,
    CopyFailed,
    CopyReady,
    Drop,
    Effect,
    RequestState,
    Send,
    SendToController,
    State,
    View,
)
from ...protocols.pooler import Pooler
from ...protocols.state_mover import StateMover
from .patch import Patch, change_sent

# --- the state and its position ---------------------------------------------------------------------------


def acknowledge_while_a_copy_is_in_transfer(patch: Patch) -> None:
    """A site still acknowledges while the state of a copy is in transfer to it."""
    patch.put(Pooler, "_acknowledge", lambda pooler: pooler.cons.acknowledge())


def _is_from_a_consumer(prod: FhProd, ack: Ack) -> bool:
    return (ack.edge, ack.sender) in prod.buffer.floors


def keep_what_the_site_itself_needs(patch: Patch) -> None:
    """For a site with a copy in transfer producers keep what it has not acknowledged itself, and no more."""

    def reserve(prod: FhProd, view: View, edges: Mapping[int, int]) -> None:
        prod.versions = view.versions

    patch.put(FhProd, "_reserve", reserve)
    own = Buffer.ack
    patch.put(Buffer, "ack", lambda buffer, dest, upto: own(buffer, dest, max(upto, buffer.floors[dest])))
    patch.put(
        FhProd, "is_from_a_consumer_and_not_older", lambda prod, ack: (ack.edge, ack.sender) in prod.buffer.floors
    )


def count_acks_from_before_a_transfer(patch: Patch) -> None:
    """What a site acknowledged before it knew of the copy in transfer to it still counts if it arrives late."""
    patch.put(FhProd, "is_from_before_a_transfer", lambda prod, message: False)
    patch.put(
        FhProd, "is_from_a_consumer_and_not_older", lambda prod, ack: (ack.edge, ack.sender) in prod.buffer.floors
    )
    own = Buffer.ack
    patch.put(Buffer, "ack", lambda buffer, dest, upto: own(buffer, dest, max(upto, buffer.floors[dest])))


def remember_acks_from_before_a_transfer(patch: Patch) -> None:
    """A site does not acknowledge again what it had acknowledged before a copy was in transfer to it."""
    own = FhCons.reconcile

    def reconcile(cons: FhCons, view: View) -> Iterator[Effect]:
        cons.versions = view.versions
        return own(cons, view)

    patch.put(FhCons, "reconcile", reconcile)


def work_off_the_backlog_first(patch: Patch) -> None:
    """A donor cuts the state when it has consumed all that is here."""
    own = Pooler._cut

    def cut(pooler: Pooler, want: RequestState) -> Iterator[Effect]:
        has_more = any(pooler.cons.frontier(k) > cohort.consumed for k, cohort in pooler.cons.cohorts.items())
        return iter(()) if has_more else own(pooler, want)

    patch.put(Pooler, "_cut", cut)


def report_ready_at_the_request(patch: Patch) -> None:
    """A copy is reported as ready when its state is requested."""
    own = StateMover._want

    def want(mover: StateMover, version: int) -> Iterator[Effect]:
        yield from own(mover, version)
        yield SendToController(message=CopyReady(node=mover.name, version=version))

    patch.put(StateMover, "_want", want)


def move_without_the_output(patch: Patch) -> None:
    """The state moves without the partition's unacknowledged rows."""
    patch.put(Pooler, "_cut", change_sent(State, lambda state: replace(state, runs=()), Pooler._cut))


def cut_under_the_operator(patch: Patch) -> None:
    """The state is read while the operator is at work on it."""
    own = Pooler._cut

    def cut(pooler: Pooler, want: RequestState) -> Iterator[Effect]:
        cohorts = dict(pooler.cons.cohorts)
        pooler.cons.cohorts.update({k: c._replace(working_upto=None) for k, c in cohorts.items()})
        effects = list(own(pooler, want))
        pooler.cons.cohorts.update(cohorts)
        yield from effects

    patch.put(Pooler, "_cut", cut)


def drop_a_copy_under_the_operator(patch: Patch) -> None:
    """The state of a copy that has left is dropped while the operator is at work on it."""
    own = Pooler._go_on

    def go_on(pooler: Pooler) -> Iterator[Effect]:
        for partition in sorted(pooler.prod.leaving):
            yield Drop(stage=pooler.stage, partition=partition)
        pooler.prod.leaving = frozenset()
        yield from own(pooler)

    patch.put(Pooler, "_go_on", go_on)


def keep_the_output_of_a_stage_that_was_left(patch: Patch) -> None:
    """A site that has no copy of the stage any more keeps the output of its former copies."""
    patch.put(Buffer, "clear", lambda buffer: None)


def count_the_output_of_copies_that_left(patch: Patch) -> None:
    """The rows of a copy that has left still count; if it returns, it brings them again."""
    patch.put(Buffer, "forget", lambda buffer, partitions: None)


def do_not_report_a_dead_donor(patch: Patch) -> None:
    """A site does not report that the donor died before the state had arrived."""
    own = StateMover.ask

    def ask(mover: StateMover, installed: Container[int]) -> Iterator[Effect]:
        for effect in own(mover, installed):
            if not (isinstance(effect, SendToController) and isinstance(effect.message, CopyFailed)):
                yield effect

    patch.put(StateMover, "ask", ask)


def count_what_was_put_before_a_copy_left(patch: Patch) -> None:
    """The output of a copy from before it left its site still counts there."""
    patch.put(Buffer, "forget", lambda buffer, partitions: None)


def step_over_a_cohort(patch: Patch) -> None:
    """The oldest cohort advances as far as it can, also past the position of a younger one."""
    own = FhCons.reach

    def reach(cons: FhCons, cohort: int) -> int:
        return cons.frontier(cohort) if cohort == min(cons.cohorts) else own(cons, cohort)

    patch.put(FhCons, "reach", reach)


def acknowledge_later_when_a_copy_is_here(patch: Patch) -> None:
    """What was held back for a copy in transfer is acknowledged with the next view, not when the copy has arrived."""
    own = Pooler._install

    def install(pooler: Pooler, state: State) -> Iterator[Effect]:
        acked = pooler.cons.acked
        for effect in own(pooler, state):
            if isinstance(effect, Send) and isinstance(effect.message, Ack):
                pooler.cons.acked = acked
            else:
                yield effect

    patch.put(Pooler, "_install", install)


def report_once(patch: Patch) -> None:
    """A site does not repeat its reports to a restarted controller."""
    patch.put(StateMover, "report", lambda mover, installed: iter(()))


def report_a_dead_donor_once(patch: Patch) -> None:
    """A site repeats that copies are ready, and not that their donor died."""
    own = StateMover.report

    def report(mover: StateMover, installed: Container[int]) -> Iterator[Effect]:
        return (
            effect
            for effect in own(mover, installed)
            if isinstance(effect, SendToController) and isinstance(effect.message, CopyReady)
        )

    patch.put(StateMover, "report", report)


# --- pools, cohorts and the operator ----------------------------------------------------------------------


def work_with_a_full_pool(patch: Patch) -> None:
    """The operator runs whether its output has room or not."""
    patch.put(Buffer, "full", lambda buffer: False)


def hold_slow_partitions_in_a_full_pool(patch: Patch) -> None:
    """A full pool also stops the partitions whose rows it waits for."""
    patch.put(Buffer, "newest", property(lambda buffer: 0))


def fuse_cohorts_at_different_positions(patch: Patch) -> None:
    """Partitions are consumed in one step at any positions."""

    def cohorts_to_fuse(cons: FhCons) -> tuple[int, int] | None:
        oldest, *younger = sorted(cons.cohorts) or [0]
        return (younger[0], oldest) if younger else None

    def fuse(prod: FhProd, cohort: int, into: int) -> None:
        prod.cohorts[into] |= prod.cohorts.pop(cohort)
        del prod.produced[cohort]

    patch.put(FhCons, "cohorts_to_fuse", cohorts_to_fuse)
    patch.put(FhProd, "fuse", fuse)


def fuse_cohorts_at_work(patch: Patch) -> None:
    """Two cohorts become one while the operator is busy with one of them."""

    def cohorts_to_fuse(cons: FhCons) -> tuple[int, int] | None:
        oldest = min(cons.cohorts, default=0)
        for cohort, own in cons.cohorts.items():
            if cohort != oldest and own.consumed == cons.cohorts[oldest].consumed:
                return cohort, oldest
        return None

    patch.put(FhCons, "cohorts_to_fuse", cohorts_to_fuse)


def lose_pending_rows_when_cohorts_fuse(patch: Patch) -> None:
    """Rows that the younger cohort has received and not consumed are forgotten."""
    own = FhCons.fuse

    def fuse(cons: FhCons, cohort: int, into: int) -> Iterator[Effect]:
        cons.pending.pop(cohort, None)
        yield from own(cons, cohort, into)

    patch.put(FhCons, "fuse", fuse)
