"""Remote world: a simulated run on several machines: its driver is in the controller's process, and processes join it.

The controller is that of `flux controller`, and the conversation by which processes join is the production one. A
supervisor starts ingress, egress and controller again when they die, each time with the journal that it had, and sites
as new ones. It ends those that were stopped: beside an ingress or egress that is the exit monitor.

Not here: the commands around these processes, their monitors, and the check that a journal is of this run.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from ..driver.remote.remote_config import RemoteConfig
from ..driver.remote.remote_controller import RemoteController
from ..driver.remote.remote_flow import RemoteFlow, description
from ..driver.run_state import RunState
from ..driver.status import Status
from ..plan.plan import CONTROLLER, EGRESS, INGRESS
from ..site.crash_note import shared_note
from ..site.egress.egress_process import EgressProcess
from ..site.ingress.ingress_process import IngressProcess
from ..site.shell import leave
from ..site.worker import Worker
from ..types.errors import FluxError, from_dict
from ..wire import address, requests
from .kernel import WorldProcess, running
from .process_world import ProcessWorld
from .world_flow import WorldFlow

__all__ = ["RemoteWorld"]

_ROOT = Path("/simulated")
_SECRET = b"secret of the world"
_ENDS = (INGRESS, EGRESS)
_RESTART_MAX_S = 0.2
_RETRY_S = 0.2
_ASK_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.02
_END_WITHIN_S = 120.0  # Of simulated time, after the last fault.
_STOPPED_MAX_S = {INGRESS: 0.6, EGRESS: 0.6, CONTROLLER: 3.0}  # Then a supervisor ends a stopped process.


class RemoteWorld(ProcessWorld):
    """The world of a seed."""

    kind = "remote"

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, **settings)
        flow = RemoteFlow.of(self._build()._logical, self.flow.sites, self.flow.standby, "pairs", self.draw_policy())
        self.plan = flow.plan
        self.supervisor = _Supervisor(self)
        self.driver: Any = self.supervisor  # What the injector of faults asks for sites.
        self.spawner: Any = self.supervisor
        self.outcome: FluxError | None = None
        self._rests = False
        self._power_until_s = None

    def draw_flow(self) -> WorldFlow:
        """Return the dataflow of this world: a remote run has no program that could collect rows."""
        flow = super().draw_flow()
        return replace(flow, sink="jsonl" if flow.sink == "collect" else flow.sink)

    def directory_of(self, role: str) -> Path:
        """Return where a process has its journal."""
        return _ROOT / role if role in (*_ENDS, CONTROLLER) else _ROOT / "sites"

    def config_of(self, role: str, node: str, run: str = "") -> RemoteConfig:
        """Return the configuration of a process."""
        at = f"unix:{_ROOT}/{CONTROLLER}.sock"
        here = at if role == CONTROLLER else f"unix:{_ROOT}/{node}.sock"
        return RemoteConfig(
            plan=self.plan, directory=self.directory_of(role), run=run, secret=_SECRET, controller=at, here=here
        )

    @property
    def run_state(self) -> RunState | None:
        """What the driver knows, which is in the controller that lives."""
        controller = self._controller()
        return None if controller is None else controller.driver.run_state

    def _controller(self) -> RemoteController | None:
        process = self.live.get(CONTROLLER)
        return None if process is None or process.runnable is None else process.runnable.controller

    def _status(self) -> Status:
        controller = self._controller()
        assert controller is not None
        return controller.driver.status()

    async def main(self) -> None:
        """Run the dataflow with its faults, and check what came of it."""
        kernel = self.system.kernel
        kernel.on_exit = self._exited
        for path in (_ROOT, *(self.directory_of(role) for role in (*_ENDS, CONTROLLER, "site"))):
            self.system.disk.mkdir(path)
        kernel.note("world", f"{self.seed}: {self.flow}")
        for name in (CONTROLLER, *_ENDS, *self.plan.site_names):
            self.supervisor.start_later(name)
        with trio.CancelScope() as faults:
            self.nursery.start_soon(self.injector.run, faults)
            await self._watch()
            faults.cancel()
        self.is_ending = True
        if not self.violations:
            text = self.flow.difference(self._output(), is_whole=self.outcome is None)
            if text is not None:
                self.violate(text if self.outcome is None else f"after an error, {text}")

    def _make(self, name: str, incarnation: int) -> Any:
        return _Controller(self) if name == CONTROLLER else _Joining(self, name)

    def _exited(self, process: WorldProcess) -> None:
        if process.role != "command":
            super()._exited(process)

    def rename(self, process: WorldProcess, role: str, node: str) -> None:
        """Give a process the name with which it has joined."""
        if process.role != role:
            del self.live[process.role]
            self.live[role] = process
        process.role, process.name = role, node

    def _may_end_so(self, process: WorldProcess) -> bool:
        """Whether a process may have ended with an error: one that is stopped after an error of the run does."""
        error: BaseException | None = self.outcome
        if error is None and process.role != CONTROLLER and self.run_state is not None:
            error = self.run_state.error
        return super()._may_end_so(process) or (process.status == 1 and error is not None and self._may_fail(error))

    async def _watch(self) -> None:
        """Return when the run has ended or failed, or has taken too long."""
        while not self.supervisor.has_ended and not self.violations:
            await trio.sleep(_LOOK_EVERY_S)
            self.supervisor.end_stopped()
            self._check_status()
            if self.now > self.injector.last_at + _END_WITHIN_S:
                self.violate(f"the run has not ended {_END_WITHIN_S:g} s after the last fault: {self._picture()}")
        if self.outcome is not None and not self._may_fail(self.outcome):
            self.violate(f"the run failed: {self.outcome}")


class _Supervisor:
    """Starts processes on their machines, and ends those that were stopped. It takes the place of a driver too."""

    def __init__(self, world: RemoteWorld) -> None:
        self._world = world
        self._rng = random.Random(f"{world.seed} supervisor")
        self._sites = len(world.plan.site_names)
        self._incarnations: dict[str, int] = {}
        self._stopped: dict[int, float] = {}  # Since when, by pid.
        self.has_ended = False

    def start_later(self, name: str) -> None:
        """Start a process soon."""
        self._world.system.kernel.at(
            self._world.now + self._rng.uniform(0.001, _RESTART_MAX_S), lambda: self._start(name)
        )

    def _start(self, name: str) -> None:
        if not self.has_ended and not self._world.is_ending:
            self._incarnations[name] = self._incarnations.get(name, 0) + 1
            self._world.start_process(name, self._incarnations[name])

    def note_exit(self, name: str, incarnation: int, status: int) -> None:
        """Start an ingress, egress or controller again."""
        if name == CONTROLLER and status in (0, 1):
            self.has_ended = True
        elif name in (*_ENDS, CONTROLLER) and status != 0:
            self.start_later(name)

    def end_stopped(self) -> None:
        """End processes that have been stopped for long."""
        world = self._world
        for process in list(world.live.values()):
            if process.is_stopped and process.role in _STOPPED_MAX_S:
                since = self._stopped.setdefault(process.pid, world.now)
                if world.now - since > _STOPPED_MAX_S[process.role]:
                    world.system.kernel.end(process, -9)
            else:
                self._stopped.pop(process.pid, None)

    # What the injector of faults asks a driver for.

    @property
    def _links(self) -> tuple[str, ...]:
        return (CONTROLLER,)

    def _start_site(self) -> None:
        self._sites += 1
        self.start_later(f"site-{self._sites}")

    def ask_to_drain(self, site: str) -> None:
        """Have a command drain a site."""
        world = self._world
        command = _Command(world, requests.DrainRequest(site=site, within_s=_ASK_TIMEOUT_S))
        world.system.kernel.start(world.nursery, "command", "command", lambda: command, world.crashed("command"))


class _Controller:
    """The process of `flux controller`."""

    def __init__(self, world: RemoteWorld) -> None:
        self._world = world
        self.controller: RemoteController | None = None

    @property
    def machine(self) -> Any:
        """The controller's machine, when it has one."""
        return None if self.controller is None else self.controller._controller.machine

    async def run(self) -> None:
        config = self._world.config_of(CONTROLLER, CONTROLLER)
        listener = address.listen(config.controller)
        try:
            self.controller = RemoteController(config, listener, {}, self._world.sinks)
            await self.controller.run()
        except FluxError as error:
            self._world.outcome = error
            leave(1)
        leave(0)


