"""State movement, common to S-Cons and FH-Cons during catch-up. Figures 3.6 (1), (2), (4), (5), and 3.4.3.3.

The StateMovers are modelled by their requests: a send-req or recv-req that arrives at the other side is its
sm_ready(). The state is of one instant: operator, passive queue, unmerged input, the producer's buffers with their
`del`, and the versions of all connections. The segment is stalled meanwhile.

Idempotence (3.2.5, 3.4.3.1): if the standby dies before the StateMovers have met, the active gives up and completes the
protocol as if movement did finish. While stalled it takes no controller message, so it needs no other abort.
"""

from __future__ import annotations

from typing import Any

from . import fh_prod, s_prod
from .node import Channel, Segment
from .words import (
    ACKING,
    ACTIVE,
    CONTROLLER,
    DEAD,
    PRIM,
    PROD,
    RECEIVING,
    SEC,
    STDBY,
    At,
    Avail,
    Copy,
    CSync,
    CuDone,
    CuReady,
    Fail,
    Reverse,
    Row,
    SmReady,
    State,
    p,
)


def feeds_egress(n: Segment) -> bool:
    return n.name.stage == n.scenario.stages


def is_fed_by_ingress(n: Segment) -> bool:
    return n.name.stage == 1


def tk_done(n: Segment) -> bool:
    """Take-over is complete downstream."""
    return s_prod.tk_done(n) if feeds_egress(n) else fh_prod.tk_done(n)


# --- deaths and standbys of the own pair ---------------------------------------------------------------------


def pair_failed(n: Segment, at: At, m: Fail) -> bool:
    return not n.is_stalled()


def note_failed_pair(n: Segment, at: At, m: Fail) -> None:
    """{p_fail := true}, at both ends of the segment"""
    n.cons.p_fail = n.prod.p_fail = True
    n.cons.pair = None
    n.cons.seen = m.event
    n.cons.last_fail = m.seq


def is_own_arrival(n: Segment, at: At, m: Avail) -> bool:
    """my_status = STDBY"""
    return n.cons.my_status == STDBY and m.copy == n.name


def request_state(n: Segment, at: At, m: Avail) -> None:
    """{send(sm, recv-req)}"""
    n.cons.pair = m.donor
    n.cons.seen = m.event
    n.send(m.donor, SmReady())


def can_start_by_itself(n: Segment, at: At, m: Avail) -> bool:
    """my_status = ACTIVE ^ p_fail ^ S-Prod.tk_done(), in a dataflow pair"""
    is_vulnerable = n.cons.my_status == ACTIVE and n.cons.p_fail and n.cons.phase == ""
    return not n.scenario.is_coordinated and is_vulnerable and tk_done(n)


def start_by_itself(n: Segment, at: At, m: Avail) -> None:
    note_standby(n, at, m)
    request_transfer(n)


def waits_for_cu_start(n: Segment, at: At, m: Avail) -> bool:
    return n.scenario.is_coordinated and n.cons.my_status == ACTIVE and n.cons.phase == ""


def note_standby(n: Segment, at: At, m: Avail) -> None:
    n.cons.pair = m.copy
    n.cons.seen = m.event


def request_transfer(n: Segment) -> None:
    """{send(sm, send-req)}"""
    assert n.cons.pair is not None
    n.cons.phase = "requested"
    n.send(n.cons.pair, SmReady())


# --- under the controller's coordination: 3.4.3.3 ---------------------------------------------------------------


def producers_are_folded_in(n: Segment) -> bool:
    """Case 1 of figure 3.12 with respect to every producer pair."""
    if is_fed_by_ingress(n):
        return True
    return all(
        channel.status[PRIM] == channel.status[SEC] == ACTIVE
        and channel.conn[PRIM] == RECEIVING
        and channel.conn[SEC] == ACKING
        for channel in n.ins
    )


