"""A refusal in the middle of an action: nothing may be half done. Reference: rule 11."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flux.protocols.machine import Refused
from flux.protocols.messages import Message, ReportRefused, Send, State, View
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler

from .good_input import GOOD, LAST, NODES, NOW, good, node_site
from .refusing import assert_refused
from .views import FIRST, ack, attach, data, stop, want

NEXT = replace(LAST, number=NOW + 1)


# What is held for a view, and is bad.

HELD = [
    pytest.param(ack("site-9", 1, 9, view=NOW + 1), id="of a stranger"),
    pytest.param(ack("site-2", 9, 9, view=NOW + 1), id="of no edge"),
    pytest.param(ack("site-2", 1, 1, view=NOW + 1), id="going back"),
    pytest.param(stop("site-2", 1, 99, view=NOW + 1), id="of no lane"),
    pytest.param(data("ingress", 0, 1, 9, 10, view=NOW + 1), id="with a hole before it"),
    pytest.param(want("site-2", 1, 4, view=NOW + 1), id="of a copy for another site"),
]


@pytest.mark.parametrize("bad", HELD)
def test_it_is_held_as_nobody_can_know_yet(bad: Message) -> None:
    node = node_site()
    assert node.step(bad) == []
    assert list(node.held) == [bad]


@pytest.mark.parametrize("bad", HELD)
def test_a_held_message_that_is_refused_takes_nothing_else_with_it(bad: Message) -> None:
    # Given a node that holds a good message, and one that holds a bad one in front of it,
    behind = attach("site-2", 1, 9, 3, view=NOW + 1)
    undisturbed, node = node_site(), node_site()
    undisturbed.step(behind)
    node.step(bad)
    node.step(behind)
    # when the view comes, then the same comes of it, and a complaint that names what was bad.
    effects = node.step(NEXT)
    [complaint] = [effect for effect in effects if isinstance(effect, ReportRefused)]
    assert f" refuses {bad!r}: " in complaint.text
    effects.remove(complaint)
    assert effects == undisturbed.step(NEXT)
    assert node.key() == undisturbed.key()


def test_every_held_message_that_is_refused_is_complained_of_in_its_order() -> None:
    node = node_site()
    bad = [case.values[0] for case in HELD]
    for message in bad:
        node.step(message)
    complaints = [effect.text for effect in node.step(NEXT) if isinstance(effect, ReportRefused)]
    for message, text in zip(bad, complaints, strict=True):
        assert f" refuses {message!r}: " in text


# A step that is refused on the way through several machines.


def test_what_the_operator_gives_back_is_in_the_pool_and_acknowledged_in_one_step_or_not_at_all() -> None:
    # Pooler, FH-Prod and FH-Cons each know how far a cohort is; they agree before and after.
    node = node_site()
    pooler = node.machines[1]
    assert isinstance(pooler, Pooler)

    def agree() -> bool:
        consumed = {cohort: own.consumed for cohort, own in pooler.cons.cohorts.items()}
        return consumed == pooler.prod.produced

    assert agree()
    with pytest.raises(Refused):
        node.step(replace(good("site-1", "Consumed"), upto=7))
    assert agree()
    node.step(good("site-1", "Consumed"))
    assert agree()
    assert node.step(good("site-1", "State"))
    assert agree() and len(pooler.prod.produced) == 2


@pytest.mark.parametrize("node", NODES)
def test_after_a_refusal_everything_good_is_taken_as_if_it_had_not_been(node: str) -> None:
    for message in GOOD[node]:
        disturbed, undisturbed = NODES[node](), NODES[node]()
        with pytest.raises(Refused):
            disturbed.step(ack("site-9", 1, 1))
        assert disturbed.step(message) == undisturbed.step(message)
        assert disturbed.key() == undisturbed.key()


# Before the first view.


def unborn() -> Node:
    """site-1 before its first view."""
    return Node("site-1", [Pooler("site-1", stage, 99) for stage in (1, 2)])


@pytest.mark.parametrize("number", [0, -1])
def test_the_plan_is_no_view(number: int) -> None:
    assert_refused(unborn(), replace(FIRST, number=number), by="node site-1")


@pytest.mark.parametrize("view", [replace(FIRST, dead=frozenset({"site-1"})), replace(FIRST, nodes=("ingress",))])
def test_a_first_view_in_which_the_node_is_dead_or_unknown_is_refused(view: View) -> None:
    assert_refused(unborn(), view, by="node site-1")


def test_the_error_names_the_view_in_which_it_was_refused() -> None:
    with pytest.raises(Refused, match=rf"in state .*view={NOW}\b"):
        node_site().step(ack("site-9", 1, 1))


def test_a_state_is_given_once() -> None:
    node = node_site()
    node.step(good("site-1", "Consumed"))
    assert [
        type(effect.message) for effect in node.step(good("site-1", "RequestState")) if isinstance(effect, Send)
    ] == [State]
    assert_refused(node, good("site-1", "RequestState"), by="State mover of stage 1 on site-1")
