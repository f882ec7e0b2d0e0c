"""Several slow sites share a pool: their lag counts together, and so does the time for which they have been slow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flux.balance import Level, Moment, PartitionStatistics, SiteStatistics, Statistics
from flux.balance.level import LAG_MIN, LAG_SINGLE_MIN

SLOW_S, USUAL_S = 2.0, 1.0
NAMES = [f"site-{n}" for n in (1, 2, 3, 4)]


def statistics(tops: list[str], lag: float, is_single: bool, slow: frozenset[str] = frozenset()) -> Statistics:
    """Four sites, of which one or more take twice as long, as a policy sees them every 0.1 s."""
    moments = tuple(
        Moment(
            at_s=1.0 + 0.1 * number,
            top=top,
            time_s=SLOW_S,
            ideal_s=1.25,
            median_s=USUAL_S,
            speed_error=0.003,
            samples=10,
            lag=lag,
            lag_least=0.0,
            is_single=is_single,
            slow=slow,
        )
        for number, top in enumerate(tops)
    )
    times = {name: SLOW_S if name in tops else USUAL_S for name in NAMES}
    return Statistics(
        at_s=moments[-1].at_s,
        sites=tuple(SiteStatistics(name=name, speed=8 / times[name], time_s=times[name]) for name in NAMES),
        partitions=[PartitionStatistics(stage=1, partition=p, work=1.0, copies=(NAMES[p % 4],)) for p in range(32)],
        moments=moments,
    )


@pytest.mark.parametrize(("is_single", "least"), [(False, LAG_MIN), (True, LAG_SINGLE_MIN)])
def test_single_copies_move_at_a_smaller_lag(is_single: bool, least: float) -> None:
    tops = ["site-2"] * 8
    assert Level().plan(statistics(tops, least + 0.01, is_single))
    assert not Level().plan(statistics(tops, least - 0.01, is_single))


def test_the_top_may_change_among_sites_that_are_slow_together() -> None:
    tops = ["site-1", "site-2"] * 4
    assert Level().plan(statistics(tops, 0.9, False, frozenset({"site-1", "site-2"})))
    assert not Level().plan(statistics(tops, 0.9, False))


@pytest.mark.parametrize(("utilisation", "moves"), [(0.5, True), (1.0, False)])
def test_a_site_that_waits_for_another_is_idle_though_rows_are_kept_for_it(utilisation: float, moves: bool) -> None:
    """It is a consumer of the second stage: it waits for the slow producer, and the others' rows for it are kept."""
    usual = statistics(["site-2"] * 8, 0.9, False)
    waiting = tuple(replace(each, lag_least=0.6, utilisation_least=utilisation) for each in usual.moments)
    assert bool(Level().plan(replace(usual, moments=waiting))) is moves
