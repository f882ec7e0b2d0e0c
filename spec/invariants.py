"""Invariants: what must hold in every world, each claim in a checker of its own (thesis 3.1.1, 3.2.1, 3.4.2).

A checker is called at each step of a process: an attach it sends, a frame that is delivered
to it, the rows its operator is given. When nothing is left to happen it sees all live processes at once.
Checkers keep no state: what they need of the past is in the process. They compare with the plain run of
the scenario, and raise `Violated` with the claim and the place.

Checkers of recovery, which copies are rebuilt where and what numbers mean after a restart, are in `recovery`; those of
slow sites in `slow_sites`, and those of space in `bounds`.

Not here: that a message is never refused and that no assertion fails. The machines raise these errors themselves,
and a world treats both like a violated invariant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

from ..protocols.egress import Egress
from ..protocols.fh_cons import FhCons
from ..protocols.fh_prod import FhProd
from ..protocols.ingress import Ingress
from ..protocols.messages import Attach, Block, Consume, Data, PeerMessage, Pull, Stop, View
from ..protocols.pooler import Pooler
from .bounds import ChargedByNeed, ShortSteps, WithinBounds, rows_for_all
from .change_claims import ChangesEnd, CutsRise, OneEdition, StepsStop
from .dataflow import EGRESS, INGRESS, OperatorState, Row, Scenario
from .process import Checker as Checker
from .process import SimulatedProcess, channels_of, is_among
from .process import Violated as Violated
from .recovery import (
    CutAtOnce,
    LastCopyStays,
    LeastFirst,
    MovesBegin,
    NothingGivenUp,
    OneCopyPerSite,
    OneMeaning,
    RecoveryEnds,
    SourceFirst,
    ViewsStaySmall,
)
from .slow_sites import AnotherDonates, NoneWaits, PromptCopyStays, SlowFeedNone


class LossFree(Checker):
    """Thesis 3.1.1: a consumer gets every row it must get, before any row after it."""

    claim = "loss-free"
    compares_with_the_plain_run = True

    def consumed(
        self, process: SimulatedProcess, work: Consume, partition: int, rows: list[Row], state: OperatorState
    ) -> None:
        expected = process.reference.rows(work.stage, partition, work.after, work.upto)
        if rows == expected:
            return
        # An unordered stage may have consumed some of them before.
        before = () if work.ordered else process.beyond((work.stage, partition))
        lost = set(expected).difference(rows, before)
        if lost:
            raise self.violated(
                f"{process.name}, stage {work.stage}, partition {partition} has consumed "
                f"({work.after}..{work.upto}] without {sorted(lost)}"
            )


class DupFree(Checker):
    """Thesis 3.1.1: no row is consumed twice, and none that a plain run does not have."""

    claim = "dup-free"
    compares_with_the_plain_run = True

    def consumed(
        self, process: SimulatedProcess, work: Consume, partition: int, rows: list[Row], state: OperatorState
    ) -> None:
        before = () if work.ordered else process.beyond((work.stage, partition))
        seen = [*rows, *before]
        upto = work.upto if work.ordered else max((row.sn for row in seen), default=work.upto)
        expected = process.reference.rows(work.stage, partition, work.after, upto)
        if seen == expected or (len(set(seen)) == len(seen) and set(expected).issuperset(seen)):
            return
        extra = Counter(seen) - Counter(expected)
        if extra:
            raise self.violated(
                f"{process.name}, stage {work.stage}, partition {partition} is given {sorted(extra)} "
                f"once too often in ({work.after}..{work.upto}]"
            )


class InOrder(Checker):
    """Thesis 3.2.1: consumers merge by sequence number; no row arrives after its successors.

    The position of an unordered stage advances in the same way; only rows need not wait for it.
    """

    claim = "in order"

    def consumed(
        self, process: SimulatedProcess, work: Consume, partition: int, rows: list[Row], state: OperatorState
    ) -> None:
        through = process.through[work.stage, partition]
        is_nothing = work.upto == work.after and (work.ordered or not work.frames)
        beyond = [frame for frame in work.frames if frame.after >= work.upto] if work.ordered else ()
        wrong = ""
        if work.after != through or work.upto < work.after or is_nothing:
            wrong = f"is at {through} and is given ({work.after}..{work.upto}]"
        elif beyond:
            wrong = f"is given frames that begin beyond {work.upto}: {beyond}"
        elif work.ordered != (work.stage not in process.scenario.unordered):
            wrong = f"is given work that is {'ordered' if work.ordered else 'unordered'}"
        late = [
            row
            for frame in work.frames
            if frame.after < work.after
            for row in frame.body
            if row.consumer == partition and row.sn <= work.after and row not in process.history[work.stage, partition]
            if not frame.channels or is_among(row, frame.channels)
        ]
        if late:
            wrong = f"is at {work.after} when {late} arrive"
        if wrong:
            raise self.violated(f"{process.name}, stage {work.stage}, partition {partition} {wrong}")


class ReplicasIdentical(Checker):
    """Thesis 3.2.1: the copies of a partition consume the same input and pass through the same states.

    Those of an unordered stage consume it each in an order of its own: they are in the state that all they have
    consumed gives in any order, and in the same one at rest.
    """

    claim = "replicas identical"
    compares_with_the_plain_run = True

    def consumed(
        self, process: SimulatedProcess, work: Consume, partition: int, rows: list[Row], state: OperatorState
    ) -> None:
        place = (work.stage, partition)
        expected = process.reference.state(*place, work.upto)
        if not work.ordered:
            early = [row for row in (*process.beyond(place), *rows) if row.sn > work.upto]
            expected, _ = process.scenario.operate(*place, expected, early, work.upto, work.upto)
        if state != expected:
            raise self.violated(
                f"{process.name}, stage {work.stage}, partition {partition} is in {state} at "
                f"{work.upto}, not in {expected}"
            )

    def at_rest(self, scenario: Scenario, live: Sequence[SimulatedProcess], view: View) -> None:
        first: dict[tuple[int, int], SimulatedProcess] = {}
        for process in live:
            for place, rows in process.history.items():
                other = first.setdefault(place, process)
                if rows != other.history[place]:
                    raise self.violated(f"{process.name} and {other.name} differ in what {place} has seen")


class BuffersDrain(Checker):
    """Rules 1, 2, 4: in the end every run is released from every buffer, and nothing waits."""

    claim = "buffers drain"

    def at_rest(self, scenario: Scenario, live: Sequence[SimulatedProcess], view: View) -> None:
        for process in live:
            if process.node.held:
                raise self.violated(f"{process.name} still holds {list(process.node.held)}")
            for stage, machine in process.node.machines.items():
                self._drained(process, stage, machine)
            if process.role == INGRESS and process.released != scenario.reference.last_sn:
                raise self.violated(f"the source may forget only what is up to {process.released}")

    def _drained(self, process: SimulatedProcess, stage: int, machine: Ingress | Pooler | Egress) -> None:
        if not isinstance(machine, Egress):
            self._known(process, stage, machine.prod)
            buffer = machine.prod.buffer
            if buffer.quota_rows.keys() - buffer.in_transfer:
                raise self.violated(f"{process.name}, stage {stage} has consumers that catch up: {buffer.quota_rows}")
            if buffer.runs or buffer.rows:
                raise self.violated(
                    f"{process.name}, stage {stage} keeps {len(buffer.runs)} runs, {buffer.rows} rows; "
                    f"floors {buffer.floors}, dropped {buffer.dropped}"
                )
        if not isinstance(machine, Ingress) and any(machine.cons.pending.values()):
            raise self.violated(f"{process.name}, stage {stage} has pending frames at {machine.cons.cohorts}")
        if not isinstance(machine, Ingress):
            self._joined(process, stage, machine.cons)
        if isinstance(machine, Pooler):
            self._forgotten(process, machine)

    def _known(self, process: SimulatedProcess, stage: int, prod: FhProd) -> None:
        """Check that only consumers are fed, and no lane is both open and merged."""
        view = process.node.view
        assert view is not None
        fed = {(edge, node) for edge in view.outputs(stage) for node in view.members(view.edges[edge][1])}
        named = {lane[:2] for lane in (*prod.lanes, *prod.merged)} | prod.last_lane_ids.keys()
        if named - fed or prod.lanes.keys() & prod.merged.keys():
            raise self.violated(f"{process.name}, stage {stage} has lanes {prod.lanes}, merged {prod.merged}")

    def _joined(self, process: SimulatedProcess, stage: int, cons: FhCons) -> None:
        """Check that no lane waits for its end, and that each sender feeds a cohort in one lane."""
        lanes = Counter((lane.edge, lane.sender, lane.cohort) for lane in cons.lanes.values())
        if any(lane.stops or not lane.channels for lane in cons.lanes.values()) or any(n > 1 for n in lanes.values()):
            raise self.violated(f"{process.name}, stage {stage} has lanes {cons.lanes}")

    def _forgotten(self, process: SimulatedProcess, pooler: Pooler) -> None:
        """Check that what is over is not remembered: a process that runs for a year must not grow."""
        mover = pooler.mover
        known = {*mover.awaited, *mover.arrived, *mover.wanted, *mover.given, *pooler.cons.installed}
        if over := known - mover.standby.keys():
            raise self.violated(f"{process.name}, stage {pooler.stage} remembers copies not in transfer: {over}")
        cohorts = pooler.cons.cohorts
        if pooler.cons.pending.keys() - cohorts.keys():
            raise self.violated(f"{process.name}, stage {pooler.stage} remembers frames of {pooler.cons.pending}")
        if pooler.prod.cohorts.keys() != cohorts.keys() or not all(own.partitions for own in cohorts.values()):
            raise self.violated(f"{process.name}, stage {pooler.stage} remembers cohorts {pooler.prod.cohorts}")


class NoDeadlock(Checker):
    """Thesis 3.4.2: after any failures that leave a copy of each partition, the dataflow continues.

    It also continues without a controller, if all deaths are known.
    """

    claim = "no deadlock"

    def at_rest(self, scenario: Scenario, live: Sequence[SimulatedProcess], view: View) -> None:
        self.alone(scenario, live)

    def alone(self, scenario: Scenario, live: Sequence[SimulatedProcess]) -> None:
        for process in live:
            for place, state in process.states.items():
                if state.ends != scenario.producers[place[0]]:
                    what = "the egress" if process.role == EGRESS else f"{process.name}, {place}"
                    raise self.violated(
                        f"nothing is left to happen, and {what} has not seen the end: "
                        f"it is at {process.through[place]} of {scenario.reference.last_sn}"
                    )


class NoPause(Checker):
    """Section 3.4.3: what is produced is sent, and what has arrived is consumed, also while a copy catches up.

    Only rows of a producer that lags wait, for that one; and the oldest cohort, for one that has all it needs to meet.
    In an unordered stage nothing waits, except to meet. The source waits for a consumer for which the bound is
    kept; for one with a state transfer in flight the bound is higher.
    """

    claim = "no pause"

    def answered(self, process: SimulatedProcess, stage: int) -> None:
        machine = process.node.machines[stage]
        if isinstance(machine, Ingress) or (isinstance(machine, Pooler) and not machine.cons.installed):
            self._sends(process, stage, machine.prod)
        if isinstance(machine, Pooler) and not machine.prod.leaving and not machine.prod.buffer.full():
            self._consumes(process, stage, machine.cons)
        if isinstance(machine, Egress):
            self._consumes(process, stage, machine.cons)

    def accepted(self, process: SimulatedProcess, message: PeerMessage) -> None:
        scenario, view, ingress = process.scenario, process.node.view, process.node.machines.get(0)
        if not isinstance(ingress, Ingress) or ingress.pulling or ingress.ended or view is None:
            return
        if ingress.bound is not None:
            return  # It waits for what is decided of a change (rule 45); that this ends, the end of the stream shows.
        if not ingress.knows_positions and ingress.prod.produced[0] >= process.numbered:
            return  # It waits for the positions of others (rule 39); that this ends, the end of the stream shows.
        if scenario.counted:
            return  # Rule 37 says when a pool is full.
        in_transfer = {(standby.stage, standby.node) for standby in view.standby}
        more = scenario.bound_rows if scenario.transfer_rows_max is None else scenario.transfer_rows_max
        for (edge, node), floor in ingress.prod.buffer.floors.items():
            kept = sum(len(run.body) for run in ingress.prod.buffer.runs if run.upto > floor)
            has_more = node in view.slow or (view.edges[edge][1], node) in in_transfer
            if kept >= (more if has_more else scenario.bound_rows):
                return
            if rows_for_all(ingress.prod.buffer, edge) >= scenario.bound_rows:
                return
        raise self.violated(f"{process.name} does not pull from its source, and no consumer is at its bound")

    def _consumes(self, process: SimulatedProcess, stage: int, cons: FhCons) -> None:
        oldest = min(cons.cohorts, default=0)
        view = process.node.view
        if cons.bound is not None or view is None:
            return  # The same.
        is_early = stage in process.scenario.unordered and len(cons.cohorts) == 1
        if is_early and (stage, oldest) not in process.work:
            # Rows after a change wait until all those before it are consumed (rule 53).
            cut = view.next_cut(stage, cons.cohorts[oldest].consumed, at=True)
            if any(cut is None or frame.after < cut for frame in cons.pending.get(oldest, ())):
                raise self.violated(f"{process.name}, stage {stage} is idle with {cons.pending[oldest]} here")
        if not cons.cohorts or (stage, oldest) in process.work:
            return
        consumed = {k: own.consumed for k, own in cons.cohorts.items()}
        lanes = [lane for lane in cons.lanes.values() if lane.channels]
        here = {k: min((lane.upto for lane in lanes if lane.cohort == k), default=0) for k in consumed}
        # How far one step takes each: the oldest waits for a cohort that catches up only before the last step.
        step = None if stage in process.scenario.unordered else process.scenario.step
        near = {k: here[k] if step is None else min(here[k], consumed[k] + step) for k in consumed}
        for k, position in consumed.items():
            cut = view.next_cut(stage, position)
            near[k] = near[k] if cut is None else min(near[k], cut)
        is_to_meet = any(consumed[oldest] <= near[other] for other in consumed if other != oldest)
        if here[oldest] > consumed[oldest] and not is_to_meet:
            raise self.violated(f"{process.name}, stage {stage} has rows up to {here} and is at {consumed}")

    def _sends(self, process: SimulatedProcess, stage: int, prod: FhProd) -> None:
        most = max(prod.produced.values(), default=0)
        for name, lane in prod.lanes.items():
            if lane.cursor >= most:
                continue
            producers = {p for block in lane.channels for p in block.producers}
            reached = min((prod.produced[k] for k, members in prod.cohorts.items() if members & producers), default=0)
            if lane.cursor < reached:
                raise self.violated(f"{process.name}, stage {stage}: lane {name} is at {lane.cursor} of {reached}")


class CohortsMeet(Checker):
    """Section 3.4.3.2: a copy that catches up and those that are there are fused: none skips the other's position."""

    claim = "cohorts meet"

    def given(self, process: SimulatedProcess, work: Consume | Pull) -> None:
        machine = process.node.machines[work.stage if isinstance(work, Consume) else 0]
        if not isinstance(work, Consume) or not isinstance(machine, Pooler):
            return
        cohorts = machine.cons.cohorts
        oldest = min(cohorts)
        over = [k for k, own in cohorts.items() if work.after < own.consumed < work.upto and oldest in (k, work.cohort)]
        is_early = len(cohorts) > 1 and work.upto == work.after  # A cohort at work on early rows is not idle to meet.
        if over or is_early or (work.cohort != oldest and work.upto > cohorts[oldest].consumed):
            raise self.violated(f"{process.name} begins {work} with cohorts {cohorts}")


