"""When the balancer has the copies of a slow site retired: no more rows can be kept for it (rule 42)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from flux.protocols.balance_messages import Retire, Work
from flux.protocols.balancer import Balancer
from flux.protocols.machine import Refused

from .controllers import laid_out

VIEW = replace(laid_out(2, ["1 2"]), number=4)
SLOW = replace(VIEW, number=5, slow=frozenset({"site-2"}))


@dataclass(frozen=True)
class Marks:
    """An estimator that knows which sites are slow, and nothing else."""

    marked: frozenset[str]

    def observe(self, work: Work, at_s: float) -> Marks:
        return self

    def relocate(self, *of_view: Any) -> Marks:
        return self

    def slow(self) -> frozenset[str]:
        return self.marked

    def greatest_time_s(self) -> float:
        return 0.0

    def statistics(self, facts: Any) -> None:
        return None


def balancer(retires: bool = True, slow: frozenset[str] = SLOW.slow) -> Balancer:
    made = Balancer(VIEW, Marks(slow), retires=retires)
    made.step(replace(SLOW, slow=slow))
    return made


def kept(rows: int, rows_max: int = 100, view: int = 5, number: int = 1) -> Work:
    return Work(node="ingress", number=number, view=view, elapsed_s=0.1, busy_s=0.0, kept=(("site-2", rows, rows_max),))


def retired(made: Balancer, work: Work) -> list[Any]:
    return [effect for effect in made.step(work) if isinstance(effect, Retire)]


def test_the_copies_of_a_slow_site_are_retired_when_no_more_can_be_kept() -> None:
    made = balancer()
    assert retired(made, kept(99)) == []
    assert retired(made, kept(100, number=2)) == [Retire(node="site-2")]


def test_nothing_is_retired_unless_the_user_prefers_it() -> None:
    assert retired(balancer(retires=False), kept(100)) == []


def test_a_report_of_the_time_before_the_site_was_slow_does_not_count() -> None:
    assert retired(balancer(), kept(100, view=4)) == []


@pytest.mark.parametrize("slow", [frozenset(), frozenset({"site-1", "site-2"})])
def test_a_site_that_is_not_slow_and_the_last_prompt_copy_stay(slow: frozenset[str]) -> None:
    assert retired(balancer(slow=slow), kept(100)) == []


def test_a_report_with_less_than_no_rows_is_refused() -> None:
    with pytest.raises(Refused):
        balancer().step(kept(-1))
