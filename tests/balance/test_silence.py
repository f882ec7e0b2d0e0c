"""Reports that do not come: of one site, which is slow then, and of all in turn on a machine with too much to do."""

from __future__ import annotations

from flux.balance import Estimates
from flux.plan import Plan, Segment
from flux.protocols.balance_messages import StageWork, Work

SITES = ("site-1", "site-2", "site-3", "site-4")
SEGMENT = Segment(columns=("n",), partitions=8, availability="pairs", steps=())
VIEW = Plan(name="silent", segments=(SEGMENT,), sites=4, standby=0, pool_rows=100).view()
LAGS = tuple((site, 0.9) for site in SITES)


def report(estimates: Estimates, site: str, number: int, at_s: float, elapsed_s: float = 0.1) -> Estimates:
    rows = tuple((partition, 100) for partition in sorted(VIEW.held(1, site)))
    stage = StageWork(stage=1, positions=round(8_000 * elapsed_s), rows=rows, busy_s=0.9 * elapsed_s)
    busy_s = 0.9 * elapsed_s
    work = Work(node=site, number=number, view=0, elapsed_s=elapsed_s, busy_s=busy_s, stages=(stage,), lags=LAGS)
    return estimates.observe(work, at_s)


def silent(interval_s: float, long_s: float) -> Estimates:
    """After some reports, of which each site has one that took long, site-3 is silent for half a second."""
    estimates, numbers, at_s = Estimates().relocate(VIEW, frozenset(), 0.0), dict.fromkeys(SITES, 0), 0.0
    for turn in range(8):
        at_s += interval_s
        for place, site in enumerate(SITES):
            numbers[site] += 1
            elapsed_s = long_s if turn == 4 + place % 3 else interval_s
            estimates = report(estimates, site, numbers[site], at_s, elapsed_s)
    for late in range(1, 6):
        for site in ("site-1", "site-2", "site-4"):
            numbers[site] += 1
            estimates = report(estimates, site, numbers[site], at_s + 0.1 * late)
    return estimates


def test_a_site_is_slow_when_its_reports_are_missing_and_those_of_others_are_not() -> None:
    assert silent(0.1, long_s=0.1).slow() == {"site-3"}


def test_no_site_is_slow_for_a_silence_that_is_usual_among_all() -> None:
    assert silent(0.1, long_s=0.4).slow() == frozenset()


def test_a_silent_site_is_found_by_the_next_report_of_another() -> None:
    estimates, at_s = Estimates().relocate(VIEW, frozenset(), 0.0), 0.0
    for turn in range(1, 9):
        at_s = 0.1 * turn
        for site in SITES:
            estimates = report(estimates, site, turn, at_s)
    for number, late_s in enumerate((0.1, 0.2, 0.24, 0.26), 9):
        assert estimates.slow() == frozenset()
        estimates = report(estimates, "site-1", number, at_s + late_s)

    assert estimates.slow() >= {"site-3"}
