"""Balancer: rounds of moves beside the controller, and what no policy may break. Reference: 4.4.3, 5.1.3.1, rule 35."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest

from flux.protocols import balancer as module
from flux.protocols.balance_messages import (
    Move,
    Planned,
    PlanRound,
    Round,
    SiteRoles,
    Slow,
    StageWork,
    Tick,
    ToBalancer,
    Work,
)
from flux.protocols.balancer import (
    GAIN_MEASURED_AFTER_S,
    MOVE_SEEN_AFTER_S,
    MOVES_FROM_A_SITE_MAX,
    MOVES_OF_SINGLE_COPIES_MAX,
    MOVES_TO_A_SITE_MAX,
    ROUNDS_KEPT_MAX,
    Balancer,
    RoundFacts,
)
from flux.protocols.messages import View

from .refusing import assert_ignored, assert_refused
from .views import standby

SITES = tuple(f"site-{n}" for n in range(1, 7))
# Eight pairs of stage 1 on sites 1 and 2, one of stage 2 on sites 3 and 4; sites 5 and 6 hold nothing.
VIEW = View(
    number=1,
    nodes=("ingress", *SITES, "egress"),
    dead=frozenset(),
    copies=((("ingress",),), (("site-1", "site-2"),) * 8, (("site-3", "site-4"),), (("egress",),)),
)


@dataclass(frozen=True)
class Guesses:
    """An estimator that counts what it is given; its answers are set by the test."""

    observed: tuple[tuple[str, int, float], ...] = ()
    placed: tuple[tuple[int, frozenset[str], float], ...] = ()
    slow_sites: frozenset[str] = frozenset()
    time_s: float = 0.0

    def observe(self, work: Work, at_s: float) -> Guesses:
        return replace(self, observed=(*self.observed, (work.node, work.number, at_s)))

    def relocate(self, view: View, reserved: frozenset[str], at_s: float) -> Guesses:
        return replace(self, placed=(*self.placed, (view.number, reserved, at_s)))

    def slow(self) -> frozenset[str]:
        return self.slow_sites

    def greatest_time_s(self) -> float:
        return self.time_s

    def statistics(self, facts: RoundFacts) -> RoundFacts:
        return facts


def balancer(view: View = VIEW, **arguments: Any) -> Balancer:
    made = Balancer(view, Guesses(), **arguments)
    assert made.step(Tick(at_s=10.0)) == []
    return made


def work(node: str = "site-1", number: int = 1, **fields: Any) -> Work:
    return Work(**{"node": node, "number": number, "view": 1, "elapsed_s": 0.1, "busy_s": 0.05, **fields})


def stage_work(**fields: Any) -> StageWork:
    return StageWork(**{"stage": 1, "positions": 5, "rows": ((0, 3),), "busy_s": 0.05, **fields})


def move(partition: int, to: str = "site-5", slot: int = 0, stage: int = 1) -> Move:
    return Move(stage=stage, partition=partition, slot=slot, to=to)


def asked(machine: Balancer, report: Work | None = None) -> PlanRound:
    """The question that a report makes the balancer ask."""
    number = machine.reports.get("site-6", 0) + 1
    [question] = machine.step(report or work("site-6", number, view=machine.view.number))
    assert isinstance(question, PlanRound)
    return question


def begin(machine: Balancer, *moves: Move, **fields: Any) -> list[Any]:
    """Have the balancer ask, answer with `moves`, and return those that begin."""
    question = asked(machine)
    return list(machine.step(Planned(number=question.number, moves=moves, **fields)))


def building(view: View, *moves: Move) -> View:
    """The next view, in which the copies of `moves` are in transfer."""
    added = tuple(standby(view.versions + n, m.stage, m.partition, m.slot, m.to, "") for n, m in enumerate(moves, 1))
    number, versions = view.number + 1, view.versions + len(moves)
    return replace(view, number=number, versions=versions, standby=(*view.standby, *added))


def built(view: View, *moves: Move) -> View:
    """The next view, in which the copies of `moves` are live."""
    copies = [[list(nodes) for nodes in partitions] for partitions in view.copies]
    for each in moves:
        copies[each.stage][each.partition][each.slot] = each.to
    left = tuple(s for s in view.standby if (s.stage, s.partition) not in {(m.stage, m.partition) for m in moves})
    placed = tuple(tuple(tuple(nodes) for nodes in partitions) for partitions in copies)
    return replace(view, number=view.number + 1, copies=placed, standby=left)


def without(view: View, *nodes: str) -> View:
    return replace(view, number=view.number + 1, dead=view.dead | frozenset(nodes))


def guess(machine: Balancer, **fields: Any) -> None:
    """Have the estimator answer otherwise from now on."""
    machine.estimator = replace(machine.estimator, **fields)  # type: ignore[type-var]


def last(machine: Balancer) -> Round:
    return machine.rounds[-1]


# Reports.


def test_a_report_is_observed_at_the_time_of_the_last_tick_and_the_policy_is_asked() -> None:
    machine = balancer(pinned_stages=frozenset({2}), spares=frozenset({"site-6"}))
    question = asked(machine, work("site-1", 7, stages=(stage_work(catching_up=(3,)),)))
    assert machine.estimator.observed == (("site-1", 7, 10.0),)  # type: ignore[attr-defined]
    assert question.number == 1
    assert question.statistics == RoundFacts(
        at_s=10.0,
        view=VIEW,
        asked_s=0.0,
        rounds=(),
        pinned_stages=frozenset({2}),
        reserved=frozenset({"site-6"}),
        catching_up=frozenset({(1, 3)}),
    )


def test_the_next_question_says_when_the_last_one_was() -> None:
    machine = balancer()
    assert begin(machine) == []
    machine.step(Tick(at_s=11.0))
    assert asked(machine).statistics.asked_s == 10.0
    assert machine.plans == 2


def test_a_policy_is_not_asked_again_before_it_has_answered() -> None:
    machine = balancer()
    asked(machine)
    assert machine.step(work("site-2", 1)) == []


def test_a_report_that_was_counted_is_ignored() -> None:
    machine = balancer()
    begin(machine)
    asked(machine, work("site-1", 4))
    assert_ignored(machine, work("site-1", 4))
    assert_ignored(machine, work("site-1", 3))


@pytest.mark.parametrize("node", ["site-9", "site-2"])
def test_a_report_of_no_member_is_ignored(node: str) -> None:
    machine = balancer(without(VIEW, "site-2"))
    assert_ignored(machine, work(node))


def test_before_the_first_view_no_node_is_a_member() -> None:
    assert_ignored(balancer(replace(VIEW, number=0)), work(view=0))


def test_a_report_of_a_view_that_is_not_known_yet_is_ignored_and_does_not_count() -> None:
    machine = balancer()
    assert_ignored(machine, work(view=2))
    assert machine.reports == {}


def test_an_ingress_reports_too() -> None:
    machine = balancer()
    asked(machine, work("ingress", lags=(("site-1", 0.7),)))
    assert machine.reports == {"ingress": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"elapsed_s": 0.0},
        {"elapsed_s": float("nan")},
        {"busy_s": -0.1},
        {"busy_s": float("inf")},
        {"moving_s": -1.0},
        {"paging_s": float("nan")},
        {"state_bytes": -1},
        {"view": -1},
        {"lags": (("site-1", -0.5),)},
        {"lags": (("site-1", float("nan")),)},
        {"stages": (stage_work(), stage_work())},
        {"stages": (stage_work(stage=0, rows=()),)},
        {"stages": (stage_work(stage=3, rows=()),)},
        {"stages": (stage_work(stage=4),)},
        {"stages": (stage_work(stage=-1),)},
        {"stages": (stage_work(positions=-1),)},
        {"stages": (stage_work(busy_s=float("nan")),)},
        {"stages": (stage_work(rows=((8, 1),)),)},
        {"stages": (stage_work(rows=((-1, 1),)),)},
        {"stages": (stage_work(rows=((0, -1),)),)},
        {"stages": (stage_work(costs_s=((0, float("inf")),)),)},
        {"stages": (stage_work(costs_s=((9, 0.1),)),)},
        {"stages": (stage_work(state_bytes=((0, -5),)),)},
        {"stages": (stage_work(catching_up=(8,)),)},
    ],
    ids=str,
)
def test_a_report_that_cannot_be_true_is_refused(fields: dict[str, Any]) -> None:
    assert_refused(balancer(), work(**fields), by="Balancer")


def test_what_is_going_to_be_spoiled_is_sound() -> None:
    report = work(
        moving_s=0.01,
        paging_s=0.01,
        state_bytes=9,
        lags=(("site-1", 1.5),),
        stages=(
            stage_work(costs_s=((7, 0.1),), state_bytes=((7, 5),), catching_up=(7,)),
            stage_work(stage=2, rows=((0, 0),)),
        ),
    )
    assert asked(balancer(), report)


# Time.


def test_time_does_not_go_back() -> None:
    machine = balancer()
    assert machine.step(Tick(at_s=10.0)) == []
    assert_refused(machine, Tick(at_s=9.9), by="Balancer")


@pytest.mark.parametrize("at_s", [float("nan"), float("inf"), -1.0])
def test_a_time_that_is_not_one_is_refused(at_s: float) -> None:
    assert_refused(Balancer(VIEW, Guesses()), Tick(at_s=at_s), by="Balancer")


# A round.


def test_without_moves_there_is_no_round() -> None:
    machine = balancer()
    assert begin(machine) == []
    assert machine.rounds == () and not machine.is_round_open
    assert asked(machine).number == 2


def test_a_round_begins_with_its_moves_and_ends_with_the_last_one() -> None:
    machine = balancer()
    first, second = move(0), move(1, slot=1)
    assert begin(machine, first, second, why="too slow", gain_expected=0.25) == [first, second]
    assert machine.is_round_open
    assert last(machine) == Round(
        number=1,
        why="too slow",
        moves=(first, second),
        givers=("site-1", "site-2"),
        began_s=10.0,
        gain_expected=0.25,
    )
    view = building(VIEW, first, second)
    assert machine.step(view) == []
    assert last(machine).took_s is None
    view = built(view, first)
    machine.step(Tick(at_s=11.0))
    assert machine.step(view) == [] and machine.is_round_open
    machine.step(Tick(at_s=12.0))
    assert machine.step(built(view, second)) == []
    assert (last(machine).ended, last(machine).took_s) == ("done", 2.0)
    assert last(machine).dropped == last(machine).failed == ()


def test_no_plan_is_asked_for_while_a_round_is_open() -> None:
    machine = balancer()
    begin(machine, move(0))
    assert machine.step(work("site-1", 1)) == []


def test_no_plan_is_asked_for_while_any_copy_is_in_transfer() -> None:
    machine = balancer(building(VIEW, move(0)))
    assert machine.step(work("site-1", 1)) == []


def test_no_plan_is_asked_for_while_a_copy_is_lost() -> None:
    machine = balancer(without(VIEW, "site-4"))
    assert machine.step(work("site-1", 1)) == []


def test_a_dead_site_without_copies_does_not_hinder_a_plan() -> None:
    assert asked(balancer(without(VIEW, "site-5", "ingress")))


def test_rounds_are_numbered_and_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUNDS_KEPT_MAX", 3)
    machine = balancer()
    for _ in range(5):
        assert begin(machine, move(0, to="site-2")) == []
    assert [each.number for each in machine.rounds] == [3, 4, 5]
    assert ROUNDS_KEPT_MAX == 200


# Which moves begin, and when.


def test_two_moves_at_most_go_to_a_site_at_once() -> None:
    machine = balancer()
    moves = [move(p) for p in range(4)]
    assert begin(machine, *moves) == moves[:MOVES_TO_A_SITE_MAX]
    view = building(VIEW, *moves[:2])
    assert machine.step(view) == []
    assert machine.step(built(view, moves[0])) == [moves[2]]


def test_four_moves_at_most_leave_a_site_at_once() -> None:
    machine = balancer()
    takers = ("site-3", "site-4", "site-5", "site-6")
    moves = [move(p, to=takers[p % 4]) for p in range(6)]
    assert begin(machine, *moves) == moves[:MOVES_FROM_A_SITE_MAX]
    view = building(VIEW, *moves[:4])
    assert machine.step(view) == []
    assert machine.step(built(view, *moves[1:3])) == moves[4:]


def test_moves_of_single_copies_are_not_limited_to_four() -> None:
    view = replace(VIEW, copies=(VIEW.copies[0], (("site-1",),) * 8, *VIEW.copies[2:]))
    machine = balancer(view)
    moves = [move(p, to=f"site-{3 + p // 2}") for p in range(8)]
    assert begin(machine, *moves) == moves
    assert MOVES_OF_SINGLE_COPIES_MAX >= 8


def test_a_site_with_no_room_does_not_hold_up_moves_to_others() -> None:
    machine = balancer()
    moves = [move(0), move(1), move(2), move(3, to="site-6")]
    assert begin(machine, *moves) == [moves[0], moves[1], moves[3]]


def test_the_second_copy_of_a_partition_waits_for_the_first() -> None:
    machine = balancer()
    first, second = move(0), move(0, to="site-6", slot=1)
    assert begin(machine, first, second) == [first]
    view = building(VIEW, first)
    assert machine.step(view) == []
    assert machine.step(built(view, first)) == [second]


def test_a_partition_that_another_transfer_builds_waits_for_it() -> None:
    # The transfer began after the policy was asked: a user moves a copy by hand.
    machine = balancer()
    question = asked(machine)
    by_hand = move(0, to="site-6")
    view = building(VIEW, by_hand)
    machine.step(view)
    wanted = move(0, slot=1)
    assert machine.step(Planned(number=question.number, moves=(wanted,))) == []
    assert machine.is_round_open
    assert machine.step(built(view, by_hand)) == [wanted]


# What no policy may break.


@pytest.mark.parametrize(
    "wanted",
    [
        move(0, to="site-2"),
        move(0, to="site-1"),
        move(0, to="site-6"),
        move(0, to="site-3"),
        move(0, to="site-9"),
        move(0, to="ingress"),
        move(0, to="egress"),
        move(0, stage=2),
        move(0, stage=0),
        move(0, stage=3),
        move(0, stage=4),
        move(0, stage=-1),
        move(8),
        move(-1),
        move(0, slot=2),
        move(0, slot=-1),
        move(3),
    ],
    ids=str,
)
def test_a_move_that_no_policy_may_ask_for_is_dropped_and_the_others_begin(wanted: Move) -> None:
    machine = balancer(pinned_stages=frozenset({2}), spares=frozenset({"site-6"}))
    machine.step(SiteRoles(spares=("site-6",), draining=("site-3",)))
    question = asked(machine, work(stages=(stage_work(catching_up=(3,)),)))
    good = move(7)
    assert machine.step(Planned(number=question.number, moves=(wanted, good))) == [good]
    machine.step(building(VIEW, good))
    machine.step(built(machine.view, good))
    assert (last(machine).dropped, last(machine).ended) == ((wanted,), "done")


def test_a_move_of_no_copy_has_no_giver() -> None:
    machine = balancer()
    begin(machine, move(0, stage=4), move(8), move(0, slot=2), move(1))
    assert last(machine).givers == ("", "", "", "site-1")


def test_two_copies_of_a_partition_never_meet_on_a_site() -> None:
    machine = balancer()
    first, second = move(0), move(0, slot=1)
    assert begin(machine, first, second) == [first]
    view = building(VIEW, first)
    machine.step(view)
    assert machine.step(built(view, first)) == []
    assert (last(machine).dropped, last(machine).ended) == ((second,), "done")


def test_a_copy_moves_once_in_a_round() -> None:
    machine = balancer()
    first, again = move(0), move(0, to="site-6")
    assert begin(machine, first, again) == [first]
    assert last(machine).dropped == (again,)


def test_a_move_that_a_plan_has_twice_begins_once() -> None:
    machine = balancer()
    wanted = move(0)
    assert begin(machine, wanted, wanted) == [wanted]
    assert last(machine).dropped == (wanted,)


def test_a_partition_catches_up_until_its_site_reports_that_it_does_not() -> None:
    machine = balancer()
    begin(machine)
    for number, catching_up in ((1, (0,)), (2, ())):
        question = asked(machine, work(number=number, stages=(stage_work(catching_up=catching_up),)))
        begun = machine.step(Planned(number=question.number, moves=(move(0),)))
        assert len(begun) == (not catching_up)


def test_a_spare_gets_load_once_it_holds_a_copy() -> None:
    machine = balancer(spares=frozenset({"site-5", "site-6"}))
    assert begin(machine, move(1)) == []
    machine.step(built(VIEW, move(0)))
    assert machine.estimator.placed[-1] == (2, frozenset({"site-6"}), 10.0)  # type: ignore[attr-defined]
    assert begin(machine, move(1)) == [move(1)]


def test_a_draining_site_gets_no_load_though_it_holds_copies() -> None:
    machine = balancer()
    assert machine.step(SiteRoles(draining=("site-3",))) == []
    assert machine.estimator.placed[-1] == (1, frozenset({"site-3"}), 10.0)  # type: ignore[attr-defined]
    assert begin(machine, move(0, to="site-3")) == []


def test_moves_to_a_site_that_begins_to_drain_are_dropped_if_they_have_not_begun() -> None:
    machine = balancer()
    moves = [move(0), move(1), move(2), move(3, to="site-6")]
    begin(machine, *moves)
    assert machine.step(SiteRoles(draining=("site-5",))) == []
    assert last(machine).dropped == (moves[2],)
    assert machine.queue == () and machine.is_round_open


def test_the_last_move_dropped_ends_the_round() -> None:
    machine = balancer(building(VIEW, move(0, to="site-6")))
    machine.awaited = machine.plans = 1
    machine.step(Planned(number=1, moves=(move(0, slot=1),)))
    assert machine.is_round_open
    assert machine.step(SiteRoles(draining=("site-5",))) == []
    assert last(machine).ended == "done"


# Answers.


def test_an_overtaken_plan_is_ignored() -> None:
    machine = balancer()
    late = asked(machine)
    machine.step(Planned(number=late.number, moves=()))
    asked(machine)
    assert_ignored(machine, Planned(number=late.number, moves=(move(0),)))


def test_a_plan_that_a_death_has_overtaken_is_ignored() -> None:
    machine = balancer()
    late = asked(machine)
    machine.step(without(VIEW, "site-6"))
    assert_ignored(machine, Planned(number=late.number, moves=(move(0),)))


@pytest.mark.parametrize("number", [0, -1, 2])
def test_a_plan_that_was_never_asked_for_is_refused(number: int) -> None:
    machine = balancer()
    asked(machine)
    assert_refused(machine, Planned(number=number, moves=()), by="Balancer")


def test_a_plan_of_number_zero_is_refused_though_none_is_awaited() -> None:
    assert_refused(balancer(), Planned(number=0, moves=()), by="Balancer")


# Views.


def test_a_view_that_is_known_is_ignored() -> None:
    machine = balancer(replace(VIEW, number=3))
    assert_ignored(machine, replace(VIEW, number=3))
    assert_ignored(machine, replace(VIEW, number=2, dead=frozenset({"site-1"})))


def test_a_death_ends_the_round_and_drops_what_has_not_begun() -> None:
    machine = balancer()
    moves = [move(p) for p in range(4)]
    begin(machine, *moves)
    view = building(VIEW, *moves[:2])
    machine.step(view)
    machine.step(Tick(at_s=11.0))
    view = without(view, "site-3")
    assert machine.step(view) == []
    assert not machine.is_round_open
    assert (last(machine).ended, last(machine).took_s) == ("death", 1.0)
    assert last(machine).dropped == tuple(moves[2:])
    # What has begun goes on, and until it has ended no other plan is asked for.
    assert [each.move for each in machine.begun] == moves[:2]
    view = replace(built(view, *moves[:2]), copies=(*VIEW.copies[:2], (("site-6", "site-4"),), VIEW.copies[3]))
    assert machine.step(replace(view, standby=building(VIEW, *moves[:2]).standby)) == []
    assert machine.step(work("site-1", 1)) == []
    machine.step(replace(built(view, *moves[:2]), number=view.number + 1))
    assert machine.begun == () and asked(machine)


def test_a_death_after_all_have_begun_ends_the_round_too() -> None:
    machine = balancer()
    begin(machine, move(0))
    machine.step(without(VIEW, "site-3"))
    assert (last(machine).ended, last(machine).dropped) == ("death", ())


def test_the_death_of_an_end_does_not_end_a_round() -> None:
    machine = balancer()
    moves = [move(p) for p in range(3)]
    begin(machine, *moves)
    machine.step(without(VIEW, "ingress"))
    assert machine.is_round_open and machine.queue == (moves[2],)


def test_a_site_that_died_is_forgotten() -> None:
    machine = balancer()
    begin(machine)
    asked(machine, work("site-5", 9, stages=(stage_work(catching_up=(0,)),)))
    machine.step(without(VIEW, "site-5"))
    assert "site-5" not in machine.reports and machine.catching == {"site-6": frozenset()}


def test_a_move_whose_copy_is_not_built_has_failed() -> None:
    machine = balancer()
    first, second = move(0), move(1)
    begin(machine, first, second)
    view = building(VIEW, first, second)
    machine.step(view)
    gone = replace(view, number=view.number + 1, standby=view.standby[1:])
    assert machine.step(gone) == []
    assert last(machine).failed == (first,)
    assert machine.step(built(gone, second)) == []
    assert last(machine).ended == "done"


def test_a_move_to_a_site_that_died_has_failed() -> None:
    machine = balancer()
    begin(machine, move(0))
    machine.step(without(VIEW, "site-5"))
    assert (last(machine).failed, last(machine).ended, machine.begun) == ((move(0),), "death", ())


def test_a_move_done_to_a_site_that_died_in_the_same_view_has_failed() -> None:
    machine = balancer()
    begin(machine, move(0))
    view = building(VIEW, move(0))
    machine.step(view)
    machine.step(without(built(view, move(0)), "site-5"))
    assert last(machine).failed == (move(0),)


def test_a_move_that_is_in_no_view_after_five_seconds_has_failed_and_the_next_begins() -> None:
    machine = balancer()
    moves = [move(0), move(1), move(2)]
    begin(machine, *moves)
    view = building(VIEW, moves[1])
    assert machine.step(view) == []
    assert machine.step(Tick(at_s=10.0 + MOVE_SEEN_AFTER_S)) == []
    assert last(machine).failed == ()
    assert machine.step(Tick(at_s=10.1 + MOVE_SEEN_AFTER_S)) == [moves[2]]
    assert last(machine).failed == (moves[0],)
    # One that was seen may take as long as it needs.
    assert machine.step(Tick(at_s=10.05 + MOVE_SEEN_AFTER_S + 0.1)) == []
    assert [each.move for each in machine.begun] == [moves[1], moves[2]]


def test_a_round_of_which_no_move_is_seen_ends() -> None:
    machine = balancer()
    begin(machine, move(0))
    machine.step(Tick(at_s=20.0))
    assert (last(machine).failed, last(machine).ended, last(machine).took_s) == ((move(0),), "done", 10.0)


def test_a_move_that_is_overdue_after_a_death_has_failed_in_the_round_that_ended() -> None:
    machine = balancer()
    begin(machine, move(0))
    machine.step(without(VIEW, "site-6"))
    machine.step(Tick(at_s=20.0))
    assert (last(machine).failed, last(machine).ended, last(machine).took_s) == ((move(0),), "death", 0.0)
    assert machine.begun == ()


def test_moves_that_have_become_impossible_are_dropped_when_none_is_under_way() -> None:
    machine = balancer()
    moves = [move(0), move(1), move(2)]
    begin(machine, *moves)
    # A user has moved partition 2 there by hand.
    view = built(VIEW, move(2, slot=1))
    assert machine.step(view) == [] and machine.queue == (moves[2],)
    assert machine.step(built(view, *moves[:2])) == []
    assert (last(machine).dropped, last(machine).ended) == ((moves[2],), "done")


# Gain.


def test_gain_is_measured_a_second_after_the_round() -> None:
    machine = balancer()
    guess(machine, time_s=2.0)
    begin(machine, move(0))
    view = built(VIEW, move(0))
    machine.step(view)
    guess(machine, time_s=1.5)
    machine.step(Tick(at_s=10.9))
    begin(machine)
    assert last(machine).gain_measured is None
    machine.step(Tick(at_s=10.0 + GAIN_MEASURED_AFTER_S))
    begin(machine)
    assert last(machine).gain_measured == 0.25
    # It is measured once.
    guess(machine, time_s=9.0)
    begin(machine)
    assert last(machine).gain_measured == 0.25


def test_without_reports_before_the_round_no_gain_is_measured() -> None:
    machine = balancer()
    begin(machine, move(0))
    machine.step(built(VIEW, move(0)))
    machine.step(Tick(at_s=20.0))
    asked(machine)
    assert last(machine).gain_measured is None


def test_no_gain_is_measured_of_a_round_that_a_death_has_ended() -> None:
    machine = balancer()
    guess(machine, time_s=2.0)
    begin(machine, move(0))
    machine.step(without(VIEW, "site-6"))
    machine.step(Tick(at_s=20.0))
    machine.step(work("site-1", 1))
    assert last(machine).gain_measured is None


# Slow sites.


def test_slow_sites_are_marked_when_they_change() -> None:
    machine = balancer()
    begin(machine)
    guess(machine, slow_sites=frozenset({"site-2", "site-1"}))
    slow, question = machine.step(work("site-1", 1))
    assert slow == Slow(nodes=("site-1", "site-2")) and isinstance(question, PlanRound)
    assert machine.step(work("site-1", 2)) == []
    guess(machine, slow_sites=frozenset())
    assert machine.step(work("site-1", 3)) == [Slow(nodes=())]


def test_a_site_with_single_copies_only_is_not_marked() -> None:
    """The others cannot go on without it: rows kept for it would put off the moment at which its copies can leave."""
    single = replace(VIEW, copies=tuple(tuple(copies[:1] for copies in stage) for stage in VIEW.copies))
    machine = balancer(single)
    guess(machine, slow_sites=frozenset({"site-1"}))
    assert not [effect for effect in machine.step(work("site-1", 1)) if isinstance(effect, Slow)]


def test_a_slow_site_without_copies_stays_marked() -> None:
    machine = balancer(replace(VIEW, nodes=(*VIEW.nodes, "site-99")))
    guess(machine, slow_sites=frozenset({"site-99"}))
    assert Slow(nodes=("site-99",)) in machine.step(work("site-1", 1))


def test_slow_sites_of_the_view_are_known() -> None:
    machine = balancer(replace(VIEW, slow=frozenset({"site-1"})))
    guess(machine, slow_sites=frozenset({"site-1"}))
    [question] = machine.step(work("site-1", 1))
    assert isinstance(question, PlanRound)


def test_a_dead_site_is_not_slow() -> None:
    machine = balancer(replace(VIEW, slow=frozenset({"site-1"})))
    guess(machine, slow_sites=frozenset({"site-1"}))
    assert machine.step(without(VIEW, "site-1")) == [Slow(nodes=())]


# The table.


def every_kind() -> Iterator[Any]:
    """Messages of every kind, sound and not."""
    for node in ("site-1", "site-6", "ingress", "site-9"):
        for number in (1, 2):
            yield work(node, number)
            yield work(node, number, view=2)
            yield work(node, number, elapsed_s=0.0)
    yield work("site-2", 3, stages=(stage_work(catching_up=(1,)),))
    yield from (Tick(at_s=at_s) for at_s in (9.0, 10.0, 16.0))
    moved = (move(0), move(1), move(1, slot=1), move(2), move(9), move(3, to="site-6"))
    yield from (Planned(number=number, moves=moves) for number in (0, 1, 2) for moves in ((), moved))
    view = building(VIEW, move(0), move(1))
    for each in (VIEW, view, built(view, move(0)), without(view, "site-5"), without(VIEW, "site-2")):
        yield each
        yield replace(each, number=4)
    yield SiteRoles()
    yield SiteRoles(spares=("site-6",), draining=("site-5", "site-9"))


def test_every_kind_of_message_is_tried() -> None:
    assert {type(message) for message in every_kind()} == set(get_args(ToBalancer))


def test_in_every_state_that_some_messages_reach_a_message_is_taken_or_changes_nothing() -> None:
    from flux.protocols.machine import Refused

    # Given every state that three of the messages reach,
    states: dict[Any, Balancer] = {}
    todo = [(balancer(), 0)]
    refused = 0
    while todo:
        machine, depth = todo.pop(0)
        if machine.key() in states:
            continue
        states[machine.key()] = machine
        # when any message comes,
        for message in every_kind() if depth < 3 else ():
            twin = machine.clone()
            try:
                twin.step(message)
            except Refused:
                # then it is refused and nothing has changed,
                assert twin.key() == machine.key()
                refused += 1
            else:
                # or what no policy may break holds.
                assert_sound(twin)
                todo.append((twin, depth + 1))
    assert refused and len(states) > 500


def assert_sound(machine: Balancer) -> None:
    begun = [each.move for each in machine.begun]
    assert len({(each.stage, each.partition) for each in begun}) == len(begun)
    assert max([[each.to for each in begun].count(to) for to in SITES]) <= MOVES_TO_A_SITE_MAX
    assert all(each.partition < 9 for each in begun)
    assert not machine.queue or machine.is_round_open
    assert not (machine.is_round_open and not machine.queue and not machine.begun)
