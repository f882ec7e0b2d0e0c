"""The messages of Flux-LB. Thesis 4.4.2 names them in prose: move, pause, its acknowledgment, restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from .words import Copy, Message, Sn


class PartitionMove(NamedTuple):
    """An order of the controller: `partition` moves from one instance of the operator to another."""

    partition: int
    origin: int
    destination: int


class MiniState(NamedTuple):
    """The state of a mini-partition: how many tuples of each producer it has processed, and a digest of them."""

    taken: tuple[int, ...]
    digest: int = 1


class Unprocessed(NamedTuple):
    """A tuple that an FL-Cons has received and its operator has not processed."""

    partition: int
    producer: int
    sn: Sn
    value: int


@dataclass(frozen=True, slots=True)
class PartitionTuple(Message):
    kind: ClassVar[str] = "data"
    partition: int
    sn: Sn
    value: int


@dataclass(frozen=True, slots=True)
class MoveOrder(Message):
    """From the controller, to the originating and to the destination FL-Cons."""

    kind: ClassVar[str] = "move"
    move: PartitionMove


@dataclass(frozen=True, slots=True)
class PausePartition(Message):
    """From the originating FL-Cons to every FL-Prod."""

    kind: ClassVar[str] = "pause"
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionPaused(Message):
    """The acknowledgment, on the connection that carries the tuples."""

    kind: ClassVar[str] = "pause-ack"
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionState(Message):
    """The result of getPartitionState(), and the input that was not merged, between two StateMovers."""

    kind: ClassVar[str] = "state"
    partition: int
    state: MiniState
    pending: tuple[tuple[Unprocessed, ...], ...]


@dataclass(frozen=True, slots=True)
class RestartPartition(Message):
    """From the destination FL-Cons to every FL-Prod and to the controller."""

    kind: ClassVar[str] = "restart"
    partition: int


@dataclass(frozen=True, slots=True)
class CollectStats(Message):
    kind: ClassVar[str] = "collect"


@dataclass(frozen=True, slots=True)
class StatsReturned(Message):
    """The statistics of an instance. Their contents are left out: here a script decides instead of the policy."""

    kind: ClassVar[str] = "stats"


def fl_prod(i: int) -> Copy:
    return Copy(1, i, 0)


def fl_cons(k: int) -> Copy:
    return Copy(2, k, 0)
