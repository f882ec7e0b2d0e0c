"""Lineage: where a column comes from, as far as the plan can tell, and whether it tells event time.

Steps without state stand between a source or an exchange and what uses their rows. `filter` changes no column, and
`select` says which column each of its own is; what `map`, `flat_map` or an operator makes is known to its function
alone, and a column is followed no further than to there.

A column *tells event time* as watermarks do if behind a watermark W no row is below W in it, but for late ones. Of a
source that is what `event_time` says. Of what a step makes, the step says it by its own `event_time`. There it is no
more than a promise: whoever relies on it counts the rows that break it.

What a step emits at a watermark W comes to the next one before W does. So it is in time if it is not below the one that
was before W. The ends of the windows that W closes are in time so, though none is beyond W; their beginnings are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ..model.operator import operator_class
from ..model.stateless import Filter, Select
from .graph import ExchangeNode, FlowNode, SourceNode, StepNode, upstream_of

__all__ = ["sources_of", "trace_columns", "why_not_event_time"]


def trace_columns(tail: FlowNode, column: str) -> tuple[FlowNode, str | None]:
    """Follow a column of `tail` back: return how far it can be followed, and its name there.

    The name is None if a function of a `select` made the column.
    """
    node, name = tail, column
    while isinstance(node, StepNode):
        made: Any = node.step.factory
        kind = made.func if isinstance(made, partial) else None
        if kind is Select:
            source = made.args[0].get(name, name)
            if not isinstance(source, str):
                return node, None
            name = source
        elif kind is not Filter:
            break
        node = node.parent
    return node, name


def why_not_event_time(tail: FlowNode, column: str, told: Mapping[int, str | None]) -> str | None:
    """Return why the plan does not know that a column of `tail` tells event time, and what to do; None if it does.

    `told` is, for each source by its number, the column that tells its event time.
    """
    node, name = trace_columns(tail, column)
    if name is None:
        assert isinstance(node, StepNode)
        return f"a function of {node.step.name} makes it: make it with map(..., event_time={column!r})"
    if isinstance(node, SourceNode):
        if told.get(node.number) == name:
            return None
        return f"source {node.name} does not tell event time by it: say flow.source(..., event_time={name!r})"
    if isinstance(node, ExchangeNode):
        found = (why_not_event_time(given.tail, name, told) for given in node.inputs)
        return next((why for why in found if why is not None), None)
    says = operator_class(node.step.factory, node.step.name)
    if getattr(says, "event_time", None) == name:
        return None
    if getattr(says, "passes_rows_on", False):
        return why_not_event_time(node.parent, name, told)
    if node.step.name.startswith(("map(", "flat_map(")):
        return f"{node.step.name} makes it: give that event_time={name!r}, if watermarks hold for what it makes"
    return f"{node.step.name} makes it: let it say `event_time = {name!r}`, if watermarks hold for what it emits"


def sources_of(tails: Iterable[FlowNode]) -> set[int]:
    """The numbers of the sources from which rows come to these nodes."""
    return {node.number for node in upstream_of(tails) if isinstance(node, SourceNode)}
