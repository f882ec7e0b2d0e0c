"""The abstract producer of figure 3.3, common to ingress, S-Prod and FH-Prod, and its part in take-over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .node import Ingress, Node, Segment, know
from .words import ACK, ACTIVE, DEAD, SEND, Ack, At, Data, Fail, Row, Sn


def head(n: Node) -> tuple[int, Sn, int] | None:
    """Return what dequeue() would: from the source at the ingress, from the passive queue in a segment."""
    if isinstance(n, Ingress):
        return n.scenario.source[n.taken] if n.taken < len(n.scenario.source) else None
    assert isinstance(n, Segment)
    return n.queue[0] if n.queue else None


def is_running(n: Node) -> bool:
    """not(my_status = PAUSE), which guards every action of a segment during state movement (3.2.4.1)."""
    return not isinstance(n, Segment) or n.prod.my_status == ACTIVE


def has_room_for_next(n: Node, at: At, m: None) -> bool:
    t = head(n)
    if t is None or not is_running(n):
        return False
    buffer = n.outs[t[0]].B
    return not buffer.full() or (buffer.holds(t[1]) and not n.has("put_guard"))


def put_next(n: Node, at: At, m: None) -> None:
    """{t := dequeue(); B.put(t, t.sn, del)}"""
    t = head(n)
    assert t is not None
    if isinstance(n, Segment):
        n.queue.pop(0)
    else:
        assert isinstance(n, Ingress)
        n.taken += 1
    i, sn, value = t
    n.outs[i].B.put(value, sn, n.outs[i].del_)


def destinations(n: Node) -> Iterable[At]:
    return [(i, dest) for i, out in enumerate(n.outs) for dest in out.conn]


def can_send(n: Node, at: At, m: None) -> bool:
    """status[dest] = ACTIVE ^ SEND in conn[dest], and there is something to send"""
    out = n.outs[at[0]]
    sends = out.status[at[1]] == ACTIVE and SEND in out.conn[at[1]]
    return sends and is_running(n) and out.B.peek(at[1]) is not None


def can_send_and_gets_acks(n: Node, at: At, m: None) -> bool:
    return ACK in n.outs[at[0]].conn[at[1]] and can_send(n, at, m)


def can_send_and_gets_no_acks(n: Node, at: At, m: None) -> bool:
    return ACK not in n.outs[at[0]].conn[at[1]] and can_send(n, at, m)


def send_next(n: Node, at: At, m: None) -> Sn:
    """{t := B.peek(dest); send(dest, t); B.advance(dest)}"""
    out = n.outs[at[0]]
    t = out.B.peek(at[1])
    assert t is not None
    n.send(out.peer[at[1]], Data(t.sn, t.value))
    out.B.advance(at[1])
    return t.sn


def send_next_only(n: Node, at: At, m: None) -> None:
    send_next(n, at, m)


def send_next_and_mark(n: Node, at: At, m: None) -> None:
    """Label (a): {...; B.ack(t.sn, dest, del)}"""
    out = n.outs[at[0]]
    sn = send_next(n, at, m)
    out.B.ack(sn, at[1], out.del_)


def can_take_ack(n: Node, at: At, m: Ack) -> bool:
    """status[dest] = ACTIVE ^ ACK in conn[dest], and ack() does not fail"""
    out = n.outs[at[0]]
    takes = out.status[at[1]] == ACTIVE and ACK in out.conn[at[1]] and is_running(n)
    return takes and (not out.B.full() or out.B.holds(m.sn) or n.has("dangling"))


def take_ack(n: Node, at: At, m: Ack) -> None:
    """{sn := recv(dest); B.ack(sn, dest, del)}"""
    out = n.outs[at[0]]
    if out.B.holds(m.sn) or not n.has("dangling"):
        out.B.ack(m.sn, at[1], out.del_)


def forget_the_dead(n: Node, at: At, m: Fail) -> None:
    """{status[dest] := DEAD; B.ack_all(dest, del); del := del - {dest}}"""
    out, dest = n.outs[at[0]], at[1]
    know(out, dest, m)
    out.status[dest] = DEAD
    if not n.has("ack_all"):
        out.B.ack_all(dest, out.del_)
        out.del_ -= {dest}


PUT: Row[Any] = Row("put", "", has_room_for_next, put_next, "fig. 3.3 (1)", quiet=True)
SEND_AND_MARK: Row[Any] = Row(
    "send_and_mark", "", can_send_and_gets_no_acks, send_next_and_mark, "fig. 3.3 (2), (2a)", destinations
)
SEND_ONLY: Row[Any] = Row("send", "", can_send_and_gets_acks, send_next_only, "fig. 3.3 (2)", destinations)
TAKE_ACK: Row[Any] = Row("ack", "ack", can_take_ack, take_ack, "fig. 3.3 (3)")
