"""What must hold in every world, each claim in a checker of its own (thesis 3.1.1, 3.2.1, 3.4.2).

A checker is told what one process does, when it does it: an attach it sends, a frame that is delivered
to it, the rows its operator is given. When nothing is left to happen it sees all live processes at once.
Checkers keep no state: what they need of the past is in the process. They compare with the plain run of
the scenario, and raise `Violated` with the claim and the place.

Not here: that a message is never refused and that no assertion fails. The machines say so themselves,
and a world treats both like a violated invariant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

from flux.protocols.egress import Egress
from flux.protocols.fh_cons import FhCons
from flux.protocols.fh_prod import FhProd
from flux.protocols.ingress import Ingress
from flux.protocols.messages import Attach, Block, Consume, Data, Move, PeerMessage, Pull, Standby, Stop, View
from flux.protocols.pooler import Pooler

from .checker import Checker as Checker
from .checker import Violated as Violated
from .dataflow import EGRESS, INGRESS, OperatorState, Row, Scenario, operate
from .process import Place, Process, channels_of, is_among


class LossFree(Checker):
    """Thesis 3.1.1: every row a consumer must see, it sees before anything behind it."""

    claim = "loss-free"
    compares_with_the_plain_run = True

    def consumed(self, process: Process, work: Consume, partition: int, rows: list[Row], state: OperatorState) -> None:
        expected = process.scenario.reference.rows(work.stage, partition, work.after, work.upto)
        if rows == expected:
            return
        # An unordered stage may have had some of them before.
        before = () if work.ordered else process.beyond((work.stage, partition))
        lost = Counter(expected) - Counter(rows) - Counter(before)
        if lost:
            raise self.violated(
                f"{process.name}, stage {work.stage}, partition {partition} is through "
                f"({work.after}..{work.upto}] without {sorted(lost)}"
            )


class DupFree(Checker):
    """Thesis 3.1.1: no row is seen twice, and none that a plain run does not have."""

    claim = "dup-free"
    compares_with_the_plain_run = True

    def consumed(self, process: Process, work: Consume, partition: int, rows: list[Row], state: OperatorState) -> None:
        before = () if work.ordered else process.beyond((work.stage, partition))
        seen = [*rows, *before]
        upto = work.upto if work.ordered else max((row.sn for row in seen), default=work.upto)
        expected = process.scenario.reference.rows(work.stage, partition, work.after, upto)
        extra = Counter(seen) - Counter(expected) if seen != expected else None
        if extra:
            raise self.violated(
                f"{process.name}, stage {work.stage}, partition {partition} is given {sorted(extra)} "
                f"once too often in ({work.after}..{work.upto}]"
            )


class InOrder(Checker):
    """Thesis 3.2.1: consumers merge by sequence number; nothing comes after what follows it.

    The position of an unordered stage goes on in the same way; only rows need not wait for it.
    """

    claim = "in order"

    def consumed(self, process: Process, work: Consume, partition: int, rows: list[Row], state: OperatorState) -> None:
        where = f"{process.name}, stage {work.stage}, partition {partition}"
        through = process.through[work.stage, partition]
        is_nothing = work.upto == work.after and (work.ordered or not work.frames)
        if work.after != through or work.upto < work.after or is_nothing:
            raise self.violated(f"{where} is through {through} and is given ({work.after}..{work.upto}]")
        if work.ordered and any(frame.after >= work.upto for frame in work.frames):
            raise self.violated(f"{where} is given frames that begin beyond {work.upto}: {work.frames}")
        if work.ordered != (work.stage not in process.scenario.unordered):
            raise self.violated(f"{where} is told that order {'matters' if work.ordered else 'does not matter'}")
        late = [
            row
            for frame in work.frames
            if frame.after < work.after
            for row in frame.body
            if row.consumer == partition and row.sn <= work.after and row not in process.history[work.stage, partition]
            if not frame.channels or is_among(row, frame.channels)
        ]
        if late:
            raise self.violated(f"{where} is through {work.after} when {late} come")


class ReplicasIdentical(Checker):
    """Thesis 3.2.1: the copies of a partition go through the same input and the same states.

    Those of an unordered stage go through it each in an order of its own: they are in the state that all they have
    consumed gives in any order, and in the same one at rest.
    """

    claim = "replicas identical"
    compares_with_the_plain_run = True

    def consumed(self, process: Process, work: Consume, partition: int, rows: list[Row], state: OperatorState) -> None:
        place = (work.stage, partition)
        expected = process.scenario.reference.state(*place, work.upto)
        if not work.ordered:
            early = [row for row in (*process.beyond(place), *rows) if row.sn > work.upto]
            expected, _ = operate(process.scenario, *place, expected, early, work.upto, work.upto)
        if state != expected:
            raise self.violated(
                f"{process.name}, stage {work.stage}, partition {partition} is in {state} at "
                f"{work.upto}, not in {expected}"
            )

    def at_rest(self, scenario: Scenario, live: Sequence[Process], view: View) -> None:
        first: dict[tuple[int, int], Process] = {}
        for process in live:
            for place, rows in process.history.items():
                other = first.setdefault(place, process)
                if rows != other.history[place]:
                    raise self.violated(f"{process.name} and {other.name} differ in what {place} has seen")


class BuffersDrain(Checker):
    """Rules 1, 2, 4: in the end every run has left every buffer, and nothing waits for anything."""

    claim = "buffers drain"

    def at_rest(self, scenario: Scenario, live: Sequence[Process], view: View) -> None:
        for process in live:
            if process.node.held:
                raise self.violated(f"{process.name} still holds {list(process.node.held)}")
            for stage, machine in process.node.machines.items():
                self._drained(process, stage, machine)
            if process.role == INGRESS and process.released != scenario.reference.last_sn:
                raise self.violated(f"the source may forget only what is up to {process.released}")

    def _drained(self, process: Process, stage: int, machine: Ingress | Pooler | Egress) -> None:
        if not isinstance(machine, Egress):
            self._known(process, stage, machine.prod)
            buffer = machine.prod.buffer
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

    def _known(self, process: Process, stage: int, prod: FhProd) -> None:
        """Nobody is fed who is not a consumer any more, and nobody by two names."""
        view = process.node.view
        assert view is not None
        fed = {(edge, node) for edge in view.outputs(stage) for node in view.members(view.edges[edge][1])}
        named = {lane[:2] for lane in (*prod.lanes, *prod.merged)} | prod.stints.keys()
        if named - fed or prod.lanes.keys() & prod.merged.keys():
            raise self.violated(f"{process.name}, stage {stage} has lanes {prod.lanes}, merged {prod.merged}")

    def _joined(self, process: Process, stage: int, cons: FhCons) -> None:
        """No lane waits for its end, and what one sender sends to one cohort comes in one lane."""
        lanes = Counter((lane.edge, lane.sender, lane.cohort) for lane in cons.lanes.values())
        if any(lane.stops or not lane.channels for lane in cons.lanes.values()) or any(n > 1 for n in lanes.values()):
            raise self.violated(f"{process.name}, stage {stage} has lanes {cons.lanes}")

    def _forgotten(self, process: Process, pooler: Pooler) -> None:
        """What is over is not remembered: a process that runs for a year must not grow."""
        mover = pooler.mover
        known = {*mover.awaited, *mover.arrived, *mover.wanted, *mover.given, *pooler.cons.standing}
        if over := known - mover.standby.keys():
            raise self.violated(f"{process.name}, stage {pooler.stage} remembers copies not on their way: {over}")
        cohorts = pooler.cons.cohorts
        if pooler.cons.pending.keys() - cohorts.keys():
            raise self.violated(f"{process.name}, stage {pooler.stage} remembers frames of {pooler.cons.pending}")
        if pooler.prod.cohorts.keys() != cohorts.keys() or not all(own.partitions for own in cohorts.values()):
            raise self.violated(f"{process.name}, stage {pooler.stage} remembers cohorts {pooler.prod.cohorts}")


class NoDeadlock(Checker):
    """Thesis 3.4.2: after any failures that leave a copy of each partition, the dataflow goes on.

    So it does without a controller, if all that died are known to have died.
    """

    claim = "no deadlock"

    def at_rest(self, scenario: Scenario, live: Sequence[Process], view: View) -> None:
        self.alone(scenario, live)

    def alone(self, scenario: Scenario, live: Sequence[Process]) -> None:
        for process in live:
            for place, state in process.states.items():
                if state.ends != scenario.producers[place[0]]:
                    what = "the egress" if process.role == EGRESS else f"{process.name}, {place}"
                    raise self.violated(
                        f"nothing is left to happen, and {what} has not seen the end: "
                        f"it is through {process.through[place]} of {scenario.reference.last_sn}"
                    )


class NoPause(Checker):
    """Section 3.4.3: what is produced is sent, and what has come is consumed, also while a copy catches up.

    Only rows of a producer that lags wait, for that one; and the oldest cohort, for one that has all it needs to meet.
    In an unordered stage nothing waits, but for a meeting.
    """

    claim = "no pause"

    def answered(self, process: Process, stage: int) -> None:
        machine = process.node.machines[stage]
        if isinstance(machine, Ingress) or (isinstance(machine, Pooler) and not machine.cons.standing):
            self._sends(process, stage, machine.prod)
        if isinstance(machine, Pooler) and not machine.prod.leaving and not machine.prod.buffer.full():
            self._consumes(process, stage, machine.cons)
        if isinstance(machine, Egress):
            self._consumes(process, stage, machine.cons)

    def _consumes(self, process: Process, stage: int, cons: FhCons) -> None:
        oldest = min(cons.cohorts, default=0)
        is_early = stage in process.scenario.unordered and len(cons.cohorts) == 1
        if is_early and cons.pending.get(oldest) and (stage, oldest) not in process.work:
            raise self.violated(f"{process.name}, stage {stage} is idle with {cons.pending[oldest]} here")
        consumed = {k: own.consumed for k, own in cons.cohorts.items()}
        lanes = [lane for lane in cons.lanes.values() if lane.channels]
        here = {k: min((lane.upto for lane in lanes if lane.cohort == k), default=0) for k in consumed}
        if not cons.cohorts or (stage, oldest) in process.work or here[oldest] <= consumed[oldest]:
            return
        if not any(consumed[oldest] <= here[other] for other in consumed if other != oldest):
            raise self.violated(f"{process.name}, stage {stage} has rows up to {here} and stands at {consumed}")

    def _sends(self, process: Process, stage: int, prod: FhProd) -> None:
        most = max(prod.produced.values(), default=0)
        for name, lane in prod.lanes.items():
            if lane.cursor >= most:
                continue
            producers = {p for block in lane.channels for p in block.producers}
            reached = min((prod.produced[k] for k, members in prod.cohorts.items() if members & producers), default=0)
            if lane.cursor < reached:
                raise self.violated(f"{process.name}, stage {stage}: lane {name} is at {lane.cursor} of {reached}")


class CohortsMeet(Checker):
    """Section 3.4.3.2: a copy that catches up and those that are there become one: none steps over another's place."""

    claim = "cohorts meet"

    def given(self, process: Process, work: Consume | Pull) -> None:
        machine = process.node.machines[work.stage if isinstance(work, Consume) else 0]
        if not isinstance(work, Consume) or not isinstance(machine, Pooler):
            return
        cohorts = machine.cons.cohorts
        oldest = min(cohorts)
        over = [k for k, own in cohorts.items() if work.after < own.consumed < work.upto and oldest in (k, work.cohort)]
        is_early = len(cohorts) > 1 and work.upto == work.after  # Who is busy with that is not there to meet.
        if over or is_early or (work.cohort != oldest and work.upto > cohorts[oldest].consumed):
            raise self.violated(f"{process.name} begins {work} with cohorts {cohorts}")


