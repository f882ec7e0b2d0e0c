"""The node: views in order, and who may speak. Reference: 3.2.3.1; rules 11, 12, 20."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from flux.protocols import node as node_module
from flux.protocols.egress import Egress
from flux.protocols.ingress import Ingress
from flux.protocols.messages import (
    Closed,
    Connected,
    Consume,
    CopyFailed,
    CopyReady,
    EndOfSource,
    Hello,
    PeerMessage,
    Pull,
    Send,
    SendToController,
    Sourced,
)
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler

from .refusing import assert_fenced, assert_refused
from .views import (
    FIRST,
    NO_ROWS,
    SPARE,
    WITHOUT_1,
    WITHOUT_2,
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

THIRD = replace(WITHOUT_2, number=3)


def site(view: bool = True) -> Node:
    made = Node("site-1", [Pooler("site-1", stage, 10) for stage in (1, 2)])
    if view:
        made.step(FIRST)
    return made


def test_a_node_that_comes_late_takes_any_view_as_its_first() -> None:
    made = site(view=False)
    made.step(THIRD)
    assert made.number == 3


def test_views_are_taken_in_order_only() -> None:
    made = site()
    assert_refused(made, FIRST, by="node site-1")
    assert_refused(made, THIRD, by="node site-1")
    made.step(WITHOUT_2)
    assert made.number == 2


@pytest.mark.parametrize("first", [True, False], ids=["as its first", "later"])
def test_a_view_is_for_those_that_are_alive_in_it(first: bool) -> None:
    made = site(view=not first)
    assert_refused(made, WITHOUT_1, by="node site-1")
    assert_refused(made, replace(WITHOUT_2, nodes=("ingress", "site-2", "egress")), by="node site-1")


def test_a_message_of_a_later_view_waits_for_it() -> None:
    # Rule 11: hold, do not refuse.
    made = site(view=False)
    assert made.step(attach("site-2", 1, 1, 0)) == []
    assert made.step(data("ingress", 0, 1, 0, 2)) == []
    effects = made.step(FIRST)
    assert any(isinstance(effect, Consume) for effect in effects)
    machine = made.machines[1]
    assert isinstance(machine, Pooler) and (1, "site-2", 1) in machine.prod.lanes
    assert not made.held


def test_what_is_held_keeps_its_order_and_may_be_held_again() -> None:
    made = site(view=False)
    made.step(ack("site-2", 1, 1, view=1))
    made.step(ack("site-2", 1, 2, view=2))
    made.step(ack("site-2", 1, 3, view=2))
    made.step(FIRST)
    assert [message.view for message in made.held] == [2, 2]
    made.step(replace(FIRST, number=2))
    machine = made.machines[1]
    assert isinstance(machine, Pooler) and machine.prod.buffer.floors[1, "site-2"] == 3


def test_what_is_held_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "HELD_MAX", 1)
    made = site()
    made.step(ack("site-2", 1, 1, view=2))
    assert_refused(made, ack("site-2", 1, 2, view=2), by="node site-1")


def from_peer(sender: str) -> list[PeerMessage]:
    """One of each kind of message between nodes, for a stage that site-1 has."""
    return [
        data(sender, 1, 1, 0, 1),
        ack(sender, 1, 1),
        attach(sender, 1, 1, 0),
        stop(sender, 1, 1),
        stopped(sender, 1, 1),
        merge(sender, 1, 1, 2),
        merged(sender, 1, 1, 2),
        want(sender, 1, 1),
        state(sender, 1, 1, 0),
        highest(sender, 1),
    ]


def kind(message: object) -> str:
    return type(message).__name__


@pytest.mark.parametrize("message", [*from_peer("site-2"), ack("site-2", 1, 1, view=9)], ids=kind)
def test_the_dead_are_mute(message: object) -> None:
    # Rules 12 and 20, whatever view the dead thought it was in.
    made = site()
    made.step(WITHOUT_2)
    assert_fenced(made, message, view=2)


def test_what_the_dead_said_and_was_held_is_dropped_with_the_view() -> None:
    made = site()
    made.step(ack("site-2", 1, 5, view=2))
    made.step(WITHOUT_2)
    assert not made.held


def test_every_kind_of_message_between_nodes_is_tried() -> None:
    assert {type(message) for message in from_peer("site-2")} == set(get_args(PeerMessage))


@pytest.mark.parametrize("message", from_peer("site-2"), ids=kind)
def test_whatever_comes_before_its_view_is_held(message: PeerMessage) -> None:
    made = site(view=False)
    assert made.step(message) == []
    assert list(made.held) == [message]


@pytest.mark.parametrize("message", from_peer("site-9"), ids=kind)
def test_strangers_are_refused(message: object) -> None:
    assert_refused(site(), message, by="node site-1")


def test_a_message_for_a_stage_that_is_not_here_is_refused() -> None:
    made = site()
    assert_refused(made, data("site-2", 2, 1, 0, 1), by="node site-1")
    assert_refused(made, ack("egress", 3, 1), by="node site-1")
    assert_refused(made, consumed(3, 1), by="node site-1")
    assert_refused(made, Sourced(after=0, upto=1, rows=1, body=NO_ROWS), by="node site-1")
    assert_refused(made, EndOfSource(), by="node site-1")
    assert_refused(made, Closed(node="site-2"), by="node site-1")


@pytest.mark.parametrize(
    ("message", "stage"),
    [
        (data("site-2", 1, 1, 0, 1), 2),
        (stopped("site-2", 1, 1), 2),
        (merged("site-2", 1, 1, 2), 2),
        (ack("site-2", 1, 1), 1),
        (attach("site-2", 1, 1, 0), 1),
        (stop("site-2", 1, 1), 1),
        (merge("site-2", 1, 1, 2), 1),
        (want("site-2", 1, 1), 1),
        (state("site-2", 1, 1, 0), 1),
    ],
    ids=kind,
)
def test_a_message_goes_to_the_stage_at_its_end_of_the_edge(
    message: object, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What travels with the data goes to the consumer, what travels against it to the producer.
    made = site()
    taken: list[tuple[int, object]] = []
    for number, machine in made.machines.items():
        monkeypatch.setattr(machine, "step", lambda message, number=number: taken.append((number, message)) or [])
    made.step(message)
    assert taken == [(stage, message)]


def test_an_older_view_of_a_live_sender_is_heard() -> None:
    # Only incarnations that are dead in our view are discarded; a slow peer is not.
    made = site()
    made.step(replace(FIRST, number=2))
    made.step(ack("site-2", 1, 4, view=1))
    machine = made.machines[1]
    assert isinstance(machine, Pooler) and machine.prod.buffer.floors[1, "site-2"] == 4


def test_work_goes_back_to_the_machine_it_came_from() -> None:
    made = site()
    made.step(data("ingress", 0, 1, 0, 1))
    effects = made.step(consumed(1, 1))
    assert [effect.to for effect in effects if isinstance(effect, Send)] == ["ingress"]


def test_the_ends_are_nodes_with_one_machine() -> None:
    ingress = Node("ingress", [Ingress("ingress", 1)])
    assert ingress.step(FIRST) == [Pull(after=0)]
    assert ingress.step(Sourced(after=0, upto=1, rows=1, body=NO_ROWS)) == []
    egress = Node("egress", [Egress("egress", 3)])
    (send,) = egress.step(FIRST)
    assert isinstance(send, Send) and send.to == "site-1"
    (send,) = egress.step(WITHOUT_1)
    assert isinstance(send, Send) and send.to == "site-2"


# The controller comes, or comes again.


def greeting(made: Node) -> Hello:
    told = made.step(Connected())[0]
    assert isinstance(told, SendToController) and isinstance(told.message, Hello)
    return told.message


def test_a_node_says_who_it_is_and_which_views_it_has_seen() -> None:
    made = site(view=False)
    assert greeting(made) == Hello(node="site-1")
    made.step(THIRD)
    assert greeting(made) == Hello(node="site-1", view=3)


def test_an_end_says_which_end_it_serves_and_as_which_of_its_processes() -> None:
    ingress = Node("ingress-4", [Ingress("ingress-4", 1)], incarnation=4)
    assert greeting(ingress) == Hello(node="ingress-4", ends=(0,), incarnation=4)
    egress = Node("egress", [Egress("egress", 3)])
    assert greeting(egress) == Hello(node="egress", ends=(3,), incarnation=1)


def test_a_node_carries_on_without_a_controller() -> None:
    made = site()
    before = made.key()
    made.step(Connected())
    assert made.key() == before


def test_a_site_repeats_to_a_controller_started_again_what_it_has_built() -> None:
    made = Node("site-3", [Pooler("site-3", stage, 10) for stage in (1, 2)])
    coming = (standby(4, 1, 0, 0, "site-3", "site-2"), standby(5, 2, 0, 0, "site-3", "site-2"))
    made.step(replace(SPARE, number=2, standby=coming))
    made.step(state("site-2", 1, 4, 6, view=2))
    assert made.step(Connected())[1:] == [SendToController(message=CopyReady(node="site-3", version=4))]
    made.step(replace(SPARE, number=3, standby=coming, dead=frozenset({"site-2"})))
    assert made.step(Connected())[1:] == [
        SendToController(message=CopyReady(node="site-3", version=4)),
        SendToController(message=CopyFailed(node="site-3", version=5)),
    ]
