"""Timers: the instants at which the keys of a partition want to be called."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from ...types.array_types import Key

__all__ = ["KeyTimers"]

# A heap keeps timers that were deleted until their time has come, or until they are more than the others.
_STALE_MIN = 1_024


class KeyTimers:
    """The timers of one partition, in the order of their instants; those of one instant in that of `order(key)`."""

    def __init__(self, order: Callable[[Key], Any]) -> None:
        self._order = order
        self._set: dict[Key, set[int]] = {}
        self._count = 0
        self._heap: list[tuple[int, Any, Key]] = []

    def register(self, key: Key, at_ms: int) -> None:
        """Set a timer; one that is set already stays."""
        ours = self._set.setdefault(key, set())
        if at_ms not in ours:
            ours.add(at_ms)
            self._count += 1
            heapq.heappush(self._heap, (at_ms, self._order(key), key))

    def delete(self, key: Key, at_ms: int) -> None:
        """Take a timer away, if it is set."""
        ours = self._set.get(key)
        if ours is None or at_ms not in ours:
            return
        ours.remove(at_ms)
        self._count -= 1
        if not ours:
            del self._set[key]
        if len(self._heap) > 2 * self._count + _STALE_MIN:
            self._rebuild()

    def of(self, key: Key) -> list[int]:
        """A key's timers, in order."""
        return sorted(self._set.get(key, ()))

    def expired(self, upto_ms: int) -> list[tuple[int, Key]]:
        """The timers up to this instant. They stay set until they are deleted; each is told once."""
        found: list[tuple[int, Key]] = []
        while self._heap and self._heap[0][0] <= upto_ms:
            at_ms, _, key = heapq.heappop(self._heap)
            if at_ms in self._set.get(key, ()) and (not found or found[-1] != (at_ms, key)):
                found.append((at_ms, key))
        return found

    def all(self) -> list[tuple[Key, int]]:
        """Each key with each of its timers."""
        return [(key, at_ms) for key, ours in self._set.items() for at_ms in sorted(ours)]

    def _rebuild(self) -> None:
        self._heap = [(at_ms, self._order(key), key) for key, at_ms in self.all()]
        heapq.heapify(self._heap)
