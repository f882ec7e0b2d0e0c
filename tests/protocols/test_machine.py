"""Machines as such: their tables, their copies, their one name."""

from __future__ import annotations

import runpy
from dataclasses import replace
from typing import Any

import pytest

import flux.protocols
from flux.protocols.buffer import Buffer
from flux.protocols.controller import Controller
from flux.protocols.egress import Egress
from flux.protocols.fh_cons import FhCons
from flux.protocols.fh_prod import FhProd
from flux.protocols.ingress import Ingress
from flux.protocols.machine import Machine, Refused, always, ignore, table
from flux.protocols.messages import EndOfSource
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler
from flux.protocols.state_mover import StateMover

from .good_input import GOOD, NODES
from .views import FIRST, ack, consumed, data

MACHINES = (Controller, Egress, FhCons, FhProd, Ingress, Node, Pooler, StateMover)


def test_the_machines_have_one_name() -> None:
    # The folder is linked into flux: imported by its own name, every class would exist twice.
    with pytest.raises(ImportError, match=r"as flux\.protocols"):
        runpy.run_path(str(flux.protocols.__file__), run_name="protocols")


@pytest.mark.parametrize("machine", MACHINES)
def test_every_row_names_its_message_guard_action_and_source(machine: type[Machine]) -> None:
    rows = list(table(machine))
    assert rows
    for message, guard, action, cites in rows:
        assert message[0].isupper()
        assert all(name.isidentifier() for name in (guard, action))
        assert cites


@pytest.mark.parametrize("machine", MACHINES)
def test_no_row_stands_behind_one_that_always_fires(machine: type[Machine]) -> None:
    settled: set[type[Any]] = set()
    for rule in machine.RULES:
        assert rule.on not in settled, f"{rule.on.__name__} never reaches {rule.action.__name__}"
        if rule.guard is always:
            settled.add(rule.on)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_ignored_is_ignored_for_a_reason(machine: type[Machine]) -> None:
    for rule in machine.RULES:
        if rule.action is ignore:
            assert len(rule.cites.split()) >= 3, f"{rule.cites!r} is no reason"


def test_a_machine_without_rules_refuses_everything() -> None:
    with pytest.raises(Refused, match=r"Buffer refuses EndOfSource\(\).*bound_rows=3"):
        Buffer(3).step(EndOfSource())


@pytest.mark.parametrize("node", NODES)
def test_the_whole_state_is_one_hashable_value(node: str) -> None:
    # What can be changed in place cannot be hashed, and would be shared by a machine and its copies.
    for message in GOOD[node]:
        made = NODES[node]()
        made.step(message)
        assert isinstance(hash(made.key()), int)


def test_a_copy_is_equal_and_independent() -> None:
    node = Node("site-1", [Pooler("site-1", stage, 10) for stage in (1, 2)])
    node.step(ack("site-2", 1, 1, view=2))
    node.step(FIRST)
    node.step(data("ingress", 0, 1, 0, 1))
    twin = node.clone()
    assert twin.key() == node.key()
    twin.step(consumed(1, 1))
    twin.step(replace(FIRST, number=2))
    assert twin.key() != node.key()
    assert node.number == 1 and len(node.held) == 1
