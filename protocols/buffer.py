"""The DTSB: the duplicate-eliminating, transient-skew buffer of one producer site (fig. 3.4).

It holds each run of output once, for all destinations, and a *floor* per destination site: the position
that all its copies have acknowledged. A run leaves when every destination's floor has passed it; nothing
else releases it, sending in particular does not (rule 1). A destination ahead of the producer has a
floor above what is produced: the dangling acks of the thesis, without entries.

The thesis's cursors are the lanes of `fh_prod`; `reset` is the position of an attach. The bound is in
rows and limits what is produced, never what is sent: a full buffer holds only rows that may go out.
"""

from __future__ import annotations

from dataclasses import replace

from .machine import Machine
from .messages import Position, Run

Dest = tuple[int, str]  # Edge and consumer node.


class Buffer(Machine):
    """Runs, and what each destination has acknowledged."""

    def __init__(self, bound_rows: int) -> None:
        self.bound_rows = bound_rows
        self.rows = 0
        self.dropped: Position = 0  # No destination needs anything up to here.
        self.floors: dict[Dest, Position] = {}
        self.runs: list[Run] = []

    def full(self) -> bool:
        """Whether the pool is used up. The last run put may exceed the bound: it cannot be cut."""
        return self.rows >= self.bound_rows

    @property
    def newest(self) -> Position:
        """How far the furthest run goes, also of partitions that have left."""
        return max([run.upto for run in self.runs], default=0)

    def entitle(self, dest: Dest) -> None:
        """`dest` must acknowledge from now on: nothing that is still here goes without it (rule 2)."""
        self.floors.setdefault(dest, self.dropped)

    def put(self, run: Run) -> None:
        """Add a run; one that every destination has acknowledged already leaves at once."""
        if run.upto > self.dropped:
            self.runs.append(run)
            self.rows += run.rows

    def ack(self, dest: Dest, position: Position) -> None:
        """`dest` has everything up to `position`."""
        assert position >= self.floors[dest], f"{dest} went back from {self.floors[dest]} to {position}"
        self.floors[dest] = position
        self._release()

    def ack_all(self, dest: Dest) -> None:
        """`dest` is dead and needs nothing any more (thesis 3.2.3.2)."""
        del self.floors[dest]
        self._release()

    def forget(self, partitions: frozenset[int]) -> None:
        """The rows of these partitions do not count any more: if a copy comes back, it brings its own."""
        self.runs = [replace(run, without=run.without | partitions) for run in self.runs]

    def clear(self) -> None:
        """Forget all runs: other sites answer for them."""
        self.runs = []
        self.rows = 0

    def between(self, after: Position, upto: Position) -> tuple[Run, ...]:
        """The runs with anything in (after, upto]; they may overlap, being of different partitions."""
        return tuple([run for run in self.runs if run.upto > after and run.after < upto])

    def _release(self) -> None:
        # No destination at all means: drop nothing (rule 2).
        self.dropped = min(self.floors.values(), default=self.dropped)
        left = [run for run in self.runs if run.upto > self.dropped]
        if len(left) < len(self.runs):
            self.runs = left
            self.rows = sum([run.rows for run in left])
