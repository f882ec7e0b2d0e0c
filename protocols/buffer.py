"""The DTSB: the duplicate-eliminating, transient-skew buffer of one producer site (fig. 3.4).

It holds each run of output once, for all destinations, and a *floor* per destination: the position
that destination has acknowledged. A run leaves when every destination's floor has passed it; nothing
else releases it, sending in particular does not (rule 1). A destination ahead of the producer has a
floor above `produced`: the dangling acks of the thesis, without entries.

The thesis's cursors are the lanes of `fh_prod`; `reset` is the position of an attach. The bound is in
rows and limits what is produced, never what is sent: a full buffer holds only rows that may go out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .machine import Machine
from .messages import Position, Run


class Buffer(Machine):
    """Runs in order, and what each destination has acknowledged."""

    def __init__(self, bound_rows: int) -> None:
        self.bound_rows = bound_rows
        self.rows = 0
        self.produced: Position = 0
        self.dropped: Position = 0  # Everything up to here has left.
        self.floors: dict[str, Position] = {}
        self.runs: deque[Run] = deque()

    def full(self) -> bool:
        """Whether the pool is used up. The last run put may exceed the bound: it cannot be cut."""
        return self.rows >= self.bound_rows

    def entitle(self, dest: str) -> None:
        """`dest` must acknowledge from now on: nothing that is still here goes without it (rule 2)."""
        self.floors.setdefault(dest, self.dropped)

    def put(self, run: Run) -> None:
        """Append a run; one that every destination has acknowledged already leaves at once."""
        assert run.after == self.produced, f"run {run.after}..{run.upto} does not follow {self.produced}"
        self.runs.append(run)
        self.rows += run.rows
        self.produced = run.upto
        self._release()

    def ack(self, dest: str, position: Position) -> None:
        """`dest` has everything up to `position`."""
        assert position >= self.floors[dest], f"{dest} went back from {self.floors[dest]} to {position}"
        self.floors[dest] = position
        self._release()

    def ack_all(self, dest: str) -> None:
        """`dest` is dead and needs nothing any more (thesis 3.2.3.2)."""
        self.floors.pop(dest, None)
        self._release()

    def behind(self, position: Position) -> Iterator[Run]:
        """The runs with anything after `position`, in order."""
        return (run for run in self.runs if run.upto > position)

    def _release(self) -> None:
        # No destination at all means: drop nothing (rule 2).
        floor = min(self.floors.values(), default=self.dropped)
        while self.runs and self.runs[0].upto <= floor:
            run = self.runs.popleft()
            self.rows -= run.rows
            self.dropped = run.upto
