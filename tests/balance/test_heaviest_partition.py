"""A partition cannot be cut: the site that has only the heaviest one is as good as it can be."""

from __future__ import annotations

from flux.balance import Estimates, Level, Moment
from flux.protocols.balance_messages import StageWork, Work
from flux.protocols.messages import View

VIEW = View(
    number=1,
    nodes=("ingress", "site-1", "site-2", "egress"),
    dead=frozenset(),
    copies=((("ingress",),), (("site-1",), ("site-2",), ("site-2",)), (("egress",),)),
)
ROWS = {"site-1": ((0, 600),), "site-2": ((1, 200), (2, 200))}


def last_moment() -> Moment:
    """How the sites compare after a second: site-1 has a partition with three fifths of all rows, and nothing else."""
    estimates = Estimates().relocate(VIEW, frozenset(), 0.0)
    for number in range(1, 11):
        for site, rows in ROWS.items():
            busy_s = sum(count for _, count in rows) / 10_000
            stage = StageWork(stage=1, positions=1_000, rows=rows, busy_s=busy_s)
            lags = (("site-1", 0.9), ("site-2", 0.0))
            work = Work(node=site, number=number, view=1, elapsed_s=0.1, busy_s=busy_s, stages=(stage,), lags=lags)
            estimates = estimates.observe(work, 0.1 * number)
    return estimates.moments[-1]


def test_no_gain_is_expected_of_a_site_that_has_the_heaviest_partition_alone() -> None:
    moment = last_moment()
    assert moment.top == "site-1"
    assert abs(moment.gain_most) < 1e-6
    assert not Level()._is_worth(moment)
