"""The controller of a remote run: it is also the driver, and answers join requests and commands.

All of it is on one port. The first frame of a connection says whether it is for the controller, for the driver
(`remote_driver`), or a request. Its directory has the journal of views, the name of the run and, once the stream has
ended, a note of that. A controller that is restarted after the end only stops the other processes.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from ...controller.controller_process import JOURNAL, RETURN_S, ControllerProcess
from ...controller.driver_access import DriverAccess
from ...controller.view_journal import ViewJournal
from ...plan.plan import CONTROLLER, EGRESS, INGRESS
from ...sinks import Sink
from ...site.crash_note import Job
from ...storage.disk import disk_error, replace_file
from ...system import filesystem, network
from ...types.errors import ChangeError, FluxError, NoSites, PlanError
from ...wire import requests
from ...wire.link import Link, tune
from ...wire.reports import REPORT_KIND, GiveUpChange, KillProcess, command_frame
from ..change_request import ChangeBuilder
from ..metrics import Metrics
from ..metrics_endpoint import MetricsEndpoint
from ..run_state import INPUTS_TIMEOUT_S
from .kept_totals import KEPT_EVERY_S, KeptTotals
from .process_names import ProcessNames
from .remote_config import RemoteConfig
from .remote_driver import RemoteDriver, RowsAtEnd
from .remote_flow import description

log = logging.getLogger("flux")

_RUN, _ENDED = "run", "ended"
_STOP_TIMEOUT_S = 10.0  # A process that is stopped may have a sink to flush.
_LOOK_EVERY_S = 0.05


class RemoteController(DriverAccess):
    """The process of `flux controller`."""

    def __init__(
        self,
        config: RemoteConfig,
        listener: socket.socket,
        settings: dict[str, Any],
        sinks: Sequence[Sink],
        metrics_listener: socket.socket | None = None,
    ) -> None:
        views = ViewJournal(config.directory / JOURNAL)
        # Read once this process holds the lock of the journal.
        was_restarted = filesystem.exists(config.directory / _RUN)
        self.config = replace(config, run=_run_name(config.directory))
        self._controller = ControllerProcess(
            self.config, listener, views=views, driver=self, was_restarted=was_restarted
        )
        self._builder = ChangeBuilder(config.plan, sinks)
        self._changing = trio.Lock()
        self._settings = settings  # A process that joins makes the same plan with them.
        self._ended = config.directory / _ENDED
        self.driver = RemoteDriver(config.plan, self._rows_at_end(), self._note_end)
        self.driver.run_state.known_changes.restore(
            config.plan, self._controller.machine.view.editions, time.monotonic()
        )
        self._totals = KeptTotals(config.directory, self.driver.run_state, log.warning)
        self._totals.restore()
        self._metrics_listener = metrics_listener
        self._names = ProcessNames(config.plan)
        self._outcome: dict[str, Any] = {}  # How the run has ended; empty until then.
        self._has_outcome = trio.Event()
        self._await_outcome: set[Link] = set()

    async def run(self) -> None:
        """Run until the stream has ended, or the run has failed."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._controller.run)
            nursery.start_soon(self._keep_totals)
            if self._metrics_listener is not None:
                endpoint = MetricsEndpoint(self._metrics_listener, lambda: self._metrics().to_text())
                nursery.start_soon(endpoint.serve)
            was_over = self.driver.over
            if was_over:
                await trio.sleep(RETURN_S)
            while not self.driver.over:
                await trio.sleep(_LOOK_EVERY_S)
                self.driver.end_if_lost()
            error = self.driver.run_state.error
            with trio.move_on_after(_STOP_TIMEOUT_S):
                # One link is its own. A process that is just reconnecting must find a controller to stop it.
                while len(self.driver.links) > 1 or not (was_over or self._all_stopped()):
                    await trio.sleep(_LOOK_EVERY_S)
            with trio.move_on_after(_STOP_TIMEOUT_S):
                await self._send_outcome(error)
            nursery.cancel_scope.cancel()
        if error is not None:
            raise error

    def _note_end(self, rows: RowsAtEnd) -> None:
        """Note that the stream has ended."""
        _write(self._ended, json.dumps(rows).encode())

    def _rows_at_end(self) -> RowsAtEnd | None:
        """Return what was noted at the end of the stream; None if it has not ended."""
        if not filesystem.exists(self._ended):
            return None
        noted = filesystem.read_whole(self._ended)
        # Earlier releases noted no rows.
        return RowsAtEnd(*json.loads(noted)) if noted else RowsAtEnd(0, [0] * self.config.plan.sinks)

    async def _keep_totals(self) -> None:
        while True:
            await trio.sleep(KEPT_EVERY_S)
            self._totals.write()

    def _metrics(self) -> Metrics:
        self._totals.write()  # First: what is shown must not fall when another controller shows it.
        return self.driver.metrics()

    async def _send_outcome(self, error: BaseException | None) -> None:
        """Answer the commands that wait for the outcome; return when they have it."""
        self._outcome = {"status": self.driver.status().to_dict(), "error": None if error is None else str(error)}
        self._has_outcome.set()
        while self._await_outcome:
            await trio.sleep(_LOOK_EVERY_S)

    def _all_stopped(self) -> bool:
        view = self._controller.machine.view
        return all(node in self.driver.stopped for node in view.nodes if view.alive(node))

    async def connect(self, note: Callable[[int, str], None]) -> socket.socket:
        """Return a connection to the driver, which is in this process."""
        ours, theirs = network.open_pair()
        for sock in (ours, theirs):
            tune(sock)
        link = Link(CONTROLLER, theirs)
        self._nursery.start_soon(link.write)
        self._nursery.start_soon(self.driver.serve, link)
        return ours

    async def serve(self, link: Link, first: dict[str, Any]) -> bool:
        """Serve a connection for the driver, or a request."""
        if first["kind"] == REPORT_KIND:
            await self.driver.serve(link)
        elif first["kind"] != requests.REQUEST_KIND:
            return False
        elif isinstance(request := requests.read_request(first), requests.OutcomeRequest):
            await self._answer_at_the_end(link)
        else:
            link.send(await self._answered(request))
            await link.drain()
            if request == requests.KillRequest(process=CONTROLLER):
                os.kill(os.getpid(), signal.SIGKILL)
        return True

    async def _answer_at_the_end(self, link: Link) -> None:
        """Answer a command with the outcome when the run has ended; the command may be gone by then."""
        self._await_outcome.add(link)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_gone, link, nursery.cancel_scope)
            await self._has_outcome.wait()
            link.send(requests.answer_frame(self._outcome))
            await link.drain()
            nursery.cancel_scope.cancel()
        self._await_outcome.discard(link)

    async def _answered(self, request: requests.Request) -> dict[str, Any]:
        try:
            return requests.answer_frame(await self._answer(request))
        except FluxError as error:
            return requests.failure_frame(error)

    async def _answer(self, request: requests.Request) -> dict[str, Any]:
        match request:
            case requests.StatusRequest():
                with trio.move_on_after(INPUTS_TIMEOUT_S):
                    while not self.driver.run_state.has_inputs_of_outputs:
                        await trio.sleep(_LOOK_EVERY_S)
                return self.driver.status().to_dict()
            case requests.MetricsRequest():
                return self._metrics().to_dict()
            case requests.SettingsRequest():
                return self._settings
            case requests.JoinRequest():
                return self._admit(request)
            case requests.KillRequest(process=process):
                return await self._killed(process)
            case requests.SiteDeath(run=run, name=name, job=job):
                if run == self.config.run:
                    self.driver.note_site_death(name, None if job is None else Job.from_plain(job))
                return {}
            case requests.DrainRequest(site=site, within_s=within_s):
                return await self._drained(site, within_s)
            case requests.ReconfigureRequest():
                return await self._reconfigured(request)
            case requests.StopRequest():
                self.driver.stop()
                return {}
            case _:
                raise FluxError(
                    f"a remote run can be asked for status, metrics, kill, drain, reconfigure and stop, not for "
                    f"{type(request).__name__}: "
                    "its processes are started where they run, with `flux site`"
                )

    def _admit(self, request: requests.JoinRequest) -> dict[str, Any]:
        """Return the name of a process that joins, and what all processes must share."""
        role, view = request.role, self._controller.machine.view
        if request.flow != description(self.config.plan):
            raise PlanError(
                f"the MODULE:FLOW of this {role} is another than its controller's: give both the same release of it"
            )
        answer = {"run": self.config.run, "started": view.number > 0, "over": self.driver.over}
        if role in (INGRESS, EGRESS):
            return {**answer, "name": role, "incarnation": self._names.incarnation(role, view)}
        return {**answer, "name": self._names.site(request.name, view, self._controller.connected), "incarnation": 1}

    async def _killed(self, name: str) -> dict[str, Any]:
        """Have a process kill itself, as if by SIGKILL from outside; its supervisor may start it again."""
        if name == CONTROLLER:
            return {"killed": CONTROLLER}  # It kills itself when the answer is sent.
        node = next((node for node in self.driver.links if name in (node, node.partition(".")[0])), None)
        if node is None:
            there = sorted(peer for peer in self.driver.links if peer != CONTROLLER)
            raise FluxError(f"no process of this run is called {name!r}; there are {', '.join([CONTROLLER, *there])}")
        link = self.driver.links[node]
        link.send(command_frame(KillProcess()))
        with trio.move_on_after(_STOP_TIMEOUT_S):
            while self.driver.links.get(node) is link:
                await trio.sleep(_LOOK_EVERY_S)
            return {}
        raise FluxError(f"{name} did not end within {_STOP_TIMEOUT_S:g} s: it is busy, or stopped")

    async def _reconfigured(self, request: requests.ReconfigureRequest) -> dict[str, Any]:
        """Have steps changed; return what is known of the change when each partition has a live copy past it."""
        async with self._changing:
            known = self.driver.change_code(self._builder, request)
            with trio.move_on_after(request.within_s) as patience:
                while not (known.is_decided or self.driver.over):
                    await trio.sleep(_LOOK_EVERY_S)
            if patience.cancelled_caught:
                self.driver.send_to_controller(GiveUpChange(number=known.number))
            while not (known.is_decided or self.driver.over):
                await trio.sleep(_LOOK_EVERY_S)
        if not known.is_committed:
            raise ChangeError(f"{', '.join(known.steps)}: {known.reason or 'the stream has ended'}")
        while known.each_at is None and not self.driver.over:
            await trio.sleep(_LOOK_EVERY_S)
        return known.to_plain(self.driver.run_state.started_at or known.requested_at)

    async def _drained(self, site: str, within_s: float) -> dict[str, Any]:
        if not site.startswith("site-") or not self._controller.machine.view.alive(site):
            raise FluxError(f"no live site is called {site!r}; the nodes are {', '.join(self._controller.connected)}")
        self._check_places(site)
        self._controller.drain(site)
        with trio.move_on_after(within_s):
            while site not in self.driver.drained:
                if site in self.driver.run_state.closed_at:
                    raise FluxError(
                        f"{site} died before all its state was transferred; its copies are rebuilt on other sites"
                    )
                self._check_places(site)
                await trio.sleep(_LOOK_EVERY_S)
            return {}
        raise FluxError(f"waited {within_s:g} s for {site} to be drained; the transfers go on")

    def _check_places(self, site: str) -> None:
        """Raise `NoSites` if the other sites could not hold what is on a site to be drained: nothing is transferred."""
        others = self._controller.sites_without(site)
        needed = self.config.plan.copies
        if len(others) < needed and site not in self.driver.drained:
            self._controller.stop_draining(site)
            there = f"there is {len(others)}" if len(others) == 1 else f"there are {len(others)}"
            listed = f" ({', '.join(others)})" if others else ""
            start = "one" if needed - len(others) == 1 else f"{needed - len(others)}"
            raise NoSites(
                f"{site} cannot be drained: its partitions need {needed} other sites to live on, and {there}{listed}. "
                f"Start {start} with `flux site MODULE:FLOW --controller HOST:PORT`, then drain it again"
            )


async def _cancel_when_gone(link: Link, scope: trio.CancelScope) -> None:
    await link.receive()
    scope.cancel()


def _run_name(directory: Path) -> str:
    path = directory / _RUN
    if not filesystem.exists(path):
        _write(path, secrets.token_hex(8).encode())
    return filesystem.read_whole(path).decode()


def _write(path: Path, data: bytes) -> None:
    try:
        replace_file(path, data, fsync=True)
    except OSError as error:
        raise disk_error("the controller", path, error, "Output up to now is right") from error
