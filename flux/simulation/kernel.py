"""Kernel: simulated processes, many in one loop of trio: each can be killed, stopped and continued.

A process is a group of tasks. A context variable names it; tasks that it starts inherit that. A process that is killed
loses its sockets and files at once, and its tasks are cancelled. What they still run on the way out reaches nothing:
every call to the system raises `Killed`. The tasks of a stopped process are held back when they are about to run.

Every effect of a process on the world is a line of the trace, and a point at which the process can be made to die
(`Kernel.effect`).
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from itertools import count
from typing import Any, Protocol

import trio
from trio._core._traps import WaitTaskRescheduled

from ..types.errors import is_out_of_memory, unwrap_group
from .doom import Doom
from .memory_shortage import MemoryShortage
from .world_clock import WorldClock

_TRACE_LINES_KEPT = 400
_FIRST_PID = 1_000

running: ContextVar[WorldProcess | None] = ContextVar("flux simulated process", default=None)


class Killed(BaseException):
    """The simulated process that made this call is dead."""


class Owned(Protocol):
    """What the system takes back from a dead process."""

    def abandon(self) -> None:
        """The owner is dead."""


class WorldProcess:
    """One process; `name` is that of its node."""

    def __init__(self, kernel: Kernel, name: str, role: str) -> None:
        self.name = name
        self.role = role  # The name of all its incarnations.
        self.pid = next(kernel.pids)
        self.started_at = kernel.now
        self.went_on_at = 0.0  # After it was stopped.
        self.busy_s = 0.0  # For so long it has not returned to its loop.
        self.runnable: Any = None
        self.is_dead = False
        self.is_stopped = False
        self.status: int | None = None  # The exit status; negative: a signal.
        self.doom: Doom | None = None
        self.shortage: MemoryShortage | None = None
        self.owned: dict[Owned, None] = {}
        self.scope = trio.CancelScope()
        self.held: list[trio.lowlevel.Task] = []  # Tasks that are to run when it continues.
        self.nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<{self.name}, process {self.pid}>"


class _Gate:
    """Takes the place of a task's coroutine; it holds the task back while its process is stopped."""

    def __init__(self, task: trio.lowlevel.Task, process: WorldProcess) -> None:
        self._task = task
        self._coro = task.coro
        self._process = process
        self._is_held = False
        self._value: Any = None

    def send(self, value: Any) -> Any:
        if self._is_held:
            self._is_held, value = False, self._value
        if self._process.is_stopped:
            self._is_held, self._value = True, value
            self._process.held.append(self._task)
            return WaitTaskRescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        shortage = self._process.shortage
        return self._coro.send(value) if shortage is None else shortage.run(self._coro.send, value)

    def throw(self, error: BaseException) -> Any:
        return self._coro.throw(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coro, name)  # For what only looks at it.


class _Gatekeeper(trio.abc.Instrument):
    def __init__(self, clock: WorldClock) -> None:
        self._clock = clock

    def before_io_wait(self, timeout: float) -> None:
        self._clock.catch_up()  # Else what was due is not done while tasks can run.

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        process = task.context.get(running)
        if process is not None:
            task.coro = _Gate(task, process)  # type: ignore[assignment]


class Kernel:
    """The processes, the clock and the trace of one world."""

    def __init__(self, seed: str, keeps_trace: bool = False) -> None:
        self.rng = random.Random(f"{seed} kernel")
        self.clock = WorldClock()
        self.at = self.clock.at
        self.pids = count(_FIRST_PID)
        self.processes: dict[int, WorldProcess] = {}  # Those that live, by pid.
        self.on_exit: Callable[[WorldProcess], None] = lambda process: None
        self.trace: deque[str] = deque(maxlen=None if keeps_trace else _TRACE_LINES_KEPT)
        self.shown: dict[
            str, str
        ] = {}  # What differs from one run of a world to the next, and what the trace has instead.
        self.effects = 0
        self.gatekeeper: trio.abc.Instrument = _Gatekeeper(self.clock)
        self._digest = hashlib.sha256()

    @property
    def now(self) -> float:
        """The time of the world, in seconds."""
        return self.clock.now

    @property
    def digest(self) -> str:
        """What identifies the whole trace until now."""
        return self._digest.hexdigest()

    def note(self, process: str, text: str) -> None:
        """Add a line to the trace."""
        for real, shown in self.shown.items():
            text = text.replace(real, shown)
        line = f"{self.now:10.6f} {process}: {text}"
        self._digest.update(line.encode("utf-8", "surrogateescape"))
        self.trace.append(line)

    # Processes.

    def start(
        self, nursery: trio.Nursery, name: str, role: str, make: Callable[[], Any], crashed: Callable[[str], None]
    ) -> WorldProcess:
        """Start a process that runs what `make` returns; `crashed` gets the text of an error that ends it."""
        process = WorldProcess(self, name, role)
        self.processes[process.pid] = process
        context = copy_context()
        context.run(running.set, process)
        context.run(nursery.start_soon, self._live, process, make, crashed)
        self.note(name, "starts")
        return process

    async def _live(self, process: WorldProcess, make: Callable[[], Any], crashed: Callable[[str], None]) -> None:
        try:
            with process.scope:
                async with trio.open_nursery() as nursery:
                    process.nursery = nursery
                    process.runnable = make()
                    await process.runnable.run()
        except BaseException as error:
            shortage = process.shortage
            is_excused = shortage is not None and shortage.has_struck and is_out_of_memory(unwrap_group(error))
            if not process.is_dead and not is_excused:
                crashed(_text(error))
        if not process.is_dead:
            self.end(process, 1)

    async def _live_in_thread(self, process: WorldProcess, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except MemoryError as error:  # It ends the thread, and the process lives on.
            self.note(process.name, f"a thread ends: {error}")

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Start a task of the process that runs now, apart from its other tasks: a thread."""
        process = running.get()
        assert process is not None and process.nursery is not None
        process.nursery.start_soon(self._live_in_thread, process, run)

    def end(self, process: WorldProcess, status: int) -> None:
        """End a process at once; a negative status is a signal."""
        if process.is_dead:
            return
        process.is_dead, process.status = True, status
        self.note(process.name, f"ends with {status}")
        del self.processes[process.pid]
        owned, process.owned = process.owned, {}
        for each in owned:
            each.abandon()
        self.go_on(process)
        process.scope.cancel()
        self.on_exit(process)

    def stop(self, process: WorldProcess) -> None:
        """Stop a process (SIGSTOP)."""
        if not process.is_dead:
            process.is_stopped = True
            self.note(process.name, "is stopped")

    def go_on(self, process: WorldProcess) -> None:
        """Continue a process (SIGCONT)."""
        if process.is_stopped:
            process.is_stopped, process.went_on_at = False, self.now
            self.note(process.name, "goes on")
            held, process.held = process.held, []
            for task in held:
                trio.lowlevel.reschedule(task)

    # Effects.

    def effect(self, kind: str, text: str) -> str | None:
        """Note an effect of the process that runs; return None, or when it dies of it: "torn" or "after".

        One that is to die before the effect dies here.
        """
        process = running.get()
        if process is None:
            return None
        if process.is_dead:
            raise Killed
        self.effects += 1
        self.note(process.name, f"{kind} {text}")
        doom = process.doom
        if doom is None or not doom.is_due(kind):
            return None
        process.doom = None
        if doom.moment == "before":
            self.die(process)
        return doom.moment

    def die(self, process: WorldProcess | None = None) -> None:
        """End the process that runs by SIGKILL."""
        process = process or running.get()
        assert process is not None
        self.end(process, -9)
        raise Killed


def _text(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_text(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"
