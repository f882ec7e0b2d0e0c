"""All tables of the models by role, and the steps that a process may take.

By specification, any enabled row may fire. A message that no row accepts waits at the head of its connection.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from . import controller, egress, fh_cons, fh_prod, fl_cons, fl_controller, fl_prod, ingress, movement, s_cons, s_prod
from .node import Segment
from .scenario import DATAFLOW_PAIRS, FLUX_LB, PARTITION_PAIRS
from .words import CONTROLLER, NOWHERE, Copy, Message, ProcessModel, Row

Table = tuple[Row[Any], ...]


@cache
def tables(kind: str) -> dict[str, Table]:
    """Return all rows by role, for a kind of world."""
    if kind == FLUX_LB:
        return {"fl_prod": fl_prod.ROWS, "fl_cons": fl_cons.ROWS, "fl_controller": fl_controller.ROWS}
    coordinated = kind != DATAFLOW_PAIRS
    own: Table = movement.COORDINATED if coordinated else movement.BY_ITSELF
    found: dict[str, Table] = {
        "ingress": ingress.ROWS,
        "s_cons": (*s_cons.ROWS, *movement.ROWS, *own, *(s_cons.COORDINATED if coordinated else ())),
        "s_prod": s_prod.ROWS,
        "egress": egress.ROWS,
        "controller": (),
    }
    if coordinated:
        found["fh_prod"] = fh_prod.ROWS
        found["fh_cons"] = (*fh_cons.ROWS, *movement.ROWS, *own)
        found["controller"] = controller.ROWS
    return found


def roles(node: ProcessModel) -> tuple[str, ...]:
    """Return the roles of a process: two for a segment, its upstream and its downstream end."""
    if not isinstance(node, Segment):
        return (node.ROLE,)
    cons = "s_cons" if node.name.stage == 1 else "fh_cons"
    prod = "s_prod" if node.name.stage == node.scenario.stages else "fh_prod"
    return cons, prod


@cache
def _rows_on(kind: str, roles: tuple[str, ...], on: str) -> tuple[tuple[str, Row[Any]], ...]:
    return tuple((role, row) for role in roles for row in tables(kind)[role] if row.on == on)


def rows(node: ProcessModel, on: str) -> tuple[tuple[str, Row[Any]], ...]:
    """Return the rows of a process for one external action, or for none, with their roles."""
    return _rows_on(node.scenario.kind, roles(node), on)


def steps(node: ProcessModel, sender: Copy | None, message: Message | None) -> list[tuple[str, Row[Any], ProcessModel]]:
    """Return every enabled row for `message`, or for no message, and the process after it."""
    on, places = "", None
    if message is not None:
        action = node.action_of(sender or CONTROLLER, message)
        if action is None:
            return []
        on, places = action[0], (action[1],)
    found = []
    for role, row in rows(node, on):
        for at in places or row.each(node):
            if row.guard(node, at, message):
                after = node.clone()
                row.change(after, at, message)
                found.append((role, row, after))
    return found


def fuse(node: ProcessModel) -> list[tuple[str, Row[Any]]]:
    """Fire the enabled quiet rows of a process until none is left; return them."""
    fired: list[tuple[str, Row[Any]]] = []
    quiet = [(role, row) for role, row in rows(node, "") if row.quiet]
    while True:
        ready = next(((role, row) for role, row in quiet if row.guard(node, NOWHERE, None)), None)
        if ready is None:
            return fired
        ready[1].change(node, NOWHERE, None)
        fired.append(ready)


def show(kind: str = PARTITION_PAIRS) -> str:
    """Return the tables as text: role, row, external action, guard, state change, figure."""
    lines = []
    for role, table in tables(kind).items():
        for row in table:
            on = row.on or "-"
            lines.append(
                f"{role:10} {row.name:24} {on:16} {row.guard.__name__:34} {row.change.__name__:32} {row.cites}"
            )
    return "\n".join(lines)
