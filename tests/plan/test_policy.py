"""The policy of a run: what it takes for balance, and what the plan makes of it."""

from __future__ import annotations

from typing import Any

import pytest

import flux
from flux.plan import Policy
from flux.plan.policy import BALANCE_NAMES


class Stays:
    def plan(self, statistics: Any) -> list[Any]:
        return []


def test_balance_is_on_unless_it_is_turned_off() -> None:
    assert Policy().is_balanced
    assert not Policy(balance="off").is_balanced


@pytest.mark.parametrize("balance", [*(name for name in BALANCE_NAMES if name != "off"), Stays()])
def test_a_name_or_a_policy_balances(balance: Any) -> None:
    assert Policy(balance=balance).is_balanced


@pytest.mark.parametrize("balance", ["of", "", None, True, 3, object(), [], int])
def test_nonsense_is_refused_with_what_is_possible(balance: Any) -> None:
    with pytest.raises(flux.PlanError, match=r"balance is one of 'auto', 'off', .*, or a policy .*; got"):
        Policy(balance=balance)


def test_the_class_of_a_policy_is_refused_with_what_to_write() -> None:
    with pytest.raises(flux.PlanError, match=r"Stays is its class: give balance=Stays\(\)"):
        Policy(balance=Stays)


def test_stages_whose_exchange_says_so_are_pinned_and_standbys_are_spares() -> None:
    flow = flux.Dataflow("pinned")
    rows = flow.source(flux.sources.Table([{"n": 1, "m": 2}]))
    rows = rows.exchange("n", partitions=2).filter(lambda row: True)
    rows = rows.exchange("m", partitions=2, balance=False).filter(lambda row: True)
    rows.exchange(partitions=1, balance=False).filter(lambda row: True).sink(flux.sinks.Null())
    plan = flow._logical.plan(2, 2, "pairs", 100, Policy())
    assert plan.pinned_stages == {2, 3}
    assert plan.spares == ("site-3", "site-4")


def test_the_policy_is_not_given_to_an_exchange() -> None:
    rows = flux.Dataflow("auto").source(flux.sources.Table([{"n": 1}]))
    with pytest.raises(flux.PlanError, match=r"exchange\(balance=...\) is True, or False .*; got 'auto'.*flow.run"):
        rows.exchange("n", balance="auto")  # type: ignore[arg-type]


def test_slow_sites_are_waited_for_unless_they_are_to_be_given_up() -> None:
    assert Policy().slow == "wait"
    assert Policy(balance="auto", slow="give-up").slow == "give-up"
    with pytest.raises(flux.PlanError, match=r"slow is 'wait' or 'give-up', got 'give up'"):
        Policy(balance="auto", slow="give up")  # type: ignore[arg-type]


def test_what_is_slow_is_known_only_in_a_run_that_is_balanced() -> None:
    with pytest.raises(flux.PlanError, match=r"slow='give-up' needs balance.*Give balance=\"auto\" too"):
        Policy(balance="off", slow="give-up")
