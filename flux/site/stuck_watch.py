"""Stuck watch: notices that code of the user does not return, from the thread that sends heartbeats.

An endless loop or a deadlock in an operator stops the loop of its process, and heartbeats go on: the process is not
dead, and nothing ends it. So the heartbeat thread looks how long the present job takes. After `after_s` it reports the
step, the partitions, the rows and the stack of the user's code; and again when that job has ended.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from dataclasses import dataclass
from itertools import takewhile

from ..model.error_location import is_users_code
from ..plan import Plan
from ..protocols.messages import Consume

_LOOP = "flux.site.shell"
_FRAMES_MAX = 20
_PARTITIONS_MAX = 10


@dataclass(frozen=True, eq=False)
class _Begun:
    job: Consume
    at_s: float


class StuckWatch:
    """Watches the jobs of the thread that made it. `begin` and `end` are that thread's, `news` another's."""

    def __init__(self, plan: Plan, after_s: float) -> None:
        self._plan = plan
        self._after_s = after_s
        self._thread = threading.get_ident()
        self._now: _Begun | None = None
        self._reported: _Begun | None = None

    def begin(self, job: Consume) -> None:
        """Note that a job begins."""
        self._now = _Begun(job, time.monotonic())

    def end(self) -> None:
        """Note that it has ended."""
        self._now = None

    def news(self) -> str | None:
        """Return where the thread is stuck, once for each job; "" when it goes on; None if there is no news."""
        now = self._now
        if now is self._reported:
            return None
        if now is not None and time.monotonic() - now.at_s >= self._after_s:
            self._reported = now
            return self._describe(now)
        if self._reported is None:
            return None
        self._reported = None
        return ""

    def _describe(self, begun: _Begun) -> str:
        job, plan = begun.job, self._plan
        what = f"step {plan.segment(job.stage).title}" if job.stage in plan.stages else "a sink"
        held = sorted(job.partitions)
        partitions = ", ".join(map(str, held[:_PARTITIONS_MAX])) + (", ..." if len(held) > _PARTITIONS_MAX else "")
        return (
            f"{what} has not returned for {time.monotonic() - begun.at_s:.0f} s: stage {job.stage}, partitions "
            f"{partitions}, rows {job.after + 1} to {job.upto}. It is in {self._stack()}"
        )

    def _stack(self) -> str:
        """Return the user's frames, the innermost first; the innermost of all if none is the user's."""
        stack = traceback.walk_stack(sys._current_frames()[self._thread])
        # After the loop of the process come frames of the program that it is a fork of.
        frames = list(takewhile(lambda each: each[0].f_globals.get("__name__") != _LOOP, stack))
        users = [each for each in frames if is_users_code(each[0].f_code)] or frames[:1]
        lines = [
            f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{line})" for frame, line in users[:_FRAMES_MAX]
        ]
        return ", called by ".join(lines)
