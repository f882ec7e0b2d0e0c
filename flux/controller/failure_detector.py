"""Failure detector: finds the nodes whose heartbeats have stopped.

Nodes send ten heartbeats a second from a thread of their own. One that has missed `MISSED_MAX` beats may be dead, or
may starve on a machine that has too much to do. If it is declared dead and then its partner dies, data is lost. So a
late node gets the benefit of every doubt:

- On this machine the operating system knows: a node that is not stopped is late, not dead, and has up to `LATE_MAX_S`.
  Neither is one that is stopped and continued in turn, which is how some tools limit a process: it runs now and then.
- Elsewhere, the timeout follows the load: some times the longest pause between two beats of any node in the last half
  minute, and `MISSED_MAX` beats at least.
- Time by which the controller itself was late is not counted.

Ingress, egress and controller have no second copy that could go on: they are not declared dead while they may be alive.
The process on the same machine that restarts them ends them when their `StandstillClock` has run out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from ..site.heartbeat import BEAT_EVERY_S
from ..system import process_control
from .os_process import is_stopped, waits_for_a_signal

MISSED_MAX = 5
LATE_MAX_S = 10.0  # The longest timeout of a node.
LOOK_EVERY_S = BEAT_EVERY_S / 2
_STOPPED_MIN_S = (MISSED_MAX - 2) * BEAT_EVERY_S  # A node that has run within this time is not just stopped.
_PAUSES_KEPT_S = 30.0  # Pauses within this time are usual.
_USUAL_PAUSES = 3  # The timeout of a node on another machine, in usual pauses.
_STARTUP_PAUSE_S = 1.0  # The usual pause is supposed to be at least this until enough pauses are known.


class FailureDetector:
    """The last heartbeat of each node, and the nodes that are connected and have sent none yet."""

    def __init__(
        self,
        is_stopped: Callable[[int], bool] = is_stopped,
        run_ns_of: Callable[[int], int | None] = lambda pid: process_control.run_ns_of(pid),
    ) -> None:
        self._is_stopped = is_stopped
        self._run_ns_of = run_ns_of
        self._run_ns: dict[str, int | None] = {}  # Of late nodes: how long they had run at the last look,
        self._ran_at: dict[str, float] = {}  # and when a look found that they had run since the one before.
        self._last: dict[str, float] = {}
        self._pids: dict[str, int | None] = {}  # None: it is on another machine.
        self._pauses: deque[tuple[float, float]] = deque()  # End and length; each is shorter than the one before.
        self._without_beat: set[str] = set()  # Connected, since the time in `_last`, and no beat yet.
        self._checked_at: float | None = None
        self._began_at: float | None = None

    def beat(self, node: str, now: float, pid: int | None = None) -> None:
        """Record a heartbeat of `node`, which is the process `pid`, if it is on this machine."""
        if node in self._without_beat:
            self._without_beat.discard(node)  # The time until the first beat is not a pause.
        elif node in self._last:
            pause_s = now - self._last[node]
            while self._pauses and self._pauses[-1][1] <= pause_s:
                self._pauses.pop()
            self._pauses.append((now, pause_s))
        self._last[node] = now
        self._pids[node] = pid
        self._run_ns.pop(node, None)
        self._ran_at.pop(node, None)

    def expect(self, node: str, now: float, pid: int | None = None) -> None:
        """Expect heartbeats of `node`, which has connected: it may be stopped before its first, or start slowly."""
        if node not in self._last:
            self._last[node] = now
            self._pids[node] = pid
            self._without_beat.add(node)

    @property
    def usual_s(self) -> float:
        """The longest recent pause between two heartbeats of a node."""
        return self._pauses[0][1] if self._pauses else BEAT_EVERY_S

    def forget(self, node: str) -> None:
        """Forget `node`, which is gone."""
        self._last.pop(node, None)
        self._pids.pop(node, None)
        self._without_beat.discard(node)
        self._run_ns.pop(node, None)
        self._ran_at.pop(node, None)

    def last(self, node: str) -> float | None:
        """Return the time of the last heartbeat of `node`."""
        return self._last.get(node)

    def beats(self, node: str, now: float) -> bool:
        """Whether `node` has sent a heartbeat within `LATE_MAX_S`."""
        return node in self._last and now - self._last[node] <= LATE_MAX_S

    def silent(self, nodes: Iterable[str], now: float) -> list[str]:
        """Return those of `nodes` that have missed too many beats; to be called every `LOOK_EVERY_S`."""
        late = 0.0 if self._checked_at is None else max(0.0, now - self._checked_at - LOOK_EVERY_S)
        self._checked_at = now
        self._began_at = now if self._began_at is None else self._began_at
        for node in self._last:
            self._last[node] = min(now, self._last[node] + late)
        while self._pauses and self._pauses[0][0] < now - _PAUSES_KEPT_S:
            self._pauses.popleft()
        ages = {node: now - self._last[node] for node in nodes if node in self._last}
        for node, age in ages.items():
            if age > 1.5 * BEAT_EVERY_S:
                self._look_if_it_runs(node, now)
        late_by = {node: age for node, age in ages.items() if age > MISSED_MAX * BEAT_EVERY_S}
        is_new = now < self._began_at + _PAUSES_KEPT_S
        return [node for node, age in late_by.items() if age > self._timeout_s(node, is_new, now)]

    def _look_if_it_runs(self, node: str, now: float) -> None:
        pid = self._pids[node]
        run_ns = None if pid is None else self._run_ns_of(pid)
        if run_ns is not None and run_ns != self._run_ns.get(node, run_ns):
            self._ran_at[node] = now
        self._run_ns[node] = run_ns

    def _timeout_s(self, node: str, is_new: bool, now: float) -> float:
        """Return the timeout of a node that has missed too many beats."""
        pid = self._pids[node]
        if pid is not None:
            has_run = node in self._ran_at and now - self._ran_at[node] < _STOPPED_MIN_S
            return 0.0 if self._is_stopped(pid) and not has_run else LATE_MAX_S
        if node in self._without_beat:
            return LATE_MAX_S
        # A new detector does not know the usual pause: where many processes start at once, all are slow.
        usual_s = max(self.usual_s, _STARTUP_PAUSE_S) if is_new else self.usual_s
        return min(LATE_MAX_S, _USUAL_PAUSES * usual_s)


class StandstillClock:
    """Whether the process `pid` of this machine was stopped for longer than beats may be missed.

    It is called every `BEAT_EVERY_S`. It counts calls, not time: the calling process may have been stopped as well.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._calls = 0
        self.began_at = 0.0  # On the monotonic clock: the first call that found it stopped.

    def lasts(self) -> bool:
        """Look once more; return whether the standstill lasts."""
        self._calls = self._calls + 1 if waits_for_a_signal(self._pid) else 0
        if self._calls == 1:
            self.began_at = time.monotonic()
        return self._calls > MISSED_MAX
