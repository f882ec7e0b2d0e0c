"""Views and messages that the tests of the machines share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flux.protocols.messages import Ack, Attach, Block, Consumed, Data, View

# One partition pair per stage, both stages on the same two sites.
PLAN = View(
    number=0,
    nodes=("ingress", "site-1", "site-2", "egress"),
    dead=frozenset(),
    copies=((("ingress",),), (("site-1", "site-2"),), (("site-1", "site-2"),), (("egress",),)),
)
FIRST = replace(PLAN, number=1)
WITHOUT_1 = replace(PLAN, number=2, dead=frozenset({"site-1"}))
WITHOUT_2 = replace(PLAN, number=2, dead=frozenset({"site-2"}))
WITHOUT_BOTH = replace(PLAN, number=3, dead=frozenset({"site-1", "site-2"}))
CHANNELS = (Block(producers=(0,), consumers=(0,)),)
NO_ROWS: tuple[Any, ...] = ()


def data(sender: str, edge: int, stint: int, after: int, upto: int, view: int = 1) -> Data:
    return Data(sender=sender, view=view, edge=edge, stint=stint, after=after, upto=upto, body=NO_ROWS)


def ack(sender: str, edge: int, position: int, view: int = 1) -> Ack:
    return Ack(sender=sender, view=view, edge=edge, position=position)


def attach(sender: str, edge: int, stint: int, position: int, view: int = 1) -> Attach:
    return Attach(sender=sender, view=view, edge=edge, stint=stint, position=position, channels=CHANNELS)


def consumed(stage: int, upto: int, rows: int = 1) -> Consumed:
    return Consumed(stage=stage, upto=upto, rows=rows, body=NO_ROWS)
