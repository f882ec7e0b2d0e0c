"""The graph of a logical dataflow: sources, steps and exchanges as the user has connected them. It only grows.

A node names the nodes it takes rows from, and those are made before it: a cycle cannot be built. A *tail* is a node
whose rows a stream carries; the stream of a union has several.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from ..exchange.routes import Route
from ..model.operator import OperatorStep
from .plan import Availability

Order = Literal["sn", "any"]


@dataclass(frozen=True, eq=False, kw_only=True)
class SourceNode:
    """Source number `number` of the flow."""

    number: int
    name: str

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"source {self.name}"


@dataclass(frozen=True, eq=False, kw_only=True)
class StepNode:
    """An operator, or a stateless step, on the output of `parent`; in the same segment."""

    number: int
    parent: FlowNode
    step: OperatorStep


@dataclass(frozen=True, eq=False, kw_only=True)
class Input:
    """Rows of `tail` go to an exchange by `route`; in a join to one of its two sides."""

    tail: FlowNode
    route: Route
    side: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class ExchangeNode:
    """A new segment begins. If its inputs have different columns, `sides` are their schemas.

    If it `takes_skipped`, its input is the rows that were skipped in all segments that do not follow such an exchange.
    Without `balance`, its partitions are not moved to even out the load.
    """

    number: int
    inputs: tuple[Input, ...]
    columns: tuple[str, ...]
    partitions: int
    availability: Availability | None
    order: Order
    sides: tuple[pa.Schema, ...] = ()
    takes_skipped: bool = False
    balance: bool = True

    @property
    def title(self) -> str:
        """Its name in messages, much as the user wrote it."""
        if self.takes_skipped:
            return "skipped()"
        route = self.inputs[0].route
        arguments = [*map(repr, self.columns), *([] if route.by == "hash" else [f"by={route.by!r}"])]
        return f"{'join' if self.sides else 'exchange'}({', '.join(arguments)})"


FlowNode: TypeAlias = SourceNode | StepNode | ExchangeNode


def root_of(node: FlowNode) -> SourceNode | ExchangeNode:
    """Return where the segment of a node begins: at a source, in the ingress, or after an exchange."""
    while isinstance(node, StepNode):
        node = node.parent
    return node


def upstream_of(tails: Iterable[FlowNode]) -> set[FlowNode]:
    """Return these nodes and every node that they get rows from, directly or not."""
    waiting, found = list(tails), set[FlowNode]()
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if isinstance(node, StepNode):
            waiting.append(node.parent)
        elif isinstance(node, ExchangeNode):
            waiting += [each.tail for each in node.inputs]
    return found
