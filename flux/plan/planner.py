"""Planner: from the logical dataflow to stages and the edges between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..exchange.routes import Route
from ..types.errors import PlanError
from .graph import ExchangeNode, FlowNode, Input, Order, SourceNode, StepNode, root_of, upstream_of
from .plan import INPUT, Availability, Edge, Plan, Segment


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A sink, and the tails whose rows it takes."""

    tails: tuple[FlowNode, ...]
    order: Order
    name: str


@dataclass(frozen=True, kw_only=True)
class Logical:
    """A dataflow as the user has written it: everything that was made, and where it ends."""

    name: str
    sources: tuple[SourceNode, ...]
    nodes: tuple[StepNode | ExchangeNode, ...]
    endings: tuple[Ending, ...]

    def plan(self, availability: Availability, **settings: Any) -> Plan:
        """The plan for a run with these settings; `availability` holds for exchanges that do not say."""
        reached = _reached(self.endings)
        self._check_all_is_reached(reached)
        layout = _Layout(reached)
        edges = [layout.edge(given, stage) for stage, node in layout.exchanges for given in node.inputs]
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

    def _check_all_is_reached(self, reached: Sequence[FlowNode]) -> None:
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
    """Which stage, and which place in it, each node has."""

    def __init__(self, reached: Sequence[FlowNode]) -> None:
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

    def stage(self, node: FlowNode) -> int:
        """The stage of a node; sources are in the ingress."""
        return self._stage.get(root_of(node), 0)

    def place(self, node: FlowNode) -> int:
        """Where in its segment's tree the output of a node is."""
        if isinstance(node, SourceNode):
            return INPUT - node.number
        return self._place.get(node, INPUT)

    def tree(self, stage: int) -> dict[str, Any]:
        """The steps of a segment, and from where each takes its rows."""
        nodes = self._steps.get(stage, [])
        return {
            "steps": tuple(node.step for node in nodes),
            "parents": tuple(self.place(node.parent) for node in nodes),
        }

    def segment(self, stage: int, node: ExchangeNode, availability: Availability) -> Segment:
        """The segment behind an exchange."""
        return Segment(
            columns=node.columns,
            partitions=node.partitions,
            availability=node.availability or availability,
            ordered=node.order == "sn",
            sides=node.sides,
            **self.tree(stage),
        )

    def edge(self, given: Input, consumer: int) -> Edge:
        """The edge by which a stage is given rows."""
        producer = self.stage(given.tail)
        tap = self.place(given.tail)
        return Edge(producer=producer, tap=tap, consumer=consumer, route=given.route, side=given.side)


def _reached(endings: Iterable[Ending]) -> list[FlowNode]:
    """Every node that some sink gets rows of, in the order in which they were made: those before it first."""
    found = upstream_of(tail for ending in endings for tail in ending.tails)
    # Sources have numbers of their own; they come before everything.
    return sorted(found, key=lambda node: (not isinstance(node, SourceNode), node.number))
