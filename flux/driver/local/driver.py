"""Driver: the part of a local run in the user's program: it takes the reports of the processes, in its own thread.

The thread runs one trio loop: it takes reports, writes the rows of a `Collect`, restarts processes that die, and
answers commands. Everything that is reported is in `RunState`, guarded by one condition that callers wait on.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import trio

from ...plan.plan import CONTROLLER, EGRESS, INGRESS
from ...sinks import Collect, Sink
from ...site.config import ProcessConfig
from ...site.crash_note import SUFFIX, Job, last_job
from ...system import threads
from ...types.errors import DataLost, FluxError, unwrap_group
from ...wire import frames, reports
from ...wire.connections import let_in
from ...wire.link import Link, accept_loop
from ...wire.requests import COMMAND, Request, read_request
from .. import actions
from ..change_request import ChangeBuilder, StepRequest
from ..failures import settle_if_due
from ..known_changes import KnownChange
from ..metric_families import make_metrics
from ..metrics import Metrics
from ..metrics_endpoint import MetricsEndpoint
from ..poison_rows import PoisonRowDetector
from ..processes import CRASH_LIMIT, Process, Processes
from ..report_builder import make_status
from ..run_state import RunState, SinkProgress
from .site_hooks import ForkedSites, SiteHooks
from .spawner import Spawner
from .supervisor import Supervisor

T = TypeVar("T")

log = logging.getLogger("flux")

_LAST_REPORTS_TIMEOUT_S = 5.0
_LAST_MEASURES_TIMEOUT_S = 1.0  # A fork of a process may hold its connection open.
_COMPARED_WITHIN_S = 30.0  # More than the controller waits for sites that do not advance.


class Driver:
    """The driver of one run. Processes named in `restarts` are started again when they die, up to the `crash_limit`."""

    def __init__(
        self,
        config: ProcessConfig,
        sinks: Sequence[Sink],
        listener: socket.socket,
        spawner: Spawner,
        names: Sequence[str],
        restarts: frozenset[str],
        answer: Callable[[Request], dict[str, Any]],
        site_hooks: SiteHooks | None = None,
        crash_limit: int | None = CRASH_LIMIT,
        metrics_listener: socket.socket | None = None,
    ) -> None:
        self.run_state = RunState(config.plan, sinks=[SinkProgress() for _ in sinks])
        self.changed = threading.Condition()
        self._config = config
        self._sinks = sinks
        self._listener = listener
        self._metrics_listener = metrics_listener
        self._spawner = spawner
        self._names = names
        self._restarts = restarts
        self._answer = answer
        self._site_hooks = site_hooks or ForkedSites()
        self.processes = Processes(crash_limit)
        self._supervisor = Supervisor(self.processes, spawner, self.changed, restarts, self._died, self.fail)
        self._links: dict[str, Link] = {}  # By the names of processes, not of nodes.
        self._over: dict[str, trio.Event] = {}  # Set when nothing more can arrive on the link.
        self._poison_rows = PoisonRowDetector(config.plan)
        self._builder = ChangeBuilder(config.plan, sinks)
        self._changing = threading.Lock()
        self.stopping = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._up = threading.Event()
        self._thread = threads.start_loop(self._live, "flux-program")

    def wait(self, until: Callable[[RunState], bool], timeout_s: float | None) -> bool:
        """Wait until a condition on the state of the run holds; return False on timeout."""
        with self.changed:
            return self.changed.wait_for(lambda: until(self.run_state), timeout_s)

    def kill(self, name: str, timeout_s: float) -> None:
        """Send SIGKILL to the present incarnation of `name`; return when it is gone."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            process = self.processes.live(name)
            # A process that was just started again may not have a pid yet.
            self.changed.wait_for(lambda: process.pid is not None or process.gone, timeout_s)
            process.kill()
            if not self.changed.wait_for(lambda: process.gone, deadline - time.monotonic()):
                raise FluxError(f"{name} (process {process.pid}) did not end {timeout_s:g} s after SIGKILL")

    def metrics(self) -> Metrics:
        """Return the metrics of the run, as they are known now."""
        with self.changed:
            status = make_status(self._config.plan.name, self.run_state, self.processes)
            return make_metrics(status, self.run_state, time.monotonic())

    def start_site(self, standby: bool = False) -> Process:
        """Start a further site; a `standby` is a spare."""
        return self.call_in_thread(partial(self._start_site, standby))

    def drain(self, name: str) -> Process:
        """Have the controller transfer the partitions of a site to others; then the site is stopped."""
        with self.changed:
            process = self._live_site(name)
        self.call_in_thread(lambda: self.ask_to_drain(name))
        return process

    def change_code(self, wanted: Mapping[str, StepRequest], scheduler: str) -> KnownChange:
        """Request a change of code of the controller; `ChangeError` if it cannot be made."""
        with self._changing:
            self.wait(lambda run_state: all(each.is_decided for each in run_state.known_changes.unsettled()), None)
            with self.changed:
                change = self._builder.ask(self.run_state.known_changes, wanted, scheduler, time.monotonic())
        self.run_in_thread(lambda: self._send_to_controller(change.command))
        return change

    def give_up_change(self, number: int) -> None:
        """Have the controller give up a change, unless it is committed."""
        self.run_in_thread(lambda: self._send_to_controller(reports.GiveUpChange(number=number)))

    def _send_to_controller(self, command: reports.Command) -> None:
        """Send a command to the controller, if there is one now: the next one is sent all changes that are open."""
        if CONTROLLER in self._links:
            self._links[CONTROLLER].send(reports.command_frame(command))

    def sites_without(self, name: str) -> list[str]:
        """Return the live sites besides `name` that are not drained; `ValueError` if `name` is not a live site."""
        with self.changed:
            self._live_site(name)
            sites = [process.name for process in self.processes if process.is_site and not process.gone]
            return [site for site in sites if site != name and site not in self.run_state.draining]

    def _live_site(self, name: str) -> Process:
        process = self.processes.live(name)
        if not process.is_site:
            raise ValueError(f"{name} is not a site: it holds no partitions that could be transferred")
        return process

    def is_up(self, name: str) -> bool:
        """Return whether the process `name` runs and has connected, or is about to."""
        with self.changed:
            return any(process.name == name and not process.gone for process in self.processes)

    def stop(self, patience_s: float = 5.0) -> None:
        """Send every process `StopProcess` and wait for its end; after `patience_s` it is killed."""
        self._wait_for_comparison()
        self.run_in_thread(self._stop)
        self.wait(lambda run_state: self.processes.all_gone() or not self._thread.is_alive(), patience_s)
        self.wait(lambda run_state: self._is_all_taken() or not self._thread.is_alive(), _LAST_MEASURES_TIMEOUT_S)
        with self.changed:
            for process in self.processes:
                process.kill()
        self.wait(lambda run_state: self.processes.all_gone() or not self._thread.is_alive(), patience_s)

    def _is_all_taken(self) -> bool:
        """Whether nothing more can arrive from processes that have ended: their last reports have their totals."""
        return all(over.is_set() for over in self._over.values())

    def _wait_for_comparison(self) -> None:
        """Wait until the copies are compared, as long as the controller is there and those that lag advance."""
        steps = -1
        while steps != self.run_state.comparison_steps:
            steps = self.run_state.comparison_steps
            self.wait(partial(self._is_comparison_over, steps), _COMPARED_WITHIN_S)
        if self._is_uncompared and not self.stopping:
            self.log(logging.WARNING, "the copies were not compared at the end of the stream", node=CONTROLLER)

    def _is_comparison_over(self, steps: int, run_state: RunState) -> bool:
        """Return whether no comparison is to be waited for, or a copy has advanced since so many `steps`."""
        is_over = not self._is_uncompared or not self.is_up(CONTROLLER) or not self._thread.is_alive()
        return is_over or run_state.comparison_steps != steps

    @property
    def _is_uncompared(self) -> bool:
        """Whether the stream has ended and the controller has not reported yet whether copies differ."""
        run_state = self.run_state
        return run_state.ended and not run_state.compared and run_state.error is None and self._config.plan.copies > 1

    def join(self) -> None:
        """End the spawner, with all its children, and the thread."""
        self.run_in_thread(lambda: self._cancel.cancel())
        self._thread.join()
        self._spawner.close()
        with self.changed:
            for process in self.processes:
                if not process.gone:
                    self.processes.end(process, None)  # The thread ended before the exit status was reported.

    def run_in_thread(self, what: Callable[[], None]) -> None:
        """Schedule a call in the driver's thread."""
        self._up.wait()
        with contextlib.suppress(trio.RunFinishedError):
            assert self._token is not None
            self._token.run_sync_soon(what)

    def call_in_thread(self, what: Callable[[], T]) -> T:
        """Return the result of a call in the driver's thread."""
        self._up.wait()
        try:
            return trio.from_thread.run_sync(what, trio_token=self._token)
        except trio.RunFinishedError:
            raise self.run_state.error or FluxError("the run has ended: its processes are gone") from None

    def fail(self, error: BaseException) -> None:
        """Fail the run, from any thread. While it stops, its processes see each other go one by one: no failure."""
        with self.changed:
            if self.run_state.error is None and not self.run_state.ended and not self.stopping:
                self.run_state.error = self.run_state.safe(error)
            self.changed.notify_all()

    # In the thread.

    async def _live(self) -> None:
        """Run the loop; an error in it must reach the threads that wait."""
        try:
            await self._run()
        except BaseException as error:
            with self.changed:
                self.stopping = True
                self.run_state.error = self.run_state.error or unwrap_group(error)
                self.changed.notify_all()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._cancel:
            self._up.set()
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._supervisor.run, self._names, nursery)
                if self._metrics_listener is not None:
                    nursery.start_soon(MetricsEndpoint(self._metrics_listener, lambda: self.metrics().to_text()).serve)
                with self._listener:
                    await accept_loop(self._listener, self._accepted)

    def _accepted(self, sock: socket.socket) -> None:
        self._nursery.start_soon(self._serve, sock)

    async def _serve(self, sock: socket.socket) -> None:
        own, log_it = self._config.identity("program"), partial(self.log, node="program")
        guest = await let_in(sock, own, log_it, self._why_refused)
        if guest is None:
            return
        link, over = Link(*guest), trio.Event()
        self._nursery.start_soon(link.write)
        try:
            if link.peer != COMMAND:
                await self._greeted(link, over)
            while (frame := await link.receive()) is not None:
                if link.peer == COMMAND:
                    await self._reply(link, frame[0])
                else:
                    self._take(link, *frame)
        except frames.BadFrame as error:
            self.log(logging.WARNING, f"closed the connection to {link.peer}: {error}", node=link.peer)
        finally:
            over.set()
            link.close()
            with self.changed:
                self.changed.notify_all()
                if (process := self.processes.of_node(link.peer)) is not None:
                    self._site_hooks.on_disconnected(process, link)

    def _why_refused(self, peer: str) -> str | None:
        with self.changed:
            is_known = peer == COMMAND or self.processes.of_node(peer) is not None
        return None if is_known else "it is not a process that this run has started, or it is dead"

    async def _greeted(self, link: Link, over: trio.Event) -> None:
        process = self.processes.of_node(link.peer)
        if process is None:
            raise frames.BadFrame("it died a moment ago")
        await self._await_last_reports(process.name)
        with self.changed:
            self._links[process.name], self._over[process.name] = link, over
            process.greeted()
            self._site_hooks.on_connected(process, link)
            self._note_joined(process)
            self.log(logging.INFO, f"{process.node} is up (process {process.pid})", node=process.node)
            if process.name == EGRESS:
                for number, (sink, taken) in enumerate(zip(self._sinks, self.run_state.sinks, strict=True)):
                    if isinstance(sink, Collect):
                        position, ahead = taken.reached
                        held = reports.Collected(sink=number, upto=taken.upto, position=position, ahead=ahead)
                        link.send(reports.command_frame(held))
            if process.name == INGRESS and self._config.plan.policy.max_latency_ms is not None:
                link.send(reports.command_frame(reports.OutputReached(upto=self.run_state.safe_upto)))
            if process.name == CONTROLLER:
                drained = [each for each in self.processes if each.drained and each.gone]
                for dead in [*self.run_state.deaths, *drained]:
                    link.send(reports.command_frame(reports.DeclareDead(node=dead.node)))
                if self.run_state.ended:
                    self._compare_copies()
                self._send_spares()
                for change in self.run_state.known_changes.unsettled():
                    link.send(reports.command_frame(change.command))
                for site in self.run_state.draining:
                    link.send(reports.command_frame(reports.DrainSite(site=site)))
            if self.stopping:
                link.send(reports.command_frame(reports.StopProcess()))
            self.changed.notify_all()

    async def _reply(self, link: Link, header: dict[str, Any]) -> None:
        """Answer a command in a thread, because the answer may have to wait for reports to this one."""
        # The thread is abandoned when the run stops, because it may wait for that.
        link.send(await trio.to_thread.run_sync(partial(self._answer, read_request(header)), abandon_on_cancel=True))
        await link.drain()

    async def _await_last_reports(self, name: str) -> None:
        """Wait until the reports of the last incarnation are taken, so that they do not mix with those of the next."""
        if name in self._links:
            with trio.move_on_after(_LAST_REPORTS_TIMEOUT_S):  # A fork of it may hold the connection.
                await self._over[name].wait()
            self._links[name].close()

    def _compare_copies(self) -> None:
        """Send the controller the command to compare all copies; it answers once."""
        if CONTROLLER in self._links:
            self._links[CONTROLLER].send(reports.command_frame(reports.CompareCopies()))

    def _start_site(self, standby: bool = False) -> Process:
        with self.changed:
            name = self.processes.next_site()
            if standby:
                self.name_spare(name)
            return self._supervisor.start(name)

    def name_spare(self, site: str) -> None:
        """Have the controller take a site that was added for a spare."""
        with self.changed:
            self.run_state.spares += (site,)
            self._send_spares()

    def _send_spares(self) -> None:
        """Send the controller the sites that were added as spares."""
        if CONTROLLER in self._links and self.run_state.spares:
            self._links[CONTROLLER].send(reports.command_frame(reports.SpareSites(sites=self.run_state.spares)))

    def _note_joined(self, process: Process) -> None:
        if process.is_site and self.run_state.started_at is not None:
            self.run_state.changes.append((time.monotonic(), f"{process.name} joined"))

    def ask_to_drain(self, site: str) -> None:
        """Send the controller the command to drain a site."""
        with self.changed:
            self.run_state.draining.add(site)
            self._links[CONTROLLER].send(reports.command_frame(reports.DrainSite(site=site)))

    def _stop_drained(self, site: str) -> None:
        """Stop a site that holds no partition any more."""
        self.run_state.draining.discard(site)
        process = self.processes.of_node(site)
        if process is not None and site in self._links:  # It may have died meanwhile.
            process.drained = True
            self.run_state.changes.append((time.monotonic(), f"{site} is drained"))
            self._links[site].send(reports.command_frame(reports.StopProcess()))

    def _declared_dead(self, node: str) -> None:
        """Note that a node was declared dead. Its process may still be there, stopped or partitioned off."""
        self.run_state.draining.discard(node)
        process = self.processes.of_node(node)
        if process is not None and not process.drained and not self.stopping:
            self.run_state.declared.append(process)

    def end(self, process: Process) -> None:
        """Note the end of a process that was not forked."""
        self.processes.end(process, None)
        self._died(process)
        self.changed.notify_all()

    def _died(self, process: Process) -> None:
        self.run_state.draining.discard(process.name)
        if self.stopping:
            return
        if process.drained:
            if CONTROLLER in self._links:  # One that was just started again would wait for the site.
                self._links[CONTROLLER].send(reports.command_frame(reports.DeclareDead(node=process.node)))
            return
        self.run_state.deaths.append(process)
        if CONTROLLER in self._links:
            self._links[CONTROLLER].send(reports.command_frame(reports.DeclareDead(node=process.node)))
        if (text := self._site_hooks.text_of_death(process)) is not None:
            self.log(logging.WARNING, text, node=process.node)
            return
        if process.is_site:
            self.examine(process, last_job(self._config.directory / f"{process.name}{SUFFIX}"))
        if self.run_state.started_at is None:
            how = process.how_it_ended()
            self.fail(FluxError(f"{process.name} ended before the run had started, with {how}"))
        elif process.is_site or self.run_state.ended:
            # The controller has the copies of a site rebuilt; after the end nothing is needed.
            self.log(logging.WARNING, f"{process.node} ended with {process.how_it_ended()}", node=process.node)
        elif process.name not in self._restarts:
            how = process.how_it_ended()
            self.fail(
                FluxError(
                    f"the {process.name} process ended, and it cannot be restarted yet: the run ends here. Output up "
                    f"to now is right. It ended with {how}"
                )
            )
        elif (error := self.processes.check_restart(process)) is not None:
            self.fail(error)
        else:
            self.log(
                logging.WARNING,
                f"{process.node} ended with {process.how_it_ended()}; it is started again",
                node=process.node,
            )
            self._supervisor.start(process.name)

    def examine(self, process: Process, job: Job | None) -> None:
        """End the run if its input kills the sites that work on it."""
        if job is not None and process.killed_at is None:
            poison = self._poison_rows.examine(process.name, process.how_it_ended(), job)
            if poison is not None:
                self.fail(poison)

    async def _fail_when_deaths_are_known(self, error: BaseException) -> None:
        """End the run as all copies are gone, after the time in which the cause may be reported."""
        await trio.sleep(self._site_hooks.death_known_within_s)
        self.fail(error)

    def _take(self, link: Link, header: dict[str, Any], body: Any) -> None:
        """Take a report, and carry out what it makes necessary."""
        report, now = reports.read_report(header), time.monotonic()
        with self.changed:
            if isinstance(report, reports.RowsWritten) and not self._collect(link, report, header, body):
                return
            for action in self.run_state.apply(report, link.peer, now):
                self._carry_out(action)
            if isinstance(report, reports.RowsWritten) and isinstance(self._sinks[report.sink], Collect):
                link.send(reports.command_frame(reports.RowsDurable(sink=report.sink, upto=report.upto)))
            settle_if_due(self.run_state, now)
            self.changed.notify_all()

    def _carry_out(self, action: actions.DriverAction) -> None:
        match action:
            case actions.EndRun(DataLost() as error):
                self._nursery.start_soon(self._fail_when_deaths_are_known, error)
            case actions.EndRun(error):
                self.fail(error)
            case actions.WriteLog(level, node, text):
                self.log(level, text, node=node)
            case actions.SendCommand(to, command):
                if to in self._links:
                    self._links[to].send(reports.command_frame(command))
            case actions.NodeDied(node):
                self._declared_dead(node)
            case actions.SiteEmpty(site):
                self._stop_drained(site)
            case actions.StreamEnded():
                self._compare_copies()
            case actions.ComparisonDone():
                pass  # Waiting threads are notified.

    def _collect(self, link: Link, report: reports.RowsWritten, header: dict[str, Any], body: Any) -> bool:
        """Write the rows of a `Collect`, each once; False if the run ends because some are missing."""
        if not 0 <= report.sink < len(self._sinks):
            raise frames.BadFrame(f"expected output of one of {len(self._sinks)} sinks, got number {report.sink}")
        sink, progress = self._sinks[report.sink], self.run_state.sinks[report.sink]
        rows = link.decode_batch(header, body)
        if not isinstance(sink, Collect) or report.upto <= progress.upto:
            return True  # The last egress had sent it, and was killed before it was acknowledged.
        if progress.upto != report.after:
            self.fail(
                FluxError(
                    f"{link.peer} sent the output from {report.after} to {report.upto}, and the driver has it up to "
                    f"{progress.upto}: some would be lost or be there twice, so the run ends here. This is an error of "
                    "Flux; please report it"
                )
            )
            return False
        if rows is not None:
            sink.write(rows, report.after, report.upto)
        return True

    def log(self, level: int, text: str, *, node: str) -> None:
        """Write a log line of the run."""
        log.log(level, "%s", text, extra={"flow": self._config.plan.name, "node": node})

    def _stop(self) -> None:
        self.stopping = True
        for link in self._links.values():
            link.send(reports.command_frame(reports.StopProcess()))
