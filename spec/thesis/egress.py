"""The egress: receives from one copy, acknowledges to the other. Thesis 3.2.1.2, figures 3.5 (2), 3.7 (8), and 3.2.5.

As at the ingress, the rows on psync compare versions, so that the standby may die in each phase of catch-up.
"""

from __future__ import annotations

from .node import Egress, In, avail, is_new_failure, know, knows_as_much, merge
from .words import (
    ACK,
    ACKING,
    ACTIVE,
    DEAD,
    PAUSED,
    RECEIVING,
    RECV,
    STDBY,
    Ack,
    At,
    Data,
    Fail,
    PSync,
    Reverse,
    Row,
    p,
)


def can_receive(n: Egress, at: At, m: Data) -> bool:
    channel = n.ins[at[0]]
    return channel.status[at[1]] == ACTIVE and RECV in channel.conn[at[1]]


def receive(n: Egress, at: At, m: Data) -> None:
    """Acknowledge to the other copy first, then merge and deliver (3.2.1.2)."""
    channel, other = n.ins[at[0]], p(at[1])
    if channel.status[other] == ACTIVE and ACK in channel.conn[other]:
        n.send(channel.peer[other], Ack(m.sn))
    channel.pending.append((m.sn, m.value))
    while (head := merge(n.ins)) is not None:
        n.operator.process(n.scenario, *head)


def uses_of_other(n: Egress, at: At) -> frozenset[str]:
    return n.ins[at[0]].conn[p(at[1])]


def failed_and_other_sends(n: Egress, at: At, m: Fail) -> bool:
    return is_new_failure(n, at, m) and RECV in uses_of_other(n, at)


def failed_and_other_does_not_send(n: Egress, at: At, m: Fail) -> bool:
    """Also when the other is paused by its psync: it sends already, so the reverse is harmless."""
    return is_new_failure(n, at, m) and RECV not in uses_of_other(n, at)


def mark_dead(n: Egress, at: At, m: Fail) -> None:
    """{status[dest] := DEAD}"""
    know(n.ins[at[0]], at[1], m)
    n.ins[at[0]].status[at[1]] = DEAD


def mark_dead_and_reverse(n: Egress, at: At, m: Fail) -> None:
    """{status[dest] := DEAD; send(p(dest), reverse); conn[p(dest)] := {RECV}}"""
    mark_dead(n, at, m)
    if not n.has("reversal"):
        n.send(n.ins[at[0]].peer[p(at[1])], Reverse())
        n.ins[at[0]].conn[p(at[1])] = RECEIVING


# --- egress, psync: (8) of figure 3.7 -----------------------------------------------------------------------


def psync_from(n: Egress, at: At, m: PSync, status: str) -> In | None:
    channel = n.ins[at[0]]
    return channel if knows_as_much(n, channel, m) and channel.status[at[1]] == status else None


def psync_from_active_first(n: Egress, at: At, m: PSync) -> bool:
    c = psync_from(n, at, m, ACTIVE)
    return c is not None and c.status[p(at[1])] != DEAD and m.ver > c.ver[p(at[1])]


def psync_from_active_second(n: Egress, at: At, m: PSync) -> bool:
    c = psync_from(n, at, m, ACTIVE)
    return c is not None and c.status[p(at[1])] != DEAD and m.ver == c.ver[p(at[1])]


def psync_from_active_late(n: Egress, at: At, m: PSync) -> bool:
    c = psync_from(n, at, m, ACTIVE)
    return c is not None and c.status[p(at[1])] != DEAD and m.ver < c.ver[p(at[1])]


def psync_from_active_alone(n: Egress, at: At, m: PSync) -> bool:
    c = psync_from(n, at, m, ACTIVE)
    return c is not None and c.status[p(at[1])] == DEAD


def psync_from_standby_first(n: Egress, at: At, m: PSync) -> bool:
    c = psync_from(n, at, m, STDBY)
    return c is not None and c.ver[p(at[1])] != m.ver


def psync_from_standby_second(n: Egress, at: At, m: PSync) -> bool:
    c = psync_from(n, at, m, STDBY)
    return c is not None and c.ver[p(at[1])] == m.ver


def note_psync(n: Egress, at: At, m: PSync) -> None:
    n.ins[at[0]].ver[at[1]] = m.ver


def pause_active(n: Egress, at: At, m: PSync) -> None:
    """Label (a): {ver[dest] := v; conn[dest] := {PAUSE}}"""
    note_psync(n, at, m)
    if not n.has("psync_pause"):
        n.ins[at[0]].conn[at[1]] = PAUSED


def ack_to_standby(n: Egress, at: At, m: PSync) -> None:
    """Label (b): {ver[dest] := v; conn[p(dest)] := {ACK}}"""
    note_psync(n, at, m)
    n.ins[at[0]].conn[p(at[1])] = ACKING


def activate_only(n: Egress, at: At, m: PSync) -> None:
    """{ver[dest] := v; status[dest] := ACTIVE}, and a pause made for a standby before this one ends (3.2.5)."""
    channel = n.ins[at[0]]
    note_psync(n, at, m)
    channel.status[at[1]] = ACTIVE
    if n.has("both_psync"):
        channel.conn[at[1]] = ACKING
    if channel.conn[p(at[1])] == PAUSED:
        channel.conn[p(at[1])] = RECEIVING


def activate_and_ack(n: Egress, at: At, m: PSync) -> None:
    """Label (b): {...; conn[p(dest)] := {RECV}; conn[dest] := {ACK}}"""
    channel = n.ins[at[0]]
    note_psync(n, at, m)
    channel.status[at[1]] = ACTIVE
    channel.conn[p(at[1])] = RECEIVING
    channel.conn[at[1]] = ACKING


ROWS = (
    Row("receive", "data", can_receive, receive, "3.2.1.2, egress"),
    Row("fail", "fail(producer)", failed_and_other_sends, mark_dead, "fig. 3.5 (2)"),
    Row("fail_reverse", "fail(producer)", failed_and_other_does_not_send, mark_dead_and_reverse, "fig. 3.5 (2a)"),
    Row("avail", "avail(producer)", lambda n, at, m: True, avail, "fig. 3.7, avail"),
    Row("psync_active_first", "psync", psync_from_active_first, pause_active, "fig. 3.7 (8a)"),
    Row("psync_active_second", "psync", psync_from_active_second, ack_to_standby, "fig. 3.7 (8b)"),
    Row("psync_active_late", "psync", psync_from_active_late, note_psync, "3.2.5, egress: active earlier than standby"),
    Row("psync_active_alone", "psync", psync_from_active_alone, note_psync, "3.2.5, the standby died"),
    Row("psync_standby_first", "psync", psync_from_standby_first, activate_only, "fig. 3.7 (8)"),
    Row("psync_standby_second", "psync", psync_from_standby_second, activate_and_ack, "fig. 3.7 (8b)"),
)
