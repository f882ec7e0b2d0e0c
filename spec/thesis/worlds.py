"""The small worlds that are explored to the end, and those in which a variant fails."""

from __future__ import annotations

from dataclasses import replace

from .fl_scenario import AnyScenario, LbScenario
from .fl_words import PartitionMove
from .scenario import Scenario
from .variants import LITERAL, WITHOUT
from .words import Copy

_CONSUMER_DIES = ("2.0B: crash", "2.0C: standby")
_PRODUCER_DIES = ("1.0A: crash", "1.0C: standby")
_SECONDARY_DIES = ("1.0B: crash", "1.0C: standby")
_STANDBY = frozenset({Copy(1, 0, 2)})
# The active has moved its state and resumed when the standby dies, and the next standby is available at once.
_STANDBY_OF_PRODUCER_DIES = (
    *_PRODUCER_DIES,
    *("2.0A: fail_reverse", "2.0B: fail", "1.0B: fail_pair", "1.0B: reverse", "1.0B: cu_ready"),
    *("controller: cu_ready", "controller: cu_start", "1.0B: avail_noted", "1.0B: cu_start", "1.0C: avail_standby"),
    *("1.0B: sm_ready_active", "1.0B: move_active", "1.0B: sm_done", "1.0C: crash", "1.0D: standby"),
)
_STANDBY_OF_CONSUMER_DIES = (
    *_CONSUMER_DIES,
    *("1.0A: fail", "1.0B: fail", "2.0A: fail_pair", "2.0A: cu_ready", "controller: cu_ready", "controller: cu_start"),
    *("2.0A: avail_noted", "2.0A: cu_start", "1.0A: avail", "1.0A: pause", "2.0A: pause_ack", "2.0A: all_paused"),
    *("2.0C: avail_standby", "2.0A: sm_ready_active", "2.0A: move_active", "2.0A: sm_done"),
    *("2.0C: crash", "2.0D: standby"),
)
_PAIRS = Scenario(values=(5,), partitions=(1, 1), fused=True)
_FLOW = Scenario(values=(5,), fused=True)

# Explored by the tests: seconds.
SMALL: dict[str, Scenario] = {
    "dataflow, one tuple, one crash and catch-up": Scenario(values=(5,)),
    "dataflow, two tuples, tight buffers, one crash and catch-up": replace(_FLOW, values=(5, 7), capacity=1),
    "dataflow, no tuple, two crashes": replace(_FLOW, values=(), crashes=2, standbys=2),
    "dataflow, the standby dies once": replace(
        _FLOW, crashes=2, standbys=2, prelude=_SECONDARY_DIES, victims=_STANDBY, values=()
    ),
    "partitions, one tuple, one crash": replace(_PAIRS, standbys=0),
    "partitions, no tuple, one crash and catch-up": replace(_PAIRS, values=()),
    "partitions, the standby of a producer dies": replace(
        _PAIRS, values=(), crashes=2, prelude=_PRODUCER_DIES, victims=_STANDBY
    ),
    "partitions, the standby of a consumer dies": replace(
        _PAIRS, values=(), crashes=2, prelude=_CONSUMER_DIES, victims=frozenset({Copy(2, 0, 2)})
    ),
    "partitions, the standby of a producer dies and another appears": replace(
        _PAIRS, values=(), crashes=2, standbys=2, prelude=_STANDBY_OF_PRODUCER_DIES
    ),
    "partitions, the standby of a consumer dies and another appears": replace(
        _PAIRS, values=(), crashes=2, standbys=2, prelude=_STANDBY_OF_CONSUMER_DIES
    ),
    "partitions, consumer catches up while its producer is dead": replace(
        _PAIRS, values=(), crashes=2, standbys=2, prelude=(*_CONSUMER_DIES, "1.0B: crash", "1.0D: standby")
    ),
}

_AWAY, _BACK, _ON = PartitionMove(0, 0, 1), PartitionMove(0, 1, 0), PartitionMove(0, 1, 2)
_CROSSING = PartitionMove(1, 1, 0)
# The values are chosen so that the partition that moves gets input before, during and after the move.
_BALANCED = LbScenario(values=(1, 1, 1), rounds=((_AWAY,),), fused=True)
_TWO_PRODUCERS = replace(_BALANCED, values=(1, 2, 5), producers=2)

# Worlds of chapters 4 and 5 that are explored by the tests: seconds.
MOVES: dict[str, AnyScenario] = {
    "Flux-LB, a move": replace(_BALANCED, fused=False),
    "Flux-LB, a move, buffers of one tuple": replace(_BALANCED, values=(1, 1, 1, 1), capacity=1),
    "Flux-LB, a move and back": replace(_BALANCED, rounds=((_AWAY,), (_BACK,))),
    "Flux-LB, two instances exchange partitions": replace(_BALANCED, rounds=((_AWAY, _CROSSING),)),
    "Flux-LB, a move and another to a third instance": replace(
        _BALANCED, instances=3, partitions=3, rounds=((_AWAY,), (_ON,))
    ),
    "Flux-LB, two producers, a move and back": replace(_TWO_PRODUCERS, rounds=((_AWAY,), (_BACK,))),
    "Flux-LB, two producers, a move, merge in order": replace(_TWO_PRODUCERS, values=(1, 2), ordered=True),
    "Flux-LB, a transfer of state that does not end": replace(_BALANCED, is_stuck=True),
}

