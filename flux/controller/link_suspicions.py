"""Doubts: which nodes cannot reach each other, though both live.

A node that cannot reach another says so, again and again. By itself that says little: the other may be stopped, or be
busy with a long job, and then it is the heart that counts. Who is cut off and lives cannot reach the first either, and
says so: when both do, it is their connection. Or it is the machine: to make a connection, both have to have several
turns. So they must go on to say so for longer than that may take, as long as turns last at the moment.
"""

from __future__ import annotations

from ..site.peers import UNREACHABLE_AFTER_S

_RECENT_S = 2.5 * UNREACHABLE_AFTER_S  # Who still cannot reach the other has said so again by then.
_TURNS = 20  # More than both together need to make a connection.
_WAIT_MAX_S = 30.0


class LinkSuspicions:
    """Who has said of whom that it cannot be reached, since when, and when last."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], tuple[float, float]] = {}

    def add(self, by: str, of: str, now: float, turn_s: float) -> bool:
        """`by` cannot reach `of`: whether both have said so for long enough, where nobody waits more than `turn_s`."""
        recent = {pair: times for pair, times in self._said.items() if times[1] > now - _RECENT_S}
        first, _ = recent.get((by, of), (now, now))
        recent[by, of] = (first, now)
        self._said = recent
        if (of, by) not in recent:
            return False
        return now - self._both_since(by, of) >= min(_WAIT_MAX_S, _TURNS * turn_s)

    def since(self, node: str) -> float | None:
        """Since when another and `node` cannot reach each other, as both say."""
        pairs = [(by, of) for by, of in self._said if node == by and (of, by) in self._said]
        return min((self._both_since(by, of) for by, of in pairs), default=None)

    def _both_since(self, a: str, b: str) -> float:
        return max(self._said[a, b][0], self._said[b, a][0]) - UNREACHABLE_AFTER_S  # Each had waited before it said so.
