"""Removals of rules about acknowledgements, what producers buffer, and which copy feeds which consumer from where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...protocols.buffer import Buffer
from ...protocols.egress import Egress
from ...protocols.fh_cons import NO_SENDER, FhCons
from ...protocols.fh_prod import FhProd, LaneName, LaneOut
from ...protocols.messages import Ack, Attach, Data, Effect, PendingInput, Send, Stop, View
from ...protocols.pooler import Pooler
from .patch import Patch, change_sent

# --- acknowledgements -------------------------------------------------------------------------------------


def acknowledge_to_the_feeder_only(patch: Patch) -> None:
    """A consumer acknowledges to the copy that feeds it, and not to the other one."""
    own = FhCons.acknowledge

    def acknowledge(cons: FhCons, is_receiving: bool = False) -> Iterator[Effect]:
        feeding = {lane.sender for lane in cons.lanes.values()}
        return (effect for effect in own(cons, is_receiving) if isinstance(effect, Send) and effect.to in feeding)

    patch.put(FhCons, "acknowledge", acknowledge)


def release_what_was_sent(patch: Patch) -> None:
    """A producer drops a row when it has sent it, as if it were acknowledged."""
    own = FhProd._feed

    def feed(prod: FhProd, name: LaneName) -> Iterator[Effect]:
        yield from own(prod, name)
        if name in prod.lanes:
            note(prod, name[:2], prod.lanes[name].cursor)

    def note(prod: FhProd, dest: tuple[int, str], position: int) -> None:
        prod.buffer.ack(dest, max(position, prod.buffer.floors[dest]))

    def release(prod: FhProd, message: Ack) -> Iterator[Effect]:
        note(prod, (message.edge, message.sender), message.position)
        yield from ()

    patch.put(FhProd, "_feed", feed)
    patch.put(FhProd, "release", release)
    patch.put(FhProd, "is_from_a_consumer_and_not_older", _is_from_a_consumer)


def _is_from_a_consumer(prod: FhProd, message: Ack) -> bool:
    return (message.edge, message.sender) in prod.buffer.floors


def acknowledge_what_was_received(patch: Patch) -> None:
    """A consumer acknowledges rows when it has received them, and not when it has consumed them."""
    own = Pooler.receive

    def acknowledge(cons: FhCons, is_receiving: bool = False) -> Iterator[Effect]:
        received = min((cons.frontier(cohort) for cohort in cons.cohorts), default=cons.acked)
        if received > cons.acked:
            cons.acked = received
            for edge, producers in cons.producers.items():
                yield from (cons._ack(edge, producer) for producer in producers)

    def receive(pooler: Pooler, message: Any) -> Iterator[Effect]:
        yield from own(pooler, message)
        yield from pooler._acknowledge()

    patch.put(FhCons, "acknowledge", acknowledge)
    patch.put(Pooler, "receive", receive)


def do_not_ack_to_a_new_producer(patch: Patch) -> None:
    """A consumer acknowledges when its position changes, and does not send it to a new producer copy."""
    patch.put(FhCons, "reconcile", change_sent(Ack, lambda ack: None, FhCons.reconcile))


def state_a_position_of_nothing(patch: Patch) -> None:
    """A consumer sends its position to a new producer also if it has acknowledged nothing since it joined."""
    own = FhCons.reconcile

    def reconcile(cons: FhCons, view: View) -> Iterator[Effect]:
        before = cons.producers
        yield from own(cons, view)
        for edge, producers in cons.producers.items():
            for producer in producers:
                if not cons.acked and producer not in before.get(edge, ()):
                    yield cons._ack(edge, producer)

    patch.put(FhCons, "reconcile", reconcile)


def take_messages_sent_before_the_sender_left(patch: Patch) -> None:
    """A producer takes messages that a site sent before it left the stage and returned to it."""
    patch.put(FhProd, "is_of_an_earlier_time_here", lambda prod, message: False)


def resume_acknowledging_after_a_return(patch: Patch) -> None:
    """A site that returns to a stage remembers its acknowledged position; its producers have forgotten it."""
    own = FhCons.reconcile

    def reconcile(cons: FhCons, view: View) -> Iterator[Effect]:
        acked = cons.acked
        yield from own(cons, view)
        cons.acked = max(cons.acked, acked)

    patch.put(FhCons, "reconcile", reconcile)


# --- which rows are kept, and for which sites -------------------------------------------------------------


def drop_what_one_has_acknowledged(patch: Patch) -> None:
    """A producer drops a row when the first of its consumer copies has acknowledged it."""

    def release(buffer: Buffer) -> None:
        buffer.dropped = max(buffer.floors.values(), default=buffer.dropped)
        buffer.runs = [run for run in buffer.runs if run.upto > buffer.dropped]
        buffer.rows = sum(run.rows for run in buffer.runs)

    patch.put(Buffer, "_release", release)


def keep_nothing_for_copies_in_transfer(patch: Patch) -> None:
    """Only finished copies must acknowledge."""
    patch.put(View, "must_ack", lambda view, stage: view.holders(stage) or view.copies[stage][0])


def take_silence_for_an_ack(patch: Patch) -> None:
    """A site that has not acknowledged yet is taken to have all rows."""
    patch.put(
        Buffer, "entitle", lambda buffer, dest: buffer.floors.setdefault(dest, max(buffer.dropped, buffer.newest))
    )


def run_ahead_of_sites_that_all_lag(patch: Patch) -> None:
    """Where more is kept for every site that takes a row, as much is produced as may be kept for any of them."""
    patch.put(Buffer, "_kept_for_all", lambda buffer, edge: 0)


def wait_for_copies_in_transfer(patch: Patch) -> None:
    """Rows kept for a site with a copy in transfer to it count like all rows in the pool."""
    patch.put(Buffer, "expect", lambda buffer, coming: None)


def keep_the_quota_after_a_catch_up(patch: Patch) -> None:
    """A site whose copy has arrived keeps for ever the quota that it had during the transfer."""
    patch.put(Buffer, "_shrink_quota", lambda buffer, dest, rows: None)


def wait_for_a_whole_catch_up(patch: Patch) -> None:
    """The oldest cohort waits for one that has received all rows up to it, however many steps that one needs."""
    own = FhCons.reach

    def reach(cons: FhCons, cohort: int) -> int:
        oldest = min(cons.cohorts)
        at = cons.cohorts[oldest].consumed
        lagging = [k for k, other in cons.cohorts.items() if k != oldest and other.consumed < at <= cons.frontier(k)]
        return at if cohort == oldest and lagging else own(cons, cohort)

    patch.put(FhCons, "reach", reach)


def keep_floors_by_place(patch: Patch) -> None:
    """A copy that takes the place of another inherits its acknowledged position."""
    own = FhProd.adopt

    def adopt(prod: FhProd, view: View) -> Iterator[Effect]:
        floors = prod.buffer.floors
        for edge in view.outputs(prod.stage):
            now = view.must_ack(view.edges[edge][1])
            left = [floor for (e, node), floor in floors.items() if e == edge and node not in now]
            for node in now if left else ():
                floors.setdefault((edge, node), max(left))
        yield from own(prod, view)

    patch.put(FhProd, "adopt", adopt)


def keep_nothing_for_a_dead_egress(patch: Patch) -> None:
    """While an egress is dead and not replaced, no acknowledgement is needed in its place."""
    patch.put(View, "must_ack", View.members)


# --- the frontier -----------------------------------------------------------------------------------------


def merge_up_to_the_fastest_lane(patch: Patch) -> None:
    """The frontier is the position of the fastest lane, not of the slowest."""

    def frontier(cons: FhCons, cohort: int) -> int:
        positions = (lane.upto for lane in cons.lanes.values() if lane.cohort == cohort and lane.channels)
        return max(positions, default=cons.cohorts[cohort].consumed)

    patch.put(FhCons, "frontier", frontier)


def ignore_producers_without_a_sender(patch: Patch) -> None:
    """The frontier is that of lanes with a sender: a partition whose last copy is gone does not hold it back."""

    def frontier(cons: FhCons, cohort: int) -> int:
        positions = (lane.upto for lane in cons.lanes.values() if lane.cohort == cohort and lane.sender != NO_SENDER)
        return min(positions, default=cons.cohorts[cohort].consumed)

    patch.put(FhCons, "frontier", frontier)


# --- attach and stop --------------------------------------------------------------------------------------


def skip_a_row_at_take_over(patch: Patch) -> None:
    """A consumer attaches one position after what it has received."""
    _attach_elsewhere(patch, lambda cons, cohort, position: position + 1)


def go_back_at_take_over(patch: Patch) -> None:
    """A consumer attaches at what it has consumed, not at what it has received."""
    _attach_elsewhere(patch, lambda cons, cohort, position: cons.cohorts[cohort].consumed)


def _attach_elsewhere(patch: Patch, where: Any) -> None:
    own = FhCons._attach

    def attach(cons: FhCons, edge: int, cohort: int, sender: str, channels: Any, position: int) -> Iterator[Effect]:
        assert cons.view is not None
        at = position if cons.view.number == 1 else where(cons, cohort, position)
        return own(cons, edge, cohort, sender, channels, at)

    patch.put(FhCons, "_attach", attach)


def feed_from_where_the_producer_is(patch: Patch) -> None:
    """A producer copy that has produced less than an attach requests starts at once, at its own position."""

    def open_lane(prod: FhProd, message: Attach) -> Iterator[Effect]:
        lane = (message.edge, message.sender, message.lane_id)
        produced = min(prod.produced.values(), default=0)
        prod.lanes[lane] = LaneOut(channels=message.channels, cursor=min(message.position, produced))
        yield from prod._feed(lane)

    patch.put(FhProd, "open_lane", open_lane)


def stay_with_a_dead_feeder(patch: Patch) -> None:
    """A consumer attaches to no other copy when the one that feeds it dies: there is no take-over."""
    own = FhCons._senders

    def senders(
        cons: FhCons, edge: int, producers: Any, slot: int, now: str = NO_SENDER, last: View | None = None
    ) -> dict[str, tuple[int, ...]]:
        chosen = own(cons, edge, producers, slot, now, last)
        return chosen if now == NO_SENDER or now in chosen else {NO_SENDER: tuple(producers)}

    patch.put(FhCons, "_senders", senders)


def take_from_a_copy_that_was_just_built(patch: Patch) -> None:
    """When a copy has moved, the consumers that it fed are fed by the one that was built in its place."""
    own = View.feeder
    patch.put(View, "feeder", lambda view, stage, partition, slot, now, last: own(view, stage, partition, slot, now))


def attach_without_a_stop(patch: Patch) -> None:
    """A consumer attaches to another copy without a stop to the one that feeds it."""
    patch.put(FhCons, "_stop", change_sent(Stop, lambda stop: None, FhCons._stop))


def take_stopped_frames(patch: Patch) -> None:
    """Frames that were sent before the stop was received count in full."""

    def receive(cons: FhCons, message: Data) -> Iterator[Effect]:
        lane = cons.lanes[message.lane_id]
        cons.lanes[message.lane_id] = lane._replace(upto=message.upto)
        frame = PendingInput(
            edge=lane.edge, after=message.after, upto=message.upto, channels=(), body=message.bodies[0]
        )
        cons.pending[lane.cohort] = (*cons.pending.get(lane.cohort, ()), frame)
        yield from ()

    patch.put(FhCons, "receive", receive)


def take_frames_of_an_old_lane(patch: Patch) -> None:
    """A frame counts for any lane that its sender feeds now, if it starts at the position of that lane."""
    in_a_site, at_the_egress = Pooler.receive, Egress.receive
    patch.put(Pooler, "receive", lambda pooler, data: in_a_site(pooler, _with_current_lane(pooler.cons, data)))
    patch.put(Egress, "receive", lambda egress, data: at_the_egress(egress, _with_current_lane(egress.cons, data)))


def _with_current_lane(cons: FhCons, message: Any) -> Any:
    if message.lane_id in cons.lanes or not isinstance(message, Data):
        return message
    for lane_id, lane in cons.lanes.items():
        if (lane.edge, lane.sender, lane.upto) == (message.edge, message.sender, message.after):
            return replace(message, lane_id=lane_id)
    return message


# --- lanes ------------------------------------------------------------------------------------------------


def advance_to_the_fastest_producer(patch: Patch) -> None:
    """A lane is sent up to the fastest of its producers, and not to the slowest: a copy that still catches up."""
    patch.put(FhProd, "_reached", lambda prod, lane: max(prod.produced.values(), default=lane.cursor))


def merge_lanes_at_any_position(patch: Patch) -> None:
    """Two lanes become one at any positions."""
    own = FhProd._join

    def join(prod: FhProd) -> Iterator[Effect]:
        for name, lane in prod.lanes.items():
            target = prod.lanes.get(prod._merged_into((*name[:2], lane.into)))
            if target is not None:
                prod.lanes[name] = lane._replace(cursor=target.cursor)
        return own(prod)

    patch.put(FhProd, "_join", join)


def forget_old_names_of_lanes(patch: Patch) -> None:
    """A producer forgets which lane was merged into which, while its consumer still uses the old name."""
    patch.put(FhProd, "_merged_into", lambda prod, lane: lane)


def wait_for_a_producer_that_was_taken_out(patch: Patch) -> None:
    """A lane does not advance when the producer that held it back is taken out of it."""
    own = FhProd.take_out

    def take_out(prod: FhProd, message: Stop) -> Iterator[Effect]:
        yield next(iter(own(prod, message)))  # The confirmation of the stop, without the data after it.

    patch.put(FhProd, "take_out", take_out)
