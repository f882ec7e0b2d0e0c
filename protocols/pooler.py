"""Pooler: one segment on one site: FH-Cons, the operator's partitions, FH-Prod (thesis 3.4, fig. 3.10).

It decides when the operator runs: when the frontier has moved, the output pool has room, and the
operator is not busy with the rows before. One `Consume` covers all partitions of a cohort. What was
consumed is acknowledged after its output is in the buffer, so that a crash loses both or neither.

It also moves copies, on both sides. A site that is to hold a new copy asks the donor for the state, at the
position it has consumed or later, and acknowledges nothing beyond that until the state is here (see
`fh_cons`). The donor cuts between two steps of the operator: state, position and unacknowledged output
are of one instant (rule 16), and nobody else waits. The new copy founds a cohort of its own.

Departure: the queues of thesis 2.1.2 (push, pull, passive) are not needed: a segment is pulled by its
pooler, and the buffers at its two ends are the slack between segments.
Departure: nothing is paused (thesis 3.4.3.1), because attaches carry exact positions.
"""

from __future__ import annotations

from collections.abc import Iterator

from .fh_cons import FhCons
from .fh_prod import FhProd
from .machine import Machine, Rule, always, ignore
from .messages import (
    Ack,
    Attach,
    Consume,
    Consumed,
    Data,
    Done,
    Drop,
    Effect,
    Failed,
    Install,
    Merge,
    Merged,
    Position,
    Send,
    Standby,
    State,
    Stop,
    Stopped,
    Tell,
    View,
    Want,
)


class Pooler(Machine):
    """Stage `stage` of the dataflow on site `name`."""

    def __init__(self, name: str, stage: int, bound_rows: int) -> None:
        self.name = name
        self.stage = stage
        self.cons = FhCons(name, stage - 1)
        self.prod = FhProd(name, stage, bound_rows)
        self.standby: dict[int, Standby] = {}  # Copies of this stage on their way, here or elsewhere.
        self.awaited: dict[int, Position] = {}  # Those whose state we have asked for, at or behind a position.
        self.arrived: dict[int, State] = {}  # Those whose state is here and cannot be installed yet.
        self.wanted: dict[int, Want] = {}  # Those whose state we are asked for.

    @property
    def title(self) -> str:
        return f"Pooler of stage {self.stage} on {self.name}"

    # Guards.

    def is_what_the_operator_was_given(self, message: Consumed) -> bool:
        cohort = self.cons.cohorts.get(message.cohort)
        return cohort is not None and message.upto == cohort.working_upto > cohort.consumed

    def is_ours_to_give(self, message: Want) -> bool:
        standby = self.standby.get(message.version)
        return standby is not None and (standby.donor, standby.node) == (self.name, message.sender)

    def is_not_on_its_way(self, message: Want) -> bool:
        return message.version not in self.standby

    def is_awaited(self, message: State) -> bool:
        return message.version in self.awaited

    # Actions.

    def receive(self, message: Data | Stopped | Merged) -> Iterator[Effect]:
        yield from self.cons.step(message)
        yield from self._go_on()

    def serve(self, message: Ack | Attach | Stop | Merge) -> Iterator[Effect]:
        yield from self.prod.step(message)
        yield from self._go_on()

    def emit_and_acknowledge(self, message: Consumed) -> Iterator[Effect]:
        yield from self.prod.step(message)
        self.cons.finish(message.cohort)
        yield from self._acknowledge()
        yield from self._go_on()

    def note_want(self, message: Want) -> Iterator[Effect]:
        self.wanted[message.version] = message
        yield from self._go_on()

    def note_state(self, message: State) -> Iterator[Effect]:
        del self.awaited[message.version]
        self.arrived[message.version] = message
        yield from self._go_on()

    def adopt(self, view: View) -> Iterator[Effect]:
        first = not self.cons.producers
        gone = self.cons.gone(view)
        self.standby = {s.version: s for s in view.standby if s.stage == self.stage}
        self.wanted = {version: want for version, want in self.wanted.items() if version in self.standby}
        self.arrived = {version: state for version, state in self.arrived.items() if version in self.standby}
        yield from self.prod.step(view)
        yield from self.cons.step(view)
        self.prod.forget(gone)
        held = view.held(self.stage, self.name)
        if first and held:
            self.prod.found(0, held, 0)
            yield from self.cons.found(0, held, 0)
        yield from self._ask(view)
        yield from self._go_on()

    # How it is done.

    def _ask(self, view: View) -> Iterator[Effect]:
        """Ask for the state of every copy that is new here; report those whose donor is dead."""
        mine = {version for version, standby in self.standby.items() if standby.node == self.name}
        self.awaited = {version: position for version, position in self.awaited.items() if version in mine}
        for version in sorted(mine - self.cons.standing.keys() - self.arrived.keys()):
            donor = self.standby[version].donor
            if not view.alive(donor):
                yield Tell(message=Failed(node=self.name, version=version))
            elif version not in self.awaited:
                self.awaited[version] = self.cons.consumed
                want = Want(
                    sender=self.name,
                    view=view.number,
                    stage=self.stage,
                    version=version,
                    position=self.cons.consumed,
                )
                yield Send(to=donor, message=want)
        yield from self._acknowledge()

    def _go_on(self) -> Iterator[Effect]:
        """Whatever may happen now, between two steps of the operator, in an order that lets all of it happen."""
        self.prod.keep(self.cons.cohorts.keys())
        if all(cohort.idle for cohort in self.cons.cohorts.values()):
            for partition in sorted(self.prod.leaving):
                yield Drop(stage=self.stage, partition=partition)
            self.prod.leaving = frozenset()
        if self.prod.leaving:
            return
        for version in sorted(self.arrived):
            yield from self._install(self.arrived.pop(version))
        while (meeting := self.cons.meeting()) is not None:
            self.prod.fuse(*meeting)
            yield from self.cons.fuse(*meeting)
        for version in sorted(self.wanted):
            yield from self._cut(self.wanted[version])
        for cohort in sorted(self.cons.cohorts):
            yield from self._consume(cohort)

    def _install(self, state: State) -> Iterator[Effect]:
        partition = self.standby[state.version].partition
        self.cons.standing[state.version] = partition
        yield Install(stage=self.stage, partition=partition, body=state.body)
        self.prod.found(state.version, frozenset({partition}), state.position, state.runs)
        yield from self.cons.found(state.version, frozenset({partition}), state.position)
        yield from self._acknowledge()
        yield Tell(message=Done(node=self.name, version=state.version))

    def _acknowledge(self) -> Iterator[Effect]:
        """Acknowledge as much as the copies on their way here allow."""
        coming = [*self.awaited.values(), *(state.position for state in self.arrived.values())]
        self.cons.limit = min(coming, default=None)
        yield from self.cons.acknowledge()

    def _cut(self, want: Want) -> Iterator[Effect]:
        partition = self.standby[want.version].partition
        cohort = next(c for c in self.cons.cohorts.values() if partition in c.partitions)
        if not cohort.idle or cohort.consumed < want.position:
            return
        del self.wanted[want.version]
        state = State(
            sender=self.name,
            view=self.prod.view,
            stage=self.stage,
            version=want.version,
            position=cohort.consumed,
            runs=tuple(self.prod.buffer.runs),
            body=None,
        )
        yield Send(to=want.sender, message=state)

    def _consume(self, cohort: int) -> Iterator[Effect]:
        own = self.cons.cohorts[cohort]
        # Who is behind what the pool holds may exceed it: that may be stuck there until he has come after (rule 8).
        has_room = not self.prod.buffer.full() or own.consumed < self.prod.buffer.newest
        upto = self.cons.reach(cohort)
        if own.idle and upto > own.consumed and has_room:
            frames = self.cons.take(cohort, upto)
            yield Consume(
                stage=self.stage,
                cohort=cohort,
                partitions=own.partitions,
                after=own.consumed,
                upto=upto,
                frames=frames,
            )


