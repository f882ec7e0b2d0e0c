"""Balance log: what a driver knows of the balance of a run: the load of each site, the rounds, and why copies moved."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from ..wire import reports

ROUNDS_MAX = 1_000  # A report has the last rounds, up to this number.
REASONS_MAX = 10_000
WAITS_MAX = 100  # Of one slow site, while it is slow: the last ones.
COPY_LOST = "a copy was lost"


@dataclass
class BalanceRound:
    """One round: moves that were planned together; `number` counts those of the whole run from 1."""

    number: int
    at: float
    last: reports.RoundChanged
    versions: list[int] = field(default_factory=list)  # The copies that were built for it.


@dataclass(frozen=True)
class SlowSpan:
    """A time in which a site was slow, and others did not wait for it; `until` is None while it is.

    At most `kept_rows` were kept for it. The source waited for it in the times `waits`, and `given_up` of its copies
    were given up.
    """

    site: str
    since: float
    until: float | None = None
    kept_rows: int = 0
    waits: tuple[tuple[float, float | None], ...] = ()
    given_up: int = 0

    def follow(self, load: reports.SiteLoad | None, now: float) -> SlowSpan:
        """Return the span with what is known of the site now."""
        if self.until is not None:
            return self
        is_slow = load is not None and load.slow
        waits = self._waits_at(is_slow and load is not None and load.time_left_s == 0.0, now)
        kept_rows = max(self.kept_rows, load.kept_rows) if load is not None and is_slow else self.kept_rows
        return replace(self, until=None if is_slow else now, kept_rows=kept_rows, waits=waits)

    def _waits_at(self, is_waited_for: bool, now: float) -> tuple[tuple[float, float | None], ...]:
        is_open = bool(self.waits) and self.waits[-1][1] is None
        if is_waited_for == is_open:
            return self.waits
        if is_open:
            return (*self.waits[:-1], (self.waits[-1][0], now))
        return (*self.waits, (now, None))[-WAITS_MAX:]


@dataclass
class BalanceLog:
    """Of a run that is not balanced, it stays empty."""

    loads: dict[str, reports.SiteLoad] = field(default_factory=dict)
    phase: str = "off"
    rounds: deque[BalanceRound] = field(default_factory=lambda: deque(maxlen=ROUNDS_MAX))
    slow_spans: deque[SlowSpan] = field(default_factory=lambda: deque(maxlen=ROUNDS_MAX))
    retired: deque[tuple[float, reports.CopiesRetired]] = field(default_factory=lambda: deque(maxlen=ROUNDS_MAX))
    _by_id: dict[reports.RoundId, BalanceRound] = field(default_factory=dict)
    _reasons: dict[int, tuple[str, int | None]] = field(default_factory=dict)  # By the version of the copy.
    _count: int = 0

    @property
    def round_count(self) -> int:
        """How many rounds have begun."""
        return self._count

    def apply_loads(self, report: reports.SiteLoads, now: float) -> None:
        """Take the loads of all sites."""
        loads = {load.site: load for load in report.sites}
        known = {span.site for span in self.slow_spans if span.until is None}
        new = [SlowSpan(site, now) for site, load in sorted(loads.items()) if load.slow and site not in known]
        self._replace_spans([span.follow(loads.get(span.site), now) for span in [*self.slow_spans, *new]])
        self.loads = loads
        self.phase = report.phase

    def apply_retired(self, report: reports.CopiesRetired, now: float) -> None:
        """Note that the copies of a slow site were given up."""
        if not any(span.site == report.site and span.until is None for span in self.slow_spans):
            self.slow_spans.append(SlowSpan(report.site, now))
        self._replace_spans(
            [
                replace(span, given_up=span.given_up + report.copies)
                if span.site == report.site and span.until is None
                else span
                for span in self.slow_spans
            ]
        )
        self.retired.append((now, report))

    def _replace_spans(self, spans: list[SlowSpan]) -> None:
        self.slow_spans.clear()
        self.slow_spans.extend(spans)

    def apply_round(self, report: reports.RoundChanged, now: float) -> None:
        """Take what is known of a round."""
        known = self._by_id.get(report.round)
        if known is None:
            self._count += 1
            known = BalanceRound(self._count, now - report.age_s, report)
            self.rounds.append(known)
            self._by_id = {each.last.round: each for each in self.rounds}
        known.last = report

    def apply_begun(self, report: reports.CopiesBegun) -> None:
        """Note why copies are built."""
        known = None if report.round is None else self._by_id.get(report.round)
        for version in report.versions:
            self._reasons[version] = (report.why, None if known is None else known.number)
            if known is not None:
                known.versions.append(version)
        while len(self._reasons) > REASONS_MAX:
            del self._reasons[next(iter(self._reasons))]

    def reason(self, version: int) -> dict[str, Any]:
        """Return why a copy was built, and in which round; that of a lost copy is in none."""
        why, number = self._reasons.get(version, (COPY_LOST, None))
        return {"why": why, "round": number}

    def rounds_to_plain(self, started_at: float, bytes_of: dict[int, int]) -> list[dict[str, Any]]:
        """Return the rounds for a report; `bytes_of` are those that were sent for each version of a copy."""
        return [
            {
                "round": each.number,
                "when_s": each.at - started_at,
                "why": each.last.why,
                "moves": each.last.moves,
                "dropped": each.last.dropped,
                "failed": each.last.failed,
                "bytes": sum(bytes_of.get(version, 0) for version in each.versions),
                "took_s": each.last.took_s,
                "gain_expected": each.last.gain_expected,
                "gain_measured": each.last.gain_measured,
            }
            for each in self.rounds
        ]

    def slow_to_plain(self, started_at: float) -> list[dict[str, Any]]:
        """Return the times in which sites were slow, for a report."""
        return [
            {
                "site": span.site,
                "when_s": span.since - started_at,
                "until_s": None if span.until is None else span.until - started_at,
                "kept_rows": span.kept_rows,
                "waits": [
                    {"when_s": since - started_at, "until_s": None if until is None else until - started_at}
                    for since, until in span.waits
                ],
                "given_up": span.given_up,
            }
            for span in self.slow_spans
        ]

    def events(self, started_at: float) -> list[tuple[float, str]]:
        """Return what happened to slow sites, for the timeline of a report."""
        found = [
            (at - started_at, f"{report.site} is given up, copies: {report.copies}") for at, report in self.retired
        ]
        for span in self.slow_spans:
            found.append((span.since - started_at, f"{span.site} is slow"))
            if span.until is not None:
                found.append((span.until - started_at, f"{span.site} is not slow any more"))
            for since, until in span.waits:
                found.append((since - started_at, f"the source waits for {span.site}"))
                if until is not None:
                    found.append((until - started_at, f"the source does not wait for {span.site} any more"))
        return found
