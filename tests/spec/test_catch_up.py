"""Each rule of catch-up is needed: a bug planted in its place is found by random walks.

Most show in random worlds. Those about copies that move away and come back need worlds with many moves,
as in `wandering`. The rules have the numbers of the position protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from flux.protocols.buffer import Buffer
from flux.protocols.controller import Controller
from flux.protocols.fh_cons import FhCons
from flux.protocols.fh_prod import FhProd, LaneOut
from flux.protocols.machine import Machine
from flux.protocols.messages import Ack, Data, Drop, Effect, Failed, Frame, Send, State, Tell, View, Want
from flux.protocols.pooler import Pooler

from .wandering import WANDERINGS, WORLDS, violations, wander

Plant = Callable[[pytest.MonkeyPatch], None]


def in_place_of(patch: pytest.MonkeyPatch, machine: type[Machine], name: str, other: Callable[..., Any]) -> None:
    """Put `other` in the place of a machine's method, also in its table."""
    own = getattr(machine, name)
    patch.setattr(machine, name, other)
    rows = [
        replace(
            rule,
            guard=other if rule.guard is own else rule.guard,
            action=other if rule.action is own else rule.action,
        )
        for rule in machine.RULES
    ]
    patch.setattr(machine, "RULES", tuple(rows))


def changing(
    kind: type[Any], change: Callable[[Any], Any], method: Callable[..., Any]
) -> Callable[..., Iterator[Effect]]:
    """The method, with every message of a kind that it sends changed."""

    def changed(*arguments: Any) -> Iterator[Effect]:
        for effect in method(*arguments):
            is_one = isinstance(effect, Send) and isinstance(effect.message, kind)
            yield replace(effect, message=change(effect.message)) if is_one else effect

    return changed


# --- the state and its position ---------------------------------------------------------------------


def acknowledge_beyond_the_request(patch: pytest.MonkeyPatch) -> None:
    """Entitlement: what the copy on its way will need is dropped before its state is there."""
    patch.setattr(Pooler, "_acknowledge", lambda pooler: pooler.cons.acknowledge())


def ask_for_any_state(patch: pytest.MonkeyPatch) -> None:
    """Entitlement: the donor may be behind what this site has acknowledged."""
    patch.setattr(Pooler, "_ask", changing(Want, lambda want: replace(want, position=0), Pooler._ask))


def cut_before_the_position_asked_for(patch: pytest.MonkeyPatch) -> None:
    cut = Pooler._cut
    patch.setattr(Pooler, "_cut", lambda pooler, want: cut(pooler, replace(want, position=0)))


def forget_the_output_that_is_not_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """Rule 16: what moves is of one instant, with the partition's rows in the buffer."""
    patch.setattr(Pooler, "_cut", changing(State, lambda state: replace(state, runs=()), Pooler._cut))


def say_nothing_of_a_dead_donor(patch: pytest.MonkeyPatch) -> None:
    """Rule 17."""
    ask = Pooler._ask

    def silent(pooler: Pooler, view: View) -> Iterator[Effect]:
        for effect in ask(pooler, view):
            if not (isinstance(effect, Tell) and isinstance(effect.message, Failed)):
                yield effect

    patch.setattr(Pooler, "_ask", silent)


# --- who is a member --------------------------------------------------------------------------------


