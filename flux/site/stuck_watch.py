"""Stuck watch: notices that code of the user does not return, from the thread that sends heartbeats.

An endless loop or a deadlock in an operator stops the loop of its process, and heartbeats go on: the process is not
dead, and nothing ends it. So the heartbeat thread looks how long the present calls of user code take: the job of the
loop, operators that are opened, state that is read or installed, steps and sources of an ingress, and a sink that is
called, also in a thread of its own. After `after_s` it reports the step, the partitions, the rows and the stack of the
user's code; and again when that call has returned.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from ..model.error_location import is_users_code
from ..plan import Plan
from ..protocols.messages import Consume

_LOOP = "trio._core._run"
_FRAMES_MAX = 20
_PARTITIONS_MAX = 10

CallPlace = str | Callable[[], str]  # Where a call is; a function may be called from another thread.


@dataclass(frozen=True, eq=False)
class _Call:
    """A call of user code: a job, or what is called and for which rows."""

    what: Consume | tuple[str, CallPlace]
    at_s: float


class StuckWatch:
    """Watches the calls of a process, one a thread. `begin` and `end` are of the calling thread, `news` of another."""

    def __init__(self, plan: Plan, after_s: float) -> None:
        self._plan = plan
        self._after_s = after_s
        self._calls: dict[int, _Call] = {}  # By thread.
        self._reported: _Call | None = None

    def begin(self, what: Consume | tuple[str, CallPlace]) -> None:
        """Note that this thread calls code of the user: for a job, or what, and for which rows."""
        self._calls[threading.get_ident()] = _Call(what, time.monotonic())

    def end(self) -> None:
        """Note that it has returned."""
        self._calls.pop(threading.get_ident(), None)

    @contextmanager
    def calling(self, what: str, place: CallPlace) -> Iterator[None]:
        """Note that this thread calls code of the user, until the block ends: what, and for which rows."""
        self.begin((what, place))
        try:
            yield
        finally:
            self.end()

    def news(self) -> str | None:
        """Return where a thread is stuck, once for each call; "" when it goes on; None if there is no news."""
        calls = list(self._calls.items())
        if self._reported is not None:
            if any(call is self._reported for _, call in calls):
                return None
            self._reported = None
            return ""
        for thread, call in calls:
            if time.monotonic() - call.at_s >= self._after_s and (stack := _stack(thread)) is not None:
                self._reported = call
                return self._describe(call, stack)
        return None

    def _describe(self, call: _Call, stack: str) -> str:
        what, place = call.what if isinstance(call.what, tuple) else self._job(call.what)
        where = place if isinstance(place, str) else place()
        return f"{what} has not returned for {time.monotonic() - call.at_s:.0f} s: {where}. It is in {stack}"

    def _job(self, job: Consume) -> tuple[str, str]:
        plan = self._plan
        what = f"step {plan.segment(job.stage).title}" if job.stage in plan.stages else "a sink"
        return what, f"stage {job.stage}, {list_partitions(job.partitions)}, rows {job.after + 1} to {job.upto}"


def list_partitions(partitions: Iterable[int]) -> str:
    """Return the numbers of some partitions as text, the first of them if there are many."""
    held = sorted(partitions)
    return (
        "partitions " + ", ".join(map(str, held[:_PARTITIONS_MAX])) + (", ..." if len(held) > _PARTITIONS_MAX else "")
    )


def _stack(thread: int) -> str | None:
    """Return the user's frames, the innermost first; the innermost of all if none is the user's.

    None if a thread that is not a loop has none: a sink of Flux may wait for its readers.
    """
    frame = sys._current_frames().get(thread)
    every = [] if frame is None else list(traceback.walk_stack(frame))
    # After the loop of the process come frames of the program that it is a fork of.
    frames = list(takewhile(lambda each: each[0].f_globals.get("__name__") != _LOOP, every))
    users = [each for each in frames if is_users_code(each[0].f_code)] or (frames[:1] if frames != every else [])
    lines = [f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{line})" for frame, line in users[:_FRAMES_MAX]]
    return ", called by ".join(lines) or None