def is_ready_for_catch_up(n: Segment, at: At, m: None) -> bool:
    is_news = n.scenario.is_coordinated and n.cons.reported < n.cons.last_fail
    is_vulnerable = n.cons.my_status == ACTIVE and n.cons.p_fail and n.cons.phase == ""
    return is_news and is_vulnerable and producers_are_folded_in(n) and tk_done(n)


def report_ready(n: Segment, at: At, m: None) -> None:
    """{send(controller, cu-ready with the number of the last fail message)}"""
    n.cons.reported = n.cons.last_fail
    n.send(CONTROLLER, CuReady(n.cons.last_fail))


# --- movement ---------------------------------------------------------------------------------------------------


def init_trans(n: Segment) -> None:
    """{my_ver := my_ver + 1; conn := {PAUSE}; initTrans(); move()}"""
    n.cons.my_ver += 1
    n.cons.phase = "moving"
    s_prod.init_trans(n)


def movers_have_met(n: Segment, at: At, m: SmReady) -> bool:
    return n.cons.phase == "requested"


def pause_segment(n: Segment, at: At, m: SmReady) -> None:
    init_trans(n)


def standby_movers_have_met(n: Segment, at: At, m: SmReady) -> bool:
    return n.cons.my_status == STDBY and n.cons.phase == ""


def is_moving_away(n: Segment, at: At, m: None) -> bool:
    return n.cons.my_status == ACTIVE and n.cons.phase == "moving"


def move(n: Segment, at: At, m: None) -> None:
    """{st := getState(); send(sm, st); sm_done()}"""
    if n.cons.pair is not None:
        n.send(n.cons.pair, State(get_state(n)))
    n.cons.phase = "moved"


def is_moving_here(n: Segment, at: At, m: State) -> bool:
    """Departure: the standby first processes all events that the active knew ("install_at_once")."""
    *_, ins, outs = m.contents
    seen = [known[0] for *_, known in (*ins, *outs)]
    is_up_to_date = all(c.seen >= s for c, s in zip((*n.ins, *n.outs), seen, strict=True))
    return n.cons.my_status == STDBY and n.cons.phase == "moving" and (is_up_to_date or n.has("install_at_once"))


def install(n: Segment, at: At, m: State) -> None:
    """{st := recv(sm); installState(st); sm_done()}"""
    install_state(n, m.contents)
    n.cons.phase = "moved"


def get_state(n: Segment) -> Any:
    ins = tuple((tuple(c.pending), views(c)) for c in n.ins)
    outs = tuple((o.B.contents(), o.del_, views(o)) for o in n.outs)
    return n.cons.my_ver, n.operator.digest, n.operator.consumed, tuple(n.queue), ins, outs


def views(channel: Channel) -> Any:
    """Return what the active knows of the copies at the other end, and how many events it has received."""
    return channel.seen, *((dest, channel.peer[dest], channel.status[dest], channel.ver[dest]) for dest in channel.peer)


def install_state(n: Segment, contents: Any) -> None:
    """Install a state; values indexed by PRIM and SEC are swapped, as these are at the new replica (3.4.3)."""
    n.cons.my_ver, n.operator.digest, n.operator.consumed, queue, ins, outs = contents
    n.queue = list(queue)
    for channel, (pending, known) in zip(n.ins, ins, strict=True):
        channel.pending = list(pending)
        for dest, *view in known[1:]:
            install_view(channel, dest if is_fed_by_ingress(n) else p(dest), *view)
    for out, (buffer, del_, known) in zip(n.outs, outs, strict=True):
        swap = not feeds_egress(n) and not n.has("swap")
        out.B.install(buffer, swap)
        out.del_ = frozenset(p(mark) if swap and mark != PROD else mark for mark in del_)
        for dest, *view in known[1:]:
            here = dest if feeds_egress(n) else p(dest)
            if not install_view(out, here, *view):  # Departure: it may have died since the cut.
                out.B.ack_all(here, out.del_)
                out.del_ -= {here}


