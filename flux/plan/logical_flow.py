"""The logical dataflow while a user builds it: sources, nodes and sinks, and the plan of a run made from them.

`flux.Dataflow` and `flux.Stream` are its public API. A process of a remote run and a simulation run a dataflow in
another way: they need only this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from ..model.event_time import EventTime
from ..model.operator import operator_class, waits_for_watermarks
from ..model.stateless import assigned_time
from ..sinks import Sink
from ..sources import Source
from ..types.errors import PlanError
from .graph import ExchangeNode, FlowNode, SourceNode, StepNode, root_of
from .lineage import sources_of
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
        self._names: dict[StepNode, str] = {}

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

    def name_step(self, node: StepNode, name: str) -> None:
        """Give a step the name by which errors, metrics and changes of code call it."""
        if name in self._names.values() and self._names.get(node) != name:
            raise PlanError(f"dataflow {self.name!r} has a step named {name!r} already: each name is for one step")
        self._names[node] = name

    def add_sink(self, ending: Ending, sink: Sink, output: pa.Schema | None) -> None:
        """End a stream of these columns at `sink`."""
        self._endings.append(ending)
        self.sinks.append(sink)
        self.outputs.append(output)

    def check_event_time_place(self, name: str, tail: FlowNode) -> None:
        """Raise unless `stream.event_time` may follow `tail`: in the ingress, once for each source."""
        root = root_of(tail)
        if isinstance(root, ExchangeNode):
            raise PlanError(
                f"{name} follows {root.title}: the ingress sets the watermarks. Put event_time after the source, or "
                "after the map that makes the column, before the first exchange or join"
            )
        found = self._time_of(root.number)
        if found is not None:
            raise PlanError(
                f"{name}: {root.title} has event time already, its column {found.column!r}. A source has one: leave "
                "one of them out; before the stream is used several times, one event_time holds for all uses"
            )

    def _time_of(self, number: int) -> EventTime | None:
        """Return the event time of a source: that of `flow.source`, or of a `stream.event_time` after it."""
        steps = (node for node in self._nodes if isinstance(node, StepNode))
        assigned = ((root_of(node), assigned_time(node.step.factory)) for node in steps)
        own = self._source_nodes[number]
        return self.sources[number].event_time or next((time for root, time in assigned if time and root is own), None)

    def emits_watermarks(self, number: int) -> bool:
        """Return whether a source has event time, or may emit watermarks of its own."""
        return self._time_of(number) is not None or self.sources[number].emits_time is not False

    def plan(self, sites: int, standby: int, availability: Availability, pool_rows: int, policy: Policy) -> Plan:
        """Return the plan of a run with these settings; `PlanError` if they are invalid."""
        if availability not in ("pairs", "none"):
            raise PlanError(f"availability is 'pairs' or 'none', got {availability!r}")
        logical = Logical(
            name=self.name,
            sources=tuple(self._source_nodes),
            nodes=tuple(self._nodes),
            endings=tuple(self._endings),
            names=dict(self._names),
        )
        plan = logical.plan(availability, sites=sites, standby=standby, pool_rows=pool_rows, policy=policy)
        self._check_clocks(plan)
        self._check_idle()
        return replace(plan, notes=tuple(self._check_watermarks()))

    def _check_clocks(self, plan: Plan) -> None:
        """Raise if a step waits for a clock or a watermark that no source emits: it would wait for ever, silently."""
        emitted = {
            "clock": any(source.emits_time is not False or source.clock_ms is not None for source in self.sources),
            "watermark": any(map(self.emits_watermarks, range(len(self.sources)))),
        }
        for step in (step for segment in (plan.first, *plan.segments) for step in segment.steps):
            time = getattr(operator_class(step.factory, step.name), "notified_by", None)
            if time is not None and not emitted[time]:
                use = "clock_ms=100" if time == "clock" else 'event_time="column"'
                other = ', flux.wrap_bytewax(..., time="watermark") with event time' if time == "clock" else ""
                raise PlanError(
                    f"step {step.name!r}: its notify_at may ask to be notified by the {time}, and no source of the "
                    f"flow emits it: {', '.join(type(source).__name__ for source in self.sources)}. Use "
                    f"flow.source(..., {use}){other}; or time=None, for no notifications"
                )

    def _check_idle(self) -> None:
        """Raise if a source without event time is to hold back the watermark no longer."""
        for number, source in enumerate(self.sources):
            if source.idle_after_s is not None and self._time_of(number) is None:
                raise PlanError(
                    f"source {type(source).__name__}: idle_after_s={source.idle_after_s:g} says when it stops holding "
                    'back the watermark, and it has no event time. Name its column: flow.source(..., event_time="ts"), '
                    'or stream.event_time("ts") before the first exchange'
                )

    def _check_watermarks(self) -> Iterator[str]:
        """Raise if a step waits for watermarks that none of its sources emits, and one of these may never end.

        Yield a warning if a source might emit them, because it does not say whether it does.
        """
        for node in self._nodes:
            if not isinstance(node, StepNode) or not waits_for_watermarks(node.step):
                continue
            numbers = sorted(sources_of([node]))
            endless = dict.fromkeys(type(self.sources[n]).__name__ for n in numbers if self.sources[n].is_endless)
            if not endless or any(self._time_of(n) or self.sources[n].emits_time for n in numbers):
                continue
            text = (
                f"step {node.step.name!r} waits for event time, and {' and '.join(endless)} names none and may never "
                'end: nothing would ever close. Name the column of event time: flow.source(..., event_time="ts"), or, '
                'if a step makes it, stream.map(...).event_time("ts") before the first exchange'
            )
            if not any(map(self.emits_watermarks, numbers)):
                raise PlanError(text)
            yield f"dataflow {self.name!r}, {text}; if the source emits watermarks itself, let it say emits_time = True"
