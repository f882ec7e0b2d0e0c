"""FL-Prod: the transient skew buffer, the map from partitions to instances, and its part in a move.

Thesis 4.3 and fig. 4.1: FL-Prod dequeues a tuple if the buffer has space, inserts it by its partition, and forwards
one for a connection that is not blocked. Thesis 4.4.1: the buffer is keyed on the partition, not on the machine, so
that a stalled partition does not block the others. Thesis 4.4.2: pause stalls a partition, restart ends that.
"""

from __future__ import annotations

from collections.abc import Iterable

from .fl_scenario import LbScenario
from .fl_words import PartitionPaused, PartitionTuple, PausePartition, RestartPartition, fl_cons, fl_prod
from .words import At, Copy, Message, ProcessModel, Row, Sn


class FlProd(ProcessModel):
    """One FL-Prod instance, with what its producer operator has left to give."""

    ROLE = "fl_prod"
    scenario: LbScenario

    def __init__(self, scenario: LbScenario, number: int) -> None:
        super().__init__(scenario, fl_prod(number))
        self.taken = 0
        self.buffer: list[tuple[int, Sn, int]] = []  # (partition, sequence number, value), as inserted.
        self.map = {j: scenario.instance_of(j) for j in range(scenario.partitions)}
        self.stalled: frozenset[int] = frozenset()

    def action_of(self, sender: Copy, message: Message) -> tuple[str, At] | None:
        return message.kind, (sender.partition, "")

    @property
    def head(self) -> tuple[int, Sn, int] | None:
        """What dequeue() would return."""
        source = self.scenario.sources[self.name.partition]
        return source[self.taken] if self.taken < len(source) else None

    def held_back(self) -> int:
        """Return how many tuples wait for a partition that is stalled."""
        return sum(partition in self.stalled for partition, _, _ in self.buffer)


def has_space(n: FlProd, at: At, m: None) -> bool:
    """The buffer is one pool for all partitions. Without it, FL-Prod blocks on a stalled partition's tuple (4.4.2)."""
    if n.head is None:
        return False
    if n.has("buffer_in_connections"):
        return not n.buffer and n.head[0] not in n.stalled
    return len(n.buffer) < n.scenario.capacity


def insert(n: FlProd, at: At, m: None) -> None:
    """{t := dequeue(); insert(t, routeFunc(t))}"""
    assert n.head is not None
    n.buffer.append(n.head)
    n.buffer.sort(key=lambda t: t[0])  # By partition: two buffers that differ only in that order behave alike.
    n.taken += 1


def every_partition(n: FlProd) -> Iterable[At]:
    return [(j, "") for j in sorted({partition for partition, _, _ in n.buffer})]


def is_not_stalled(n: FlProd, at: At, m: None) -> bool:
    return at[0] not in n.stalled


def forward(n: FlProd, at: At, m: None) -> None:
    """{t := retrieve(p); send(Map[p], t)}; the world lets it fire only if that connection is not blocked."""
    k = next(k for k, t in enumerate(n.buffer) if t[0] == at[0])
    partition, sn, value = n.buffer.pop(k)
    n.send(fl_cons(n.map[partition]), PartitionTuple(partition, sn, value))


def always(n: FlProd, at: At, m: object) -> bool:
    return True


def stall(n: FlProd, at: At, m: PausePartition) -> None:
    """Mark the partition as stalled; acknowledge at once, after what was sent."""
    n.stalled |= {m.partition}
    n.send(fl_cons(at[0]), PartitionPaused(m.partition))


def restart(n: FlProd, at: At, m: RestartPartition) -> None:
    """Update the map, and resume draining."""
    n.map[m.partition] = at[0]
    n.stalled -= {m.partition}


ROWS = (
    Row("insert", "", has_space, insert, "4.3, fig. 4.1: insert"),
    Row("forward", "", is_not_stalled, forward, "4.3, fig. 4.1: retrieve; 4.4.1", each=every_partition),
    Row("pause", "pause", always, stall, "4.4.2, pause"),
    Row("restart", "restart", always, restart, "4.4.2, restart"),
)
