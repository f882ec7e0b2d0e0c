"""The processes of a model: the ingress, a segment, the egress; and the state variables of their connections.

A segment is the unit of recovery (Thesis 3.2.3.1): S-Cons or FH-Cons, the operator, a passive queue, and S-Prod or
FH-Prod. The state variables have the thesis's names. Each operator has one set of them per partition pair at the
other end (3.4.1): `Out` on the producing side, `In` on the consuming side, indexed by PRIM and SEC.

The steps of a node are in the tables of `roles`; this file has only its state.
"""

from __future__ import annotations

from typing import Any

from .buffer import Buffer
from .scenario import Operator, Scenario
from .words import (
    ACKING,
    ACTIVE,
    BOTH_WAYS,
    CONTROLLER,
    DEAD,
    NO_VERSION,
    NOTHING,
    NOWHERE,
    PAUSE,
    PAUSED,
    PRIM,
    PROD,
    RECEIVING,
    SEC,
    SENDING,
    STDBY,
    At,
    Avail,
    Copy,
    Fail,
    Message,
    Part,
    ProcessModel,
    Sn,
    Uses,
)


class Channel(Part):
    """The state that both ends keep about a partition pair at the other end."""

    def __init__(self, peers: dict[str, Copy], conn: dict[str, Uses]) -> None:
        self.peer = dict(peers)
        self.status = dict.fromkeys(peers, ACTIVE)
        self.conn = dict(conn)
        self.ver = dict.fromkeys(peers, NO_VERSION)
        self.seen = 0  # Deaths and standbys of that pair that this operator has received.
        self.born = dict.fromkeys(peers, 0)  # The event that made each peer available.

    def dest_of(self, copy: Copy) -> str | None:
        for dest, peer in self.peer.items():
            if peer == copy:
                return dest
        return None


class Out(Channel):
    """The producing side, fig. 3.3: the buffer, and the marks with which an entry is evicted."""

    def __init__(self, peers: dict[str, Copy], conn: dict[str, Uses], capacity: int) -> None:
        super().__init__(peers, conn)
        self.B = Buffer(capacity)
        self.del_ = frozenset((PROD, *peers))
        self.r_done = False


class In(Channel):
    """The consuming side, with the tuples received and acknowledged but not yet merged."""

    def __init__(self, peers: dict[str, Copy], conn: dict[str, Uses]) -> None:
        super().__init__(peers, conn)
        self.pending: list[tuple[Sn, int]] = []


class Node(ProcessModel):
    """A process of Flux-HA and its connections."""

    scenario: Scenario

    def __init__(self, scenario: Scenario, name: Copy, slot: int) -> None:
        super().__init__(scenario, name)
        self.slot = slot
        self.ins: list[In] = []
        self.outs: list[Out] = []

    def dest(self, slot: int) -> str:
        """Return PRIM for a copy in the same dataflow, SEC for one in the dual dataflow (3.4)."""
        return PRIM if slot == self.slot else SEC

    def channel(self, copy: Copy) -> Channel | None:
        """Return the channel to the pair of `copy`, or None for this node's own pair and the controller."""
        if copy.stage == self.name.stage - 1:
            return self.ins[copy.partition]
        if copy.stage == self.name.stage + 1:
            return self.outs[copy.partition]
        return None

    def action_of(self, sender: Copy, message: Message) -> tuple[str, At] | None:
        """Return the external action of `message`, and its place; None if the connection is not set up at this end."""
        if isinstance(message, Fail | Avail):
            return self._action_of_event(message)
        channel = self.channel(sender)
        if channel is None:
            return (message.kind, NOWHERE) if self.is_paired_with(sender) else None
        dest = channel.dest_of(sender)
        return None if dest is None else (message.kind, (sender.partition, dest))

    def is_paired_with(self, sender: Copy) -> bool:
        """Return whether a message of the own pair is from the StateMover this node is connected to."""
        return True

    def _action_of_event(self, message: Fail | Avail) -> tuple[str, At]:
        copy = message.copy
        channel = self.channel(copy)
        if channel is None:
            return f"{message.kind}(pair)", NOWHERE
        if isinstance(message, Avail):
            dest: str | None = self.dest(message.slot)
        else:
            dest = channel.dest_of(copy)
        assert dest is not None, f"{self.name} got {message} but has no connection to {copy}"
        side = "producer" if copy.stage < self.name.stage else "consumer"
        return f"{message.kind}({side})", (copy.partition, dest)

    def folded_copies(self) -> frozenset[Copy]:
        """Return the copies at other ends that this node has folded in."""
        found = set()
        for channel in (*self.ins, *self.outs):
            for dest, peer in channel.peer.items():
                if channel.status[dest] == ACTIVE and channel.conn[dest] not in (NOTHING, PAUSED):
                    found.add(peer)
        return frozenset(found)


