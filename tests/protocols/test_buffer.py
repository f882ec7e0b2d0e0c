"""The DTSB: what leaves, and when. Reference: fig. 3.4."""

from __future__ import annotations

import pytest

from flux.protocols.buffer import Buffer

from .views import run

EVERYTHING = (0, 100)
A, B, C = (0, "a"), (0, "b"), (1, "c")  # Destinations: edge and node.


def pair(bound_rows: int = 3) -> Buffer:
    buffer = Buffer(bound_rows)
    buffer.entitle(A)
    buffer.entitle(B)
    return buffer


def test_a_run_leaves_when_every_destination_has_it() -> None:
    buffer = pair()
    buffer.put(run(0, 2, rows=2))
    buffer.ack(A, 2)
    assert buffer.between(*EVERYTHING) == (run(0, 2, rows=2),)
    buffer.ack(B, 2)
    assert buffer.between(*EVERYTHING) == ()
    assert (buffer.rows, buffer.dropped) == (0, 2)


def test_a_run_half_acknowledged_stays_whole() -> None:
    buffer = pair()
    buffer.put(run(0, 5))
    buffer.ack(A, 5)
    buffer.ack(B, 4)
    assert buffer.dropped == 4
    assert buffer.runs == [run(0, 5)]


def test_the_runs_of_a_range_are_those_with_anything_in_it() -> None:
    buffer = pair()
    for after, upto in ((0, 2), (2, 5), (5, 6)):
        buffer.put(run(after, upto))
    assert buffer.between(2, 5) == (run(2, 5),)
    assert buffer.between(1, 3) == (run(0, 2), run(2, 5))
    assert buffer.between(6, 9) == ()


def test_runs_of_a_copy_that_was_built_may_overlap_those_of_others() -> None:
    buffer = pair(bound_rows=9)
    buffer.put(run(0, 4))
    buffer.put(run(1, 2))
    assert buffer.between(0, 2) == (run(0, 4), run(1, 2))
    buffer.ack(A, 2)
    buffer.ack(B, 3)
    assert (buffer.runs, buffer.rows) == ([run(0, 4)], 1)


def test_dangling_acks_release_a_run_as_it_is_put() -> None:
    buffer = pair()
    buffer.ack(A, 5)
    buffer.ack(B, 3)
    buffer.put(run(0, 3))
    assert (buffer.rows, buffer.dropped) == (0, 3)


def test_without_any_destination_nothing_is_dropped() -> None:
    buffer = Buffer(3)
    buffer.put(run(0, 1))
    assert (buffer.rows, buffer.dropped) == (1, 0)


def test_a_dead_destination_needs_nothing() -> None:
    buffer = pair()
    buffer.put(run(0, 1))
    buffer.ack(A, 1)
    buffer.ack_all(B)
    assert buffer.rows == 0
    assert set(buffer.floors) == {A}


def test_the_last_destination_takes_its_needs_along_but_no_rows() -> None:
    buffer = pair()
    buffer.put(run(0, 1))
    buffer.ack_all(A)
    buffer.ack_all(B)
    assert buffer.rows == 1


def test_a_destination_entitled_late_starts_behind_what_was_dropped() -> None:
    buffer = pair()
    buffer.put(run(0, 1))
    buffer.ack(A, 1)
    buffer.ack(B, 1)
    buffer.entitle(C)
    buffer.entitle(A)
    assert buffer.floors == {A: 1, B: 1, C: 1}


def test_rows_of_partitions_that_left_do_not_count() -> None:
    buffer = pair()
    buffer.put(run(0, 3, rows=2))
    buffer.forget(frozenset({1}))
    buffer.put(run(3, 4))
    buffer.forget(frozenset({2}))
    assert [kept.without for kept in buffer.runs] == [{1, 2}, {2}]


def test_the_newest_run_is_the_one_that_goes_furthest() -> None:
    buffer = pair()
    assert buffer.newest == 0
    buffer.put(run(0, 7))
    buffer.put(run(2, 5))
    assert buffer.newest == 7


def test_what_other_sites_answer_for_is_forgotten_and_the_floors_stay() -> None:
    buffer = pair()
    buffer.put(run(0, 3, rows=2))
    buffer.ack(A, 1)
    buffer.clear()
    assert (buffer.runs, buffer.rows, buffer.floors) == ([], 0, {A: 1, B: 0})


def test_a_pool_is_full_at_its_bound_and_the_last_run_may_exceed_it() -> None:
    buffer = pair(bound_rows=3)
    buffer.put(run(0, 1, rows=2))
    assert not buffer.full()
    buffer.put(run(1, 2, rows=5))
    assert buffer.full()


def test_acks_never_go_back() -> None:
    buffer = pair()
    buffer.ack(A, 2)
    with pytest.raises(AssertionError, match=r"\(0, 'a'\) went back from 2 to 1"):
        buffer.ack(A, 1)
