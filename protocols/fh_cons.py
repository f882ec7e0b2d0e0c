"""FH-Cons: the consumer end of a stage's exchanges on one site, for all its partitions (thesis 3.4.1 to 3.4.3).

A stage may have several edges into it (a join, a union): their rows are merged into one sequence. The consumer
takes each channel from exactly one producer copy, in lanes, keeps the rows it may not consume yet, and knows
its *frontier*: the least position over its lanes, up to which every row is here and the merge by sequence number
is certain. It acknowledges what it has consumed to every site that holds a copy of its producers, also those that
do not feed it (rule 1). The view determines which copy feeds a channel. When the sender has died (fig. 3.5 (2)) or
moved away, the channel is attached to another copy at the exact position received.
S-Cons is this machine with the ingress as its only producer; the egress is this machine with a sink after it.

An *unordered* stage does not wait for the merge: a step takes what is here of all frames, also beyond the
frontier. Its position, which it acknowledges and at which cohorts meet, is still the frontier. So no row that it has
not consumed is ever released. How far *ahead* of it the rows of each producer were taken is a part of its state, and a
new copy is fed each producer from exactly there. So every copy consumes each row once, in an order that
differs from copy to copy and from run to run. Its operator must be indifferent to that order, or the copies differ.
Its consumers are sent its output only up to the frontier, in the order of sequence numbers.

Partitions at the same position are a *cohort* and are consumed in one step. There is one cohort, except while copies
catch up: a copy that was just built starts a cohort at its snapshot's position, and
is fused with the oldest one when both are at the same position. Neither waits for the other except in the
last step before they meet.

Departure: acks report what was consumed, not what was received, because then rows that wait for the
merge stay in their producers' buffers: these bound a consumer's memory without credits, and a
snapshot needs no unprocessed input. An ack covers all cohorts of the site.
Departure: there is no `entitle`. From the view that names a copy in transfer on, producers keep for its site what they
keep for the donor, and the site acknowledges nothing until it has the state: so all of them keep what the copy will
need, from before the cut. What the site acknowledged before that view does not count any more, and is stated anew.
Departure: the thesis waits for a tuple from every producer and stalls on an idle one; here every frame
carries its end position, with rows or without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from .channels import Blocks, grouped, without
from .input_lanes import NO_SENDER as NO_SENDER
from .input_lanes import Cohort as Cohort
from .input_lanes import LaneIn as LaneIn
from .input_lanes import rows_ahead
from .machine import Machine, Rule, always, ignore
from .messages import (
    Ack,
    Ahead,
    Attach,
    Block,
    Consume,
    Data,
    Effect,
    Merge,
    Merged,
    PendingInput,
    Position,
    Send,
    Stop,
    Stopped,
    View,
)


class FhCons(Machine):
    """Consumer of the edges into `stage` on node `name`."""

    def __init__(self, name: str, stage: int, step: Position | None = None) -> None:
        self.name = name
        self.stage = stage
        self.step_bound = step
        self.step_most = step  # Positions that are consumed at once, at most.
        self.view: View | None = None
        self.lane_id = 0
        self.acked: Position = 0
        self.reported: Position = 0  # How far producers know the oldest cohort to be.
        self.versions = 0  # Of the copies that were begun, the last one that is known here.
        self.cohorts: dict[int, Cohort] = {}
        self.installed: dict[int, int] = {}  # Copies that run here and are not live yet: version, partition.
        self.lanes: dict[int, LaneIn] = {}
        self.pending: dict[int, tuple[PendingInput, ...]] = {}
        self.producers: dict[int, tuple[str, ...]] = {}  # By edge.
        self.bound: Position | None = None  # Nothing after it is consumed before the next view (rule 44).

    @property
    def title(self) -> str:
        return f"FH-Cons of stage {self.stage} on {self.name}"

    @property
    def unordered(self) -> bool:
        assert self.view is not None
        return self.stage in self.view.unordered

    # For the pooler or egress around it.

    def frontier(self, cohort: int) -> Position:
        """The position up to which every row of every channel of the cohort has been received (rule 7)."""
        positions = [lane.upto for lane in self.lanes.values() if lane.cohort == cohort and lane.channels]
        return min(positions) if positions else self.cohorts[cohort].consumed

    @property
    def consumed(self) -> Position:
        """The position up to which all cohorts have consumed, without those whose partitions have left."""
        return min((cohort.consumed for cohort in self.cohorts.values() if cohort.partitions), default=self.acked)

    @property
    def highest(self) -> Position:
        """The highest position of any row that was received or consumed here (rule 39)."""
        received = [lane.upto for lane in self.lanes.values()]
        return max([self.acked, *received, *(cohort.consumed for cohort in self.cohorts.values())])

    def reach(self, cohort: int) -> Position:
        """The position up to which the cohort may be consumed now, so that cohorts meet."""
        upto = self._within_a_step(cohort)
        if len(self.cohorts) == 1:
            return upto
        own, oldest = self.cohorts[cohort], min(self.cohorts)
        if cohort != oldest:
            return min(upto, max(own.consumed, self.cohorts[oldest].consumed))
        for other, younger in self.cohorts.items():
            if younger.consumed > own.consumed:
                upto = min(upto, younger.consumed)
            elif other != oldest and self._within(other, self.step_bound) >= own.consumed:
                return own.consumed  # It is about to meet this one, and after one more step it might never do so.
        return upto

    def _within_a_step(self, cohort: int) -> Position:
        """How far one step takes the cohort: a copy with much to catch up must not make others wait (rule 36)."""
        return self._within(cohort, self.step_most)

    def _within(self, cohort: int, most: Position | None) -> Position:
        """How far `most` positions take the cohort. Cohorts meet within the longest step, however short the next is."""
        cut, upto = self._next_cut(self.cohorts[cohort].consumed), self.frontier(cohort)
        upto = upto if cut is None else min(upto, cut)
        if most is None:
            return upto
        begin = self._first_pending(cohort, upto) if self.unordered else self.cohorts[cohort].consumed
        return min(upto, begin + most)

    def _first_pending(self, cohort: int, upto: Position) -> Position:
        """Where the first pending row may be, in an unordered stage; `upto` if nothing is pending."""
        return min([frame.after for frame in self.pending.get(cohort, ())], default=upto)

    def pace(self, most: Position) -> None:
        """Let the next steps take at most `most` positions, or with 0 as many as was set; never more than that."""
        self.step_most = min(filter(None, (most, self.step_bound)), default=None)

    def has_early(self, cohort: int) -> bool:
        """Whether rows are here that may be consumed before the frontier reaches them.

        Not while cohorts are to meet: one at work on such rows is not idle when the other gets there.
        """
        if not (self.unordered and len(self.cohorts) == 1):
            return False
        cut = self._next_cut(self.cohorts[cohort].consumed, at=True)
        return any(cut is None or frame.after < cut for frame in self.pending.get(cohort, ()))

    def take(self, cohort: int, upto: Position, early: bool = True) -> tuple[PendingInput, ...]:
        """Take the frames with rows up to `upto`, to be consumed; what lies beyond stays pending.

        An unordered stage takes frames as far as a step may go, and with `early` also those that begin beyond `upto`.
        """
        own = self.cohorts[cohort]
        assert own.idle and own.consumed <= upto <= self.frontier(cohort), f"cannot consume {upto} of {own}"
        assert own.consumed < upto or self.has_early(cohort), f"nothing to consume of {own}"
        pending = self.pending.get(cohort, ())
        if self.unordered:
            taken = self._cut(cohort, upto, early)
        else:
            taken = [frame for frame in pending if frame.after < upto]
            self.pending[cohort] = tuple([frame for frame in pending if frame.upto > upto])
        self.cohorts[cohort] = Cohort(own.partitions, own.consumed, upto)
        return tuple(taken)

    def _cut(self, cohort: int, upto: Position, early: bool) -> list[PendingInput]:
        """Take what a step of an unordered stage may consume; the rest of a frame begins where it was cut."""
        pending = self.pending.get(cohort, ())
        end = None if self.step_most is None else self._first_pending(cohort, upto) + self.step_most
        cut = self._next_cut(upto, at=True)
        if cut is not None:
            end = cut if end is None else min(end, cut)
        taken, left = [], []
        for frame in pending:
            if not (frame.after < upto or (early and (end is None or frame.after < end))):
                left.append(frame)
            elif end is None or frame.upto <= end:
                taken.append(frame)
            else:
                taken.append(replace(frame, upto=end))
                left.append(replace(frame, after=end))
        self.pending[cohort] = tuple(left)
        return taken

    def begin(self, cohort: int, upto: Position, early: bool = True) -> Consume:
        """Begin to consume up to `upto`; return the work for the operator or the sink."""
        own = self.cohorts[cohort]
        return Consume(
            stage=self.stage,
            cohort=cohort,
            partitions=own.partitions,
            after=own.consumed,
            upto=upto,
            frames=self.take(cohort, upto, early),
            ordered=not self.unordered,
            edition=self.view.edition_at(self.stage, own.consumed) if self.view is not None else 0,
        )

    def finish(self, cohort: int) -> None:
        """Record that the work in progress is consumed."""
        own = self.cohorts[cohort]
        assert own.working_upto is not None, f"nothing was begun of {own}"
        self.cohorts[cohort] = Cohort(own.partitions, own.working_upto)
        self._drop_empty_cohorts()

    def ahead(self, partition: int, upto: Position) -> tuple[Ahead, ...]:
        """How far beyond `upto` the rows of each producer were taken for `partition`, in an unordered stage."""
        if not self.unordered:
            return ()
        return rows_ahead(self.lanes.values(), self.pending.values(), partition, upto)

    def acknowledge(self, is_receiving: bool = False) -> Iterator[Effect]:
        """Acknowledge to every producer site what all cohorts have consumed (fig. 3.3 (3), rule 1).

        While a copy in transfer to this site is not here, nothing is acknowledged (rule 3). How far the oldest cohort
        is, is reported all the same: producers need not be ahead of it by more than their pools hold (rule 31).
        """
        acked = self.acked if is_receiving else max(self.acked, self.consumed)
        reached = max(acked, self._oldest_consumed())
        if acked > self.acked or reached > self.reported:
            self.acked, self.reported = acked, reached
            for edge, producers in self.producers.items():
                for producer in producers:
                    yield self._ack(edge, producer)

    def add_cohort(
        self, cohort: int, partitions: frozenset[int], consumed: Position, ahead: tuple[Ahead, ...] = ()
    ) -> Iterator[Effect]:
        """Add copies that have consumed everything up to `consumed`, and some rows `ahead` of it; attach them."""
        assert self.view is not None
        self.cohorts[cohort] = Cohort(partitions=partitions, consumed=consumed)
        feeds: dict[tuple[int, str, Position], list[Block]] = {}
        for slot, consumers in grouped(sorted(partitions), self._slot).items():
            for edge in self.producers:
                at = dict.fromkeys(self._all_producers(edge), consumed)
                for taken in ahead:
                    at |= dict.fromkeys(taken.producers, taken.position) if taken.edge == edge else {}
                for sender, producers in self._senders(edge, self._all_producers(edge), slot).items():
                    for position, some in grouped(producers, at.__getitem__).items():
                        block = Block(producers=some, consumers=consumers)
                        feeds.setdefault((edge, sender, position), []).append(block)
        for (edge, sender, position), channels in feeds.items():
            yield from self._attach(edge, cohort, sender, tuple(channels), position)
        if ahead:
            yield from self._gather()  # Lanes of one sender from several positions are merged in the end.

    def cohorts_to_fuse(self) -> tuple[int, int] | None:
        """Return two idle cohorts at one position, the older one last, if there are any."""
        if len(self.cohorts) < 2:
            return None
        oldest = min(self.cohorts)
        for cohort, own in self.cohorts.items():
            other = self.cohorts[oldest]
            if cohort != oldest and own.idle and other.idle and own.consumed == other.consumed:
                return cohort, oldest
        return None

    def fuse(self, cohort: int, into: int) -> Iterator[Effect]:
        """Merge a cohort into an older one, and ask for their lanes to be merged."""
        young, old = self.cohorts.pop(cohort), self.cohorts[into]
        self.cohorts[into] = old._replace(partitions=old.partitions | young.partitions)
        self.pending[into] = self.pending.get(into, ()) + self.pending.pop(cohort, ())
        for lane_id, lane in self.lanes.items():
            if lane.cohort == cohort:
                self.lanes[lane_id] = lane._replace(cohort=into)
        yield from self._gather()

    def gone(self, view: View) -> frozenset[int]:
        """The partitions that are here and that `view` assigns to other sites."""
        in_transfer = {s.partition for s in view.standby if (s.stage, s.node) == (self.stage, self.name)}
        here = frozenset(p for cohort in self.cohorts.values() for p in cohort.partitions)
        return here - view.held(self.stage, self.name) - in_transfer

    # Guards.

    def continues_its_lane(self, message: Data) -> bool:
        lane = self._lane_of(message)
        goes_on = lane is not None and lane.upto == message.after < message.upto
        return goes_on and len(message.bodies) == 1

    def is_of_a_lane_given_up(self, message: Data | Stopped | Merged) -> bool:
        return message.lane_id not in self.lanes and 0 < message.lane_id <= self.lane_id

    def was_asked_for(self, message: Stopped) -> bool:
        lane = self._lane_of(message)
        return lane is not None and lane.stops > 0

    def lanes_are_abreast(self, message: Merged) -> bool:
        lane, into = self._lane_of(message), self.lanes.get(message.into)
        if lane is None or into is None or lane is into:
            return False
        return (lane.edge, lane.sender, lane.cohort, lane.upto) == (into.edge, into.sender, into.cohort, into.upto)

    def _lane_of(self, message: Data | Stopped | Merged) -> LaneIn | None:
        """The lane of a message, if the message is from its sender and edge."""
        lane = self.lanes.get(message.lane_id)
        if lane is None or (lane.edge, lane.sender) != (message.edge, message.sender):
            return None
        return lane

    # Actions.

    def receive(self, message: Data) -> Iterable[Effect]:
        lane = self.lanes[message.lane_id]
        edge, cohort, sender, channels, _, stops, into = lane
        self.lanes[message.lane_id] = LaneIn(edge, cohort, sender, channels, message.upto, stops, into)
        if channels:
            [body] = message.bodies
            only = channels if stops or self.unordered else ()
            frame = PendingInput(edge=edge, after=message.after, upto=message.upto, channels=only, body=body)
            self.pending[cohort] = (*self.pending.get(cohort, ()), frame)
        return ()

    def confirm_stop(self, message: Stopped) -> Iterable[Effect]:
        lane = self.lanes[message.lane_id]._replace(stops=self.lanes[message.lane_id].stops - 1)
        self.lanes[message.lane_id] = lane
        if not lane.channels and not lane.stops:
            del self.lanes[message.lane_id]
        return ()

    def join_lanes(self, message: Merged) -> Iterable[Effect]:
        lane, into = self.lanes.pop(message.lane_id), self.lanes[message.into]
        self.lanes[message.into] = into._replace(channels=into.channels + lane.channels, stops=into.stops + lane.stops)
        return ()

    def reconcile(self, view: View) -> Iterator[Effect]:
        before, gone, last = self.producers, self.gone(view), self.view
        building = {standby.version for standby in view.standby}
        self.installed = {version: p for version, p in self.installed.items() if version in building}
        self.view, self.bound = view, None
        self.producers = {edge: view.members(view.edges[edge][0]) for edge in view.inputs(self.stage)}
        if self.name not in view.members(self.stage):
            # Its senders forget its lanes and acks with this view too. If the site returns, it starts anew.
            self.lanes.clear()
            self.acked = self.reported = 0
        if any((s.stage, s.node) == (self.stage, self.name) and s.version > self.versions for s in view.standby):
            self.acked = self.reported = 0  # Producers go back to what the donor has acknowledged (rule 3).
        self.versions = view.versions
        yield from self._forget(gone)
        if self.acked or self.reported:
            # A new producer gets the position, also if it has not changed (rule 4). A site that has acknowledged
            # nothing since it joined sends none: the producer may have a higher floor from an earlier membership.
            for edge, producers in self.producers.items():
                for producer in producers:
                    if producer not in before.get(edge, ()):
                        yield self._ack(edge, producer)
        for lane_id in list(self.lanes):
            yield from self._change_senders(lane_id, last)
        yield from self._gather()  # Also for earlier requests: the lane to merge into may be gone.

    # How it is done.

    def _next_cut(self, position: Position, at: bool = False) -> Position | None:
        """The first position after `position`, or `at` it, that no step goes across (rules 43, 44).

        A copy that was installed after the position to which the site is bound is not held there.
        """
        assert self.view is not None
        cut = self.view.next_cut(self.stage, position, at) if self.view.editions else None
        if self.bound is None or self.bound < position:
            return cut
        return self.bound if cut is None else min(cut, self.bound)

    def _oldest_consumed(self) -> Position:
        """What the oldest cohort has consumed, of those whose partitions have not left; 0 without one."""
        return next((own.consumed for _, own in sorted(self.cohorts.items()) if own.partitions), 0)

    def _all_producers(self, edge: int) -> tuple[int, ...]:
        """All producer partitions of an edge."""
        assert self.view is not None
        return tuple(range(len(self.view.copies[self.view.edges[edge][0]])))

    def _forget(self, partitions: frozenset[int]) -> Iterator[Effect]:
        """Take partitions out of cohorts and lanes. A cohort at work stays until the work is finished."""
        if not partitions:
            return
        for cohort, own in list(self.cohorts.items()):
            left: list[tuple[PendingInput, Blocks]] = []
            for frame in self.pending.get(cohort, ()):
                channels = frame.channels or self._to(frame.edge, own.partitions)
                left.append((frame, without(channels, self._to(frame.edge, partitions))))
            self.pending[cohort] = tuple(replace(frame, channels=channels) for frame, channels in left if channels)
            self.cohorts[cohort] = own._replace(partitions=own.partitions - partitions)
        for lane_id, lane in list(self.lanes.items()):
            yield from self._stop(lane_id, self._to(lane.edge, partitions))
        self._drop_empty_cohorts()

    def _to(self, edge: int, partitions: frozenset[int]) -> Blocks:
        """All channels of an edge to these partitions."""
        return (Block(producers=self._all_producers(edge), consumers=tuple(sorted(partitions))),)

    def _drop_empty_cohorts(self) -> None:
        for cohort in [k for k, own in self.cohorts.items() if not own.partitions and own.idle]:
            del self.cohorts[cohort]
            self.pending.pop(cohort, None)

    def _change_senders(self, lane_id: int, last: View | None) -> Iterator[Effect]:
        """Attach the channels of a lane that get another sender, at the position received."""
        assert self.view is not None
        lane = self.lanes[lane_id]
        feeds: dict[str, list[Block]] = {}
        for block in lane.channels:
            slot = self._slot(block.consumers[0])
            for sender, producers in self._senders(lane.edge, block.producers, slot, lane.sender, last).items():
                feeds.setdefault(sender, []).append(Block(producers=producers, consumers=block.consumers))
        for sender, channels in feeds.items():
            if sender != lane.sender:
                yield from self._stop(lane_id, tuple(channels))
                yield from self._attach(lane.edge, lane.cohort, sender, tuple(channels), lane.upto)
        if lane.sender in self.view.dead:
            assert lane_id not in self.lanes or not self.lanes[lane_id].channels, "a dead sender feeds no channel"
            self.lanes.pop(lane_id, None)

    def _stop(self, lane_id: int, channels: Blocks) -> Iterator[Effect]:
        assert self.view is not None
        lane = self.lanes[lane_id]
        left = without(lane.channels, channels)
        if left == lane.channels:
            return
        if lane.sender == NO_SENDER or lane.sender in self.view.dead:
            self.lanes[lane_id] = lane._replace(channels=left)
            if not left:
                del self.lanes[lane_id]
            return
        self.lanes[lane_id] = lane._replace(channels=left, stops=lane.stops + 1)
        # Exactly the channels of this lane: the sender may have merged another into it, which gets its own stop.
        taken = without(lane.channels, left)
        stop = Stop(sender=self.name, view=self.view.number, edge=lane.edge, lane_id=lane_id, channels=taken)
        yield Send(to=lane.sender, message=stop)

    def _attach(self, edge: int, cohort: int, sender: str, channels: Blocks, position: Position) -> Iterator[Effect]:
        assert self.view is not None
        self.lane_id += 1
        self.lanes[self.lane_id] = LaneIn(edge=edge, cohort=cohort, sender=sender, channels=channels, upto=position)
        if sender != NO_SENDER:
            attach = Attach(
                sender=self.name,
                view=self.view.number,
                edge=edge,
                lane_id=self.lane_id,
                position=position,
                channels=channels,
            )
            yield Send(to=sender, message=attach)

    def _ack(self, edge: int, producer: str) -> Effect:
        assert self.view is not None
        reached = self.reported if self.reported > self.acked else 0
        ack = Ack(sender=self.name, view=self.view.number, edge=edge, position=self.acked, reached=reached)
        return Send(to=producer, message=ack)

    def _gather(self) -> Iterator[Effect]:
        """Ask each sender to feed a cohort in one lane. Lanes merge into the first, so that none waits for itself."""
        assert self.view is not None
        first: dict[tuple[int, int, str], int] = {}
        for lane_id, lane in self.lanes.items():
            if not lane.channels or lane.sender == NO_SENDER:
                continue
            into = first.setdefault((lane.edge, lane.cohort, lane.sender), lane_id)
            if into not in (lane_id, lane.into):
                self.lanes[lane_id] = lane._replace(into=into)
                merge = Merge(sender=self.name, view=self.view.number, edge=lane.edge, lane_id=lane_id, into=into)
                yield Send(to=lane.sender, message=merge)

    def _slot(self, partition: int) -> int:
        """The slot of `partition` whose copy this node has, or is going to have."""
        assert self.view is not None
        copies = self.view.copies[self.stage][partition]
        if self.name in copies:
            return copies.index(self.name)
        return next(
            s.slot for s in self.view.standby if (s.stage, s.partition, s.node) == (self.stage, partition, self.name)
        )

    def _senders(
        self, edge: int, producers: Iterable[int], slot: int, now: str = NO_SENDER, last: View | None = None
    ) -> dict[str, tuple[int, ...]]:
        """The senders of a consumer's copy in `slot`, by producer; `now` feeds it."""
        view = self.view
        assert view is not None
        stage = view.edges[edge][0]
        return grouped(producers, lambda producer: view.feeder(stage, producer, slot, now, last) or NO_SENDER)


_ROWS = (
    Rule(on=Data, guard=FhCons.continues_its_lane, action=FhCons.receive, cites="3.4.1; rules 6, 7"),
    Rule(on=Stopped, guard=FhCons.was_asked_for, action=FhCons.confirm_stop, cites="fig. 3.15; rule 13"),
    Rule(on=Merged, guard=FhCons.lanes_are_abreast, action=FhCons.join_lanes, cites="lanes, not channels"),
    Rule(on=Data, guard=FhCons.is_of_a_lane_given_up, action=ignore, cites="rule 6: an old stint"),
    Rule(on=Stopped, guard=FhCons.is_of_a_lane_given_up, action=ignore, cites="rule 6: an old stint"),
    Rule(on=Merged, guard=FhCons.is_of_a_lane_given_up, action=ignore, cites="rule 6: an old stint"),
    Rule(on=View, guard=always, action=FhCons.reconcile, cites="fig. 3.5 (2), 3.12; rules 4, 13, 20"),
)
FhCons.RULES = _ROWS
