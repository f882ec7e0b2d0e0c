"""Statistics: what moves would change, as far as it is known, and values that are made when they are looked at."""

from __future__ import annotations

from flux.balance import Moment, Move, PartitionStatistics, Round, SiteStatistics, Statistics
from flux.balance.statistics import LazySequence

SITES = tuple(SiteStatistics(name=f"site-{n}", speed=float(n), time_s=0.0) for n in (1, 2))
PARTITIONS = [PartitionStatistics(stage=1, partition=p, work=2.0, copies=("site-1", "")) for p in range(2)]
STATISTICS = Statistics(at_s=9.0, sites=SITES, partitions=PARTITIONS)


def move(partition: int, slot: int = 0) -> Move:
    return Move(stage=1, partition=partition, slot=slot, to="site-2")


def test_times_after_moves_are_work_by_speed_and_lost_copies_have_none() -> None:
    assert STATISTICS.times_s(()) == {"site-1": 4.0, "site-2": 0.0}
    assert STATISTICS.times_s([move(0)]) == {"site-1": 2.0, "site-2": 1.0}


def test_gain_is_the_part_of_the_greatest_time_that_moves_save() -> None:
    assert STATISTICS.gain([move(0)]) == 0.5
    assert STATISTICS.gain([move(0, slot=1), move(1, slot=1)]) == 0.0
    assert Statistics(at_s=0.0, sites=(), partitions=()).gain(()) == 0.0


def test_without_a_round_the_last_one_ended_at_zero() -> None:
    assert STATISTICS.round_ended_s == 0.0
    begun = Round(number=1, why="", moves=(), givers=(), began_s=1.0, gain_expected=0.0)
    ended = Round(number=2, why="", moves=(), givers=(), began_s=1.0, gain_expected=0.0, ended="done", ended_s=3.0)
    assert Statistics(at_s=9.0, sites=(), partitions=(), rounds=(ended, begun)).round_ended_s == 0.0
    assert Statistics(at_s=9.0, sites=(), partitions=(), rounds=(begun, ended)).round_ended_s == 3.0


def test_a_site_without_a_report_is_not_measured() -> None:
    assert SITES[0].is_measured
    assert not SiteStatistics(name="site-3", speed=1.0, time_s=0.0, speed_error=float("inf")).is_measured


def test_the_most_that_can_be_gained_is_by_the_ideal_time() -> None:
    moment = Moment(
        at_s=0.0, top="site-1", time_s=4.0, ideal_s=1.0, median_s=1.0, speed_error=0.0, samples=9, lag=0, lag_least=0
    )
    assert moment.gain_most == 0.75
    idle = Moment(at_s=0.0, top="", time_s=0, ideal_s=0, median_s=0, speed_error=0, samples=0, lag=0, lag_least=0)
    assert idle.gain_most == 0.0


def test_lazy_values_are_made_once_and_only_if_they_are_looked_at() -> None:
    made = []

    def make() -> list[int]:
        made.append(1)
        return [3, 4, 5]

    lazy = LazySequence(make)
    assert made == []
    assert (len(lazy), lazy[0], lazy[1:], list(lazy), 4 in lazy) == (3, 3, (4, 5), [3, 4, 5], True)
    assert made == [1]
