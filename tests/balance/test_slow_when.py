"""Slow sites: those that hold up the others by far, for some time. Reference: rule 35."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flux.balance.slow_marks import FAST_AFTER_S, SLOW_AFTER_S, SLOW_LAG_MIN, SitePace, SlowSites, lower_median


def paces(first_s: float | None, lag: float = 1.0, at_s: float = 10.0, usual_s: float = 1.0) -> list[SitePace]:
    """Site 1 takes `first_s` for a position and lags; three others take the usual time."""
    usual = [SitePace(site=f"site-{n}", time_s=usual_s, lag=0.0, reported_s=at_s, interval_s=0.1) for n in (1, 2, 3, 4)]
    return [replace(usual[0], time_s=first_s, lag=lag), *usual[1:]]


def marked(marks: SlowSites, first_s: float | None, from_s: float, until_s: float, lag: float = 1.0) -> SlowSites:
    for tenth in range(round(from_s * 10), round(until_s * 10) + 1):
        marks = marks.update(paces(first_s, lag, tenth / 10), tenth / 10)
    return marks


SLOW = SlowSites(slow=frozenset({"site-1"}))


def test_a_site_is_slow_after_some_time_over_two_and_a_half_times_the_others() -> None:
    assert marked(SlowSites(), 2.6, 10.0, 10.0 + SLOW_AFTER_S - 0.1).slow == frozenset()
    assert marked(SlowSites(), 2.6, 10.0, 10.0 + SLOW_AFTER_S).slow == {"site-1"}
    assert marked(SlowSites(), 2.4, 10.0, 20.0).slow == frozenset()


def test_the_time_begins_anew_after_a_break() -> None:
    marks = marked(SlowSites(), 2.6, 10.0, 10.2)
    marks = marks.update(paces(1.0), 10.3)
    assert marked(marks, 2.6, 10.4, 10.6).slow == frozenset()


def test_slowness_without_a_lag_does_not_count() -> None:
    assert marked(SlowSites(), 9.0, 10.0, 20.0, lag=SLOW_LAG_MIN - 0.01).slow == frozenset()


def test_a_site_whose_speed_is_not_known_is_not_slow() -> None:
    assert marked(SlowSites(), None, 10.0, 20.0).slow == frozenset()


def test_without_others_no_site_is_slow() -> None:
    assert SlowSites().update(paces(9.0)[:1], 10.0).update(paces(9.0)[:1], 20.0).slow == frozenset()


def test_a_site_is_slow_no_longer_after_three_seconds_under_one_and_a_half_times() -> None:
    assert marked(SLOW, 1.4, 10.0, 10.0 + FAST_AFTER_S - 0.1).slow == {"site-1"}
    assert marked(SLOW, 1.4, 10.0, 10.0 + FAST_AFTER_S).slow == frozenset()
    assert marked(SLOW, 1.6, 10.0, 20.0).slow == {"site-1"}


def test_a_slow_site_without_a_known_speed_is_slow_no_longer() -> None:
    assert marked(SLOW, None, 10.0, 14.0).slow == frozenset()


def test_a_site_that_holds_nothing_is_not_listed_and_not_slow() -> None:
    assert SLOW.update(paces(9.0)[1:], 10.0).slow == frozenset()


@pytest.mark.parametrize(("silent_s", "lag", "is_slow"), [(0.2, 1.0, False), (0.26, 1.0, True), (0.26, 0.0, False)])
def test_a_site_with_two_reports_missing_is_slow(silent_s: float, lag: float, is_slow: bool) -> None:
    silent, *others = paces(1.0, lag, at_s=10.0)
    later = [replace(other, reported_s=10.0 + silent_s) for other in others]
    assert SlowSites().update([silent, *later], 10.0 + silent_s).slow == ({"site-1"} if is_slow else frozenset())


def test_a_controller_that_was_stopped_suspects_no_site() -> None:
    assert SlowSites().update(paces(1.0, at_s=10.0), 90.0).slow == frozenset()


def test_half_of_the_sites_may_be_slow() -> None:
    both = [replace(pace, time_s=9.0, lag=1.0) if n < 2 else pace for n, pace in enumerate(paces(1.0))]
    assert SlowSites().update(both, 10.0).update(both, 10.4).slow == {"site-1", "site-2"}
    assert lower_median([]) == 0.0
