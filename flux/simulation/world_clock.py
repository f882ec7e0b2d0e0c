"""World clock: the time of a world. It stands still while a task can run, and then jumps to what is due next.

What is due is a deadline of trio's, or a call that was arranged by `at`: data arrives, a process starts. Calls are made
when no task can run, by trio's loop itself: a task that made them would cost several turns of the loop for each.
A task may let time pass (`jump`); calls that fell due then are made when its step is over, before other deadlines.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import trio

__all__ = ["WorldClock"]


class WorldClock(trio.abc.Clock):
    """A clock for `trio.run`; `now` is in seconds, and begins at 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._is_stopped = False
        self._has_jumped = False

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Make a call at this time; calls of one time are made in the order in which they were arranged."""
        if not self._is_stopped:
            heapq.heappush(self._calls, (when, next(self._numbers), call))

    def stop(self) -> None:
        """Make no more calls: the world ends."""
        self._is_stopped = True
        self._calls.clear()

    def jump(self, seconds: float) -> None:
        """Let time pass while a task runs. `catch_up` is to be called after its step."""
        self.now += seconds
        self._has_jumped = True

    def catch_up(self) -> None:
        """Make the calls that were due while a task let time pass: before trio looks at deadlines."""
        if self._has_jumped:
            self._has_jumped = False
            self._make_due_calls()

    # What trio calls.

    def start_clock(self) -> None:
        """Do nothing: time passes by itself."""

    def current_time(self) -> float:
        """Return the time."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Go on to what is due next, for no task can run; return how long trio is to wait for the outside."""
        calls = self._calls
        due = min(deadline, calls[0][0]) if calls else deadline
        if due == float("inf"):
            return due
        self.now = max(self.now, due)
        self._make_due_calls()
        return 0.0

    def _make_due_calls(self) -> None:
        while self._calls and self._calls[0][0] <= self.now:
            heapq.heappop(self._calls)[2]()
