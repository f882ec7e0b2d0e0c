"""Code changes as a driver knows them: what was asked for, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..plan import Plan
from ..plan.change_spec import StepChange, read_spec
from ..plan.step_places import step_names
from ..protocols.change_messages import CLOSED, COMMITTED, OF_RECEIVERS
from ..protocols.view import Edition
from ..wire import reports
from ..wire.frames import BadFrame

CHANGES_MAX = 1_000  # A report has the last changes, up to this number.


@dataclass
class KnownChange:
    """Change `number`; times are of the driver's clock, None before."""

    number: int
    steps: tuple[str, ...]
    scheduler: str
    command: reports.RequestChange
    made: dict[tuple[int, int], StepChange]  # All steps of its stages that differ from the plan, by stage and place.
    requested_at: float
    is_committed: bool = False
    position: int | None = None
    reason: str | None = None  # Why it was refused.
    committed_at: float | None = None
    first_at: float | None = None  # All copies of one site were past it.
    each_at: float | None = None  # A live copy of each partition was.
    complete_at: float | None = None  # All copies were.
    is_closed: bool = False
    attempts: int | None = None
    held_s: float | None = None

    @property
    def is_decided(self) -> bool:
        """Whether it is known what became of it."""
        return self.is_committed or self.reason is not None

    def to_plain(self, started_at: float) -> dict[str, Any]:
        """Return it as JSON types; times are seconds since the start of the run, or since it was asked for."""

        def after(at: float | None) -> float | None:
            return None if at is None else at - self.requested_at

        return {
            "number": self.number,
            "steps": list(self.steps),
            "scheduler": self.scheduler,
            "when_s": self.requested_at - started_at,
            "position": self.position,
            "refused": self.reason,
            "committed_after_s": after(self.committed_at),
            "first_s": after(self.first_at),
            "delay_s": after(self.each_at),
            "complete_s": after(self.complete_at),
            "held_s": self.held_s,
            "attempts": self.attempts,
        }


@dataclass
class KnownChanges:
    """The changes of a run by number, and the steps as the last committed ones left them."""

    by_number: dict[int, KnownChange] = field(default_factory=dict)
    last: int = 0

    def add(self, change: KnownChange) -> None:
        """Add a change that is about to be requested."""
        self.by_number[change.number] = change
        self.last = change.number
        while len(self.by_number) > CHANGES_MAX:
            del self.by_number[min(self.by_number)]

    def restore(self, plan: Plan, editions: Iterable[Edition], now: float) -> None:
        """Know the changes that a view has, as a driver does that was started again."""
        names = {place: name for name, place in step_names(plan).items()}
        for edition in editions:
            made = {(each.stage, each.place): each for each in read_spec(edition.spec).steps}
            steps = tuple(names[place] for place, each in made.items() if each.since == edition.number)
            command = reports.RequestChange(
                number=edition.number, stages=edition.stages, spec=edition.spec, scheduler=OF_RECEIVERS
            )
            change = KnownChange(edition.number, steps, "", command, made, now)
            change.is_committed, change.position, change.is_closed = True, edition.position, edition.closed
            self.add(change)

    def steps(self) -> dict[tuple[int, int], StepChange]:
        """Return the steps that differ from the plan now, by stage and place."""
        made: dict[tuple[int, int], StepChange] = {}
        for number in sorted(self.by_number):
            if self.by_number[number].is_committed:
                made |= self.by_number[number].made
        return made

    def unsettled(self) -> list[KnownChange]:
        """Return the changes of which a controller that was started again may know more."""
        return [change for change in self.by_number.values() if change.reason is None and not change.is_closed]

    def to_plain(self, started_at: float) -> list[dict[str, Any]]:
        """Return the changes as JSON types, for a report."""
        return [change.to_plain(started_at) for change in self.by_number.values()]

    def in_progress(self, now: float) -> str:
        """Return what becomes of the change that is not complete; empty if there is none."""
        for change in self.by_number.values():
            what = f"change {change.number} of {', '.join(change.steps)}"
            if not change.is_decided:
                return f"{what} is being agreed on, for {now - change.requested_at:.1f} s"
            if change.is_committed and change.complete_at is None and not change.is_closed:
                return f"{what} is made at row {change.position:,}, and some copies are before it"
        return ""

    def events(self, started_at: float) -> list[tuple[float, str]]:
        """Return the events of a timeline: the changes that were committed."""
        return [
            (change.committed_at - started_at, f"{', '.join(change.steps)} changed at row {change.position}")
            for change in self.by_number.values()
            if change.committed_at is not None
        ]

    def apply_decided(self, report: reports.ChangeDecided) -> None:
        """Note what became of a change."""
        change = self._change(report.number)
        if report.outcome in (COMMITTED, CLOSED):
            if not change.is_committed:
                change.committed_at = report.at
            change.is_committed, change.position = True, report.position
            change.is_closed = change.is_closed or report.outcome == CLOSED
            change.held_s = report.held_s if change.held_s is None else change.held_s
        elif not change.is_committed:
            change.reason = report.reason or report.outcome
        change.attempts = report.attempts if change.attempts is None else change.attempts

    def apply_passed(self, report: reports.ChangePassed) -> None:
        """Note that copies are past a change."""
        change = self._change(report.number)
        # What came before is reported by a controller that may have died: then it is known no better than this.
        if change.first_at is None:
            change.first_at = report.at
        if report.copies != "first" and change.each_at is None:
            change.each_at = report.at
        if report.copies == "all" and change.complete_at is None:
            change.complete_at = report.at

    def _change(self, number: int) -> KnownChange:
        if number not in self.by_number:
            raise BadFrame(f"expected a report of one of the changes up to {self.last}, got one of number {number}")
        return self.by_number[number]
