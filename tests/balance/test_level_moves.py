"""The moves that bring every site near the same time per position."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flux.balance import Move, PartitionStatistics, SiteStatistics, Statistics
from flux.balance.level_moves import level_moves

from .any_statistics import any_statistics, assert_allowed

NAMES = ("site-1", "site-2", "site-3", "site-4")


def statistics(
    speeds: dict[str, float], placed: list[tuple[float, tuple[str, ...]]], reserved: tuple[str, ...] = ()
) -> Statistics:
    return Statistics(
        at_s=1.0,
        sites=tuple(
            SiteStatistics(name=name, speed=speed, time_s=0.0, is_reserved=name in reserved)
            for name, speed in speeds.items()
        ),
        partitions=[
            PartitionStatistics(stage=1, partition=p, work=work, copies=copies)
            for p, (work, copies) in enumerate(placed)
        ],
    )


def greatest(of: Statistics, moves: list[Move]) -> float:
    return max(of.times_s(moves).values())


@given(of=any_statistics(), tolerance=st.sampled_from([0.001, 0.01, 0.2]))
def test_a_plan_breaks_no_rule_and_never_makes_the_greatest_time_worse(of: Statistics, tolerance: float) -> None:
    moves = level_moves(of, tolerance)
    assert_allowed(of, moves)
    assert greatest(of, moves) <= greatest(of, []) * (1 + 1e-9)


@settings(max_examples=20)
@given(speeds=st.lists(st.floats(0.5, 2.0), min_size=4, max_size=4), copies=st.integers(1, 2))
def test_many_equal_partitions_are_placed_within_the_tolerance_of_the_least_possible(
    speeds: list[float], copies: int
) -> None:
    count = 200
    places = [tuple(NAMES[(p + c) % 4] for c in range(copies)) for p in range(count)]
    of = statistics(dict(zip(NAMES, speeds, strict=True)), [(1.0, place) for place in places])
    # A site has at most one copy of each partition: near that bound what is left is far harder to place.
    assume(copies * max(speeds) < 0.9 * sum(speeds))
    least, step = count * copies / sum(speeds), 1 / min(speeds)  # No placement is finer than a copy.
    assert greatest(of, level_moves(of, tolerance=0.01)) <= least * 1.01 + step


def test_one_of_four_at_half_speed_gives_what_is_too_much_and_no_more() -> None:
    placed = [(1.0, (NAMES[p % 4], NAMES[(p + 1) % 4])) for p in range(96)]
    of = statistics({"site-1": 1.0, "site-2": 0.5, "site-3": 1.0, "site-4": 1.0}, placed)
    moves = level_moves(of, 0.01)
    assert len(moves) == 21 and {placed[m.partition][1][m.slot] for m in moves} == {"site-2"}
    assert greatest(of, moves) == 55.0


def test_what_is_level_stays() -> None:
    of = statistics(dict.fromkeys(NAMES, 1.0), [(1.0, (name,)) for name in NAMES])
    assert level_moves(of, 0.01) == []


def test_without_partitions_or_takers_nothing_moves() -> None:
    assert level_moves(statistics(dict.fromkeys(NAMES, 1.0), []), 0.01) == []
    assert level_moves(statistics({"site-1": 1.0}, [(1.0, ("site-1",))], reserved=("site-1",)), 0.01) == []
    assert level_moves(statistics({"site-1": 1.0}, [(1.0, ("site-1",))]), 0.01) == []


def test_the_heaviest_that_fits_goes_first_and_of_equals_the_smaller_state() -> None:
    of = statistics({"site-1": 1.0, "site-2": 1.0}, [(work, ("site-1",)) for work in (1.0, 5.0, 4.0)])
    assert [move.partition for move in level_moves(of, 0.01)] == [1]
    sizes = [
        PartitionStatistics(stage=1, partition=p, work=1.0, copies=("site-1",), state_bytes=size)
        for p, size in enumerate((7, 3))
    ]
    equal = Statistics(at_s=1.0, sites=of.sites, partitions=sizes)
    assert [move.partition for move in level_moves(equal, 0.01)] == [1]


def test_copies_are_exchanged_where_no_single_move_helps() -> None:
    # 7 and 5 against 6 and 2: neither 7 nor 5 fits, and 5 for 2 makes 9 and 11.
    of = statistics(
        {"site-1": 1.0, "site-2": 1.0}, [(w, ("site-1",)) for w in (7, 5)] + [(w, ("site-2",)) for w in (6, 2)]
    )
    moves = level_moves(of, 0.01)
    assert Counter(move.to for move in moves) == {"site-1": 1, "site-2": 1}
    assert greatest(of, moves) < 12


def test_no_copy_is_exchanged_with_a_site_that_is_drained() -> None:
    placed = [(w, ("site-1",)) for w in (7, 5)] + [(w, ("site-2",)) for w in (6, 2)]
    of = statistics({"site-1": 1.0, "site-2": 1.0}, placed, reserved=("site-1",))
    assert not any(move.to == "site-1" for move in level_moves(of, 0.01))


def test_givers_take_turns() -> None:
    placed = [(1.0, ("site-1",))] * 8 + [(1.0, ("site-2",))] * 8
    of = statistics(dict.fromkeys(NAMES, 1.0), placed)
    givers = [placed[move.partition][1][0] for move in level_moves(of, 0.01)]
    assert givers == ["site-1", "site-2"] * 4


def test_a_copy_is_relayed_where_the_fast_site_has_all_that_the_slowest_could_give() -> None:
    # Site 1 holds what site 3 has too, and site 2 is as full: it takes one from site 1 and gives another one.
    placed = [(1.0, ("site-1", "site-3"))] * 4 + [(1.0, ("site-2", "site-4"))] * 3
    of = statistics({"site-1": 1.0, "site-2": 1.0, "site-3": 4.0, "site-4": 1.0}, placed)
    assert greatest(of, []) == 4.0
    assert greatest(of, level_moves(of, 0.01)) <= 3.0


@pytest.mark.parametrize("speed", [0.05, 0.2])
def test_the_level_is_at_least_the_heaviest_partition_on_the_fastest_site(speed: float) -> None:
    of = statistics({"site-1": speed, "site-2": 2.0}, [(10.0, ("site-1",)), (1.0, ("site-2",))])
    assert greatest(of, level_moves(of, 0.01)) <= max(5.5, 1 / speed + 1e-9)
