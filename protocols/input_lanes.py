"""What the consumer end of a stage keeps of each lane, and of each cohort of its partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .channels import Blocks, producers_to
from .messages import Ahead, PendingInput, Position

NO_SENDER = ""  # Of a lane whose producers have no copy left: it holds the frontier back.


class LaneIn(NamedTuple):
    """The channels of `edge` that `sender` feeds, and the position up to which they have been received.

    While `stops` are unconfirmed, frames may still carry channels that were taken out; a lane without
    channels only waits for that. `into` is the lane that its sender was asked to merge it into.
    """

    edge: int
    cohort: int
    sender: str
    channels: Blocks
    upto: Position
    stops: int = 0
    into: int = 0


class Cohort(NamedTuple):
    """Partitions at the same position: what they have consumed, and what the operator is at work up to, if it is."""

    partitions: frozenset[int]
    consumed: Position
    working_upto: Position | None = None

    @property
    def idle(self) -> bool:
        return self.working_upto is None


def rows_ahead(
    lanes: Iterable[LaneIn], pending: Iterable[tuple[PendingInput, ...]], partition: int, upto: Position
) -> tuple[Ahead, ...]:
    """How far beyond `upto` the rows of each producer were taken for `partition`: what was received and is not pending.

    Lanes do not record it: they are merged when both have received up to one position, and what was taken of them may
    differ.
    """
    taken: dict[tuple[int, int], Position] = {}
    for lane in lanes:
        taken |= {(lane.edge, producer): lane.upto for producer in producers_to(lane.channels, partition)}
    for frames in pending:
        for frame in reversed(frames):  # The first pending frame of a channel is the one that counts.
            taken |= {(frame.edge, producer): frame.after for producer in producers_to(frame.channels, partition)}
    groups: dict[tuple[int, Position], list[int]] = {}
    for (edge, producer), position in sorted(taken.items()):
        if position > upto:
            groups.setdefault((edge, position), []).append(producer)
    return tuple(
        Ahead(edge=edge, producers=tuple(producers), position=position)
        for (edge, position), producers in groups.items()
    )
