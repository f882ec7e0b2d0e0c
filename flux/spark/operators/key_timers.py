"""The timers of the keys of a partition."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from ...types.array_types import Key

__all__ = ["KeyTimers"]

# Deleted timers stay in the heap until they expire, or until they outnumber the others.
_STALE_MIN = 1_024


class KeyTimers:
    """The timers of one partition, in the order of time; `order(key)` is the tie-break."""

    def __init__(self, order: Callable[[Key], Any]) -> None:
        self._order = order
        self._set: dict[Key, set[int]] = {}
        self._count = 0
        self._heap: list[tuple[int, Any, Key]] = []

    def register(self, key: Key, at_ms: int) -> None:
        """Set a timer; setting it again has no effect."""
        times_ms = self._set.setdefault(key, set())
        if at_ms not in times_ms:
            times_ms.add(at_ms)
            self._count += 1
            heapq.heappush(self._heap, (at_ms, self._order(key), key))

    def delete(self, key: Key, at_ms: int) -> None:
        """Delete a timer, if it is set."""
        times_ms = self._set.get(key)
        if times_ms is None or at_ms not in times_ms:
            return
        times_ms.remove(at_ms)
        self._count -= 1
        if not times_ms:
            del self._set[key]
        if len(self._heap) > 2 * self._count + _STALE_MIN:
            self._rebuild()

    def of(self, key: Key) -> list[int]:
        """Return the timers of a key, in order."""
        return sorted(self._set.get(key, ()))

    def take_expired(self, upto_ms: int) -> list[tuple[int, Key]]:
        """Return the timers up to this time, each only once. They stay set until they are deleted."""
        found: list[tuple[int, Key]] = []
        while self._heap and self._heap[0][0] <= upto_ms:
            at_ms, _, key = heapq.heappop(self._heap)
            if at_ms in self._set.get(key, ()) and (not found or found[-1] != (at_ms, key)):
                found.append((at_ms, key))
        return found

    def all(self) -> list[tuple[Key, int]]:
        """Return each key with each of its timers."""
        return [(key, at_ms) for key, times_ms in self._set.items() for at_ms in sorted(times_ms)]

    def _rebuild(self) -> None:
        self._heap = [(at_ms, self._order(key), key) for key, at_ms in self.all()]
        heapq.heapify(self._heap)
