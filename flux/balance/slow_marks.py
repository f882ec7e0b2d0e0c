"""Which sites are slow: those that hold up the others by far (rule 35).

A site is slow when its time per position is over 2.5 times that of the others for 0.3 s, or when two of its reports
are missing. It is slow no longer when it is under 1.5 times for 3 s.

Slowness without consequence does not count: at a tenth of the load a site at a fifth of its speed keeps up. What shows
the consequence is its lag: producers keep rows for it. A site that lags less than all others holds up none of them. One
that works off a backlog takes larger steps, and the others look slow beside it. Missing reports are counted by those of
the other sites that arrived meanwhile, so a controller that was stopped itself suspects no site. Where the reports of
most sites come late now and then, more time must pass: a busy machine lets no process run for a while, in turns.

A slow site that has lost its copies shows no speed any more. It is tried again after a while, and if it is slow still,
after twice as long.

Slow is relative: at most half of the sites are. On a machine that has too much to do every site looks slow at times,
and each mark costs all of them a view. So a site that was marked within the last minute is marked again only after
twice as long as the last time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SLOW_RATIO = 2.5
SLOW_AFTER_S = 0.3
SLOW_LAG_MIN = 0.25
REPORTS_MISSING_MAX = 2
REPORT_LATE_MAX = 0.5  # Of the time between two reports: how late one may be that is not missing.
FAST_RATIO = 1.5
FAST_AFTER_S = 3.0
MARKS_COUNTED_S = 60.0
MARK_DOUBLINGS_MAX = 5
RETRY_AFTER_S, RETRY_MAX_S = 10.0, 300.0  # A slow site without copies counts as slow for so long.


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePace:
    """One site that holds copies: its time per position at its present speed, its lag, its last report.

    `interval_s` is the time that may pass between its reports. Without a measured speed `time_s` is None.
    """

    site: str
    time_s: float | None
    lag: float
    reported_s: float
    interval_s: float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SlowSites:
    """The slow sites; and since when the others look slow, and these look fast or have no copies.

    `retries` are how often a site without copies was tried again since it was last seen to be fast. `marks` are how
    often each site was marked, each time within a minute of the last, and when it was last.
    """

    slow: frozenset[str] = frozenset()
    since: Mapping[str, float] = field(default_factory=dict)
    retries: Mapping[str, int] = field(default_factory=dict)
    marks: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    def update(self, paces: Iterable[SitePace], at_s: float, idle: Iterable[str] = ()) -> SlowSites:
        """Return the slow sites at `at_s`; the `idle` ones are known and have no copies."""
        listed = tuple(paces)
        slow, since, retries = set(), {}, dict(self.retries)
        for site in self.slow.intersection(idle):
            since[site] = self.since.get(site, at_s)
            if at_s - since[site] < min(RETRY_AFTER_S * 2 ** retries.get(site, 0), RETRY_MAX_S):
                slow.add(site)
            else:
                del since[site]
                retries[site] = retries.get(site, 0) + 1
        for pace in listed:
            others = [other for other in listed if other is not pace]
            was_slow = pace.site in self.slow
            is_silent = _is_silent(pace, others)
            if was_slow:
                looks_other, needed_s = _looks_fast(pace, others) and not is_silent, FAST_AFTER_S
            else:
                looks_other, needed_s = _looks_slow(pace, others) or is_silent, self._needed_s(pace, is_silent, at_s)
            if looks_other:
                since[pace.site] = self.since.get(pace.site, at_s)
            turns = looks_other and at_s - since[pace.site] + 1e-9 >= needed_s
            if turns:
                del since[pace.site]
                if was_slow:
                    retries.pop(pace.site, None)
            if was_slow != turns:
                slow.add(pace.site)
        slow -= self._too_many(listed, slow)
        marks = {site: (self._marks(site, at_s) + 1, at_s) for site in slow - self.slow}
        recent = {site: mark for site, mark in self.marks.items() if at_s - mark[1] < MARKS_COUNTED_S}
        return SlowSites(slow=frozenset(slow), since=since, retries=retries, marks={**recent, **marks})

    def _marks(self, site: str, at_s: float) -> int:
        """How often a site was marked lately."""
        count, last_s = self.marks.get(site, (0, at_s))
        return count if at_s - last_s < MARKS_COUNTED_S else 0

    def _needed_s(self, pace: SitePace, is_silent: bool, at_s: float) -> float:
        """For how long a site must look slow. Silence has lasted already when it shows."""
        marks = self._marks(pace.site, at_s)
        return 0.0 if is_silent and not marks else SLOW_AFTER_S * 2 ** min(marks, MARK_DOUBLINGS_MAX)

    def _too_many(self, paces: Iterable[SitePace], slow: set[str]) -> set[str]:
        """The sites beyond half of all that are not to be marked: new ones first, and those that lag least."""
        listed = tuple(paces)
        marked = [pace for pace in listed if pace.site in slow]
        marked.sort(key=lambda pace: (pace.site in self.slow, pace.lag), reverse=True)
        return {pace.site for pace in marked[len(listed) // 2 :]}


def lower_median(values: Iterable[float]) -> float:
    """The middle value, of two the lower one: half of all sites may be slow, and the others are still the measure.

    >>> lower_median([23.0, 1.0])
    1.0
    """
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0.0


def _median_s(others: Iterable[SitePace]) -> float:
    return lower_median(other.time_s for other in others if other.time_s)


def _looks_slow(pace: SitePace, others: Iterable[SitePace]) -> bool:
    median_s = _median_s(others)
    if not pace.time_s or not median_s:
        return False
    is_ahead = pace.lag < min(other.lag for other in others)
    return pace.time_s > SLOW_RATIO * median_s and pace.lag >= SLOW_LAG_MIN and not is_ahead


def _looks_fast(pace: SitePace, others: Iterable[SitePace]) -> bool:
    return not pace.time_s or pace.time_s < FAST_RATIO * _median_s(others)


def _is_silent(pace: SitePace, others: Iterable[SitePace]) -> bool:
    newest_s = max((other.reported_s for other in others), default=0.0)
    is_missing = newest_s - pace.reported_s >= (REPORTS_MISSING_MAX + REPORT_LATE_MAX) * pace.interval_s
    return is_missing and pace.lag >= SLOW_LAG_MIN
