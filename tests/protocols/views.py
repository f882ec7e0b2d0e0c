"""Views and messages that the tests of the machines share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flux.protocols.messages import (
    Ack,
    Attach,
    Block,
    Consumed,
    Data,
    HighestPosition,
    Merge,
    Merged,
    OutputRun,
    RequestState,
    Standby,
    State,
    Stop,
    Stopped,
    View,
)

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
# Two partition pairs on each side, each site with one primary and one secondary.
TWO = View(
    number=1,
    nodes=("ingress", "site-1", "site-2", "egress"),
    dead=frozenset(),
    copies=(
        (("ingress",),),
        (("site-1", "site-2"), ("site-2", "site-1")),
        (("site-1", "site-2"), ("site-2", "site-1")),
        (("egress",),),
    ),
)
# The same with a third site that holds nothing.
SPARE = replace(TWO, nodes=("ingress", "site-1", "site-2", "site-3", "egress"))
# A diamond with a second egress: stages 1 and 2 both take from the ingress, 3 joins them, 4 takes from 3, 5 from 1.
PAIR = (("site-1", "site-2"),)
DIAMOND = View(
    number=1,
    nodes=("ingress", "site-1", "site-2", "egress", "audit"),
    dead=frozenset(),
    copies=((("ingress",),), PAIR, PAIR, PAIR, (("egress",),), (("audit",),)),
    edges=((0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (1, 5)),
)
CHANNELS = (Block(producers=(0,), consumers=(0,)),)
NO_ROWS: tuple[Any, ...] = ()


def standby(version: int, stage: int, partition: int, slot: int, node: str, donor: str) -> Standby:
    return Standby(version=version, stage=stage, partition=partition, slot=slot, node=node, donor=donor)


def data(sender: str, edge: int, lane_id: int, after: int, upto: int, view: int = 1) -> Data:
    """A frame as a consumer takes it, with one body."""
    return Data(sender=sender, view=view, edge=edge, lane_id=lane_id, after=after, upto=upto, bodies=(NO_ROWS,))


def ack(sender: str, edge: int, position: int, view: int = 1) -> Ack:
    return Ack(sender=sender, view=view, edge=edge, position=position)


def attach(
    sender: str, edge: int, lane_id: int, position: int, view: int = 1, channels: tuple[Block, ...] = CHANNELS
) -> Attach:
    return Attach(sender=sender, view=view, edge=edge, lane_id=lane_id, position=position, channels=channels)


def stop(sender: str, edge: int, lane_id: int, view: int = 1, channels: tuple[Block, ...] = CHANNELS) -> Stop:
    return Stop(sender=sender, view=view, edge=edge, lane_id=lane_id, channels=channels)


def stopped(sender: str, edge: int, lane_id: int, view: int = 1) -> Stopped:
    return Stopped(sender=sender, view=view, edge=edge, lane_id=lane_id)


def merge(sender: str, edge: int, lane_id: int, into: int, view: int = 1) -> Merge:
    return Merge(sender=sender, view=view, edge=edge, lane_id=lane_id, into=into)


def merged(sender: str, edge: int, lane_id: int, into: int, view: int = 1) -> Merged:
    return Merged(sender=sender, view=view, edge=edge, lane_id=lane_id, into=into)


def want(sender: str, stage: int, version: int, view: int = 1) -> RequestState:
    return RequestState(sender=sender, view=view, stage=stage, version=version)


def highest(sender: str, position: int, view: int = 1) -> HighestPosition:
    return HighestPosition(sender=sender, view=view, position=position)


def state(
    sender: str,
    stage: int,
    version: int,
    position: int,
    view: int = 1,
    runs: tuple[OutputRun, ...] = (),
    body: Any = None,
) -> State:
    return State(sender=sender, view=view, stage=stage, version=version, position=position, runs=runs, body=body)


def run(after: int, upto: int, rows: int = 1) -> OutputRun:
    return OutputRun(after=after, upto=upto, rows=rows, body=NO_ROWS)


def consumed(stage: int, upto: int, rows: int = 1, cohort: int = 0) -> Consumed:
    return Consumed(stage=stage, cohort=cohort, upto=upto, rows=rows, body=NO_ROWS)
