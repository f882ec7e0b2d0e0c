"""Panes of sessions: the state of each key, in stretches of event time that are one gap long.

Theory. Time is cut into *panes* of `gap_ms`. Two rows of a key in one pane are less than a gap apart, so they are in
one session, whatever rows follow. Each row is added to the pane of its time, in row order. Sessions are looked up only
when a watermark may close one. A session is a run of panes: a pane continues the session of the pane before it if its
earliest row is less than a gap after the latest row there. Only the very next pane can do that. A row between two
sessions joins them by being there: nothing is moved.

A pane is *due* when the watermark has passed its latest row by a gap. Then either the next pane continues the session,
and is marked as following, or the session is over. The panes of a session are merged from the oldest to the newest. The
data alone decides where panes begin and end, so sums of floats do not depend on batches.

A session that lasts for many gaps does not keep as many panes. When a pane is due, every further row for the panes
before it is late. So these are merged into the last of them: from the oldest to the newest, in the same order as when
the session closes, so the result is the same.

Due panes are found by an agenda, so a watermark costs as much as it closes, however many sessions are open. Only rows
that are kept, for quantiles and a user's functions, are scanned at each watermark that closes a session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model.batch import turn_order
from ..types.array_types import Int64s, Pids, Slots
from .agenda import Agenda
from .aggregates import Aggregate
from .key_order import in_order, order_numbers
from .window_panes import ClosedWindows, WindowPanes

__all__ = ["SessionPanes"]

# Fields of each pane: the times of its earliest and its latest row, including those of panes that were merged into it;
# whether no pane is known to follow it; and whether it follows the pane before it.
_FIELDS = {"earliest": np.int64, "latest": np.int64, "is_last": np.bool_, "follows": np.bool_}
_HORIZONS_PER_GAP = 8  # All panes are scanned so many times while event time advances by a gap.


@dataclass(frozen=True)
class _PaneRuns:
    """Panes of some sessions, by rank and then by session: rank 0 is the oldest pane of its session."""

    slots: Slots
    session: Int64s
    rank: Int64s


class SessionPanes(WindowPanes):
    """The panes of sessions."""

    def __init__(
        self, step: str, key: Sequence[str], aggregates: Sequence[Aggregate], rows: pa.Schema, gap_ms: int
    ) -> None:
        super().__init__(step, key, aggregates, rows, _FIELDS)
        self._gap_ms = gap_ms
        # The slot of the pane that each pane follows, or 0 while none is known at this site.
        self._previous: Slots = np.zeros(0, np.int64)
        # The last panes by their latest rows.
        self._agenda = Agenda(max(1, gap_ms // _HORIZONS_PER_GAP))

    # Rows.

    def add(self, rows: pa.RecordBatch, partition: Pids, instants: Int64s) -> None:
        slots, new = self._find(rows, partition, instants // self._gap_ms)
        values = self._table.values
        if new.any():
            fresh, at = slots.compress(new), instants.compress(new)
            values["earliest"][fresh] = values["latest"][fresh] = at
            values["is_last"][fresh], values["follows"][fresh] = True, False
            self._clear_previous(fresh)
            self._agenda.add(fresh, at)
        np.minimum.at(values["earliest"], slots, instants)
        np.maximum.at(values["latest"], slots, instants)
        self._accumulate(rows, slots, instants)

    # Time.

    def has_due(self, floor: int) -> bool:
        return self._agenda.earliest <= floor

    def close(self, before: Int64s, floor: Int64s) -> ClosedWindows | None:
        """Delete and return the sessions whose latest row is at or before the floor of their partition."""
        latest, is_last = self._table.values["latest"], self._table.values["is_last"]
        due = self._agenda.take_due(int(floor.max()), latest, is_last)
        # Partitions may have reached different times.
        waits = latest.take(due) > floor.take(self._table.partition.take(due))
        if waits.any():
            self._agenda.add(due.compress(waits), latest.take(due.compress(waits)))
            due = due.compress(~waits)
        return self._close_due(due) if len(due) else None

    def _close_due(self, due: Slots) -> ClosedWindows | None:
        values = self._table.values
        after = self._table.find_shifted(due, 1)
        continues = after != 0
        continues &= values["earliest"].take(after) - values["latest"].take(due) < self._gap_ms
        passed, following = due.compress(continues), after.compress(continues)
        values["is_last"][passed], values["follows"][following], self._previous[following] = False, True, passed
        over = due.compress(~continues)
        closed = self._take_sessions(self._in_output_order(over)) if len(over) else None
        if len(passed) and not self._logged:
            is_due = np.zeros(len(values["is_last"]), np.bool_)
            is_due[due] = True
            # If several panes of a session are due, the newest of them.
            self._merge_before(passed.compress(~is_due.take(following)))
        return closed

    def _in_output_order(self, newest: Slots) -> Slots:
        """Return the newest panes of sessions in the order in which the sessions are emitted."""
        numbers = [each for column in self._table.keys_of(newest) for each in order_numbers(column)]
        newest = newest.take(in_order([self._table.values["latest"].take(newest), *numbers]))
        return newest.take(turn_order(self._table.partition.take(newest)))

    def _take_sessions(self, newest: Slots) -> ClosedWindows:
        runs = self._runs_of(newest)
        values = self._table.values
        closed = ClosedWindows(
            self._table.keys_of(newest),
            self._table.partition.take(newest),
            values["earliest"].take(runs.slots[: len(newest)]),
            values["latest"].take(newest) + self._gap_ms,
            self._merge_runs(runs),
            self._log.grouped(runs.slots, runs.session, len(newest)),
        )
        self._delete(runs.slots)
        return closed

    def _runs_of(self, newest: Slots) -> _PaneRuns:
        """Return all panes of the sessions that have these newest panes."""
        slots, sessions = [newest], [np.arange(len(newest))]
        while len(more := np.flatnonzero(previous := self._previous.take(slots[-1]))):
            slots.append(previous.take(more))
            sessions.append(sessions[-1].take(more))
        if len(slots) == 1:
            return _PaneRuns(newest, sessions[0], np.zeros(len(newest), np.int64))
        whole, session = np.concatenate(slots), np.concatenate(sessions)
        before_newest = np.repeat(np.arange(len(slots)), [len(some) for some in slots])
        rank = np.bincount(session).take(session) - 1 - before_newest
        order = np.lexsort((session, rank))
        return _PaneRuns(whole.take(order), session.take(order), rank.take(order))

    def _merge_runs(self, runs: _PaneRuns) -> dict[str, npt.NDArray[Any]]:
        """Return the accumulators of each session, merged from its oldest pane to its newest."""
        values = self._table.values
        begins = np.concatenate([[0], np.cumsum(np.bincount(runs.rank))])
        merged = {name: values[name].take(runs.slots[: begins[1]]) for name in self.kept.fields}
        for start, stop in pairwise(begins[1:].tolist()):
            self.kept.merge(merged, runs.session[start:stop], values, runs.slots[start:stop])
        return merged

    def _merge_before(self, due: Slots) -> None:
        """Merge all panes before each of these into one; further rows for them would be late."""
        values = self._table.values
        newest = self._previous.take(due)
        newest = newest.compress(self._previous.take(newest) != 0)
        if not len(newest):
            return
        runs = self._runs_of(newest)
        for name, array in self._merge_runs(runs).items():
            values[name][newest] = array
        self.kept.installed(values, newest)
        values["earliest"][newest] = values["earliest"].take(runs.slots[: len(newest)])
        values["follows"][newest], self._previous[newest] = False, 0
        is_newest = np.zeros(len(values["is_last"]), np.bool_)
        is_newest[newest] = True
        self._delete(runs.slots.compress(~is_newest.take(runs.slots)))

    def _delete(self, slots: Slots) -> None:
        self._table.values["is_last"][slots] = False
        super()._delete(slots)

    def _clear_previous(self, slots: Slots) -> None:
        more = len(self._table.partition) - len(self._previous)
        if more:
            self._previous = np.concatenate([self._previous, np.zeros(more, np.int64)])
        self._previous[slots] = 0

    # State by partition.

    def _installed(self, slots: Slots, values: Mapping[str, npt.NDArray[Any]]) -> None:
        self._clear_previous(slots)
        following = slots.compress(values["follows"])
        # Pieces are in the order of keys and panes: the pane that is followed is in this piece or in an earlier one.
        self._previous[following] = self._table.find_shifted(following, -1)
        self._agenda.add(slots.compress(values["is_last"]), values["latest"].compress(values["is_last"]))

    def drop(self, pid: int) -> Slots:
        dropped = super().drop(pid)
        self._table.values["is_last"][dropped] = False
        self._agenda.clear()
        return dropped
