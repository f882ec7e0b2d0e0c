"""How the balancer's question reaches a policy, and what a policy may answer."""

from __future__ import annotations

from typing import Any

import pytest

from flux.balance import HillClimbing, Level, Move, PartitionStatistics, Proposal, SiteStatistics, Statistics, ask
from flux.balance.policy_choice import make_policy
from flux.protocols.balance_messages import Planned, PlanRound
from flux.types.errors import PlanError

STATISTICS = Statistics(
    at_s=1.0,
    sites=tuple(SiteStatistics(name=f"site-{n}", speed=1.0, time_s=1.0) for n in (1, 2)),
    partitions=[PartitionStatistics(stage=1, partition=p, work=1.0, copies=("site-1",)) for p in range(2)],
)
MOVE = Move(stage=1, partition=0, slot=0, to="site-2")


class Fixed:
    """A policy that gives one answer, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def plan(self, statistics: Statistics) -> Any:
        assert statistics is STATISTICS
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def answer(given: Any) -> Planned:
    return ask(Fixed(given), PlanRound(number=7, statistics=STATISTICS))


def test_an_answer_has_the_number_of_its_question() -> None:
    assert answer(Proposal([MOVE], why="it is time", gain_expected=0.25)) == Planned(
        number=7, moves=(MOVE,), why="it is time", gain_expected=0.25
    )


def test_a_plain_sequence_is_an_answer_and_its_gain_is_predicted() -> None:
    assert answer([MOVE]) == Planned(number=7, moves=(MOVE,), why="Fixed planned it", gain_expected=0.5)


@pytest.mark.parametrize("nothing", [None, (), []])
def test_no_moves_are_an_answer(nothing: Any) -> None:
    assert answer(nothing) == Planned(number=7, moves=(), why="Fixed planned it", gain_expected=0.0)


@pytest.mark.parametrize("wrong", [5, [5], "site-1", {MOVE}])
def test_anything_but_moves_is_an_error_that_names_the_policy(wrong: Any) -> None:
    with pytest.raises(PlanError, match=r"Fixed.plan returns moves, a sequence of flux.balance.Move; got"):
        answer(wrong)


def test_a_policy_that_raises_is_an_error_that_names_it_and_its_cause() -> None:
    with pytest.raises(PlanError, match=r"Fixed.plan of the balance policy raised ValueError\('no'\)") as raised:
        answer(ValueError("no"))
    assert isinstance(raised.value.__cause__, ValueError)


def test_policies_have_names() -> None:
    assert make_policy("auto") == make_policy("level") == Level()
    assert make_policy("hill-climbing") == HillClimbing()
    assert make_policy("off") is None
    own = Fixed(())
    assert make_policy(own) is own
