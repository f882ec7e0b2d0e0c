"""S-Cons: the upstream end of a segment fed by the ingress. Thesis 3.2.1.2, figures 3.5 and 3.6."""

from __future__ import annotations

from .movement import request_transfer, tk_done
from .node import Segment
from .words import PRIM, RECV, Ack, At, CuStart, Data, Row


def can_receive(n: Segment, at: At, m: Data) -> bool:
    """RECV in conn; the operator takes a tuple when its output for the last one has left the passive queue."""
    return RECV in n.ins[0].conn[PRIM] and not n.is_stalled() and not n.queue


def receive(n: Segment, at: At, m: Data) -> None:
    """Acknowledge first, then forward to the operators downstream."""
    n.send(n.ins[0].peer[PRIM], Ack(m.sn))
    n.process(m.sn, m.value)


def can_start_catch_up(n: Segment, at: At, m: CuStart) -> bool:
    """As for avail(pair) in figure 3.6 (1), S-Prod.tk_done() is checked now, not only when cu-ready was sent."""
    return n.cons.phase == "" and (n.cons.pair is None or tk_done(n))


def start(n: Segment, at: At, m: CuStart) -> None:
    """As figure 3.6 (1), at the controller's request; a standby that is dead by now is given up."""
    n.cons.target = m.copy
    if n.cons.pair is None:
        n.cons.phase = "requested"
    else:
        request_transfer(n)


ROWS = (Row("receive", "data", can_receive, receive, "3.2.1.2, S-Cons"),)
COORDINATED = (Row("cu_start", "cu-start", can_start_catch_up, start, "3.4.3; fig. 3.6 (1)"),)
