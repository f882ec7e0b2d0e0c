"""Balance: which copies move where, and when. Policies, and the estimates they rest on; no I/O, no clock.

`flux.protocols.balancer.Balancer` collects what sites report in `Estimates`, marks slow sites, and asks a policy for
the moves of a round. `flux.controller.load_balance` carries it out in a run.

A policy of your own is an object with a method `plan(statistics)` that returns moves; `Level` and `HillClimbing` are
examples of it.
"""

from ..protocols.balance_messages import Round
from ..protocols.messages import Move
from .balance_policy import BalancePolicy, Proposal, ask
from .estimates import Estimates
from .hill_climbing import HillClimbing
from .level import Level
from .policy_choice import make_policy
from .statistics import Moment, PartitionStatistics, ReceivedWork, SiteStatistics, Statistics
from .time_left import KeptForSite, KeptRows

__all__ = [
    "BalancePolicy",
    "Estimates",
    "HillClimbing",
    "KeptForSite",
    "KeptRows",
    "Level",
    "Moment",
    "Move",
    "PartitionStatistics",
    "Proposal",
    "ReceivedWork",
    "Round",
    "SiteStatistics",
    "Statistics",
    "ask",
    "make_policy",
]
