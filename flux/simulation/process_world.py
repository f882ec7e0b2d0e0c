"""Process world: one run of a dataflow, all its processes simulated, with the faults that its seed decides.

The driver, the controller, ingress, egress and sites are the production classes. Only the spawner is another: it starts
simulated processes. What must hold: the output is right, complete and in order; the run ends within a bound of
simulated time after the last fault; no process raises an error or is declared dead without a cause.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from ..controller.controller_process import ControllerProcess
from ..controller.failure_detector import LATE_MAX_S
from ..driver.local.driver import Driver
from ..driver.local.spawner import ProcessExited, ProcessStarted, SpawnerReport
from ..driver.report_builder import make_status
from ..driver.run_state import RunState
from ..driver.status import Status
from ..plan.plan import CONTROLLER, EGRESS, INGRESS
from ..plan.policy import Policy
from ..protocols.messages import View
from ..sinks import Collect
from ..site.config import ProcessConfig
from ..site.crash_note import shared_note
from ..site.egress.egress_process import EgressProcess
from ..site.heartbeat import BEAT_EVERY_S
from ..site.ingress.ingress_process import IngressProcess
from ..site.shell import FENCED
from ..site.worker import Worker
from ..wire import address
from .bounds_check import beyond_bounds
from .doom import SINK
from .fault_injector import FaultInjector
from .kernel import WorldProcess
from .seeded_world import SeededWorld
from .status_check import untrue_at_rest, untrue_now
from .world_flow import OUTPUT, WorldFlow, rows_of_lines
from .world_result import WorldResult

_DIRECTORY = Path("/simulated/run")
_LOST = ("has lost its end", "has lost views")  # A journal.
_LOOK_EVERY_S = 0.02
_END_WITHIN_S = 120.0  # Of simulated time, after the last fault.
_STOP_WITHIN_S = 15.0
_FORK_MAX_S = 0.02
_LINGER_S = 1.5 * LATE_MAX_S
_LINGERING_WORLDS = 0.03  # Of all worlds.
_RESTFUL_WORLDS = 0.3  # Those in which what must hold at rest is checked.
_SETTLE_S = 0.7
_RECONNECT_S = 0.4  # The longest pause between two attempts to connect, and the connection.
_SILENT_MAX_S = 4 * BEAT_EVERY_S
_DARK_WORLDS = 0.3  # Of those whose output is a file.
_KILLED = -9


class _SimulatedSpawner:
    """Takes the place of the spawner: it starts simulated processes, and reports on them."""

    pid = 0

    def __init__(self, world: ProcessWorld) -> None:
        self._world = world
        self._send, self._receive = trio.open_memory_channel[SpawnerReport](1_000)

    def start(self, name: str, incarnation: int, stderr: int) -> None:
        """Start a process soon."""
        world = self._world
        world.system.kernel.at(world.now + world.rng.uniform(0, _FORK_MAX_S), lambda: self._fork(name, incarnation))

    def _fork(self, name: str, incarnation: int) -> None:
        process = self._world.start_process(name, incarnation)
        pidfd = os.open(os.devnull, os.O_RDONLY)
        self._world.system.by_pidfd[pidfd] = process
        self._send.send_nowait(ProcessStarted(name=name, incarnation=incarnation, pid=process.pid, pidfd=pidfd))

    def note_exit(self, name: str, incarnation: int, status: int) -> None:
        """Report the end of a process."""
        self._send.send_nowait(ProcessExited(name=name, incarnation=incarnation, status=status, cpu_s=0.0))

    async def report(self) -> SpawnerReport | None:
        """Return the next report."""
        return await self._receive.receive()

    def close(self) -> int | None:
        """Do nothing: the world ends its processes."""
        return None


class _Program:
    """The program of the user, which holds the driver."""

    def __init__(self, world: ProcessWorld) -> None:
        self._world = world

    async def run(self) -> None:
        world = self._world
        listener = address.listen(world.config.address("program"))
        for sink in world.sinks:
            if isinstance(sink, Collect):
                sink.open(_DIRECTORY)
        ends = (CONTROLLER, INGRESS, EGRESS)
        world.driver = Driver(
            world.config,
            world.sinks,
            listener,
            world.spawner,  # type: ignore[arg-type]
            (*ends, *world.plan.site_names),
            frozenset(ends),
            lambda request: {},
            crash_limit=None,
        )
        await trio.sleep_forever()


class ProcessWorld(SeededWorld):
    """The world of a seed. Sites may die while copies move if it `may_lose_while_moving`."""

    may_lose_while_moving = False

    def __init__(
        self,
        seed: int,
        *,
        keeps_trace: bool = False,
        faults_max: int | None = None,
        left_out: frozenset[int] = frozenset(),
        kinds: Collection[str] = (),
        rows_max: int | None = None,
        sites_max: int | None = None,
    ) -> None:
        super().__init__(seed, keeps_trace)
        self.flow = self.draw_flow().limited(rows_max, sites_max)
        self.driver: Driver | None = None
        self.live: dict[str, WorldProcess] = {}  # By role.
        self.excused: set[str] = set()  # Roles that a fault may have had declared dead.
        self.is_ending = False
        self._is_dark = False  # Whether the power was lost.
        self._kept: list[tuple[int, list[Any]]] = []
        self._incarnations: dict[int, int] = {}  # By pid.
        flow = self._build()
        self.sinks = flow._logical.sinks
        self.plan = flow._logical.plan(
            self.flow.sites, self.flow.standby, "pairs", self.flow.pool_rows, self.draw_policy()
        )
        self.config = ProcessConfig(plan=self.plan, directory=_DIRECTORY, run="world", secret=b"secret of the world")
        self.injector = FaultInjector(self, faults_max, left_out, kinds)
        self._lingers = self.rng.random() < _LINGERING_WORLDS
        self._rests = self._lingers or self.rng.random() < _RESTFUL_WORLDS
        self._checked: tuple[int, int, bool] | None = None  # What the status that was checked last has.
        # A loss of power ends a run on one machine; what is left of it is the output on the disk.
        has_file = self.flow.sink in ("jsonl", "outlet")
        self._power_until_s = self.rng.uniform(0.05, 1.0) if has_file and self.rng.random() < _DARK_WORLDS else None

    def draw_flow(self) -> WorldFlow:
        """Return the dataflow of this world."""
        return WorldFlow.draw(self.rng)

    def directory_of(self, role: str) -> Path:
        """Return where a process has its journal."""
        return _DIRECTORY

    def draw_policy(self) -> Policy:
        """Return the policy of its run."""
        return Policy()

    @property
    def run_state(self) -> RunState | None:
        """What the driver knows."""
        return None if self.driver is None else self.driver.run_state

    def _build(self) -> Any:
        return self.flow.build(self.flow.make_sink(self._kept, self._sink_effect))

    def _sink_effect(self, text: str) -> None:
        if self.system.kernel.effect(SINK, text) is not None:
            self.system.kernel.die()

    def run(self) -> WorldResult:
        """Run the world to its end."""
        return replace(super().run(), rows=self.flow.rows, sites=self.flow.sites)

    async def main(self) -> None:
        """Run the dataflow with its faults, and check what came of it."""
        kernel = self.system.kernel
        kernel.on_exit = self._exited
        self.spawner = _SimulatedSpawner(self)
        self.system.disk.mkdir("/simulated")
        self.system.disk.mkdir(_DIRECTORY)
        kernel.note("world", f"{self.seed}: {self.flow}")
        self.controller_listener = address.listen(self.config.address(CONTROLLER))
        self.controller_listener.role = CONTROLLER  # type: ignore[attr-defined]
        if self._power_until_s is not None:
            kernel.at(self._power_until_s, self._lose_power)
        self.program = kernel.start(self.nursery, "program", "program", lambda: _Program(self), self.crashed("program"))
        with trio.CancelScope() as faults:
            self.nursery.start_soon(self.injector.run, faults)
            await self._watch()
            faults.cancel()
        await self._stop()

    # Processes.

    def start_process(self, name: str, incarnation: int) -> WorldProcess:
        """Start a process of the run."""
        node = name if incarnation == 1 or name == CONTROLLER else f"{name}.{incarnation}"
        process = self.system.kernel.start(
            self.nursery, node, name, lambda: self._make(name, incarnation), self.crashed(node)
        )
        self.live[name] = process
        self._incarnations[process.pid] = incarnation
        return process

    def _make(self, name: str, incarnation: int) -> Any:
        if name == CONTROLLER:
            return ControllerProcess(self.config, self.controller_listener, incarnation)
        flow = self._build()._logical
        if name == INGRESS:
            return IngressProcess(self.config, flow.sources, incarnation)
        if name == EGRESS:
            return EgressProcess(self.config, flow.sinks, incarnation)
        return Worker(self.config, name, shared_note())

    def _exited(self, process: WorldProcess) -> None:
        status = process.status
        assert status is not None
        self.deaths += not self.is_ending and status != 0
        if process.role == "program" or self._is_dark:
            return
        if status == FENCED and process.role not in self.excused and not self._came_too_late(process):
            self.violate(f"{process.name} was declared dead, and no fault is the cause")
        if status not in (0, FENCED, _KILLED) and not self._may_end_so(process):
            self.violate(f"{process.name} ended with status {status}")
        if self.live.get(process.role) is process:
            del self.live[process.role]
        self.spawner.note_exit(process.role, self._incarnations[process.pid], status)

    def _may_end_so(self, process: WorldProcess) -> bool:
        """Whether a process may have ended with an error."""
        return process.shortage is not None and process.shortage.has_struck

    def _came_too_late(self, process: WorldProcess) -> bool:
        """Whether a site joined only after a later one had lived, died and been forgotten: rule 32 refuses it."""
        controller = self.live.get(CONTROLLER)
        view = None if controller is None or controller.runnable is None else controller.runnable.machine.view
        return view is not None and view.has_forgotten(process.name) and process.runnable.shell.node.view is None

    # The end.

    async def _watch(self) -> None:
        """Return when the run has ended or failed, or has taken too long."""
        while True:
            await trio.sleep(_LOOK_EVERY_S)
            state = self.run_state
            if self._is_dark or self.violations:
                return
            self._check_status()
            if state is not None and state.error is not None:
                if not self._may_fail(state.error):
                    self.violate(f"the run failed: {state.error}")
                return
            if self._is_over():
                if self._rests:
                    await self._settle()
                return
            if self.now > self.injector.last_at + _END_WITHIN_S:
                self.violate(f"the run has not ended {_END_WITHIN_S:g} s after the last fault: {self._picture()}")
                return

    def _is_over(self) -> bool:
        """Whether the stream has ended, and all faults were caused."""
        state = self.run_state
        return state is not None and state.ended and self.injector.is_done

    def _may_fail(self, error: BaseException) -> bool:
        """Whether this error may be the end of the run: it says what the disk has done."""
        disk = self.system.disk
        could_not_read = disk.failed_reads > 0 and "Input/output error" in str(error)
        return could_not_read or (disk.cuts > 0 and any(text in str(error) for text in _LOST))

    async def _settle(self) -> None:
        """Let the processes live on for a while, or for longer than one may be silent; each must send beats."""
        until = self.now + (_LINGER_S if self._lingers else _SETTLE_S)
        while self.now < until and not self.violations and not self._is_dark:
            await trio.sleep(_LOOK_EVERY_S)
        controller = self.live.get(CONTROLLER)
        if self._is_dark or controller is None or not self._is_settled(controller) or self.system.disk.failed_reads:
            return  # A process that could not read its journal gave up, though the stream had ended without it.
        for role, process in self.live.items():
            sent_at = self.system.network.sent_at.get((role, CONTROLLER), 0.0)
            is_reached = not self.system.network.is_cut(role, CONTROLLER)
            if role != CONTROLLER and is_reached and self._is_settled(process) and self.now - sent_at > _SILENT_MAX_S:
                self.violate(f"{process.name} has sent no heartbeat for {self.now - sent_at:.3f} s")
        is_calm = self.system.network.is_calm_for(_RECONNECT_S)  # Then all that was sent has arrived.
        if is_calm and all(self._is_settled(process) for process in self.live.values()):
            text = untrue_at_rest(self._status(), self.live.keys(), controller.runnable.machine.view)
            if text is not None:
                self.violate(text)
            if self._is_whole(controller.runnable.machine.view):
                text = beyond_bounds(self.live, self.program, self.system.disk, self.system.shorten_at_bytes)
                if text is not None:
                    self.violate(f"at rest, {text}")

    @staticmethod
    def _is_whole(view: View) -> bool:
        """Whether no copy is missing."""
        lost = any(not view.alive(node) for stage in view.copies for copies in stage for node in copies)
        return not lost and not view.standby

    def _check_status(self) -> None:
        state = self.run_state
        if state is None or state.started_at is None:
            return
        counted = (state.outputs, state.history.input_rows, state.ended)
        if counted == self._checked:
            return
        self._checked = counted
        given = self.flow.sources * self.flow.rows
        knows_inputs = state.error is None and state.has_inputs_of_outputs
        text = untrue_now(self._status(), given, self._rows_at_sink(), knows_inputs)
        if text is not None:
            self.violate(text)

    def _rows_at_sink(self) -> int | None:
        if self.flow.sink == "collect":
            return None
        if self.flow.sink == "jsonl":
            return self.system.disk.content(OUTPUT).count(b"\n")
        return sum(len(rows) for _, rows in self._kept)

    def _status(self) -> Status:
        assert self.driver is not None
        return make_status(self.plan.name, self.driver.run_state, self.driver.processes)

    def _is_settled(self, process: WorldProcess) -> bool:
        changed_at = max(process.started_at, process.went_on_at)
        return not process.is_stopped and process.role not in self.excused and self.now - changed_at > _SETTLE_S - 0.1

    def _lose_power(self) -> None:
        """End everything; check that the output on the disk is right as far as the driver knows it to be durable."""
        durable = 0 if self.run_state is None else self.run_state.outputs
        self.is_ending = self._is_dark = True
        self.note_fault(None, f"loss of power, with {durable} rows of output")
        for process in list(self.system.kernel.processes.values()):
            self.system.kernel.end(process, _KILLED)
        self.system.disk.lose_power()
        self._check_durable(durable)

    def _check_durable(self, durable: int) -> None:
        """Check what a loss of power has left of so many rows that were reported as output."""
        lines = self.system.disk.content(OUTPUT).splitlines(keepends=True)[:durable]
        if len(lines) < durable or not all(line.endswith(b"\n") for line in lines):
            self.violate(f"{durable} rows of output were durable, and after a loss of power there are {len(lines)}")
        elif (text := self.difference(rows_of_lines(b"".join(lines)), is_whole=False)) is not None:
            self.violate(f"after a loss of power, {text}")

    async def _stop(self) -> None:
        self.is_ending = True
        if self._is_dark or self.violations or self.driver is None:
            return
        self.driver._stop()
        for process in [process for process in self.live.values() if process.is_stopped]:
            self.system.kernel.end(process, _KILLED)  # As the driver does, after a while.
        with trio.move_on_after(_STOP_WITHIN_S) as patience:
            while self.live and not self._is_dark:
                await trio.sleep(_LOOK_EVERY_S)
        if self._is_dark:
            return
        if patience.cancelled_caught:
            self.violate(f"after the end, {sorted(self.live)} did not stop within {_STOP_WITHIN_S:g} s")
        state = self.driver.run_state
        failed = state.failure is not None
        if state.failure is not None and not self._may_fail(state.failure):
            self.violate(f"the run failed: {state.failure}")
        if (text := self.difference(self._output(), is_whole=not failed)) is not None:
            self.violate(f"after an error, {text}" if failed else text)

    def difference(self, output: list[dict[str, Any]], is_whole: bool) -> str | None:
        """Return how an output, or its beginning, differs from what it must be; None if it does not."""
        return self.flow.difference(output, is_whole)

    def _output(self) -> list[dict[str, Any]]:
        if self.flow.sink == "collect":
            [sink] = self.sinks
            assert isinstance(sink, Collect)
            return list(sink.table().to_pylist())
        if self.flow.sink == "jsonl":
            content = self.system.disk.content(OUTPUT)
            return rows_of_lines(content[: content.rfind(b"\n") + 1])  # A run that failed may leave a part of a line.
        return [row for _, rows in self._kept for row in rows]

    def _picture(self) -> str:
        state = self.run_state
        shown = "no driver" if state is None else f"{state.outputs} rows of output, started {state.started_at}"
        return f"{shown}; live are {sorted(process.name for process in self.live.values())}"
