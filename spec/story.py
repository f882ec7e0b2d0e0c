"""How events of a world read: one line each, short enough for a story of twenty of them."""

from __future__ import annotations

from typing import Any

from flux.protocols.messages import Ack, Attach, Block, Consume, Data, Pull, View

from .dataflow import END, Row


def describe(kind: str, name: str, detail: str | int, what: Any) -> str:
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
    assert kind == "lost", f"no line for {kind}"
    return f"controller: no copy is left of {list(what)}"


def show(what: Any) -> str:
    """A message or a piece of work in few words."""
    if isinstance(what, View):
        return f"view {what.number}, dead: {', '.join(sorted(what.dead)) or 'none'}"
    if isinstance(what, Data):
        rows = " ".join(map(_row, what.body))
        return f"data e{what.edge}#{what.stint} ({what.after}..{what.upto}] {rows}".rstrip()
    if isinstance(what, Ack):
        return f"ack e{what.edge} {what.position}"
    if isinstance(what, Attach):
        channels = " ".join(map(_block, what.channels))
        return f"attach e{what.edge}#{what.stint} at {what.position} {channels}"
    if isinstance(what, Consume):
        return f"work of stage {what.stage} ({what.after}..{what.upto}]"
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
