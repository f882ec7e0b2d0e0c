"""Grids: where windows of event time that have a fixed length begin and end.

Windows are numbered, and so are the panes that they are made of. `FixedGrid` counts milliseconds. `DayGrid` counts days
of a time zone, of which some are longer or shorter than others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..types.array_types import Int64s

__all__ = ["DayGrid", "FixedGrid", "WindowGrid"]

_DAY_MS = 86_400_000
_FARTHEST_DAY = 2_900_000  # The year 9909. Beyond it, days are those of UTC.


class WindowGrid:
    """Abstract base."""

    is_tumbling = True

    def floor_of(self, watermark: Int64s) -> Int64s:
        """Return the last instant that is in no window which ends after the watermark."""
        raise NotImplementedError

    def closed_at(self, floor: Int64s) -> Int64s:
        """Return the last window that is closed."""
        raise NotImplementedError

    def pane_of(self, instants: Int64s) -> Int64s:
        """Return the pane of each instant."""
        raise NotImplementedError

    def windows_of(self, pane: Int64s) -> tuple[Int64s, Int64s]:
        """Return the first and the last window that a pane is in."""
        return pane, pane

    def bounds_of(self, window: Int64s) -> tuple[Int64s, Int64s]:
        """Return where windows begin and end."""
        raise NotImplementedError


@dataclass(frozen=True)
class FixedGrid(WindowGrid):
    """Windows of `size_ms` that begin at multiples of `slide_ms`, plus `offset_ms`."""

    size_ms: int
    slide_ms: int
    offset_ms: int = 0

    @property
    def is_tumbling(self) -> bool:  # type: ignore[override]
        return self.slide_ms == self.size_ms

    def floor_of(self, watermark: Int64s) -> Int64s:
        open_from: Int64s = (watermark - self.offset_ms - self.size_ms) // self.slide_ms + 1
        return open_from * self.slide_ms + (self.offset_ms - 1)

    def closed_at(self, floor: Int64s) -> Int64s:
        closed: Int64s = (floor + (1 - self.offset_ms)) // self.slide_ms - 1
        return closed

    def pane_of(self, instants: Int64s) -> Int64s:
        pane: Int64s = (instants - self.offset_ms if self.offset_ms else instants) // self._pane_ms
        return pane

    def windows_of(self, pane: Int64s) -> tuple[Int64s, Int64s]:
        if self.is_tumbling:
            return pane, pane
        begins = pane * self._pane_ms
        return (begins - self.size_ms) // self.slide_ms + 1, begins // self.slide_ms

    def bounds_of(self, window: Int64s) -> tuple[Int64s, Int64s]:
        starts = window * self.slide_ms + self.offset_ms
        return starts, starts + self.size_ms

    @property
    def _pane_ms(self) -> int:
        return math.gcd(self.size_ms, self.slide_ms)


@dataclass(frozen=True)
class DayGrid(WindowGrid):
    """Windows of `days` days of a time zone, which begin `offset_ms` after midnight by its clocks.

    Day 0 is 1970-01-01. A day begins when the clocks first show its beginning, or at once after it if they skip it.

    >>> def midnight(day: str) -> int:
    ...     return int(np.datetime64(day, "ms").astype(np.int64))
    >>> starts, ends = DayGrid(1, "Europe/Oslo").bounds_of(np.array([midnight("2024-03-31") // _DAY_MS]))
    >>> (ends - starts) // 3_600_000
    array([23])
    """

    days: int
    zone: str
    offset_ms: int = 0

    def floor_of(self, watermark: Int64s) -> Int64s:
        return self._begins(self.pane_of(watermark) * self.days) - 1

    def closed_at(self, floor: Int64s) -> Int64s:
        return self.pane_of(floor + 1) - 1

    def pane_of(self, instants: Int64s) -> Int64s:
        # Clocks are less than a day from UTC, so the day is this one or one beside it.
        near = (instants - self.offset_ms) // _DAY_MS
        distinct, at = np.unique(near, return_inverse=True)
        is_reached = self._begins(distinct).take(at) <= instants
        day = near - 1 + is_reached + (self._begins(distinct + 1).take(at) <= instants)
        pane: Int64s = day // self.days
        return pane

    def bounds_of(self, window: Int64s) -> tuple[Int64s, Int64s]:
        return self._begins(window * self.days), self._begins((window + 1) * self.days)

    def _begins(self, day: Int64s) -> Int64s:
        """Return the instants at which days begin."""
        local = day * _DAY_MS + self.offset_ms
        is_known = np.abs(day) < _FARTHEST_DAY
        clocks = pa.array(np.where(is_known, local, 0)).cast(pa.timestamp("ms"))
        begins = pc.assume_timezone(clocks, self.zone, ambiguous="earliest", nonexistent="latest")
        return np.where(is_known, begins.cast(pa.int64()).to_numpy(), local)
