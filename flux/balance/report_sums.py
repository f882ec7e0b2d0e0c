"""What the reports of sites add up to: the work of partitions, the speeds of sites, their last reports.

`ReportSums` is a value: a batch of reports makes another one. Reports are added a few at a time. That is far less work
than one by one, because what they need is then in the processor's caches once for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..protocols.messages import View
from .partition_work import PartitionWork
from .site_layout import Layout
from .speeds import Floats, Speed, SpeedHistory
from .stage_costs import StageCosts
from .statistics import ReceivedWork

REPORTS_KEPT_S = 30.0


@dataclass(frozen=True, eq=False, kw_only=True)
class ReportSums:
    """All that is known from the reports of sites that hold copies as `layout` has them."""

    layout: Layout
    work: PartitionWork
    costs: StageCosts = field(default_factory=StageCosts)
    histories: Mapping[str, SpeedHistory] = field(default_factory=dict)
    reports: Mapping[str, tuple[ReceivedWork, ...]] = field(default_factory=dict)

    @classmethod
    def empty(cls, layout: Layout) -> ReportSums:
        """No report yet."""
        return cls(layout=layout, work=PartitionWork.empty(layout.count))

    def relocate(self, layout: Layout, view: View) -> ReportSums:
        """Follow a new placement. What was known of sites that are gone is forgotten."""
        return replace(
            self,
            layout=layout,
            histories={site: history for site, history in self.histories.items() if view.alive(site)},
            reports={site: reports for site, reports in self.reports.items() if view.alive(site)},
        )

    def add(self, received: Sequence[ReceivedWork]) -> ReportSums:
        """Return the sums with these reports, in the order of their arrival."""
        layout, work, costs = self.layout, self.work.copy(), self.costs
        histories, reports = dict(self.histories), dict(self.reports)
        for each in received:
            at_s, site, stages = each.at_s, each.work.node, each.work.stages
            work.fade_in_place(at_s)
            for stage in stages:
                held = layout.partitions[site, stage.stage]
                work.add_in_place(stage, layout.offsets[stage.stage], held, layout.copies)
            costs = costs.add(each.work, at_s)
            last = reports.get(site, ())
            if last and layout.is_settled(site, last[-1].work, each.work):
                done = sum(
                    [costs.of(stage.stage) * work.weighed(stage, layout.offsets[stage.stage]) for stage in stages]
                )
                histories[site] = histories.get(site, _NO_HISTORY).add(done, each.work.busy_s, at_s)
            reports[site] = (*last[bisect_right(last, at_s - REPORTS_KEPT_S, key=_arrival) :], each)
        return ReportSums(layout=layout, work=work, costs=costs, histories=histories, reports=reports)

    @cached_property
    def rates(self) -> Floats:
        """The work per position of each partition, after the last report."""
        rates = self.work.per_position(self.layout.stages)
        return rates * self.costs.array(self.layout.stages) if self.costs.costs else rates

    @cached_property
    def load(self) -> dict[str, float]:
        """The work per position of each site's copies."""
        return self.layout.sums(self.rates)

    @cached_property
    def speeds(self) -> Mapping[str, Speed]:
        """The speeds that are known, by site."""
        found = ((site, history.speed()) for site, history in self.histories.items())
        return {site: speed for site, speed in found if speed is not None}


_NO_HISTORY = SpeedHistory()


def _arrival(received: ReceivedWork) -> float:
    return received.at_s
