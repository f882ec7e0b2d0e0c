"""A site's process, without its loop."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from flux.plan import Plan, Segment
from flux.protocols.messages import Standby, State
from flux.site.shell import Surroundings
from flux.site.worker import Worker


def test_state_for_a_site_that_has_died_meanwhile_goes_nowhere() -> None:
    """The link goes when a view is read, and the machine steps that view later: until then it may send to the dead."""
    segment = Segment(columns=("n",), partitions=1, availability="pairs", steps=())
    plan = Plan(name="late", segments=(segment,), sites=2, standby=1, pool_rows=1)
    worker = Worker(Surroundings(plan=plan, directory=Path(tempfile.gettempdir()), run="", secret=b""), "site-1")
    worker._segments[1] = []
    standby = Standby(version=1, stage=1, partition=0, slot=1, node="site-3", donor="site-1")
    worker.node.view = replace(plan.view(), number=1, standby=(standby,), versions=1)
    assert not worker.links, "no view has been read, so nobody is linked"

    worker.send_state("site-3", State(sender="site-1", view=1, stage=1, version=1, position=0, runs=(), body=None))

    assert not worker.links
