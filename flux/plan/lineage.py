"""The lineage of a column: where it comes from, as far as the plan can prove, and whether it is event time.

A column is traced back through stateless steps. `filter` changes no column, and `select` names the column that each of
its own is. Only the function of a `map`, `flat_map` or operator knows what its columns mean: the trace ends there.

A column *is event time* if after a watermark W no row is below W in it, except late ones. For a source, `event_time`
declares that. For the output of a step, the step's own `event_time` does. That is only a promise: an operator that
relies on it counts the rows that break it.

The next step gets what a step emits at a watermark W before it gets W. So a row is in time if it is not below the
watermark before W. The ends of the windows that W closes are in time, although none is above W; their starts are not.
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
    """Trace a column of `tail` back; return the node where the trace ends, and the column's name there.

    The name is None if a function of a `select` computes the column.
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


def why_not_event_time(tail: FlowNode, column: str, times: Mapping[int, str | None]) -> str | None:
    """Return why the plan does not know that a column of `tail` is event time, and what to do; None if it knows.

    `times` holds the event-time column of each source, by its number.
    """
    node, name = trace_columns(tail, column)
    if name is None:
        assert isinstance(node, StepNode)
        return f"a function of {node.step.name} makes it: make it with map(..., event_time={column!r})"
    if isinstance(node, SourceNode):
        if times.get(node.number) == name:
            return None
        return f"it is not the event time of source {node.name}: use flow.source(..., event_time={name!r})"
    if isinstance(node, ExchangeNode):
        found = (why_not_event_time(each.tail, name, times) for each in node.inputs)
        return next((why for why in found if why is not None), None)
    operator = operator_class(node.step.factory, node.step.name)
    if getattr(operator, "event_time", None) == name:
        return None
    if getattr(operator, "passes_rows_on", False):
        return why_not_event_time(node.parent, name, times)
    if node.step.name.startswith(("map(", "flat_map(")):
        return f"{node.step.name} makes it: give that event_time={name!r}, if watermarks hold for what it makes"
    return f"{node.step.name} makes it: let it say `event_time = {name!r}`, if watermarks hold for what it emits"


def sources_of(tails: Iterable[FlowNode]) -> set[int]:
    """Return the numbers of the sources from which these nodes get rows."""
    return {node.number for node in upstream_of(tails) if isinstance(node, SourceNode)}
