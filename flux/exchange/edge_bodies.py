"""Edge bodies: one body for several edges, with the rows of each for one range of sequence numbers.

A stage with several outgoing edges keeps one buffer for all of them. The protocol does not know the content of a body;
the sender on an edge takes the part of that edge. A stage with one edge has plain `Rows`, which are their only part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import TypeAlias

import numpy as np

from ..model.punctuation import Punctuation
from ..protocols.messages import RowCounts
from .partition_counts import count_rows
from .rows import PARTITION, Rows, new_token


class EdgeBodies:
    """The rows of each edge; all edges carry the punctuations. Immutable."""

    __slots__ = ("parts", "token")

    def __init__(self, parts: Mapping[int, Rows], token: int | None = None) -> None:
        self.parts = dict(parts)
        self.token = new_token() if token is None else token

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def on(self, edge: int) -> Rows:
        """Return the rows of `edge`."""
        return self.parts[edge]


LaneBody: TypeAlias = Rows | EdgeBodies


def rows_of_edges(body: LaneBody) -> tuple[Rows, ...]:
    """Return the rows of all edges, in the order of the edges."""
    return (body,) if isinstance(body, Rows) else tuple(body.parts.values())


def make_body(edges: Sequence[int], rows: Mapping[int, Rows], punctuations: tuple[Punctuation, ...] = ()) -> LaneBody:
    """Return the body for `edges`; edges without rows carry only the punctuations."""
    parts = {edge: rows[edge] if edge in rows else Rows(None, punctuations) for edge in edges}
    return next(iter(parts.values())) if len(parts) == 1 else EdgeBodies(parts)


def row_counts(edges: Sequence[int], body: LaneBody) -> RowCounts:
    """Return how many rows of a body for `edges` each consumer partition gets."""
    counts: tuple[tuple[int, int, int], ...] = ()
    for edge in edges:
        rows = body.on(edge)
        if len(rows):
            found = count_rows(rows.hidden(PARTITION))
            partitions = np.flatnonzero(found)
            counts += tuple(zip(repeat(edge), partitions.tolist(), found[partitions].tolist(), strict=False))
    return counts


def cut_body(edges: Sequence[int], body: LaneBody, counts: RowCounts) -> LaneBody:
    """Return the body with the rows of the consumer partitions in `counts` only; a recording takes both for one.

    What waits in a file stays there as it is: it takes no memory.
    """
    needed: dict[int, list[int]] = {edge: [] for edge in edges}
    for edge, partition, _ in counts:
        needed[edge].append(partition)
    parts = {edge: body.on(edge).of_partitions(partitions) for edge, partitions in needed.items()}
    return next(iter(parts.values())) if isinstance(body, Rows) else EdgeBodies(parts, body.token)