class Segment(Node):
    """One copy of a partition: consumer, operator, passive queue, producer."""

    def __init__(self, scenario: Scenario, name: Copy, slot: int, my_status: str = ACTIVE) -> None:
        super().__init__(scenario, name, slot)
        stage, conn = name.stage, {PRIM: RECEIVING, SEC: ACKING}
        for i in range(scenario.partitions_of(stage - 1)):
            if stage == 1:
                self.ins.append(In({PRIM: Copy(0, 0, 0)}, {PRIM: frozenset({*RECEIVING, *ACKING})}))
            else:
                self.ins.append(In(peers_of(stage - 1, i, slot), conn))
        for i in range(scenario.partitions_of(stage + 1)):
            if stage == scenario.stages:
                uses = SENDING if slot == 0 else ACKING
                self.outs.append(Out({PRIM: Copy(stage + 1, 0, 0)}, {PRIM: uses}, scenario.capacity))
            else:
                self.outs.append(Out(peers_of(stage + 1, i, slot), {PRIM: SENDING, SEC: ACKING}, scenario.capacity))
        self.cons = Cons(my_status)
        self.operator = Operator(*name.pair)
        self.queue: list[tuple[int, Sn, int]] = []
        self.prod = Prod(my_status)
        if my_status == STDBY:
            for channel in (*self.ins, *self.outs):
                channel.conn = dict.fromkeys(channel.conn, NOTHING)

    def is_stalled(self) -> bool:
        """Return whether it is between initTrans() and endTrans(), where the active has no enabled action (3.2.4.1)."""
        return self.prod.my_status == PAUSE and self.cons.my_status == ACTIVE

    def is_paired_with(self, sender: Copy) -> bool:
        return sender in (CONTROLLER, self.cons.pair)

    def process(self, sn: Sn, value: int) -> None:
        self.queue += self.operator.process(self.scenario, sn, value)


class Cons(Part):
    """The state variables of S-Cons or FH-Cons that do not belong to one connection."""

    def __init__(self, my_status: str) -> None:
        self.my_status = my_status
        self.my_ver = NO_VERSION
        self.p_fail = False
        self.seen = 0  # Deaths and standbys of this pair.
        self.pair: Copy | None = None  # The copy at the other end of the StateMover, if it is alive.
        self.target: Copy | None = None  # The standby that the last cu-start was for.
        self.phase = ""  # Of a catch-up: "", "pausing", "requested", "moving", "moved".
        self.last_fail = 0  # The number of the last failure message of any kind (3.4.3.2).
        self.reported = 0  # The number in the last cu-ready.


class Prod(Part):
    """The state variables of S-Prod or FH-Prod that do not belong to one connection."""

    def __init__(self, my_status: str) -> None:
        self.my_status = my_status
        self.prev_stat = my_status
        self.p_fail = False


class Ingress(Node):
    """Numbers the input and sends it to both copies of each partition."""

    ROLE = "ingress"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, Copy(0, 0, 0), 0)
        for i in range(scenario.partitions_of(1)):
            conn = {PRIM: BOTH_WAYS, SEC: BOTH_WAYS}
            self.outs.append(Out(peers_of(1, i, 0), conn, scenario.capacity))
        self.taken = 0


class Egress(Node):
    """Receives from one copy of each partition and acknowledges to the other."""

    ROLE = "egress"

    def __init__(self, scenario: Scenario) -> None:
        last = scenario.stages
        super().__init__(scenario, Copy(last + 1, 0, 0), 0)
        for i in range(scenario.partitions_of(last)):
            self.ins.append(In(peers_of(last, i, 0), {PRIM: RECEIVING, SEC: ACKING}))
        self.operator = Operator(last + 1, 0)


def peers_of(stage: int, partition: int, slot: int) -> dict[str, Copy]:
    """Return the first two copies of a pair as primary and secondary of a node in `slot`."""
    return {PRIM: Copy(stage, partition, slot), SEC: Copy(stage, partition, 1 - slot)}


def know(channel: Channel, dest: str, message: Fail | Avail) -> None:
    """Count an event of the pair at the other end, and remember a new peer."""
    channel.seen = message.event
    if isinstance(message, Avail):
        channel.peer[dest] = message.copy
        channel.born[dest] = message.event


def avail(n: Node, at: At, m: Avail) -> None:
    """{status[dest] := STDBY; conn[dest] := {}}, alike in figures 3.6 and 3.7."""
    channel = n.channel(m.copy)
    assert channel is not None
    know(channel, at[1], m)
    channel.status[at[1]] = STDBY
    channel.conn[at[1]] = NOTHING
    if not n.has("version_kept"):
        channel.ver[at[1]] = NO_VERSION


def is_new_failure(n: Node, at: At, m: Fail) -> bool:
    """not(status[dest] = DEAD)"""
    channel = n.channel(m.copy)
    assert channel is not None
    return channel.status[at[1]] != DEAD


def knows_as_much(n: Node, channel: Channel, m: Any) -> bool:
    """The receiver has every event of the pair that the sender of a csync or psync had."""
    return bool(channel.seen >= m.seen or n.has("sync_at_once"))


def merge(ins: list[In]) -> tuple[Sn, int] | None:
    """Take the next tuple in order, once every producer has one (3.3.1)."""
    if not all(channel.pending for channel in ins):
        return None
    head = min(channel.pending[0] for channel in ins)
    for channel in ins:
        if channel.pending[0] == head:
            channel.pending.pop(0)
    return head
