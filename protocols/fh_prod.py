"""FH-Prod: the producer end of a stage's exchanges on one site, for all its partitions (thesis 3.4.1 to 3.4.3).

It keeps what the site's copies have produced until every consumer site of every edge has acknowledged it,
and feeds *lanes*. A lane is a set of channels of one edge to one consumer site that move together, opened by
that site's `attach` at an exact position; its cursor is the position up to which rows were sent. The consumer numbers
its attaches; the number, the *lane id* (a stint in rule 6), names the lane. S-Prod is this machine with the egress as
its only consumer.

The site's partitions are in *cohorts*: partitions at the same position. There is one cohort, except while copies that
were just built catch up. A lane is sent up to the position of the slowest of its producers.

An unordered stage emits rows beyond its position. They are buffered here until its position has passed them. Consumers
are sent everything up to the position, in order, whatever the order in which it was emitted.

Departure: no channel is a lane of its own, and no frame lists exceptions. Channels whose sender
changes get a new lane at their own position, because then every lane has one position and a step
costs the same whatever the number of partitions. Lanes at the same position are merged.
Departure: `joined` is not a message, because every frame carries its lane id and the position it starts at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from .buffer import Buffer, Dest
from .channels import Blocks, producers_of, without
from .machine import Machine, Rule, always, ignore
from .messages import (
    Ack,
    Attach,
    Block,
    Consumed,
    Data,
    Effect,
    Merge,
    Merged,
    OutputRun,
    Position,
    ReportRefused,
    Send,
    Stop,
    Stopped,
    Trim,
    View,
)

LaneName = tuple[int, str, int]  # Edge, consumer, lane id.


class LaneOut(NamedTuple):
    """The channels that a lane carries, and the position up to which they were sent."""

    channels: tuple[Block, ...]
    cursor: Position
    into: int = 0  # The lane this one is to be merged into, once both are at the same position.


class FhProd(Machine):
    """Producer of the edges out of `stage` on node `name`."""

    def __init__(
        self, name: str, stage: int, bound_rows: int, transfer_rows_max: int | None = None, divided: bool = False
    ) -> None:
        self.name = name
        self.stage = stage
        self.view = 0
        self.unordered = False
        self.buffer = Buffer(bound_rows, transfer_rows_max, divided)
        self.cohorts: dict[int, frozenset[int]] = {}  # The partitions of each cohort.
        self.produced: dict[int, Position] = {}
        self.leaving: frozenset[int] = frozenset()  # Partitions that have left, and that the operator still has.
        self.ends: frozenset[Dest] = frozenset()  # Consumers that are egresses: what they acknowledge is durable.
        self.since: dict[Dest, int] = {}  # The view in which each consumer site became one.
        self.acks_since: dict[Dest, int] = {}  # The view in which its acks began to count, if that was later.
        self.versions = 0  # Of the copies that were begun, the last one that is known here.
        self.last_lane_ids: dict[Dest, int] = {}  # The last lane that each consumer site opened.
        self.lanes: dict[LaneName, LaneOut] = {}
        self.merged: dict[LaneName, int] = {}  # Where the channels of a merged lane are now.

    @property
    def title(self) -> str:
        return f"FH-Prod of stage {self.stage} on {self.name}"

    # For the pooler or ingress around it.

    def add_cohort(
        self, cohort: int, partitions: frozenset[int], produced: Position, runs: tuple[OutputRun, ...] = ()
    ) -> None:
        """Add copies that have produced everything up to `produced`; `runs` are their unacknowledged output."""
        self.cohorts[cohort] = partitions
        self.produced[cohort] = produced
        for run in runs:
            self.buffer.put(run)

    def fuse(self, cohort: int, into: int) -> None:
        """Merge two cohorts that are at the same position."""
        assert self.produced[cohort] == self.produced[into], "cohorts fuse at one position"
        self.cohorts[into] |= self.cohorts.pop(cohort)
        del self.produced[cohort]

    def forget(self, partitions: frozenset[int]) -> None:
        """Drop copies that live elsewhere from now on, and their output."""
        self.leaving |= partitions
        if partitions:
            self.buffer.forget(partitions)
        for cohort in list(self.cohorts):
            self.cohorts[cohort] -= partitions

    def keep(self, cohorts: Set[int]) -> None:
        """Drop all cohorts but `cohorts`: they have no partitions left here."""
        for cohort in [cohort for cohort in self.cohorts if cohort not in cohorts]:
            del self.cohorts[cohort], self.produced[cohort]

    # Guards.

    def follows_what_was_produced(self, message: Consumed) -> bool:
        produced = self.produced.get(message.cohort, message.upto)
        if self.unordered:  # It may have emitted rows beyond its position without advancing it.
            return message.upto >= produced and message.cohort in self.produced
        return message.upto > produced and message.upto >= message.emitted_upto

    def is_from_a_consumer_and_not_older(self, message: Ack) -> bool:
        floor = self.buffer.floors.get(_dest(message))
        return floor is not None and message.position >= floor

    def is_kept_and_lane_is_new(self, message: Attach) -> bool:
        is_new = message.lane_id > self.last_lane_ids.get(_dest(message), 0)
        return is_new and _dest(message) in self.buffer.floors and message.position >= self._kept_from(message)

    def asks_for_what_was_acknowledged(self, message: Attach) -> bool:
        is_end = _dest(message) in self.ends and message.lane_id > self.last_lane_ids.get(_dest(message), 0)
        return is_end and message.position < self._kept_from(message)

    def takes_an_acknowledgement_back(self, message: Ack) -> bool:
        return _dest(message) in self.ends and message.position < self.buffer.floors[_dest(message)]

    def is_of_an_earlier_time_here(self, message: Ack | Attach | Stop | Merge) -> bool:
        return message.view < self.since.get(_dest(message), self.view)

    def only_reports_progress(self, message: Ack) -> bool:
        return message.position == 0 < message.reached and _dest(message) in self.buffer.floors

    def is_from_before_a_transfer(self, message: Ack) -> bool:
        return message.view < self.acks_since.get(_dest(message), 0)

    def lane_is_open(self, message: Stop | Merge) -> bool:
        return self._now(message) in self.lanes

    def both_are_open(self, message: Merge) -> bool:
        # Both may be the same by now: the consumer repeats a merge that it has not seen confirmed.
        return self.lane_is_open(message) and self._merged_into((*_dest(message), message.into)) in self.lanes

    # Actions.

    def put_and_feed(self, message: Consumed) -> Iterator[Effect]:
        after, upto = self.produced[message.cohort], max(message.upto, message.emitted_upto)
        self.produced[message.cohort] = message.upto
        # No partitions are left if the last one left while the operator was at work.
        if self.cohorts[message.cohort] and upto > after:
            run = OutputRun(
                after=after,
                upto=upto,
                rows=message.rows,
                without=self.leaving,
                counts=message.counts,
                body=message.body,
            )
            self.buffer.put(run)
        for lane in list(self.lanes):
            yield from self._feed(lane)
        yield from self._join()
        yield from self._trim()

    def release(self, message: Ack) -> Iterable[Effect]:
        self.buffer.ack(_dest(message), message.position)
        self.buffer.note_reached(_dest(message), message.reached)
        return self._trim()

    def note_progress(self, message: Ack) -> Iterable[Effect]:
        self.buffer.note_reached(_dest(message), message.reached)
        return ()

    def open_lane(self, message: Attach) -> Iterator[Effect]:
        lane = (*_dest(message), message.lane_id)
        self.last_lane_ids[_dest(message)] = message.lane_id
        self.lanes[lane] = LaneOut(channels=message.channels, cursor=message.position)
        yield from self._feed(lane)

    def take_out(self, message: Stop) -> Iterator[Effect]:
        name = self._now(message)
        lane = self.lanes.pop(name)
        left = without(lane.channels, message.channels)
        if left:
            self.lanes[name] = lane._replace(channels=left)
        stopped = Stopped(sender=self.name, view=self.view, edge=message.edge, lane_id=name[2])
        yield Send(to=message.sender, message=stopped)
        if left:
            yield from self._feed(name)  # The producer that held the lane back may be the one taken out.

    def note_merge(self, message: Merge) -> Iterator[Effect]:
        name = self._now(message)
        if name != self._merged_into((*name[:2], message.into)):
            self.lanes[name] = self.lanes[name]._replace(into=message.into)
            yield from self._join()

    def adopt(self, view: View) -> Iterator[Effect]:
        self.view = view.number
        self.unordered = self.stage in view.unordered
        edges = {edge: view.edges[edge][1] for edge in view.outputs(self.stage)}
        fed = {(edge, node) for edge, stage in edges.items() for node in view.members(stage)}
        must_ack = [(edge, node) for edge, stage in edges.items() for node in view.must_ack(stage)]
        self.lanes = {lane: out for lane, out in self.lanes.items() if lane[:2] in fed}
        self.merged = {lane: into for lane, into in self.merged.items() if lane[:2] in fed}
        self.last_lane_ids = {dest: lane_id for dest, lane_id in self.last_lane_ids.items() if dest in fed}
        self.since = {dest: self.since.get(dest, view.number) for dest in must_ack}
        last_ends = {edge: (edge, node) for edge, node in self.ends}
        self.ends = frozenset((edge, node) for edge, node in must_ack if view.is_end(edges[edge]))
        for dest in must_ack:  # The new ones first, so that what is here is kept for them.
            self.buffer.entitle(dest, last_ends.get(dest[0]))
        self._reserve(view, edges)
        self.acks_since = {dest: number for dest, number in self.acks_since.items() if dest in self.since}
        self.buffer.route({edge: view.takers(stage) for edge, stage in edges.items()})
        for dest in [dest for dest in self.buffer.floors if dest not in must_ack]:
            self.buffer.ack_all(dest)
        building = {(standby.stage, standby.node) for standby in view.standby}
        # More is kept for those that lag: with a state transfer in flight (rule 31), or slow (rule 35).
        lagging = [d for d in must_ack if (edges[d[0]], d[1]) in building or d[1] in view.slow]
        self.buffer.expect(frozenset(lagging))
        if self.name not in view.members(self.stage):
            self.buffer.clear()  # Its copies live elsewhere, and no consumer acknowledges to it any more.
        yield from self._trim()

    def _reserve(self, view: View, edges: Mapping[int, int]) -> None:
        """Keep for the site of each copy that was just begun what its donor has not acknowledged (rule 3).

        The donor cuts the state later, and has consumed that much by then. So the copy needs nothing before it. Of the
        site nothing counts that it acknowledged before it had this view.
        """
        for standby in view.standby:
            for edge, stage in edges.items():
                if standby.version > self.versions and standby.stage == stage and view.alive(standby.node):
                    dest = (edge, standby.node)
                    self.buffer.reserve(dest, (edge, standby.donor))
                    self.acks_since[dest] = view.number
        self.versions = view.versions

    def refuse_to_repeat(self, message: Ack | Attach) -> Iterator[Effect]:
        yield ReportRefused(
            text=f"{message.sender} asks for the output after {message.position:,}, and what is up to "
            f"{self._kept_from(message):,} was reported as written to the sink: the sink's journal has lost its end, "
            "as it may when a machine loses power. The sink would be given rows twice. Output up to now is right; run "
            "the flow again"
        )

    def _kept_from(self, message: Ack | Attach) -> Position:
        """The position up to which a consumer must not ask again: an egress not for what one has acknowledged."""
        dest = _dest(message)
        return self.buffer.floors[dest] if dest in self.ends else self.buffer.dropped

    def _now(self, message: Stop | Merge) -> LaneName:
        """The lane that a message is about."""
        return self._merged_into((*_dest(message), message.lane_id))

    def _merged_into(self, lane: LaneName) -> LaneName:
        """The lane itself, or the one it was merged into: the consumer may not know that yet."""
        while lane in self.merged:
            lane = (*lane[:2], self.merged[lane])
        return lane

    def _trim(self) -> list[Effect]:
        """Have the shell cut what no destination needs out of runs, if the pool is used enough."""
        return [Trim(stage=self.stage, run=run) for run in self.buffer.trim()]

    def _feed(self, name: LaneName) -> Iterator[Effect]:
        lane = self.lanes[name]
        reached = self._reached(lane)
        if reached > lane.cursor:  # Else the consumer is ahead: it received more from another copy (rule 14).
            runs = self.buffer.between(lane.cursor, reached)
            data = Data(
                sender=self.name,
                view=self.view,
                edge=name[0],
                lane_id=name[2],
                after=lane.cursor,
                upto=reached,
                bodies=tuple([run.body for run in runs]),
            )
            yield Send(to=name[1], message=data, channels=tuple([_counting(run, lane.channels) for run in runs]))
            self.lanes[name] = LaneOut(lane.channels, reached, lane.into)

    def _reached(self, lane: LaneOut) -> Position:
        """The position of the slowest of the lane's producers."""
        if len(self.cohorts) == 1:
            return next(iter(self.produced.values()))
        producers = producers_of(lane.channels)
        reached = [self.produced[k] for k, members in self.cohorts.items() if members & producers]
        return min(reached, default=lane.cursor)

    def _join(self) -> Iterator[Effect]:
        """Merge the lanes that are to be merged and are at the same position."""
        for name in list(self.lanes):
            lane = self.lanes[name]
            into = self._merged_into((*name[:2], lane.into))
            target = self.lanes.get(into)
            if target is None or into == name or target.cursor != lane.cursor:
                continue
            del self.lanes[name]
            self.merged[name] = into[2]
            self.lanes[into] = target._replace(channels=target.channels + lane.channels)
            merged = Merged(sender=self.name, view=self.view, edge=name[0], lane_id=name[2], into=into[2])
            yield Send(to=name[1], message=merged)


