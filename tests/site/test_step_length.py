"""How long the next step may be (rule 36)."""

from __future__ import annotations

import time

from flux.site.step_length import STEP_AIM_S, STEP_POSITIONS_MIN, STEP_WORK_S, StepLength
from flux.system import process_control

MOST = 16_384


def test_a_step_without_rows_does_not_let_the_next_one_take_everything() -> None:
    length = StepLength(4096)
    assert length.after_step(1000, 60.0, is_oldest=True) == STEP_POSITIONS_MIN
    # Of so few positions a site with few partitions may have no row at all.
    assert length.after_step(STEP_POSITIONS_MIN, 0.0, is_oldest=True) == 2 * STEP_POSITIONS_MIN
    lengths = [length.after_step(STEP_POSITIONS_MIN, 0.0, is_oldest=True) for _ in range(8)]
    assert lengths[-1] == 0, "a site that is fast again is not held back"


def length_after_many_steps(begun_s: float, each_s: float, share: float, slept_s: float = 0.0) -> int:
    """The length of the steps in the end, on a site that has this share of a processor.

    To begin and end one takes so much work, and so much each of its positions; an operator may sleep at each.
    """
    length, positions = StepLength(MOST), MOST
    for _ in range(100):
        work_s = begun_s + positions * each_s
        waited_s = work_s / share - work_s
        positions = length.after_step(positions, work_s + waited_s + positions * slept_s, True, waited_s) or MOST
    return positions


def test_a_site_that_waits_for_a_processor_most_of_the_time_has_steps_of_some_work() -> None:
    length = length_after_many_steps(0.002, 0.000_01, share=0.01)
    assert length > 5 * STEP_POSITIONS_MIN
    assert 0.9 * STEP_WORK_S < 0.002 + length * 0.000_01 <= STEP_WORK_S


def test_the_steps_of_a_site_with_a_tenth_of_a_processor_and_more_are_as_short_as_they_are_to_be() -> None:
    for share in (0.1, 0.2, 0.5, 1.0):
        length = length_after_many_steps(0.000_1, 0.000_1, share)
        assert 0.9 * STEP_AIM_S < (0.000_1 + length * 0.000_1) / share <= STEP_AIM_S


def test_an_operator_that_sleeps_at_each_row_has_short_steps() -> None:
    assert length_after_many_steps(0.002, 0.000_01, share=1.0, slept_s=0.01) == STEP_POSITIONS_MIN


def test_a_thread_that_works_or_sleeps_does_not_wait_for_a_processor() -> None:
    waited_s, began_s = process_control.watch_waits(), time.monotonic()
    before_s = waited_s()
    time.sleep(0.05)
    assert 0 <= waited_s() - before_s <= time.monotonic() - began_s - 0.05
