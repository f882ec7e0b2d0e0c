"""FH-Cons: the upstream end of a segment fed by partition pairs. Thesis 3.4.1, 3.4.2, 3.4.3.1, fig. 3.15.

It receives from its primary producers and acknowledges to their duals, merging in order. In take-over it is like the
egress, in catch-up like S-Cons, but its primary producers must pause before state moves.
"""

from __future__ import annotations

from .movement import request_transfer, tk_done
from .node import In, Segment, avail, is_new_failure, know, knows_as_much, merge
from .words import (
    ACK,
    ACKING,
    ACTIVE,
    DEAD,
    NOTHING,
    PAUSED,
    PRIM,
    RECEIVING,
    RECV,
    SEC,
    STDBY,
    Ack,
    At,
    CuStart,
    Data,
    Fail,
    Pause,
    PauseAck,
    PSync,
    Reverse,
    Row,
    p,
)

CATCHING_UP = ("pausing", "requested", "moving", "moved")

# --- normal case: 3.4.1 --------------------------------------------------------------------------------------


def can_receive(n: Segment, at: At, m: Data) -> bool:
    """RECV in conn; and no tuple of this producer waits, unless the network is being drained (3.4.3.1)."""
    channel = n.ins[at[0]]
    is_open = channel.status[at[1]] == ACTIVE and RECV in channel.conn[at[1]] and not n.is_stalled()
    drains = n.cons.phase == "pausing" and not n.has("internal_buffer")
    return is_open and (not channel.pending or drains)


def receive(n: Segment, at: At, m: Data) -> None:
    """Acknowledge to the dual producer before the tuple is considered for anything else."""
    channel, other = n.ins[at[0]], p(at[1])
    if channel.status[other] == ACTIVE and ACK in channel.conn[other]:
        n.send(channel.peer[other], Ack(m.sn))
    channel.pending.append((m.sn, m.value))


def next_is_known(n: Segment, at: At, m: None) -> bool:
    """There is a tuple from every producer, so the lowest is the next."""
    return not n.is_stalled() and not n.queue and all(channel.pending for channel in n.ins)


def consume_next(n: Segment, at: At, m: None) -> None:
    head = merge(n.ins)
    assert head is not None
    n.process(*head)


# --- take-over: 3.4.2, as figure 3.5 (2) ------------------------------------------------------------------------


def producer_failed(n: Segment, at: At, m: Fail) -> In | None:
    return n.ins[at[0]] if is_new_failure(n, at, m) and not n.is_stalled() else None


def postpones(n: Segment) -> bool:
    is_catching_up = n.cons.my_status == STDBY or n.cons.phase in CATCHING_UP
    return is_catching_up and not n.has("postponing")


def failed_and_other_does_not_send(n: Segment, at: At, m: Fail) -> bool:
    channel = producer_failed(n, at, m)
    if channel is None or at[1] == SEC or postpones(n):
        return False
    return RECV not in channel.conn[SEC]


def failed_and_other_is_paused(n: Segment, at: At, m: Fail) -> bool:
    """The secondary has died, and a psync of the primary waits for it."""
    channel = producer_failed(n, at, m)
    return channel is not None and at[1] == SEC and channel.conn[PRIM] == PAUSED and not postpones(n)


def failed_otherwise(n: Segment, at: At, m: Fail) -> bool:
    if producer_failed(n, at, m) is None:
        return False
    return not failed_and_other_does_not_send(n, at, m) and not failed_and_other_is_paused(n, at, m)


def mark_dead(n: Segment, at: At, m: Fail) -> None:
    """{status_i[dest] := DEAD}"""
    know(n.ins[at[0]], at[1], m)
    n.ins[at[0]].status[at[1]] = DEAD
    n.cons.last_fail = m.seq


def mark_dead_and_resume(n: Segment, at: At, m: Fail) -> None:
    mark_dead(n, at, m)
    n.ins[at[0]].conn[PRIM] = RECEIVING


def mark_dead_and_reverse(n: Segment, at: At, m: Fail) -> None:
    """{status_i[dest] := DEAD; send(p(dest), reverse); conn_i[p(dest)] := {RECV}}"""
    mark_dead(n, at, m)
    reverse(n, n.ins[at[0]])


def reverse(n: Segment, channel: In) -> None:
    n.send(channel.peer[SEC], Reverse())
    channel.conn[SEC] = RECEIVING


def not_stalled(n: Segment, at: At, m: object) -> bool:
    return not n.is_stalled()


# --- the distributed pause: 3.4.3.1 ----------------------------------------------------------------------------


def can_start_catch_up(n: Segment, at: At, m: CuStart) -> bool:
    """Take-over is complete downstream; a consumer's fold-in there may have begun since cu-ready was sent."""
    return n.cons.phase == "" and (n.cons.pair is None or tk_done(n))


def pause_producers(n: Segment, at: At, m: CuStart) -> None:
    """{send(PRIM, pause) for each i}"""
    n.cons.phase = "pausing"
    n.cons.target = m.copy
    for channel in n.ins:
        if channel.status[PRIM] == ACTIVE and not n.has("pause"):
            n.send(channel.peer[PRIM], Pause())
        elif n.has("pause"):
            channel.conn[PRIM] = PAUSED


def is_pausing(n: Segment, at: At, m: PauseAck) -> bool:
    return n.cons.phase == "pausing"


def pause_connection(n: Segment, at: At, m: PauseAck) -> None:
    n.ins[at[0]].conn[at[1]] = PAUSED


def all_producers_paused(n: Segment, at: At, m: None) -> bool:
    """All live ones are paused: those that died, and the standbys in their places, have nothing in flight."""
    paused = all(channel.status[PRIM] != ACTIVE or channel.conn[PRIM] == PAUSED for channel in n.ins)
    return n.cons.phase == "pausing" and paused


