"""Pulse: which nodes have fallen silent.

Nodes beat ten times a second from a thread of their own. One that has missed `MISSED_MAX` beats may be dead, or be kept
from running by a machine that has too much to do; if it is taken for dead and then its partner dies, data is lost. So
who is late is given the benefit of every doubt:

- On this machine the system is asked: who is not stopped is late, not dead, and is waited for up to `LATE_MAX_S`.
- Elsewhere, who is late beyond what is usual at the moment is silent: some times the longest pause between two beats of
  anybody in the last half minute, and `MISSED_MAX` beats at least.
- What the controller was late by itself is not counted.

Ingress, egress and controller have no second copy that could go on: they are not declared dead while they may be alive.
Whoever is on the same machine and has them started again ends them when they are at a `StandstillClock`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from ..site.heartbeat import BEAT_EVERY_S
from .os_process import is_stopped, waits_for_a_signal

MISSED_MAX = 5
LATE_MAX_S = 10.0  # Nobody is waited for longer than this.
LOOK_EVERY_S = BEAT_EVERY_S / 2
_USUAL_S = 30.0  # What happened in this time is usual.
_BEYOND_USUAL = 3
_SUPPOSED_S = 1.0


class FailureDetector:
    """The last beat of each node that has ever beaten, and who is there and has not."""

    def __init__(self, is_stopped: Callable[[int], bool] = is_stopped) -> None:
        self._is_stopped = is_stopped
        self._last: dict[str, float] = {}
        self._pids: dict[str, int | None] = {}  # None: it is on another machine.
        self._pauses: deque[tuple[float, float]] = deque()  # When one ended, how long it was; none behind a longer one.
        self._unheard: set[str] = set()  # There, and no beat has come yet; `_last` is since when.
        self._looked_at: float | None = None
        self._began_at: float | None = None

    def beat(self, node: str, now: float, pid: int | None = None) -> None:
        """`node` lives; it is the process `pid`, if it is on this machine."""
        if node in self._unheard:
            self._unheard.discard(node)  # How long it took to begin is no pause.
        elif node in self._last:
            pause_s = now - self._last[node]
            while self._pauses and self._pauses[-1][1] <= pause_s:
                self._pauses.pop()
            self._pauses.append((now, pause_s))
        self._last[node] = now
        self._pids[node] = pid

    def expect(self, node: str, now: float, pid: int | None = None) -> None:
        """`node` is there, so it will beat. It may be stopped before it does, or take its time to begin."""
        if node not in self._last:
            self._last[node] = now
            self._pids[node] = pid
            self._unheard.add(node)

    @property
    def usual_s(self) -> float:
        """The longest pause between two beats that is usual at the moment."""
        return self._pauses[0][1] if self._pauses else BEAT_EVERY_S

    def forget(self, node: str) -> None:
        """`node` is gone."""
        self._last.pop(node, None)
        self._pids.pop(node, None)
        self._unheard.discard(node)

    def last(self, node: str) -> float | None:
        """When `node` was heard last."""
        return self._last.get(node)

    def beats(self, node: str, now: float) -> bool:
        """Whether `node` was heard lately."""
        return node in self._last and now - self._last[node] <= LATE_MAX_S

    def silent(self, nodes: Iterable[str], now: float) -> list[str]:
        """Those of `nodes` that have missed too many beats; to be asked every `LOOK_EVERY_S`."""
        late = 0.0 if self._looked_at is None else max(0.0, now - self._looked_at - LOOK_EVERY_S)
        self._looked_at = now
        self._began_at = now if self._began_at is None else self._began_at
        for node in self._last:
            self._last[node] = min(now, self._last[node] + late)
        while self._pauses and self._pauses[0][0] < now - _USUAL_S:
            self._pauses.popleft()
        ages = {node: now - self._last[node] for node in nodes if node in self._last}
        late_by = {node: age for node, age in ages.items() if age > MISSED_MAX * BEAT_EVERY_S}
        is_new = now < self._began_at + _USUAL_S
        return [node for node, age in late_by.items() if age > self._patience_s(node, is_new)]

    def _patience_s(self, node: str, is_new: bool) -> float:
        """How long one that has missed too many beats is waited for."""
        pid = self._pids[node]
        if pid is not None:
            return 0.0 if self._is_stopped(pid) else LATE_MAX_S
        if node in self._unheard:
            return LATE_MAX_S
        # Who has not listened for long does not know what is usual: where much is started at once, all are slow.
        usual_s = max(self.usual_s, _SUPPOSED_S) if is_new else self.usual_s
        return min(LATE_MAX_S, _BEYOND_USUAL * usual_s)


class StandstillClock:
    """Whether the process `pid` of this machine was stopped for longer than beats may be missed.

    It is asked every `BEAT_EVERY_S`. How often is counted, not how long: who asks may have been stopped as well.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._times = 0
        self.began_at = 0.0  # On the monotonic clock; when it was found so first.

    def lasts(self) -> bool:
        """Look once more."""
        self._times = self._times + 1 if waits_for_a_signal(self._pid) else 0
        if self._times == 1:
            self.began_at = time.monotonic()
        return self._times > MISSED_MAX
