"""Leader: the program's part in a remote run, taken by the controller: what the processes report, and the end.

Clocks of machines differ, so that every time here is that of the controller's own, at which something was heard. What
a controller had heard before it was started again is gone, but for the number of rows at the sink: the egress knows it.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from ...controller.divergence import Divergence
from ...plan import Plan
from ...plan.plan import CONTROLLER, INGRESS
from ...site.crash_note import Job
from ...types.errors import DataLost, FluxError, from_dict
from ...wire import frames
from ...wire.link import Link
from ..failures import settle_failures
from ..poison_rows import PoisonRowDetector
from ..processes import Process
from ..report_builder import status_of
from ..run_state import Completeness, RunState, SinkProgress
from ..status import ProcessStatus, Status

log = logging.getLogger("flux")

FAILED = 1
_POST_MORTEM_S = 10.0  # In this time a witness has told what its site died of, if its machine lives.


class RemoteDriver:
    """What is known of the run of `plan`; `over` when its processes are told to stop."""

    def __init__(self, plan: Plan, ended: bool) -> None:
        self.run_state = RunState(ended=ended, sinks=[SinkProgress() for _ in range(plan.sinks)])
        self.links: dict[str, Link] = {}
        self.drained: set[str] = set()
        self.told: set[str] = set()  # To stop.
        self._plan = plan
        self._divergence = Divergence(plan)
        self._post_mortem = PoisonRowDetector(plan)
        self._lost: tuple[DataLost, float] | None = None  # And until when to wait for why.
        self._witnessed: set[str] = set()  # Sites whose witness has spoken.

    @property
    def over(self) -> bool:
        """Whether the stream has ended, or the run failed."""
        return self.run_state.ended or self.run_state.error is not None

    @property
    def status_code(self) -> int:
        """What the processes exit with."""
        return 0 if self.run_state.error is None else FAILED

    async def serve(self, link: Link) -> None:
        """Hear one process until it is gone."""
        self.links[link.peer] = link
        self._log(logging.INFO, link.peer, f"{link.peer} is up")
        self._note_return(link.peer)
        if self.over:
            self._stop(link)
        self._tell_ingress()
        try:
            while (frame := await link.receive()) is not None:
                self._hear(link, frame[0])
        finally:
            if self.links.get(link.peer) is link:
                del self.links[link.peer]
            self._log(logging.INFO, link.peer, f"{link.peer} is gone")

    def status(self) -> Status:
        """What the run is doing now."""
        processes = [self._process(node) for node in sorted(self.links)]
        return status_of(self._plan.name, self.run_state, processes, self.run_state.whole, time.monotonic())

    def _hear(self, link: Link, header: dict[str, Any]) -> None:
        run_state, now, kind = self.run_state, time.monotonic(), header["kind"]
        if kind == "rows":
            has_ended = run_state.ended
            run_state.take(header, now)
            self._tell_ingress()
            if run_state.ended and not has_ended:
                run_state.ended = False
                self._end(None)
        elif kind == "inputs":
            entries = [(now, upto, rows) for _, upto, rows in header["log"]]
            run_state.history.add_inputs(entries, header["total"])
        elif kind == "view":
            run_state.started_at = run_state.started_at or now
            run_state.whole = header["whole"]
            if run_state.whole:
                run_state.wholes.append(Completeness(now, header["versions"]))
        elif kind == "placed":
            run_state.copies, run_state.building = header["copies"], header["building"]
        elif kind == "load":
            run_state.buffered_rows[link.peer] = header["buffered_rows"]
        elif kind == "gone":
            self._hear_gone(header)
        elif kind == "drained":
            self.drained.add(header["site"])
            if header["site"] in self.links:
                self.links[header["site"]].send({"kind": "stop"})
        elif kind == "error":
            error = from_dict(header["error"])
            if isinstance(error, DataLost):
                self._lost = self._lost or (error, now + _POST_MORTEM_S)
            else:
                self._end(error)
        elif kind in ("skipped", "shed", "late"):
            for text in run_state.left_out.hear(header):
                self._log(logging.WARNING, link.peer, text)
        elif kind == "log":
            self._log(header["level"], header["node"], f"{header['node']}: {header['text']}")
        elif kind == "moved":
            run_state.hear_moved(link.peer, header, self._plan, now)
        elif kind == "installed":
            run_state.hear_installed(header)
        elif kind == "bye":
            run_state.hear_bye(link.peer, header, self._divergence)
        elif kind != "up":
            raise frames.BadFrame(f"{link.peer} sent an unknown {kind!r}")
        if run_state.started_at is not None and run_state.history.is_due(run_state.started_at, now):
            settle_failures(run_state, now)
            run_state.history.settle(run_state.started_at, now)

    def hear_witness(self, site: str, job: Job | None) -> None:
        """A site has ended at this work, or idle, as its witness says; end the run if its input has killed it."""
        self._witnessed.add(site)
        how = "a status that its supervisor knows; what it wrote is in its log"
        if job is not None and (poison := self._post_mortem.examine(site, how, job)) is not None:
            self._end(poison)

    def end_if_lost(self) -> None:
        """End the run if all copies are gone, unless somebody may yet say why."""
        if self._lost is not None:
            error, until = self._lost
            sites = {dead.name for dead in self.run_state.deaths if dead.is_site}
            if sites <= self._witnessed or time.monotonic() > until:
                self._end(error)

    def _hear_gone(self, header: dict[str, Any]) -> None:
        node = header["node"]
        if node in self.run_state.closed_at:
            return
        self.run_state.hear_gone(header)
        self._log(logging.WARNING, node, f"{node} is {'gone, as it was drained' if node in self.drained else 'dead'}")
        if node not in self.drained and not self.over:
            name, _, incarnation = node.partition(".")
            dead = Process(name, int(incarnation or 1))
            dead.stderr.handed_over()  # What it wrote is where it ran.
            dead.ended(None)
            self.run_state.deaths.append(dead)

    def _note_return(self, node: str) -> None:
        """An end that was started again is there; what became of a site's copies, views tell."""
        name = node.partition(".")[0]
        for dead in self.run_state.deaths:
            if dead.name == name and dead.node != node and dead.back_at is None:
                dead.back_at = time.monotonic()

    def _tell_ingress(self) -> None:
        """With a limit on latency, the ingress lets rows in as they come out."""
        for node, link in self.links.items():
            if node.partition(".")[0] == INGRESS:
                link.send({"kind": "out", "upto": self.run_state.safe_upto})

    def _end(self, error: FluxError | None) -> None:
        if self.over:
            return
        if isinstance(error, DataLost):
            error = DataLost(error.partitions, self.run_state.safe_upto or None, copies=error.copies)
        self.run_state.ended, self.run_state.error = error is None, error
        for node, link in self.links.items():
            if node != CONTROLLER:
                self._stop(link)

    def _stop(self, link: Link) -> None:
        if link.peer != CONTROLLER:
            link.send({"kind": "stop", "status": self.status_code})
            self.told.add(link.peer)

    def _process(self, node: str) -> ProcessStatus:
        name, _, incarnation = node.partition(".")
        number = int(incarnation or 1)
        if node in self.drained or node in self.run_state.closed_at:  # Its process may be there for a while.
            return ProcessStatus(name, None, "drained" if node in self.drained else "dead", number, 0.0)
        copies, rows = self.run_state.copies.get(node, 0), self.run_state.buffered_rows.get(node, 0)
        return ProcessStatus(name, None, "up", number, 0.0, copies, rows)

    def _log(self, level: int, node: str, text: str) -> None:
        log.log(level, "%s", text, extra={"flow": self._plan.name, "node": node})
