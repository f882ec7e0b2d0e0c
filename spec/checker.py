"""What a claim about a world is: a checker, and the moments at which it looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from flux.protocols.messages import Ack, Attach, Consume, Data, Move, PeerMessage, Pull, Stop, View

from .dataflow import OperatorState, Row, Scenario

if TYPE_CHECKING:
    from .process import Place, Process


class Violated(Exception):
    """An invariant does not hold."""


class Checker:
    """One claim; each method is a moment at which it may turn out to be false."""

    claim = ""
    compares_with_the_plain_run = False  # Then it need not look at what is known to be as in the plain run.

    def attached(self, process: Process, sender: str, attach: Attach) -> None:
        """`process` is about to ask `sender` to feed it."""

    def stopped(self, process: Process, sender: str, stop: Stop) -> None:
        """`process` is about to ask `sender` not to feed it any more."""

    def delivered(self, process: Process, data: Data) -> None:
        """A frame is about to be delivered to `process`."""

    def acknowledging(self, process: Process, ack: Ack) -> None:
        """An ack is about to be delivered to `process`; when it has been, it is `heard`."""

    def given(self, process: Process, work: Consume | Pull) -> None:
        """`process` has been told to begin a piece of work."""

    def heard(self, process: Process, message: PeerMessage) -> None:
        """`process` has taken a message of another node and has not refused it."""

    def answered(self, process: Process, stage: int) -> None:
        """The operator, sink or source of `stage` has finished a piece of work, and `process` has acted on it."""

    def consumed(self, process: Process, work: Consume, partition: int, rows: list[Row], state: OperatorState) -> None:
        """`process` has run `partition` over `rows` and is about to be in `state`."""

    def installed(self, process: Process, place: Place) -> None:
        """`process` is about to install the state of a copy."""

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        """The controller is about to publish `view`; `before` is the last one, or the plan."""

    def asked(self, before: View, move: Move, view: View) -> None:
        """Somebody has asked for a move in the view `before`, and now it is `view`."""

    def doubted(self, view: View, doubted: Sequence[str], removed: Sequence[str]) -> None:
        """In `view`, the controller had reason to doubt some nodes that live, and has declared these dead."""

    def lost(self, live: Sequence[Process], view: View, places: Sequence[Place]) -> None:
        """The controller says that these places are lost; `view` is the last one published."""

    def alone(self, scenario: Scenario, live: Sequence[Process]) -> None:
        """Nothing is left to happen but the start of a controller, and nobody waits for one."""

    def at_rest(self, scenario: Scenario, live: Sequence[Process], view: View) -> None:
        """Nothing is left to happen, and no partition was lost; `view` is the last one."""

    def violated(self, what: str) -> Violated:
        return Violated(f"{self.claim}: {what}")


class Watch:
    """Checkers by the moments they care for."""

    def __init__(self, checkers: Iterable[Checker]) -> None:
        everyone = tuple(checkers)

        def who(moment: str) -> list[Any]:
            return [getattr(c, moment) for c in everyone if getattr(type(c), moment) is not getattr(Checker, moment)]

        self.attached, self.stopped = who("attached"), who("stopped")
        self.delivered, self.given = who("delivered"), who("given")
        self.answered, self.acknowledging = who("answered"), who("acknowledging")
        self.heard, self.consumed, self.installed = who("heard"), who("consumed"), who("installed")
        self.consumed_as_plain = [
            c.consumed
            for c in everyone
            if not c.compares_with_the_plain_run and type(c).consumed is not Checker.consumed
        ]
        self.doubted, self.asked, self.alone = who("doubted"), who("asked"), who("alone")
        self.published, self.lost, self.at_rest = who("published"), who("lost"), who("at_rest")
