"""FL-Cons with its operator instance and its StateMover. Thesis 4.4.1, 4.4.2, fig. 4.3 and 4.4.

FL-Cons receives tuples and enqueues them for the operator instance, the *shell* of 4.4.1, which dequeues and processes
them for the right mini-partition. A move is: quiesce the input, extract the state, transfer it, install it, restart the
input. The StateMover is a thread of its own: what it has to send or has received waits for its next step.

Departure: a partition is quiesced when its acknowledgments have arrived *and* its operator has processed all that was
received, because the shell has an input queue (variant "received_is_processed"). In a merge in order, what cannot be
merged before the restart moves with the state (variant "all_processed").
"""

from __future__ import annotations

from collections.abc import Iterable

from .fl_scenario import LbScenario
from .fl_words import (
    CollectStats,
    MiniState,
    MoveOrder,
    PartitionPaused,
    PartitionState,
    PartitionTuple,
    PausePartition,
    RestartPartition,
    StatsReturned,
    Unprocessed,
    fl_cons,
    fl_prod,
)
from .words import CONTROLLER, END, At, Copy, Message, ProcessModel, Row, Violated

Pending = tuple[tuple[Unprocessed, ...], ...]  # By producer.
QUEUE_MAX = 1  # Tuples between FL-Cons and the operator.


class FlCons(ProcessModel):
    """One FL-Cons instance, and the partitions of its operator instance."""

    ROLE = "fl_cons"
    scenario: LbScenario

    def __init__(self, scenario: LbScenario, number: int) -> None:
        super().__init__(scenario, fl_cons(number))
        own = [j for j in range(scenario.partitions) if scenario.instance_of(j) == number]
        self.states: dict[int, MiniState] = dict.fromkeys(own, scenario.first_state)
        self.pending: dict[int, Pending] = dict.fromkeys(own, ((),) * scenario.producers) if scenario.ordered else {}
        self.queue: list[Unprocessed] = []
        self.quiescing: dict[int, frozenset[int]] = {}  # The producers that have acknowledged the pause.
        self.destinations: dict[int, int] = {}
        self.to_send: list[PartitionState] = []  # The StateMover's,
        self.to_receive: frozenset[int] = frozenset()
        self.received: list[PartitionState] = []
        self.is_collecting = False

    def action_of(self, sender: Copy, message: Message) -> tuple[str, At] | None:
        if isinstance(message, MoveOrder):
            side = "origin" if message.move.origin == self.name.partition else "destination"
            return f"move({side})", (message.move.partition, "")
        return message.kind, (sender.partition, "")

    def broadcast(self, message: Message) -> None:
        for i in range(self.scenario.producers):
            self.send(fl_prod(i), message)


def always(n: FlCons, at: At, m: object) -> bool:
    return True


# --- normal operation: 4.4.1 ---------------------------------------------------------------------------------------


def can_receive(n: FlCons, at: At, m: PartitionTuple) -> bool:
    """A merge in order takes in all that arrives, as FH-Cons does while it drains the network (3.4.3.1)."""
    return n.scenario.ordered or len(n.queue) < QUEUE_MAX


def receive(n: FlCons, at: At, m: PartitionTuple) -> None:
    t = Unprocessed(m.partition, at[0], m.sn, m.value)
    if not n.scenario.ordered:
        n.queue.append(t)
        return
    if m.partition not in n.pending:
        raise _not_here(n, t)
    lanes = list(n.pending[m.partition])
    lanes[at[0]] += (t,)
    n.pending[m.partition] = tuple(lanes)


def every_pending(n: FlCons) -> Iterable[At]:
    return [(j, "") for j in n.pending]


def next_is_known(n: FlCons, at: At, m: None) -> bool:
    """There is a tuple from every producer, and not of all of them the end."""
    lanes = n.pending[at[0]]
    return len(n.queue) < QUEUE_MAX and all(lanes) and any(lane[0].value != END for lane in lanes)


def enqueue_next(n: FlCons, at: At, m: None) -> None:
    lanes = list(n.pending[at[0]])
    first = min(range(len(lanes)), key=lambda i: lanes[i][0].sn)
    n.queue.append(lanes[first][0])
    lanes[first] = lanes[first][1:]
    n.pending[at[0]] = tuple(lanes)


def has_input(n: FlCons, at: At, m: None) -> bool:
    return bool(n.queue)


def process(n: FlCons, at: At, m: None) -> None:
    """The shell dequeues an input and processes it for its mini-partition."""
    t = n.queue.pop(0)
    if t.partition not in n.states:
        raise _not_here(n, t)
    n.states[t.partition] = n.scenario.process(n.states[t.partition], t)


def _not_here(n: FlCons, t: Unprocessed) -> Violated:
    return Violated(
        f"consistent state: tuple {t.sn} of partition {t.partition} is given to instance {n.name.partition}, which "
        "does not have its state"
    )


