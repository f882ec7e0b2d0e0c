"""An agenda: finds the slots that are due, where each slot has a time that only grows.

Theory. Most slots are not due for a long time, and their times move on before that. So only slots with a time up to a
*horizon* are in the agenda, sorted by the time they had when they were added. When that time is reached, the present
time of the slot is looked up. All slots are scanned only when the horizon is reached.
"""

from __future__ import annotations

import numpy as np

from ..types.array_types import Bools, Int64s, Slots
from .event_time_state import BEFORE_TIME, END_OF_TIME
from .key_order import in_order

__all__ = ["Agenda"]


class Agenda:
    """Slots with times up to the horizon, which is `reach` after the floor at which it was set.

    >>> agenda, times, is_active = Agenda(10), np.array([3, 5, 8, 99]), np.ones(4, np.bool_)
    >>> agenda.take_due(4, times, is_active).tolist(), agenda.earliest
    ([0], 5)
    >>> times[1] = 9
    >>> agenda.take_due(8, times, is_active).tolist(), agenda.earliest
    ([2], 9)
    """

    def __init__(self, reach: int) -> None:
        self._reach = reach
        self.clear()

    def clear(self) -> None:
        """Forget all slots, which other keys may reuse, so that the next `take_due` scans all."""
        self._horizon = BEFORE_TIME
        self._slots, self._times = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._clear_added()

    def _clear_added(self) -> None:
        self._added: list[Slots] = []
        self._earliest_added: int = END_OF_TIME

    @property
    def earliest(self) -> int:
        """No slot is due before this time."""
        first = int(self._times[0]) if len(self._times) else END_OF_TIME
        return min(first, self._earliest_added, self._horizon + 1)

    def add(self, slots: Slots, times: Int64s) -> None:
        """Add slots that are not in the agenda, if their times are up to the horizon; a slot may occur repeatedly."""
        is_near = times <= self._horizon
        if is_near.any():
            self._added.append(np.unique(slots.compress(is_near)))
            self._earliest_added = min(self._earliest_added, int(times.min()))

    def take_due(self, floor: int, times: Int64s, is_active: Bools) -> Slots:
        """Remove and return the active slots with times up to `floor`; `times` and `is_active` are indexed by slot."""
        if floor > self._horizon:
            self._horizon = floor + self._reach
            slots = np.flatnonzero((times <= self._horizon) & is_active)
            self._slots = slots.take(in_order([times.take(slots)]))
            self._times = times.take(self._slots)
            self._clear_added()
        reached = int(np.searchsorted(self._times, floor, "right"))
        found = np.concatenate([self._slots[:reached], *self._added])
        self._slots, self._times = self._slots[reached:], self._times[reached:]
        self._clear_added()
        found = found.compress(is_active.take(found))
        now = times.take(found)
        is_due = now <= floor
        self.add(found.compress(~is_due), now.compress(~is_due))
        return found.compress(is_due)
