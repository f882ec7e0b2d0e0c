"""The policy that a user's `balance=` means."""

from __future__ import annotations

from ..types.errors import PlanError
from .balance_policy import BalancePolicy
from .hill_climbing import HillClimbing
from .level import Level

_NAMED: dict[str, type[Level] | type[HillClimbing]] = {"auto": Level, "level": Level, "hill-climbing": HillClimbing}


def make_policy(balance: str | BalancePolicy) -> BalancePolicy | None:
    """Return the policy of `balance`: one of a name, None for "off", or a policy of the user's own.

    >>> make_policy("auto")
    Level(tolerance=0.01, persist_s=0.5)
    >>> make_policy("on")
    Traceback (most recent call last):
    flux.types.errors.PlanError: no policy of balance is called 'on'
    """
    if not isinstance(balance, str):
        return balance
    if balance == "off":
        return None
    if balance not in _NAMED:
        raise PlanError(f"no policy of balance is called {balance!r}")
    return _NAMED[balance]()
