"""The controller of Flux-LB: rounds of a collection and a partition-movement phase. Thesis 4.4.2, 4.4.3.

When every FL-Cons has returned its statistics, the policy gives moves; here the scenario has them. Each is sent to the
originating and to the destination FL-Cons. A round ends when the restart message of each of its moves has arrived.
"""

from __future__ import annotations

from .fl_scenario import LbScenario
from .fl_words import CollectStats, MoveOrder, RestartPartition, StatsReturned, fl_cons
from .words import CONTROLLER, At, Copy, Message, ProcessModel, Row


class LbController(ProcessModel):
    """The controller; it needs no replica, because Flux-LB is not concerned with failures (4.4.1)."""

    ROLE = "fl_controller"
    scenario: LbScenario

    def __init__(self, scenario: LbScenario) -> None:
        super().__init__(scenario, CONTROLLER)
        self.round = 0
        self.phase = ""  # "", "collecting", "moving"
        self.waiting: frozenset[int] = frozenset()  # Instances in the first phase, partitions in the second.

    def action_of(self, sender: Copy, message: Message) -> tuple[str, At] | None:
        return message.kind, (sender.partition, "")


def is_between_rounds(n: LbController, at: At, m: None) -> bool:
    return n.phase == "" and n.round < len(n.scenario.rounds)


def begin_round(n: LbController, at: At, m: None) -> None:
    """Send a message to all FL-Cons instances to begin collecting statistics."""
    n.phase = "collecting"
    n.waiting = frozenset(range(n.scenario.instances))
    for k in n.waiting:
        n.send(fl_cons(k), CollectStats())


def note_stats(n: LbController, at: At, m: StatsReturned) -> None:
    n.waiting -= {at[0]}


def has_all_stats(n: LbController, at: At, m: None) -> bool:
    return n.phase == "collecting" and not n.waiting


def order_moves(n: LbController, at: At, m: None) -> None:
    """Send the moves to both the originating and the destination FL-Cons instances."""
    moves = n.scenario.rounds[n.round]
    for move in moves:
        n.send(fl_cons(move.origin), MoveOrder(move))
        n.send(fl_cons(move.destination), MoveOrder(move))
    n.phase = "moving"
    n.waiting = frozenset(move.partition for move in moves)
    if n.has("whole_rounds"):
        n.waiting = frozenset()


def note_restart(n: LbController, at: At, m: RestartPartition) -> None:
    if n.phase == "moving":
        n.waiting -= {m.partition}


def all_moves_are_done(n: LbController, at: At, m: None) -> bool:
    return n.phase == "moving" and not n.waiting


def end_round(n: LbController, at: At, m: None) -> None:
    n.phase = ""
    n.round += 1


def always(n: LbController, at: At, m: object) -> bool:
    return True


ROWS = (
    Row("begin_round", "", is_between_rounds, begin_round, "4.4.3, collection phase"),
    Row("stats", "stats", always, note_stats, "4.4.2, statistics"),
    Row("order_moves", "", has_all_stats, order_moves, "4.4.2, moves"),
    Row("restart", "restart", always, note_restart, "4.4.2, restart"),
    Row("end_round", "", all_moves_are_done, end_round, "4.4.3, partition-movement phase", quiet=True),
)
