"""Level: when moves are due, and when they are worth it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given

from flux.balance import Level, Moment, Move, PartitionStatistics, Proposal, Round, SiteStatistics, Statistics
from flux.balance.level import GAIN_VOLATILE_MIN, LAG_IDLE_MAX, LAG_MIN, PERSIST_MAX_S, _persist_s
from flux.types.errors import PlanError

from .any_statistics import any_statistics, assert_allowed

NAMES = [f"site-{n}" for n in (1, 2, 3, 4)]
AT_S = 100.0
PRESSED = Moment(
    at_s=AT_S,
    top="site-1",
    time_s=2.0,
    ideal_s=1.25,
    median_s=1.0,
    speed_error=0.003,
    samples=10,
    lag=0.9,
    lag_least=0.0,
)


def plan(
    *moments: Moment,
    rounds: tuple[Round, ...] = (),
    error: float = 0.003,
    policy: Level | None = None,
    asked_s: float = 0.0,
) -> Proposal:
    """What Level plans for site-1 at half speed, after these moments, 0.1 s apart, the last one now."""
    timed = tuple(replace(m, at_s=AT_S - 0.1 * (len(moments) - 1 - n)) for n, m in enumerate(moments))
    times = {name: 2.0 if name == "site-1" else 1.0 for name in NAMES}
    sites = tuple(
        SiteStatistics(name=name, speed=8 / times[name], time_s=times[name], speed_error=error) for name in NAMES
    )
    partitions = [PartitionStatistics(stage=1, partition=p, work=1.0, copies=(NAMES[p % 4],)) for p in range(32)]
    return (policy or Level()).plan(
        Statistics(at_s=AT_S, sites=sites, partitions=partitions, moments=timed, rounds=rounds, asked_s=asked_s)
    )


def ended(began_s: float, ended_s: float, *moves: tuple[str, str]) -> Round:
    """A round of moves from one site to another."""
    return Round(
        number=1,
        why="",
        moves=tuple(Move(stage=1, partition=p, slot=0, to=to) for p, (_, to) in enumerate(moves)),
        givers=tuple(giver for giver, _ in moves),
        began_s=began_s,
        gain_expected=0.1,
        ended="done",
        ended_s=ended_s,
    )


def test_moves_are_due_after_half_a_second_without_a_break() -> None:
    assert plan() == () and plan(*[PRESSED] * 5) == ()
    proposal = plan(*[PRESSED] * 6)
    assert proposal and {move.to for move in proposal} <= set(NAMES[1:])
    assert proposal.why == "site-1 takes 1.60 times the time per position of perfect balance"
    assert proposal.gain_expected is not None and proposal.gain_expected > 0.3


def test_a_moment_is_judged_once() -> None:
    assert plan(*[PRESSED] * 6, asked_s=AT_S - 0.01)
    assert plan(*[PRESSED] * 6, asked_s=AT_S) == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"lag": LAG_MIN},
        {"lag_least": LAG_IDLE_MAX},
        {"top": "site-2"},
        {"samples": 3},
        {"speed_error": 0.2},
        {"ideal_s": 1.995},
    ],
    ids=str,
)
def test_a_break_of_any_kind_begins_the_time_anew(changed: dict[str, object]) -> None:
    weak = replace(PRESSED, **changed)  # type: ignore[arg-type]
    assert plan(*[PRESSED] * 3, weak, *[PRESSED] * 5) == ()
    assert plan(weak, *[PRESSED] * 6)


def test_a_site_that_takes_far_longer_needs_less_time_and_no_lag() -> None:
    severe = replace(PRESSED, time_s=2.6, lag=0.0, lag_least=1.0)
    assert plan(*[severe] * 3) == ()
    assert plan(*[severe] * 4)


def test_only_what_was_seen_after_the_last_round_counts() -> None:
    assert plan(*[PRESSED] * 20, rounds=(ended(98.0, AT_S - 0.4),)) == ()
    assert plan(*[PRESSED] * 20, rounds=(ended(98.0, AT_S - 0.7),))


def test_a_gain_within_the_doubt_of_the_speeds_is_not_taken() -> None:
    assert plan(*[PRESSED] * 6, error=0.2) == ()


def test_a_site_that_was_added_takes_its_share_at_once() -> None:
    added = replace(PRESSED, has_new_site=True, lag=0.0)
    assert plan(added).why == "a site without copies was added"
    assert plan(replace(added, ideal_s=2.0)) == ()


# Volatile speeds.

VOLATILE = replace(PRESSED, is_volatile=True, samples=1, speed_error=0.2)


def test_by_averages_the_top_may_change_and_the_lag_may_come_and_go() -> None:
    # Given a top that changes as the load goes on, and a lag that comes and goes,
    moments = [
        replace(VOLATILE, top=NAMES[n % 2], lag=1.0 if n in (2, 3) else 0.0, lag_least=0.0 if n == 2 else 0.5)
        for n in range(6)
    ]
    # then moves are due, and at speeds that do not change they would not be.
    assert plan(*moments)
    assert plan(*[replace(moment, is_volatile=False, samples=10, speed_error=0.003) for moment in moments]) == ()


def test_by_averages_nothing_moves_while_no_site_holds_up_the_others() -> None:
    assert plan(*[replace(VOLATILE, lag=0.4)] * 50) == ()
    assert plan(*[replace(VOLATILE, lag_least=0.2)] * 50) == ()


def test_by_averages_a_small_gain_is_chance() -> None:
    least = 1 - GAIN_VOLATILE_MIN
    assert plan(*[replace(VOLATILE, ideal_s=2.0 * least + 0.01)] * 50) == ()
    assert plan(*[replace(VOLATILE, ideal_s=2.0 * least - 0.01)] * 50)


def test_by_averages_moves_wait_as_long_as_the_damping_asks() -> None:
    there, back = [("site-1", "site-2")] * 4, [("site-2", "site-1")] * 4
    rounds = (ended(90.0, 90.5, *there), ended(94.0, 94.5, *back))
    assert _persist_s(rounds, 0.5) == 6.0
    assert plan(*[VOLATILE] * 54, rounds=rounds) == ()
    assert plan(*[VOLATILE] * 70, rounds=(rounds[0], replace(rounds[1], ended_s=93.0)))


# Damping.


def test_rounds_that_take_back_what_others_did_make_the_next_wait_longer() -> None:
    there, back = [("site-1", "site-2")] * 4, [("site-2", "site-1")] * 4
    first, second = ended(10.0, 11.0, *there), ended(14.0, 15.0, *back)
    assert _persist_s((first,), 0.5) == 0.5
    assert _persist_s((first, second), 0.5) == 6.0
    third = ended(24.0, 25.0, *there)
    assert _persist_s((first, second, third), 0.5) == 15.0
    assert _persist_s((first, replace(second, began_s=131.0)), 0.5) == 0.5
    many = tuple(ended(10.0 * n, 10.0 * n + 1, *(there if n % 2 else back)) for n in range(1, 12))
    assert _persist_s(many, 0.5) == PERSIST_MAX_S


def test_a_quiet_time_halves_the_wait() -> None:
    there, back = [("site-1", "site-2")] * 4, [("site-2", "site-1")] * 4
    rounds = (ended(10.0, 11.0, *there), ended(14.0, 15.0, *back), ended(140.0, 141.0, ("site-3", "site-4")))
    assert _persist_s(rounds, 0.5) == 3.0


def test_one_copy_among_many_that_goes_back_is_not_a_reversal() -> None:
    rounds = (ended(10.0, 11.0, *[("site-1", "site-2")] * 4), ended(14.0, 15.0, ("site-2", "site-1")))
    assert _persist_s(rounds, 0.5) == 0.5


def test_what_level_needs_is_checked() -> None:
    for wrong in ({"tolerance": 0.0}, {"tolerance": 1.0}, {"persist_s": -1.0}, {"persist_s": math.nan}):
        with pytest.raises(PlanError, match="Level needs a tolerance between 0 and 1"):
            Level(**wrong)


@given(of=any_statistics())
def test_of_any_statistics_a_plan_breaks_no_rule_and_gains(of: Statistics) -> None:
    proposal = Level().plan(of)
    assert_allowed(of, list(proposal))
    assert not proposal or of.gain(proposal) > 0
