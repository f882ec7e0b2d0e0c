"""FH-Prod: the producer end of an exchange on one site, for all its partitions (thesis 3.4.1, 3.4.2).

It keeps what the site's copies have produced until every consumer site has acknowledged it, and feeds
*lanes*. A lane is a set of channels to one consumer site that move together, opened by that site's
`attach` at an exact position; its cursor is what was sent. The consumer numbers its attaches; the
number, the *stint*, names the lane. S-Prod is this machine with the egress as its only consumer.

Departure: no channel is a lane of its own, and no frame lists exceptions. Channels whose sender
changes get a new lane at their own position, because then every lane has one position and a step
costs the same whatever the number of partitions.
Departure: `joined` is not a message. Every frame carries its stint and the position it starts at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .buffer import Buffer
from .machine import Machine, Rule, always
from .messages import Ack, Attach, Block, Consumed, Data, Effect, Position, Run, Send, View


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOut:
    """What one consumer site is fed, and how far that has gone."""

    consumer: str
    stint: int
    channels: tuple[Block, ...]
    cursor: Position


class FhProd(Machine):
    """Producer of `edge` on node `name`; edge e runs from stage e to stage e + 1."""

    def __init__(self, name: str, edge: int, bound_rows: int) -> None:
        self.name = name
        self.edge = edge
        self.view = 0
        self.buffer = Buffer(bound_rows)
        self.lanes: dict[tuple[str, int], LaneOut] = {}

    @property
    def title(self) -> str:
        return f"FH-Prod of edge {self.edge} on {self.name}"

    # Guards.

    def follows_what_was_produced(self, message: Consumed) -> bool:
        return message.upto > self.buffer.produced

    def is_from_a_consumer_and_not_older(self, message: Ack) -> bool:
        floor = self.buffer.floors.get(message.sender)
        return floor is not None and message.position >= floor

    def is_kept_and_lane_is_new(self, message: Attach) -> bool:
        lane_is_new = (message.sender, message.stint) not in self.lanes
        return lane_is_new and message.sender in self.buffer.floors and message.position >= self.buffer.dropped

    # Actions.

    def put_and_feed(self, message: Consumed) -> Iterator[Effect]:
        run = Run(after=self.buffer.produced, upto=message.upto, rows=message.rows, body=message.body)
        self.buffer.put(run)
        for key in list(self.lanes):
            yield from self._feed(key, (run,))

    def release(self, message: Ack) -> Iterator[Effect]:
        self.buffer.ack(message.sender, message.position)
        yield from ()

    def open_lane(self, message: Attach) -> Iterator[Effect]:
        key = (message.sender, message.stint)
        self.lanes[key] = LaneOut(
            consumer=message.sender, stint=message.stint, channels=message.channels, cursor=message.position
        )
        yield from self._feed(key, tuple(self.buffer.behind(message.position)))

    def adopt(self, view: View) -> Iterator[Effect]:
        self.view = view.number
        consumers = view.holders(self.edge + 1)
        for consumer in [dest for dest in self.buffer.floors if dest not in consumers]:
            self.buffer.ack_all(consumer)
        for key in [key for key in self.lanes if key[0] not in consumers]:
            del self.lanes[key]
        for consumer in consumers:
            self.buffer.entitle(consumer)
        yield from ()

    def _feed(self, key: tuple[str, int], runs: tuple[Run, ...]) -> Iterator[Effect]:
        lane = self.lanes[key]
        for run in runs:
            if run.upto <= lane.cursor:
                continue  # The consumer has these from the copy that fed it before (rule 14).
            data = Data(
                sender=self.name,
                view=self.view,
                edge=self.edge,
                stint=lane.stint,
                after=lane.cursor,
                upto=run.upto,
                body=run.body,
            )
            yield Send(to=lane.consumer, message=data, channels=lane.channels)
            lane = replace(lane, cursor=run.upto)
        self.lanes[key] = lane


_ROWS = (
    Rule(
        on=Consumed,
        guard=FhProd.follows_what_was_produced,
        action=FhProd.put_and_feed,
        cites="fig. 3.3 (1), (2)",
    ),
    Rule(on=Ack, guard=FhProd.is_from_a_consumer_and_not_older, action=FhProd.release, cites="fig. 3.3 (3)"),
    Rule(
        on=Attach,
        guard=FhProd.is_kept_and_lane_is_new,
        action=FhProd.open_lane,
        cites="fig. 3.13: reverse; rule 14",
    ),
    Rule(on=View, guard=always, action=FhProd.adopt, cites="fig. 3.5 (1): fail; rules 2, 12"),
)
FhProd.RULES = _ROWS
