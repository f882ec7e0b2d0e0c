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
transfer. Where all that take a row have such a quota, or are slow, the one that is furthest ahead is waited for as any
other is: to produce more would help none of them.

Runs may come with the number of rows for each consumer partition. Then the pool is charged for what each destination
still needs, so a slow site takes room for its own rows only (rule 37; thesis 5.1.1). The bodies keep more than that:
a pool that holds over half its bound asks for runs to be cut of which at most three quarters are needed.
A *divided* pool is the plain Exchange of thesis 4.3, for comparison: each destination has an equal part of the bound
for itself, and is waited for when its part is full. It needs counts.
"""

from __future__ import annotations

from dataclasses import replace

from .charges import Charges, Takers
from .charges import Dest as Dest
from .machine import Machine
from .messages import OutputRun, Position


class Buffer(Machine):
    """Runs of output, and what each destination has acknowledged."""

    def __init__(self, bound_rows: int, transfer_rows_max: int | None = None, divided: bool = False) -> None:
        self.bound_rows = bound_rows
        self.divided = divided
        self.transfer_rows_max = bound_rows if transfer_rows_max is None else transfer_rows_max
        self.rows = 0
        self.dropped: Position = 0  # No destination needs anything up to here.
        self.floors: dict[Dest, Position] = {}
        self.in_transfer: frozenset[Dest] = frozenset()  # Destinations with a state transfer in flight.
        self.quota_rows: dict[Dest, int] = {}  # Rows that may be kept for those, and for those that catch up.
        self.runs: list[OutputRun] = []
        self.reached: dict[Dest, Position] = {}  # How far those are that have acknowledged less (rule 31).
        self.counted = 0  # Rows of the runs with counts.
        self.charges = Charges()
        self.thin: dict[Position, None] = {}  # Where runs end of which at most three quarters are needed.

    def full(self) -> bool:
        """Whether the pool is used up. The last run put may exceed the bound: it cannot be cut."""
        if self.counted:
            return self._is_full_by_destination()
        if not self.quota_rows:
            return self.rows >= self.bound_rows
        if any(self.kept_for(dest) >= self.quota_rows.get(dest, self.bound_rows) for dest in self.floors):
            return True
        return any(self._kept_for_all(edge) >= self.bound_rows for edge in {edge for edge, _ in self.floors})

    def kept_for(self, dest: Dest) -> int:
        """Rows that `dest` has not acknowledged and needs; they cannot be dropped without it."""
        floor = self.floors[dest]
        if not self.counted:
            return sum([run.rows for run in self.runs if run.upto > floor])
        uncounted = 0 if self.rows == self.counted else self._uncounted_after(floor)
        return uncounted + self.charges.kept_for(dest, floor)

    def progress(self, dest: Dest) -> Position:
        """How far `dest` is, with all copies but those that are in transfer or catch up."""
        return max(self.floors[dest], self.reached.get(dest, 0))

    def note_reached(self, dest: Dest, position: Position) -> None:
        """Record how far `dest` is, if that is more than it has acknowledged."""
        if position > self.progress(dest):
            self.reached[dest] = position

    def rows_max(self, dest: Dest) -> int:
        """Rows that may be kept for `dest`: its quota if it has one, else the bound that it shares with the others."""
        return self.quota_rows.get(dest, self.bound_rows)

    @property
    def newest(self) -> Position:
        """The highest position of any run, also of partitions that have left."""
        return max([run.upto for run in self.runs], default=0)

    def entitle(self, dest: Dest, last: Dest | None = None) -> None:
        """Require acks of `dest` from now on: nothing that is still here is released without it (rule 2).

        If it was started again after `last`, what that one has acknowledged is durable, and counts for it.
        """
        self.floors.setdefault(dest, self.dropped if last is None else self.floors.get(last, self.dropped))

    def reserve(self, dest: Dest, donor: Dest) -> None:
        """Keep for `dest` what `donor` has not acknowledged, also if `dest` itself has (rule 3)."""
        floor, before = self.floors.get(donor, self.dropped), self.floors[dest]
        if floor < before:
            self.floors[dest] = floor
            self.note_reached(dest, before)
            self.charges.recharge(dest, before, self.runs, self.floors)

    def expect(self, in_transfer: frozenset[Dest]) -> None:
        """Set the destinations with a state transfer in flight; those whose transfer has finished are catching up."""
        self.in_transfer = in_transfer
        for dest in in_transfer:
            self.quota_rows[dest] = self.transfer_rows_max
        for dest in self.quota_rows.keys() - in_transfer:
            self._shrink_quota(dest, min(self.quota_rows[dest], self.kept_for(dest) + self.bound_rows))

    def route(self, takers: Takers) -> None:
        """Set the sites that take each consumer partition of each edge."""
        self.charges.route(takers, self.runs, self.floors)
        for run in self.runs:
            self._note_thin(run.upto)

    def put(self, run: OutputRun) -> None:
        """Add a run, unless every destination has acknowledged it already."""
        if run.upto > self.dropped:
            self.runs.append(run)
            self.rows += run.rows
            if run.counts:
                self.counted += run.rows
                self.charges.put(run, self.floors)
                self._note_thin(run.upto)

    def ack(self, dest: Dest, position: Position) -> None:
        """Record that `dest` has everything up to `position`, and release what no destination needs."""
        assert position >= self.floors[dest], f"{dest} went back from {self.floors[dest]} to {position}"
        is_catching_up = dest in self.quota_rows and dest not in self.in_transfer
        kept = self.kept_for(dest) if is_catching_up else 0
        self.floors[dest] = position
        if self.reached.get(dest, position + 1) <= position:
            del self.reached[dest]
        self._discharge(dest)
        if is_catching_up:
            self._shrink_quota(dest, self.quota_rows[dest] - (kept - self.kept_for(dest) + 1) // 2)
        self._release()

    def ack_all(self, dest: Dest) -> None:
        """Remove `dest`, which is dead and needs nothing any more (thesis 3.2.3.2)."""
        del self.floors[dest]
        self.quota_rows.pop(dest, None)
        self.reached.pop(dest, None)
        self._discharge(dest)
        self._release()

    def trim(self) -> list[OutputRun]:
        """Shorten the runs of which at most three quarters are needed, if over half of the pool is used.

        Return each as it is now: its body is to be cut down to the consumer partitions in its counts.
        """
        if not self.thin or 2 * self.rows <= self.bound_rows:
            return []
        cut: list[OutputRun] = []
        for place, run in enumerate(self.runs):
            if run.upto not in self.thin or not run.counts:
                continue
            needed, rest = self.charges.split(run, self.floors)
            if not rest:
                continue  # Another run ends there too, and that one is shortened.
            rows = min(run.rows, sum([count[2] for count in needed]))
            self.rows -= run.rows - rows
            self.counted -= run.rows - rows
            self.charges.trim(run.upto, sum([count[2] for count in rest]))
            self.runs[place] = replace(run, rows=rows, counts=needed)
            cut.append(self.runs[place])
        self.thin = {}
        return cut

    def forget(self, partitions: frozenset[int]) -> None:
        """Stop counting the rows of these partitions: a copy that returns brings its own."""
        self.runs = [replace(run, without=run.without | partitions) for run in self.runs]

    def clear(self) -> None:
        """Drop all runs and quotas: other sites answer for these rows, and no destination catches up with them."""
        self.runs = []
        self.rows = self.counted = 0
        self.quota_rows = {}
        self.reached = {}
        self.thin = {}
        self.charges.clear()

    def between(self, after: Position, upto: Position) -> tuple[OutputRun, ...]:
        """The runs with anything in (after, upto]; those of different partitions may overlap."""
        return tuple([run for run in self.runs if run.upto > after and run.after < upto])

    def _is_full_by_destination(self) -> bool:
        """Whether the pool is used up by what destinations need; one run of each is free (thesis 5.1.1)."""
        if self.divided:
            part = -(-self.bound_rows // max(1, len(self.floors)))
            return any(self._kept_beyond_one(dest) >= self.quota_rows.get(dest, part) for dest in self.floors)
        if any(self.kept_for(dest) >= rows for dest, rows in self.quota_rows.items()):
            return True
        uncounted = self._uncounted_rows()
        if uncounted + self.charges.rows < self.bound_rows:
            return False
        return uncounted + self.charges.beyond_one_run(self.floors, self.quota_rows, self.reached) >= self.bound_rows

    def _kept_for_all(self, edge: int) -> int:
        """Rows that no destination of an edge has consumed, if all of them have quotas."""
        dests = [dest for dest in self.floors if dest[0] == edge]
        if not self.quota_rows.keys() >= set(dests):
            return 0
        lead = max(map(self.progress, dests))
        return sum([run.rows for run in self.runs if run.upto > lead])

    def _uncounted_rows(self) -> int:
        """The rows of runs without counts that any destination without a quota needs, or if all have one, the first."""
        if self.rows == self.counted or not self.quota_rows:
            return self.rows - self.counted
        others = [self.floors[dest] for dest in self.floors.keys() - self.quota_rows.keys()]
        return self._uncounted_after(min(others or [max(map(self.progress, self.floors), default=self.newest)]))

    def _uncounted_after(self, floor: Position) -> int:
        return sum([run.rows for run in self.runs if run.upto > floor and not run.counts])

    def _kept_beyond_one(self, dest: Dest) -> int:
        return self.kept_for(dest) - self.charges.first_for(dest, self.floors[dest])

    def _discharge(self, dest: Dest) -> None:
        """Stop charging what `dest` was the last to need."""
        if self.counted:
            for position in self.charges.release(dest, self.floors):
                self._note_thin(position)

    def _note_thin(self, position: Position) -> None:
        if self.charges.is_thin(position):
            self.thin[position] = None

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
            if self.counted:
                self.counted = sum([run.rows for run in left if run.counts])
                self.charges.forget(self.dropped)
                self.thin = {position: None for position in self.thin if position > self.dropped}
