"""Machines as such: tables, copies, and every message in every reachable state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from flux.protocols.buffer import Buffer
from flux.protocols.controller import Controller
from flux.protocols.egress import Egress
from flux.protocols.fh_cons import FhCons
from flux.protocols.fh_prod import FhProd
from flux.protocols.ingress import Ingress
from flux.protocols.machine import Machine, Refused, always, ignore, table
from flux.protocols.messages import Closed, Consumed, Hello, Sourced, SourceEnded, View
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler
from flux.spec.dataflow import Scenario, declustered
from flux.spec.explore import Explorer

from .views import FIRST, NO_ROWS, ack, attach, consumed, data

MACHINES = (Controller, Egress, FhCons, FhProd, Ingress, Node, Pooler)


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
    with pytest.raises(Refused, match=r"Buffer refuses SourceEnded\(\).*bound_rows=3"):
        Buffer(3).step(SourceEnded())


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


def every_kind(plan: View) -> Iterator[Any]:
    """Each kind of message, also from strangers, about other stages, out of order."""
    for sender in ("ingress", "site-1", "site-2", "egress", "site-9"):
        for view in (0, 1, 7):
            for edge in range(4):
                yield data(sender, edge, 1, 0, 1, view)
                yield data(sender, edge, 2, 1, 3, view)
                yield ack(sender, edge, 1, view)
                yield attach(sender, edge, 7, 0, view)
                yield attach(sender, edge, 8, 9, view)
    for number in (1, 2, 3):
        yield replace(plan, number=number)
        yield replace(plan, number=number, dead=frozenset({"site-1"}))
    for stage in range(5):
        yield consumed(stage, 1)
        yield consumed(stage, 3)
    yield Sourced(after=0, upto=1, rows=1, body=NO_ROWS)
    yield Sourced(after=1, upto=3, rows=2, body=NO_ROWS)
    yield SourceEnded()
    yield Hello(node="site-1")
    yield Closed(node="site-1")


def test_every_message_in_every_reachable_state_is_taken_or_refused_without_a_trace() -> None:
    # Given every state that a node reaches in a small world with a crash,
    scenario = Scenario(sites=2, copies=declustered(2, [1]), batches=((1,), (2,)), bound_rows=1)
    explorer = Explorer(scenario)
    assert explorer.run().violation is None
    # when any message comes, one of that world or a foreign one,
    messages = [*every_kind(scenario.plan), *explorer.messages_seen()]
    taken: set[tuple[str, type[Any]]] = set()
    refused: set[tuple[str, type[Any]]] = set()
    for node in explorer.nodes_seen():
        before = node.key()
        twin = node.clone()
        for message in messages:
            # then it is taken by a rule, or refused and nothing has changed.
            try:
                twin.step(message)
            except Refused:
                refused.add((node.name, type(message)))
                assert twin.key() == before, f"{node.title} refused {message} half-way"
            else:
                taken.add((node.name, type(message)))
                twin = node.clone()
    assert {kind for _, kind in taken} >= {View, Consumed, Sourced, SourceEnded}
    assert {kind for _, kind in refused} >= {Hello, Closed, View}
