"""FH-Prod: the downstream end of a segment that feeds partition pairs. Figures 3.3, 3.5 (1), 3.13, 3.14.

It forwards to its primary consumers and takes acks from its secondary consumers, with one set of state variables
for each consumer pair. Departure: a csync or reverse that arrives in the middle of something else waits; the
thesis assumes that no failure occurs during the catch-up of a partition, these rows do not.
"""

from __future__ import annotations

from .node import Out, Segment, avail, is_new_failure, knows_as_much
from .producer import PUT, SEND_AND_MARK, TAKE_ACK, forget_the_dead
from .words import (
    ACK,
    ACKING,
    ACTIVE,
    DEAD,
    DESTS,
    NOTHING,
    PAUSED,
    PRIM,
    SEC,
    SENDING,
    STDBY,
    At,
    CSync,
    Fail,
    Pause,
    PauseAck,
    PSync,
    Reverse,
    Row,
    p,
)


def consumer_failed(n: Segment, at: At, m: Fail) -> bool:
    return is_new_failure(n, at, m) and not n.is_stalled()


def forget_consumer(n: Segment, at: At, m: Fail) -> None:
    n.cons.last_fail = m.seq
    forget_the_dead(n, at, m)


def not_stalled(n: Segment, at: At, m: object) -> bool:
    return not n.is_stalled()


# --- take-over: figure 3.13 ---------------------------------------------------------------------------------


def can_reverse(n: Segment, at: At, m: Reverse) -> bool:
    """The connection takes acks: it is folded in, and all acks before the reverse have been taken."""
    out = n.outs[at[0]]
    return not n.is_stalled() and (ACK in out.conn[SEC] or n.has("reverse_at_once"))


def reverse(n: Segment, at: At, m: Reverse) -> None:
    """{conn_i[SEC] := {SEND}; B_i.reset(SEC); del_i := del_i + {SEC}; r_done_i := true}"""
    out = n.outs[at[0]]
    out.conn[SEC] = SENDING
    if n.has("one_reset"):
        out.B.match(SEC)
    out.B.reset(SEC)
    out.del_ |= {SEC}
    out.r_done = True


def tk_done(n: Segment) -> bool:
    """p_fail, and each secondary consumer has requested the reversal, unless it is dead; no fold-in is half done."""
    return n.prod.p_fail and all(is_reversed(n, out) and is_settled(out) for out in n.outs)


def is_reversed(n: Segment, out: Out) -> bool:
    needs_none = out.status[SEC] != ACTIVE and not n.has("r_done_only")
    return out.r_done or needs_none


def is_settled(out: Out) -> bool:
    """No consumer is between the csync of one copy and that of the other."""
    for dest in DESTS:
        if out.status[dest] == ACTIVE and out.conn[dest] in (NOTHING, PAUSED):
            return False
        if out.status[dest] == STDBY and dest in out.del_:
            return False
    return True


# --- the distributed pause: 3.4.3.1 --------------------------------------------------------------------------


def pause(n: Segment, at: At, m: Pause) -> None:
    """{send(PRIM, pause-ack); conn[PRIM] := {PAUSE}}"""
    out = n.outs[at[0]]
    n.send(out.peer[PRIM], PauseAck())
    out.conn[PRIM] = PAUSED


# --- fold-in of a consumer: figure 3.14 ----------------------------------------------------------------------


def csync_from(n: Segment, at: At, m: CSync, status: str) -> Out | None:
    out = n.outs[at[0]]
    is_due = knows_as_much(n, out, m) and not n.is_stalled() and out.status[at[1]] == status
    return out if is_due else None


def standby_lives(n: Segment, out: Out, at: At, m: CSync) -> bool:
    """The standby to which this csync of the active refers has not died since."""
    other = p(at[1])
    return (out.status[other] != DEAD and out.born[other] <= m.seen) or n.has("del_of_the_dead")


def csync_active_first(n: Segment, at: At, m: CSync) -> bool:
    out = csync_from(n, at, m, ACTIVE)
    return out is not None and standby_lives(n, out, at, m) and out.ver[p(at[1])] != m.ver


def csync_active_second(n: Segment, at: At, m: CSync) -> bool:
    out = csync_from(n, at, m, ACTIVE)
    return out is not None and standby_lives(n, out, at, m) and out.ver[p(at[1])] == m.ver


