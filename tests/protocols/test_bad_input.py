"""Bad input: a message that is spoiled in one place is refused with an error that names all, and changes nothing.

The messages come as they come from the network: to a node, which hands them to its machines, or to the controller.
Each good message is tried too, so that it is the spoiled place that is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from flux.protocols.change_messages import ChangeOrder
from flux.protocols.machine import Refused
from flux.protocols.messages import Connected, Consumed, EndOfSource, Message, PeerMessage, Sourced, ToController, View

from .good_input import GOOD, LAST, NODES, NOW, good, node_ingress
from .refusing import assert_fenced, assert_refused
from .views import NO_ROWS


def each(*kinds: type[Any]) -> list[Any]:
    """The good messages of these kinds, with the node that takes them."""
    return [
        pytest.param(node, message, id=f"{node}-{type(message).__name__}")
        for node, messages in GOOD.items()
        for message in messages
        if type(message) in kinds
    ]


FOR_NODES = (*get_args(PeerMessage), Consumed, Sourced, EndOfSource, View, Connected, *get_args(ChangeOrder))


def test_every_kind_of_message_to_nodes_is_tried() -> None:
    assert {*FOR_NODES, *get_args(ToController)} == set(get_args(Message))
    assert {type(message) for messages in GOOD.values() for message in messages} == set(FOR_NODES)


@pytest.mark.parametrize(("node", "message"), each(*FOR_NODES))
def test_what_is_going_to_be_spoiled_is_good(node: str, message: Any) -> None:
    # Given the node in its state, when the message comes as it should, then it is taken and something comes of it.
    made = NODES[node]()
    before = made.key()
    assert made.step(message) or made.key() != before


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Bind", {"view": NOW - 1}),
        ("Bind", {"view": NOW + 1}),
        ("Bind", {"position": -1}),
        ("Bind", {"stages": frozenset[int]()}),
        ("Bind", {"stages": frozenset({0})}),
        ("Bind", {"stages": frozenset({1, 9})}),
        ("Unbind", {"view": NOW + 1}),
        ("Unbind", {"view": 0}),
    ],
    ids=repr,
)
def test_a_proposal_of_another_view_or_for_other_stages_is_refused(kind: str, changes: dict[str, Any]) -> None:
    assert_refused(NODES["site-1"](), replace(good("site-1", kind), **changes), by="node site-1")


# Who speaks.


@pytest.mark.parametrize(("node", "message"), each(*get_args(PeerMessage)))
def test_strangers_are_refused(node: str, message: Any) -> None:
    assert_refused(NODES[node](), replace(message, sender="site-9"), by=f"node {node}")


@pytest.mark.parametrize("view", [1, NOW, 9])
@pytest.mark.parametrize(("node", "message"), each(*get_args(PeerMessage)))
def test_the_dead_are_fenced_whatever_view_they_think_it_is(node: str, message: Any, view: int) -> None:
    assert_fenced(NODES[node](), replace(message, sender="site-4", view=view), view=NOW)


# What is said.

CONS = {"site-1": "FH-Cons of stage 1 on site-1", "egress": "FH-Cons of stage 3 on egress"}
PROD = {"site-1": "FH-Prod of stage 1 on site-1", "ingress": "FH-Prod of stage 0 on ingress"}
MOVER = "State mover of stage 1 on site-1"


def spoiled(node: str, kind: str, by: str, /, **changes: Any) -> Any:
    """A case: the good message of a kind with some fields changed, and which machine is to refuse it."""
    message = replace(good(node, kind), **changes)
    shown = ",".join(f"{field}={value}" for field, value in changes.items())
    return pytest.param(node, message, by, id=f"{node}-{kind}-{shown}")


def spoiled_each(node: str, kind: str, by: str, /, field: str, values: tuple[Any, ...]) -> list[Any]:
    return [spoiled(node, kind, by, **{field: value}) for value in values]


PLACES = [
    case
    for node, messages in GOOD.items()
    for message in messages
    for field in ("edge", "stage")
    if field in type(message).__dataclass_fields__
    for case in spoiled_each(node, type(message).__name__, f"node {node}", field, (-1, 9))
]
OTHER_PLACES = [
    # An edge that exists, but whose end is not here.
    *spoiled_each("site-1", "Data", "node site-1", "edge", (2,)),
    *(spoiled("site-1", kind, "node site-1", edge=0) for kind in ("Ack", "Attach", "Stop", "Merge")),
    *(spoiled("site-1", kind, "node site-1", stage=3) for kind in ("RequestState", "State", "Consumed")),
    *(spoiled("ingress", kind, "node ingress", edge=1) for kind in ("Ack", "Attach", "Stop", "Merge")),
    *(spoiled("egress", kind, "node egress", edge=1) for kind in ("Data", "Stopped", "Merged")),
]
IN_LANES = [
    case
    for node, after in (("site-1", 6), ("egress", 2))
    for case in (
        *spoiled_each(node, "Data", CONS[node], "after", (-1, after - 1, after + 1)),  # Again, or with a hole.
        *spoiled_each(node, "Data", CONS[node], "upto", (-1, after - 1, after)),  # Back, or no further.
        *spoiled_each(node, "Data", CONS[node], "lane_id", (99, 0, -1)),  # They begin at 1.
        *spoiled_each(node, "Data", CONS[node], "sender", ("site-3", node)),  # A member, but not in this lane.
        *spoiled_each(node, "Data", CONS[node], "bodies", ((), (NO_ROWS, NO_ROWS))),
    )
]
ABOUT_LANES = [
    *spoiled_each("egress", "Stopped", CONS["egress"], "lane_id", (99, 3, 0, -1)),  # Unknown, or nothing was stopped.
    *spoiled_each("egress", "Stopped", CONS["egress"], "sender", ("site-1", "site-3")),
    *spoiled_each("egress", "Merged", CONS["egress"], "lane_id", (99, 1, 2, 0, -1)),  # Unknown, itself, another's.
    *spoiled_each("egress", "Merged", CONS["egress"], "into", (99, 3, 2, -1)),
    *spoiled_each("egress", "Merged", CONS["egress"], "sender", ("site-1", "site-3")),
    *(
        case
        for node in PROD
        for kind in ("Stop", "Merge")
        for case in spoiled_each(node, kind, PROD[node], "lane_id", (99, 0, -1))
    ),
    *(case for node in PROD for case in spoiled_each(node, "Merge", PROD[node], "into", (99, 0, -1))),
    # A member, but no consumer of this stage.
    *(spoiled(node, kind, PROD[node], sender="egress") for node in PROD for kind in ("Ack", "Attach", "Stop", "Merge")),
]
POSITIONS = [
    *spoiled_each("site-1", "Ack", PROD["site-1"], "position", (2, -1)),
    *spoiled_each("ingress", "Ack", PROD["ingress"], "position", (3, -1)),
    *spoiled_each("site-1", "Attach", PROD["site-1"], "position", (1, -1)),  # Below what was dropped.
    *spoiled_each("ingress", "Attach", PROD["ingress"], "position", (2, -1)),
    *spoiled_each("site-1", "Attach", PROD["site-1"], "lane_id", (1, 3)),  # Open already.
    *spoiled_each("site-1", "Attach", PROD["site-1"], "lane_id", (2, 0, -1)),  # They only grow.
    *spoiled_each("ingress", "Attach", PROD["ingress"], "lane_id", (1, 2, 0, -1)),
]
MOVES = [
    *spoiled_each("site-1", "RequestState", MOVER, "sender", ("site-2", "site-1")),  # The copy is not for them.
    *spoiled_each("site-1", "RequestState", MOVER, "version", (5,)),  # Another is the donor.
    *spoiled_each("site-1", "RequestState", MOVER, "version", (9, 0, -1)),  # Never begun.
    *spoiled_each("site-1", "State", MOVER, "sender", ("site-3", "site-1")),  # They are not the donor.
    *spoiled_each("site-1", "State", MOVER, "version", (4,)),  # It is for another site.
    *spoiled_each("site-1", "State", MOVER, "version", (9, 0, -1)),
    *spoiled_each("site-1", "State", MOVER, "position", (-1,)),
    *(spoiled("site-1", kind, "node site-1", stage=0) for kind in ("RequestState", "State")),  # The ingress's.
]
FROM_THE_SHELL = [
    *spoiled_each("site-1", "Consumed", "Pooler of stage 1 on site-1", "upto", (5, 7, -1)),
    *spoiled_each("site-1", "Consumed", "Pooler of stage 1 on site-1", "cohort", (9, -1)),
    *spoiled_each("site-1", "Consumed", "Pooler of stage 2 on site-1", "stage", (2,)),
    *spoiled_each("egress", "Consumed", "Egress egress", "upto", (0, 1, 3)),
    *spoiled_each("egress", "Consumed", "Egress egress", "cohort", (9, -1)),
    *spoiled_each("ingress", "Sourced", "Ingress ingress", "after", (-1, 4, 6)),
    *spoiled_each("ingress", "Sourced", "Ingress ingress", "upto", (-1, 4, 5)),
]
VIEWS = [
    case
    for node in NODES
    for case in (
        *spoiled_each(node, "View", f"node {node}", "number", (-1, 0, 1, NOW - 1, NOW, NOW + 2)),  # Past, now, too far.
        # Views without the node are not for it: it is dead in them, or never joined.
        spoiled(node, "View", f"node {node}", dead=frozenset({node})),
        spoiled(node, "View", f"node {node}", nodes=tuple(name for name in LAST.nodes if name != node)),
    )
]
BEFORE_THE_FIRST_VIEW = [
    spoiled(node, type(message).__name__, f"node {node}", view=view)
    for node, messages in GOOD.items()
    for message in messages
    if isinstance(message, get_args(PeerMessage))
    for view in (0, -1)
]
OF_NODES = [*PLACES, *OTHER_PLACES, *VIEWS, *BEFORE_THE_FIRST_VIEW]
OF_MACHINES = [*IN_LANES, *ABOUT_LANES, *POSITIONS, *MOVES, *FROM_THE_SHELL]


@pytest.mark.parametrize(("node", "message", "by"), [*OF_NODES, *OF_MACHINES])
def test_a_message_that_is_spoiled_in_one_place_is_refused(node: str, message: Any, by: str) -> None:
    assert_refused(NODES[node](), message, by=by)


def test_the_source_ends_once() -> None:
    node = node_ingress()
    node.step(EndOfSource())
    assert_refused(node, EndOfSource(), by="Ingress ingress")
    assert_refused(node, good("ingress", "Sourced"), by="Ingress ingress")


@pytest.mark.parametrize("kind", ["Data", "Attach", "Stop", "RequestState", "State", "Stopped", "Consumed", "View"])
def test_what_is_said_twice_is_refused_the_second_time(kind: str) -> None:
    node = "egress" if kind == "Stopped" else "site-1"
    made, message = NODES[node](), good(node, kind)
    made.step(message)
    before = made.key()
    with pytest.raises(Refused):
        made.step(message)
    assert made.key() == before


# What is ignored today, and should be refused.


@pytest.mark.parametrize("kind", ["RequestState", "State"])
def test_a_version_that_is_on_its_way_to_another_stage_is_refused(kind: str) -> None:
    node, message = NODES["site-1"](), replace(good("site-1", kind), stage=2)
    assert_refused(node, message, by="State mover of stage 2 on site-1")
