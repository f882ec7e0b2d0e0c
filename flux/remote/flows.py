"""A flow in a remote run: what all its processes must agree on, and what cannot be run so."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..dataflow import POOL_ROWS, Dataflow
from ..errors import PlanError
from ..plan import Availability, Plan, Policy
from ..sinks import Collect, Sink
from ..sources import Source


@dataclass(frozen=True, kw_only=True)
class RemoteFlow:
    """A dataflow as each process has rebuilt it."""

    plan: Plan
    source: Source
    sink: Sink

    @staticmethod
    def of(flow: Dataflow, sites: int, standby: int, availability: Availability, policy: Policy) -> RemoteFlow:
        """The flow for so many sites; `PlanError` if it needs a program that no remote run has."""
        plan = flow._plan(sites, standby, availability, POOL_ROWS, policy)
        assert flow._source is not None
        [(_, sink)] = flow._ends
        if isinstance(sink, Collect):
            raise PlanError(
                f"{flow.name}: flux.sinks.Collect holds the output in the program that started the run, and a remote "
                "run has none: use flux.sinks.Parquet(directory) or flux.sinks.Jsonl(path)"
            )
        if type(flow._source).start is not Source.start:
            raise PlanError(
                f"{flow.name}: source {type(flow._source).__name__} begins in the program that started the run, and a "
                "remote run has none: use Files, Lines, Generator or Table of flux.sources"
            )
        return RemoteFlow(plan=plan, source=flow._source, sink=sink)


def description(plan: Plan) -> str:
    """What tells one dataflow from another: processes with different ones must not meet."""
    segments = [
        [list(segment.columns), segment.partitions, segment.availability, [step.name for step in segment.steps]]
        for segment in plan.segments
    ]
    return json.dumps([plan.name, segments])
