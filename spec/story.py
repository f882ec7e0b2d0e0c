"""Texts for the events of a world: one line each, short enough for a story of twenty of them."""

from __future__ import annotations

from typing import Any

from ..protocols.change_messages import (
    Bind,
    Bound,
    ChangeOrder,
    ChangeReport,
    ChangeRequest,
    CheckpointRetained,
    Past,
    Reconfigure,
    ReportChange,
    Unbind,
)
from ..protocols.messages import (
    Ack,
    Attach,
    Block,
    Consume,
    CopyFailed,
    CopyReady,
    Data,
    Hello,
    HighestPosition,
    Merge,
    Merged,
    Move,
    Pull,
    RequestState,
    Retire,
    Slow,
    State,
    Stop,
    Stopped,
    View,
)
from .dataflow import END, Row

LINES = {
    "send": "    {name} -> {detail}: {what}",
    "deliver": "{detail} takes {what} from {name}",
    "answer": "{name} finishes {what}",
    "crash": "{name} crashes",
    "notice": "controller notices that {name} is gone",
    "restart": "{name} is started again",
    "connect": "{name} is connected to the controller",
    "suspect": "{name} does not answer the controller",
    "cut": "{name} and {detail} cannot reach each other",
    "report": "controller takes the report that {name} and {detail} cannot reach each other",
    "heal": "{name} and {detail} reach each other again",
    "move": "a move is requested: {what}",
    "slow": "the controller is asked to mark sites as {what}",
    "retire": "the controller is asked to retire the copies of {what}",
    "change": "a change of code is requested: {what}",
    "abort": "the program aborts change {detail}",
    "checkpoint": "controller learns that {what}",
    "overdue": "the attempt at change {detail} has kept others waiting for a second",
    "outcome": "controller: change {detail} is {what}",
    "arrive": "{name} appears",
    "ends": "the run ends with an error: {detail}",
    "lost": "controller: no copy is left of {what}",
}


def describe(kind: str, name: str, detail: str | int | tuple[int, int], what: Any) -> str:
    """Return one event as a line; `what` is the message or the work it is about."""
    assert kind in LINES, f"no line for {kind}"
    return LINES[kind].format(name=name, detail=detail, what=show(what))


def show(what: Any) -> str:
    """Return a message, a piece of work or a list of partitions in few words; None is empty."""
    if what is None:
        return ""
    if isinstance(what, tuple):
        return " ".join(f"s{stage}p{partition}" for stage, partition in what)
    if isinstance(what, View):
        building = "".join(f", v{s.version} s{s.stage}p{s.partition} {s.donor}=>{s.node}" for s in what.standby)
        changes = "".join(f", change {e.number} at {e.position}{' closed' * e.closed}" for e in what.editions)
        slow = f", slow: {', '.join(sorted(what.slow))}" if what.slow else ""
        return f"view {what.number}, dead: {', '.join(sorted(what.dead)) or 'none'}{slow}{building}{changes}"
    if isinstance(what, Data):
        rows = " ".join(_row(row) for body in what.bodies for row in body)
        return f"data e{what.edge}#{what.lane_id} ({what.after}..{what.upto}] {rows}".rstrip()
    if isinstance(what, Ack):
        reached = f", reached {what.reached}" if what.reached else ""
        return f"ack e{what.edge} {what.position}{reached}"
    if isinstance(what, HighestPosition):
        return f"highest position {what.position}"
    if isinstance(what, Attach):
        channels = " ".join(map(_block, what.channels))
        return f"attach e{what.edge}#{what.lane_id} at {what.position} {channels}"
    if isinstance(what, Consume):
        cohort = f" cohort {what.cohort}" if what.cohort else ""
        beyond = max([frame.upto for frame in what.frames if not what.ordered], default=what.upto)
        early = f" and early rows up to {beyond}" if beyond > what.upto else ""
        return f"work of stage {what.stage}{cohort} ({what.after}..{what.upto}]{early}"
    if isinstance(what, Stop):
        return f"stop e{what.edge}#{what.lane_id} {' '.join(map(_block, what.channels))}"
    if isinstance(what, Stopped):
        return f"stopped e{what.edge}#{what.lane_id}"
    if isinstance(what, Merge | Merged):
        return f"{type(what).__name__.lower()} e{what.edge}#{what.lane_id} into #{what.into}"
    if isinstance(what, RequestState):
        return f"request v{what.version}"
    if isinstance(what, State):
        ahead = "".join(f", e{a.edge} {_set(a.producers)} at {a.position}" for a in what.ahead)
        return f"state v{what.version} at {what.position}{ahead}"
    if isinstance(what, CopyReady | CopyFailed):
        return f"copy {'ready' if isinstance(what, CopyReady) else 'failed'} v{what.version}"
    if isinstance(what, Hello):
        ends = "".join(f", number {what.incarnation} to serve stage {stage}" for stage in what.ends)
        return f"hello, seen view {what.view}{ends}"
    if isinstance(what, Move):
        return f"s{what.stage}p{what.partition} slot {what.slot} to {what.to}"
    if isinstance(what, Slow):
        return f"slow: {', '.join(what.nodes) or 'none'}"
    if isinstance(what, Retire):
        return what.node
    if isinstance(what, ChangeRequest | ChangeReport | ChangeOrder | ReportChange):
        return _change(what)
    assert isinstance(what, Pull), f"no words for {what}"
    return f"pull after {what.after}"


def _change(what: ChangeRequest | ChangeReport | ChangeOrder | ReportChange) -> str:
    """Return a message about a change in few words."""
    if isinstance(what, ReportChange):
        return f"{what.outcome} at {what.position}" if not what.reason else f"{what.outcome}: {what.reason}"
    if isinstance(what, CheckpointRetained):
        return f"the oldest checkpoint is at {what.position}"
    text = f"{type(what).__name__.lower()} {what.number}"
    if isinstance(what, Reconfigure):
        return f"{text}, stages {_set(tuple(sorted(what.stages)))}"
    if isinstance(what, Past):
        return f"{text} at {what.position}: {what.reached}"
    return f"{text} at {what.position}" if isinstance(what, Bind | Bound | Unbind) else text


def _row(row: Row) -> str:
    value = "end" if row.value == END else str(row.value)
    sub = f".{row.sub}" if row.sub else ""
    return f"{row.sn}{sub}:{value}/{row.producer}-{row.consumer}"


def _block(block: Block) -> str:
    return f"{_set(block.producers)}>{_set(block.consumers)}"


def _set(partitions: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, partitions)) + "}"
