"""Launcher: forks the processes of a local run and knows what became of each.

Processes are forked, so any class, lambda or closure of the user's program works in them. They are
forked before the run's own thread starts. Each ends when the program does: it watches the reading end
of a pipe whose writing end only the program holds.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

import pyarrow as pa
import trio

from ..site.shell import leave


class Runnable(Protocol):
    """What a process does: one trio task that does not return."""

    async def run(self) -> None: ...


@dataclass
class Child:
    """One process of the run."""

    name: str
    pid: int
    pidfd: int
    exited: int | None = None  # The status, once it is gone.
    cpu_s: float = 0.0

    def reap(self) -> None:
        """Note how a process that has ended ended, and what it used."""
        _, status, usage = os.wait4(self.pid, 0)
        self.exited = os.waitstatus_to_exitcode(status)
        self.cpu_s = usage.ru_utime + usage.ru_stime
        os.close(self.pidfd)


class Lifeline:
    """A pipe that is written to by nobody: it closes when the program is gone."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def hold_in_child(self) -> int:
        """In a child: only the reading end, to be watched."""
        os.close(self._writing)
        return self._reading

    def cut(self) -> None:
        """In the program: let every child go."""
        os.close(self._writing)
        os.close(self._reading)


def fork(
    name: str, make: Callable[[], Runnable], lifeline: Lifeline, release: Callable[[], None] | None = None
) -> Child:
    """Start a process that runs what `make` makes in it, after letting go what it is not to hold."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _live(make, lifeline, release)
    return Child(name, pid, os.pidfd_open(pid))


def _live(make: Callable[[], Runnable], lifeline: Lifeline, release: Callable[[], None] | None) -> NoReturn:
    try:
        if release is not None:
            release()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; it ends the run.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        watched = lifeline.hold_in_child()
        gc.freeze()  # What came from the program stays: collecting it would only copy its pages.
        pa.set_cpu_count(1)

        async def live() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end_with_the_program, watched)
                await make().run()

        trio.run(live)
    except BaseException:
        traceback.print_exc()
        leave(1)
    leave(0)


async def _end_with_the_program(watched: int) -> None:
    await trio.lowlevel.wait_readable(watched)
    leave(0)


def kill(child: Child) -> None:
    """SIGKILL; the process may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
