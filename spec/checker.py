"""Checkers: claims about a simulated world, each watched at the moments at which it may turn out to be false."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ..protocols.change_messages import ReportChange
from ..protocols.controller import Controller
from ..protocols.messages import Ack, Attach, Consume, Data, Edition, Move, PeerMessage, Pull, Stop, View
from .dataflow import OperatorState, Row, Scenario

CheckedProcess: TypeAlias = Any  # A SimulatedProcess, whose module imports this one; checkers name the class.
CopyPlace = tuple[int, int]  # Stage, partition.


class Violated(Exception):
    """An invariant does not hold."""


class Checker:
    """One claim; each method is a moment at which it may turn out to be false."""

    claim = ""
    compares_with_the_plain_run = False  # Then it may skip what is known to be as in the plain run.

    def attached(self, process: CheckedProcess, sender: str, attach: Attach) -> None:
        """`process` is about to ask `sender` to feed it."""

    def stopped(self, process: CheckedProcess, sender: str, stop: Stop) -> None:
        """`process` is about to ask `sender` to stop feeding it."""

    def delivered(self, process: CheckedProcess, data: Data) -> None:
        """A frame is about to be delivered to `process`."""

    def acknowledging(self, process: CheckedProcess, ack: Ack) -> None:
        """An ack is about to be delivered to `process`; when it has been, it is `accepted`."""

    def given(self, process: CheckedProcess, work: Consume | Pull) -> None:
        """`process` has been given a piece of work."""

    def numbering(self, seen: Mapping[str, int], process: CheckedProcess, pull: Pull) -> None:
        """An ingress is about to number rows; `seen` has the highest number at each live node and in each sink."""

    def accepted(self, process: CheckedProcess, message: PeerMessage) -> None:
        """`process` has taken a message of another node and has not refused it."""

    def answered(self, process: CheckedProcess, stage: int) -> None:
        """The operator, sink or source of `stage` has finished a piece of work, and `process` has acted on it."""

    def consumed(
        self, process: CheckedProcess, work: Consume, partition: int, rows: list[Row], state: OperatorState
    ) -> None:
        """`process` has run `partition` over `rows` and is about to be in `state`."""

    def installed(self, process: CheckedProcess, place: CopyPlace) -> None:
        """`process` is about to install the state of a copy."""

    def resumed(self, process: CheckedProcess, place: CopyPlace, edition: int) -> None:
        """`process` has installed the state of a copy, which is said to be of that edition."""

    def closing(self, edition: Edition, live: Sequence[CheckedProcess], view: View, retained: int | None) -> None:
        """The controller is about to publish `view`, which closes an edition; copies may go back to `retained`."""

    def reported(self, report: ReportChange, known: Mapping[int, Edition], controller: Controller) -> None:
        """The controller has said what became of a change; `known` are all that were ever in a view, by number."""

    def adopted(self, process: CheckedProcess, before: View | None, view: View) -> None:
        """`process` has adopted a view after the one `before`."""

    def settled(self, controller: Controller, live: Sequence[CheckedProcess]) -> None:
        """Nothing is left to happen, and no partition was lost."""

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        """The controller is about to publish `view`; `before` is the last one, or the plan."""

    def asked(self, before: View, move: Move, view: View) -> None:
        """A move was requested in the view `before`, and now it is `view`."""

    def doubted(self, view: View, doubted: Sequence[str], removed: Sequence[str]) -> None:
        """In `view`, the controller had reason to doubt some live nodes, and has declared `removed` dead."""

    def lost(self, live: Sequence[CheckedProcess], view: View, places: Sequence[CopyPlace]) -> None:
        """The controller has reported that these places are lost; `view` is the last one published."""

    def alone(self, scenario: Scenario, live: Sequence[CheckedProcess]) -> None:
        """Nothing is left to happen but the start of a controller, and no node waits for one."""

    def standing(self, scenario: Scenario, live: Sequence[CheckedProcess], view: View) -> None:
        """Slow sites stand still since they were marked, and nothing else is left to happen."""

    def at_rest(self, scenario: Scenario, live: Sequence[CheckedProcess], view: View) -> None:
        """Nothing is left to happen, and no partition was lost; `view` is the last one."""

    def violated(self, what: str) -> Violated:
        return Violated(f"{self.claim}: {what}")


class Watch:
    """Checkers by the moments they check."""

    def __init__(self, checkers: Iterable[Checker]) -> None:
        every = tuple(checkers)

        def methods(moment: str) -> list[Any]:
            return [getattr(c, moment) for c in every if getattr(type(c), moment) is not getattr(Checker, moment)]

        self.attached, self.stopped = methods("attached"), methods("stopped")
        self.delivered, self.given, self.numbering = methods("delivered"), methods("given"), methods("numbering")
        self.answered, self.acknowledging = methods("answered"), methods("acknowledging")
        self.accepted, self.consumed, self.installed = methods("accepted"), methods("consumed"), methods("installed")
        self.consumed_as_plain = [
            c.consumed for c in every if not c.compares_with_the_plain_run and type(c).consumed is not Checker.consumed
        ]
        self.doubted, self.asked, self.alone = methods("doubted"), methods("asked"), methods("alone")
        self.published, self.lost, self.at_rest = methods("published"), methods("lost"), methods("at_rest")
        self.standing = methods("standing")
        self.adopted, self.settled = methods("adopted"), methods("settled")
        self.resumed, self.closing, self.reported = methods("resumed"), methods("closing"), methods("reported")