class _Command:
    """A command: it asks the controller, and ends with the answer."""

    def __init__(self, world: RemoteWorld, request: requests.Request) -> None:
        self._world = world
        self._request = request

    async def run(self) -> None:
        try:
            await _answered(self._world, self._request)
        except requests.Unanswered as error:
            self._world.system.kernel.note("command", str(error))
        leave(0)


class _Joining:
    """A process that joins the run, and then is its site, ingress or egress."""

    def __init__(self, world: RemoteWorld, name: str) -> None:
        self._world = world
        self._name = name
        self._joined: Any = None

    @property
    def shell(self) -> Any:
        """The shell of the process; before it has joined it has none."""
        return self._joined.shell

    async def run(self) -> None:
        process = running.get()
        assert process is not None
        answer = await self._join()
        name, incarnation = answer["name"], answer["incarnation"]
        node = name if incarnation == 1 else f"{name}.{incarnation}"
        self._world.rename(process, name, node)
        config = self._world.config_of(name, node, answer["run"])
        flow = self._world._build()._logical
        if name == INGRESS:
            self._joined = IngressProcess(config, flow.sources, incarnation)
        elif name == EGRESS:
            self._joined = EgressProcess(config, flow.sinks, incarnation)
        else:
            self._joined = Worker(config, name, shared_note())
        await self._joined.run()

    async def _join(self) -> dict[str, Any]:
        is_end = self._name in _ENDS
        request = requests.JoinRequest(
            role=self._name if is_end else "site",
            name=None if is_end else self._name,
            flow=description(self._world.plan),
        )
        while True:
            try:
                answered = await _answered(self._world, request)
            except requests.Unanswered:
                await trio.sleep(_RETRY_S)
                continue
            if isinstance(answered, requests.RequestFailed):
                raise from_dict(answered.error)
            return dict(answered.answer)


async def _answered(world: RemoteWorld, request: requests.Request) -> requests.Answered | requests.RequestFailed:
    where = world.config_of(CONTROLLER, CONTROLLER).controller
    return await requests.answer_to(where, requests.command(_SECRET), request, _ASK_TIMEOUT_S)
