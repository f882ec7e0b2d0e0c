"""Pooler: one segment on one site: FH-Cons, the operator's partitions, FH-Prod (thesis 3.4, fig. 3.10).

It decides when the operator runs: when the frontier has advanced, or in an unordered stage any rows have arrived, the
output pool has room, and the operator has finished the rows before. One `Consume` covers all partitions of a
cohort. What was consumed is acknowledged after its output is in the buffer, so that a crash loses both or neither.

It also moves copies, on both sides, as its state mover decides. The donor cuts between two steps of the operator, so
that state, position and unacknowledged output are of one instant (rule 16). The new copy starts a cohort of its own.

Departure: the queues of thesis 2.1.2 (push, pull, passive) are not needed: a segment is pulled by its
pooler, and the buffers at its two ends are the slack between segments.
Departure: nothing is paused (thesis 3.4.3.1), because attaches carry exact positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .editions import has_passed, reached
from .fh_cons import FhCons
from .fh_prod import FhProd
from .machine import Machine, Rule, always
from .messages import (
    Ack,
    Attach,
    Connected,
    Consume,
    Consumed,
    CopyReady,
    Data,
    Drop,
    Effect,
    Install,
    Merge,
    Merged,
    Position,
    RequestState,
    Send,
    SendToController,
    State,
    Stop,
    Stopped,
    View,
)
from .state_mover import StateMover


class Pooler(Machine):
    """Stage `stage` of the dataflow on site `name`; copies that are here from the first view on `begin` there."""

    def __init__(
        self,
        name: str,
        stage: int,
        bound_rows: int,
        transfer_rows_max: int | None = None,
        step: Position | None = None,
        divided: bool = False,
        begin: Position = 0,
    ) -> None:
        self.name = name
        self.stage = stage
        self.begin = begin
        self.cons = FhCons(name, stage, step)
        self.prod = FhProd(name, stage, bound_rows, transfer_rows_max, divided)
        self.mover = StateMover(name, stage)

    @property
    def title(self) -> str:
        return f"Pooler of stage {self.stage} on {self.name}"

    # Guards.

    def is_what_the_operator_was_given(self, message: Consumed) -> bool:
        cohort = self.cons.cohorts.get(message.cohort)
        return cohort is not None and message.upto == cohort.working_upto

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
        self.cons.pace(message.most)
        self.prod.keep(self.cons.cohorts.keys())
        yield from self._acknowledge()
        yield from self._go_on()

    def reached(self, stages: frozenset[int], made: frozenset[int]) -> Position:
        """How far rows of the change of `stages` have come here, also in states that wait to be installed (rule 45)."""
        arrived = self.mover.arrived.values() if self.stage in made else ()
        positions = [position for state in arrived for position in (state.position, *(a.position for a in state.ahead))]
        return max([reached(self.cons, stages, made), *positions])

    def has_passed(self, position: Position) -> bool:
        """Whether every copy that is here, or is to be here, has consumed rows after `position`."""
        return not self.mover.is_missing(self.cons.installed) and has_passed(self.cons, position)

    def unbind(self) -> Iterator[Effect]:
        self.cons.bound = None
        yield from self._go_on()

    def move(self, message: RequestState | State) -> Iterator[Effect]:
        yield from self.mover.step(message)
        yield from self._go_on()

    def report(self, message: Connected) -> Iterator[Effect]:
        yield from self.mover.report(self.cons.installed)

    def adopt(self, view: View) -> Iterator[Effect]:
        first = self.cons.view is None
        gone = self.cons.gone(view)
        for part in (self.mover, self.prod, self.cons):
            yield from part.step(view)
        self.prod.forget(gone)
        self.prod.keep(self.cons.cohorts.keys())
        held = view.held(self.stage, self.name)
        if first and held:
            self.prod.add_cohort(0, held, self.begin)
            yield from self.cons.add_cohort(0, held, self.begin)
        yield from self.mover.ask(self.cons.installed)
        yield from self._acknowledge()
        yield from self._go_on()

    # How it is done.

    def _go_on(self) -> Iterator[Effect]:
        """Do all that may happen now, between two steps of the operator, in an order that lets all of it happen."""
        if self.prod.leaving:
            if not all(cohort.idle for cohort in self.cons.cohorts.values()):
                return
            for partition in sorted(self.prod.leaving):
                yield Drop(stage=self.stage, partition=partition)
            self.prod.leaving = frozenset()
        for version in sorted(self.mover.arrived):
            yield from self._install(self.mover.arrived.pop(version))
        while (cohorts_to_fuse := self.cons.cohorts_to_fuse()) is not None:
            self.prod.fuse(*cohorts_to_fuse)
            yield from self.cons.fuse(*cohorts_to_fuse)
        for version in sorted(self.mover.wanted):
            yield from self._cut(self.mover.wanted[version])
        for cohort in sorted(self.cons.cohorts):
            work = self._work(cohort)
            if work is not None:
                yield work

    def _install(self, state: State) -> Iterator[Effect]:
        partition = self.mover.standby[state.version].partition
        self.cons.installed[state.version] = partition
        assert self.cons.view is not None
        edition = self.cons.view.edition_of_state(self.stage, state.position)
        yield Install(stage=self.stage, partition=partition, edition=edition, body=state.body)
        self.prod.add_cohort(state.version, frozenset({partition}), state.position, state.runs)
        yield from self.cons.add_cohort(state.version, frozenset({partition}), state.position, state.ahead)
        yield from self._acknowledge()
        yield SendToController(message=CopyReady(node=self.name, version=state.version))

    def _acknowledge(self) -> Iterator[Effect]:
        """Acknowledge what was consumed, but nothing while a copy in transfer to this site is not here (rule 3)."""
        return self.cons.acknowledge(self.mover.is_receiving)

    def _cut(self, want: RequestState) -> Iterator[Effect]:
        partition = self.mover.standby[want.version].partition
        cohort = next(c for c in self.cons.cohorts.values() if partition in c.partitions)
        if not cohort.idle:
            return
        del self.mover.wanted[want.version]
        state = State(
            sender=self.name,
            view=self.prod.view,
            stage=self.stage,
            version=want.version,
            position=cohort.consumed,
            runs=tuple([replace(run, counts=()) if run.counts else run for run in self.prod.buffer.runs]),
            ahead=self.cons.ahead(partition, cohort.consumed),
            body=None,
        )
        yield Send(to=want.sender, message=state)

    def _work(self, cohort: int) -> Consume | None:
        """The work that the operator may begin now."""
        own = self.cons.cohorts[cohort]
        if not own.idle:
            return None
        # A cohort that lags what the pool holds may exceed the bound: those rows may wait for it there (rule 8).
        # So may rows that an unordered stage has emitted early, but a full pool has no room for more of these.
        is_full = self.prod.buffer.full()
        has_room = not is_full or own.consumed < self.prod.buffer.newest
        upto = self.cons.reach(cohort)
        if (upto > own.consumed and has_room) or (self.cons.has_early(cohort) and not is_full):
            return self.cons.begin(cohort, upto, early=not is_full)
        return None


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
    Rule(on=RequestState, guard=always, action=Pooler.move, cites="3.4.3.1: cu-start"),
    Rule(on=State, guard=always, action=Pooler.move, cites="fig. 3.7; rules 10, 16"),
    Rule(on=Connected, guard=always, action=Pooler.report, cites="the controller was started again"),
    Rule(on=View, guard=always, action=Pooler.adopt, cites="3.2.3.1"),
)
Pooler.RULES = _ROWS
