"""What a driver knows of changes of code, as reports say it and as a view that it finds has it."""

from __future__ import annotations

from typing import Any

import pytest

import flux
from flux.commands.top import screen
from flux.driver.change_request import ChangeBuilder, StepRequest
from flux.driver.known_changes import KnownChange, KnownChanges
from flux.plan.plan import Plan
from flux.plan.policy import Policy
from flux.protocols.view import Edition
from flux.wire.frames import BadFrame
from flux.wire.reports import ChangeDecided, ChangePassed


class Sums(flux.KeyedOperator):
    output = {"k": "int64"}  # noqa: RUF012 - as users write it.

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return state, [{"k": row.k}]


@pytest.fixture
def plan() -> Plan:
    flow = flux.Dataflow("known")
    flow.source(flux.sources.Table([{"k": 1}])).exchange("k").apply(Sums).sink(flux.sinks.Null())
    return flow._logical.plan(2, 0, "pairs", 1_000, Policy())


def asked(known: KnownChanges, plan: Plan, now: float = 10.0, **parameters: Any) -> KnownChange:
    wanted = {"Sums": StepRequest(parameters=parameters)}
    return ChangeBuilder(plan, [flux.sinks.Null()]).ask(known, wanted, "sn", now)


def decided(number: int, outcome: str, at: float, **more: Any) -> ChangeDecided:
    return ChangeDecided(number=number, outcome=outcome, position=7, reason="", at=at, **more)


def test_a_change_is_known_from_the_request_to_its_end(plan: Plan) -> None:
    known = KnownChanges()
    change = asked(known, plan, by=2)
    assert known.in_progress(12.5) == "change 1 of Sums is being agreed on, for 2.5 s"
    known.apply_decided(decided(1, "committed", 11.0, attempts=2, held_s=0.01))
    assert known.in_progress(13.0) == "change 1 of Sums is made at row 7, and some copies are before it"
    known.apply_passed(ChangePassed(number=1, copies="first", at=11.25))
    known.apply_passed(ChangePassed(number=1, copies="each", at=11.5))
    known.apply_passed(ChangePassed(number=1, copies="all", at=12.0))
    assert known.in_progress(13.0) == ""
    assert known.unsettled() == [change], "a controller that is started again may know that it is closed"
    known.apply_decided(decided(1, "closed", 14.0))
    assert known.unsettled() == []
    [plain] = known.to_plain(9.0)
    assert (plain["when_s"], plain["position"], plain["attempts"], plain["held_s"]) == (1.0, 7, 2, 0.01)
    times = [plain[name] for name in ("committed_after_s", "first_s", "delay_s", "complete_s")]
    assert times == [1.0, 1.25, 1.5, 2.0]


def test_what_was_refused_is_no_part_of_the_next_change(plan: Plan) -> None:
    known = KnownChanges()
    asked(known, plan, by=2)
    known.apply_decided(ChangeDecided(number=1, outcome="refused", position=0, reason="site-1: no", at=11.0))
    assert known.by_number[1].reason == "site-1: no" and known.in_progress(12.0) == ""
    change = asked(known, plan, other=3)
    assert change.number == 2 and change.made[1, 0].parameters == {"other": 3}
    known.apply_decided(decided(2, "committed", 12.0))
    assert asked(known, plan, by=4).made[1, 0].parameters == {"other": 3, "by": 4}


def test_a_report_that_comes_again_changes_nothing(plan: Plan) -> None:
    known = KnownChanges()
    asked(known, plan, by=2)
    for at in (11.0, 15.0):
        known.apply_decided(decided(1, "committed", at, held_s=at))
        known.apply_passed(ChangePassed(number=1, copies="all", at=at + 1))
    change = known.by_number[1]
    assert (change.committed_at, change.complete_at, change.held_s) == (11.0, 12.0, 11.0)


def test_a_report_of_another_change_is_refused() -> None:
    with pytest.raises(BadFrame, match="one of the changes up to 0, got one of number 3"):
        KnownChanges().apply_decided(decided(3, "committed", 1.0))


def test_a_driver_that_is_started_again_knows_what_the_view_has(plan: Plan) -> None:
    first = KnownChanges()
    command = asked(first, plan, by=2).command
    again = KnownChanges()
    edition = Edition(number=1, stages=command.stages, position=7, spec=command.spec, closed=True)
    again.restore(plan, (edition,), 20.0)
    assert again.by_number[1].steps == ("Sums",) and again.unsettled() == []
    assert asked(again, plan, other=3).made[1, 0].parameters == {"by": 2, "other": 3}
    assert again.last == 2


def test_a_status_names_the_change_in_progress() -> None:
    rest = {"inputs": 1, "outputs": 1, "input_rate": 0.0, "output_rate": 0.0, "ended": False}
    status = flux.Status("job", 9.0, [], True, failures=[], change="change 1 of Sums is being agreed on", **rest)
    assert "  change 1 of Sums is being agreed on" in screen(status.to_dict())
    assert status["change"] == "change 1 of Sums is being agreed on"
