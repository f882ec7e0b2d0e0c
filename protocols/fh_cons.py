"""FH-Cons: the consumer end of an exchange on one site, for all its partitions (thesis 3.4.1, 3.4.2).

It takes each channel from exactly one producer copy, in lanes, keeps the rows it may not consume yet,
and knows its *frontier*: the least position over its lanes, up to which every row is here and the
merge by sequence number is certain. It acknowledges what it has consumed to every site that holds a
copy of its producers, also those that do not feed it (rule 1). When a producer site fails, the
channels it fed are attached to the surviving copies at the exact position received (fig. 3.5 (2)).
S-Cons is this machine with the ingress as its only producer; the egress is it with a sink behind it.

Departure: acks tell what was consumed, not what was received, because then rows that wait for the
merge stay in their producers' buffers: these bound a consumer's memory without credits, and a
snapshot needs no unprocessed input.
Departure: the thesis waits for a tuple from every producer and stalls on an idle one; every frame
says how far it goes, with rows or without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .machine import Machine, Rule, always
from .messages import Ack, Attach, Block, Data, Effect, Frame, Position, Send, View

NOBODY = ""  # The sender of a lane whose producers have no copy left: it holds the frontier back.


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneIn:
    """Which channels come from `sender`, and up to where they have been received."""

    sender: str
    channels: tuple[Block, ...]
    upto: Position


class FhCons(Machine):
    """Consumer of `edge` on node `name`; edge e runs from stage e to stage e + 1."""

    def __init__(self, name: str, edge: int) -> None:
        self.name = name
        self.edge = edge
        self.view = 0
        self.stint = 0
        self.consumed: Position = 0
        self.lanes: dict[int, LaneIn] = {}
        self.pending: list[Frame] = []
        self.producers: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"FH-Cons of edge {self.edge} on {self.name}"

    @property
    def frontier(self) -> Position:
        """Up to here every row of every channel has been received (rule 7)."""
        return min((lane.upto for lane in self.lanes.values()), default=self.consumed)

    def take(self, upto: Position) -> tuple[Frame, ...]:
        """The pending frames with rows up to `upto`; what lies beyond stays pending."""
        assert self.consumed < upto <= self.frontier, f"cannot consume {upto} at frontier {self.frontier}"
        taken = tuple(frame for frame in self.pending if frame.after < upto)
        self.pending = [frame for frame in self.pending if frame.upto > upto]
        return taken

    def acknowledge(self, upto: Position) -> Iterator[Effect]:
        """Everything up to `upto` is consumed: tell every producer site (fig. 3.3 (3), rule 1)."""
        self.consumed = upto
        for producer in self.producers:
            ack = Ack(sender=self.name, view=self.view, edge=self.edge, position=upto)
            yield Send(to=producer, message=ack)

    # Guards.

    def continues_its_lane(self, message: Data) -> bool:
        lane = self.lanes.get(message.stint)
        return lane is not None and lane.sender == message.sender and lane.upto == message.after

    def is_the_first(self, view: View) -> bool:
        return self.view == 0

    # Actions.

    def receive(self, message: Data) -> Iterator[Effect]:
        self.lanes[message.stint] = replace(self.lanes[message.stint], upto=message.upto)
        self.pending.append(Frame(after=message.after, upto=message.upto, body=message.body))
        yield from ()

    def attach_all(self, view: View) -> Iterator[Effect]:
        self._note(view)
        feeds: dict[str, list[Block]] = {}
        for copy, consumers in enumerate(self._held(view)):
            if not consumers:
                continue
            for sender, producers in self._senders(view, copy).items():
                feeds.setdefault(sender, []).append(Block(producers=producers, consumers=consumers))
        for sender, channels in feeds.items():
            yield from self._attach(sender, tuple(channels), self.consumed)

    def take_over(self, view: View) -> Iterator[Effect]:
        self._note(view)
        orphaned = [key for key, lane in self.lanes.items() if lane.sender in view.dead]
        for key in orphaned:
            lane = self.lanes.pop(key)
            feeds: dict[str, list[Block]] = {}
            for block in lane.channels:
                for sender, producers in self._survivors(view, block.producers).items():
                    feeds.setdefault(sender, []).append(replace(block, producers=producers))
            for sender, channels in feeds.items():
                yield from self._attach(sender, tuple(channels), lane.upto)

    def _note(self, view: View) -> None:
        self.view = view.number
        self.producers = view.holders(self.edge)

    def _attach(self, sender: str, channels: tuple[Block, ...], position: Position) -> Iterator[Effect]:
        self.stint += 1
        self.lanes[self.stint] = LaneIn(sender=sender, channels=channels, upto=position)
        if sender == NOBODY:
            return
        attach = Attach(
            sender=self.name,
            view=self.view,
            edge=self.edge,
            stint=self.stint,
            position=position,
            channels=channels,
        )
        yield Send(to=sender, message=attach)

    def _held(self, view: View) -> list[tuple[int, ...]]:
        """The partitions this node holds as first copy, as second copy, ..."""
        partitions = view.copies[self.edge + 1]
        degree = max(len(copies) for copies in partitions)
        return [
            tuple(c for c, copies in enumerate(partitions) if copy < len(copies) and copies[copy] == self.name)
            for copy in range(degree)
        ]

    def _senders(self, view: View, copy: int) -> dict[str, tuple[int, ...]]:
        """Who feeds a consumer's `copy`: the same copy of each producer, if it lives (fig. 3.11)."""
        senders: dict[str, list[int]] = {}
        for partition, copies in enumerate(view.copies[self.edge]):
            own = copies[copy % len(copies)]
            live = view.live_copies(self.edge, partition)
            sender = own if own in live else next(iter(live), NOBODY)
            senders.setdefault(sender, []).append(partition)
        return {sender: tuple(producers) for sender, producers in senders.items()}

    def _survivors(self, view: View, producers: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The first surviving copy of each of `producers`."""
        senders: dict[str, list[int]] = {}
        for partition in producers:
            sender = next(iter(view.live_copies(self.edge, partition)), NOBODY)
            senders.setdefault(sender, []).append(partition)
        return {sender: tuple(members) for sender, members in senders.items()}


_ROWS = (
    Rule(on=Data, guard=FhCons.continues_its_lane, action=FhCons.receive, cites="3.4.1; rules 6, 7"),
    Rule(on=View, guard=FhCons.is_the_first, action=FhCons.attach_all, cites="fig. 3.11; rule 14"),
    Rule(on=View, guard=always, action=FhCons.take_over, cites="fig. 3.5 (2), 3.12; rule 20"),
)
FhCons.RULES = _ROWS
