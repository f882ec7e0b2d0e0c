"""Timers: calls that a `KeyedOperator` requests for a key at an event time.

A timer belongs to a key and moves with its partition. It is due when a watermark has reached its time. Due timers fire
one partition after the other, by time and then by key, so in the same order in every copy. At the end of the stream all
remaining timers are due; timers set then are ignored, because no time follows.
"""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..types.array_types import Key
from ..types.errors import RAISED, OperatorError
from .error_location import locate
from .event_time import FARTHEST_MS
from .output_rows import NotARow, OutputRows
from .punctuation import Punctuation
from .zoned_keys import instant

__all__ = ["Timers", "key_order"]


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS = datetime.timedelta(milliseconds=1)


class _OfPartition:
    """The times set for each key, and a heap of all; heap entries of cancelled timers are skipped."""

    def __init__(self) -> None:
        self.times: dict[Key, set[int]] = {}
        self.heap: list[tuple[int, Any, Key]] = []

    def set(self, key: Key, time: int) -> None:
        times = self.times.setdefault(key, set())
        if time not in times:
            times.add(time)
            heapq.heappush(self.heap, (time, key_order(key), key))

    def cancel(self, key: Key, time: int | None) -> None:
        times = self.times.pop(key, set())
        if time is not None and times - {time}:
            self.times[key] = times - {time}

    def pop(self, upto: int) -> tuple[Key, int] | None:
        while self.heap and self.heap[0][0] <= upto:
            time, _, key = heapq.heappop(self.heap)
            if time in self.times.get(key, ()):
                self.cancel(key, time)
                return key, time
        return None


class Timers:
    """The timers of all partitions on the site, and the current key, to which `set` and `cancel` apply."""

    def __init__(self) -> None:
        self._of: dict[int, _OfPartition] = {}
        self._at: tuple[int, Key] | None = None
        self._firing: int | None = None
        self._ending = False

    # Called by operators, through KeyedOperator.

    def set(self, time: Any) -> None:
        """Set a timer for the current key; setting it again changes nothing."""
        pid, key = self._current()
        requested = _milliseconds(time)
        when = _clamp(requested)
        if self._firing is not None and when <= self._firing:
            if requested > self._firing:
                return  # Later than the last time that any watermark can reach.
            raise ValueError(
                f"on_timer for time {self._firing} set a timer for {when}, which would be due for ever. Set a later one"
            )
        if not self._ending:
            self._of.setdefault(pid, _OfPartition()).set(key, when)

    def cancel(self, time: Any = None) -> None:
        """Cancel one timer of the current key, or all of them; a timer that is not set is ignored."""
        pid, key = self._current()
        if pid in self._of:
            self._of[pid].cancel(key, None if time is None else _clamp(_milliseconds(time)))

    def _current(self) -> tuple[int, Key]:
        if self._at is None:
            raise RuntimeError("timers are set and cancelled in on_tuple and on_timer, for the key that they are given")
        return self._at

    # Called by the host.

    def set_key(self, pid: int, key: Key) -> None:
        """Make this the current key, to which `set` and `cancel` apply."""
        self._at = (pid, key)

    def clear_key(self) -> None:
        """Leave no current key: `set` and `cancel` raise."""
        self._at = None

    def fire(
        self, p: Punctuation, states: Mapping[int, dict[Key, Any]], on_timer: Any, outputs: OutputRows
    ) -> list[int]:
        """Call `on_timer` for each timer that a punctuation makes due; return the partition of each emitted row."""
        partitions: list[int] = []
        for pid in sorted(states if p.partitions is None else p.partitions):
            held = states[pid]
            for key, time in self._due(pid, p):
                try:
                    state, emitted = on_timer(tuple(key), time, held.get(key))
                    for made in () if emitted is None else emitted:
                        outputs.add(made)
                except NotARow as error:
                    raise OperatorError(error.message(on_timer), None, pid, p.sn) from None
                except RAISED as error:
                    raised = f"{locate(on_timer, error)} raised {type(error).__name__}: {error}"
                    message = f"{raised}; it was called for the key {key!r:.200} at {time}"
                    raise OperatorError(message, None, pid) from error
                partitions += [pid] * (len(outputs.taken) - len(partitions))
                if state is None:
                    held.pop(key, None)
                else:
                    held[key] = state
        return partitions

    def _due(self, pid: int, p: Punctuation) -> Iterator[tuple[Key, int]]:
        """Yield key and time of each timer that a punctuation makes due, including those set meanwhile."""
        if p.kind not in ("watermark", "end") or pid not in self._of:
            return
        upto = 2 * FARTHEST_MS if p.kind == "end" else p.value
        assert upto is not None, "a watermark has a value"
        self._ending = p.kind == "end"
        try:
            while (found := self._of[pid].pop(upto)) is not None:
                self._at, self._firing = (pid, found[0]), found[1]
                yield found
        finally:
            self._at, self._firing, self._ending = None, None, False

    # Movement of partitions.

    def states_with(self, pid: int, held: dict[Key, Any]) -> dict[Key, Any]:
        """Return a partition's states, with None for keys that have timers and no state."""
        return dict.fromkeys(self._of[pid].times) | held if pid in self._of else held

    def get(self, pid: int, keys: Sequence[Key]) -> list[list[int]]:
        """Return the times set for each of these keys."""
        times = self._of[pid].times if pid in self._of else {}
        return [sorted(times.get(key, ())) for key in keys]

    def install(self, pid: int, keys: Sequence[Key], times: Sequence[Sequence[int]]) -> None:
        """Install the times that `get` returned on another site."""
        timers = self._of.setdefault(pid, _OfPartition())
        for key, some in zip(keys, times, strict=True):
            for time in some:
                timers.set(key, time)

    def adopt(self, pid: int, other: Timers) -> None:
        """Take over the timers of a partition from those of another instance."""
        if pid in other._of:
            self._of[pid] = other._of.pop(pid)

    def drop(self, pid: int) -> None:
        """Drop the timers of a partition that has moved to another site."""
        self._of.pop(pid, None)


def _milliseconds(time: Any) -> int:
    """Return a time of a row in milliseconds; without a time zone it is UTC, as in Arrow; a date is its midnight."""
    if isinstance(time, datetime.date) and not isinstance(time, datetime.datetime):
        time = datetime.datetime.combine(time, datetime.time())
    if isinstance(time, datetime.datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
        return (aware - _EPOCH) // _MS
    if not isinstance(time, int) or isinstance(time, bool):
        raise TypeError(f"a timer's time is a whole number of milliseconds, or a datetime or date; got {time!r}")
    return time


def _clamp(time: int) -> int:
    return max(-FARTHEST_MS, min(time, FARTHEST_MS))


def key_order(key: Key) -> tuple[Any, ...]:
    """Return a sort key: NaN after other floats, nulls after everything."""
    return tuple((2, 0) if value is None else (1, 0) if value != value else (0, instant(value)) for value in key)
