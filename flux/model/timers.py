"""Timers: a `KeyedOperator` asks to be called for a key when event time has come so far.

A timer belongs to a key and moves with its partition. It is due when a watermark has reached its time; due ones are
called one partition after the other, by time and then by key, so in the same order in every copy. At the end of the
stream all that are still set are due; what is set then is not, because no time comes after it.
"""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..types.array_types import Key
from ..types.errors import OperatorError
from .error_location import locate
from .event_time import FARTHEST_MS
from .output_rows import NotARow, OutputRows
from .punctuation import Punctuation
from .zoned_keys import instant

__all__ = ["Timers", "key_order"]


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS = datetime.timedelta(milliseconds=1)


class _OfPartition:
    """The times set for each key, and all of them in order; an entry whose time was cancelled is passed over."""

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
    """The timers of all partitions at hand, and the key that is being looked at: `set` and `cancel` are about it."""

    def __init__(self) -> None:
        self._of: dict[int, _OfPartition] = {}
        self._at: tuple[int, Key] | None = None
        self._firing: int | None = None
        self._ending = False

    # What operators call, by way of KeyedOperator.

    def set(self, time: Any) -> None:
        """Set a timer for the key at hand; setting it again changes nothing."""
        pid, key = self._here()
        asked = _milliseconds(time)
        when = _within_reach(asked)
        if self._firing is not None and when <= self._firing:
            if asked > self._firing:
                return  # Later than the last time there is, which never comes.
            raise ValueError(
                f"on_timer for time {self._firing} set a timer for {when}, which would be due for ever. Set a later one"
            )
        if not self._ending:
            self._of.setdefault(pid, _OfPartition()).set(key, when)

    def cancel(self, time: Any = None) -> None:
        """Cancel a timer of the key at hand, or all of them; one that is not set is cancelled already."""
        pid, key = self._here()
        if pid in self._of:
            self._of[pid].cancel(key, None if time is None else _within_reach(_milliseconds(time)))

    def _here(self) -> tuple[int, Key]:
        if self._at is None:
            raise RuntimeError("timers are set and cancelled in on_tuple and on_timer, for the key that they are given")
        return self._at

    # What the host calls.

    def look_at(self, pid: int, key: Key) -> None:
        """Let `set` and `cancel` be about this key."""
        self._at = (pid, key)

    def look_away(self) -> None:
        """Let them be about none."""
        self._at = None

    def fire(
        self, p: Punctuation, states: Mapping[int, dict[Key, Any]], on_timer: Any, outputs: OutputRows
    ) -> list[int]:
        """Call `on_timer` for all that a punctuation makes due; return the partition of each row that is emitted."""
        partitions: list[int] = []
        for pid in sorted(states if p.partitions is None else p.partitions):
            held = states[pid]
            for key, time in self._due(pid, p):
                try:
                    state, emitted = on_timer(tuple(key), time, held.get(key))
                    for made in () if emitted is None else emitted:
                        outputs.add(made)
                except NotARow as error:
                    raise OperatorError(error.told_of(on_timer), None, pid, p.sn) from None
                except (Exception, SystemExit) as error:
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
        """Yield key and time of each timer that a punctuation makes due, also of those that are set meanwhile."""
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

    # Partitions that come and go.

    def states_with(self, pid: int, held: dict[Key, Any]) -> dict[Key, Any]:
        """A partition's states, and None for keys that have timers and no state."""
        return dict.fromkeys(self._of[pid].times) | held if pid in self._of else held

    def get(self, pid: int, keys: Sequence[Key]) -> list[list[int]]:
        """The times set for each of these keys."""
        times = self._of[pid].times if pid in self._of else {}
        return [sorted(times.get(key, ())) for key in keys]

    def install(self, pid: int, keys: Sequence[Key], times: Sequence[Sequence[int]]) -> None:
        """Take over what `get` returned elsewhere."""
        timers = self._of.setdefault(pid, _OfPartition())
        for key, some in zip(keys, times, strict=True):
            for time in some:
                timers.set(key, time)

    def drop(self, pid: int) -> None:
        """Forget the timers of a partition that lives elsewhere now."""
        self._of.pop(pid, None)


def _milliseconds(time: Any) -> int:
    """A time as `row` has it, in milliseconds; without a time zone it is UTC, as Arrow's is; a date is its midnight."""
    if isinstance(time, datetime.date) and not isinstance(time, datetime.datetime):
        time = datetime.datetime.combine(time, datetime.time())
    if isinstance(time, datetime.datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
        return (aware - _EPOCH) // _MS
    if not isinstance(time, int) or isinstance(time, bool):
        raise TypeError(f"a timer's time is a whole number of milliseconds, or a datetime or date; came {time!r}")
    return time


def _within_reach(time: int) -> int:
    return max(-FARTHEST_MS, min(time, FARTHEST_MS))


def key_order(key: Key) -> tuple[Any, ...]:
    """What puts keys in order: NaN behind other floats, nulls behind everything."""
    return tuple((2, 0) if value is None else (1, 0) if value != value else (0, instant(value)) for value in key)