def install_view(channel: Channel, dest: str, peer: Copy, status: str, ver: int) -> bool:
    """Install what the active knows of a copy, if both refer to the same one and it is alive; return whether."""
    is_current = channel.peer[dest] == peer and DEAD not in (status, channel.status[dest])
    if is_current:
        channel.status[dest], channel.ver[dest] = status, ver
    return is_current


def must_give_up(n: Segment, at: At, m: None) -> bool:
    """The standby died before the StateMovers met."""
    return n.cons.phase == "requested" and n.cons.pair is None and not n.is_stalled()


def give_up(n: Segment, at: At, m: None) -> None:
    init_trans(n)
    n.cons.phase = "moved"


def movement_is_done(n: Segment, at: At, m: None) -> bool:
    return n.cons.phase == "moved"


def resume(n: Segment, at: At, m: None) -> None:
    """{endTrans(); p_fail := false; sync(my_ver); conn := {RECV, ACK}; my_status := ACTIVE; send(csync, my_ver)}"""
    was_active = n.cons.my_status == ACTIVE
    s_prod.end_trans(n)
    if n.cons.pair is not None or n.has("abort_forgets"):
        n.cons.p_fail = n.prod.p_fail = False
    if feeds_egress(n):
        s_prod.sync(n, n.cons.my_ver)
    else:
        fh_prod.sync(n, n.cons.my_ver)
    n.cons.my_status = ACTIVE
    n.cons.phase = ""
    if is_fed_by_ingress(n):
        n.ins[0].conn[PRIM] = RECEIVING | ACKING
        n.send(n.ins[0].peer[PRIM], CSync(n.cons.my_ver, n.cons.seen))
    else:
        restart_producers(n)
    if n.scenario.is_coordinated and (was_active or not n.has("cu_done_of_active")):
        standby = n.cons.target if was_active else n.name
        assert standby is not None
        n.send(CONTROLLER, CuDone(standby))


def restart_producers(n: Segment) -> None:
    """Broadcast csync to all remaining producers, then send the reversals that were postponed (3.4.3.1)."""
    for channel in n.ins:
        for dest, peer in channel.peer.items():
            if channel.status[dest] == ACTIVE:
                n.send(peer, CSync(n.cons.my_ver, n.cons.seen))
                if channel.conn[dest] >= RECEIVING:
                    continue
                channel.conn[dest] = RECEIVING if dest == PRIM else ACKING
        if channel.status[PRIM] != ACTIVE and channel.status[SEC] == ACTIVE and channel.conn[SEC] != RECEIVING:
            n.send(channel.peer[SEC], Reverse())
            channel.conn[SEC] = RECEIVING


ROWS = (
    Row("fail_pair", "fail(pair)", pair_failed, note_failed_pair, "fig. 3.5, fail(pair)"),
    Row("avail_standby", "avail(pair)", is_own_arrival, request_state, "fig. 3.6 (1), STDBY"),
    Row("sm_ready_active", "sm_ready", movers_have_met, pause_segment, "fig. 3.6 (2), fig. 3.7 (3)"),
    Row("sm_ready_standby", "sm_ready", standby_movers_have_met, pause_segment, "fig. 3.6 (2), fig. 3.7 (3)"),
    Row("move_active", "", is_moving_away, move, "fig. 3.6 (4), ACTIVE"),
    Row("move_standby", "state", is_moving_here, install, "fig. 3.6 (4), STDBY"),
    Row("give_up", "", must_give_up, give_up, "3.2.5; 3.4.3.1, aborted"),
    Row("sm_done", "", movement_is_done, resume, "fig. 3.6 (5), fig. 3.7 (7); 3.4.3.2"),
)
BY_ITSELF = (Row("avail_active", "avail(pair)", can_start_by_itself, start_by_itself, "fig. 3.6 (1), ACTIVE"),)
COORDINATED = (
    Row("avail_noted", "avail(pair)", waits_for_cu_start, note_standby, "3.4.3.3, avail"),
    Row("cu_ready", "", is_ready_for_catch_up, report_ready, "3.4.3.2, cu-ready"),
)
