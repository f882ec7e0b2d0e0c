"""Checks that the key of an exchange still is the key of the rows that an operator gets."""

from __future__ import annotations

from typing import Any

from ..exchange.routes import Route
from ..types.errors import PlanError
from .graph import ExchangeNode, FlowNode
from .lineage import trace_columns

__all__ = ["check_key_kept", "check_key_unchanged", "route_to_check"]


def check_key_unchanged(name: str, tail: FlowNode, root: ExchangeNode) -> None:
    """Raise if a select between an exchange and an operator makes another column of a key column."""
    replaced = [column for column in root.columns if trace_columns(tail, column)[1] != column]
    if replaced:
        raise PlanError(
            f"{root.title} partitions the rows for {name}, and a select between them makes another column of "
            f"{', '.join(map(repr, replaced))}: rows that are equal in it are in different partitions. Put the "
            f"select before the exchange, or after {name}, or give the new column another name"
        )


def route_to_check(tail: FlowNode, root: ExchangeNode) -> Route | None:
    """Return the route to `root` if the plan cannot prove that the steps after it keep the key; the rows must."""
    is_known = all(trace_columns(tail, column)[0] is root for column in root.columns)
    return None if is_known or root.partitions == 1 else root.inputs[0].route


def check_key_kept(name: str, schema: Any, root: ExchangeNode) -> None:
    """Raise if an operator that keeps its state by key has no key, or rows without a column of it."""
    if not root.columns:
        raise PlanError(
            f'{name} keeps its state by key: name its columns in an exchange by="hash" or by="range" before '
            'it, instead of by="any"'
        )
    gone = [column for column in root.columns if schema is not None and column not in schema.names]
    if gone:
        raise PlanError(
            f"{name} keeps its state by {', '.join(map(repr, root.columns))}, and a step between the exchange and "
            f"it has left out {', '.join(map(repr, gone))}: keep the column, or put the step after {name}"
        )
