"""S-Prod: the downstream end of a segment that feeds the egress. Figures 3.3, 3.5 (3), 3.7 (3) and (7)."""

from __future__ import annotations

from .node import Segment
from .producer import PUT, SEND_AND_MARK, TAKE_ACK
from .words import ACKING, ACTIVE, PAUSE, PRIM, SEND, SENDING, STDBY, At, PSync, Reverse, Row


def is_active(n: Segment, at: At, m: Reverse) -> bool:
    return n.prod.my_status == ACTIVE


def reverse(n: Segment, at: At, m: Reverse) -> None:
    """{conn[PRIM] := {SEND}; B.reset(PRIM); r_done := true}"""
    out = n.outs[0]
    out.conn[PRIM] = SENDING
    out.B.reset(PRIM)
    out.r_done = True


def tk_done(n: Segment) -> bool:
    """p_fail ^ r_done, or it was the sender already and nothing had to be reversed."""
    out = n.outs[0]
    is_sender = SEND in out.conn[PRIM] and not n.has("r_done_only")
    return n.prod.p_fail and (out.r_done or is_sender)


def sync(n: Segment, ver: int) -> None:
    """{p_fail := false; r_done := false; send(psync, ver)}, and if STDBY {my_status := ACTIVE; conn := {ACK}}"""
    out = n.outs[0]
    out.r_done = False
    n.send(out.peer[PRIM], PSync(ver, n.cons.seen))
    if n.prod.my_status == STDBY:
        n.prod.my_status = ACTIVE
        out.conn[PRIM] = ACKING


def init_trans(n: Segment) -> None:
    """{prev_stat := my_status; my_status := PAUSE}"""
    n.prod.prev_stat = n.prod.my_status
    n.prod.my_status = PAUSE


def end_trans(n: Segment) -> None:
    """{my_status := prev_stat}"""
    n.prod.my_status = n.prod.prev_stat


ROWS = (
    PUT,
    SEND_AND_MARK,
    TAKE_ACK,
    Row("reverse", "reverse", is_active, reverse, "fig. 3.5 (3)"),
)
