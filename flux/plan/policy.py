"""The policy of a run for rows that an operator rejects, for overload, for code that is stuck, and for balance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from ..types.errors import PlanError

OnError = Literal["stop", "skip"]
OnOverload = Literal["wait", "shed"]
OnSlow = Literal["wait", "give-up"]

STUCK_AFTER_S = 30.0
BALANCE_NAMES = ("auto", "off", "level", "hill-climbing")
BALANCE_DEFAULT = "auto"
SLOW_CHOICES = ("wait", "give-up")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the user has chosen for one run; every process of the run has it.

    `on_error`: a row for which an operator raises stops the run, or is skipped and counted. `on_overload`: when rows
    arrive faster than they are processed the source waits, or rows are shed at the ingress and counted. With
    `max_latency_ms` only as many rows are in flight as pass through the dataflow in that time. Code of the user that
    has not returned after `stuck_after_s` is reported. `balance` is the name of a policy that moves partitions, or in a
    local run an object with a method `plan`. `slow`: when no more rows can be kept for a slow site, the source waits
    for it, or its copies are given up.

    >>> Policy(on_error="ignore")
    Traceback (most recent call last):
    flux.types.errors.PlanError: on_error is 'stop' or 'skip', got 'ignore'
    """

    on_error: OnError = "stop"
    on_overload: OnOverload = "wait"
    max_latency_ms: float | None = None
    stuck_after_s: float = STUCK_AFTER_S
    balance: Any = BALANCE_DEFAULT
    slow: OnSlow = "wait"

    @property
    def is_balanced(self) -> bool:
        """Whether partitions are moved to even out the load."""
        return not isinstance(self.balance, str) or self.balance != "off"

    def __post_init__(self) -> None:
        chosen = (("on_error", ("stop", "skip")), ("on_overload", ("wait", "shed")), ("slow", SLOW_CHOICES))
        for name, choices in chosen:
            if getattr(self, name) not in choices:
                raise PlanError(f"{name} is {' or '.join(map(repr, choices))}, got {getattr(self, name)!r}")
        after_s = self.stuck_after_s
        if isinstance(after_s, bool) or not isinstance(after_s, int | float) or not after_s > 0:
            raise PlanError(f"stuck_after_s is a number of seconds above 0, got {after_s!r}")
        _check_balance(self.balance)
        if self.slow != "wait" and not self.is_balanced:
            raise PlanError(
                f"slow={self.slow!r} needs balance: a run that is not balanced does not know which sites are slow. "
                'Give balance="auto" too'
            )
        limit = self.max_latency_ms
        if limit is None:
            return
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < math.inf:
            raise PlanError(f"max_latency_ms is a number of milliseconds above 0, or None; got {limit!r}")


def _check_balance(balance: Any) -> None:
    """Raise unless `balance` names a policy or is one."""
    if isinstance(balance, str) and balance in BALANCE_NAMES:
        return
    names = ", ".join(map(repr, BALANCE_NAMES))
    if isinstance(balance, type) and callable(getattr(balance, "plan", None)):
        raise PlanError(f"balance is a policy, and {balance.__name__} is its class: give balance={balance.__name__}()")
    if isinstance(balance, str | type) or not callable(getattr(balance, "plan", None)):
        raise PlanError(
            f"balance is one of {names}, or a policy with a method plan(statistics) that returns moves, such as "
            f"flux.balance.Level(); got {balance!r:.200}"
        )
