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


class Fan:
    """The rows of each edge; punctuations are on all of them. Immutable."""

    __slots__ = ("parts", "token")

    def __init__(self, parts: Mapping[int, Rows]) -> None:
        self.parts = dict(parts)
        self.token = new_token()

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def on(self, edge: int) -> Rows:
        """What goes on `edge`."""
        return self.parts[edge]


Body: TypeAlias = Rows | Fan


def rows_in(body: Body) -> tuple[Rows, ...]:
    """The rows of all edges, in the order of these."""
    return (body,) if isinstance(body, Rows) else tuple(body.parts.values())


def body_of(edges: Sequence[int], rows: Mapping[int, Rows], marks: tuple[Punctuation, ...] = ()) -> Body:
    """The body for `edges`; those without rows carry the punctuations alone."""
    parts = {edge: rows[edge] if edge in rows else Rows(None, marks) for edge in edges}
    return next(iter(parts.values())) if len(parts) == 1 else Fan(parts)