class OneSender(Checker):
    """Section 3.4.1, fig. 3.11: a consumer copy takes each producer partition from one copy at a time."""

    claim = "one sender at a time"

    def attached(self, process: SimulatedProcess, sender: str, attach: Attach) -> None:
        view = process.node.view
        assert view is not None, f"{process.name} attaches before its first view"
        for channel in channels_of(attach):
            before = process.feeds.get(channel)
            if before is not None and view.alive(before):
                raise self.violated(f"{process.name} asks {sender} for channel {channel} while {before} feeds it")
            producers = view.edges[attach.edge][0]
            live = view.live_copies(producers, channel[1])
            if sender not in live:
                raise self.violated(f"{process.name} asks {sender}, which has no live copy, for {channel}")
            copies = view.copies[producers][channel[1]]
            own = copies[_slot(view, view.edges[attach.edge][1], channel[2], process.name) % len(copies)]
            last = process.last_view
            has_run = last is None or own in last.live_copies(producers, channel[1])
            if own in live and sender != own and own not in view.slow and has_run:
                raise self.violated(f"{process.name} asks {sender} for {channel}, and {own} has its slot")

    def stopped(self, process: SimulatedProcess, sender: str, stop: Stop) -> None:
        view = process.node.view
        assert view is not None, f"{process.name} stops a sender before its first view"
        if not view.alive(sender):
            raise self.violated(f"{process.name} asks {sender}, which is dead, to stop {stop.channels}")

    def at_rest(self, scenario: Scenario, live: Sequence[SimulatedProcess], view: View) -> None:
        for process in live:
            for stage, machine in process.node.machines.items():
                if not isinstance(machine, Egress):
                    self._sent_once(process, stage, machine.prod)
                if not isinstance(machine, Ingress):
                    self._fed_once(process, stage, machine.cons, view)

    def _sent_once(self, process: SimulatedProcess, stage: int, prod: FhProd) -> None:
        lanes = prod.lanes.items()
        sent = Counter((*name[:2], *channel) for name, lane in lanes for channel in self._each(lane.channels))
        if any(count > 1 for count in sent.values()):
            raise self.violated(f"{process.name}, stage {stage} sends a channel twice: {prod.lanes}")

    def _fed_once(self, process: SimulatedProcess, stage: int, cons: FhCons, view: View) -> None:
        fed = sorted((lane.edge, *channel) for lane in cons.lanes.values() for channel in self._each(lane.channels))
        held = sorted(partition for of, partition in process.states if of == stage)
        producers = {edge: range(len(view.copies[view.edges[edge][0]])) for edge in view.inputs(stage)}
        if fed != [(edge, p, c) for edge, partitions in producers.items() for p in partitions for c in held]:
            raise self.violated(f"{process.name}, stage {stage} holds {held} and is fed {fed}")

    def _each(self, blocks: Sequence[Block]) -> Iterator[tuple[int, int]]:
        """Every single channel of some blocks."""
        for block in blocks:
            if not block.producers or not block.consumers:
                raise self.violated(f"{block} is left of a lane")
            yield from product(block.producers, block.consumers)

    def delivered(self, process: SimulatedProcess, data: Data) -> None:
        view = process.node.view
        if view is None or data.view > view.number or not view.alive(data.sender):
            return  # It will be held or ignored.
        machine = process.node.machines[view.edges[data.edge][1]]
        assert not isinstance(machine, Ingress)
        lane = machine.cons.lanes.get(data.lane_id)
        if lane is None or lane.stops:
            return  # The sender may not know yet what was stopped; the consumer knows, and drops or filters it.
        for row in data.bodies[0]:
            channel = (data.edge, row.producer, row.consumer)
            if process.feeds.get(channel) != data.sender:
                raise self.violated(
                    f"{process.name} takes channel {channel} from {process.feeds.get(channel)}, "
                    f"and {data.sender} sends {row}"
                )


