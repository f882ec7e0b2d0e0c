"""The DTSB: the duplicate-eliminating, transient-skew buffer of one producer site (fig. 3.4).

It holds each run of output once, for all destinations, and a *floor* per destination site: the position
that all its copies have acknowledged. A run leaves when every destination's floor has passed it; nothing
else releases it, sending in particular does not (rule 1). A destination ahead of the producer has a
floor above what is produced: the dangling acks of the thesis, without entries.

The thesis's cursors are the lanes of `fh_prod`; `reset` is the position of an attach. The bound is in
rows and limits what is produced, never what is sent: a full buffer holds only rows that may go out.

While a copy is on its way to a site, that site acknowledges nothing: all would wait for a state that takes long. What
is kept for such a site counts against a bound of its own, `transfer_rows_max`. When the copy is there it catches up,
and what may be kept for it becomes less by half of what it acknowledges: half as many rows as it takes are produced, at
least, so nobody stops, and it has caught up when it has taken twice what was kept for it when it came, at most.
"""

from __future__ import annotations

from dataclasses import replace

from .machine import Machine
from .messages import OutputRun, Position

Dest = tuple[int, str]  # Edge and consumer node.


class Buffer(Machine):
    """Runs, and what each destination has acknowledged."""

    def __init__(self, bound_rows: int, transfer_rows_max: int | None = None) -> None:
        self.bound_rows = bound_rows
        self.transfer_rows_max = bound_rows if transfer_rows_max is None else transfer_rows_max
        self.rows = 0
        self.dropped: Position = 0  # No destination needs anything up to here.
        self.floors: dict[Dest, Position] = {}
        self.coming: frozenset[Dest] = frozenset()  # Destinations to which a copy is on its way.
        self.quota_rows: dict[Dest, int] = {}  # Rows that may be kept for those, and for who catches up.
        self.runs: list[OutputRun] = []

    def full(self) -> bool:
        """Whether the pool is used up. The last run put may exceed the bound: it cannot be cut."""
        if not self.quota_rows:
            return self.rows >= self.bound_rows
        return any(self.kept_for(dest) >= self.quota_rows.get(dest, self.bound_rows) for dest in self.floors)

    def kept_for(self, dest: Dest) -> int:
        """Rows that `dest` has not acknowledged; they cannot be dropped without it."""
        floor = self.floors[dest]
        return sum([run.rows for run in self.runs if run.upto > floor])

    @property
    def newest(self) -> Position:
        """How far the furthest run goes, also of partitions that have left."""
        return max([run.upto for run in self.runs], default=0)

    def entitle(self, dest: Dest) -> None:
        """`dest` must acknowledge from now on: nothing that is still here goes without it (rule 2)."""
        self.floors.setdefault(dest, self.dropped)

    def expect(self, coming: frozenset[Dest]) -> None:
        """Copies are on their way to these destinations, and to no others: who has his now catches up."""
        self.coming = coming
        for dest in coming:
            self.quota_rows[dest] = self.transfer_rows_max
        for dest in self.quota_rows.keys() - coming:
            self._shrink_quota(dest, min(self.quota_rows[dest], self.kept_for(dest) + self.bound_rows))

    def put(self, run: OutputRun) -> None:
        """Add a run; one that every destination has acknowledged already leaves at once."""
        if run.upto > self.dropped:
            self.runs.append(run)
            self.rows += run.rows

    def ack(self, dest: Dest, position: Position) -> None:
        """`dest` has everything up to `position`."""
        assert position >= self.floors[dest], f"{dest} went back from {self.floors[dest]} to {position}"
        is_behind = dest in self.quota_rows and dest not in self.coming
        kept = self.kept_for(dest) if is_behind else 0
        self.floors[dest] = position
        if is_behind:
            self._shrink_quota(dest, self.quota_rows[dest] - (kept - self.kept_for(dest) + 1) // 2)
        self._release()

    def ack_all(self, dest: Dest) -> None:
        """`dest` is dead and needs nothing any more (thesis 3.2.3.2)."""
        del self.floors[dest]
        self.quota_rows.pop(dest, None)
        self._release()

    def forget(self, partitions: frozenset[int]) -> None:
        """The rows of these partitions do not count any more: if a copy comes back, it brings its own."""
        self.runs = [replace(run, without=run.without | partitions) for run in self.runs]

    def clear(self) -> None:
        """Forget all runs: other sites answer for them, and nobody has to catch up with what was here."""
        self.runs = []
        self.rows = 0
        self.quota_rows = {}

    def between(self, after: Position, upto: Position) -> tuple[OutputRun, ...]:
        """The runs with anything in (after, upto]; they may overlap, being of different partitions."""
        return tuple([run for run in self.runs if run.upto > after and run.after < upto])

    def _shrink_quota(self, dest: Dest, rows: int) -> None:
        """`dest` catches up, and so many rows may be kept for it; or it has caught up and is like the others."""
        self.quota_rows[dest] = rows
        if min(rows, self.kept_for(dest)) < self.bound_rows:
            del self.quota_rows[dest]

    def _release(self) -> None:
        # No destination at all means: drop nothing (rule 2).
        self.dropped = min(self.floors.values(), default=self.dropped)
        left = [run for run in self.runs if run.upto > self.dropped]
        if len(left) < len(self.runs):
            self.runs = left
            self.rows = sum([run.rows for run in left])
