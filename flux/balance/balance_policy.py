"""What a policy of balance is, and how the balancer's question reaches it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from ..protocols.balance_messages import Planned, PlanRound
from ..protocols.messages import Move
from ..types.errors import PlanError
from .statistics import Statistics


@runtime_checkable
class BalancePolicy(Protocol):
    """Decides when to move which copies. It is asked at every report of a site while nothing moves.

    `plan` is pure: equal statistics give equal moves. What it needs to remember is in the statistics.
    """

    def plan(self, statistics: Statistics) -> Sequence[Move]:
        """Return the moves of a round, the first ones first; none if all may stay."""


class Proposal(tuple[Move, ...]):
    """Moves with the reason for them, and the part of the greatest time per position that they should save.

    >>> Proposal(why="all is well"), Proposal(why="all is well").why
    ((), 'all is well')
    """

    why: str
    gain_expected: float | None

    def __new__(cls, moves: Iterable[Move] = (), why: str = "", gain_expected: float | None = None) -> Proposal:
        proposal = super().__new__(cls, moves)
        proposal.why, proposal.gain_expected = why, gain_expected
        return proposal

    def __repr__(self) -> str:
        return tuple.__repr__(self)


def ask(policy: BalancePolicy, plan: PlanRound) -> Planned:
    """Ask `policy`, and return its answer for the balancer.

    A policy that raises, or returns something else than moves, is a `PlanError` that names it.
    """
    statistics = plan.statistics
    name = type(policy).__name__
    try:
        answer: Sequence[Move] | None = policy.plan(statistics)
    except Exception as error:
        raise PlanError(f"{name}.plan of the balance policy raised {error!r}") from error
    proposal = () if answer is None else answer
    if not isinstance(proposal, Sequence) or not all(isinstance(move, Move) for move in proposal):
        raise PlanError(f"{name}.plan returns moves, a sequence of flux.balance.Move; got {proposal!r:.200}")
    moves = tuple(proposal)
    gain = getattr(proposal, "gain_expected", None)
    if gain is None:
        gain = statistics.gain(moves) if moves else 0.0
    why = getattr(proposal, "why", "") or f"{name} planned it"
    return Planned(number=plan.number, moves=moves, why=why, gain_expected=gain)
