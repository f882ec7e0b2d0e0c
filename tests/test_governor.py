"""`flux.governor.Governor`: the paper's example, what a plan is, and that delay stays bounded where it can."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from experiments.governor.simulation import JobCosts, Played, play
from flux.governor import Fixed, Governor, SizeController, _fit

EVERY = 10


def jobs_take(controller: SizeController, *processing_s: float, first: int = 0, delay_s: float = 0.0) -> float:
    """Play jobs that take these times at an interval of 1 s; return the delay that they leave."""
    for job, seconds in enumerate(processing_s, first):
        rows = controller.size(job)
        controller.done(job, job + delay_s + seconds, rows, seconds, delay_s)
        delay_s = max(0.0, delay_s + seconds - 1.0)
    return delay_s


def linear(controller: SizeController, jobs: range, fixed_s: float, row_s: float, checkpoint_s: float) -> list[int]:
    """Play jobs of these costs at an interval of 1 s, none of them late; return their sizes."""
    sizes = []
    for job in jobs:
        sizes.append(rows := controller.size(job))
        seconds = fixed_s + row_s * rows + (checkpoint_s if job % EVERY == 0 else 0.0)
        controller.done(job, job + seconds, rows, seconds, 0.0)
    return sizes


def test_the_worked_example_of_the_paper() -> None:
    # Given jobs of least size that take 0.6 s, a checkpoint job of 1.3 s, and a sudden one of 1.5 s at the end.
    governor = Governor(1.0, EVERY, first=1_000, min_rows=10)
    left_s = jobs_take(governor, 1.3, 0.6, *[1.0] * 7, 1.5)
    # Then 0.5 s are inherited and 0.3 s expected, which two jobs clear: three signals, and 0.7 of the full rate.
    assert left_s == pytest.approx(0.5)
    assert governor.plan.excess_s == pytest.approx(0.8)
    assert governor.signals == ((10.0, 10), (11.0, 10), (12.0, 10))
    assert governor.plan.rate == pytest.approx(0.7 * governor._full)


def test_the_jobs_of_the_plan_get_the_least_and_the_others_what_is_full() -> None:
    governor = Governor(1.0, EVERY, first=1_000, min_rows=10)
    jobs_take(governor, 1.3, 0.6, *[1.0] * 7, 1.5)
    sizes = [governor.size(job) for job in range(10, 20)]
    assert sizes == [10, 10, 10, *[governor.full] * 7]


def test_a_checkpoint_that_fits_into_its_interval_needs_no_small_job_after_it() -> None:
    governor = Governor(1.0, EVERY, first=1_000, min_rows=10)
    assert jobs_take(governor, 0.7, 0.6, *[1.0] * 8) == 0.0
    assert governor.plan.sizes == (10,)
    assert governor.plan.rate == pytest.approx(governor._full * 0.93)


def test_a_region_of_small_jobs_alone_is_the_most_that_a_plan_has() -> None:
    governor = Governor(1.0, EVERY, first=1_000, min_rows=10)
    jobs_take(governor, 30.0, 0.6, *[1.0] * 8)
    assert governor.plan.sizes == (10,) * EVERY
    assert governor.plan.rate == 10.0


@pytest.mark.parametrize("exact", [False, True])
def test_where_small_jobs_take_longer_than_an_interval_all_are_small(exact: bool) -> None:
    governor = Governor(1.0, EVERY, first=1_000, min_rows=10, exact=exact)
    jobs_take(governor, 1.3, *[1.2] * 8, 1.3)
    assert governor.plan.sizes == (10,) * EVERY


def test_full_grows_by_half_at_most_and_never_stops_at_a_single_row() -> None:
    governor = Governor(1.0, EVERY, first=1_000, min_rows=10)
    jobs_take(governor, 0.7, 0.6, 0.601)
    assert governor.full == 1_500
    least = Governor(1.0, EVERY, first=1, min_rows=1)
    jobs_take(least, *[0.1] * 10)
    assert least.full > 20


def test_full_is_what_takes_an_interval() -> None:
    governor = Governor(1.0, EVERY, first=1_000, min_rows=10)
    linear(governor, range(20), fixed_s=0.6, row_s=1e-4, checkpoint_s=0.7)
    assert governor.full == pytest.approx(4_000, rel=0.01)
    exact = Governor(1.0, EVERY, first=1_000, min_rows=10, exact=True)
    linear(exact, range(100), fixed_s=0.6, row_s=1e-4, checkpoint_s=0.7)
    assert exact.full == pytest.approx(4_000, rel=0.01)


@pytest.mark.parametrize(("seconds", "full"), [(0.5, 1_250), (2.0, 875), (0.01, 4_000)])
def test_exact_moves_what_is_full_by_a_quarter_of_what_it_was_off(seconds: float, full: int) -> None:
    exact = Governor(1.0, EVERY, first=1_000, min_rows=10, exact=True)
    jobs_take(exact, 0.7, 0.6, seconds)
    assert exact.full == full


def test_a_job_without_rows_never_takes_less_than_no_time() -> None:
    line = _fit([(10, 0.0), (100, 0.1), (1_000, 2.0)])
    assert line is not None and line.fixed_s == 0.0


@pytest.mark.parametrize("exact", [False, True])
def test_a_job_that_found_fewer_rows_does_not_change_what_is_full(exact: bool) -> None:
    governor = Governor(1.0, EVERY, first=1_000, min_rows=10, exact=exact)
    jobs_take(governor, 0.7, 0.6)
    assert governor.size(2) == 1_000
    governor.done(2, 2.1, 400, 0.1, 0.0)
    assert governor.full == 1_000


def test_exact_fills_a_checkpoint_job_with_what_fits_beside_the_checkpoint() -> None:
    exact = Governor(1.0, EVERY, first=4_000, min_rows=10, exact=True)
    linear(exact, range(10), fixed_s=0.2, row_s=2e-4, checkpoint_s=0.5)
    assert exact.plan.sizes == (pytest.approx(1_500, abs=2),)  # 0.2 s + 0.5 s + 1,500 rows are an interval.
    assert exact.plan.rate == pytest.approx((1_500 + 9 * 4_000) / 10, rel=1e-3)


def test_exact_takes_an_inherited_delay_off_what_fits_beside_the_checkpoint() -> None:
    exact = Governor(1.0, EVERY, first=4_000, min_rows=10, exact=True)
    linear(exact, range(9), fixed_s=0.2, row_s=2e-4, checkpoint_s=0.5)
    exact.done(9, 10.1, 4_000, 1.0, 0.1)
    assert exact.plan.sizes == (pytest.approx(1_000, abs=2),)


def test_exact_gives_no_job_more_than_what_is_full() -> None:
    exact = Governor(1.0, EVERY, first=50, min_rows=10, exact=True)
    linear(exact, range(10), fixed_s=0.2, row_s=2e-4, checkpoint_s=0.0)
    # By the line 4,000 rows would fit; what is full has not come that far yet.
    assert exact.plan.sizes == (exact.full,)
    assert exact.full < 3_900


def test_exact_gives_the_job_that_clears_the_last_what_still_fits() -> None:
    exact = Governor(1.0, EVERY, first=4_000, min_rows=10, exact=True)
    linear(exact, range(10), fixed_s=0.6, row_s=1e-4, checkpoint_s=1.0)
    # The checkpoint job takes 0.601 s beyond its interval: one job clears 0.399 s, and the next 0.202 s.
    assert exact.plan.sizes == (10, 10, pytest.approx(1_980, abs=2))
    # When it takes less, the next one may have more: sizes follow the delay with which jobs start.
    assert exact.size(10) == 10
    exact.done(10, 11.25, 10, 1.25, 0.0)
    assert exact.size(11) == pytest.approx(1_500, abs=2)
    exact.done(11, 12.0, exact.size(11), 0.75, 0.25)
    assert exact.size(12) == exact.full
    # What a full job takes too long is inherited by the next region.
    exact.done(12, 13.25, exact.full, 1.25, 0.0)
    assert exact.size(13) == exact.full


def test_exact_plans_as_the_paper_does_while_jobs_show_no_slope() -> None:
    exact = Governor(1.0, EVERY, first=1_000, min_rows=10, exact=True)
    jobs_take(exact, 1.3, 0.6, *[0.6] * 8)
    assert exact.plan.sizes == (10, 10)


def test_records_older_than_the_history_do_not_count_but_the_newest_does() -> None:
    governor = Governor(1.0, EVERY, first=1_000, min_rows=10, history_s=5)
    jobs_take(governor, 5.0, 0.5, *[1.0] * 8)
    jobs_take(governor, 1.3, *[0.5] * 9, first=10)
    # Of the checkpoints the second one alone counts: 0.3 s, for which one small job is enough.
    assert governor.plan.sizes == (10, 10)


@pytest.mark.parametrize("exact", [False, True])
def test_jobs_that_take_no_time_do_not_grow_beyond_all_numbers(exact: bool) -> None:
    governor = Governor(1.0, EVERY, first=1_000, min_rows=10, exact=exact)
    jobs_take(governor, *[0.0] * 2_000)
    assert governor.full == 10**12


def test_a_controller_that_begins_within_a_region_keeps_the_phase() -> None:
    governor = Governor(1.0, EVERY, first=1_000, min_rows=10)
    assert governor.size(17) == 1_000
    assert governor.plan.rate is None
    jobs_take(governor, 1.0, 1.0, 1.0, first=17)
    assert governor.plan.first_job == 20
    assert governor.size(20) == 10


def test_a_size_is_the_same_when_asked_again_and_never_asked_for_the_past() -> None:
    governor = Governor(1.0, EVERY, first=1_000, min_rows=10)
    assert governor.size(4) == governor.size(4)
    with pytest.raises(ValueError, match=r"size of job 3 asked after job 4; make a new controller"):
        governor.size(3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval_s": 0}, "interval_s=0 is invalid: expected a number above 0"),
        ({"interval_s": math.nan}, "interval_s=nan is invalid: expected a number above 0"),
        ({"interval_s": "1"}, "interval_s='1' is invalid: expected a number above 0"),
        ({"every": 1}, "every=1 is invalid: expected a whole number of at least 2"),
        ({"every": 2.5}, "every=2.5 is invalid: expected a whole number of at least 2"),
        ({"min_rows": 0}, "min_rows=0 is invalid: expected a whole number of at least 1"),
        ({"first": 9}, "first=9 is invalid: expected a whole number of at least 10"),
        ({"history_s": math.inf}, "history_s=inf is invalid: expected a number above 0"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error(settings: dict[str, float], message: str) -> None:
    usual: dict[str, Any] = {"interval_s": 1.0, "every": EVERY, "first": 1_000, "min_rows": 10}
    with pytest.raises(ValueError, match=f"Governor: {message}"):
        Governor(**usual | settings)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ((-1, 0.0, 1, 0.1, 0.0), "job=-1"),
        ((0, math.nan, 1, 0.1, 0.0), "now_s=nan"),
        ((0, 0.0, -1, 0.1, 0.0), "rows=-1"),
        ((0, 0.0, 1, -0.1, 0.0), "processing_s=-0.1"),
        ((0, 0.0, 1, 0.1, math.inf), "delay_s=inf"),
    ],
)
def test_a_job_that_cannot_have_been_is_an_error(job: tuple[int, float, int, float, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"Governor: {message} is invalid"):
        Governor(1.0, EVERY, first=1_000, min_rows=10).done(*job)


times = st.floats(0.0, 20.0)


@example(every=2, min_rows=1, exact=True, begin=3, jobs=[(1e-308, 0.0, 1.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)])
@given(
    every=st.integers(2, 12),
    min_rows=st.integers(1, 50),
    exact=st.booleans(),
    begin=st.integers(0, 30),
    jobs=st.lists(st.tuples(times, times, st.floats(0.0, 1.0)), max_size=60),
)
def test_whatever_jobs_take_sizes_are_at_least_the_least_and_plans_stay_in_their_region(
    every: int, min_rows: int, exact: bool, begin: int, jobs: list[tuple[float, float, float]]
) -> None:
    governor = Governor(1.0, every, first=1_000, min_rows=min_rows, exact=exact)
    for job, (processing_s, delay_s, found) in enumerate(jobs, begin):
        size = governor.size(job)
        assert size >= min_rows
        assert governor.plan.first_job == job - job % every
        governor.done(job, job + delay_s + processing_s, int(size * found), processing_s, delay_s)
        assert governor.plan.first_job % every == 0
        assert len(governor.plan.sizes) <= every
        assert all(min_rows <= rows <= max(governor.full, min_rows) for rows in governor.plan.sizes)
        assert governor.plan.rate is None or governor.plan.rate >= min_rows


JOBS = 300


def grown(played: Played) -> float:
    """By how many intervals the worst delay of the later half is above what the first regions and a checkpoint left."""
    costs, delays = played.costs, played.delays_s
    learnt = 3 * costs.every
    excess_s = (1 + costs.noise) * costs.seconds(0, costs.min_rows)
    return (max(delays[JOBS // 2 :]) - max(delays[:learnt]) - excess_s) / costs.interval_s


@given(
    fixed=st.floats(0.0, 0.95),
    regions_left=st.floats(0.0, 1.0),
    noise=st.sampled_from((0.0, 0.08)),
    every=st.integers(2, 12),
    full_rows=st.sampled_from((200, 4_000)),
    exact=st.booleans(),
    is_limited=st.booleans(),
    seed=st.integers(0, 1_000),
)
def test_delay_is_bounded_where_the_bound_is_1_1_of_the_load(
    fixed: float,
    regions_left: float,
    noise: float,
    every: int,
    full_rows: int,
    exact: bool,
    is_limited: bool,
    seed: int,
) -> None:
    # Given any checkpoint that leaves, at the worst noise, 1.1 of the least load.
    row = (1 - fixed) / full_rows
    most = every / (1 + noise) - every * fixed - 1.1 * every * 10 * row
    assume(most >= 0)
    costs = JobCosts(fixed=fixed, checkpoint=regions_left * most, noise=noise, every=every, full_rows=full_rows)
    bound_rows = (every / (1 + noise) - every * fixed - costs.checkpoint) / row / every
    assert bound_rows >= 1.1 * 10 - 1e-6
    # When a source offers as many rows as any controller could take, or 1 / 1.1 of the bound.
    governor = Governor(1.0, every, first=full_rows // 2, min_rows=10, exact=exact)
    played = play(governor, costs, JOBS, seed, offered_rows=bound_rows / 1.1 if is_limited else None)
    # Then the delay does not grow.
    assert grown(played) <= 1.0


def test_delay_that_grows_is_seen() -> None:
    costs = JobCosts(fixed=0.6, checkpoint=0.7)
    assert grown(play(Fixed(4_000), costs, JOBS, seed=0)) > 1.0
    impossible = JobCosts(fixed=0.9, checkpoint=1.5)
    assert impossible.bound == 0
    assert grown(play(Governor(1.0, 10, first=2_000, min_rows=10), impossible, JOBS, seed=0)) > 1.0
