"""The logical dataflow while a user builds it: sources, nodes and sinks, and the plan of a run made from them.

`flux.Dataflow` and `flux.Stream` are its public API. A process of a remote run and a simulation run a dataflow in
another way: they need only this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from ..model.operator import operator_class
from ..sinks import Sink
from ..sources import Source
from ..types.errors import PlanError
from .graph import ExchangeNode, SourceNode, StepNode
from .plan import Availability, Plan
from .planner import Ending, Logical
from .policy import Policy

POOL_ROWS = 256 * 1024  # Rows that a producer buffers until its consumers have received them, before it waits.

N = TypeVar("N", StepNode, ExchangeNode)


class LogicalFlow:
    """Everything that was added to the dataflow `name`. It only grows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sources: list[Source] = []
        self.sinks: list[Sink] = []
        self.outputs: list[pa.Schema | None] = []  # The columns that each sink receives, if they are known.
        self._source_nodes: list[SourceNode] = []
        self._nodes: list[StepNode | ExchangeNode] = []
        self._endings: list[Ending] = []

    def add_source(self, source: Source) -> SourceNode:
        """Add a source; one ingress numbers the rows of all of them."""
        node = SourceNode(number=len(self.sources), name=type(source).__name__)
        self.sources.append(source)
        self._source_nodes.append(node)
        return node

    def add(self, make_node: Callable[..., N]) -> N:
        """Add a node and give it its number; the nodes that it takes rows from have lower ones."""
        node = make_node(number=len(self._nodes) + 1)
        self._nodes.append(node)
        return node

    def add_sink(self, ending: Ending, sink: Sink, output: pa.Schema | None) -> None:
        """End a stream of these columns at `sink`."""
        self._endings.append(ending)
        self.sinks.append(sink)
        self.outputs.append(output)

    def plan(self, sites: int, standby: int, availability: Availability, pool_rows: int, policy: Policy) -> Plan:
        """Return the plan of a run with these settings; `PlanError` if they are invalid."""
        if availability not in ("pairs", "none"):
            raise PlanError(f"availability is 'pairs' or 'none', got {availability!r}")
        logical = Logical(
            name=self.name,
            sources=tuple(self._source_nodes),
            nodes=tuple(self._nodes),
            endings=tuple(self._endings),
        )
        plan = logical.plan(availability, sites=sites, standby=standby, pool_rows=pool_rows, policy=policy)
        _check_time_sources(plan, self.sources)
        return plan


def _check_time_sources(plan: Plan, sources: list[Source]) -> None:
    """Raise if a step waits for a clock or a watermark that no source emits: it would wait for ever, silently."""
    emitted = {
        "clock": any(source.emits_time is not False for source in sources),
        "watermark": any(source.emits_time is not False or source.event_time is not None for source in sources),
    }
    for step in (step for segment in (plan.first, *plan.segments) for step in segment.steps):
        time = getattr(operator_class(step.factory, step.name), "notified_by", None)
        if time is not None and not emitted[time]:
            raise PlanError(
                f"step {step.name!r}: its notify_at asks to be notified by the {time}, and no source of the flow emits "
                f"it: {', '.join(type(source).__name__ for source in sources)}. Use flux.wrap_bytewax(..., "
                'time="watermark") and flow.source(..., event_time="column"); or time=None, for no notifications'
            )
