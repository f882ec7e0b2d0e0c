"""How many moves of a round begin at once: few of pairs, all of those that wait for one donor."""

from __future__ import annotations

from typing import Any

import pytest

from flux.balance import Estimates
from flux.protocols.balance_messages import Move, Planned, PlanRound, Tick, Work
from flux.protocols.balancer import MOVES_FROM_A_SITE_MAX, MOVES_TO_A_SITE_MAX, Balancer
from flux.protocols.messages import View

SITES = [f"site-{n}" for n in range(1, 9)]
MOVES = 12


def balancer(copies: int, slow: frozenset[str] = frozenset()) -> Balancer:
    """Of a dataflow whose first twelve partitions have a copy on site-1, and are to leave it for six others."""
    placed = tuple(("site-1", "site-2")[:copies] for _ in range(MOVES))
    view = View(
        number=1,
        nodes=("ingress", *SITES, "egress"),
        dead=frozenset(),
        copies=((("ingress",),), placed, (("egress",),)),
        slow=slow,
    )
    return Balancer(view, Estimates())


@pytest.mark.parametrize(("copies", "begun"), [(2, MOVES_FROM_A_SITE_MAX), (1, MOVES)])
def test_moves_of_single_copies_wait_for_the_backlog_of_their_site_together(copies: int, begun: int) -> None:
    machine = balancer(copies)
    assert (
        _begun(machine, tuple(Move(stage=1, partition=p, slot=0, to=SITES[2 + p % 6]) for p in range(MOVES))) == begun
    )


@pytest.mark.parametrize(("slow", "begun"), [(("site-1",), MOVES_TO_A_SITE_MAX), (("site-1", "site-2"), MOVES)])
def test_so_do_moves_whose_donors_are_all_slow(slow: tuple[str, ...], begun: int) -> None:
    """Both copies of each partition are on slow sites. Two at a time, the moves took a minute on real processes."""
    machine = balancer(2, frozenset(slow))
    assert _begun(machine, tuple(Move(stage=1, partition=p, slot=0, to="site-3") for p in range(MOVES))) == begun


def _begun(machine: Balancer, moves: tuple[Move, ...]) -> int:
    machine.step(Tick(at_s=1.0))
    effects: list[Any] = machine.step(Work(node="site-1", number=1, view=1, elapsed_s=0.1, busy_s=0.1))
    [asked] = [effect for effect in effects if isinstance(effect, PlanRound)]
    return sum(isinstance(effect, Move) for effect in machine.step(Planned(number=asked.number, moves=moves)))
