"""The shortest counterexample of each variant, as a story: "node: action", step after step.

A copy is written stage.partition and a letter, A and B for the first two; C, D and so on are standbys. The steps
before a story are the `prelude` of its world in `worlds`. `explore.shortest` finds these stories again,
`explore.replay` replays them.
"""

from __future__ import annotations

# By variant: the violated claim, and the steps that lead there.
STORIES: dict[str, tuple[str, str]] = {
    "r_done_only": (
        "recovery ends: 1.0C still waits to be folded in",
        "ingress: send; 1.0A: receive; ingress: ack; 1.0A: send_and_mark; egress: receive; 1.0B: crash; ingress: "
        "fail; 1.0A: fail_pair; egress: fail; 1.0C: standby; ingress: avail; 1.0C: avail_standby; egress: avail",
    ),
    "one_reset": (
        "dup-free: partition 0 of stage 2 gets tuple (1, 0) again",
        "ingress: send; ingress: send; 1.0A: receive; 1.0A: send_and_mark; 1.0B: receive; 2.0A: receive; 1.0B: "
        "ack; 1.0A: crash; 2.0A: fail_reverse; 1.0B: reverse; 1.0B: send_and_mark",
    ),
    "put_guard": (
        "buffers drain: 0.0A keeps [(2,)] for ever",
        "ingress: send; ingress: send; 1.0A: receive; ingress: ack; 1.0A: send_and_mark; egress: receive; 1.0B: "
        "ack; 1.0B: receive; ingress: ack; ingress: send; ingress: send; 1.0A: receive; ingress: ack; 1.0A: "
        "send_and_mark; egress: receive",
    ),
    "sync_at_once": (
        "buffers drain: 1.0C keeps [(1, 0)] for ever",
        "ingress: send; 1.0A: receive; ingress: ack; 1.0B: crash; ingress: fail; 1.0A: fail_pair; egress: fail; "
        "1.0C: standby; ingress: avail; 1.0A: avail_active; 1.0C: avail_standby; 1.0A: sm_ready_active; 1.0A: "
        "move_active; 1.0A: sm_done; ingress: csync_active_first; 1.0A: send_and_mark; 1.0C: sm_ready_standby; "
        "1.0C: move_standby; 1.0C: sm_done; ingress: csync_standby_second; egress: psync_active_alone; egress: "
        "avail; egress: receive; egress: psync_standby_second",
    ),
    "version_kept": (
        "dup-free: partition 0 of stage 1 gets tuple (1,) again",
        "ingress: send; ingress: fail; ingress: avail; 1.0A: fail_pair; 1.0A: avail_active; 1.0C: avail_standby; "
        "1.0A: sm_ready_active; 1.0A: move_active; 1.0A: sm_done; 1.0A: receive; 1.0C: sm_ready_standby; 1.0C: "
        "move_standby; 1.0C: sm_done; ingress: csync_standby_first; 1.0C: crash; ingress: fail; 1.0A: fail_pair; "
        "1.0D: standby; ingress: avail; ingress: csync_active_second; 1.0A: avail_active; 1.0D: avail_standby; "
        "1.0A: sm_ready_active; 1.0A: move_active; 1.0D: sm_ready_standby; 1.0D: move_standby; 1.0D: sm_done; "
        "ingress: csync_standby_first; ingress: send",
    ),
    "del_of_the_dead": (
        "buffers drain: 0.0A keeps [(1,)] for ever",
        "ingress: send; ingress: fail; ingress: avail; 1.0A: fail_pair; 1.0A: avail_active; egress: fail; egress: "
        "avail; 1.0C: crash; ingress: fail; 1.0A: fail_pair; 1.0A: give_up; 1.0A: sm_done; ingress: "
        "csync_active_first; 1.0A: receive; ingress: ack; 1.0A: send_and_mark; egress: fail; egress: "
        "psync_active_alone; egress: receive",
    ),
    "abort_forgets": (
        "recovery ends: 1.0D still waits to be folded in",
        "ingress: fail; ingress: avail; 1.0A: fail_pair; 1.0A: avail_active; egress: fail; egress: avail; 1.0C: "
        "crash; ingress: fail; 1.0A: fail_pair; 1.0A: give_up; 1.0A: sm_done; ingress: csync_active_alone; "
        "egress: fail; egress: psync_active_alone; 1.0D: standby; ingress: avail; 1.0D: avail_standby; egress: "
        "avail",
    ),
    "cu_done_of_active": (
        "recovery ends: 2.0D still waits to be folded in",
        "1.0A: fail; 1.0A: avail; 1.0B: fail; 1.0B: avail; 2.0A: fail_pair; 2.0A: cu_ready; controller: cu_ready; "
        "controller: cu_start; 2.0A: avail_noted; 2.0A: cu_start; 1.0A: pause; 2.0A: pause_ack; 2.0A: all_paused; "
        "2.0C: avail_standby; 2.0A: sm_ready_active; 2.0A: move_active; 2.0A: sm_done; 1.0A: csync_active_first; "
        "1.0B: csync_active_first; 2.0C: sm_ready_standby; 2.0C: move_standby; 2.0C: sm_done; 1.0A: "
        "csync_standby_second; 1.0B: csync_standby_second; egress: fail; egress: avail; egress: "
        "psync_active_first; egress: psync_standby_second; 2.0A: crash; 1.0A: fail; 1.0B: fail; 2.0C: fail_pair; "
        "egress: fail_reverse; 2.0C: reverse; 2.0C: cu_ready; controller: cu_ready; 2.0D: standby; 1.0A: avail; "
        "1.0B: avail; 2.0C: avail_noted; 2.0D: avail_standby; egress: avail",
    ),
    "install_at_once": (
        "recovery ends: 2.0C still waits to be folded in",
        "ingress: fail; ingress: avail; 1.0A: fail; 1.0A: avail; 1.0A: fail_pair; 1.0A: cu_ready; controller: "
        "cu_ready; controller: cu_start; 1.0A: avail_noted; 1.0A: cu_start; 1.0D: avail_standby; 1.0A: "
        "sm_ready_active; 1.0A: move_active; 1.0A: sm_done; controller: cu_done; ingress: csync_active_first; "
        "1.0D: sm_ready_standby; 1.0D: move_standby; 1.0D: sm_done; controller: cu_done; ingress: "
        "csync_standby_second; 2.0A: fail_pair; 2.0A: avail_noted; 2.0A: fail; 2.0A: avail; 2.0A: "
        "psync_primary_first; 2.0A: psync_secondary_second; 2.0A: cu_ready; controller: cu_ready; controller: "
        "cu_start; 2.0A: cu_start; 1.0A: pause; 2.0A: pause_ack; 2.0A: all_paused; 2.0C: avail_standby; 2.0A: "
        "sm_ready_active; 2.0A: move_active; 2.0A: sm_done; controller: cu_done; 1.0A: csync_active_first; 1.0D: "
        "csync_active_first; 2.0C: fail; 2.0C: sm_ready_standby; 2.0C: move_standby; 2.0C: sm_done; controller: "
        "cu_done; 1.0A: csync_standby_second; 1.0A: reverse; 2.0C: avail; egress: fail; egress: avail; egress: "
        "psync_active_first; egress: psync_standby_second",
    ),
    "recv_kept": (
        "recovery ends: 1.0D still waits to be folded in",
        "ingress: fail; ingress: avail; 1.0B: fail_pair; 1.0B: avail_noted; 2.0A: fail_reverse; 1.0B: reverse; "
        "1.0B: cu_ready; controller: cu_ready; controller: cu_start; 1.0B: cu_start; 2.0A: avail; 2.0B: fail; "
        "2.0B: avail; 1.0C: crash; ingress: fail; 1.0B: fail_pair; 1.0B: give_up; 1.0B: sm_done; controller: "
        "cu_done; ingress: csync_active_alone; 2.0A: fail; 2.0A: psync_secondary_alone; 2.0B: fail; 2.0B: "
        "psync_primary_alone; 1.0D: standby; ingress: avail; 1.0B: avail_noted; 1.0D: avail_standby; 2.0A: avail; "
        "2.0B: avail",
    ),
    "reverse_at_once": (
        "buffers drain: 1.0A keeps [(1, 0)] for ever",
        "ingress: send; ingress: fail; 1.0A: fail_pair; 1.0A: receive; ingress: ack; 2.0A: fail; 2.0A: "
        "sm_ready_active; 2.0A: move_active; 2.0A: sm_done; controller: cu_done; 2.0C: sm_ready_standby; 2.0C: "
        "move_standby; 2.0C: sm_done; controller: cu_done; 1.0A: csync_standby_first; 1.0A: reverse; 1.0A: "
        "csync_active_second; 1.0A: cu_ready; controller: cu_ready; 1.0A: send_and_mark; 2.0A: receive; 2.0A: "
        "send_and_mark; egress: psync_active_first; egress: psync_standby_second; egress: receive; 2.0C: ack",
    ),
    "dangling": (
        "buffers drain: 1.0B keeps [(1, 0)] for ever",
        "ingress: send; ingress: send; 1.0A: receive; ingress: ack; 1.0A: send_and_mark; egress: receive; 1.0B: "
        "ack; 1.0B: receive; ingress: ack",
    ),
    "ack_all": (
        "buffers drain: 0.0A keeps [(1,)] for ever",
        "ingress: send; 1.0A: receive; ingress: ack; 1.0A: send_and_mark; egress: receive; 1.0B: crash; ingress: "
        "fail; 1.0A: fail_pair; egress: fail",
    ),
    "reversal": (
        "buffers drain: 1.0B keeps [(1, 0)] for ever",
        "ingress: send; 1.0B: receive; ingress: ack; 1.0A: crash; ingress: fail; 1.0B: fail_pair; egress: fail_reverse",
    ),
    "both_csync": (
        "dup-free: partition 0 of stage 1 gets tuple (1,) again",
        "ingress: send; 1.0A: receive; 1.0B: crash; ingress: fail; 1.0A: fail_pair; 1.0C: standby; ingress: "
        "avail; 1.0A: avail_active; 1.0C: avail_standby; 1.0A: sm_ready_active; 1.0A: move_active; 1.0C: "
        "sm_ready_standby; 1.0C: move_standby; 1.0C: sm_done; ingress: csync_standby_first; ingress: send",
    ),
    "csync_del": (
        "no deadlock: 1.0C has consumed 0 of 1 tuples",
        "ingress: send; 1.0B: crash; ingress: fail; 1.0A: fail_pair; egress: fail; 1.0C: standby; ingress: avail; "
        "1.0A: avail_active; 1.0C: avail_standby; 1.0A: sm_ready_active; 1.0A: move_active; 1.0A: sm_done; "
        "ingress: csync_active_first; 1.0A: receive; ingress: ack; 1.0A: send_and_mark; 1.0C: sm_ready_standby; "
        "1.0C: move_standby; 1.0C: sm_done; ingress: csync_standby_second; egress: avail; egress: "
        "psync_active_first; egress: psync_standby_second; egress: receive; 1.0C: ack",
    ),
    "psync_pause": (
        "buffers drain: 1.0C keeps [(1, 0)] for ever",
        "ingress: send; 1.0A: receive; ingress: ack; 1.0B: crash; ingress: fail; 1.0A: fail_pair; egress: fail; "
        "1.0C: standby; ingress: avail; 1.0A: avail_active; 1.0C: avail_standby; 1.0A: sm_ready_active; 1.0A: "
        "move_active; 1.0A: sm_done; ingress: csync_active_first; 1.0A: send_and_mark; 1.0C: sm_ready_standby; "
        "1.0C: move_standby; 1.0C: sm_done; ingress: csync_standby_second; egress: avail; egress: "
        "psync_active_first; egress: receive; egress: psync_standby_second",
    ),
    "both_psync": (
        "buffers drain: 1.0C keeps [(1, 0)] for ever",
        "ingress: send; 1.0A: receive; ingress: ack; 1.0A: send_and_mark; 1.0B: crash; ingress: fail; 1.0A: "
        "fail_pair; egress: fail; 1.0C: standby; ingress: avail; 1.0A: avail_active; 1.0C: avail_standby; 1.0A: "
        "sm_ready_active; 1.0A: move_active; 1.0A: sm_done; ingress: csync_active_first; 1.0C: sm_ready_standby; "
        "1.0C: move_standby; 1.0C: sm_done; ingress: csync_standby_second; egress: avail; egress: "
        "psync_standby_first; egress: receive; 1.0C: ack; egress: psync_active_second",
    ),
    "pause": (
        "buffers drain: 1.0A keeps [(1, 0)] for ever",
        "ingress: send; ingress: send; 1.0A: fail; 1.0A: avail; 1.0A: receive; ingress: ack; 1.0A: send_and_mark; "
        "1.0B: fail; 1.0B: avail; 1.0B: receive; ingress: ack; 2.0A: fail_pair; 2.0A: cu_ready; controller: "
        "cu_ready; controller: cu_start; 2.0A: avail_noted; 2.0A: cu_start; 2.0A: all_paused; 2.0C: "
        "avail_standby; 2.0A: sm_ready_active; 2.0A: move_active; 2.0A: sm_done; controller: cu_done; 1.0A: "
        "csync_active_first; 1.0B: csync_active_first; 2.0A: receive; 1.0B: ack; 2.0A: send_and_mark; 2.0C: "
        "sm_ready_standby; 2.0C: move_standby; 2.0C: sm_done; controller: cu_done; 1.0A: csync_standby_second; "
        "1.0B: csync_standby_second; 1.0B: send_and_mark; 2.0C: receive; 1.0A: ack; egress: fail; egress: avail; "
        "egress: psync_active_first; egress: psync_standby_second; egress: receive; 2.0C: ack",
    ),
    "postponing": (
        "recovery ends: 1.0D still waits to be folded in",
        "1.0B: fail; 1.0B: avail; 2.0A: fail_pair; 2.0A: cu_ready; controller: cu_ready; controller: cu_start; "
        "2.0A: avail_noted; 2.0A: cu_start; 2.0C: avail_standby; egress: fail; egress: avail; 1.0A: crash; "
        "ingress: fail; 1.0B: fail_pair; 2.0A: fail_reverse; 1.0B: reverse; 1.0B: cu_ready; controller: cu_ready; "
        "2.0A: all_paused; 2.0A: sm_ready_active; 2.0A: move_active; 2.0A: sm_done; controller: cu_done; 2.0C: "
        "fail; 2.0C: sm_ready_standby; 2.0C: move_standby; 2.0C: sm_done; controller: cu_done; egress: "
        "psync_active_first; egress: psync_standby_second; 1.0D: standby; controller: cu_start; ingress: avail; "
        "1.0B: avail_noted; 1.0B: cu_start; 1.0B: csync_active_first; 1.0D: avail_standby; 1.0B: sm_ready_active; "
        "1.0B: move_active; 1.0B: sm_done; controller: cu_done; ingress: csync_active_first; 1.0B: "
        "csync_standby_second; 1.0D: sm_ready_standby; 1.0D: move_standby; 1.0D: sm_done; controller: cu_done; "
        "ingress: csync_standby_second; 2.0A: avail; 2.0A: psync_secondary_first; 2.0A: psync_primary_second; "
        "2.0C: avail",
    ),
    "swap": (
        "dup-free: partition 0 of stage 2 gets tuple (1, 0) again",
        "ingress: send; 1.0B: fail_pair; 1.0B: avail_noted; 1.0B: receive; 1.0C: avail_standby; 2.0A: "
        "fail_reverse; 1.0B: reverse; 1.0B: cu_ready; controller: cu_ready; controller: cu_start; 1.0B: "
        "send_and_mark; 1.0B: cu_start; 1.0B: sm_ready_active; 1.0B: move_active; 1.0B: sm_done; 1.0C: "
        "sm_ready_standby; 1.0C: move_standby; 1.0C: sm_done; 1.0C: send_and_mark; 2.0A: avail; 2.0A: receive; "
        "2.0A: psync_secondary_first; 2.0A: psync_primary_second",
    ),
    "received_is_processed": (
        "consistent state: tuple (1, 0) of partition 0 is given to instance 0, which does not have its state",
        "controller: begin_round; prod 0: insert; prod 0: forward; cons 0: collect; cons 0: return_stats; "
        "controller: stats; cons 0: receive; cons 1: collect; cons 1: return_stats; controller: stats; "
        "controller: order_moves; cons 0: move_origin; prod 0: pause; cons 0: pause_ack; cons 0: extract",
    ),
    "all_processed": (
        "no deadlock: partition 0 has processed 0 of 2 tuples",
        "controller: begin_round; prod 0: insert; prod 0: insert; prod 0: forward; prod 0: insert; prod 0: "
        "forward; prod 1: insert; prod 1: insert; cons 0: collect; cons 0: return_stats; controller: stats; cons "
        "0: receive; cons 1: collect; cons 1: return_stats; controller: stats; controller: order_moves; cons 0: "
        "move_origin; prod 0: pause; prod 1: pause; cons 0: pause_ack; cons 0: pause_ack; cons 1: "
        "move_destination; cons 1: receive",
    ),
    "quiescing": (
        "consistent state: tuple (1, 0) of partition 0 is given to instance 0, which does not have its state",
        "controller: begin_round; prod 0: insert; prod 0: forward; cons 0: collect; cons 0: return_stats; "
        "controller: stats; cons 1: collect; cons 1: return_stats; controller: stats; controller: order_moves; "
        "cons 0: move_origin; cons 0: extract; cons 0: receive",
    ),
    "ordered_delivery": (
        "consistent state: tuple (1, 0) of partition 0 is given to instance 0, which does not have its state",
        "controller: begin_round; prod 0: insert; prod 0: forward; cons 0: collect; cons 0: return_stats; "
        "controller: stats; cons 1: collect; cons 1: return_stats; controller: stats; controller: order_moves; "
        "cons 0: move_origin; prod 0: pause; cons 0: pause_ack; cons 0: extract; cons 0: receive",
    ),
    "whole_rounds": (
        "consistent state: instance 1 is to move partition 0 without having it",
        "controller: begin_round; cons 0: collect; cons 0: return_stats; controller: stats; cons 1: collect; cons "
        "1: return_stats; controller: stats; controller: order_moves; controller: begin_round; cons 0: "
        "move_origin; cons 0: collect; cons 0: return_stats; controller: stats; cons 1: move_destination; cons 1: "
        "collect; cons 1: return_stats; controller: stats; controller: order_moves; cons 1: move_origin; prod 0: "
        "pause; cons 1: pause_ack",
    ),
    "buffer_in_connections": (
        "no deadlock: partition 1 has processed 0 of 1 tuples",
        "controller: begin_round; cons 0: collect; cons 0: return_stats; controller: stats; cons 1: collect; cons "
        "1: return_stats; controller: stats; controller: order_moves; cons 0: move_origin; prod 0: pause; cons 0: "
        "pause_ack; cons 0: extract; cons 1: move_destination",
    ),
}


def steps(variant: str) -> list[str]:
    """Return the steps of a story, each "node: action"."""
    return STORIES[variant][1].split("; ")
