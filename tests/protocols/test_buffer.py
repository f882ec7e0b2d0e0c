"""The DTSB: what leaves, and when. Reference: fig. 3.4."""

from __future__ import annotations

import pytest

from flux.protocols.buffer import Buffer
from flux.protocols.messages import Run

from .views import NO_ROWS


def run(after: int, upto: int, rows: int = 1) -> Run:
    return Run(after=after, upto=upto, rows=rows, body=NO_ROWS)


def pair(bound_rows: int = 3) -> Buffer:
    buffer = Buffer(bound_rows)
    buffer.entitle("a")
    buffer.entitle("b")
    return buffer


def test_a_run_leaves_when_every_destination_has_it() -> None:
    buffer = pair()
    buffer.put(run(0, 2, rows=2))
    buffer.ack("a", 2)
    assert list(buffer.behind(0)) == [run(0, 2, rows=2)]
    buffer.ack("b", 2)
    assert list(buffer.behind(0)) == []
    assert (buffer.rows, buffer.dropped) == (0, 2)


def test_a_run_half_acknowledged_stays_whole() -> None:
    buffer = pair()
    buffer.put(run(0, 5))
    buffer.ack("a", 5)
    buffer.ack("b", 4)
    assert buffer.dropped == 0
    assert list(buffer.behind(4)) == [run(0, 5)]
    assert list(buffer.behind(5)) == []


def test_dangling_acks_release_a_run_as_it_is_put() -> None:
    buffer = pair()
    buffer.ack("a", 5)
    buffer.ack("b", 3)
    buffer.put(run(0, 3))
    assert (buffer.rows, buffer.dropped) == (0, 3)


def test_without_any_destination_nothing_is_dropped() -> None:
    buffer = Buffer(3)
    buffer.put(run(0, 1))
    assert (buffer.rows, buffer.dropped) == (1, 0)


def test_a_dead_destination_needs_nothing() -> None:
    buffer = pair()
    buffer.put(run(0, 1))
    buffer.ack("a", 1)
    buffer.ack_all("b")
    assert buffer.rows == 0
    buffer.ack_all("b")
    assert set(buffer.floors) == {"a"}


def test_the_last_destination_takes_its_needs_along_but_no_rows() -> None:
    buffer = pair()
    buffer.put(run(0, 1))
    buffer.ack_all("a")
    buffer.ack_all("b")
    assert buffer.rows == 1


def test_a_destination_entitled_late_starts_behind_what_was_dropped() -> None:
    buffer = pair()
    buffer.put(run(0, 1))
    buffer.ack("a", 1)
    buffer.ack("b", 1)
    buffer.entitle("c")
    buffer.entitle("a")
    assert buffer.floors == {"a": 1, "b": 1, "c": 1}


def test_a_pool_is_full_at_its_bound_and_the_last_run_may_exceed_it() -> None:
    buffer = pair(bound_rows=3)
    buffer.put(run(0, 1, rows=2))
    assert not buffer.full()
    buffer.put(run(1, 2, rows=5))
    assert buffer.full()


def test_runs_must_follow_each_other_and_acks_never_go_back() -> None:
    buffer = pair()
    buffer.put(run(0, 2))
    with pytest.raises(AssertionError, match=r"run 3\.\.4 does not follow 2"):
        buffer.put(run(3, 4))
    buffer.ack("a", 2)
    with pytest.raises(AssertionError, match="a went back from 2 to 1"):
        buffer.ack("a", 1)
