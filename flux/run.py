"""Run: the handle of a dataflow that is running on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import pyarrow as pa
import trio

from .controller.controller_process import ControllerProcess
from .driver.change_request import StepRequest, plain_requests
from .driver.known_changes import KnownChange
from .driver.launcher import Runnable
from .driver.local import registry
from .driver.local.driver import Driver
from .driver.local.fork_check import check_fork
from .driver.local.run_directory import RunDirectory, remove_abandoned
from .driver.local.run_requests import RequestHandlers
from .driver.local.spawner import Spawner, check_descriptors
from .driver.metrics import Metrics
from .driver.metrics_endpoint import listen as listen_for_metrics
from .driver.metrics_endpoint import metrics_address, metrics_url
from .driver.processes import CRASH_LIMIT, Process, check_crash_limit
from .driver.report import LogEntry, Report
from .driver.report_builder import make_report, make_status, since_start
from .driver.run_state import INPUTS_TIMEOUT_S, RunState, StateTransfer
from .driver.status import Status
from .plan import Plan
from .plan.plan import CONTROLLER, EGRESS, INGRESS
from .reconfigure import Change
from .sinks import Collect, Sink
from .site import crash_points
from .site.config import ProcessConfig, place_of
from .site.egress.egress_process import EgressProcess
from .site.ingress.ingress_process import IngressProcess
from .site.worker import Worker
from .sources import Source
from .storage.disk import disk_error
from .types.errors import ChangeError, FluxError, NoSites, PlanError, SourceEnded
from .wire import address
from .wire.requests import ReconfigureRequest
from .wire.secret import new_secret

log = logging.getLogger("flux")

Wait: TypeAlias = Callable[[Callable[[RunState], bool], float | None, str], None]

_START_TIMEOUT_S = 60.0
_KILL_TIMEOUT_S = 10.0
_ADD_TIMEOUT_S = 60.0
_EXIT_STATUS_TIMEOUT_S = 0.5


class Run:
    """A dataflow in progress; made by `Dataflow.start`.

    Leaving its `with` block stops it. If it has failed, that raises the error, unless it was raised before by `wait()`
    or another exception leaves the block.
    """

    def __init__(
        self,
        plan: Plan,
        sources: Sequence[Source],
        sinks: Sequence[Sink],
        outputs: Sequence[pa.Schema | None],
        record: str | Path | None = None,
        crash_limit: int | None = CRASH_LIMIT,
        metrics_port: int | str | None = None,
    ) -> None:
        check_crash_limit(crash_limit)
        self._metrics_at = None if metrics_port is None else metrics_address(metrics_port)
        self._metrics_listener: socket.socket | None = None
        self.metrics_url: str | None = None  # Where Prometheus can read the metrics; None without `metrics_port`.
        self._crash_limit = crash_limit
        self._plan = plan
        self._sources = tuple(sources)
        self._sinks = tuple(sinks)
        self._outputs = tuple(outputs)
        self._report: Report | None = None
        self._stopped = False
        self._raised: BaseException | None = None  # The failure of the run, once the program has it.
        self._ending = threading.RLock()
        self._collecting: list[Sink] = []
        self._bound: list[Source] = []
        _refuse_inside_trio()
        crash_points.check()  # Else each process would raise it, and die.
        check_descriptors(len(plan.site_names))
        check_fork(plan, [*sources, *(sink for sink in sinks if not isinstance(sink, Collect))])
        for warning in plan.warnings():
            log.warning("%s", warning)
        if record is not None:
            _make_directory(Path(record))
        self._directory = RunDirectory()
        self.directory = self._directory.path
        self._config = self._make_config(None if record is None else Path(record))
        self._driver: Driver | None = None
        self._entry: Path | None = None
        try:
            self._launch()
            self._register()
            self._await_start()
            self._start_sources()
        except BaseException:
            self.stop()
            raise

    # A subclass may have the sites elsewhere: see flux.spark.Cluster.

    def _make_config(self, record: Path | None) -> ProcessConfig:
        return ProcessConfig(
            plan=self._plan, directory=self.directory, run=self.directory.name, secret=new_secret(), record=record
        )

    def _listen(self, name: str) -> socket.socket:
        return address.listen(self._config.address(name))

    def _make_driver(self, listener: socket.socket, spawner: Spawner) -> Driver:
        ends = (CONTROLLER, INGRESS, EGRESS)
        names = (*ends, *self._plan.site_names)
        return Driver(
            self._config,
            self._sinks,
            listener,
            spawner,
            names,
            frozenset(ends),
            self._request_handlers().answer,
            crash_limit=self._crash_limit,
            metrics_listener=self._metrics_listener,
        )

    def _request_handlers(self) -> RequestHandlers:
        """Return the handlers of requests. They change nothing while they wait: the run may be stopped meanwhile."""
        return RequestHandlers(
            status=lambda: self.status().to_dict(),
            metrics=lambda: self.metrics().to_dict(),
            kill=self.kill,
            reconfigure=self._reconfigure_by_command,
            drain=lambda site, timeout_s: self._await_drained(self._begin_drain(site), timeout_s, self._watch),
            add_site=lambda standby: self._add_site(self._watch, standby),
            stop=self._stop_by_command,
        )

    def _reconfigure_by_command(self, request: ReconfigureRequest) -> dict[str, Any]:
        wanted = plain_requests(request.changes)
        known = self._reconfigure(self._watch, wanted, request.scheduler, request.within_s)
        return known.to_plain(self._run_state.started_at or known.requested_at)

    def _stop_by_command(self) -> None:
        """End the run for `flux stop`; the program gets an error, if it waits for the run or leaves its block."""
        assert self._driver is not None
        self._driver.fail(FluxError(f"{self._plan.name} was stopped by `flux stop`. Output up to then is right"))
        self.stop()

    def _await_start(self) -> None:
        self._await(lambda run_state: run_state.started_at is not None, _START_TIMEOUT_S, "start")

    def _launch(self) -> None:
        for sink in self._sinks:
            if isinstance(sink, Collect):
                sink.open(self.directory)
                self._collecting.append(sink)
        for source in self._sources:
            source.expect(self._plan.name, self._plan.stateful_steps)
        for number, source in enumerate(self._sources):
            place = place_of(self.directory, "source", number)
            place.mkdir(mode=0o700, exist_ok=True)
            source.bind(place)
            self._bound.append(source)
        # The spawner keeps it open: the next controller accepts connections made while there is none.
        with self._listen(CONTROLLER) as controller:
            spawner = Spawner(lambda name, incarnation: self._make(name, incarnation, controller), self._clean_up)
        try:
            if self._metrics_at is not None:  # After the fork: a process that outlives this one must not hold the port.
                self._metrics_listener = listen_for_metrics(self._metrics_at)
                self.metrics_url = metrics_url(self._metrics_listener)
                log.info("metrics are at %s", self.metrics_url)
            listener = self._listen("program")
        except BaseException:
            if self._metrics_listener is not None:
                self._metrics_listener.close()
            spawner.close()
            raise
        self._driver = self._make_driver(listener, spawner)

    def _start_sources(self) -> None:
        with self._ending:  # A command may stop the run meanwhile: then no source is started.
            if self._stopped:
                raise self._run_state.error or FluxError("the run was stopped as it started")
            for source in self._sources:
                source.start()

    def _register(self) -> None:
        """Enter the run into the registry, so that commands find it; without that it runs too."""
        secret, where = self._config.secret.hex(), self._config.address("program")
        entry = registry.RunEntry(name=self._plan.name, pid=os.getpid(), address=where, secret=secret)
        try:
            remove_abandoned()
            registry.entries()  # It cleans up after runs that could not.
            self._entry = registry.enter(entry, self.directory.name)
            self._directory.release()
        except FluxError as error:
            log.warning("`flux status` and the like will not find %s: %s", self._plan.name, error)

    def _clean_up(self) -> None:
        """In the spawner: remove the files and the registry entry of a run whose program was killed."""
        registry.remove(self.directory.name)
        self._directory.remove()

    def _make(self, name: str, incarnation: int, controller: socket.socket) -> Runnable:
        """In the new process: close what belongs to others, and return what this one runs."""
        self._directory.close_copy()
        if name != INGRESS:
            for source in self._sources:
                source.release()
        if name == CONTROLLER:
            return ControllerProcess(self._config, controller, incarnation)
        controller.close()
        if name == INGRESS:
            return IngressProcess(self._config, self._sources, incarnation)
        if name == EGRESS:
            return EgressProcess(self._config, self._sinks, incarnation)
        return self._make_site(name)

    def _make_site(self, name: str) -> Runnable:
        return Worker(self._config, name)

    # What a user calls.

    def wait_for_output(self, n: int, timeout: float = 60) -> None:
        """Return when `n` rows are durable at the sink; `SourceEnded` or `TimeoutError` if that fails."""
        self._await(lambda run_state: run_state.outputs >= n or run_state.ended, timeout, f"{n:,} rows of output")
        if self._run_state.outputs < n:
            raise SourceEnded(
                f"the source has ended and the run gave {self._run_state.outputs:,} rows, not the {n:,} awaited"
            )

    def kill(self, name: str) -> None:
        """Send SIGKILL to the process `name`; return when it is gone. `ValueError` if it is unknown or dead.

        Names are the sites, "ingress", "egress" and "controller". The run starts the last three again at once,
        so that a second call kills the next incarnation; it does not start sites again.
        """
        assert self._driver is not None
        self._driver.kill(name, _KILL_TIMEOUT_S)

    def add_site(self, standby: bool = False) -> str:
        """Start a further site and return its name when the process is up; the numbering continues.

        In a run with `balance`, it takes its share of the partitions at once. A `standby` is a spare: it holds none
        until some are lost elsewhere.
        """
        if not isinstance(standby, bool):
            raise PlanError(f"add_site(standby=...) is True for a spare site, or False; got {standby!r:.100}")
        return self._add_site(self._await, standby)

    def _add_site(self, wait: Wait, standby: bool) -> str:
        assert self._driver is not None
        site = self._driver.start_site(standby)
        wait(lambda run_state: site.state == "up" or site.gone, _ADD_TIMEOUT_S, f"{site.name} to come up")
        if site.gone:
            raise FluxError(f"{site.name}, which add_site() started, ended with {site.how_it_ended()}")
        return site.name

    def drain(self, site: str, timeout: float = 60) -> None:
        """Transfer the state on `site` to other sites and stop it; return when its process is gone.

        `ValueError` if there is no such site or it is dead, `NoSites` if the others could not hold what is on it,
        `TimeoutError` if it takes longer than `timeout` seconds; the transfers go on then.
        """
        self._await_drained(self._begin_drain(site), timeout, self._await)

    def reconfigure(
        self, changes: Mapping[str, StepRequest], scheduler: str = "sn", timeout: float | None = 60
    ) -> Change:
        """Change code and parameters of steps while rows flow: rows up to a position by the old, all others by the new.

        ``run.reconfigure({"Sessions": flux.change(timeout=30)})`` names steps and what becomes of them. Output is that
        of a plain run that changes its code at `change.position`, the same row for all steps. It returns when the
        change is committed and each partition has a live copy past that row, or the stream has ended. `ChangeError`
        says why it cannot be made, also if it is not committed within `timeout` seconds; then nothing has changed.

        The `scheduler` says which position is chosen: "sn" the next that no step has reached, and "epoch" the next of
        the ingress, after all rows that are in flight.
        """
        known = self._reconfigure(self._await, changes, scheduler, timeout)
        what = f"change {known.number} of the code to be complete"
        return Change(known, lambda until, within: self._await(lambda _: until(), within, what))

    def _reconfigure(
        self, wait: Wait, changes: Mapping[str, StepRequest], scheduler: str, timeout: float | None
    ) -> KnownChange:
        assert self._driver is not None
        known = self._driver.change_code(changes, scheduler)
        what = f"change {known.number} of the code"

        def is_decided(run_state: RunState) -> bool:
            return known.is_decided or run_state.ended

        try:
            wait(is_decided, timeout, what)
        except TimeoutError:
            self._driver.give_up_change(known.number)
            wait(is_decided, None, what)  # Only the controller knows, or the next one.
        if not known.is_committed:
            reason = known.reason or "the stream has ended"
            raise ChangeError(f"{', '.join(known.steps)}: {reason}")
        wait(lambda run_state: known.each_at is not None or run_state.ended, None, what)
        return known

    def status(self) -> Status:
        """Return a snapshot: processes, whether all partitions have their copies, rows, rates and failures."""
        assert self._driver is not None
        with self._driver.changed:  # Else a report of the egress may be taken between the two.
            self._driver.wait(lambda run_state: run_state.has_inputs_of_outputs or self._stopped, INPUTS_TIMEOUT_S)
            return make_status(self._plan.name, self._run_state, self._driver.processes)

    def metrics(self) -> Metrics:
        """Return the metrics of the run now, by name; of a run that is over, the last ones.

        `run.metrics().total("flux_rows_total", step="Counts")` is what a step has consumed, `to_text()` what Prometheus
        reads. Processes report their work once a second.
        """
        assert self._driver is not None
        return self._driver.metrics()

    def wait(self, timeout: float | None = None) -> Report:
        """Return the report when the source has ended and every row is durable at the sink."""
        if self._report is None:
            self._await(lambda run_state: run_state.ended, timeout, "the end of the stream")
            self.stop()
            self._raise_failure()
            tables = [
                sink.table(output)
                for sink, output in zip(self._sinks, self._outputs, strict=True)
                if isinstance(sink, Collect)
            ]
            self._report = make_report(self._plan.name, self._run_state, tables)
        return self._report

    def stop(self) -> None:
        """End every process of the run now, and remove its files."""
        with self._ending:  # A second caller returns when all is done, too.
            if self._stopped:
                return
            self._stopped = True
            if self._entry is not None:
                self._entry.unlink(missing_ok=True)
            try:
                self._stop_sources()
            finally:
                self._end_processes()
                for sink in self._collecting:
                    sink.close()
                self._directory.remove()

    def _stop_sources(self) -> None:
        if not self._bound:
            return  # They may be in use by another run.
        if self._driver is not None and not self._driver.is_up(INGRESS):
            # A source asks its ingress to finish. It would wait for one that is not restarted, because the
            # spawner holds its sockets open.
            self._end_processes()
        with contextlib.ExitStack() as stopping:
            for source in self._bound:
                stopping.callback(source.stop)

    def _end_processes(self) -> None:
        if self._driver is not None:
            self._driver.stop()
            self._driver.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self._raise_failure(self._raised)

    # How it is done.

    def _raise_failure(self, known: BaseException | None = None) -> None:
        """Raise why the run has failed, unless that is `known`."""
        error = self._run_state.failure
        if error is not None and error is not known:
            self._raised = error
            raise error

    def _await(self, until: Callable[[RunState], bool], timeout: float | None, what: str) -> None:
        """Wait; if the run has failed, it is stopped."""
        try:
            self._watch(until, timeout, what)
        except BaseException as error:
            if self._run_state.error is not None:
                self.stop()
            if error is self._run_state.error:
                self._raised = error
            raise

    def _watch(self, until: Callable[[RunState], bool], timeout: float | None, what: str) -> None:
        """Wait, and change nothing: for requests, whose threads the run may be stopped by."""
        assert self._driver is not None
        if not self._driver.wait(
            lambda run_state: until(run_state) or run_state.error is not None or self._stopped, timeout
        ):
            raise TimeoutError(f"waited {timeout:g} s for {what}{self._run_state.stuck_text}")
        run_state = self._run_state
        if until(run_state):
            return
        raise run_state.error or FluxError(f"the run was stopped while it waited for {what}")

    def _begin_drain(self, site: str) -> Process:
        assert self._driver is not None
        copies, others = self._plan.copies, self._driver.sites_without(site)
        if len(others) < copies:
            raise NoSites(
                f"drain({site!r}): its partitions need {copies} other sites to live on, and there are {len(others)}. "
                "Call add_site() first"
            )
        return self._driver.drain(site)

    def _await_drained(self, process: Process, timeout: float, wait: Wait) -> None:
        def is_dead(run_state: RunState) -> bool:
            return process.node in run_state.closed_at and not process.drained

        wait(lambda run_state: process.gone or is_dead(run_state), timeout, f"{process.name} to be drained")
        if not process.drained:
            with contextlib.suppress(TimeoutError):  # The controller may detect it before the spawner reports it.
                wait(lambda run_state: process.gone, _EXIT_STATUS_TIMEOUT_S, f"{process.name} to end")
            how = process.how_it_ended() if process.gone else "no answer: it is stopped or cut off, and declared dead"
            raise FluxError(f"{process.name} died before all its state was transferred, with {how}")

    @property
    def _run_state(self) -> RunState:
        assert self._driver is not None, "the run has not started"
        return self._driver.run_state

    def output_log(self) -> list[LogEntry]:
        """Return when the sink took which rows: (seconds since the start, up to which sequence number, rows).

        Of a long run, the last minute at least; the report's timeline has the whole.
        """
        return [entry for entry in since_start(self._run_state, self._run_state.history.outputs) if entry[2]]

    def moved_log(self) -> list[StateTransfer]:
        """Return the transfers of state between sites, one for each partition; `at` is seconds since the start."""
        started_at = self._run_state.started_at or 0.0
        return [replace(each, at=each.at - started_at) for each in self._run_state.recent_transfers]

    def input_log(self) -> list[LogEntry]:
        """Return when the ingress numbered which rows, likewise."""
        return [entry for entry in since_start(self._run_state, self._run_state.history.inputs) if entry[2]]

    @property
    def cpu_s(self) -> dict[str, float]:
        """Processor seconds of each process that has ended, with all its incarnations."""
        assert self._driver is not None
        return self._driver.processes.cpu_s


def _make_directory(record: Path) -> None:
    try:
        record.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error("the recording", record, error, "Nothing was run") from error


def _refuse_inside_trio() -> None:
    """Raise `PlanError` in a trio task: a run would block its loop, and a fork of it cannot run another."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return
    raise PlanError(
        "start() and run() cannot be called inside a trio program, whose loop they would block: write "
        "`async with flux.open_cluster(flow, ...) as run` and await its methods"
    )