class OneSender(Checker):
    """Section 3.4.1, fig. 3.11: a consumer copy takes each producer partition from one copy at a time."""

    claim = "one sender at a time"

    def attached(self, process: Process, sender: str, attach: Attach) -> None:
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
            if own in live and sender != own:
                raise self.violated(f"{process.name} asks {sender} for {channel}, and {own} has its slot")

    def stopped(self, process: Process, sender: str, stop: Stop) -> None:
        view = process.node.view
        assert view is not None, f"{process.name} stops somebody before its first view"
        if not view.alive(sender):
            raise self.violated(f"{process.name} asks {sender}, which is dead, to stop {stop.channels}")

    def at_rest(self, scenario: Scenario, live: Sequence[Process], view: View) -> None:
        for process in live:
            for stage, machine in process.node.machines.items():
                if not isinstance(machine, Egress):
                    self._sent_once(process, stage, machine.prod)
                if not isinstance(machine, Ingress):
                    self._fed_once(process, stage, machine.cons, view)

    def _sent_once(self, process: Process, stage: int, prod: FhProd) -> None:
        lanes = prod.lanes.items()
        sent = Counter((*name[:2], *channel) for name, lane in lanes for channel in self._each(lane.channels))
        if any(count > 1 for count in sent.values()):
            raise self.violated(f"{process.name}, stage {stage} sends a channel twice: {prod.lanes}")

    def _fed_once(self, process: Process, stage: int, cons: FhCons, view: View) -> None:
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

    def delivered(self, process: Process, data: Data) -> None:
        view = process.node.view
        if view is None or data.view > view.number or not view.alive(data.sender):
            return  # It is going to be held or ignored.
        machine = process.node.machines[view.edges[data.edge][1]]
        assert not isinstance(machine, Ingress)
        lane = machine.cons.lanes.get(data.stint)
        if lane is None or lane.stops:
            return  # The sender may not know yet what was stopped; the consumer knows, and drops or filters it.
        for row in data.bodies[0]:
            channel = (data.edge, row.producer, row.consumer)
            if process.feeds.get(channel) != data.sender:
                raise self.violated(
                    f"{process.name} takes channel {channel} from {process.feeds.get(channel)}, "
                    f"and {data.sender} sends {row}"
                )


