"""Lineage: what a column is called where it comes from, as far as the plan can tell.

Steps without state stand between a source or an exchange and what uses their rows. `filter` changes no column, and
`select` says which column each of its own is; what `map`, `flat_map` or an operator makes is known to its function
alone, and a column is followed no further than to there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..stateless import Filter, Select
from .graph import Node, StepNode

__all__ = ["traced"]


def traced(tail: Node, column: str) -> tuple[Node, str | None]:
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
