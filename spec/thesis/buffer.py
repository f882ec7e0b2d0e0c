"""The internal buffer of an intermediate producer: marked entries and cursors. Thesis 3.2.2.2, fig. 3.4.

An entry is a sequence number, a tuple or none, and marks for the origins of the number: PROD for the operator
upstream, PRIM and SEC for the destinations. A number without a tuple is *dangling*: it was acknowledged before it was
produced. An entry is evicted when it has all the marks in `del`.

Only the identity of sequence numbers is used, never their order (3.2.5): entries are in the order in which their
tuples were put, and a cursor is a place in that order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .words import DESTS, PRIM, PROD, SEC, Part, Sn, p

Marks = frozenset[str]
DANGLING = -1  # The place of an entry whose tuple has not been put.


class Entry(Part):
    def __init__(self, sn: Sn) -> None:
        self.sn = sn
        self.place = DANGLING
        self.value = 0
        self.marks: Marks = frozenset()


class Buffer(Part):
    """Figure 3.4. `capacity` counts entries, dangling ones included."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: list[Entry] = []
        self.puts = 0
        self.cursor = dict.fromkeys(DESTS, 0)

    def key(self) -> tuple[Any, ...]:
        """Return the entries by number: two buffers that differ only in the order of acks behave alike."""
        entries = tuple(sorted((e.sn, e.place, e.value, tuple(sorted(e.marks))) for e in self.entries))
        return entries, self.puts, self.cursor[PRIM], self.cursor[SEC]

    def full(self) -> bool:
        return len(self.entries) >= self.capacity

    def holds(self, sn: Sn) -> bool:
        """Return whether there is an entry for `sn`: before it is produced, that is a dangling sequence number."""
        return any(entry.sn == sn for entry in self.entries)

    def peek(self, dest: str) -> Entry | None:
        """Return the first undelivered tuple for `dest`."""
        waiting = [e for e in self.entries if e.place >= self.cursor[dest] and dest not in e.marks]
        return min(waiting, key=lambda e: e.place) if waiting else None

    def advance(self, dest: str) -> None:
        """Move the cursor past the tuple that `peek` returns."""
        entry = self.peek(dest)
        assert entry is not None, f"nothing to advance over for {dest}"
        self.cursor[dest] = entry.place + 1

    def put(self, value: int, sn: Sn, del_: Marks) -> None:
        """Add a produced tuple to its dangling sequence number, if there is one, or as a new entry."""
        entry = self._entry(sn)
        assert entry.place == DANGLING, f"tuple {sn} is produced twice"
        entry.place, entry.value = self.puts, value
        self.puts += 1
        entry.marks |= {PROD}
        self._evict(del_)

    def ack(self, sn: Sn, dest: str, del_: Marks) -> None:
        """Note that `dest` has received `sn`, produced here or not."""
        self._entry(sn).marks |= {dest}
        self._evict(del_)

    def ack_all(self, dest: str, del_: Marks) -> None:
        """Drop what only the dead `dest` needed, and its dangling numbers (3.2.3.2, 3.4.2)."""
        self.entries = [entry for entry in self.entries if entry.marks != {dest}]
        for entry in self.entries:
            entry.marks |= {dest}
        self._evict(del_)

    def reset(self, dest: str) -> None:
        """Point the cursor of `dest` to the first tuple it has not acknowledged (3.2.3.2)."""
        places = [e.place for e in self.entries if e.place != DANGLING and dest not in e.marks]
        self.cursor[dest] = min(places, default=self.puts)

    def match(self, dest: str) -> None:
        """Copy the marks of the other destination to `dest`, and drop the entries that then have all or no marks.

        In the thesis reset() does this too (3.2.4.2), but at a reversal it must not: see the variant "one_reset" in
        `variants`.
        """
        for entry in self.entries:
            entry.marks -= {dest}
            if p(dest) in entry.marks:
                entry.marks |= {dest}
        self.entries = [entry for entry in self.entries if entry.marks and entry.marks != {PROD, PRIM, SEC}]

    def contents(self) -> Any:
        """Return the buffer as one immutable value, for state movement."""
        rows = tuple((e.sn, e.place, e.value, e.marks) for e in self.entries)
        return rows, self.puts, self.cursor[PRIM], self.cursor[SEC]

    def install(self, contents: Any, swap: bool) -> None:
        """Install `contents`; `swap` because primary and secondary are swapped at the new replica (3.4.3)."""
        rows, self.puts, primary, secondary = contents
        dest: Callable[[str], str] = p if swap else str
        self.entries = []
        for sn, place, value, marks in rows:
            entry = self._entry(sn)
            entry.place, entry.value = place, value
            entry.marks = frozenset(mark if mark == PROD else dest(mark) for mark in marks)
        self.cursor[dest(PRIM)], self.cursor[dest(SEC)] = primary, secondary

    def _entry(self, sn: Sn) -> Entry:
        for entry in self.entries:
            if entry.sn == sn:
                return entry
        entry = Entry(sn)
        self.entries.append(entry)
        return entry

    def _evict(self, del_: Marks) -> None:
        self.entries = [entry for entry in self.entries if not entry.marks >= del_]