class OneCopyPerSite(Checker):
    """Section 3.4: no two copies of a partition are on the same site, nor on their way to be."""

    claim = "never two copies on one site"

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        for stage, partitions in enumerate(view.copies):
            for partition, copies in enumerate(partitions):
                coming = [s.node for s in view.standby if (s.stage, s.partition) == (stage, partition)]
                nodes = [node for node in copies if node not in view.dead] + coming
                if len(nodes) != len(set(nodes)):
                    raise self.violated(f"stage {stage}, partition {partition} lives on {nodes}")

    def installed(self, process: Process, place: Place) -> None:
        if place in process.states:
            raise self.violated(f"{process.name} has a copy of {place} and is given another")


class RecoveryEnds(Checker):
    """Section 3.4.3: every lost copy is rebuilt, if there is a site that may hold it."""

    claim = "recovery ends"

    def at_rest(self, scenario: Scenario, live: Sequence[Process], view: View) -> None:
        if view.standby:
            raise self.violated(f"nothing is left to happen, and {view.standby} are not live")
        for stage in (0, len(view.copies) - 1):
            if not view.live_copies(stage, 0):
                raise self.violated(f"nothing is left to happen, and nobody serves the end {stage}")
        sites = {process.name for process in live if process.role not in (INGRESS, EGRESS)}
        for stage, partitions in enumerate(view.copies[1:-1], start=1):
            for partition, copies in enumerate(partitions):
                if set(copies) & view.dead and sites - set(copies):
                    raise self.violated(f"stage {stage}, partition {partition} is left with {copies}")
                for node in set(copies) - view.dead:
                    [process] = [p for p in live if p.name == node]
                    if (stage, partition) not in process.states:
                        raise self.violated(f"{node} has no state of stage {stage}, partition {partition}")


