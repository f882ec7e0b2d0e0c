"""Stage output: what operators emitted, partitioned for the edges out of their stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..model.batch import Batch
from ..model.punctuation import Punctuation
from .edge_bodies import LaneBody, make_body
from .routes import Route
from .rows import Rows


class OutputEdge(NamedTuple):
    """Edge `number` takes the rows of the step at `tap` and deals them out by `route`."""

    number: int
    tap: int
    route: Route


def route_output(
    edges: Sequence[OutputEdge], outputs: Mapping[int, Batch], punctuations: tuple[Punctuation, ...]
) -> LaneBody:
    """Return the body for all edges; each row has the partition of the next stage that it goes to."""
    rows: dict[int, Rows] = {}
    for number, tap, route in edges:
        batch = outputs.get(tap)
        if batch is not None:
            rows[number] = Rows.routed(*route.distribute(batch), punctuations)
    return make_body([edge.number for edge in edges], rows, punctuations)
