"""Tables of machines, printed as in the thesis: state variables, then rows of action, guard, state change."""

from __future__ import annotations

from collections.abc import Iterator

from ..protocols.controller import Controller
from ..protocols.egress import Egress
from ..protocols.fh_cons import FhCons
from ..protocols.fh_prod import FhProd
from ..protocols.ingress import Ingress
from ..protocols.machine import Machine, table
from ..protocols.messages import View
from ..protocols.node import Node
from ..protocols.pooler import Pooler

_NO_PLAN = View(number=0, nodes=(), dead=frozenset(), copies=())
# S-Cons and S-Prod are FH-Cons and FH-Prod with a single peer.
MACHINES: dict[str, Machine] = {
    "ingress": Ingress("ingress", 1),
    "fh_prod": FhProd("site", 1, 1),
    "s_prod": FhProd("site", 1, 1),
    "fh_cons": FhCons("site", 0),
    "s_cons": FhCons("site", 0),
    "pooler": Pooler("site", 1, 1),
    "egress": Egress("egress", 2),
    "node": Node("site", []),
    "controller": Controller(_NO_PLAN),
}


def show(name: str) -> str:
    """Return the table of the machine called `name` as text."""
    machine = MACHINES[name]
    kind = type(machine)
    rows = [("on", "guard", "action", "cites"), *map(_plain, table(kind))]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{kind.__name__}: {(kind.__doc__ or '').splitlines()[0]}", "", "State", *_state(machine), ""]
    for number, row in enumerate(rows):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        lines.append(f"{number or '':>3}  {cells}  {row[3]}")
    return "\n".join(lines)


def _plain(row: tuple[str, str, str, str]) -> tuple[str, str, str, str]:
    message, guard, action, cites = row
    return message, "-" if guard in ("always", "<lambda>") else guard.replace("_", " "), action.replace("_", " "), cites


def _state(machine: Machine) -> Iterator[str]:
    for name, value in vars(machine).items():
        yield f"     {name}: {type(value).__name__}"
