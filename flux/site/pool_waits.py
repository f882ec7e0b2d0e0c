"""Pool waits: for how long a process had input and nothing to do, because the pool of a stage was full: back-pressure.

The loop of a process waits when its inbox is empty and no work may begin. What the machines are then, they are until
the wait ends: so fullness is looked at once for each wait, while the process is idle. It is charged to the edge whose
consumer needs most of what the pool keeps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..protocols.inspection import blocking_edges
from ..protocols.node import Node

PoolWait = tuple[int, int, float]  # The stage that produces, the edge, and for how many seconds.


class PoolWaits:
    """The waits of one process for room in its pools, by stage and edge."""

    def __init__(self) -> None:
        # An ingress has input while rows of a source are at hand; of a stage on a site the machine knows.
        self._has_source_rows = False
        self._waited_s: dict[tuple[int, int], float] = {}
        self._open: tuple[tuple[int, int], ...] = ()
        self._since_s = 0.0

    def begin(self, node: Node) -> None:
        """Count the time until `end`, in which the loop waits, for the stages that are blocked."""
        self._open = blocking_edges(node)
        if self._open:
            self._since_s = time.monotonic()

    def end(self) -> None:
        """Count no further: the loop has something to do."""
        if self._open:
            self._add_open()
            self._open = ()

    @contextmanager
    def source_rows_at_hand(self) -> Iterator[None]:
        """Count waits of the ingress until the block ends: it has rows for which it needs room."""
        self._add_open()
        self._has_source_rows = True
        try:
            yield
        finally:
            self._add_open()
            self._has_source_rows = False

    def totals(self) -> tuple[PoolWait, ...]:
        """Return how long each edge was waited for since the process began."""
        self._add_open()
        return tuple((stage, edge, waited_s) for (stage, edge), waited_s in sorted(self._waited_s.items()))

    def _add_open(self) -> None:
        if not self._open:
            return
        now_s = time.monotonic()
        for stage, edge in self._open:
            if stage or self._has_source_rows:
                self._waited_s[stage, edge] = self._waited_s.get((stage, edge), 0.0) + now_s - self._since_s
        self._since_s = now_s