class FedByOneThatRan(Checker):
    """Rule 13: when a copy has moved, those that it fed take from another that ran before the move, if there is one.

    Egresses are looked at: they attach only when a view has changed their senders.
    """

    claim = "a copy that was just built feeds none"

    def attached(self, process: SimulatedProcess, sender: str, attach: Attach) -> None:
        view, last = process.node.view, process.last_view
        if process.role != EGRESS or view is None or last is None:
            return
        stage = view.edges[attach.edge][0]
        for _, producer, _ in channels_of(attach):
            ran = set(view.live_copies(stage, producer)) & set(last.live_copies(stage, producer)) - view.slow
            if ran and sender not in ran:
                raise self.violated(f"{process.name} attaches to {sender}, which was just built, and could to {ran}")


class FencedIsMute(Checker):
    """Rules 12, 20, 32: messages of a node that is dead in the receiver's view, or left out of it, are refused."""

    claim = "a fenced site has no effect"

    def accepted(self, process: SimulatedProcess, message: PeerMessage) -> None:
        view = process.node.view
        if view is not None and message.view <= view.number and not view.alive(message.sender):
            raise self.violated(f"{process.name} is in view {view.number} and takes {message} of the dead")


CHECKERS: tuple[type[Checker], ...] = (
    LossFree,
    DupFree,
    InOrder,
    ReplicasIdentical,
    OneMeaning,
    BuffersDrain,
    NoDeadlock,
    NoPause,
    CohortsMeet,
    OneSender,
    OneCopyPerSite,
    RecoveryEnds,
    SourceFirst,
    LeastFirst,
    MovesBegin,
    CutAtOnce,
    NothingGivenUp,
    LastCopyStays,
    AnotherDonates,
    ShortSteps,
    SlowFeedNone,
    PromptCopyStays,
    NoneWaits,
    FedByOneThatRan,
    FencedIsMute,
    ViewsStaySmall,
    WithinBounds,
    ChargedByNeed,
    OneEdition,
    StepsStop,
    CutsRise,
    ChangesEnd,
)


def _slot(view: View, stage: int, partition: int, node: str) -> int:
    """The slot of a partition whose copy `node` has, or is going to have."""
    in_transfer = {s.node: s.slot for s in view.standby if (s.stage, s.partition) == (stage, partition)}
    slots = {copy: slot for slot, copy in enumerate(view.copies[stage][partition])}
    return (in_transfer | slots)[node]


def all_checkers() -> tuple[Checker, ...]:
    """One of each."""
    return tuple(checker() for checker in CHECKERS)
