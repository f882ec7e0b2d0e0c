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
from flux.protocols.messages import Closed
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler
from flux.spec.walk import walk

MACHINES = (Controller, Egress, FhCons, FhProd, Ingress, Node, Pooler)
SEEDS = 150
# In a world sites fail after the first view, and the controller notices each death once.
NOT_IN_A_WORLD = {Controller.is_setting_up, Controller.is_known_dead}

ROWS = [
    pytest.param(
        machine, rule, id=f"{machine.__name__}-{rule.on.__name__}-{rule.guard.__name__}-{rule.action.__name__}"
    )
    for machine in MACHINES
    for rule in machine.RULES
    if rule.guard not in NOT_IN_A_WORLD
]


@pytest.mark.parametrize(("machine", "rule"), ROWS)
def test_without_the_rule_a_world_fails(
    machine: type[Machine], rule: Rule[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "RULES", tuple(kept for kept in machine.RULES if kept is not rule))
    assert any(fails(seed) for seed in range(SEEDS))


def fails(seed: int) -> bool:
    try:
        return walk(seed).violation is not None
    except Refused:
        return True  # Already the first greeting is refused, before there is a world.


def test_the_rules_left_out_here_ignore_a_message() -> None:
    left_out = [rule for rule in Controller.RULES if rule.guard in NOT_IN_A_WORLD]
    assert [rule.on for rule in left_out] == [Closed, Closed]
