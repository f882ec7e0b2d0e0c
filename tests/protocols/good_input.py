"""Nodes in the middle of things, and one good message of each kind for them: what the tests of bad input spoil."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flux.protocols.change_messages import Bind, Prepare, Rehearsed, Unbind
from flux.protocols.egress import Egress
from flux.protocols.ingress import Ingress
from flux.protocols.messages import Connected, EndOfSource, Sourced, View
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler

from .views import NO_ROWS, ack, attach, consumed, data, highest, merge, merged, standby, state, stop, stopped, want

# Stage 1 has two pairs. Of stage 2, partition 1 goes from site-2 to site-3 and comes back, so that lanes are stopped
# and merged; site-1 is slow meanwhile, so that its copy does not take over. At last site-4 dies, version 4 is built
# from site-1's copy, and version 5 on site-1.
THERE = (("site-2", "site-1"), ("site-2", "site-1"))
AWAY = (("site-2", "site-1"), ("site-3", "site-1"))
FIRST = View(
    number=1,
    nodes=("ingress", "site-1", "site-2", "site-3", "site-4", "egress"),
    dead=frozenset(),
    copies=((("ingress",),), (("site-1", "site-2"), ("site-2", "site-4")), THERE, (("egress",),)),
)
NOW = 4
LAST = replace(
    FIRST,
    number=NOW,
    dead=frozenset({"site-4"}),
    standby=(standby(4, 1, 0, 1, "site-3", "site-1"), standby(5, 1, 1, 1, "site-1", "site-2")),
    versions=5,
)
LATER = (
    replace(FIRST, number=2, copies=(*FIRST.copies[:2], AWAY, FIRST.copies[3]), slow=frozenset({"site-1"})),
    replace(FIRST, number=3, slow=frozenset({"site-1"})),
    LAST,
)


BIND = Bind(view=NOW, number=1, stages=frozenset({1}), position=9)


def adopt(node: Node) -> None:
    for view in LATER:
        node.step(view)


def node_site() -> Node:
    """site-1: stage 1 busy with (5, 6], its output acknowledged up to 2 and 3, and fed to site-2 in two lanes.

    It is bound to position 9, for a change of stage 1.
    """
    node = Node("site-1", [Pooler("site-1", stage, 99) for stage in (1, 2)])
    node.step(FIRST)
    node.step(data("ingress", 0, 1, 0, 5))
    node.step(consumed(1, 5))
    node.step(ack("site-1", 1, 2))
    node.step(ack("site-2", 1, 3))
    node.step(attach("site-2", 1, 1, 3))
    node.step(attach("site-2", 1, 3, 4))
    adopt(node)
    node.step(data("ingress", 0, 1, 5, 6, view=NOW))
    node.step(BIND)
    return node


def node_ingress() -> Node:
    """The ingress at 5, of which 3 is released, with two lanes to site-1; the source is asked for more.

    Its journal has what is up to 9, and it awaits the positions of others.
    """
    node = Node("ingress", [Ingress("ingress", 99, numbered=9)])
    node.step(FIRST)
    node.step(attach("site-1", 0, 1, 0))
    node.step(Sourced(after=0, upto=5, rows=1, body=NO_ROWS))
    node.step(attach("site-1", 0, 2, 5))
    for site in ("site-1", "site-2", "site-4"):
        node.step(ack(site, 0, 3))
    adopt(node)
    node.step(ack("site-1", 0, 4, view=NOW))
    return node


def node_egress() -> Node:
    """The egress busy with (0, 2]; lanes 1 and 3 are of site-2 and abreast, 2 was site-3's and is being stopped."""
    node = Node("egress", [Egress("egress", 3)])
    node.step(FIRST)
    adopt(node)
    for lane_id in (1, 3):
        node.step(data("site-2", 2, lane_id, 0, 2, view=NOW))
    return node


NODES = {"site-1": node_site, "ingress": node_ingress, "egress": node_egress}
# One good message of each kind for each node that takes it.
GOOD: dict[str, list[Any]] = {
    "site-1": [
        data("ingress", 0, 1, 6, 8, view=NOW),
        ack("site-2", 1, 4, view=NOW),
        attach("site-2", 1, 4, 3, view=NOW),
        stop("site-2", 1, 1, view=NOW),
        merge("site-2", 1, 3, 1, view=NOW),
        want("site-3", 1, 4, view=NOW),
        state("site-2", 1, 5, 5, view=NOW),
        consumed(1, 6),
        replace(LAST, number=NOW + 1),
        Connected(),
        Prepare(number=1, stages=frozenset({1})),
        Rehearsed(number=1),
        replace(BIND, position=10),
        Unbind(view=NOW, number=1, position=9),
    ],
    "ingress": [
        ack("site-1", 0, 5, view=NOW),
        attach("site-1", 0, 3, 3, view=NOW),
        stop("site-1", 0, 1, view=NOW),
        merge("site-1", 0, 2, 1, view=NOW),
        highest("site-1", 9, view=NOW),
        Sourced(after=5, upto=7, rows=1, body=NO_ROWS),
        EndOfSource(),
        replace(LAST, number=NOW + 1),
        Connected(),
    ],
    "egress": [
        data("site-2", 2, 1, 2, 3, view=NOW),
        stopped("site-2", 2, 1, view=NOW),
        merged("site-2", 2, 3, 1, view=NOW),
        consumed(3, 2),
        replace(LAST, number=NOW + 1),
        Connected(),
    ],
}


def good(node: str, kind: str) -> Any:
    [message] = [message for message in GOOD[node] if type(message).__name__ == kind]
    return message