# Explored by the command line as well: minutes.
LARGE: dict[str, AnyScenario] = {
    "Flux-LB, two producers, a move and back, merge in order": replace(
        _TWO_PRODUCERS, values=(1, 2, 5), ordered=True, rounds=((_AWAY,), (_BACK,))
    ),
    "dataflow, two tuples, one crash and catch-up": Scenario(values=(5, 7)),
    "dataflow, one tuple, two crashes of any copy or standby": replace(_FLOW, crashes=2, standbys=2),
    "dataflow, no tuple, three crashes": replace(_FLOW, values=(), crashes=3, standbys=3),
    "partitions, one tuple, one crash and catch-up": _PAIRS,
    "partitions, no tuple, two crashes, first a producer": replace(
        _PAIRS, values=(), crashes=2, standbys=2, prelude=_PRODUCER_DIES
    ),
    "partitions, no tuple, two crashes, first a consumer": replace(
        _PAIRS, values=(), crashes=2, standbys=2, prelude=_CONSUMER_DIES
    ),
}

# About three million states and four minutes each.
LARGE |= {
    f"partitions, two tuples, {victim} crashes, and catch-up": replace(
        _PAIRS, values=(5, 7), capacity=1, victims=frozenset({victim})
    )
    for victim in (Copy(1, 0, 0), Copy(1, 0, 1), Copy(2, 0, 0), Copy(2, 0, 1))
}

_AFTER_PAUSE = (
    *_CONSUMER_DIES,
    *("egress: fail", "egress: avail", "1.0A: fail", "1.0A: avail", "1.0B: fail", "1.0B: avail"),
    *("2.0A: fail_pair", "2.0A: cu_ready", "controller: cu_ready", "controller: cu_start", "2.0A: avail_noted"),
    *("2.0C: avail_standby", "2.0A: cu_start", "1.0A: pause", "2.0A: pause_ack", "2.0A: all_paused"),
    *("1.0B: crash", "2.0C: fail"),
)

_WRONG: dict[str, AnyScenario] = {
    "received_is_processed": _BALANCED,
    "all_processed": replace(_TWO_PRODUCERS, values=(1, 2), ordered=True),
    "quiescing": _BALANCED,
    "ordered_delivery": _BALANCED,
    "whole_rounds": replace(_BALANCED, values=(1,), rounds=((_AWAY,), (_BACK,))),
    "buffer_in_connections": replace(_BALANCED, is_stuck=True),
    "r_done_only": _FLOW,
    "one_reset": replace(_PAIRS, standbys=0),
    "put_guard": replace(_FLOW, values=(5, 7), capacity=1, crashes=0, standbys=0),
    "sync_at_once": _FLOW,
    "version_kept": replace(_FLOW, crashes=2, standbys=2, prelude=_SECONDARY_DIES, victims=_STANDBY),
    "del_of_the_dead": replace(_FLOW, crashes=2, prelude=_SECONDARY_DIES, victims=_STANDBY),
    "abort_forgets": replace(_FLOW, values=(), crashes=2, standbys=2, prelude=_SECONDARY_DIES, victims=_STANDBY),
    "cu_done_of_active": replace(
        _PAIRS, values=(), crashes=2, standbys=2, prelude=_CONSUMER_DIES, victims=frozenset({Copy(2, 0, 0)})
    ),
    "install_at_once": replace(
        _PAIRS, values=(), crashes=2, standbys=2, prelude=(*_CONSUMER_DIES, "1.0B: crash", "1.0D: standby")
    ),
    "recv_kept": replace(_PAIRS, values=(), crashes=2, standbys=2, prelude=_PRODUCER_DIES, victims=_STANDBY),
    "reverse_at_once": replace(_PAIRS, crashes=2, prelude=_AFTER_PAUSE),
    "dangling": replace(_FLOW, standbys=0),
    "ack_all": replace(_FLOW, standbys=0),
    "reversal": replace(_FLOW, standbys=0),
    "both_csync": _FLOW,
    "csync_del": _FLOW,
    "psync_pause": _FLOW,
    "both_psync": _FLOW,
    "pause": replace(_PAIRS, prelude=_CONSUMER_DIES),
    "postponing": replace(
        _PAIRS, values=(), crashes=2, standbys=2, prelude=_CONSUMER_DIES, victims=frozenset({Copy(1, 0, 0)})
    ),
    "swap": replace(_PAIRS, prelude=_PRODUCER_DIES),
}


def wrong(variant: str) -> AnyScenario:
    """Return a world in which `variant` fails, and which is right without it."""
    assert variant in LITERAL or variant in WITHOUT
    return replace(_WRONG[variant], variant=frozenset({variant}))


def right(variant: str) -> AnyScenario:
    """Return the same world without the variant."""
    return replace(_WRONG[variant])


VARIANTS = tuple(_WRONG)
