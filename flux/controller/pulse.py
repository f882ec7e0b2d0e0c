"""Pulse: which nodes have fallen silent.

Nodes beat ten times a second from a thread of their own. One that has missed `MISSED_MAX` beats is silent. On a busy
machine beats come late from everybody: a node is silent only if it is late beyond what is usual at the moment. A
controller that was itself kept from running, by such a machine or a signal, must not take the others for dead: what
it was late by is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from ..site.heartbeat import BEAT_EVERY_S

MISSED_MAX = 5
LOOK_EVERY_S = BEAT_EVERY_S / 2


class Pulse:
    """The last beat of each node that has ever beaten."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._looked_at: float | None = None

    def beat(self, node: str, now: float) -> None:
        """`node` lives."""
        self._last[node] = now

    def forget(self, node: str) -> None:
        """`node` is gone."""
        self._last.pop(node, None)

    def silent(self, nodes: Iterable[str], now: float) -> list[str]:
        """Those of `nodes` that have missed too many beats; to be asked every `LOOK_EVERY_S`."""
        late = 0.0 if self._looked_at is None else max(0.0, now - self._looked_at - LOOK_EVERY_S)
        self._looked_at = now
        for node in self._last:
            self._last[node] += late
        ages = {node: now - self._last[node] for node in nodes if node in self._last}
        usual = max(BEAT_EVERY_S, median(ages.values())) if ages else 0.0
        return [node for node, age in ages.items() if age > MISSED_MAX * usual]