def do_not_state_the_position_to_a_new_producer(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: its buffer never drains."""
    own = FhCons.reconcile

    def reconcile(cons: FhCons, view: View) -> Iterator[Effect]:
        return (e for e in own(cons, view) if not (isinstance(e, Send) and isinstance(e.message, Ack)))

    in_place_of(patch, FhCons, "reconcile", reconcile)


def listen_to_what_was_said_before_the_sender_left(patch: pytest.MonkeyPatch) -> None:
    """Rules 9 and 12."""
    in_place_of(patch, FhProd, "is_of_an_earlier_time_here", lambda prod, message: False)


def entitle_finished_copies_only(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: nothing is kept for the copy on its way."""
    own = FhProd.adopt

    def adopt(prod: FhProd, view: View) -> Iterator[Effect]:
        yield from own(prod, view)
        for site in set(view.members(prod.edge + 1)) - set(view.holders(prod.edge + 1)):
            prod.buffer.ack_all(site)

    in_place_of(patch, FhProd, "adopt", adopt)


def go_on_acknowledging_from_where_it_left(patch: pytest.MonkeyPatch) -> None:
    """A site that comes back to a stage comes anew: its producers have forgotten what it acknowledged."""
    own = FhCons.reconcile

    def reconcile(cons: FhCons, view: View) -> Iterator[Effect]:
        acked = cons.acked
        yield from own(cons, view)
        cons.acked = max(cons.acked, acked)

    in_place_of(patch, FhCons, "reconcile", reconcile)


def keep_the_output_of_copies_that_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Buffer, "clear", lambda buffer: None)


# --- lanes ------------------------------------------------------------------------------------------


def take_what_was_stopped(patch: pytest.MonkeyPatch) -> None:
    """Rule 13: frames that were sent before the stop is known bring rows that another copy sends too."""

    def receive(cons: FhCons, message: Data) -> Iterator[Effect]:
        lane = cons.lanes[message.stint]
        cons.lanes[message.stint] = replace(lane, upto=message.upto)
        frame = Frame(after=message.after, upto=message.upto, channels=(), body=message.bodies[0])
        cons.pending[lane.cohort] = (*cons.pending.get(lane.cohort, ()), frame)
        yield from ()

    in_place_of(patch, FhCons, "receive", receive)


def go_as_far_as_the_first_producer(patch: pytest.MonkeyPatch) -> None:
    """A lane goes as far as the last of its producers, a copy that still catches up."""

    def reached(prod: FhProd, lane: LaneOut) -> int:
        return max(prod.produced.values(), default=lane.cursor)

    patch.setattr(FhProd, "_reached", reached)


def merge_lanes_at_any_position(patch: pytest.MonkeyPatch) -> None:
    own = FhProd._merge

    def merge(prod: FhProd, name: Any) -> Iterator[Effect]:
        lane = prod.lanes[name]
        target = prod.lanes.get(prod._now(name[0], lane.into))
        if target is not None:
            prod.lanes[name] = replace(lane, cursor=target.cursor)
        yield from own(prod, name)

    patch.setattr(FhProd, "_merge", merge)


def forget_old_names_of_lanes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FhProd, "_now", lambda prod, consumer, stint: (consumer, stint))


# --- cohorts and the operator -----------------------------------------------------------------------


def hold_who_is_behind_in_a_full_pool(patch: pytest.MonkeyPatch) -> None:
    """Rule 8: a deadlock."""
    patch.setattr(Buffer, "newest", property(lambda buffer: 0))


def fuse_cohorts_at_different_positions(patch: pytest.MonkeyPatch) -> None:
    def meeting(cons: FhCons) -> tuple[int, int] | None:
        oldest, *younger = sorted(cons.cohorts) or [0]
        return (younger[0], oldest) if younger else None

    patch.setattr(FhCons, "meeting", meeting)
    patch.setattr(FhProd, "fuse", _fuse_anyway)


def _fuse_anyway(prod: FhProd, cohort: int, into: int) -> None:
    prod.cohorts[into] |= prod.cohorts.pop(cohort)
    del prod.produced[cohort]


def fuse_cohorts_at_work(patch: pytest.MonkeyPatch) -> None:
    def meeting(cons: FhCons) -> tuple[int, int] | None:
        oldest = min(cons.cohorts, default=0)
        return next(
            (
                (k, oldest)
                for k, own in cons.cohorts.items()
                if k != oldest and own.consumed == cons.cohorts[oldest].consumed
            ),
            None,
        )

    patch.setattr(FhCons, "meeting", meeting)


def drop_a_copy_under_the_operator(patch: pytest.MonkeyPatch) -> None:
    own = Pooler._go_on

    def go_on(pooler: Pooler) -> Iterator[Effect]:
        for partition in sorted(pooler.prod.leaving):
            yield Drop(stage=pooler.stage, partition=partition)
        pooler.prod.leaving = frozenset()
        yield from own(pooler)

    patch.setattr(Pooler, "_go_on", go_on)


