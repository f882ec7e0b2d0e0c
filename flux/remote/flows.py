"""A flow in a remote run: what all its processes must agree on, and what cannot be run so."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass

import pyarrow as pa

from ..dataflow import POOL_ROWS, Dataflow
from ..errors import PlanError
from ..plain import columns_of
from ..plan import Availability, Plan, Policy
from ..sinks import Collect, Sink
from ..sources import Source


@dataclass(frozen=True, kw_only=True)
class RemoteFlow:
    """A dataflow as each process has rebuilt it."""

    plan: Plan
    sources: tuple[Source, ...]
    sinks: tuple[Sink, ...]

    @staticmethod
    def of(flow: Dataflow, sites: int, standby: int, availability: Availability, policy: Policy) -> RemoteFlow:
        """The flow for so many sites; `PlanError` if it needs a program that no remote run has."""
        plan = flow._plan(sites, standby, availability, POOL_ROWS, policy)
        if any(isinstance(sink, Collect) for sink in flow._sinks):
            raise PlanError(
                f"{flow.name}: flux.sinks.Collect holds the output in the program that started the run, and a remote "
                "run has none: use flux.sinks.Parquet(directory) or flux.sinks.Jsonl(path)"
            )
        for source in flow._sources:
            if type(source).start is not Source.start:
                raise PlanError(
                    f"{flow.name}: source {type(source).__name__} begins in the program that started the run, and a "
                    "remote run has none: use Files, Lines, Generator or Table of flux.sources"
                )
        return RemoteFlow(plan=plan, sources=tuple(flow._sources), sinks=tuple(flow._sinks))


def description(plan: Plan) -> str:
    """What tells one dataflow from another: processes with different ones must not meet."""
    segments = [
        [
            *(segment.columns, segment.partitions, segment.availability, segment.ordered),
            [[step.name, step.level, _columns(step.output)] for step in segment.steps],
            segment.parents,
            [_columns(side) for side in segment.sides],
        ]
        for segment in (plan.first, *plan.segments)
    ]
    edges = [astuple(edge) for edge in plan.edges]
    return json.dumps([plan.name, segments, edges, plan.sinks, sorted(plan.unordered_sinks)], default=str)


def _columns(schema: pa.Schema | None) -> str | None:
    return None if schema is None else columns_of(schema)
