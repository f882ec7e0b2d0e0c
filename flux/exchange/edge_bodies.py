"""Fan: a body for several edges: what each of them carries of one range of sequence numbers.

A stage with several edges out of it keeps one buffer for all of them. The protocol neither knows nor cares what is in a
body; whoever sends on an edge asks the body for its part. A stage with one edge has plain `Rows`, which are their only
part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ..model.punctuation import Punctuation
from .rows import Rows, new_token


class EdgeBodies:
    """The rows of each edge; punctuations are on all of them. Immutable."""

    __slots__ = ("parts", "token")

    def __init__(self, parts: Mapping[int, Rows], token: int | None = None) -> None:
        self.parts = dict(parts)
        self.token = new_token() if token is None else token

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def on(self, edge: int) -> Rows:
        """What goes on `edge`."""
        return self.parts[edge]


LaneBody: TypeAlias = Rows | EdgeBodies


def rows_of_edges(body: LaneBody) -> tuple[Rows, ...]:
    """The rows of all edges, in the order of these."""
    return (body,) if isinstance(body, Rows) else tuple(body.parts.values())


def make_body(edges: Sequence[int], rows: Mapping[int, Rows], punctuations: tuple[Punctuation, ...] = ()) -> LaneBody:
    """The body for `edges`; those without rows carry the punctuations alone."""
    parts = {edge: rows[edge] if edge in rows else Rows(None, punctuations) for edge in edges}
    return next(iter(parts.values())) if len(parts) == 1 else EdgeBodies(parts)