class SourceFirst(Checker):
    """Section 3.4.3.3: lost copies are rebuilt from source to destination, a stage at a time, a few at once."""

    claim = "rebuilt from the source on"

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        building = Counter(standby.stage for standby in view.standby)
        lacking = (s for s in range(1, len(view.copies) - 1) if building[s] or _to_be_rebuilt(view, s))
        first = next(lacking, len(view.copies))
        if not building[first] and first < len(view.copies) and scenario.at_once:
            raise self.violated(f"nothing is done about the lost copies of stage {first}: {view.copies[first]}")
        for new in _begun(before, view):
            if new.stage > first or building[new.stage] > scenario.at_once:
                raise self.violated(f"{new} is begun while stage {first} lacks copies, or is one too many")


class LeastFirst(Checker):
    """Section 3.4.3.3: a lost copy is rebuilt where the fewest copies are, of the sites that may have it."""

    claim = "rebuilt where least is"

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        for new in _begun(before, view):
            free = _free(view, view.copies[new.stage][new.partition])
            load = {node: self._load(view, node, new.version) for node in free}
            if load[new.node] > min(load.values()):
                raise self.violated(f"version {new.version} is built on {new.node}, where {load} copies are")

    def _load(self, view: View, node: str, version: int) -> int:
        held = sum(copies.count(node) for partitions in view.copies for copies in partitions)
        return held + sum(standby.node == node for standby in view.standby if standby.version < version)


