"""Admission: how many rows may be in flight so that they are emitted within a given time.

The latency of a row grows with the rows in flight before it, however fast each is processed. So with a limit on
latency, the ingress admits no more rows than are emitted in that time: a *window*. Its size depends on the machine, the
operators and the load, and is measured. When two windows of rows have been emitted, the longest latency among them is
compared with the limit, and the window shrinks or grows in that proportion. It grows only if it was full, because else
it did not hold rows back. Rows admitted before the last change say nothing about the present window and do not count.

Rows are admitted in pieces of a part of the window. A piece of a few rows costs as much as one of thousands. So while
others are in flight, rows wait a little for more; when nothing is in flight, they go at once (Nagle, RFC 896). So
pieces are small at a low rate, and grow with it.

No clock and no input or output: the ingress passes events and their times.
"""

from __future__ import annotations

from collections import deque

WINDOW_MIN_ROWS = 4_096  # With less, each piece costs more than its rows, and latency grows.
_FIRST_ROWS = 8_192
_PIECES = 2  # So many make a window.
_AIM = 0.7  # Of the limit, because the measured rows are emitted already.
_STEP_MAX = 2.0
_MEASURED_WINDOWS = 2  # In the first, there are fewer rows than the window allows.
_LINGER = 1 / 8  # Of the limit.


class Admission:
    """Admits rows after `upto` that are to be emitted within `limit_s`; at most `rows_max` are in flight."""

    def __init__(self, limit_s: float, rows_max: int, upto: int = 0) -> None:
        self.window_rows = min(_FIRST_ROWS, rows_max)
        self.linger_s = limit_s * _LINGER
        self._limit_s = limit_s
        self._rows_max = rows_max
        self._upto = upto
        self._out = upto
        self._in_flight: deque[tuple[int, float]] = deque()  # Up to which number, admitted when.
        self._worst_s = 0.0
        self._was_full = False
        self._changed_at = upto  # Rows after it were admitted with the present window.

    def has_room(self) -> bool:
        """Return whether another piece may be admitted; note if the window was full."""
        has_room = self.is_idle or self._upto + self.piece_rows - self._out <= self.window_rows
        self._was_full |= not has_room
        return has_room

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight."""
        return self._out >= self._upto

    @property
    def piece_rows(self) -> int:
        """The most rows that a piece has."""
        return max(1, self.window_rows // _PIECES)

    def let_in(self, upto: int, now: float) -> None:
        """Note that rows with the numbers up to `upto` are in flight."""
        self._upto = upto
        if upto > self._out:  # Else they were emitted before the ingress was started again.
            self._in_flight.append((upto, now))

    def come_out(self, upto: int, now: float) -> None:
        """Note that the output of the rows up to `upto` is at the sink."""
        while self._in_flight and self._in_flight[0][0] <= upto:
            position, since = self._in_flight.popleft()
            if position > self._changed_at:
                self._worst_s = max(self._worst_s, now - since)
        self._out = max(self._out, upto)
        if self._out >= self._changed_at + _MEASURED_WINDOWS * self.window_rows:
            self._adapt()

    def _adapt(self) -> None:
        factor = self._limit_s * _AIM / max(self._worst_s, 1e-6)
        if factor < 1 or self._was_full:
            rows = int(self.window_rows * min(max(factor, 1 / _STEP_MAX), _STEP_MAX))
            self.window_rows = min(max(rows, WINDOW_MIN_ROWS), self._rows_max)
        self._worst_s, self._was_full = 0.0, False
        self._changed_at = self._upto