def _dest(message: Ack | Attach | Stop | Merge) -> Dest:
    return message.edge, message.sender


def _counting(run: OutputRun, channels: Blocks) -> Blocks:
    """The channels of a lane whose rows in `run` count."""
    if not run.without:
        return channels
    consumers = tuple(sorted({consumer for block in channels for consumer in block.consumers}))
    return without(channels, (Block(producers=tuple(sorted(run.without)), consumers=consumers),))


_LEFT = "rules 9, 12: the sender has left the consumer's stage since, and its lanes with it"
_ROWS = (
    Rule(on=Consumed, guard=FhProd.follows_what_was_produced, action=FhProd.put_and_feed, cites="fig. 3.3 (1), (2)"),
    Rule(on=Ack, guard=FhProd.is_of_an_earlier_time_here, action=ignore, cites=_LEFT),
    Rule(on=Attach, guard=FhProd.is_of_an_earlier_time_here, action=ignore, cites=_LEFT),
    Rule(on=Stop, guard=FhProd.is_of_an_earlier_time_here, action=ignore, cites=_LEFT),
    Rule(on=Merge, guard=FhProd.is_of_an_earlier_time_here, action=ignore, cites=_LEFT),
    Rule(on=Ack, guard=FhProd.is_from_before_a_transfer, action=ignore, cites="rule 3: it is stated anew"),
    Rule(on=Ack, guard=FhProd.only_reports_progress, action=FhProd.note_progress, cites="rule 31"),
    Rule(on=Ack, guard=FhProd.is_from_a_consumer_and_not_older, action=FhProd.release, cites="fig. 3.3 (3)"),
    Rule(on=Ack, guard=FhProd.takes_an_acknowledgement_back, action=FhProd.refuse_to_repeat, cites="rule 41"),
    Rule(on=Attach, guard=FhProd.asks_for_what_was_acknowledged, action=FhProd.refuse_to_repeat, cites="rule 41"),
    Rule(on=Attach, guard=FhProd.is_kept_and_lane_is_new, action=FhProd.open_lane, cites="fig. 3.13, 3.14; rule 14"),
    Rule(on=Stop, guard=FhProd.lane_is_open, action=FhProd.take_out, cites="3.4.3.2: conn[SEC] := {ACK}; rule 13"),
    Rule(on=Merge, guard=FhProd.both_are_open, action=FhProd.note_merge, cites="lanes, not channels"),
    Rule(on=View, guard=always, action=FhProd.adopt, cites="fig. 3.5 (1): fail; rules 2, 12"),
)
FhProd.RULES = _ROWS
