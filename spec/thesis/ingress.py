"""The ingress: numbers the input and sends it to both copies. Figures 3.3, 3.5 (1), 3.6 (6), and 3.2.5.

The rows on csync are those of the idempotent catch-up: the versions of active and standby are compared, not only
matched, because standbys may have died and their versions been skipped. Without such deaths they are figure 3.6.
"""

from __future__ import annotations

from .node import Ingress, Out, avail, is_new_failure, knows_as_much
from .producer import PUT, SEND_ONLY, TAKE_ACK, forget_the_dead
from .words import ACTIVE, BOTH_WAYS, DEAD, STDBY, At, CSync, Row, p


def csync_from_active(n: Ingress, at: At, m: CSync) -> bool:
    out = n.outs[at[0]]
    return knows_as_much(n, out, m) and out.status[at[1]] == ACTIVE


def csync_from_active_first(n: Ingress, at: At, m: CSync) -> bool:
    """The active's version is later than that of a standby that is alive."""
    out = n.outs[at[0]]
    return csync_from_active(n, at, m) and waits_for_standby(n, out, at, m) and m.ver > out.ver[p(at[1])]


def csync_from_active_second(n: Ingress, at: At, m: CSync) -> bool:
    out = n.outs[at[0]]
    return csync_from_active(n, at, m) and waits_for_standby(n, out, at, m) and m.ver == out.ver[p(at[1])]


def csync_from_active_late(n: Ingress, at: At, m: CSync) -> bool:
    """The active's version is earlier: the buffered tuples are for a standby before this one."""
    out = n.outs[at[0]]
    return csync_from_active(n, at, m) and waits_for_standby(n, out, at, m) and m.ver < out.ver[p(at[1])]


def csync_from_active_alone(n: Ingress, at: At, m: CSync) -> bool:
    return csync_from_active(n, at, m) and not waits_for_standby(n, n.outs[at[0]], at, m)


def waits_for_standby(n: Ingress, out: Out, at: At, m: CSync) -> bool:
    return out.status[p(at[1])] != DEAD or n.has("del_of_the_dead")


def hold_for_standby(n: Ingress, at: At, m: CSync) -> None:
    """{ver[dest] := v; del := del + {p(dest)}; B.reset(p(dest))}"""
    out, dest = n.outs[at[0]], at[1]
    out.ver[dest] = m.ver
    if not n.has("csync_del"):
        out.del_ |= {p(dest)}
    out.B.match(p(dest))
    out.B.reset(p(dest))


def hold_and_restart_standby(n: Ingress, at: At, m: CSync) -> None:
    """{...; conn[p(dest)] := {SEND, ACK}}"""
    hold_for_standby(n, at, m)
    n.outs[at[0]].conn[p(at[1])] = BOTH_WAYS


def note_csync(n: Ingress, at: At, m: CSync) -> None:
    n.outs[at[0]].ver[at[1]] = m.ver


def csync_from_standby_first(n: Ingress, at: At, m: CSync) -> bool:
    out = n.outs[at[0]]
    is_first = out.ver[p(at[1])] != m.ver
    return knows_as_much(n, out, m) and out.status[at[1]] == STDBY and is_first


def csync_from_standby_second(n: Ingress, at: At, m: CSync) -> bool:
    out = n.outs[at[0]]
    return knows_as_much(n, out, m) and out.status[at[1]] == STDBY and out.ver[p(at[1])] == m.ver


def activate_standby(n: Ingress, at: At, m: CSync) -> None:
    """{ver[dest] := v; status[dest] := ACTIVE}"""
    out = n.outs[at[0]]
    out.ver[at[1]] = m.ver
    out.status[at[1]] = ACTIVE
    if n.has("both_csync"):
        out.del_ |= {at[1]}
        out.B.match(at[1])
        out.B.reset(at[1])
        out.conn[at[1]] = BOTH_WAYS


def activate_and_restart_standby(n: Ingress, at: At, m: CSync) -> None:
    """{...; conn[dest] := {SEND, ACK}}"""
    activate_standby(n, at, m)
    n.outs[at[0]].conn[at[1]] = BOTH_WAYS


ROWS = (
    PUT,
    SEND_ONLY,
    TAKE_ACK,
    Row("fail", "fail(consumer)", is_new_failure, forget_the_dead, "fig. 3.5 (1)"),
    Row("avail", "avail(consumer)", lambda n, at, m: True, avail, "fig. 3.6, avail"),
    Row("csync_active_first", "csync", csync_from_active_first, hold_for_standby, "fig. 3.6 (6c)"),
    Row("csync_active_second", "csync", csync_from_active_second, hold_and_restart_standby, "fig. 3.6 (6c), (6b)"),
    Row(
        "csync_active_late", "csync", csync_from_active_late, note_csync, "3.2.5, ingress: active earlier than standby"
    ),
    Row("csync_active_alone", "csync", csync_from_active_alone, note_csync, "3.2.5, the standby died"),
    Row("csync_standby_first", "csync", csync_from_standby_first, activate_standby, "fig. 3.6 (6a)"),
    Row(
        "csync_standby_second", "csync", csync_from_standby_second, activate_and_restart_standby, "fig. 3.6 (6a), (6b)"
    ),
)
