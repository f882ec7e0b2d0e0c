"""Bounds on strangers: on connections that have not authenticated yet, by number and time, and on the lines about them.

Any program that reaches a port may open connections and send nothing. Without a bound they take all file descriptors,
and a process that knows the secret waits until they time out. So of too many, the oldest is closed: a handshake takes
milliseconds, and a process that knows the secret dials again if a flood closed its connection.

A flood would fill the log, too. The first lines of a minute are logged as they are; the others are counted, and one
line at the end of the minute has their number.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import trio

__all__ = ["LINES_MAX", "LINES_PERIOD_S", "STRANGERS_MAX", "Crowd", "await_authentication", "log_closed"]

STRANGERS_MAX = 64
LINES_MAX = 32  # In each period.
LINES_PERIOD_S = 60.0


class Crowd:
    """At most `most` connections at a time: of too many, the oldest is closed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._scopes: dict[trio.CancelScope, None] = {}  # By age.

    @contextlib.contextmanager
    def admit(self, deadline_s: float) -> Iterator[trio.CancelScope]:
        """Serve one connection in this block; it is cancelled if it takes too long or is crowded out."""
        scope = trio.CancelScope(deadline=trio.current_time() + deadline_s)
        self._scopes[scope] = None
        if len(self._scopes) > self._most:
            oldest = next(iter(self._scopes))
            del self._scopes[oldest]
            oldest.cancel()
        try:
            with scope:
                yield scope
        finally:
            self._scopes.pop(scope, None)


_strangers: trio.lowlevel.RunVar[Crowd] = trio.lowlevel.RunVar("flux strangers")


@dataclass
class _Closed:
    """The connections that were closed in one period."""

    lines: int = 0
    further: int = 0


_closed: trio.lowlevel.RunVar[_Closed | None] = trio.lowlevel.RunVar("flux closed strangers", None)


@contextlib.contextmanager
def await_authentication(deadline_s: float) -> Iterator[trio.CancelScope]:
    """Run the handshake of one accepted connection in this block; it is cancelled if it is too slow or crowded out.

    The bound holds for all listeners of an event loop together. If the scope's `cancelled_caught` is true afterwards,
    close the connection.
    """
    try:
        crowd = _strangers.get()
    except LookupError:
        crowd = Crowd(STRANGERS_MAX)
        _strangers.set(crowd)
    with crowd.admit(deadline_s) as scope:
        yield scope


def log_closed(log: Callable[[int, str], None], level: int, line: str) -> None:
    """Log that the connection of a stranger was closed, or count it if there are too many lines about that."""
    closed = _closed.get()
    if closed is None:
        closed = _Closed()
        _closed.set(closed)
        trio.lowlevel.spawn_system_task(_end_period, log, closed)
    if closed.lines < LINES_MAX:
        closed.lines += 1
        log(level, line)
        return
    if not closed.further:
        log(logging.WARNING, f"{line}. Further ones are counted, for up to {LINES_PERIOD_S:g} s")
    closed.further += 1


async def _end_period(log: Callable[[int, str], None], closed: _Closed) -> None:
    await trio.sleep(LINES_PERIOD_S)
    _closed.set(None)
    if closed.further > 1:
        log(logging.WARNING, f"closed {closed.further - 1:,} further connections like these in {LINES_PERIOD_S:g} s")
