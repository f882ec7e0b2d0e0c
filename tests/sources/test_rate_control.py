"""Job sizes by a rate: the receiver between rate and size, the naive cut, and settings that cannot be.

That `Pid` estimates what Spark does is in `tests/spark/test_rate_estimator.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.sources.rate_control import Fixed, Naive, Pid


def test_a_job_gets_what_came_in_the_interval_before_it_is_due() -> None:
    # Given a first rate of 1,000/s, and 2,000/s from 1.5 s on.
    pid = Pid(1.0, first=1_000)
    pid.done(0, now_s=0.5, rows=1_000, processing_s=0.5, delay_s=0.0)
    pid.done(1, now_s=1.5, rows=1_000, processing_s=0.5, delay_s=0.0)
    # Then the interval from 1 s to 2 s has half of each.
    assert [pid.size(job) for job in (1, 2, 3)] == [1_000, 1_500, 2_000]


def test_a_rate_is_in_force_from_the_end_of_its_job_on_also_if_jobs_are_late() -> None:
    pid = Pid(1.0, first=1_000)
    pid.done(0, now_s=3.0, rows=1_000, processing_s=3.0, delay_s=0.0)
    pid.done(1, now_s=4.0, rows=1_000, processing_s=0.5, delay_s=0.0)
    assert [pid.size(job) for job in (1, 2, 3, 4, 5)] == [1_000, 1_000, 1_000, 1_000, 2_000]


def test_fractions_of_rows_are_not_lost() -> None:
    pid = Pid(0.3, min_rate=11.0)
    assert [pid.size(job) for job in range(10)] == [3, 3, 3, 4, 3, 3, 4, 3, 3, 4]


def test_every_job_has_a_row_and_the_next_ones_do_not_pay_for_it() -> None:
    pid = Pid(0.01, min_rate=1.0)
    assert [pid.size(job) for job in range(100)] == [1] * 100
    pid.done(99, now_s=0.99, rows=100, processing_s=0.1, delay_s=0.0)
    pid.done(100, now_s=1.0, rows=100, processing_s=0.1, delay_s=0.0)
    assert pid.size(101) == 10


def test_a_new_rate_at_a_time_that_stands_still_replaces_the_last_one() -> None:
    naive = Naive(1.0, every=2, first=1_000, min_rate=10)
    naive.done(1, now_s=1.0, rows=1_000, processing_s=1.0, delay_s=0.0)  # Cut until the checkpoint job has ended,
    naive.done(2, now_s=1.0, rows=1_000, processing_s=0.0, delay_s=0.0)  # which is at once.
    assert naive.size(2) == 1_000


def test_jobs_without_rows_or_time_leave_the_rate_as_it_is() -> None:
    pid = Pid(1.0, first=1_000)
    pid.done(0, now_s=1.0, rows=1_000, processing_s=0.5, delay_s=0.0)
    pid.done(1, now_s=2.0, rows=1_000, processing_s=0.5, delay_s=0.0)
    for job, (rows, processing_s) in enumerate(((0, 0.5), (100, 0.0), (0, 0.0), (100, 1e-9)), 2):
        pid.done(job, now_s=job + 1.0, rows=rows, processing_s=processing_s, delay_s=5.0)
        assert pid.rate == 2_000


def test_a_gain_that_is_too_large_does_not_end_in_numbers_that_are_none() -> None:
    pid = Pid(1.0, kd=1e6)
    for job in range(200):
        pid.done(job, now_s=job * 1e-6, rows=1 + job % 2 * 1_000, processing_s=0.5, delay_s=0.0)
        assert math.isfinite(pid.rate)


def test_the_least_rate_is_the_least() -> None:
    pid = Pid(1.0, min_rate=50.0)
    for job in range(5):
        pid.done(job, now_s=job + 1.0, rows=10, processing_s=5.0, delay_s=100.0)
    assert pid.rate == 50.0


def test_naive_cuts_the_rate_until_the_checkpoint_job_has_ended() -> None:
    naive = Naive(1.0, every=3, first=1_000, min_rate=10)
    for job in range(4):
        naive.done(job, now_s=job + 1.0, rows=1_000, processing_s=1.0, delay_s=0.0)
    # Job 3 takes the checkpoint, and its rows came from 2 s to 3 s; the cut from 3 s to 4 s hits job 4.
    assert [naive.size(job) for job in (3, 4, 5)] == [1_000, 10, 1_000]


def test_fixed_is_fixed() -> None:
    fixed = Fixed(7)
    fixed.done(0, now_s=9.0, rows=7, processing_s=9.0, delay_s=0.0)
    assert [fixed.size(job) for job in range(3)] == [7, 7, 7]


def test_a_size_is_the_same_when_asked_again_and_never_asked_for_the_past() -> None:
    pid = Pid(1.0, min_rate=0.5)
    assert pid.size(4) == pid.size(4) == 1
    with pytest.raises(ValueError, match="size of job 3 asked after job 4; make a new controller"):
        pid.size(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fixed(0), "Fixed: rows=0 is invalid: expected a whole number of at least 1"),
        (lambda: Pid(0.0), "Pid: interval_s=0.0 is invalid: expected a number above 0"),
        (lambda: Pid(1.0, kp=-0.1), "Pid: kp=-0.1 is invalid: expected a number of at least 0"),
        (lambda: Pid(1.0, ki=math.nan), "Pid: ki=nan is invalid: expected a number of at least 0"),
        (lambda: Pid(1.0, kd=True), "Pid: kd=True is invalid: expected a number of at least 0"),
        (lambda: Pid(1.0, min_rate=0), "Pid: min_rate=0 is invalid: expected a number above 0"),
        (lambda: Pid(1.0, first=0), "Pid: first=0 is invalid: expected a whole number of at least 1"),
        (lambda: Naive(1.0, every=1), "Naive: every=1 is invalid: expected a whole number of at least 2"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == message


@given(
    naive=st.booleans(),
    jobs=st.lists(
        st.tuples(st.integers(0, 5_000), st.floats(0.0, 5.0), st.floats(0.0, 5.0), st.floats(0.0, 3.0)), max_size=40
    ),
)
def test_sizes_are_at_least_what_the_least_rate_gives(naive: bool, jobs: list[tuple[int, float, float, float]]) -> None:
    control = Naive(1.0, every=5, first=500, min_rate=10) if naive else Pid(1.0, first=500, min_rate=10)
    now_s = 0.0
    for job, (rows, processing_s, delay_s, later_s) in enumerate(jobs):
        assert control.size(job) >= 10
        now_s += later_s
        control.done(job, now_s, rows, processing_s, delay_s)
