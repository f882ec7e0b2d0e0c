"""Where copies are, as the estimates need it: also in dataflows that have none."""

from __future__ import annotations

import numpy as np

from flux.balance import Estimates
from flux.balance.site_layout import Layout
from flux.plan import Plan, Segment
from flux.protocols.balance_messages import Tick, Work
from flux.protocols.balancer import Balancer

SEGMENT = Segment(columns=("n",), partitions=4, availability="pairs", steps=())


def plan_of(*segments: Segment) -> Plan:
    return Plan(name="placed", segments=segments, sites=3, standby=0, pool_rows=100)


def test_partitions_are_numbered_through_all_stages_and_summed_by_site() -> None:
    view = plan_of(SEGMENT, SEGMENT).view()
    layout = Layout.of(view, frozenset(), None)
    assert (layout.count, layout.offsets) == (8, {1: 0, 2: 4})
    for site, held in layout.held.items():
        expected = [offset + p for stage, offset in layout.offsets.items() for p in sorted(view.held(stage, site))]
        assert held.tolist() == expected
    sums = layout.sums(np.arange(8.0))
    assert sums == {site: float(held.sum()) for site, held in layout.held.items()}
    assert sum(sums.values()) == 2 * 28


def test_a_dataflow_without_an_exchange_has_nothing_to_balance() -> None:
    balancer = Balancer(plan_of().view(), Estimates())
    assert balancer.step(Tick(at_s=1.0)) == []  # type: ignore[comparison-overlap]
    estimates = Estimates().relocate(plan_of().view(), frozenset(), 0.0)
    for number in range(1, 5):
        work = Work(node="site-1", number=number, view=1, elapsed_s=0.1, busy_s=0.05)
        estimates = estimates.observe(work, number / 10)
    assert estimates.moments == () and estimates.slow() == frozenset() and estimates.greatest_time_s() == 0.0
