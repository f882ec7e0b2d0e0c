"""Moving world: a simulated run whose copies move, and whose sites are marked as slow, at random and all the time.

The policy of its balance asks for moves at every report, and its estimates call sites slow that are not. Both are what
real ones may say on a bad day: what rests on them is speed, not the output. Sites report ten times as often as real
ones, and die while copies move. Once the run has ended nothing moves any more.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ..balance import Estimates, Move, Statistics
from ..plan.policy import Policy
from ..site import work_meter
from .process_world import ProcessWorld
from .world_flow import WorldFlow
from .world_result import WorldResult

__all__ = ["MovingWorld"]

_REPORT_EVERY_S = 0.03
_MARK_S = 0.05  # A site is marked, or not, for so long.
_MARKED = 0.4  # Of the time.
_MOVES_MAX = 4  # Of one round.


class _RandomMoves:
    """A policy that asks for moves at random, while its world wants any."""

    def __init__(self, world: MovingWorld) -> None:
        self._world = world

    def plan(self, statistics: Statistics) -> list[Move]:
        """Return some moves of copies that may move, to any sites: also to some that have a copy already."""
        rng = self._world.balance_rng
        movable = [each for each in statistics.partitions if each.is_movable]
        sites = [site.name for site in statistics.sites]
        if self._world.is_resting or not movable or not sites:
            return []
        chosen = rng.sample(movable, min(len(movable), rng.randint(0, _MOVES_MAX)))
        return [
            Move(stage=each.stage, partition=each.partition, slot=rng.randrange(len(each.copies)), to=rng.choice(sites))
            for each in chosen
        ]


class MovingWorld(ProcessWorld):
    """The world of a seed."""

    kind = "moving"
    may_lose_while_moving = True

    def __init__(self, seed: int, **settings: Any) -> None:
        self.balance_rng = random.Random(f"{seed} balance")
        super().__init__(seed, **settings)

    def draw_flow(self) -> WorldFlow:
        """Return the dataflow of this world: more rows, on more sites."""
        rows = self.balance_rng.randint(8, 30)
        rate = rows / self.balance_rng.choice((0.2, 0.4, 0.8))
        return replace(super().draw_flow(), rows=rows, rate=rate, sites=self.balance_rng.choice((3, 3, 4)))

    def draw_policy(self) -> Policy:
        """Return the policy of this world."""
        return Policy(balance=_RandomMoves(self))

    @property
    def is_resting(self) -> bool:
        """Whether the stream has ended."""
        return self.run_state is None or self.run_state.ended

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Have sites report often, and have some of them look slow."""
        slow = lambda estimates: self._slow(estimates)  # noqa: E731 - a method of the estimates, with the world in it.
        with patch.object(work_meter, "REPORT_EVERY_S", _REPORT_EVERY_S), patch.object(Estimates, "slow", slow):
            yield

    def run(self) -> WorldResult:
        """Run the world to its end."""
        result = super().run()
        rounds = () if self.run_state is None else self.run_state.balance.rounds
        return replace(result, moves=sum(len(each.versions) for each in rounds))

    def _slow(self, estimates: Estimates) -> frozenset[str]:
        """Return the sites that look slow: for a while one of them, or none."""
        rng = random.Random(f"{self.seed} slow {int(self.now / _MARK_S)}")
        sites = sorted(estimates.known.layout.held)
        return frozenset({rng.choice(sites)} if sites and not self.is_resting and rng.random() < _MARKED else ())
