"""A pool charged by destination: the room that a slow site takes, and what is cut. Reference: 4.3, 5.1.1; rule 37."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.protocols.buffer import Buffer
from flux.protocols.fh_prod import FhProd
from flux.protocols.ingress import Ingress
from flux.protocols.inspection import trim
from flux.protocols.messages import Consumed, OutputRun, RowCounts, Standby, Trim, View
from flux.protocols.node import Node

from .views import NO_ROWS, ack

A, B, C = (0, "a"), (0, "b"), (0, "c")
ONE_COPY = (("a",), ("b",), ("c",))
PAIRS = (("a", "b"), ("b", "c"), ("c", "a"))


def counted(after: int, upto: int, *rows: int) -> OutputRun:
    """A run with so many rows for each partition of edge 0."""
    counts = tuple((0, partition, count) for partition, count in enumerate(rows) if count)
    return OutputRun(after=after, upto=upto, rows=sum(rows), counts=counts, body=NO_ROWS)


def pool(bound_rows: int, takers: tuple[tuple[str, ...], ...] = ONE_COPY, divided: bool = False) -> Buffer:
    buffer = Buffer(bound_rows, divided=divided)
    for dest in (A, B, C):
        buffer.entitle(dest)
    buffer.route({0: takers})
    return buffer


def test_a_slow_site_takes_room_for_its_own_rows_only() -> None:
    buffer = pool(bound_rows=10)
    for sn in range(10):  # 30 rows are produced; what is charged are the ten of c, one run of them free.
        assert not buffer.full()
        buffer.put(counted(sn, sn + 1, 1, 1, 1))
        buffer.ack(A, sn + 1)
        buffer.ack(B, sn + 1)
    assert (buffer.charges.rows, buffer.kept_for(A), buffer.kept_for(C)) == (10, 0, 10)
    buffer.put(counted(10, 11, 1, 1, 1))
    assert buffer.full()
    buffer.ack(C, 1)
    buffer.ack(A, 11)
    buffer.ack(B, 11)
    assert not buffer.full()


def test_one_run_for_each_destination_is_free() -> None:
    buffer = pool(bound_rows=4)
    buffer.put(counted(0, 1, 9, 9, 9))
    assert not buffer.full()
    buffer.put(counted(1, 2, 2, 1, 1))
    assert buffer.full()


def test_a_run_that_a_destination_needs_nothing_of_is_not_charged_for_it() -> None:
    buffer = pool(bound_rows=2)
    for sn in range(9):
        buffer.put(counted(sn, sn + 1, 1, 0, 0))
        buffer.ack(A, sn + 1)
    assert (buffer.charges.rows, buffer.full()) == (0, False)
    assert buffer.kept_for(B) == 0


def test_a_row_that_two_copies_need_is_charged_once_and_until_both_have_it() -> None:
    buffer = pool(bound_rows=9, takers=PAIRS)
    buffer.put(counted(0, 1, 1, 1, 1))
    assert buffer.charges.rows == 3
    buffer.ack(A, 1)
    assert buffer.charges.rows == 3
    buffer.ack(B, 1)
    assert (buffer.charges.rows, buffer.kept_for(A), buffer.kept_for(C)) == (2, 0, 2)
    buffer.ack(C, 1)
    assert (buffer.charges.rows, buffer.rows) == (0, 0)


def test_a_divided_pool_waits_for_the_destination_whose_part_is_full() -> None:
    shared, divided = pool(bound_rows=9), pool(bound_rows=9, divided=True)
    for buffer in (shared, divided):
        for sn in range(4):
            buffer.put(counted(sn, sn + 1, 1, 1, 1))
            buffer.ack(A, sn + 1)
            buffer.ack(B, sn + 1)
    assert (shared.full(), divided.full()) == (False, True)
    divided.ack(C, 1)
    assert not divided.full()


def test_runs_without_counts_are_charged_whole_beside_the_others() -> None:
    buffer = pool(bound_rows=6)
    buffer.put(counted(0, 1, 1, 1, 1))
    buffer.put(OutputRun(after=1, upto=2, rows=5, body=NO_ROWS))
    assert not buffer.full()
    buffer.put(counted(2, 3, 1, 0, 0))
    assert buffer.full()


def test_a_run_without_counts_is_kept_whole_for_every_destination() -> None:
    buffer = pool(bound_rows=20)
    buffer.put(counted(0, 1, 3, 2, 1))
    buffer.put(OutputRun(after=1, upto=2, rows=5, body=NO_ROWS))
    assert [buffer.kept_for(dest) for dest in (A, B, C)] == [8, 7, 6]
    buffer.ack(A, 1)
    assert buffer.kept_for(A) == 5


def test_a_destination_that_has_all_that_another_copy_lacks_has_no_first_run() -> None:
    buffer = pool(bound_rows=9, takers=PAIRS)
    buffer.put(counted(0, 1, 2, 1, 1))
    assert buffer.charges.first_for(A, 0) == 3
    buffer.ack(A, 1)
    assert (buffer.charges.first_for(A, 1), buffer.charges.first_for(B, 0)) == (0, 3)


def test_of_two_runs_that_end_together_only_the_one_is_cut_that_is_not_needed() -> None:
    buffer = pool(bound_rows=8)
    buffer.put(counted(0, 1, 3, 0, 0))
    buffer.put(counted(0, 1, 0, 9, 1))
    buffer.ack(B, 1)
    [cut] = buffer.trim()
    assert (cut.rows, cut.counts) == (1, ((0, 2, 1),))
    assert [run.rows for run in buffer.runs] == [3, 1]


def test_a_partition_that_moves_is_charged_for_both_sites_and_then_for_the_new_one() -> None:
    buffer = pool(bound_rows=9)
    buffer.put(counted(0, 1, 2, 1, 1))
    buffer.ack(A, 1)
    buffer.put(counted(1, 2, 2, 1, 1))
    buffer.route({0: (("a", "b"), ("b",), ("c",))})
    assert buffer.kept_for(B) == 2 + 4  # What b lacks of partition 0 too: it may be needed from the cut on.
    buffer.ack(A, 2)
    assert buffer.charges.rows == 4 + 2 + 2
    buffer.route({0: (("b",), ("b",), ("c",))})
    buffer.ack(B, 2)
    assert (buffer.charges.rows, buffer.kept_for(B)) == (2, 0)
    buffer.ack(C, 2)
    assert (buffer.charges.rows, buffer.charges.held, buffer.runs) == (0, {}, [])


def test_a_dead_destination_is_not_charged() -> None:
    buffer = pool(bound_rows=9, takers=PAIRS)
    buffer.put(counted(0, 1, 1, 1, 1))
    buffer.ack(A, 1)
    buffer.route({0: (("a",), ("c",), ("c", "a"))})
    buffer.ack_all(B)
    assert (buffer.charges.rows, buffer.kept_for(C)) == (2, 2)


def test_what_is_kept_for_a_copy_in_transfer_has_a_bound_of_its_own() -> None:
    buffer = Buffer(bound_rows=3, transfer_rows_max=5)
    for dest in (A, B, C):
        buffer.entitle(dest)
    buffer.route({0: ONE_COPY})
    buffer.expect(frozenset({C}))
    for sn in range(5):
        assert not buffer.full()
        buffer.put(counted(sn, sn + 1, 1, 1, 1))
        buffer.ack(A, sn + 1)
        buffer.ack(B, sn + 1)
        buffer.note_reached(C, sn + 1)
    assert buffer.full()


def test_what_only_a_copy_in_transfer_needs_does_not_fill_the_pool_for_its_partners() -> None:
    # Every partition of C has another copy, which has acknowledged everything.
    buffer = Buffer(bound_rows=3, transfer_rows_max=50)
    for dest in (A, B, C):
        buffer.entitle(dest)
    buffer.route({0: PAIRS})
    buffer.expect(frozenset({C}))
    for sn in range(10):
        assert not buffer.full()
        buffer.put(counted(sn, sn + 1, 1, 1, 1))
        buffer.ack(A, sn + 1)
        buffer.ack(B, sn + 1)
    assert buffer.kept_for(C) == 20
    for sn in range(10, 13):  # Now another one lags, too: its rows count, beyond one run of each pair that it is in.
        assert not buffer.full()
        buffer.put(counted(sn, sn + 1, 1, 1, 1))
        buffer.ack(B, sn + 1)
    assert buffer.full()


def test_rows_without_counts_that_only_a_copy_in_transfer_needs_leave_room_for_others() -> None:
    buffer = Buffer(bound_rows=3, transfer_rows_max=50)
    for dest in (A, B, C):
        buffer.entitle(dest)
    buffer.route({0: PAIRS})
    for sn in range(3):
        buffer.put(OutputRun(after=sn, upto=sn + 1, rows=1, body=None))
    assert buffer.full()
    buffer.expect(frozenset({C}))
    buffer.put(counted(3, 4, 1, 1, 1))
    buffer.ack(A, 4)
    buffer.ack(B, 4)
    assert buffer.kept_for(C) == 5 and not buffer.full()


def test_where_all_lag_the_pool_waits_for_the_one_that_is_furthest_ahead() -> None:
    buffer = Buffer(bound_rows=3, transfer_rows_max=50)
    for dest in (A, B, C):
        buffer.entitle(dest)
    buffer.route({0: (("a", "b"), ("b", "c"), ("b",))})
    buffer.expect(frozenset({A, B, C}))
    for sn in range(9):
        buffer.put(counted(sn, sn + 1, 1, 1, 0))
        buffer.note_reached(B, sn)
        assert not buffer.full()
    buffer.put(counted(9, 10, 1, 1, 0))
    buffer.put(counted(10, 11, 1, 1, 0))
    assert buffer.full()
    buffer.note_reached(C, 11)  # One of a pair is enough.
    buffer.note_reached(A, 11)
    assert not buffer.full()


def test_a_pool_that_is_over_half_full_has_its_runs_cut() -> None:
    buffer = pool(bound_rows=8)
    buffer.put(counted(0, 1, 1, 1, 2))
    buffer.ack(A, 1)
    assert buffer.trim() == []  # Half full, and no more.
    buffer.put(counted(1, 2, 1, 1, 2))
    [run] = buffer.trim()
    assert run == counted(0, 1, 0, 1, 2)
    assert (buffer.rows, buffer.trim()) == (7, [])


def test_a_run_that_was_cut_twice_has_the_rows_of_the_last_cut() -> None:
    node = Node("ingress", [Ingress("ingress", 4)])
    machine = node.machines[0]
    assert isinstance(machine, Ingress)
    buffer = machine.prod.buffer = pool(bound_rows=4)
    buffer.put(replace(counted(0, 1, 1, 1, 2), body="abcc"))
    buffer.ack(A, 1)
    [first] = buffer.trim()
    buffer.ack(B, 1)
    [last] = buffer.trim()
    for run in (first, last):
        trim(node, Trim(stage=0, run=run), lambda body, counts: f"{body} cut to {counts}")
    assert [kept.body for kept in buffer.runs] == ["abcc cut to ((0, 2, 2),)"]


def test_a_run_that_is_needed_by_more_than_three_quarters_is_left_alone() -> None:
    buffer = pool(bound_rows=4)
    buffer.put(counted(0, 1, 1, 2, 4))
    buffer.ack(A, 1)
    assert buffer.trim() == []
    buffer.ack(B, 1)
    assert buffer.trim() == [counted(0, 1, 0, 0, 4)]


VIEW = View(
    number=1,
    nodes=("ingress", "p", "a", "b", "c", "egress"),
    dead=frozenset(),
    copies=((("ingress",),), (("p",),), ONE_COPY, (("egress",),)),
)


def producer(bound_rows: int) -> FhProd:
    prod = FhProd("p", 1, bound_rows)
    prod.step(VIEW)
    prod.add_cohort(0, frozenset({0}), 0)
    return prod


def emitted(upto: int, counts: RowCounts) -> Consumed:
    return Consumed(stage=1, cohort=0, upto=upto, rows=sum(c[2] for c in counts), counts=counts, body=NO_ROWS)


def test_the_shell_is_asked_to_cut_when_an_ack_arrives() -> None:
    prod = producer(bound_rows=4)
    assert prod.step(emitted(1, ((1, 0, 2), (1, 1, 1), (1, 2, 1)))) == []
    [trim] = prod.step(ack("a", 1, 1))
    assert isinstance(trim, Trim)
    assert (trim.stage, trim.run.counts) == (1, ((1, 1, 1), (1, 2, 1)))
    assert trim.run is prod.buffer.runs[0]


def test_a_view_with_a_copy_in_transfer_has_its_rows_kept_for_that_site() -> None:
    prod = producer(bound_rows=4)
    prod.step(emitted(1, ((1, 0, 2),)))
    standby = Standby(version=1, stage=2, partition=0, slot=0, node="b", donor="a")
    prod.step(replace(VIEW, number=2, standby=(standby,), versions=1))
    assert (prod.buffer.kept_for((1, "a")), prod.buffer.kept_for((1, "b"))) == (2, 2)
    prod.step(replace(VIEW, number=3, copies=(*VIEW.copies[:2], (("b",), ("b",), ("c",)), VIEW.copies[3]), versions=1))
    assert prod.buffer.kept_for((1, "b")) == 2
    assert (1, "a") not in prod.buffer.floors  # It has no copy any more.


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, object]]:
    """Puts, acks and moves of partitions among three sites."""
    events: list[tuple[str, object]] = []
    for _ in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(["put", "put", "ack", "ack", "ack", "reserve", "route", "trim"]))
        what: object = None
        if kind == "put":
            what = draw(st.tuples(*[st.integers(0, 5)] * 3))
        elif kind == "ack":
            what = (draw(st.sampled_from([A, B, C])), draw(st.integers(0, 3)))
        elif kind == "reserve":
            what = (draw(st.sampled_from([A, B, C])), draw(st.sampled_from([A, B, C])))
        elif kind == "route":
            what = tuple(draw(st.permutations("abc"))[: draw(st.integers(1, 3))] for _ in range(3))
        events.append((kind, what))
    return events


@given(stories())
def test_charges_are_what_a_count_over_all_runs_gives(story: list[tuple[str, object]]) -> None:
    buffer, takers, put = pool(bound_rows=6), ONE_COPY, 0
    for kind, what in story:
        if kind == "put":
            put += 1
            buffer.put(counted(put - 1, put, *what))  # type: ignore[misc]
        elif kind == "ack":
            dest, by = what  # type: ignore[misc]
            buffer.ack(dest, max(buffer.floors[dest], min(put, buffer.floors[dest] + by)))
        elif kind == "reserve":
            buffer.reserve(*what)  # type: ignore[misc]
        elif kind == "route":
            takers = tuple(tuple(nodes) for nodes in what)  # type: ignore[assignment, attr-defined]
            buffer.route({0: takers})
        else:
            buffer.trim()
        floors = {node: floor for (_, node), floor in buffer.floors.items()}
        charged = 0
        for run in buffer.runs:
            for _, partition, rows in run.counts:
                charged += rows if min(floors[node] for node in takers[partition]) < run.upto else 0
        assert buffer.charges.rows == charged == sum(buffer.charges.needed_at.values())
        assert buffer.rows == buffer.counted == sum(run.rows for run in buffer.runs)
        held = {run.upto: sum(count[2] for count in run.counts) for run in buffer.runs}
        assert {at: rows for at, rows in buffer.charges.held.items() if rows} == {a: r for a, r in held.items() if r}


def test_a_pool_can_be_cloned_and_compared() -> None:
    buffer = pool(bound_rows=9)
    buffer.put(counted(0, 1, 1, 1, 1))
    twin = buffer.clone()
    assert twin.key() == buffer.key()
    twin.ack(A, 1)
    assert twin.key() != buffer.key()
    assert buffer.charges.rows == 3


@pytest.mark.parametrize("divided", [False, True])
def test_a_pool_of_one_row_lets_the_next_run_through_when_all_have_the_last(divided: bool) -> None:
    buffer = pool(bound_rows=1, divided=divided)
    for sn in range(3):
        assert not buffer.full()
        buffer.put(counted(sn, sn + 1, 1, 1, 1))
        for dest in (A, B, C):
            buffer.ack(dest, sn + 1)
