"""Every message in every reachable state: it is taken by a rule, or refused without a trace.

It takes half a minute: every message is tried in every state that small worlds reach.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest

from flux.protocols.change_messages import (
    AbortChange,
    AttemptOverdue,
    Bind,
    Bound,
    Cannot,
    ChangeOrder,
    CheckpointRetained,
    Passed,
    Past,
    Prepare,
    Prepared,
    Reconfigure,
    Rehearsed,
    Unbind,
)
from flux.protocols.machine import Machine, Refused
from flux.protocols.messages import (
    Closed,
    Connected,
    Consumed,
    CopyCosts,
    CopyFailed,
    CopyReady,
    EndOfSource,
    Hello,
    LinkDown,
    Message,
    Move,
    PeerMessage,
    Retire,
    Slow,
    Sourced,
    Suspected,
    ToController,
    View,
)
from flux.spec.dataflow import Scenario, declustered
from flux.spec.explore import Explorer

from .views import (
    FIRST,
    NO_ROWS,
    ack,
    attach,
    consumed,
    data,
    highest,
    merge,
    merged,
    standby,
    state,
    stop,
    stopped,
    want,
)

SENDERS = ("ingress", "site-1", "site-2", "site-3", "egress", "site-9")


def every_kind(plan: View) -> Iterator[Any]:
    """Each kind of message, also from strangers, about other stages, out of order."""
    for sender in SENDERS:
        for view in (1, 9):
            yield from between_nodes(sender, view)
    building = (standby(1, 1, 0, 0, "site-3", "site-2"),)
    for number in (1, 2, 3):
        yield replace(plan, number=number)
        yield replace(plan, number=number, dead=frozenset({"site-1"}), standby=building)
    for stage in range(4):
        for cohort in (0, 1):
            yield consumed(stage, 1, cohort=cohort)
            yield consumed(stage, 3, cohort=cohort)
    yield Sourced(after=0, upto=1, rows=1, body=NO_ROWS)
    yield Sourced(after=1, upto=3, rows=2, body=NO_ROWS)
    yield EndOfSource()
    yield Hello(node="site-1")
    yield Hello(node="site-9")
    yield Connected()
    yield Closed(node="site-1")
    yield Suspected(node="site-1")
    yield Suspected(node="site-9")
    yield LinkDown(a="site-1", b="site-2")
    yield LinkDown(a="site-1", b="site-9")
    yield CopyReady(node="site-3", version=1)
    yield CopyFailed(node="site-3", version=1)
    yield Move(stage=1, partition=0, slot=0, to="site-3")
    yield Slow(nodes=("site-1", "site-9"))
    yield Retire(node="site-1")
    yield CopyCosts(costs=(("site-1", 2.0),))
    yield from of_changes()


def of_changes() -> Iterator[Any]:
    """What is said about changes of code: requests, what nodes report, and what they are asked."""
    for number in (0, 1, 2):
        yield Reconfigure(number=number, stages=frozenset({1}))
        yield Reconfigure(number=number, stages=frozenset({0, 9}))
        yield AbortChange(number=number)
        yield AttemptOverdue(number=number)
        yield CheckpointRetained(position=number)
        yield Prepare(number=number, stages=frozenset({1}))
        yield Rehearsed(number=number)
        yield Rehearsed(number=number, problem="no such module")
    for node in ("site-1", "site-9"):
        yield Prepared(node=node, number=1)
        yield Cannot(node=node, number=1, reason="no such module")
        for view in (1, 9):
            place: dict[str, Any] = {"node": node, "view": view, "number": 1}
            yield Bound(**place, position=0)
            yield Past(**place, position=0, reached=1, step=1)
            yield Passed(**place)
    for view in (0, 1, 2, 9):
        yield Bind(view=view, number=1, stages=frozenset({1}), position=0)
        yield Bind(view=view, number=1, stages=frozenset({0, 9}), position=0)
        yield Unbind(view=view, number=1, position=0)


def between_nodes(sender: str, view: int) -> Iterator[Any]:
    for edge in range(3):
        yield data(sender, edge, 1, 0, 1, view)
        yield data(sender, edge, 2, 1, 3, view)
        yield ack(sender, edge, 1, view)
        yield attach(sender, edge, 7, 0, view)
        yield attach(sender, edge, 8, 9, view)
        yield stop(sender, edge, 1, view)
        yield merge(sender, edge, 1, 2, view)
        yield merge(sender, edge, 2, 9, view)
        yield stopped(sender, edge, 1, view)
        yield merged(sender, edge, 1, 9, view)
    yield highest(sender, 1, view)
    for stage in (0, 1, 2):
        for version in (1, 9):
            yield want(sender, stage, version, view)
            yield state(sender, stage, version, 9, view, body=NO_ROWS)


def test_every_kind_of_message_is_tried() -> None:
    assert {type(message) for message in every_kind(FIRST)} == set(get_args(Message))


# A single stage of one pair and a spare: take-over, catch-up, and everything that may happen meanwhile.
WORLD = Scenario(sites=3, copies=declustered(2, [1]), batches=((),), bound_rows=1)


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    explorer = Explorer(WORLD)
    assert explorer.run().violation is None
    return explorer


ALWAYS_TAKEN = (Prepare, Rehearsed)  # A node has them prepared, whatever they are, and is answered by its shell.
FOR_NODES = (*get_args(PeerMessage), View, Sourced, EndOfSource, Consumed, Bind, Unbind)
FOR_THE_CONTROLLER = get_args(ToController)


@pytest.mark.parametrize("kind", FOR_NODES)
def test_in_every_reachable_state_a_message_is_taken_or_refused_without_a_trace(
    kind: type[Any], explorer: Explorer
) -> None:
    # Given every state that a node reaches in a small world with a crash and a recovery,
    # when a message of this kind comes, one of that world or a foreign one,
    taken, refused = try_all(explorer.nodes_seen(), kind, explorer)
    # then it is taken by a rule, or refused and nothing has changed; both happen.
    assert taken and refused


def try_all(machines: Iterable[Machine], kind: type[Any], explorer: Explorer) -> tuple[int, int]:
    """How often messages of a kind were taken, and how often refused."""
    taken = refused = 0
    messages = {*every_kind(WORLD.plan), *explorer.messages_seen()}
    chosen = [message for message in messages if type(message) is kind]
    for machine in machines:
        twin = machine.clone()
        refusals = []
        for message in chosen:
            try:
                twin.step(message)
            except Refused:
                refusals.append(message)
            else:
                taken += 1
                twin = machine.clone()
        twin = machine.clone()
        for message in refusals:
            with contextlib.suppress(Refused):
                twin.step(message)
        assert twin.key() == machine.key(), f"{machine.title} refused one of {refusals} half-way"
        refused += len(refusals)
    return taken, refused


@pytest.mark.parametrize("kind", FOR_THE_CONTROLLER)
def test_messages_to_the_controller_are_for_no_node(kind: type[Any], explorer: Explorer) -> None:
    assert try_all(explorer.nodes_seen()[:50], kind, explorer)[0] == 0


@pytest.mark.parametrize("kind", get_args(Message))
def test_the_controller_takes_what_is_for_it_and_refuses_the_rest(kind: type[Any], explorer: Explorer) -> None:
    taken, refused = try_all(explorer.controllers_seen(), kind, explorer)
    assert bool(taken) == (kind in FOR_THE_CONTROLLER)
    # Who is gone already, or what somebody asks for too late, is no error (rule 12).
    wishes = (Closed, Move, Slow, Retire, CopyCosts, AbortChange, AttemptOverdue, CheckpointRetained)
    assert bool(refused) == (kind not in wishes)


@pytest.mark.parametrize("kind", ALWAYS_TAKEN)
def test_a_node_has_any_change_prepared(kind: type[Any], explorer: Explorer) -> None:
    taken, refused = try_all(explorer.nodes_seen()[:50], kind, explorer)
    assert taken and not refused


def test_what_a_node_is_asked_about_changes_is_tried() -> None:
    assert set(get_args(ChangeOrder)) <= {*FOR_NODES, *ALWAYS_TAKEN}
