"""Bugs to plant in the machines, each with the checker that must catch it and a world in which it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from flux.protocols import controller as controller_module
from flux.protocols import placement
from flux.protocols.buffer import Buffer
from flux.protocols.change_messages import Reconfigure
from flux.protocols.changes import Changes
from flux.protocols.controller import Controller
from flux.protocols.fh_cons import NO_SENDER, FhCons
from flux.protocols.fh_prod import FhProd, LaneOut
from flux.protocols.ingress import Ingress
from flux.protocols.machine import Rule, ignore
from flux.protocols.messages import Consume, Data, Effect, Move, RequestState, Standby, View
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler
from flux.protocols.state_mover import StateMover
from flux.spec import dataflow, scenario_walk
from flux.spec.bounds import ChargedByNeed, ShortSteps
from flux.spec.change_claims import ChangesEnd, CutsRise, OneEdition, StepsStop
from flux.spec.dataflow import EGRESS, Row, Scenario, declustered
from flux.spec.invariants import (
    BuffersDrain,
    Checker,
    CohortsMeet,
    DupFree,
    FedByOneThatRan,
    FencedIsMute,
    InOrder,
    LossFree,
    NoDeadlock,
    NoPause,
    OneSender,
    ReplicasIdentical,
    WithinBounds,
)
from flux.spec.process import CONTROLLER, SimulatedProcess
from flux.spec.recovery import (
    CutAtOnce,
    LastCopyStays,
    LeastFirst,
    MovesBegin,
    NothingGivenUp,
    OneCopyPerSite,
    OneMeaning,
    RecoveryEnds,
    SourceFirst,
    ViewsStaySmall,
)
from flux.spec.slow_sites import AnotherDonates, NoneWaits, PromptCopyStays, SlowFeedNone
from flux.spec.world import NO_DETAIL, Choice

from . import small_worlds

Plant = Callable[[pytest.MonkeyPatch], None]
_attach, _acknowledge, _take = FhCons._attach, FhCons.acknowledge, FhCons.take


def _view(cons: FhCons) -> int:
    assert cons.view is not None
    return cons.view.number


# --- bugs that one checker sees, and others may see too ----------------------------------------------------------


def merge_up_to_the_fastest_lane(patch: pytest.MonkeyPatch) -> None:
    def frontier(cons: FhCons, cohort: int) -> int:
        return max((lane.upto for lane in cons.lanes.values()), default=cons.consumed)

    patch.setattr(FhCons, "frontier", frontier)


def drop_a_frame_on_the_second_site(patch: pytest.MonkeyPatch) -> None:
    def take(cons: FhCons, cohort: int, upto: int, early: bool) -> Any:
        return _take(cons, cohort, upto, early)[cons.name == "site-2" :]

    patch.setattr(FhCons, "take", take)


def forget_to_reverse(patch: pytest.MonkeyPatch) -> None:
    senders = FhCons._senders

    def no_survivors(cons: FhCons, edge: int, producers: Any, *rest: Any) -> Any:
        return senders(cons, edge, producers, *rest) if _view(cons) == 1 else {NO_SENDER: tuple(producers)}

    patch.setattr(FhCons, "_senders", no_survivors)


def never_work_with_rows_in_the_pool(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Buffer, "_release", lambda buffer: None)


def attach_to_every_copy(patch: pytest.MonkeyPatch) -> None:
    def senders(cons: FhCons, edge: int, producers: Any, *rest: Any) -> Any:
        view = cons.view
        assert view is not None
        copies = {p: view.live_copies(view.edges[edge][0], p) for p in producers}
        nodes = sorted({node for live in copies.values() for node in live})
        return {node: tuple(p for p, live in copies.items() if node in live) for node in nodes}

    patch.setattr(FhCons, "_senders", senders)


def never_say_that_a_copy_is_built(patch: pytest.MonkeyPatch) -> None:
    install = Pooler._install
    patch.setattr(Pooler, "_install", lambda pooler, state: list(install(pooler, state))[:-1])


def rebuild_a_copy_where_the_other_one_is(patch: pytest.MonkeyPatch) -> None:
    def place(view: View, stage: int, partition: int, costs: Any) -> str:
        return view.live_copies(stage, partition)[0]

    patch.setattr(placement, "best_place", place)


# --- bugs that only one checker sees ------------------------------------------------------------------------------
# A row that is lost or repeated changes the digest of its consumer, and so shows to `ReplicasIdentical` as well, as
# every digest does. Bugs for `LossFree` and `DupFree` alone are at the egress of a dataflow that keeps no state.


def _keep_no_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dataflow, "DIGEST_PRIME", 1)


def skip_a_row_at_take_over(patch: pytest.MonkeyPatch) -> None:
    def attach(cons: FhCons, edge: int, cohort: int, sender: str, channels: Any, position: int) -> Iterator[Any]:
        skipped = _view(cons) > 1 and cons.name == EGRESS and position > 0
        return _attach(cons, edge, cohort, sender, channels, position + skipped)

    _keep_no_state(patch)
    patch.setattr(FhCons, "_attach", attach)


def go_back_a_row_at_take_over(patch: pytest.MonkeyPatch) -> None:
    def attach(cons: FhCons, edge: int, cohort: int, sender: str, channels: Any, position: int) -> Iterator[Any]:
        repeated = _view(cons) > 1 and cons.name == EGRESS and position == 1 > cons.consumed
        return _attach(cons, edge, cohort, sender, channels, position - repeated)

    _keep_no_state(patch)
    patch.setattr(FhCons, "_attach", attach)


def take_a_number_without_rows_for_consumed(patch: pytest.MonkeyPatch) -> None:
    finish = FhCons.finish

    def finish_and_more(cons: FhCons, cohort: int) -> None:
        finish(cons, cohort)
        own = cons.cohorts[cohort]
        if cons.name == EGRESS and own.consumed == 1:
            cons.cohorts[cohort] = own._replace(consumed=2, working_upto=None)

    patch.setattr(FhCons, "finish", finish_and_more)


def operate_differently_on_the_second_site(patch: pytest.MonkeyPatch) -> None:
    operate = SimulatedProcess._operate

    def operate_and_more(process: SimulatedProcess, work: Consume) -> list[Row]:
        out = operate(process, work)
        if process.name == "site-2":
            process.states = {place: state._replace(digest=0) for place, state in process.states.items()}
        return out

    patch.setattr(SimulatedProcess, "_operate", operate_and_more)


def acknowledge_to_one_producer_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FhCons, "acknowledge", lambda cons, *receiving: list(_acknowledge(cons, *receiving))[:1])


def forget_a_frame_that_comes_while_the_sink_is_at_work(patch: pytest.MonkeyPatch) -> None:
    receive = FhCons.receive

    def forget(cons: FhCons, message: Data) -> Iterator[Any]:
        if cons.name != EGRESS or cons.cohorts[0].idle:
            yield from receive(cons, message)
            return
        cons.acked = cons.reported = message.upto
        for edge, producers in cons.producers.items():
            for producer in producers:
                yield cons._ack(edge, producer)

    rows = [replace(r, action=forget) if r.action is receive else r for r in FhCons.RULES]
    patch.setattr(FhCons, "RULES", tuple(rows))


def attach_again_without_a_stop(patch: pytest.MonkeyPatch) -> None:
    reconcile = FhCons.reconcile

    def and_again(cons: FhCons, view: View) -> Iterator[Any]:
        yield from reconcile(cons, view)
        for lane_id, lane in list(cons.lanes.items()):
            if view.number > 1 and not lane.stops:
                del cons.lanes[lane_id]
                yield from _attach(cons, lane.edge, lane.cohort, lane.sender, lane.channels, lane.upto)

    rows = [replace(r, action=and_again) if r.action is reconcile else r for r in FhCons.RULES]
    patch.setattr(FhCons, "RULES", tuple(rows))


def give_a_new_copy_both_places(patch: pytest.MonkeyPatch) -> None:
    def placed(view: View, done: Standby) -> Any:
        stage = list(view.copies[done.stage])
        stage[done.partition] = (done.node,) * len(stage[done.partition])
        return (*view.copies[: done.stage], tuple(stage), *view.copies[done.stage + 1 :])

    patch.setattr(placement, "placed", placed)


def never_rebuild(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Controller, "_with_recovery", lambda controller, view: view)


def say_that_every_donor_is_dead(patch: pytest.MonkeyPatch) -> None:
    adopt = StateMover.adopt

    def despair(mover: StateMover, view: View) -> Iterable[Effect]:
        effects = adopt(mover, view)
        mover.orphans = frozenset(mover.standby)
        return effects

    patch.setattr(StateMover, "adopt", despair)
    patch.setattr(StateMover, "RULES", (*StateMover.RULES[:-1], replace(StateMover.RULES[-1], action=despair)))


def wait_for_every_cohort(patch: pytest.MonkeyPatch) -> None:
    def reached(prod: FhProd, lane: LaneOut) -> int:
        return min(prod.produced.values(), default=lane.cursor)

    patch.setattr(FhProd, "_reached", reached)


def overtake(patch: pytest.MonkeyPatch) -> None:
    reach = FhCons.reach

    def oldest_steps_over(cons: FhCons, cohort: int) -> int:
        return cons.frontier(cohort) if cohort == min(cons.cohorts) else reach(cons, cohort)

    patch.setattr(FhCons, "reach", oldest_steps_over)


def rebuild_everything_at_once(patch: pytest.MonkeyPatch) -> None:
    begin = Controller._with_recovery

    def begin_all(self: Controller, view: View) -> View:
        self.at_once = 100
        return begin(self, view)

    patch.setattr(Controller, "_with_recovery", begin_all)


def rebuild_on_the_last_site(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(placement, "load", lambda view: {n: -i for i, n in enumerate(view.nodes)})


def never_move(patch: pytest.MonkeyPatch) -> None:
    def move(row: Rule[Any, Any]) -> Rule[Any, Any]:
        return replace(row, action=ignore) if row.on is Move else row

    patch.setattr(Controller, "RULES", tuple(move(row) for row in Controller.RULES))


def give_states_away_last(patch: pytest.MonkeyPatch) -> None:
    cut = Pooler._cut

    def cut_at_the_frontier(pooler: Pooler, want: RequestState) -> Iterator[Effect]:
        has_more = any(pooler.cons.frontier(k) > own.consumed for k, own in pooler.cons.cohorts.items())
        return iter(()) if has_more else cut(pooler, want)

    patch.setattr(Pooler, "_cut", cut_at_the_frontier)


def give_up_a_copy_that_was_not_reported(patch: pytest.MonkeyPatch) -> None:
    def lost(view: View) -> tuple[tuple[int, int], ...]:
        return tuple((s, p) for s in (1,) for p in range(len(view.copies[s])) if not view.live_copies(s, p))

    patch.setattr(View, "lost", lost)


def hear_frames_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    def hear(row: Rule[Any, Any]) -> Rule[Any, Any]:
        return replace(row, guard=lambda node, data: data.view <= node.number, action=Node.hand_over)

    rows = [hear(r) if r.on is Data and r.action.__name__ == "fence" else r for r in Node.RULES]
    patch.setattr(Node, "RULES", tuple(rows))


def list_the_dead_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Controller, "_forgetting", lambda controller, view: view)


def hear_the_dead_who_are_not_listed(patch: pytest.MonkeyPatch) -> None:
    def is_from_a_member(node: Node, message: Any) -> bool:
        view = node.view
        return view is not None and message.sender not in view.dead and message.view <= view.number

    rows = [replace(r, guard=is_from_a_member) if r.action is Node.hand_over else r for r in Node.RULES]
    patch.setattr(Node, "RULES", tuple(rows))


def work_with_a_full_pool(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Buffer, "full", lambda buffer: False)


def keep_more_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Buffer, "_shrink_quota", lambda buffer, dest, rows: None)


def wait_for_a_copy_on_its_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Buffer, "expect", lambda buffer, coming: None)


@dataclass(frozen=True)
class Case:
    """A planted bug, a checker that must catch it alone, and a world in which it shows.

    The world is explored, or, if a `tale` is given, goes like that. `only` says that no other checker sees the bug.
    """

    plant: Plant
    checker: type[Checker]
    scenario: Scenario
    only: bool = False
    tale: tuple[Choice, ...] = ()


ONE_PAIR = Scenario(sites=2, copies=declustered(2, [1]), batches=((1,), (4, 1)), bound_rows=10)
TWO_PAIRS = Scenario(sites=2, copies=declustered(2, [2]), batches=((1,), (4,)), bound_rows=10)
A_NUMBER_WITHOUT_ROWS = Scenario(
    sites=2, copies=declustered(2, [1]), batches=((1,), (2,), (1,)), bound_rows=10, crashes=0
)
QUIET_PAIR = Scenario(sites=2, copies=declustered(2, [1]), batches=((1,), (4,)), bound_rows=10, crashes=0)
TIGHT_PAIR = Scenario(sites=2, copies=declustered(2, [1]), batches=((1,), (4,)), bound_rows=1, crashes=0)
SHORT_STEPS = Scenario(
    sites=2, copies=declustered(2, [1]), batches=((1, 4, 2),), bound_rows=10, crashes=0, paces=(1,), step=2
)
SPARE_SITE = Scenario(sites=3, copies=declustered(2, [1]), batches=((),), bound_rows=10)
SPARE_AND_TIGHT = Scenario(sites=3, copies=declustered(2, [1]), batches=((1,), (4,)), bound_rows=1, transfer_rows_max=3)
A_DOUBT = Scenario(sites=3, copies=declustered(2, [1]), batches=((1, 4),), bound_rows=10, suspicions=1)
TWO_CRASHES = Scenario(sites=3, copies=declustered(2, [1]), batches=((1, 4),), bound_rows=10, crashes=2)


A_MOVE = Scenario(
    sites=3,
    copies=declustered(2, [1]),
    batches=((1,),),
    bound_rows=10,
    moves=(Move(stage=1, partition=0, slot=0, to="site-3"),),
)
TWO_MEET = Scenario(
    sites=2,
    copies=((("site-1",), ("site-2",)),),
    batches=((1,), (4,)),
    bound_rows=10,
    crashes=0,
    moves=(Move(stage=1, partition=0, slot=0, to="site-2"),),
)
BY_DESTINATION = Scenario(
    sites=2, copies=((("site-1",), ("site-2",)),), batches=((1, 2), (3, 4)), bound_rows=2, crashes=0, counted=True
)
ONE_IS_SLOW = replace(small_worlds.PAIRS_ONE_BATCH, crashes=0, slow=(("site-1",),))
BOTH_ARE_SLOW = replace(ONE_IS_SLOW, slow=(("site-1", "site-2"),), retires=("site-1",))
LOADED_AND_SPARE = Scenario(
    sites=4,
    copies=((("site-1", "site-2"), ("site-2", "site-4")),),
    batches=((1,),),
    bound_rows=10,
)


def build_from_the_copy_that_leaves(patch: pytest.MonkeyPatch) -> None:
    def donor(view: View, stage: int, partition: int, slot: int) -> str:
        return view.copies[stage][partition][slot]

    patch.setattr(placement, "donor", donor)


def take_from_the_copy_that_was_just_built(patch: pytest.MonkeyPatch) -> None:
    own = View.feeder
    patch.setattr(
        View, "feeder", lambda view, stage, partition, slot, now, last: own(view, stage, partition, slot, now)
    )


def stay_with_slow_senders(patch: pytest.MonkeyPatch) -> None:
    own = View.feeder
    patch.setattr(View, "feeder", lambda view, *rest: own(replace(view, slow=frozenset()), *rest))


def take_all_that_is_here(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FhCons, "_within_a_step", FhCons.frontier)


def hold_rows_that_none_needs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Buffer, "trim", lambda buffer: [])


def keep_no_more_for_slow_consumers_of_sites(patch: pytest.MonkeyPatch) -> None:
    own = FhProd.adopt

    def adopt(prod: FhProd, view: View) -> Iterator[Effect]:
        return own(prod, view if prod.stage == 0 else replace(view, slow=frozenset()))

    patch.setattr(FhProd, "RULES", tuple(replace(r, action=adopt) if r.action is own else r for r in FhProd.RULES))


def retire_a_copy_whose_partner_is_slow(patch: pytest.MonkeyPatch) -> None:
    own = View.can_retire
    patch.setattr(View, "can_retire", lambda view, node: own(replace(view, slow=frozenset({node})), node))


_MARKED: tuple[Choice, ...] = (("slow", CONTROLLER, 0),)
_RETIRED: tuple[Choice, ...] = (*_MARKED, ("retire", CONTROLLER, 0))


def remove_the_holder_of_a_last_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(View, "needs", lambda view, node: False)


# The site with the only copy left does not answer for a while.
_DOUBTED: tuple[Choice, ...] = (
    ("crash", "site-1", NO_DETAIL),
    ("notice", "site-1", NO_DETAIL),
    ("suspect", "site-2", NO_DETAIL),
)

_SECOND_DIES: tuple[Choice, ...] = (("crash", "site-2", NO_DETAIL), ("notice", "site-2", NO_DETAIL))
_FIRST_DIES: tuple[Choice, ...] = (("crash", "site-1", NO_DETAIL), ("notice", "site-1", NO_DETAIL))


def number_rows_without_asking_what_others_have_seen(patch: pytest.MonkeyPatch) -> None:
    own = Ingress._pull

    def pull(ingress: Ingress) -> Iterator[Effect]:
        ingress.knows_positions = True
        yield from own(ingress)

    patch.setattr(Ingress, "_pull", pull)


# A site has rows that the journal of the next ingress does not have.
_TAIL_LOST: tuple[Choice, ...] = (
    ("deliver", CONTROLLER, "ingress"),
    ("deliver", CONTROLLER, "site-2"),
    ("deliver", "site-2", "ingress"),
    ("answer", "ingress", (0, 0)),
    ("deliver", "ingress", "site-2"),
    ("crash", "ingress", NO_DETAIL),
)

# The donor dies when the copy it gave is installed, and that is not reported yet.
_UNREPORTED: tuple[Choice, ...] = (
    *(("deliver", CONTROLLER, node) for node in TWO_CRASHES.nodes),
    ("crash", "site-1", NO_DETAIL),
    ("notice", "site-1", NO_DETAIL),
    ("deliver", CONTROLLER, "site-3"),
    ("deliver", CONTROLLER, "site-2"),
    ("deliver", "site-3", "site-2"),
    ("deliver", "site-2", "site-3"),
    ("crash", "site-2", NO_DETAIL),
    ("notice", "site-2", NO_DETAIL),
)

_REQUESTED: tuple[Choice, ...] = (  # Of a site that is at work on the first of two rows.
    ("deliver", CONTROLLER, "ingress"),
    ("deliver", CONTROLLER, "site-2"),
    ("deliver", CONTROLLER, "site-1"),
    ("deliver", "site-1", "ingress"),
    ("answer", "ingress", (0, 0)),
    ("move", CONTROLLER, 0),
    ("deliver", CONTROLLER, "ingress"),
    ("deliver", "site-2", "ingress"),
    ("deliver", "ingress", "site-1"),
    ("deliver", CONTROLLER, "site-1"),
)


def say_that_states_are_of_another_edition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(View, "edition_of_state", lambda view, stage, position: 7)


def consume_by_another_edition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(View, "edition_at", lambda view, stage, position: 7)


def lose_a_change_that_is_closed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(controller_module, "closed", lambda editions, number: ())


def never_close_a_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Changes, "to_close", lambda changes, view: None)


A_CHANGE = replace(
    QUIET_PAIR,
    batches=tuple((n,) for n in range(12)),
    changes=(Reconfigure(number=1, stages=frozenset({1})),),
    lead=0,
)
_CHANGED: tuple[Choice, ...] = (("change", CONTROLLER, 0),)

CASES = (
    Case(merge_up_to_the_fastest_lane, InOrder, small_worlds.MERGE_TWO_BATCHES),
    Case(drop_a_frame_on_the_second_site, ReplicasIdentical, small_worlds.PAIRS_ONE_BATCH),
    Case(forget_to_reverse, NoDeadlock, small_worlds.PAIRS_ONE_BATCH),
    Case(never_work_with_rows_in_the_pool, NoDeadlock, small_worlds.PAIRS_TIGHT),
    Case(attach_to_every_copy, OneSender, small_worlds.PAIRS_ONE_BATCH),
    Case(rebuild_a_copy_where_the_other_one_is, OneCopyPerSite, small_worlds.SPARE),
    Case(never_say_that_a_copy_is_built, RecoveryEnds, SPARE_SITE, only=True),
    Case(skip_a_row_at_take_over, LossFree, ONE_PAIR, only=True),
    Case(go_back_a_row_at_take_over, DupFree, TWO_PAIRS, only=True),
    Case(take_a_number_without_rows_for_consumed, InOrder, A_NUMBER_WITHOUT_ROWS, only=True),
    Case(operate_differently_on_the_second_site, ReplicasIdentical, QUIET_PAIR, only=True),
    Case(acknowledge_to_one_producer_only, BuffersDrain, small_worlds.PAIRS_ONE_BATCH, only=True),
    Case(forget_a_frame_that_comes_while_the_sink_is_at_work, NoDeadlock, QUIET_PAIR, only=True),
    Case(attach_again_without_a_stop, OneSender, small_worlds.PAIRS_ONE_BATCH, only=True),
    Case(give_a_new_copy_both_places, OneCopyPerSite, SPARE_SITE, only=True),
    Case(never_rebuild, RecoveryEnds, small_worlds.SPARE),
    Case(say_that_every_donor_is_dead, RecoveryEnds, small_worlds.SPARE),
    Case(wait_for_every_cohort, NoPause, TWO_MEET, only=True),
    Case(overtake, CohortsMeet, TWO_MEET, only=True),
    Case(rebuild_everything_at_once, SourceFirst, LOADED_AND_SPARE, only=True, tale=_SECOND_DIES),
    Case(rebuild_on_the_last_site, LeastFirst, LOADED_AND_SPARE, only=True, tale=_FIRST_DIES),
    Case(never_move, MovesBegin, A_MOVE, only=True, tale=(("move", CONTROLLER, 0),)),
    Case(give_states_away_last, CutAtOnce, TWO_MEET, only=True, tale=_REQUESTED),
    Case(give_up_a_copy_that_was_not_reported, NothingGivenUp, TWO_CRASHES, only=True, tale=_UNREPORTED),
    Case(remove_the_holder_of_a_last_copy, LastCopyStays, A_DOUBT, only=True, tale=_DOUBTED),
    Case(hear_frames_of_the_dead, FencedIsMute, small_worlds.PAIRS_ONE_BATCH, only=True),
    Case(list_the_dead_for_ever, ViewsStaySmall, small_worlds.SPARE, only=True),
    Case(hear_the_dead_who_are_not_listed, FencedIsMute, small_worlds.SPARE),
    Case(wait_for_a_copy_on_its_way, NoPause, SPARE_AND_TIGHT),
    Case(keep_more_for_ever, BuffersDrain, SPARE_SITE),
    Case(
        number_rows_without_asking_what_others_have_seen,
        OneMeaning,
        scenario_walk.WORLDS["lost tails"],
        only=True,
        tale=_TAIL_LOST,
    ),
    Case(work_with_a_full_pool, WithinBounds, TIGHT_PAIR, only=True),
    Case(take_all_that_is_here, ShortSteps, SHORT_STEPS, only=True),
    Case(hold_rows_that_none_needs, ChargedByNeed, BY_DESTINATION, only=True),
    Case(build_from_the_copy_that_leaves, AnotherDonates, A_MOVE, only=True, tale=(("move", CONTROLLER, 0),)),
    Case(take_from_the_copy_that_was_just_built, FedByOneThatRan, A_MOVE, only=True),
    Case(stay_with_slow_senders, SlowFeedNone, ONE_IS_SLOW, only=True, tale=_MARKED),
    Case(retire_a_copy_whose_partner_is_slow, PromptCopyStays, BOTH_ARE_SLOW, only=True, tale=_RETIRED),
    Case(say_that_states_are_of_another_edition, OneEdition, SPARE_SITE, only=True),
    Case(consume_by_another_edition, StepsStop, QUIET_PAIR, only=True),
    Case(lose_a_change_that_is_closed, CutsRise, A_CHANGE, only=True, tale=_CHANGED),
    Case(never_close_a_change, ChangesEnd, A_CHANGE, only=True, tale=_CHANGED),
    Case(
        keep_no_more_for_slow_consumers_of_sites,
        NoneWaits,
        scenario_walk.WORLDS["a slow site"],
        only=True,
        tale=_MARKED,
    ),
)
