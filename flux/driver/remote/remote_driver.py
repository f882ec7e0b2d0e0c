"""Remote driver: the driver of a remote run, in the controller's process: it takes reports and ends the run.

Clocks of machines differ, so every time here is that at which the controller received a report, on its own clock. What
was reported before a restart of the controller is lost, except the rows at the sink: the egress reports their total.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ...plan import Plan
from ...plan.plan import CONTROLLER, INGRESS
from ...site.crash_note import Job
from ...types.errors import DataLost, FluxError
from ...wire.link import Link
from ...wire.reports import (
    Command,
    CompareCopies,
    OutputReached,
    StopProcess,
    command_frame,
    on_clock_of_reader,
    read_report,
)
from ...wire.requests import ReconfigureRequest
from .. import actions
from ..change_request import ChangeBuilder, plain_requests
from ..failures import settle_if_due
from ..known_changes import KnownChange
from ..metric_families import make_metrics
from ..metrics import Metrics
from ..poison_rows import PoisonRowDetector
from ..processes import Process
from ..report_builder import load_of, status_of
from ..run_state import RunState, SinkProgress
from ..status import ProcessStatus, Status

log = logging.getLogger("flux")

FAILED = 1
_DEATH_KNOWN_WITHIN_S = 10.0  # In this time an exit monitor reports why its site died, if the machine is up.


class RowsAtEnd(NamedTuple):
    """The rows of a stream that has ended."""

    of_input: int
    of_sinks: list[int]


class RemoteDriver:
    """The driver of the run of `plan`; when the run is `over`, its processes are stopped.

    `rows_at_end` were noted if the stream had ended before this controller was started; `note_end` does that.
    """

    def __init__(self, plan: Plan, rows_at_end: RowsAtEnd | None, note_end: Callable[[RowsAtEnd], None]) -> None:
        rows = rows_at_end or RowsAtEnd(0, [0] * plan.sinks)
        sinks = [SinkProgress(rows=each) for each in rows.of_sinks]
        self.run_state = RunState(plan, ended=rows_at_end is not None, sinks=sinks, outputs=sum(rows.of_sinks))
        self.run_state.history.add_inputs((), rows.of_input)
        self._note_end = note_end
        self.links: dict[str, Link] = {}
        self.drained: set[str] = set()
        self.stopped: set[str] = set()  # Nodes that were sent `StopProcess`.
        self._plan = plan
        self._poison_rows = PoisonRowDetector(plan)
        self._lost: tuple[DataLost, float] | None = None  # And until when to wait for the cause.
        self._explained: set[str] = set()  # Sites whose exit monitor has reported.

    @property
    def over(self) -> bool:
        """Whether the stream has ended, or the run failed."""
        return self.run_state.ended or self.run_state.error is not None

    @property
    def status_code(self) -> int:
        """The status that the processes exit with."""
        return 0 if self.run_state.error is None else FAILED

    async def serve(self, link: Link) -> None:
        """Take the reports of one process until it is gone."""
        self.links[link.peer] = link
        self._log(logging.INFO, link.peer, f"{link.peer} is up")
        self._note_return(link.peer)
        if self.over:
            self._stop(link)
        self._send_output_reached(link)
        try:
            while (frame := await link.receive()) is not None:
                self._take(link, frame[0])
        finally:
            if self.links.get(link.peer) is link:
                del self.links[link.peer]
            self._log(logging.INFO, link.peer, f"{link.peer} is gone")

    def status(self) -> Status:
        """Return the status of the run now."""
        processes = [self._process(node) for node in sorted(self.links)]
        return status_of(self._plan.name, self.run_state, processes, self.run_state.whole, time.monotonic())

    def metrics(self) -> Metrics:
        """Return the metrics of the run now."""
        return make_metrics(self.status(), self.run_state, time.monotonic())

    def _take(self, link: Link, header: dict[str, Any]) -> None:
        """Take a report, and carry out what it makes necessary."""
        now = time.monotonic()
        report = on_clock_of_reader(read_report(header), now)
        for action in self.run_state.apply(report, link.peer, now):
            self._carry_out(action, now)
        settle_if_due(self.run_state, now)

    def _carry_out(self, action: actions.DriverAction, now: float) -> None:
        match action:
            case actions.EndRun(DataLost() as error):
                self._lost = self._lost or (error, now + _DEATH_KNOWN_WITHIN_S)
            case actions.EndRun(error):
                self._end(error)
            case actions.WriteLog(level, node, text):
                self._log(level, node, text)
            case actions.SendCommand(to, command):
                for node, link in self.links.items():
                    if node.partition(".")[0] == to:
                        link.send(command_frame(command))
            case actions.NodeDied(node):
                self._note_death(node)
            case actions.SiteEmpty(site):
                self.drained.add(site)
                if site in self.links:
                    self.links[site].send(command_frame(StopProcess()))
            case actions.StreamEnded():
                self._compare_copies()
            case actions.ComparisonDone(error):
                self._end(error)

    def _compare_copies(self) -> None:
        """Have the controller compare all copies, then end the run."""
        self.run_state.ended = False  # Until then.
        if CONTROLLER in self.links and self._plan.copies > 1:
            self.links[CONTROLLER].send(command_frame(CompareCopies()))
        else:
            self._end(None)

    def note_site_death(self, site: str, job: Job | None) -> None:
        """Note that a site ended at `job`, or idle, as its exit monitor reports; end the run if its input killed it."""
        self._explained.add(site)
        how = "a status that its supervisor knows; what it wrote is in its log"
        if job is not None and (poison := self._poison_rows.examine(site, how, job)) is not None:
            self._end(poison)

    def end_if_lost(self) -> None:
        """End the run if all copies are gone, unless an exit monitor may yet report why."""
        if self._lost is not None:
            error, until = self._lost
            sites = {dead.name for dead in self.run_state.deaths if dead.is_site}
            if sites <= self._explained or time.monotonic() > until:
                self._end(error)

    def change_code(self, builder: ChangeBuilder, request: ReconfigureRequest) -> KnownChange:
        """Request a change of code of the controller; `ChangeError` if it cannot be made."""
        wanted = plain_requests(request.changes)
        change = builder.ask(self.run_state.known_changes, wanted, request.scheduler, time.monotonic())
        self.send_to_controller(change.command)
        return change

    def send_to_controller(self, command: Command) -> None:
        """Send the controller a command; it is in the same process."""
        self.links[CONTROLLER].send(command_frame(command))

    def stop(self) -> None:
        """End the run for `flux stop`."""
        self._end(FluxError(f"{self._plan.name} was stopped by `flux stop`. Output up to then is right"))

    def _note_death(self, node: str) -> None:
        if node in self.drained or self.over:
            why = "it was drained" if node in self.drained else "the run is over"
            self._log(logging.INFO, node, f"{node} is gone, as {why}")
        else:
            self._log(logging.WARNING, node, f"{node} is dead")
            name, _, incarnation = node.partition(".")
            dead = Process(name, int(incarnation or 1))
            dead.stderr.handed_over()  # What it wrote is where it ran.
            dead.ended(None)
            self.run_state.deaths.append(dead)

    def _note_return(self, node: str) -> None:
        """Note that an ingress or egress is back. For the copies of a site, views say when they are."""
        name = node.partition(".")[0]
        for dead in self.run_state.deaths:
            if dead.name == name and dead.node != node and dead.back_at is None:
                dead.back_at = time.monotonic()

    def _send_output_reached(self, link: Link) -> None:
        """Send an ingress with a latency limit the position of the output."""
        if link.peer.partition(".")[0] == INGRESS and self._plan.policy.max_latency_ms is not None:
            link.send(command_frame(OutputReached(upto=self.run_state.safe_upto)))

    def _end(self, error: Exception | None) -> None:
        if self.over:
            return
        if error is None:
            try:
                # Before any process is stopped: none is started again then, and the next controller must not wait.
                rows = [sink.rows for sink in self.run_state.sinks]
                self._note_end(RowsAtEnd(self.run_state.history.input_rows, rows))
            except FluxError as failed:
                error = failed
        self.run_state.ended = error is None
        self.run_state.error = None if error is None else self.run_state.safe(error)
        for node, link in self.links.items():
            if node != CONTROLLER:
                self._stop(link)

    def _stop(self, link: Link) -> None:
        if link.peer != CONTROLLER:
            link.send(command_frame(StopProcess(status=self.status_code)))
            self.stopped.add(link.peer)

    def _process(self, node: str) -> ProcessStatus:
        name, _, incarnation = node.partition(".")
        number = int(incarnation or 1)
        if node in self.drained or node in self.run_state.closed_at:  # Its process may be there for a while.
            return ProcessStatus(name, None, "drained" if node in self.drained else "dead", number, 0.0)
        copies, rows = self.run_state.copies.get(node, 0), self.run_state.buffered_rows.get(node, 0)
        stuck, load = self.run_state.stuck.get(node, ""), load_of(self.run_state, node)
        return ProcessStatus(name, None, "up", number, 0.0, copies, rows, stuck=stuck, **load)

    def _log(self, level: int, node: str, text: str) -> None:
        log.log(level, "%s", text, extra={"flow": self._plan.name, "node": node})