_ROWS = (
    Rule(on=Data, guard=always, action=Pooler.receive, cites="3.4.1"),
    Rule(on=Stopped, guard=always, action=Pooler.receive, cites="fig. 3.15"),
    Rule(on=Merged, guard=always, action=Pooler.receive, cites="lanes, not channels"),
    Rule(on=Ack, guard=always, action=Pooler.serve, cites="fig. 3.3 (3)"),
    Rule(on=Attach, guard=always, action=Pooler.serve, cites="fig. 3.13, 3.14"),
    Rule(on=Stop, guard=always, action=Pooler.serve, cites="3.4.3.2"),
    Rule(on=Merge, guard=always, action=Pooler.serve, cites="lanes, not channels"),
    Rule(
        on=Consumed,
        guard=Pooler.is_what_the_operator_was_given,
        action=Pooler.emit_and_acknowledge,
        cites="fig. 3.3 (1); 3.2.1.2",
    ),
    Rule(on=Want, guard=Pooler.is_ours_to_give, action=Pooler.note_want, cites="3.4.3.1: cu-start"),
    Rule(on=Want, guard=Pooler.is_not_on_its_way, action=ignore, cites="rule 12: the copy is not wanted any more"),
    Rule(on=State, guard=Pooler.is_awaited, action=Pooler.note_state, cites="fig. 3.7; rules 10, 16"),
    Rule(on=State, guard=always, action=ignore, cites="rule 12: the copy is not wanted any more"),
    Rule(on=View, guard=always, action=Pooler.adopt, cites="3.2.3.1"),
)
Pooler.RULES = _ROWS
