"""Change watch: what the controller's process adds to changes of code: time, and reports to the driver.

The machine says what is asked and what was decided. Here is noted when, how often a position was proposed, and which
nodes have passed a change, from which follows when each partition has a live copy that runs the new code.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

from ..protocols.change_messages import (
    CLOSED,
    COMMITTED,
    AbortChange,
    Ask,
    AttemptOverdue,
    Bind,
    Passed,
    Reconfigure,
    ReportChange,
)
from ..protocols.messages import ToController, View
from ..wire import reports

ATTEMPT_MAX_S = 1.0  # So long what else would change the view waits for an attempt.


class ChangeWatch:
    """Watches the changes of one controller; `step` steps its machine, and `report` reaches the driver."""

    def __init__(self, step: Callable[[ToController], None], report: Callable[[reports.Report], None]) -> None:
        self._step = step
        self._report = report
        self._attempts: dict[int, int] = {}  # Positions proposed, by the number of the change.
        self._proposed: tuple[int, int, float] | None = (
            None  # The change, its view, and when it was first proposed there.
        )
        self._passed: dict[int, set[str]] = {}  # Nodes, by the number of the change, in this view.
        self._reported: set[tuple[int, str]] = set()
        self._view = 0

    def request(self, command: reports.RequestChange) -> None:
        """Take a request of the program; one that is repeated is answered again."""
        self._step(
            Reconfigure(number=command.number, stages=command.stages, spec=command.spec, scheduler=command.scheduler)
        )

    def give_up(self, command: reports.GiveUpChange) -> None:
        """Give up a change that is not committed."""
        self._step(AbortChange(number=command.number))

    def note_asked(self, ask: Ask, nursery: trio.Nursery) -> None:
        """Note what nodes are asked; a proposal that keeps other changes of the view waiting is given up in time."""
        bind = ask.message
        if not isinstance(bind, Bind):
            return
        number = bind.number
        self._attempts[number] = self._attempts.get(number, 0) + 1
        self._proposed = (number, bind.view, time.monotonic())
        nursery.start_soon(self._end_in_time, number, self._attempts[number])

    async def _end_in_time(self, number: int, attempt: int) -> None:
        await trio.sleep(ATTEMPT_MAX_S)
        if self._attempts.get(number) == attempt:
            self._step(AttemptOverdue(number=number))

    def note_decided(self, decided: ReportChange) -> None:
        """Report what became of a change."""
        now = time.monotonic()
        is_ours = decided.outcome == COMMITTED and self._proposed is not None and self._proposed[0] == decided.number
        held_s = now - self._proposed[2] if is_ours and self._proposed is not None else None
        self._report(
            reports.ChangeDecided(
                number=decided.number,
                outcome=decided.outcome,
                position=decided.position,
                reason=decided.reason,
                at=now,
                attempts=self._attempts.pop(decided.number, None),
                held_s=held_s,
            )
        )
        if decided.outcome == CLOSED:
            self._report_passed(decided.number, "all")

    def note_passed(self, passed: Passed, view: View) -> None:
        """Note that all copies on a node are past a change."""
        if view.number != self._view:
            self._view, self._passed = view.number, {}  # Nodes state it anew in each view.
        if passed.view != view.number:
            return
        nodes = self._passed.setdefault(passed.number, set())
        nodes.add(passed.node)
        self._report_passed(passed.number, "first")
        stages = [stage for e in view.editions if e.number == passed.number for stage in e.stages]
        partitions = [(stage, partition) for stage in stages for partition in range(len(view.copies[stage]))]
        if partitions and all(nodes.intersection(view.live_copies(*place)) for place in partitions):
            self._report_passed(passed.number, "each")
            if nodes.issuperset(node for stage in stages for node in view.members(stage)):
                self._report_passed(passed.number, "all")

    def _report_passed(self, number: int, copies: str) -> None:
        if (number, copies) not in self._reported:
            self._reported.add((number, copies))
            self._report(reports.ChangePassed(number=number, copies=copies, at=time.monotonic()))
