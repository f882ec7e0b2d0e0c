"""From the reports of sites to statistics: the estimator of the balancer.

`Estimates` is a value: each report makes another one. It compares sites by what their reports add up to
(`report_sums`) and by the lags that producers report, and knows which sites are slow (`slow_marks`). It decides nothing
else.

Reports come many times a second from each site, and all of them together must cost the controller little. While no site
may be slow or is silent, sites are compared every `MOMENT_INTERVAL_S` at most. Reports are added up when that is due,
and what only a policy looks at is made when it does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..protocols.balance_messages import Work
from ..protocols.balancer import RoundFacts
from ..protocols.messages import View
from .report_sums import ReportSums
from .site_layout import Layout
from .slow_marks import FAST_RATIO, SitePace, SlowSites, lower_median
from .speeds import Speed
from .statistics import LazySequence, Moment, PartitionStatistics, ReceivedWork, SiteStatistics, Statistics

REPORTS_RECENT = 10  # Reports that say how busy a site is at present.
REPORT_INTERVAL_S = 0.1  # Between reports of a site that has time for them.
MOMENTS_KEPT_S = 65.0
LATE_S = 0.25  # Since a site's last report that was counted: some are missing, and sites are compared at every report.
SAMPLES_SETTLED = 100  # Ten seconds.
MOMENT_INTERVAL_S = 0.1
IDLE_SPEED_KEPT_S = 300.0  # A site without copies is tried again after this: its load may have gone.


@dataclass(frozen=True, eq=False, kw_only=True)
class Estimates:
    """All that is known from the reports. It changes nothing in place; a `Balancer` begins with an empty one."""

    sums: ReportSums | None = None
    pending: tuple[ReceivedWork, ...] = ()  # Reports that are not in the sums yet.
    lags: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # By the node that reports them.
    moments: tuple[Moment, ...] = ()
    slow_sites: SlowSites = field(default_factory=SlowSites)
    compared_s: float = -math.inf  # When the sites were compared last.

    @cached_property
    def known(self) -> ReportSums:
        """What all reports add up to."""
        assert self.sums is not None, "a balancer has placed them"
        return self.sums.add(self.pending) if self.pending else self.sums

    def relocate(self, view: View, reserved: frozenset[str], at_s: float) -> Estimates:
        """Follow the placement of `view`, in which the `reserved` sites get no load."""
        if self.sums is None:
            sums = ReportSums.empty(Layout.of(view, reserved, None))
            return replace(self, sums=sums, slow_sites=SlowSites(slow=view.slow))
        return replace(
            self,
            sums=self.known.relocate(Layout.of(view, reserved, self.known.layout), view),
            pending=(),
            lags={node: lags for node, lags in self.lags.items() if view.alive(node)},
        )

    def observe(self, work: Work, at_s: float) -> Estimates:
        """Add a report that arrived at `at_s`."""
        assert self.sums is not None, "a balancer has placed them"
        lags = {**self.lags, work.node: dict(work.lags)}
        pending = self.pending
        if is_of_site := work.node in self.sums.layout.held:  # Else it is of an ingress or egress.
            pending = (*pending, ReceivedWork(at_s=at_s, work=work))
        after = Estimates(
            sums=self.sums,
            pending=pending,
            lags=lags,
            moments=self.moments,
            slow_sites=self.slow_sites,
            compared_s=self.compared_s,
        )
        return after._compare(at_s) if is_of_site and self._is_due(work, at_s) else after

    def _is_due(self, work: Work, at_s: float) -> bool:
        """Whether to compare the sites now: at times, and at every report while a site is slow or may become so."""
        if at_s - self.compared_s >= MOMENT_INTERVAL_S or self.slow_sites.since or self.slow_sites.slow:
            return True
        assert self.sums is not None, "a balancer has placed them"
        if any(reports and at_s - reports[-1].at_s > LATE_S for reports in self.sums.reports.values()):
            return True
        if not self.moments or 2 * work.busy_s < work.elapsed_s:
            return False
        usual_s = self.moments[-1].median_s * min([stage.positions for stage in work.stages], default=0)
        return work.busy_s > FAST_RATIO * usual_s

    def slow(self) -> frozenset[str]:
        """The sites that hold up the others (rule 35)."""
        return self.slow_sites.slow

    def greatest_time_s(self) -> float:
        """The greatest busy time per position of any site over its last second; 0 without reports."""
        times = []
        for reports in self.known.reports.values():
            recent = reports[-REPORTS_RECENT:]
            positions = sum(min((s.positions for s in r.work.stages), default=0) for r in recent)
            if positions:
                times.append(sum(r.work.busy_s for r in recent) / positions)
        return max(times, default=0.0)

    def statistics(self, facts: RoundFacts) -> Statistics:
        """All that a policy may know."""
        ended_s = facts.rounds[-1].ended_s or 0.0 if facts.rounds else 0.0
        return Statistics(
            at_s=facts.at_s,
            asked_s=facts.asked_s,
            sites=LazySequence(lambda: self._sites(facts.at_s)),
            partitions=LazySequence(lambda: self._partitions(facts)),
            rounds=facts.rounds,
            reports=LazySequence(lambda: self._reports_after(ended_s)),
            moments=self.moments,
        )

    def _reports_after(self, at_s: float) -> Iterator[ReceivedWork]:
        return (received for reports in self.known.reports.values() for received in reports if received.at_s > at_s)

    def _compare(self, at_s: float) -> Estimates:
        """Compare the sites at `at_s`: which are slow, and which has the greatest time per position."""
        known, lags = self.known, self._lags()
        paces, idle, interval_s = [], [], self._usual_interval_s()
        for site, held in known.layout.held.items():
            reports = known.reports.get(site)
            if not len(held):
                idle.append(site)
            elif reports:
                speed, last = known.speeds.get(site), reports[-1]
                paces.append(
                    SitePace(
                        site=site,
                        time_s=known.load[site] / speed.now if speed else None,
                        lag=lags.get(site, 0.0),
                        reported_s=last.at_s,
                        interval_s=max(last.work.elapsed_s, interval_s),
                    )
                )
        slow_sites = self.slow_sites.update(paces, at_s, idle)
        moments = self.moments
        if not moments or at_s - moments[-1].at_s >= MOMENT_INTERVAL_S:
            kept = moments if not moments or moments[0].at_s > at_s - MOMENTS_KEPT_S else moments[1:]
            moments = (*kept, *self._moment(lags, slow_sites.slow, at_s))
        return Estimates(sums=known, lags=self.lags, moments=moments, slow_sites=slow_sites, compared_s=at_s)

    def _usual_interval_s(self) -> float:
        """The time that may pass between reports of a site: the longest of late, of the median site that is not slow.

        On a machine with too much to do no process runs for half a second at times, and all sites report late in turn.
        """
        of_sites = [reports for site, reports in self.known.reports.items() if site not in self.slow_sites.slow]
        longest_s = [max([r.work.elapsed_s for r in reports[-REPORTS_RECENT:]]) for reports in of_sites if reports]
        return max(REPORT_INTERVAL_S, lower_median(longest_s))

    def _lags(self) -> dict[str, float]:
        """The greatest lag of each site that any of its producers reports."""
        greatest: dict[str, float] = {}
        for lags in self.lags.values():
            for site, lag in lags.items():
                greatest[site] = max(greatest.get(site, 0.0), lag)
        return greatest

    def _utilisation(self, site: str) -> float:
        """The part of its time for which a site was busy, by its last reports."""
        recent = self.known.reports.get(site, ())[-REPORTS_RECENT:]
        elapsed_s = sum([r.work.elapsed_s for r in recent])
        return sum([r.work.busy_s for r in recent]) / elapsed_s if elapsed_s else 0.0

    def _known_speeds(self, at_s: float) -> dict[str, Speed]:
        """The speed of every site; that of one without reports, or long without copies, is the median.

        Load that comes and goes at one site may be what has just come to another one. So while any site is volatile, a
        change must last for some time before its site is known by it.
        """
        sums = self.known
        median = lower_median(speed.value for speed in sums.speeds.values()) or 1.0
        unknown = Speed(value=median, error=math.inf, now=median, samples=0)
        is_volatile = any(speed.is_volatile for speed in sums.speeds.values())
        known = {}
        for site, held in sums.layout.held.items():
            speed = sums.speeds.get(site)
            if speed and not len(held) and at_s - sums.histories[site].last_s > IDLE_SPEED_KEPT_S:
                speed = None
            if speed and is_volatile and speed.samples < SAMPLES_SETTLED:
                speed = speed.averaged()
            known[site] = speed or unknown
        return known

    def _moment(self, lags: Mapping[str, float], marked: frozenset[str], at_s: float) -> tuple[Moment, ...]:
        """How the sites compare; nothing if none has anything to do."""
        sums, load, speeds = self.known, self.known.load, self._known_speeds(at_s)
        times = {site: load[site] / speeds[site].value for site in load}
        takers = [site for site in load if site not in sums.layout.reserved]
        total = sum(speeds[site].value for site in takers)
        top = max(times, key=lambda site: times[site], default=None)
        if top is None or not total or not times[top]:
            return ()
        others = [site for site in takers if site != top]
        slow = _slow_together(top, times)
        heaviest_s = float(sums.rates.max()) / max(speeds[site].value for site in takers)
        is_volatile = any(speeds[site].is_volatile for site in takers)
        moment = Moment(
            at_s=at_s,
            top=top,
            time_s=times[top],
            ideal_s=max(sum(load.values()) / total, heaviest_s),
            median_s=lower_median(times[site] for site in others if times[site]),
            speed_error=speeds[top].error,
            samples=speeds[top].samples,
            lag=max(lags.values(), default=0.0) if is_volatile else _lag_together(slow, lags),
            lag_least=min((lags.get(site, 0.0) for site in (takers if is_volatile else others)), default=1.0),
            utilisation_least=min(map(self._utilisation, takers if is_volatile else others), default=1.0),
            has_new_site=any(not load[site] and not speeds[site].samples for site in others),
            is_volatile=is_volatile,
            is_left=top in marked,
            slow=slow,
            is_single=top in sums.layout.single,
        )
        return (moment,)

    def _sites(self, at_s: float) -> Iterator[SiteStatistics]:
        sums, speeds, lags = self.known, self._known_speeds(at_s), self._lags()
        for site, load in sums.load.items():
            recent = sums.reports.get(site, ())
            speed = speeds[site]
            yield SiteStatistics(
                name=site,
                speed=speed.value,
                time_s=load / speed.value,
                speed_error=speed.error,
                speed_now=speed.now,
                samples=speed.samples,
                is_volatile=speed.is_volatile,
                lag=lags.get(site, 0.0),
                utilisation=self._utilisation(site),
                state_bytes=recent[-1].work.state_bytes if recent else 0,
                is_reserved=site in sums.layout.reserved,
                is_slow=site in self.slow_sites.slow,
            )

    def _partitions(self, facts: RoundFacts) -> Iterator[PartitionStatistics]:
        rates = self.known.rates.tolist()
        sizes = self._state_bytes()
        view = facts.view
        building = {(standby.stage, standby.partition) for standby in view.standby}
        for stage, offset in self.known.layout.offsets.items():
            for partition, copies in enumerate(view.copies[stage]):
                place = (stage, partition)
                is_held = place in building or place in facts.catching_up or stage in facts.pinned_stages
                yield PartitionStatistics(
                    stage=stage,
                    partition=partition,
                    work=rates[offset + partition],
                    copies=tuple(node if view.alive(node) else "" for node in copies),
                    state_bytes=sizes.get(place, 0),
                    is_movable=not is_held,
                )

    def _state_bytes(self) -> dict[tuple[int, int], int]:
        last = [reports[-1].work for reports in self.known.reports.values() if reports]
        return {(s.stage, p): size for work in last for s in work.stages for p, size in s.state_bytes}


def _slow_together(top: str, times: Mapping[str, float]) -> frozenset[str]:
    """The top site and those nearly as slow: nearer to it than to the usual."""
    usual_s = lower_median(times.values())
    return frozenset({top, *(site for site, time_s in times.items() if time_s > (times[top] + usual_s) / 2)})


def _lag_together(slow: frozenset[str], lags: Mapping[str, float]) -> float:
    """The part of the pools that is kept for the slow sites.

    They share a pool that is charged by destination, and none of several has much of it.
    """
    together = sum(lags.get(site, 0.0) for site in slow) / max(1.0, sum(lags.values()))
    return max([together, *(lags.get(site, 0.0) for site in slow)])
