"""Planner: from the logical dataflow to stages and the edges between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..exchange.routes import Route
from ..model.operator import OperatorStep
from ..model.skipped_rows import SKIPPED_SCHEMA, SkippedRows
from ..types.errors import PlanError
from .graph import ExchangeNode, FlowNode, Input, Order, SourceNode, StepNode, root_of, upstream_of
from .plan import INPUT, Availability, Edge, Plan, Segment

_SKIPPED = OperatorStep(SkippedRows, {}, "skipped", key_columns=(), partitions=1, level=0, output=SKIPPED_SCHEMA)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A sink, and the tails whose rows it takes."""

    tails: tuple[FlowNode, ...]
    order: Order
    name: str


@dataclass(frozen=True, kw_only=True)
class Logical:
    """A dataflow as the user has written it: all its nodes, and its sinks."""

    name: str
    sources: tuple[SourceNode, ...]
    nodes: tuple[StepNode | ExchangeNode, ...]
    endings: tuple[Ending, ...]
    names: Mapping[StepNode, str] = field(default_factory=dict)  # Of steps that the user has named.

    def plan(self, availability: Availability, **settings: Any) -> Plan:
        """Return the plan for a run with these settings; `availability` is the default for exchanges."""
        reached = _reached_nodes(self.endings)
        self._check_all_reached(reached)
        layout = _Layout(reached, self.names)
        edges = [edge for stage, node in layout.exchanges for edge in layout.edges(stage, node)]
        last = len(layout.exchanges) + 1
        for sink, ending in enumerate(self.endings):
            edges += [layout.edge(Input(tail=tail, route=Route()), last + sink) for tail in ending.tails]
        return Plan(
            name=self.name,
            first=Segment(columns=(), partitions=1, availability="none", **layout.tree(0)),
            segments=tuple(layout.segment(stage, node, availability) for stage, node in layout.exchanges),
            edges=tuple(edges),
            sinks=len(self.endings),
            unordered_sinks=frozenset(n for n, ending in enumerate(self.endings) if ending.order == "any"),
            **settings,
        )

    def _check_all_reached(self, reached: Sequence[FlowNode]) -> None:
        for missing, nodes in (("source", self.sources), ("sink", self.endings)):
            if not nodes:
                raise PlanError(f"dataflow {self.name!r} has no {missing}: call .{missing}(...) before running it")
        made: tuple[FlowNode, ...] = (*self.sources, *self.nodes)
        found = set(reached)
        for node in made:
            if node not in found:
                what = node.step.name if isinstance(node, StepNode) else node.title
                raise PlanError(
                    f"dataflow {self.name!r}: {what} leads to no sink. End its stream with .sink(...), which may be "
                    "flux.sinks.Null(), or leave it out"
                )


class _Layout:
    """The stage of each node, and its place in it."""

    def __init__(self, reached: Sequence[FlowNode], names: Mapping[StepNode, str]) -> None:
        self._names = names
        exchanges = [node for node in reached if isinstance(node, ExchangeNode)]
        self.exchanges = list(enumerate(exchanges, start=1))
        self._stage: dict[FlowNode, int] = {node: stage for stage, node in self.exchanges}
        self._steps: dict[int, list[StepNode]] = {}
        self._place: dict[FlowNode, int] = {}
        for node in reached:
            if isinstance(node, StepNode):
                steps = self._steps.setdefault(self.stage(node), [])
                self._place[node] = len(steps)
                steps.append(node)
        after = _after_skipped(reached)
        # The stages whose skipped rows are a stream: each gets a step for them.
        stages = [0, *(stage for stage, node in self.exchanges if node not in after)] if after else []
        self._skipping = [stage for stage in stages if stage in self._steps] or stages[:1]

    def stage(self, node: FlowNode) -> int:
        """Return the stage of a node; sources are in the ingress."""
        return self._stage.get(root_of(node), 0)

    def place(self, node: FlowNode) -> int:
        """Return the place of a node's output in its segment's tree."""
        if isinstance(node, SourceNode):
            return INPUT - node.number
        return self._place.get(node, INPUT)

    def tree(self, stage: int) -> dict[str, Any]:
        """Return the steps of a segment, and the place from which each takes its rows."""
        nodes = self._steps.get(stage, [])
        steps = [replace(node.step, name=self._names.get(node, node.step.name)) for node in nodes]
        parents = [self.place(node.parent) for node in nodes]
        if stage in self._skipping:
            partitions = 1 if stage == 0 else dict(self.exchanges)[stage].partitions
            steps.append(replace(_SKIPPED, partitions=partitions))
            parents.append(INPUT)
        return {"steps": tuple(steps), "parents": tuple(parents)}

    def segment(self, stage: int, node: ExchangeNode, availability: Availability) -> Segment:
        """Return the segment after an exchange."""
        return Segment(
            columns=node.columns,
            partitions=node.partitions,
            availability=node.availability or availability,
            ordered=node.order == "sn",
            sides=node.sides,
            balance=node.balance,
            **self.tree(stage),
        )

    def edges(self, stage: int, node: ExchangeNode) -> list[Edge]:
        """Return the edges into the stage of an exchange."""
        if not node.takes_skipped:
            return [self.edge(each, stage) for each in node.inputs]
        taps = ((producer, len(self._steps.get(producer, []))) for producer in self._skipping)
        return [Edge(producer=producer, tap=tap, consumer=stage, route=Route()) for producer, tap in taps]

    def edge(self, taken: Input, consumer: int) -> Edge:
        """Return the edge by which a stage gets the rows of an input."""
        producer = self.stage(taken.tail)
        tap = self.place(taken.tail)
        return Edge(producer=producer, tap=tap, consumer=consumer, route=taken.route, side=taken.side)


def _reached_nodes(endings: Iterable[Ending]) -> list[FlowNode]:
    """Return every node that a sink gets rows from, in the order of creation: upstream nodes first."""
    found = upstream_of(tail for ending in endings for tail in ending.tails)
    # Sources are numbered on their own, and are first. What takes skipped rows takes them of all others, and is last.
    in_order = sorted(found, key=lambda node: (not isinstance(node, SourceNode), node.number))
    after = _after_skipped(in_order)
    return [node for node in in_order if node not in after] + [node for node in in_order if node in after]


def _after_skipped(in_order: Sequence[FlowNode]) -> set[FlowNode]:
    """Return the nodes that get skipped rows, directly or not."""
    found = set[FlowNode]()
    for node in in_order:
        inputs = [each.tail for each in node.inputs] if isinstance(node, ExchangeNode) else []
        inputs += [node.parent] if isinstance(node, StepNode) else []
        if any(each in found for each in inputs) or (isinstance(node, ExchangeNode) and node.takes_skipped):
            found.add(node)
    return found
