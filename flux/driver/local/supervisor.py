"""Supervisor: has the spawner start processes, and calls the driver when one has died.

A process that is restarted after its death is killed when it is stopped (SIGSTOP): else the run would wait without end.

It runs in the driver's thread. Its state is guarded by the driver's condition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import trio

from ...site.heartbeat import BEAT_EVERY_S
from ...types.errors import FluxError
from ..processes import Process, Processes
from .spawner import ProcessExited, ProcessStarted, Spawner, SpawnerReport


class Supervisor:
    """Calls `died` for each process that has ended, and `fail` with an error that ends the run.

    `died` starts those again that are named in `restarts`.
    """

    def __init__(
        self,
        processes: Processes,
        spawner: Spawner,
        changed: threading.Condition,
        restarts: frozenset[str],
        died: Callable[[Process], None],
        fail: Callable[[FluxError], None],
    ) -> None:
        self.processes = processes
        self._spawner = spawner
        self._changed = changed
        self._restarts = restarts
        self._died = died
        self._fail = fail

    async def run(self, names: Iterable[str], nursery: trio.Nursery) -> None:
        """Start the processes `names`, and watch them and those that are started later."""
        self._nursery = nursery
        nursery.start_soon(self._end_the_stopped)
        with self._changed:
            for name in names:
                self.start(name)
        while (report := await self._spawner.report()) is not None:
            with self._changed:
                self._take(report)
                self._changed.notify_all()
        await self._outlive_the_spawner()

    def start(self, name: str) -> Process:
        """Start the next incarnation of `name`; it is up when it has connected to the driver."""
        process = self.processes.begin(name)
        self._nursery.start_soon(process.stderr.forward)
        self._spawner.start(name, process.incarnation, process.stderr.writing)
        process.stderr.handed_over()
        return process

    def _take(self, report: SpawnerReport) -> None:
        process = self.processes.of(report)
        if isinstance(report, ProcessStarted):
            process.started(report)
        elif isinstance(report, ProcessExited):
            self.processes.end(process, report)
            self._died(process)
        else:
            self.processes.end(process, None)
            self._fail(FluxError(f"the system refuses to start {process.node}, a process of this run: {report.why}"))

    async def _end_the_stopped(self) -> None:
        while True:
            await trio.sleep(BEAT_EVERY_S)
            with self._changed:
                for process in self.processes:
                    if process.name in self._restarts:
                        process.kill_if_stopped()

    async def _outlive_the_spawner(self) -> None:
        """End the run: without the spawner no process can be started again, and exit statuses are lost."""
        self._fail(
            FluxError(
                f"the process that starts the others of this run (process {self._spawner.pid}) was killed: the run "
                "ends here, because nothing that dies could be started again. Output up to now is right. Flux does "
                "not kill it: find out what did (`dmesg` shows if memory ran out), and start the run again"
            )
        )
        for process in self.processes:
            if not process.gone:
                self._nursery.start_soon(self._await_end, process)

    async def _await_end(self, process: Process) -> None:
        """Kill an orphan: it would end when its parent is gone, but may be busy until then."""
        process.kill()
        await process.wait_gone()
        with self._changed:
            self.processes.end(process, None)
            self._changed.notify_all()