class MovesBegin(Checker):
    """Section 5.1: a copy that is asked to move, and may, is on its way; else nothing changes."""

    claim = "moves begin"

    def asked(self, before: View, move: Move, view: View) -> None:
        copies = before.copies[move.stage][move.partition]
        ends = {node for partitions in (before.copies[0], before.copies[-1]) for node in partitions[0]}
        is_free = before.alive(move.to) and move.to not in (*ends, *copies)
        is_still = all((s.stage, s.partition) != (move.stage, move.partition) for s in before.standby)
        may = before.number > 0 and is_free and is_still and before.alive(copies[move.slot])
        begun = [s for s in view.standby if s not in before.standby]
        wanted = [(move.stage, move.partition, move.slot, move.to)] if may else []
        if wanted != [(s.stage, s.partition, s.slot, s.node) for s in begun[:1]] or (not may and view != before):
            raise self.violated(f"{move} is asked for in view {before.number}, and {begun or 'nothing'} begins")


class NothingGivenUp(Checker):
    """Rule 17: the controller says that a partition is lost only when no process has a copy that the view knows of."""

    claim = "nothing given up"

    def lost(self, live: Sequence[Process], view: View, places: Sequence[Place]) -> None:
        for stage, partition in places:
            if stage in (0, len(view.copies) - 1):
                raise self.violated(f"the end {stage} is started again, and needs no copy")
            coming = {s.node for s in view.standby if (s.stage, s.partition) == (stage, partition)}
            for process in live:
                counts = process.name in coming or process.name in view.copies[stage][partition]
                if counts and (stage, partition) in process.states:
                    raise self.violated(f"{process.name} has a copy of stage {stage}, partition {partition}")


