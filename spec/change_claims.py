"""Invariants of changes of code: one edition for each row, and what is begun, published and left at rest.

What an edition makes of its rows shows in their digests. So that all copies and all stages take each row by the same
edition is checked by the comparison with the plain run, which changes its code after the same position. Here is what
that comparison would notice too late, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..protocols.change_messages import CLOSED, COMMITTED, ReportChange
from ..protocols.controller import Controller
from ..protocols.ingress import Ingress
from ..protocols.messages import Consume, Edition, PendingInput, Pull, View
from .checker import Checker, CopyPlace
from .dataflow import OperatorState, Row, Scenario
from .process import SimulatedProcess, is_among


class OneEdition(Checker):
    """A change is for all rows after its position, and for no other, wherever they are when a view has it (rule 43)."""

    claim = "each row has one edition"

    def adopted(self, process: SimulatedProcess, before: View | None, view: View) -> None:
        if view.editions == (before.editions if before is not None else ()):
            return
        for place, rows in process.history.items():
            expected = set(process.reference.rows(*place, 0, process.scenario.last_sn))
            self._expect(process, place, rows, expected)
            self._expect_state(process, place)
        for stage, machine in process.node.machines.items():
            for frames in () if isinstance(machine, Ingress) else machine.cons.pending.values():
                self._expect_pending(process, stage, frames)

    def consumed(
        self, process: SimulatedProcess, work: Consume, partition: int, rows: list[Row], state: OperatorState
    ) -> None:
        view = process.node.view
        # No site gets the output of a copy that has left.
        is_here = view is not None and process.name in view.takers(work.stage)[partition]
        has_code = view is not None and not view.is_end(work.stage)  # A sink has none that changes.
        if is_here and has_code and state.edition != work.edition:
            raise self.violated(f"{process.name} has run the code of {work} over a state of edition {state.edition}")

    def resumed(self, process: SimulatedProcess, place: CopyPlace, edition: int) -> None:
        if edition != process.states[place].edition:
            raise self.violated(f"{process.name} installs {process.states[place]} of {place} as of edition {edition}")
        self._expect_state(process, place)

    def _expect_pending(self, process: SimulatedProcess, stage: int, frames: Iterable[PendingInput]) -> None:
        for frame in frames:
            for row in frame.body:
                if not frame.channels or is_among(row, frame.channels):
                    place = (stage, row.consumer)
                    self._expect(process, place, [row], set(process.reference.rows(*place, row.sn - 1, row.sn)))

    def _expect(self, process: SimulatedProcess, place: CopyPlace, rows: Sequence[Row], expected: set[Row]) -> None:
        others = [row for row in rows if row not in expected]
        if others:
            raise self.violated(f"{process.name} has {others[:3]} for {place}, and the editions {process.editions}")

    def _expect_state(self, process: SimulatedProcess, place: CopyPlace) -> None:
        """Check that a state is of the edition that its position says: at a cut, of the one before."""
        state, through = process.states[place], process.through[place]
        cuts = [e.number for e in process.editions if place[0] in e.stages and e.position < through]
        if state.edition != max(cuts, default=0):
            raise self.violated(f"{process.name} has {state} of {place} at {through}, and {process.editions}")


class StepsStop(Checker):
    """No step goes across a change, or beyond a position to which its site is bound (rules 43, 44)."""

    claim = "no step goes across a change"

    def given(self, process: SimulatedProcess, work: Consume | Pull) -> None:
        if isinstance(work, Pull):
            return
        machine, view = process.node.machines[work.stage], process.node.view
        assert view is not None and not isinstance(machine, Ingress)
        cuts = [(e.position, e.number) for e in view.editions if work.stage in _concerned(view, e)]
        upto = max([work.upto, *(frame.upto for frame in work.frames)]) if not work.ordered else work.upto
        crossed = [cut for cut, _ in cuts if work.after < cut < work.upto or work.upto <= cut < upto]
        edition = max((number for cut, number in cuts if cut <= work.after), default=0)
        if crossed or work.edition != edition:
            raise self.violated(f"{process.name} begins {work}, and the code changes at {cuts}")
        forgotten = [
            e for e in view.editions if (e.position, e.number) in cuts and e.closed and e.position > work.after
        ]
        if forgotten:
            raise self.violated(f"{process.name} begins {work} with code that is forgotten: {forgotten}")
        bound = process.node.proposed
        is_held = process.node.is_bound and bound is not None and work.stage in bound.stages
        if is_held and bound is not None and work.after <= bound.position < upto:
            raise self.violated(f"{process.name} begins {work}, and is bound to {bound.position}")


class CutsRise(Checker):
    """A view has one edition more, or closes one; positions of one stage never fall (rules 45, 49, 52)."""

    claim = "changes are in order"

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        known = {edition.number: edition for edition in before.editions}
        new = [edition for edition in view.editions if edition.number not in known]
        if len(new) > 1 or any(edition.number < number or edition.closed for edition in new for number in known):
            raise self.violated(f"view {view.number} begins {new}, and {before.editions} were there")
        for edition in new:
            later = [e for e in known.values() if e.stages & edition.stages and e.position > edition.position]
            if later:
                raise self.violated(f"{edition} begins before {later}")
        listed = {edition.number: edition for edition in view.editions}
        lost = [e for e in known.values() if e.number not in listed and not self._is_superseded(e, view.editions)]
        moved = [e for e in known.values() if listed.get(e.number, e).position != e.position]
        if lost or moved:
            raise self.violated(f"view {view.number} has lost {lost}, and moved {moved}")

    def _is_superseded(self, edition: Edition, listed: Sequence[Edition]) -> bool:
        """Whether later editions that are closed have all the stages of one."""
        after = [e.stages for e in listed if e.number > edition.number and e.closed]
        return edition.stages <= frozenset[int]().union(*after)


class ChangesEnd(Checker):
    """A change is committed or refused, all nodes know of it, none is bound for ever, and code is forgotten in the end.

    It is not forgotten while a copy may still need it.
    """

    claim = "changes end"

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        unprepared = sorted(filter(view.alive, scenario.cannot))
        if len(view.editions) > len(before.editions) and unprepared:
            raise self.violated(f"view {view.number} changes code, and {unprepared} cannot")

    def closing(self, edition: Edition, live: Sequence[SimulatedProcess], view: View, retained: int | None) -> None:
        before = [
            f"{process.name} with {place} at {through}"
            for process in live
            for place, through in process.through.items()
            if place[0] in edition.stages
            and through <= edition.position
            and process.name in view.takers(place[0])[place[1]]
        ]
        if before or (retained is not None and retained < edition.position):
            raise self.violated(f"{edition} is closed before {before or f'the checkpoint at {retained}'} has passed it")

    def reported(self, report: ReportChange, known: Mapping[int, Edition], controller: Controller) -> None:
        edition = known.get(report.number)
        if report.outcome in (COMMITTED, CLOSED):
            is_so = edition is not None and edition.position == report.position
        else:
            is_so = edition is None and not controller.changes.is_pending(report.number)
        if not is_so:
            raise self.violated(f"{report} is said of {edition}, and {controller.changes.requests} are wanted")

    def settled(self, controller: Controller, live: Sequence[SimulatedProcess]) -> None:
        changes, editions = controller.changes, controller.view.editions
        if changes.requests or changes.attempt is not None or controller.waiting:
            raise self.violated(f"{changes.requests} wait for {changes.attempt}, and {controller.waiting} as well")
        for process in live:
            bound = [m for m in process.node.machines.values() if _is_bound(m)]
            if process.node.is_bound or bound:
                raise self.violated(f"{process.name} is bound to {process.node.proposed}")
            if process.node.view is not None and process.node.view.editions != editions:
                raise self.violated(f"{process.name} knows {process.node.view.editions}, and not {editions}")
        for edition in controller.view.open_editions:
            stages = _concerned(controller.view, edition)
            at = [through for p in live for (stage, _), through in p.through.items() if stage in stages]
            retained = changes.retained
            if min(at) > edition.position and (retained is None or retained >= edition.position):
                raise self.violated(f"{edition} is not closed, and all copies are at {min(at)} or later")


def _concerned(view: View, edition: Edition) -> frozenset[int]:
    """The stages that take no rows of both editions at once: those that change, and the sinks after them."""
    return edition.stages.union(stage for stage in view.downstream(edition.stages) if view.is_end(stage))


def _is_bound(machine: object) -> bool:
    cons = getattr(machine, "cons", machine)
    return getattr(cons, "bound", None) is not None
