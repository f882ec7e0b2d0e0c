"""The speed of a site: all samples since the last change count, and one that comes and goes is an average."""

from __future__ import annotations

import numpy as np

from flux.balance.speeds import SAMPLES_KEPT_MAX, SPREAD_UNKNOWN, VOLATILE_S, Speed, SpeedHistory

REPORT_S = 0.1


def after(*phases: tuple[float, int], noise: float = 0.03, rows: bool = False, seed: int = 1) -> SpeedHistory:
    """A history of phases, each a speed and a count of reports of a tenth of a second."""
    random, history, number = np.random.default_rng(seed), SpeedHistory(), 0
    for speed, count in phases:
        for _ in range(count):
            number += 1
            work = speed * REPORT_S * float(np.exp(random.normal(0, noise)))
            history = history.add(round(work) if rows else work, REPORT_S, number * REPORT_S)
    return history


def known(history: SpeedHistory) -> Speed:
    speed = history.speed()
    assert speed is not None
    return speed


def test_without_a_sample_there_is_no_speed() -> None:
    assert SpeedHistory().speed() is None


def test_reports_with_too_little_busy_time_are_added_up() -> None:
    history = SpeedHistory().add(5.0, 0.015, 0.1)
    assert history.speed() is None
    assert known(history.add(5.0, 0.015, 0.2)).value == 10 / 0.03


def test_busy_time_without_a_row_is_added_to_the_next_sample() -> None:
    history = SpeedHistory().add(0.0, 0.1, 0.1).add(30.0, 0.1, 0.2)
    assert known(history).value == 150.0
    # A site that is busy for long and consumes nothing is slow.
    assert known(SpeedHistory().add(0.0, 0.3, 0.3)).value < 1e-6


def test_a_steady_speed_is_known_better_with_each_sample() -> None:
    few, many = known(after((1_000, 2))), known(after((1_000, 100)))
    assert few.error == SPREAD_UNKNOWN / np.sqrt(2)
    assert many.error < 0.005 and abs(many.value / 1_000 - 1) < 0.01
    assert many.samples == 100 and not many.is_volatile and many.now == many.value


def test_noise_is_not_a_change() -> None:
    for seed in range(5):
        assert after((1_000, 400), seed=seed).changes == ()


def test_a_change_is_known_within_three_reports_and_what_was_before_does_not_count() -> None:
    speed = known(after((1_000, 100), (500, 3)))
    assert abs(speed.value / 500 - 1) < 0.05 and speed.samples == 3
    assert not speed.is_volatile


def test_the_report_in_which_the_speed_changed_is_part_of_the_same_change() -> None:
    history = after((1_000, 100), (800, 1), (500, 6))
    assert len(history.changes) == 1
    assert abs(known(history).value / 500 - 1) < 0.05


def test_the_sample_in_which_the_speed_changed_does_not_count_for_the_new_one() -> None:
    """Steps of a site at 1/23 are long: the first one, begun at full speed, has most of the work of the next few."""
    speed = known(after((1_000, 100), (120, 1), (43, 3)))
    assert abs(speed.value / 43 - 1) < 0.05


def test_a_row_more_or_less_of_few_is_not_a_change() -> None:
    # At 43 rows a second a report has 4 or 5.
    history = after((1_000, 100), (43, 200), rows=True)
    assert [is_greater for _, is_greater in history.changes] == [False]
    assert abs(known(history).value / 43 - 1) < 0.1


def test_a_few_samples_that_agree_by_chance_do_not_make_the_next_one_a_change() -> None:
    # Given a noise that is known from before the change,
    history = after((500, 50), (1_000, 1))
    for number, speed in enumerate((985.0, 984.0, 983.0, 984.0, 920.0, 921.0)):
        history = history.add(speed * REPORT_S, REPORT_S, 5.2 + number * REPORT_S)
    # then samples within that noise are no change.
    assert len(history.changes) == 1


def test_a_speed_that_comes_back_is_volatile_and_known_by_its_average() -> None:
    speed = known(after((1_000, 100), (500, 50), (1_000, 50)))
    assert speed.is_volatile
    assert speed.value == speed.average and abs(speed.average / 875 - 1) < 0.02
    assert abs(speed.now / 1_000 - 1) < 0.02
    assert speed.error == speed.average_error


def test_a_small_change_does_not_end_that_a_speed_is_volatile() -> None:
    assert known(after((1_000, 100), (500, 50), (1_000, 50), (900, 50))).is_volatile


def test_a_small_change_after_a_large_one_is_not_a_way_back() -> None:
    speed = known(after((1_000, 100), (400, 20), (500, 20)))
    assert not speed.is_volatile and abs(speed.value / 500 - 1) < 0.05


def test_a_small_change_there_and_back_is_not_volatile() -> None:
    assert not known(after((1_000, 100), (880, 50), (1_000, 50))).is_volatile


def test_two_changes_in_the_same_direction_are_not_volatile() -> None:
    assert not known(after((1_000, 100), (500, 50), (250, 50))).is_volatile


def test_a_speed_is_volatile_for_half_a_minute() -> None:
    back = int(VOLATILE_S / REPORT_S)
    assert known(after((1_000, 100), (500, 10), (1_000, back - 20))).is_volatile
    assert not known(after((1_000, 100), (500, 10), (1_000, back + 20))).is_volatile


def test_a_history_is_bounded_and_its_changes_move_with_it() -> None:
    history = after((1_000, 100), (500, SAMPLES_KEPT_MAX - 50))
    assert len(history.samples) == SAMPLES_KEPT_MAX
    [(at, _)] = history.changes
    assert at == 50
    gone = after((1_000, 100), (500, SAMPLES_KEPT_MAX + 50))
    assert gone.changes == () and abs(known(gone).value / 500 - 1) < 0.02


def test_a_speed_that_is_averaged_says_so_in_its_value() -> None:
    speed = known(after((1_000, 100), (500, 50)))
    assert abs(speed.value / 500 - 1) < 0.02
    assert speed.averaged().value == speed.average > 800