def csync_active_alone(n: Segment, at: At, m: CSync) -> bool:
    out = csync_from(n, at, m, ACTIVE)
    return out is not None and not standby_lives(n, out, at, m)


def csync_standby_first(n: Segment, at: At, m: CSync) -> bool:
    out = csync_from(n, at, m, STDBY)
    return out is not None and out.ver[p(at[1])] != m.ver


def csync_standby_second(n: Segment, at: At, m: CSync) -> bool:
    out = csync_from(n, at, m, STDBY)
    return out is not None and out.ver[p(at[1])] == m.ver


def account_for_standby(n: Segment, at: At, m: CSync) -> None:
    """(a) {ver[dest] := v; del += p(dest); B.reset(p(dest))}, and if dest = PRIM (b) {conn[PRIM] := {SEND}}"""
    out, dest = n.outs[at[0]], at[1]
    resume_active(n, at, m)
    if not n.has("csync_del"):
        out.del_ |= {p(dest)}
    out.B.match(p(dest))
    out.B.reset(p(dest))


def account_for_and_start_standby(n: Segment, at: At, m: CSync) -> None:
    """(a), (b), and if dest = PRIM (d) {conn[SEC] := {ACK}}, if dest = SEC (c) {conn[PRIM] := {SEND}}"""
    account_for_standby(n, at, m)
    start(n.outs[at[0]], p(at[1]))


def resume_active(n: Segment, at: At, m: CSync) -> None:
    """{ver[dest] := v}, and if dest = PRIM (b) {conn[PRIM] := {SEND}}"""
    out = n.outs[at[0]]
    out.ver[at[1]] = m.ver
    if at[1] == PRIM:
        out.conn[PRIM] = SENDING


def activate(n: Segment, at: At, m: CSync) -> None:
    """{ver[dest] := v; status[dest] := ACTIVE}"""
    out = n.outs[at[0]]
    out.ver[at[1]] = m.ver
    out.status[at[1]] = ACTIVE
    if n.has("both_csync"):
        out.del_ |= {at[1]}
        out.B.match(at[1])
        out.B.reset(at[1])
        start(out, at[1])


def activate_and_start(n: Segment, at: At, m: CSync) -> None:
    """{...}, and if dest = PRIM (c), (d) {conn[PRIM] := {SEND}}, if dest = SEC (d) {conn[SEC] := {ACK}}"""
    activate(n, at, m)
    start(n.outs[at[0]], at[1])


def start(out: Out, dest: str) -> None:
    out.conn[dest] = SENDING if dest == PRIM else ACKING


# --- after state movement of this pair: 3.4.3.2 ---------------------------------------------------------------


def sync(n: Segment, ver: int) -> None:
    """Broadcast psync to all active consumers; the connection to a secondary that got tuples now takes acks."""
    is_new = n.prod.my_status == STDBY
    n.prod.my_status = ACTIVE
    for out in n.outs:
        out.r_done = False
        for dest in DESTS:
            if out.status[dest] == ACTIVE:
                n.send(out.peer[dest], PSync(ver, n.cons.seen))
                if is_new or dest == SEC:
                    start(out, dest)


ROWS = (
    PUT,
    SEND_AND_MARK,
    TAKE_ACK,
    Row("fail", "fail(consumer)", consumer_failed, forget_consumer, "3.4.2, as fig. 3.5 (1)"),
    Row("avail", "avail(consumer)", not_stalled, avail, "fig. 3.6, avail"),
    Row("reverse", "reverse", can_reverse, reverse, "fig. 3.13"),
    Row("pause", "pause", not_stalled, pause, "3.4.3.1, pause"),
    Row("csync_active_first", "csync", csync_active_first, account_for_standby, "fig. 3.14 (a), (b)"),
    Row("csync_active_second", "csync", csync_active_second, account_for_and_start_standby, "fig. 3.14 (a) to (d)"),
    Row("csync_active_alone", "csync", csync_active_alone, resume_active, "3.4.3.1, movement was aborted; 3.2.5"),
    Row("csync_standby_first", "csync", csync_standby_first, activate, "fig. 3.14, status[dest] = STDBY"),
    Row("csync_standby_second", "csync", csync_standby_second, activate_and_start, "fig. 3.14 (c), (d)"),
)
