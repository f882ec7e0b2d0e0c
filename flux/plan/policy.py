"""The policy of a run for rows that an operator rejects, for overload, and for code that is stuck."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..types.errors import PlanError

OnError = Literal["stop", "skip"]
OnOverload = Literal["wait", "shed"]

STUCK_AFTER_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the user has chosen for one run; every process of the run has it.

    `on_error`: a row for which an operator raises stops the run, or is skipped and counted. `on_overload`: when rows
    arrive faster than they are processed the source waits, or rows are shed at the ingress and counted. With
    `max_latency_ms` only as many rows are in flight as pass through the dataflow in that time. Code of the user that
    has not returned after `stuck_after_s` is reported.

    >>> Policy(on_error="ignore")
    Traceback (most recent call last):
    flux.types.errors.PlanError: on_error is 'stop' or 'skip', got 'ignore'
    """

    on_error: OnError = "stop"
    on_overload: OnOverload = "wait"
    max_latency_ms: float | None = None
    stuck_after_s: float = STUCK_AFTER_S

    def __post_init__(self) -> None:
        for name, choices in (("on_error", ("stop", "skip")), ("on_overload", ("wait", "shed"))):
            if getattr(self, name) not in choices:
                raise PlanError(f"{name} is {' or '.join(map(repr, choices))}, got {getattr(self, name)!r}")
        after_s = self.stuck_after_s
        if isinstance(after_s, bool) or not isinstance(after_s, int | float) or not after_s > 0:
            raise PlanError(f"stuck_after_s is a number of seconds above 0, got {after_s!r}")
        limit = self.max_latency_ms
        if limit is None:
            return
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < math.inf:
            raise PlanError(f"max_latency_ms is a number of milliseconds above 0, or None; got {limit!r}")
