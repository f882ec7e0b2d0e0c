"""How events of a world read: one line each, short enough for a story of twenty of them."""

from __future__ import annotations

from typing import Any

from flux.protocols.messages import (
    Ack,
    Attach,
    Block,
    Consume,
    Data,
    Done,
    Failed,
    Hello,
    Merge,
    Merged,
    Move,
    Pull,
    State,
    Stop,
    Stopped,
    View,
    Want,
)

from .dataflow import END, Row


def describe(kind: str, name: str, detail: str | int | tuple[int, int], what: Any) -> str:
    """One event as a line; `what` is the message or the work it is about."""
    if kind == "send":
        return f"    {name} -> {detail}: {show(what)}"
    if kind == "deliver":
        return f"{detail} takes {show(what)} from {name}"
    if kind == "answer":
        return f"{name} is through {show(what)}"
    if kind == "crash":
        return f"{name} crashes"
    if kind == "notice":
        return f"controller notices that {name} is gone"
    if kind == "move":
        return f"somebody moves {show(what)}"
    if kind == "restart":
        return f"{name} is started again"
    if kind == "connect":
        return f"{name} is connected to the controller"
    if kind == "suspect":
        return f"controller takes {name} for dead"
    if kind == "cut":
        return f"{name} and {detail} cannot reach each other"
    if kind == "report":
        return f"controller hears that {name} and {detail} cannot reach each other"
    if kind == "arrive":
        return f"{name} appears"
    if kind == "mend":
        return f"{name} and {detail} reach each other again"
    assert kind == "lost", f"no line for {kind}"
    return f"controller: no copy is left of {list(what)}"


def show(what: Any) -> str:
    """A message or a piece of work in few words."""
    if isinstance(what, View):
        building = "".join(f", v{s.version} s{s.stage}p{s.partition} {s.donor}=>{s.node}" for s in what.standby)
        return f"view {what.number}, dead: {', '.join(sorted(what.dead)) or 'none'}{building}"
    if isinstance(what, Data):
        rows = " ".join(_row(row) for body in what.bodies for row in body)
        return f"data e{what.edge}#{what.stint} ({what.after}..{what.upto}] {rows}".rstrip()
    if isinstance(what, Ack):
        return f"ack e{what.edge} {what.position}"
    if isinstance(what, Attach):
        channels = " ".join(map(_block, what.channels))
        return f"attach e{what.edge}#{what.stint} at {what.position} {channels}"
    if isinstance(what, Consume):
        cohort = f" cohort {what.cohort}" if what.cohort else ""
        return f"work of stage {what.stage}{cohort} ({what.after}..{what.upto}]"
    if isinstance(what, Stop):
        return f"stop e{what.edge}#{what.stint} {' '.join(map(_block, what.channels))}"
    if isinstance(what, Stopped):
        return f"stopped e{what.edge}#{what.stint}"
    if isinstance(what, Merge | Merged):
        return f"{type(what).__name__.lower()} e{what.edge}#{what.stint} into #{what.into}"
    if isinstance(what, Want):
        return f"want v{what.version} at {what.position} or later"
    if isinstance(what, State):
        return f"state v{what.version} at {what.position}"
    if isinstance(what, Done | Failed):
        return f"{type(what).__name__.lower()} v{what.version}"
    if isinstance(what, Hello):
        return f"hello, seen view {what.view}"
    if isinstance(what, Move):
        return f"s{what.stage}p{what.partition} slot {what.slot} to {what.to}"
    assert isinstance(what, Pull), f"no words for {what}"
    return f"pull after {what.after}"


def _row(row: Row) -> str:
    value = "end" if row.value == END else str(row.value)
    sub = f".{row.sub}" if row.sub else ""
    return f"{row.sn}{sub}:{value}/{row.producer}-{row.consumer}"


def _block(block: Block) -> str:
    return f"{_set(block.producers)}>{_set(block.consumers)}"


def _set(partitions: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, partitions)) + "}"
