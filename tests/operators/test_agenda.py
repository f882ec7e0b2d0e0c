"""An agenda against a loop over all slots: growing times, slots added and removed, a rising floor."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flux.operators.agenda import Agenda

SLOTS = 8
STEP = st.tuples(
    st.sampled_from(["add", "advance", "remove", "take", "take", "clear"]),
    st.lists(st.integers(0, SLOTS - 1), max_size=4),
    st.integers(0, 30),
)


@given(st.integers(1, 20), st.lists(STEP, max_size=40))
def test_due_slots_are_those_of_a_loop_and_none_is_due_before_the_earliest(reach: int, steps: list) -> None:  # type: ignore[type-arg]
    agenda, times, is_active, floor = Agenda(reach), np.zeros(SLOTS, np.int64), np.zeros(SLOTS, np.bool_), 0
    for what, some, by in steps:
        chosen = np.array(some, np.int64)
        if what == "add":
            chosen = chosen.compress(~is_active.take(chosen))
            times[chosen] = floor + by
            is_active[chosen] = True
            agenda.add(chosen, times.take(chosen))
        elif what == "advance":
            times[chosen] += by
        elif what == "remove":
            is_active[chosen] = False
            agenda.clear()
        elif what == "clear":
            agenda.clear()
        else:
            floor += by
            expected = [slot for slot in range(SLOTS) if is_active[slot] and times[slot] <= floor]
            assert not expected or agenda.earliest <= floor
            found = agenda.take_due(floor, times, is_active)
            assert sorted(found.tolist()) == expected
            is_active[found] = False


def test_a_slot_that_was_taken_can_be_added_again() -> None:
    agenda, times, is_active = Agenda(10), np.array([1, 2]), np.ones(2, np.bool_)
    for _ in range(3):
        assert agenda.take_due(5, times, is_active).tolist() == [0, 1]
        assert agenda.take_due(5, times, is_active).tolist() == []
        agenda.add(np.array([1, 0, 1]), times.take([1, 0, 1]))


def test_a_slot_that_was_added_is_found_once_also_when_time_leaps_beyond_the_horizon() -> None:
    agenda, times, is_active = Agenda(10), np.array([0, 3]), np.array([False, True])
    assert agenda.take_due(0, times, is_active).tolist() == []
    agenda.add(np.array([1]), times.take([1]))
    assert agenda.take_due(20, times, is_active).tolist() == [1]