def begin_transfer(n: Segment, at: At, m: None) -> None:
    """{send(sm, send-req)}; a standby that is dead by now is given up, but csync must be sent."""
    if n.cons.pair is None:
        n.cons.phase = "requested"
    else:
        request_transfer(n)


# --- fold-in of a producer: figure 3.15 ------------------------------------------------------------------------


def psync_from(n: Segment, at: At, m: PSync, dest: str) -> In | None:
    channel = n.ins[at[0]]
    is_due = at[1] == dest and knows_as_much(n, channel, m) and not n.is_stalled() and n.cons.phase == ""
    return channel if is_due else None


def standby_lives(channel: In, other: str, m: PSync) -> bool:
    """The copy at the other end, to which this psync refers too, has not died since."""
    return channel.status[other] != DEAD and channel.born[other] <= m.seen


def psync_primary_first(n: Segment, at: At, m: PSync) -> bool:
    c = psync_from(n, at, m, PRIM)
    return c is not None and standby_lives(c, SEC, m) and c.ver[SEC] != m.ver


def psync_primary_second(n: Segment, at: At, m: PSync) -> bool:
    c = psync_from(n, at, m, PRIM)
    return c is not None and standby_lives(c, SEC, m) and c.ver[SEC] == m.ver


def psync_primary_alone(n: Segment, at: At, m: PSync) -> bool:
    c = psync_from(n, at, m, PRIM)
    return c is not None and not standby_lives(c, SEC, m)


def psync_secondary_first(n: Segment, at: At, m: PSync) -> bool:
    c = psync_from(n, at, m, SEC)
    return c is not None and standby_lives(c, PRIM, m) and c.ver[PRIM] != m.ver


def psync_secondary_second(n: Segment, at: At, m: PSync) -> bool:
    c = psync_from(n, at, m, SEC)
    return c is not None and standby_lives(c, PRIM, m) and c.ver[PRIM] == m.ver


def psync_secondary_alone(n: Segment, at: At, m: PSync) -> bool:
    c = psync_from(n, at, m, SEC)
    return c is not None and not standby_lives(c, PRIM, m)


def note(n: Segment, at: At, m: PSync) -> None:
    """{ver[dest] := v; status[dest] := ACTIVE}"""
    n.ins[at[0]].ver[at[1]] = m.ver
    n.ins[at[0]].status[at[1]] = ACTIVE


def pause_primary(n: Segment, at: At, m: PSync) -> None:
    """{...; conn[PRIM] := {PAUSE}} (a)"""
    note(n, at, m)
    if not n.has("psync_pause"):
        n.ins[at[0]].conn[PRIM] = PAUSED


def note_that_secondary_stopped(n: Segment, at: At, m: PSync) -> None:
    """{...}, and if it was the sender it has stopped: {conn[SEC] := {}}"""
    note(n, at, m)
    channel = n.ins[at[0]]
    if n.has("both_psync"):
        channel.conn[SEC] = ACKING
    elif not n.has("recv_kept"):
        channel.conn[SEC] = NOTHING


def ack_secondary_and_receive(n: Segment, at: At, m: PSync) -> None:
    """{...; conn[SEC] := {ACK}; conn[PRIM] := {RECV}} (b), (c)"""
    note(n, at, m)
    n.ins[at[0]].conn[SEC] = ACKING
    n.ins[at[0]].conn[PRIM] = RECEIVING


def note_and_reverse(n: Segment, at: At, m: PSync) -> None:
    """The secondary has stopped for a standby that is dead: request that it sends again."""
    note(n, at, m)
    if not n.has("recv_kept"):
        reverse(n, n.ins[at[0]])


ROWS = (
    Row("receive", "data", can_receive, receive, "3.4.1, FH-Cons"),
    Row("merge", "", next_is_known, consume_next, "3.3.1, order-preserving merge", quiet=True),
    Row("fail", "fail(producer)", failed_otherwise, mark_dead, "3.4.2, as fig. 3.5 (2)"),
    Row("fail_resume", "fail(producer)", failed_and_other_is_paused, mark_dead_and_resume, "3.2.5, at FH-Cons"),
    Row(
        "fail_reverse",
        "fail(producer)",
        failed_and_other_does_not_send,
        mark_dead_and_reverse,
        "3.4.2, as fig. 3.5 (2a)",
    ),
    Row("avail", "avail(producer)", not_stalled, avail, "fig. 3.7, avail"),
    Row("cu_start", "cu-start", can_start_catch_up, pause_producers, "3.4.3.1, cu-start"),
    Row("pause_ack", "pause-ack", is_pausing, pause_connection, "3.4.3.1, pause-ack"),
    Row("all_paused", "", all_producers_paused, begin_transfer, "3.4.3.1"),
    Row("psync_primary_first", "psync", psync_primary_first, pause_primary, "fig. 3.15 (a)"),
    Row("psync_primary_second", "psync", psync_primary_second, ack_secondary_and_receive, "fig. 3.15 (b)"),
    Row("psync_primary_alone", "psync", psync_primary_alone, note, "3.2.5, at FH-Cons"),
    Row("psync_secondary_first", "psync", psync_secondary_first, note_that_secondary_stopped, "fig. 3.15; 3.4.3.2"),
    Row("psync_secondary_second", "psync", psync_secondary_second, ack_secondary_and_receive, "fig. 3.15 (c)"),
    Row("psync_secondary_alone", "psync", psync_secondary_alone, note_and_reverse, "3.2.5, at FH-Cons"),
)
