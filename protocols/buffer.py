"""The DTSB: the duplicate-eliminating, transient-skew buffer of one producer site (fig. 3.4).

It holds each run of output once, for all destinations, and a *floor* per destination site: the position
that all its copies have acknowledged. A run is released when every destination's floor has passed it. Nothing
else releases it; sending in particular does not (rule 1). A destination ahead of the producer has a
floor above what is produced: the dangling acks of the thesis, without entries.

The thesis's cursors are the lanes of `fh_prod`; `reset` is the position of an attach. The bound is in
rows and limits what is produced, never what is sent: a full buffer holds only rows that may be sent.

While a state transfer to a site is in flight, that site acknowledges nothing, and a transfer may take long. Rows kept
for such a site count against a bound of their own, `transfer_rows_max`. When the transfer has finished, the copy
catches up, and its quota shrinks by half of what it acknowledges. So at least half as many rows are produced as it
takes, and no producer stops. It has caught up after at most twice the rows that were kept for it at the end of the
transfer.
"""

from __future__ import annotations

from dataclasses import replace

from .machine import Machine
from .messages import OutputRun, Position

Dest = tuple[int, str]  # Edge and consumer node.


class Buffer(Machine):
    """Runs of output, and what each destination has acknowledged."""

    def __init__(self, bound_rows: int, transfer_rows_max: int | None = None) -> None:
        self.bound_rows = bound_rows
        self.transfer_rows_max = bound_rows if transfer_rows_max is None else transfer_rows_max
        self.rows = 0
        self.dropped: Position = 0  # No destination needs anything up to here.
        self.floors: dict[Dest, Position] = {}
        self.in_transfer: frozenset[Dest] = frozenset()  # Destinations with a state transfer in flight.
        self.quota_rows: dict[Dest, int] = {}  # Rows that may be kept for those, and for those that catch up.
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
        """The highest position of any run, also of partitions that have left."""
        return max([run.upto for run in self.runs], default=0)

    def entitle(self, dest: Dest, last: Dest | None = None) -> None:
        """Require acks of `dest` from now on: nothing that is still here is released without it (rule 2).

        If it was started again after `last`, what that one has acknowledged is durable, and counts for it.
        """
        self.floors.setdefault(dest, self.dropped if last is None else self.floors.get(last, self.dropped))

    def expect(self, in_transfer: frozenset[Dest]) -> None:
        """Set the destinations with a state transfer in flight; those whose transfer has finished are catching up."""
        self.in_transfer = in_transfer
        for dest in in_transfer:
            self.quota_rows[dest] = self.transfer_rows_max
        for dest in self.quota_rows.keys() - in_transfer:
            self._shrink_quota(dest, min(self.quota_rows[dest], self.kept_for(dest) + self.bound_rows))

    def put(self, run: OutputRun) -> None:
        """Add a run, unless every destination has acknowledged it already."""
        if run.upto > self.dropped:
            self.runs.append(run)
            self.rows += run.rows

    def ack(self, dest: Dest, position: Position) -> None:
        """Record that `dest` has everything up to `position`, and release what no destination needs."""
        assert position >= self.floors[dest], f"{dest} went back from {self.floors[dest]} to {position}"
        is_catching_up = dest in self.quota_rows and dest not in self.in_transfer
        kept = self.kept_for(dest) if is_catching_up else 0
        self.floors[dest] = position
        if is_catching_up:
            self._shrink_quota(dest, self.quota_rows[dest] - (kept - self.kept_for(dest) + 1) // 2)
        self._release()

    def ack_all(self, dest: Dest) -> None:
        """Remove `dest`, which is dead and needs nothing any more (thesis 3.2.3.2)."""
        del self.floors[dest]
        self.quota_rows.pop(dest, None)
        self._release()

    def forget(self, partitions: frozenset[int]) -> None:
        """Stop counting the rows of these partitions: a copy that returns brings its own."""
        self.runs = [replace(run, without=run.without | partitions) for run in self.runs]

    def clear(self) -> None:
        """Drop all runs and quotas: other sites answer for these rows, and no destination catches up with them."""
        self.runs = []
        self.rows = 0
        self.quota_rows = {}

    def between(self, after: Position, upto: Position) -> tuple[OutputRun, ...]:
        """The runs with anything in (after, upto]; those of different partitions may overlap."""
        return tuple([run for run in self.runs if run.upto > after and run.after < upto])

    def _shrink_quota(self, dest: Dest, rows: int) -> None:
        """Set the quota of a destination that catches up; remove the quota of one that has caught up."""
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
