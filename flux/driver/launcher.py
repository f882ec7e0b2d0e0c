"""Launcher: runs a forked process of a local run until it ends.

Processes are forked, so any class, lambda or closure of the user's program works in them. Each ends when the process
that forked it does: it watches a pidfd of that process, which no other process can keep open.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, Protocol

import pyarrow as pa
import trio

from ..site.shell import leave
from ..system.memory import keep_freed_memory

_STDERR = 2


class Runnable(Protocol):
    """What a process does: one trio task that does not return."""

    async def run(self) -> None: ...


def live(make: Callable[[], Runnable], parent: int, stderr: int) -> NoReturn:
    """Run what `make` returns, in a process that was just forked, until it ends or the process `parent` does.

    `parent` is a pidfd; what is written to standard error goes to the descriptor `stderr`.
    """
    try:
        _write_errors_to(stderr)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; it ends the run.
        for ends_a_process in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(ends_a_process, signal.SIG_DFL)
        pa.set_cpu_count(1)
        keep_freed_memory()

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end_with, parent)
                await make().run()

        trio.run(run)
    except BaseException:
        traceback.print_exc()
        leave(1)
    leave(0)


def _write_errors_to(stderr: int) -> None:
    """Redirect standard error, also of native code: the program's `sys.stderr` may be any object."""
    os.dup2(stderr, _STDERR)
    os.close(stderr)
    sys.stderr = open(_STDERR, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


async def _end_with(parent: int) -> None:
    await trio.lowlevel.wait_readable(parent)
    leave(0)
