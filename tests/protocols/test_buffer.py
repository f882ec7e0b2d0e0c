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


def test_who_catches_up_with_what_was_forgotten_has_caught_up() -> None:
    buffer = Buffer(bound_rows=1, transfer_rows_max=8)
    buffer.entitle(A)
    buffer.expect(frozenset({A}))
    buffer.put(run(0, 3, rows=3))
    buffer.expect(frozenset())
    assert A in buffer.quota_rows
    buffer.clear()
    assert buffer.quota_rows == {}


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


# A copy is on its way to B: B acknowledges nothing until it is there.


def coming(kept: int, bound_rows: int = 4, transfer_rows_max: int = 20) -> Buffer:
    """A has everything, B lacks `kept` runs of a row each."""
    buffer = Buffer(bound_rows, transfer_rows_max)
    buffer.entitle(A)
    buffer.entitle(B)
    buffer.expect(frozenset({B}))
    for sn in range(kept):
        buffer.put(run(sn, sn + 1))
    buffer.ack(A, kept)
    return buffer


def test_what_is_kept_for_a_copy_on_its_way_has_a_bound_of_its_own() -> None:
    assert not coming(19).full()
    assert coming(20).full()


def test_others_are_waited_for_as_ever_while_a_copy_is_on_its_way() -> None:
    buffer = coming(0)
    for sn in range(4):
        assert not buffer.full()
        buffer.put(run(sn, sn + 1))
    assert buffer.full()
    buffer.ack(A, 1)
    assert not buffer.full()


def test_where_all_lag_the_one_that_is_furthest_ahead_is_waited_for() -> None:
    buffer = Buffer(2, transfer_rows_max=50)
    buffer.entitle(A)
    buffer.entitle(B)
    buffer.expect(frozenset({A, B}))
    for sn in range(9):
        assert not buffer.full()
        buffer.put(run(sn, sn + 1))
        buffer.note_reached(A, sn)  # It acknowledges nothing, and its other copies go on.
    assert not buffer.full()
    buffer.put(run(9, 10))
    assert buffer.full() and buffer.kept_for(A) == 10
    buffer.note_reached(A, 9)
    assert not buffer.full()


def test_a_site_is_reserved_what_the_donor_of_its_copy_has_not_acknowledged() -> None:
    # Rule 3: it may be far ahead of the donor, and needs those rows again, for the copy.
    buffer = pair()
    for sn in range(4):
        buffer.put(run(sn, sn + 1))
    buffer.ack(A, 1)
    buffer.ack(B, 4)
    buffer.reserve(B, A)
    buffer.ack(A, 4)
    assert (buffer.dropped, buffer.progress(B), buffer.kept_for(B)) == (1, 4, 3)
    buffer.reserve(A, B)
    buffer.reserve(B, A)
    assert buffer.floors == {A: 1, B: 1}
    buffer.ack(A, 3)
    buffer.ack(B, 3)
    assert (buffer.dropped, buffer.progress(B)) == (3, 4)
    buffer.ack(B, 4)
    assert buffer.reached == {A: 4}


def test_without_a_bound_of_its_own_a_copy_on_its_way_is_like_any_other() -> None:
    buffer = pair(bound_rows=2)
    buffer.expect(frozenset({B}))
    buffer.put(run(0, 1))
    assert not buffer.full()
    buffer.put(run(1, 2))
    buffer.ack(A, 2)
    assert buffer.full()


def test_a_copy_that_catches_up_lets_half_as_many_rows_be_produced_as_it_takes() -> None:
    buffer, position = coming(16), 16
    buffer.expect(frozenset())
    for _ in range(4):  # It was not full when the copy came: as much as the bound may come before it is.
        assert not buffer.full()
        position += 1
        buffer.put(run(position - 1, position))
        buffer.ack(A, position)
    assert buffer.full()
    for taken in range(2, 22, 2):
        buffer.ack(B, taken)
        assert not buffer.full()
        position += 1
        buffer.put(run(position - 1, position))
        buffer.ack(A, position)
        assert buffer.full()


def test_a_copy_has_caught_up_when_less_than_the_bound_is_kept_for_it() -> None:
    buffer = coming(16)
    buffer.expect(frozenset())
    buffer.ack(B, 12)
    assert buffer.quota_rows == {B: 14}
    buffer.ack(B, 13)
    assert buffer.quota_rows == {}
    buffer.put(run(16, 17))
    assert buffer.full()


def test_a_copy_that_takes_twice_what_was_kept_for_it_is_like_the_others_then() -> None:
    """It could go on behind the others for ever, and what it keeps back would never be less."""
    buffer = coming(16)
    buffer.expect(frozenset())
    for taken in range(1, 34):
        buffer.put(run(15 + taken, 16 + taken))
        buffer.ack(A, 16 + taken)
        buffer.ack(B, taken)
    assert buffer.quota_rows == {}
    assert buffer.full()


def test_a_copy_that_comes_to_one_who_lacks_little_is_over_at_once() -> None:
    buffer = coming(3)
    buffer.expect(frozenset())
    assert buffer.quota_rows == {}


def test_who_catches_up_and_is_sent_another_copy_may_have_as_much_kept_as_before() -> None:
    buffer = coming(16)
    buffer.expect(frozenset())
    buffer.ack(B, 2)
    assert buffer.quota_rows == {B: 19}
    buffer.expect(frozenset({B}))
    buffer.ack(B, 4)
    assert buffer.quota_rows == {B: 20}


def test_nothing_is_kept_for_a_copy_whose_site_has_died() -> None:
    buffer = coming(16)
    buffer.ack_all(B)
    assert (buffer.rows, buffer.quota_rows) == (0, {})
