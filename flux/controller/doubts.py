"""Doubts: which nodes cannot reach each other, though both live.

A node that cannot reach another says so, again and again. By itself that says little: the other may be stopped, or be
busy with a long job, and then it is the heart that counts. Who is cut off and lives cannot reach the first either, and
says so: when both do, it is their connection.
"""

from __future__ import annotations

RECENT_S = 5.0  # More than twice as long as a node waits before it says so again.


class Doubts:
    """Who has said of whom that it cannot be reached, and when."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], float] = {}

    def add(self, by: str, of: str, now: float) -> bool:
        """`by` cannot reach `of`; whether `of` has said the same of `by` lately."""
        self._said[by, of] = now
        self._said = {pair: at for pair, at in self._said.items() if at > now - RECENT_S}
        return (of, by) in self._said