def lose_what_was_pending_when_cohorts_fuse(patch: pytest.MonkeyPatch) -> None:
    own = FhCons.fuse

    def fuse(cons: FhCons, cohort: int, into: int) -> Iterator[Effect]:
        cons.pending.pop(cohort, None)
        yield from own(cons, cohort, into)

    patch.setattr(FhCons, "fuse", fuse)


# --- the controller ---------------------------------------------------------------------------------


def keep_a_dead_standby(patch: pytest.MonkeyPatch) -> None:
    own = Controller.announce

    def announce(controller: Controller, message: Any) -> Iterator[Effect]:
        before = controller.view.standby
        effects = list(own(controller, message))
        dead = tuple(s for s in before if s.node == message.node)
        controller.view = replace(controller.view, standby=(*controller.view.standby, *dead))
        yield from effects

    in_place_of(patch, Controller, "announce", announce)


def move_to_a_site_that_has_a_copy(patch: pytest.MonkeyPatch) -> None:
    in_place_of(patch, Controller, "is_possible", lambda controller, message: controller.view.alive(message.to))


PLANTS: tuple[Plant, ...] = (
    acknowledge_beyond_the_request,
    ask_for_any_state,
    cut_before_the_position_asked_for,
    forget_the_output_that_is_not_acknowledged,
    say_nothing_of_a_dead_donor,
    do_not_state_the_position_to_a_new_producer,
    listen_to_what_was_said_before_the_sender_left,
    entitle_finished_copies_only,
    go_on_acknowledging_from_where_it_left,
    keep_the_output_of_copies_that_left,
    take_what_was_stopped,
    go_as_far_as_the_first_producer,
    merge_lanes_at_any_position,
    forget_old_names_of_lanes,
    hold_who_is_behind_in_a_full_pool,
    fuse_cohorts_at_different_positions,
    fuse_cohorts_at_work,
    drop_a_copy_under_the_operator,
    lose_what_was_pending_when_cohorts_fuse,
    keep_a_dead_standby,
    move_to_a_site_that_has_a_copy,
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_without_the_rule_a_world_fails(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert next(violations(), None) is not None


@pytest.mark.parametrize("name", WORLDS)
def test_worlds_in_which_everything_moves_obey_the_invariants(name: str) -> None:
    for seed in range(WANDERINGS):
        violation = wander(WORLDS[name], seed)
        assert violation is None, f"seed {seed}: {violation}"


@pytest.mark.parametrize("seed", [1053, 2240])
def test_a_lane_that_waited_for_a_producer_that_left_goes_on(seed: int) -> None:
    violation = wander(WORLDS["everything"], seed)
    assert violation is None, str(violation)


# --- what no world finds ------------------------------------------------------------------------------


def cut_the_state_under_the_operator(patch: pytest.MonkeyPatch) -> None:
    """The operator of a simulated process works in one instant, when it answers: its state is never half done."""
    own = Pooler._cut

    def cut(pooler: Pooler, want: Want) -> Iterator[Effect]:
        cohorts = dict(pooler.cons.cohorts)
        pooler.cons.cohorts.update({k: replace(c, working_upto=c.consumed) for k, c in cohorts.items()})
        effects = list(own(pooler, want))
        pooler.cons.cohorts.update(cohorts)
        yield from effects

    patch.setattr(Pooler, "_cut", cut)


def work_with_a_full_pool(patch: pytest.MonkeyPatch) -> None:
    """No checker says that buffers are bounded."""
    patch.setattr(Buffer, "full", lambda buffer: False)


@pytest.mark.parametrize(
    "plant", [cut_the_state_under_the_operator, work_with_a_full_pool], ids=lambda plant: plant.__name__
)
@pytest.mark.xfail(strict=True, reason="the simulated world has no eyes for it; tests/protocols/test_pooler.py has")
def test_without_the_rule_a_world_should_fail(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(wander(world, seed) is not None for world in WORLDS.values() for seed in range(20))