class LastCopyStays(Checker):
    """Rule 19: of nodes that may be alive, one that can be spared is removed, and never the holder of a last copy."""

    claim = "the last copy stays"

    def doubted(self, view: View, doubted: Sequence[str], removed: Sequence[str]) -> None:
        for node in removed:
            if self._is_needed(view, node):
                raise self.violated(f"{node} is declared dead in view {view.number}, and nobody else has what it has")
        if removed and not all(view.alive(node) for node in doubted):
            raise self.violated(f"of {doubted} one was dead in view {view.number}, and {removed} had to go as well")
        sites = [node for node in doubted if node not in (*view.copies[0][0], *view.copies[-1][0])]
        spared = [node for node in sites if not self._is_needed(view, node)]
        if spared and not removed and all(view.alive(node) for node in doubted):
            raise self.violated(f"{spared} could be spared in view {view.number}, and none of them was removed")

    def _is_needed(self, view: View, node: str) -> bool:
        for stage, partitions in enumerate(view.copies[1:-1], start=1):
            for partition, copies in enumerate(partitions):
                others = {copy for copy in copies if copy not in view.dead and copy != node}
                coming = {s.node for s in view.standby if (s.stage, s.partition) == (stage, partition)}
                if not others and (node in copies or node in coming):
                    return True
        return False


class FencedIsMute(Checker):
    """Rules 12, 20: what a node sends that is dead in the receiver's view is refused."""

    claim = "a fenced site has no effect"

    def heard(self, process: Process, message: PeerMessage) -> None:
        view = process.node.view
        if view is not None and message.sender in view.dead:
            raise self.violated(f"{process.name} is in view {view.number} and takes {message} of the dead")


class WithinBounds(Checker):
    """Fig. 3.4, rule 8: nobody begins work when his pool is full, but for who is behind what the pool holds.

    He takes what he needs to come after, and no frame that begins beyond it.
    """

    claim = "buffers within their bound"

    def given(self, process: Process, work: Consume | Pull) -> None:
        machine = process.node.machines[work.stage if isinstance(work, Consume) else 0]
        if isinstance(machine, Egress):
            return
        runs = machine.prod.buffer.runs
        rows = sum(len(run.body) for run in runs)
        if rows >= process.scenario.bound_rows and all(run.upto <= work.after for run in runs):
            raise self.violated(f"{process.name} begins {work} with {rows} rows in its pool")
        early = [f for f in work.frames if f.after >= work.upto] if isinstance(work, Consume) else []
        if rows >= process.scenario.bound_rows and early:
            raise self.violated(f"{process.name} takes early rows in {work} with {rows} rows in its pool")


CHECKERS: tuple[type[Checker], ...] = (
    LossFree,
    DupFree,
    InOrder,
    ReplicasIdentical,
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
    NothingGivenUp,
    LastCopyStays,
    FencedIsMute,
    WithinBounds,
)


def _begun(before: View, view: View) -> list[Standby]:
    """The copies that are rebuilt from this view on; a move is somebody's wish, and not one of them."""
    new = [standby for standby in view.standby if standby.version > before.versions]
    return [standby for standby in new if view.copies[standby.stage][standby.partition][standby.slot] in view.dead]


def _free(view: View, copies: Sequence[str]) -> list[str]:
    """The sites that may have one more copy of a partition."""
    ends = {node for partitions in (view.copies[0], view.copies[-1]) for node in partitions[0]}
    return [node for node in view.nodes if view.alive(node) and node not in (*ends, *copies)]


def _to_be_rebuilt(view: View, stage: int) -> list[int]:
    """The partitions of a stage that lack a copy, and for which there is a place."""
    partitions = enumerate(view.copies[stage])
    return [p for p, copies in partitions if not view.dead.isdisjoint(copies) and _free(view, copies)]


def _slot(view: View, stage: int, partition: int, node: str) -> int:
    """Which copy of a partition `node` has, or is going to have."""
    coming = {s.node: s.slot for s in view.standby if (s.stage, s.partition) == (stage, partition)}
    slots = {copy: slot for slot, copy in enumerate(view.copies[stage][partition])}
    return (coming | slots)[node]


def all_checkers() -> tuple[Checker, ...]:
    """One of each."""
    return tuple(checker() for checker in CHECKERS)
