"""Every rule of every machine is needed: without it, random worlds fail."""

from __future__ import annotations

from typing import Any

import pytest

from flux.protocols.controller import Controller
from flux.protocols.egress import Egress
from flux.protocols.fh_cons import FhCons
from flux.protocols.fh_prod import FhProd
from flux.protocols.ingress import Ingress
from flux.protocols.machine import Machine, Refused, Rule
from flux.protocols.messages import Closed, Failed, Hello, Merged, Move, State, Want
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler

from .wandering import violations

MACHINES = (Controller, Egress, FhCons, FhProd, Ingress, Node, Pooler)
# Rows that no world needs, each with the reason; tests/protocols has a test of every one.
NOT_IN_A_WORLD: dict[tuple[type[Machine], type[Any], str], str] = {
    (Controller, Closed, "is_setting_up"): "sites fail after the first view",
    (Controller, Closed, "is_known_dead"): "the controller notices each death once",
    (Controller, Hello, "is_new"): "no site comes later",
    (Controller, Move, "is_possible"): "a move is a wish: nothing is wrong if it is ignored",
    (Controller, Failed, "always"): "when a donor dies without another copy, the first word of it ends the run",
    (Egress, Merged, "always"): "it has one cohort, and never asks for a merge",
    (Pooler, Want, "is_not_on_its_way"): "no copy is given up while its donor and its site live",
    (Pooler, State, "always"): "the same",
}

# Rows that worlds need, and too rarely for a test: tests/protocols has a test of every one.
RARE: set[tuple[type[Machine], type[Any], str]] = {
    (FhCons, Merged, "is_of_a_lane_given_up"),
}


def key(machine: type[Machine], rule: Rule[Any, Any]) -> tuple[type[Machine], type[Any], str]:
    return machine, rule.on, rule.guard.__name__


ROWS = [
    pytest.param(
        machine, rule, id=f"{machine.__name__}-{rule.on.__name__}-{rule.guard.__name__}-{rule.action.__name__}"
    )
    for machine in MACHINES
    for rule in machine.RULES
    if key(machine, rule) not in NOT_IN_A_WORLD | dict.fromkeys(RARE)
]


@pytest.mark.parametrize(("machine", "rule"), ROWS)
def test_without_the_rule_a_world_fails(
    machine: type[Machine], rule: Rule[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "RULES", tuple(kept for kept in machine.RULES if kept is not rule))
    assert a_world_fails()


def a_world_fails() -> bool:
    try:
        return next(violations(), None) is not None
    except Refused:
        return True  # Already the first greeting is refused, before there is a world.


def test_the_rows_left_out_exist() -> None:
    rows = {key(machine, rule) for machine in MACHINES for rule in machine.RULES}
    assert rows >= NOT_IN_A_WORLD.keys() | RARE