# --- quiescing: 4.4.2 ------------------------------------------------------------------------------------------------


def pause_producers(n: FlCons, at: At, m: MoveOrder) -> None:
    """Broadcast a pause request on the partition to all FL-Prod instances, and go on."""
    n.quiescing[at[0]] = frozenset()
    n.destinations[at[0]] = m.move.destination
    n.broadcast(PausePartition(at[0]))


def queue_receive_request(n: FlCons, at: At, m: MoveOrder) -> None:
    n.to_receive |= {at[0]}


def note_pause(n: FlCons, at: At, m: PartitionPaused) -> None:
    if m.partition in n.quiescing:  # It has not been extracted without waiting (variant "quiescing").
        n.quiescing[m.partition] |= {at[0]}


def every_quiescing(n: FlCons) -> Iterable[At]:
    return [(j, "") for j in n.quiescing]


def is_quiesced(n: FlCons, at: At, m: None) -> bool:
    """All acknowledgments have arrived; all in-flight tuples have been received and processed."""
    if len(n.quiescing[at[0]]) < n.scenario.producers and not n.has("quiescing"):
        return False
    if n.has("all_processed") and any(n.pending.get(at[0], ())):
        return False
    return n.has("received_is_processed") or all(t.partition != at[0] for t in n.queue)


# --- state movement: 4.4.2, fig. 4.3, 4.4 ----------------------------------------------------------------------------


def extract(n: FlCons, at: At, m: None) -> None:
    """{getPartitionState(p)}: marshal and remove; pass the result to the StateMover."""
    partition = at[0]
    if partition not in n.states:
        raise Violated(
            f"consistent state: instance {n.name.partition} is to move partition {partition} without having it"
        )
    n.to_send.append(PartitionState(partition, n.states.pop(partition), n.pending.pop(partition, ())))
    del n.quiescing[partition]


def has_state_to_send(n: FlCons, at: At, m: None) -> bool:
    return bool(n.to_send) and not n.scenario.is_stuck


def send_state(n: FlCons, at: At, m: None) -> None:
    message = n.to_send.pop(0)
    n.send(fl_cons(n.destinations.pop(message.partition)), message)


def has_receive_request(n: FlCons, at: At, m: PartitionState) -> bool:
    """The StateMovers meet: a state waits until the receive request is queued."""
    return m.partition in n.to_receive


def notify(n: FlCons, at: At, m: PartitionState) -> None:
    """The StateMover has the whole state, and notifies its FL-Cons."""
    n.to_receive -= {m.partition}
    n.received.append(m)


def is_notified(n: FlCons, at: At, m: None) -> bool:
    return bool(n.received)


def install(n: FlCons, at: At, m: None) -> None:
    """{installPartitionState(p, st)}; send restart to all FL-Prod instances and the controller."""
    message = n.received.pop(0)
    n.states = dict(sorted({**n.states, message.partition: message.state}.items()))
    if n.scenario.ordered:
        n.pending = dict(sorted({**n.pending, message.partition: message.pending}.items()))
    n.broadcast(RestartPartition(message.partition))
    n.send(CONTROLLER, RestartPartition(message.partition))


# --- statistics: 4.4.3 -----------------------------------------------------------------------------------------------


def collect(n: FlCons, at: At, m: CollectStats) -> None:
    n.is_collecting = True


def is_collecting(n: FlCons, at: At, m: None) -> bool:
    return n.is_collecting


def return_stats(n: FlCons, at: At, m: None) -> None:
    """The duration of the collection phase has passed."""
    n.is_collecting = False
    n.send(CONTROLLER, StatsReturned())


ROWS = (
    Row("receive", "data", can_receive, receive, "4.4.1"),
    Row("merge", "", next_is_known, enqueue_next, "3.3.1, order-preserving merge", each=every_pending),
    Row("process", "", has_input, process, "4.4.1, the shell"),
    Row("move_origin", "move(origin)", always, pause_producers, "4.4.2, the originating FL-Cons"),
    Row("move_destination", "move(destination)", always, queue_receive_request, "4.4.2, the destination FL-Cons"),
    Row("pause_ack", "pause-ack", always, note_pause, "4.4.2, acknowledgment"),
    Row("extract", "", is_quiesced, extract, "4.4.2, fig. 4.3: getPartitionState", each=every_quiescing),
    Row("send_state", "", has_state_to_send, send_state, "4.4.1, fig. 4.4: StateMover"),
    Row("state", "state", has_receive_request, notify, "4.4.2, fig. 4.4: StateMover"),
    Row("install", "", is_notified, install, "4.4.2, fig. 4.3: installPartitionState"),
    Row("collect", "collect", always, collect, "4.4.3, collection phase"),
    Row("return_stats", "", is_collecting, return_stats, "4.4.3, collection phase"),
)
