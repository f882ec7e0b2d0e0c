"""Admission: how many rows may be under way so that they come out within a given time.

Rows that wait for each other in buffers are late, however fast each is processed: what comes out takes as long as what
is under way in front of it. So with a limit on latency, the ingress lets in no more rows than come out in that time: a
*window*. How many those are depends on the machine, the operators and what else is going on, and is found by looking.
When two windows full of rows have come out, the longest that any of them took is compared with the limit, and the
window is made smaller or larger in that proportion; larger only if it was full, because else it was not what held
rows back. What was let in before the last change says nothing about the window as it is, and is not looked at.

Rows go in pieces of a part of the window. A piece of a few rows costs as much as one of thousands, so while others are
under way, rows wait a little for more to go with; when nothing is under way, they go at once (Nagle, RFC 896). So
pieces are as small as rows are few, and grow with the rate.

No clock and no input or output: the ingress tells what happens, and when.
"""

from __future__ import annotations

from collections import deque

WINDOW_MIN_ROWS = 4_096  # With less, each piece costs more than its rows, and all are later for it.
_FIRST_ROWS = 8_192
_PIECES = 2  # So many make a window.
_AIM = 0.7  # Of the limit, because what is measured is of rows that are out already.
_STEP_MAX = 2.0
_LOOK_WINDOWS = 2  # In the first, rows are not yet as many as the window allows.
_LINGER = 1 / 8  # Of the limit.


class Admission:
    """For rows behind `upto`, that are to come out within `limit_s`; at most `rows_max` are under way at once."""

    def __init__(self, limit_s: float, rows_max: int, upto: int = 0) -> None:
        self.window_rows = min(_FIRST_ROWS, rows_max)
        self.linger_s = limit_s * _LINGER
        self._limit_s = limit_s
        self._rows_max = rows_max
        self._upto = upto
        self._out = upto
        self._under_way: deque[tuple[int, float]] = deque()  # Up to which number, let in when.
        self._worst_s = 0.0
        self._was_full = False
        self._changed_at = upto  # Rows behind it were let in with the window as it is.

    def has_room(self) -> bool:
        """Whether another piece may be let in; that it was asked for and may not is noted."""
        has_room = self.is_idle or self._upto + self.piece_rows - self._out <= self.window_rows
        self._was_full |= not has_room
        return has_room

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self._out >= self._upto

    @property
    def piece_rows(self) -> int:
        """How many rows go together, at most."""
        return max(1, self.window_rows // _PIECES)

    def let_in(self, upto: int, now: float) -> None:
        """Rows with the numbers up to `upto` are under way."""
        self._upto = upto
        if upto > self._out:  # Else they had come out before the ingress was started again.
            self._under_way.append((upto, now))

    def come_out(self, upto: int, now: float) -> None:
        """Whatever came of the rows up to `upto` is at the sink."""
        while self._under_way and self._under_way[0][0] <= upto:
            position, since = self._under_way.popleft()
            if position > self._changed_at:
                self._worst_s = max(self._worst_s, now - since)
        self._out = max(self._out, upto)
        if self._out >= self._changed_at + _LOOK_WINDOWS * self.window_rows:
            self._adapt()

    def _adapt(self) -> None:
        factor = self._limit_s * _AIM / max(self._worst_s, 1e-6)
        if factor < 1 or self._was_full:
            rows = int(self.window_rows * min(max(factor, 1 / _STEP_MAX), _STEP_MAX))
            self.window_rows = min(max(rows, WINDOW_MIN_ROWS), self._rows_max)
        self._worst_s, self._was_full = 0.0, False
        self._changed_at = self._upto
