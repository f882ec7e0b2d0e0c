"""Which sites are not slow though they look so, and slow sites that have lost their copies: they are tried again."""

from __future__ import annotations

from dataclasses import replace

from flux.balance.slow_marks import (
    FAST_AFTER_S,
    MARKS_COUNTED_S,
    RETRY_AFTER_S,
    RETRY_MAX_S,
    SLOW_AFTER_S,
    SitePace,
    SlowSites,
)

OTHER = SitePace(site="site-1", time_s=1.0, lag=0.0, reported_s=0.0, interval_s=0.1)


def pace(time_s: float, at_s: float) -> SitePace:
    return SitePace(site="site-2", time_s=time_s, lag=1.0, reported_s=at_s, interval_s=0.1)


def after_a_while(*paces: SitePace) -> SlowSites:
    marks = SlowSites()
    for tenths in range(round(SLOW_AFTER_S * 10) + 1):
        marks = marks.update(paces, tenths / 10)
    return marks


def test_a_site_that_takes_far_longer_and_lags_is_slow() -> None:
    assert after_a_while(OTHER, pace(3.0, 0.0)).slow == {"site-2"}


def test_a_site_is_not_slow_while_every_other_one_lags_more() -> None:
    """Another one has recovered: it works off a backlog, in large steps that cost less for each row."""
    behind = replace(OTHER, lag=20.0)
    assert after_a_while(behind, pace(3.0, 0.0)).slow == frozenset()
    third = replace(OTHER, site="site-3")
    assert after_a_while(behind, third, pace(3.0, 0.0)).slow == {"site-2"}


def idle_for(marks: SlowSites, begin_s: float, lasts_s: float) -> SlowSites:
    for tenths in range(round(lasts_s * 10) + 1):
        marks = marks.update([OTHER], begin_s + tenths / 10, idle=["site-2"])
    return marks


def test_a_slow_site_without_copies_is_slow_for_a_while() -> None:
    marks = SlowSites(slow=frozenset({"site-2"}))
    assert idle_for(marks, 0.0, RETRY_AFTER_S - 0.1).slow == {"site-2"}
    assert idle_for(marks, 0.0, RETRY_AFTER_S).slow == frozenset()


def test_a_site_that_is_slow_again_is_tried_after_twice_as_long_up_to_a_bound() -> None:
    marks = idle_for(SlowSites(slow=frozenset({"site-2"})), 0.0, RETRY_AFTER_S)
    for expected_s in (20.0, 40.0, 80.0, 160.0, RETRY_MAX_S, RETRY_MAX_S):
        again = SlowSites(slow=frozenset({"site-2"}), retries=marks.retries)
        assert idle_for(again, 0.0, expected_s - 0.1).slow == {"site-2"}
        marks = idle_for(again, 0.0, expected_s)
        assert marks.slow == frozenset()


def test_a_site_that_was_fast_with_copies_begins_anew() -> None:
    marks = SlowSites(slow=frozenset({"site-2"}), retries={"site-2": 3})
    for tenths in range(round(FAST_AFTER_S * 10) + 1):
        marks = marks.update([OTHER, pace(1.0, tenths / 10)], tenths / 10)
    assert marks.slow == frozenset() and dict(marks.retries) == {}


def test_a_site_that_is_gone_is_not_slow() -> None:
    assert SlowSites(slow=frozenset({"site-2"})).update([OTHER], 0.0).slow == frozenset()


def slowest(count: int, lag: float = 1.0) -> list[SitePace]:
    """So many sites, each far slower than the one before it."""
    return [
        SitePace(site=f"site-{n}", time_s=3.0**n, lag=lag + n, reported_s=0.0, interval_s=0.1) for n in range(count)
    ]


def test_at_most_half_of_the_sites_are_slow_and_those_that_lag_most() -> None:
    for count in (2, 3, 4, 5):
        slow = after_a_while(*slowest(count)).slow
        assert slow == {f"site-{n}" for n in range(count)[count - count // 2 :]}


def test_a_site_that_was_marked_lately_is_marked_again_after_twice_as_long() -> None:
    marks, now_s, took_s = SlowSites(), 0.0, []
    for _ in range(3):
        began_s = now_s
        while "site-2" not in marks.slow:
            marks = marks.update([OTHER, pace(3.0, now_s)], now_s)
            now_s += 0.1
        took_s.append(round(now_s - began_s - 0.1, 1))
        while "site-2" in marks.slow:
            marks = marks.update([replace(OTHER, reported_s=now_s), pace(1.0, now_s)], now_s)
            now_s += 0.1
    assert took_s == [SLOW_AFTER_S, 2 * SLOW_AFTER_S, 4 * SLOW_AFTER_S]


def test_a_mark_of_long_ago_does_not_count() -> None:
    marks = SlowSites(marks={"site-2": (3, -MARKS_COUNTED_S), "site-9": (1, -MARKS_COUNTED_S)})
    assert dict(marks.update([OTHER], 0.0).marks) == {}, "nor is it kept"
    for tenths in range(round(SLOW_AFTER_S * 10) + 1):
        marks = marks.update([OTHER, pace(3.0, tenths / 10)], tenths / 10)
    assert marks.slow == {"site-2"}


def test_silence_marks_a_site_that_was_marked_lately_only_if_it_lasts() -> None:
    on_time = replace(OTHER, reported_s=1.0)
    lately = SlowSites(marks={"site-2": (1, 0.0)})
    assert SlowSites().update([on_time, pace(1.0, 0.4)], 1.0).slow == {"site-2"}
    assert lately.update([on_time, pace(1.0, 0.4)], 1.0).slow == frozenset()
    assert lately.update([on_time, pace(1.0, 0.4)], 1.0).update([on_time, pace(1.0, 0.4)], 1.7).slow == {"site-2"}
