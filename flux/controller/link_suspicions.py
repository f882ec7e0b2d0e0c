"""Link suspicions: pairs of nodes that cannot reach each other, though both live.

A node that cannot reach another reports so, again and again. By itself that says little: the other may be stopped, or
be busy with a long job, which is for heartbeats to find. A live node that is cut off cannot reach the first either, and
reports so: when both do, their link is down. Or the machine is overloaded: to connect, both need several turns. So both
must keep reporting for longer than that may take, at the present length of turns.
"""

from __future__ import annotations

from ..site.peers import UNREACHABLE_AFTER_S

_RECENT_S = 2.5 * UNREACHABLE_AFTER_S  # A node that still cannot reach the other has reported it again by then.
_TURNS = 20  # More than both together need to make a connection.
_WAIT_MAX_S = 30.0


class LinkSuspicions:
    """The reports that one node cannot reach another, with the times of the first and the last."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], tuple[float, float]] = {}

    def add(self, by: str, of: str, now: float, turn_s: float) -> bool:
        """Add that `by` cannot reach `of`; return whether both report it for long enough, if turns last `turn_s`."""
        recent = {pair: times for pair, times in self._reported.items() if times[1] > now - _RECENT_S}
        first, _ = recent.get((by, of), (now, now))
        recent[by, of] = (first, now)
        self._reported = recent
        if (of, by) not in recent:
            return False
        return now - self._both_since(by, of) >= min(_WAIT_MAX_S, _TURNS * turn_s)

    def since(self, node: str) -> float | None:
        """Return since when another node and `node` both report that they cannot reach each other."""
        pairs = [(by, of) for by, of in self._reported if node == by and (of, by) in self._reported]
        return min((self._both_since(by, of) for by, of in pairs), default=None)

    def _both_since(self, a: str, b: str) -> float:
        return max(self._reported[a, b][0], self._reported[b, a][0]) - UNREACHABLE_AFTER_S  # Each had waited before.
