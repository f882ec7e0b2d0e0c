"""A site in a task of Spark's: the task forks a process that joins the run, and waits for its end.

What the site needs, the plan with the user's operators among it, is in the task's closure: Spark carries it, as it
carries any function of the user's, and the process has it by the fork. Flux itself unpickles nothing.

The process ends with the run, and with each of its ancestors: the task's Python worker, the daemon that forked that,
and the executor. So a killed executor is a killed site, at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import trio

from ...driver.launcher import live
from ...plan import Plan
from ...plan.plan import CONTROLLER
from ...site.config import ProcessConfig
from ...site.crash_note import Job, job_of, shared_note
from ...site.shell import leave
from ...site.worker import Worker
from ...types.errors import FluxError
from ...wire import address
from ...wire.requests import TaskJoinRequest, TaskSiteDeath, ask, command

ENDED, ELSEWHERE = 0, 75  # Statuses: the run wants it no more; it should be on another executor.

_ANCESTORS = 3
_ASK_TIMEOUT_S = 30.0
_PR_SET_PDEATHSIG = 1
_STDERR = 2
_FIRST_FILE = 3  # Behind standard input, output and error.
_FILES_MAX = 65_536


@dataclass(frozen=True, kw_only=True)
class TcpConfig(ProcessConfig):
    """The program and the controller are at these addresses; every other process listens at `here`."""

    program: str
    controller: str
    here: str

    def address(self, name: str) -> str:
        return {"program": self.program, CONTROLLER: self.controller}.get(name, self.here)


@dataclass(frozen=True, kw_only=True)
class SitePosting:
    """What a task is to do: be the `index`-th site of a run."""

    index: int
    plan: Plan
    run: str
    secret: bytes = field(repr=False)
    program: str
    controller: str

    def __call__(self, rows: Iterator[Any]) -> Iterator[int]:
        """In the task: yields the status with which the site ended."""
        from pyspark import TaskContext

        attempt = TaskContext.get().taskAttemptId()
        # From the nearest on; before the fork, so that all are still there.
        ancestors = [os.getpid(), *_parents_of(os.getpid(), _ANCESTORS - 1)]
        note = shared_note()
        pid = os.fork()
        if pid == 0:
            _become(self, attempt, ancestors, note)
        _, status = os.waitpid(pid, 0)
        exited = os.waitstatus_to_exitcode(status)
        if exited < 0:
            self._report_death(attempt, exited, job_of(note[:]))
        yield exited

    def _report_death(self, attempt: int, status: int, job: Job | None) -> None:
        """A signal has killed the site, and what it was busy with may be why."""
        plain = None if job is None else job.to_plain()
        death = TaskSiteDeath(index=self.index, attempt=attempt, status=status, job=plain)
        with contextlib.suppress(FluxError):  # The run may be over.
            ask(self.program, command(self.secret), death, _ASK_TIMEOUT_S)


class TaskSite(Worker):
    """A site that ends with those it descends from."""

    def __init__(self, config: ProcessConfig, name: str, ancestors: list[int], note: mmap.mmap) -> None:
        super().__init__(config, name, note)
        self._ancestors = ancestors

    def start(self, nursery: trio.Nursery) -> None:
        for pidfd in self._ancestors:
            nursery.start_soon(_end_with, pidfd)
        super().start(nursery)


def _become(posting: SitePosting, attempt: int, ancestors: list[int], note: mmap.mmap) -> NoReturn:
    """In the forked process: let go of what is the task's, join, and live as a site."""
    try:
        # Also when its loop is held up by an operator, it does not outlive the task.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.closerange(_FIRST_FILE, _FILES_MAX)
        watched = [os.pidfd_open(pid) for pid in ancestors if pid > 1]
        if os.getppid() != ancestors[0]:
            leave(1)  # It died before it could have told.
        site = _joined(posting, attempt, ancestors[-1], watched, note)
        live(lambda: site, watched[0], os.dup(_STDERR))
    except FluxError as error:
        sys.stderr.write(f"flux: site {posting.index}: {error}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        leave(1)  # Whatever happens, this process must not go on as a second task.


def _joined(posting: SitePosting, attempt: int, executor: int, watched: list[int], note: mmap.mmap) -> TaskSite:
    request = TaskJoinRequest(
        index=posting.index, attempt=attempt, pid=os.getpid(), host=socket.gethostname(), executor=executor
    )
    joined = ask(posting.program, command(posting.secret), request, _ASK_TIMEOUT_S)
    if joined["name"] is None:
        leave(ELSEWHERE)
    directory = Path(tempfile.mkdtemp(prefix="flux-site-"))
    config = TcpConfig(
        plan=posting.plan,
        directory=directory,
        run=posting.run,
        secret=posting.secret,
        program=posting.program,
        controller=posting.controller,
        here=f"tcp:{_own_host(posting.program)}:0",
    )
    try:
        return TaskSite(config, joined["name"], watched[1:], note)  # The first is watched by whoever runs it.
    finally:
        # What it has open there it keeps; nobody could clean up behind a site that is killed.
        shutil.rmtree(directory, ignore_errors=True)


def _own_host(driver: str) -> str:
    """Where others reach this machine: from there the driver's is reached."""
    with address.connect_blocking(driver, _ASK_TIMEOUT_S) as sock:
        host: str = sock.getsockname()[0]
        return host


def _parents_of(pid: int, count: int) -> list[int]:
    found = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


async def _end_with(pidfd: int) -> None:
    await trio.lowlevel.wait_readable(pidfd)
    leave(1)
