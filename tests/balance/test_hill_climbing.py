"""HillClimbing: the thesis's policy, its phases and thresholds. Reference: 4.4.3."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from flux.balance import HillClimbing, Move, PartitionStatistics, ReceivedWork, Round, SiteStatistics, Statistics
from flux.protocols.balance_messages import StageWork, Work
from flux.types.errors import PlanError

from .any_statistics import any_statistics, assert_allowed

POLICY = HillClimbing(collect_min_s=1.0)


def statistics(
    busy: dict[str, float],
    rows: dict[int, int],
    copies: dict[int, tuple[str, ...]],
    at_s: float = 1.0,
    asked_s: float = 0.0,
    rounds: tuple[Round, ...] = (),
) -> Statistics:
    """Sites with a utilisation each, and the rows of each partition since the last round."""
    reports = []
    for name, part in busy.items():
        held = tuple((p, count) for p, count in rows.items() if name in copies[p])
        stage = StageWork(stage=1, positions=10, rows=held, busy_s=part)
        work = Work(node=name, number=1, view=1, elapsed_s=1.0, busy_s=part, stages=(stage,))
        reports.append(ReceivedWork(at_s=at_s, work=work))
    return Statistics(
        at_s=at_s,
        asked_s=asked_s,
        sites=tuple(SiteStatistics(name=name, speed=1.0, time_s=0.0) for name in busy),
        partitions=[PartitionStatistics(stage=1, partition=p, work=rows[p], copies=copies[p]) for p in rows],
        reports=reports,
        rounds=rounds,
    )


BUSY = {"site-1": 0.8, "site-2": 0.4}
ROWS = {0: 10, 1: 30, 2: 40, 3: 40}
COPIES = {0: ("site-1",), 1: ("site-1",), 2: ("site-1",), 3: ("site-2",)}


def test_the_partition_with_the_most_rows_that_lessens_the_difference_moves() -> None:
    # 40 of 80 rows would turn the difference round (0.4 and 0.8); 30 makes it 0.5 and 0.7.
    assert POLICY.plan(statistics(BUSY, ROWS, COPIES)) == (Move(stage=1, partition=1, slot=0, to="site-2"),)


def test_the_reason_names_the_most_and_the_least_utilised() -> None:
    assert POLICY.plan(statistics(BUSY, ROWS, COPIES)).why == "utilisation of site-1 0.80, of site-2 0.40"


def test_the_most_utilised_is_paired_with_the_least_and_so_on() -> None:
    busy = {"site-1": 0.9, "site-2": 0.2, "site-3": 0.8, "site-4": 0.4, "site-5": 0.5}
    rows = dict.fromkeys(range(20), 10)
    copies = {p: (f"site-{p % 5 + 1}",) for p in range(20)}
    moves = POLICY.plan(statistics(busy, rows, copies))
    assert [(copies[move.partition][0], move.to) for move in moves] == [("site-1", "site-2"), ("site-3", "site-4")]


@pytest.mark.parametrize(
    ("busy", "policy"),
    [
        ({"site-1": 0.8, "site-2": 0.7}, POLICY),
        ({"site-1": 1.0, "site-2": 0.82}, replace(POLICY, utilisation=0.8)),
        ({"site-1": 0.8, "site-2": 0.4}, replace(POLICY, imbalance=2.1)),
    ],
)
def test_within_the_thresholds_nothing_moves(busy: dict[str, float], policy: HillClimbing) -> None:
    assert policy.plan(statistics(busy, ROWS, COPIES)) == ()


def test_a_partition_with_a_copy_at_the_receiver_stays() -> None:
    copies = {**COPIES, 1: ("site-1", "site-2")}
    moves = POLICY.plan(statistics(BUSY, ROWS, copies))
    assert [move.partition for move in moves] == [2]


def test_a_receiver_without_rows_is_judged_by_the_rate_of_the_donor() -> None:
    busy = {"site-1": 0.8, "site-2": 0.0}
    copies = dict.fromkeys(ROWS, ("site-1",))
    [move] = POLICY.plan(statistics(busy, ROWS, copies))
    assert move.partition == 2


def test_reserved_sites_take_no_part() -> None:
    given = statistics(BUSY, ROWS, COPIES)
    sites = tuple(replace(site, is_reserved=site.name == "site-2") for site in given.sites)
    assert POLICY.plan(replace(given, sites=sites)) == ()


def test_without_reports_nothing_moves() -> None:
    assert POLICY.plan(replace(statistics(BUSY, ROWS, COPIES), reports=())) == ()


# Phases.


def test_a_phase_is_judged_once_at_its_end() -> None:
    assert POLICY.plan(statistics(BUSY, ROWS, COPIES, at_s=0.9)) == ()
    assert POLICY.plan(statistics(BUSY, ROWS, COPIES, at_s=1.1, asked_s=0.9))
    assert POLICY.plan(statistics(BUSY, ROWS, COPIES, at_s=1.2, asked_s=1.1)) == ()
    assert POLICY.plan(statistics(BUSY, ROWS, COPIES, at_s=2.0, asked_s=1.9))


def ended(ended_s: float, took_s: float) -> Round:
    began_s = ended_s - took_s
    return Round(number=1, why="", moves=(), givers=(), began_s=began_s, gain_expected=0, ended="done", ended_s=ended_s)


@pytest.mark.parametrize(
    ("at_s", "asked_s", "is_end"),
    [(13.9, 10.0, False), (14.0, 13.9, True), (15.9, 14.0, False), (16.0, 15.9, True), (17.0, 16.9, True)],
)
def test_a_collection_takes_as_long_as_the_moves_took_and_then_half(at_s: float, asked_s: float, is_end: bool) -> None:
    # The moves took 4 s and ended at 10: phases end at 14, 16, and from then on every second.
    given = statistics(BUSY, ROWS, COPIES, at_s=at_s, asked_s=asked_s, rounds=(ended(10.0, 4.0),))
    assert bool(POLICY.plan(given)) == is_end


def test_what_hill_climbing_needs_is_checked() -> None:
    for wrong in ({"imbalance": 0.9}, {"utilisation": 0.0}, {"utilisation": 1.1}, {"collect_min_s": 0.0}):
        with pytest.raises(PlanError, match=next(iter(wrong))):
            HillClimbing(**wrong)


@given(of=any_statistics())
def test_of_any_statistics_a_plan_breaks_no_rule(of: Statistics) -> None:
    assert_allowed(of, list(HillClimbing().plan(of)))


@given(of=any_statistics())
def test_of_any_statistics_a_receiver_is_less_utilised_and_is_not_predicted_to_be_over_full(of: Statistics) -> None:
    utilisation = {received.work.node: received.work.busy_s / received.work.elapsed_s for received in of.reports}
    rows = {received.work.node: dict(received.work.stages[0].rows) for received in of.reports}
    parts = {part.partition: part for part in of.partitions}
    for move in HillClimbing().plan(of):
        donor = parts[move.partition].copies[move.slot]
        assert utilisation[donor] >= utilisation[move.to]
        total = sum(rows[move.to].values())
        rate = utilisation[move.to] / total if total else utilisation[donor] / sum(rows[donor].values())
        assert utilisation[move.to] + rate * rows[donor][move.partition] <= 1
