"""A site in a Spark task: the task forks a process that joins the run, and waits for its end.

Everything the site needs, such as the plan with the user's operators, is in the task's closure. Spark ships it as it
ships any function of the user's, and the process inherits it by the fork. Flux itself unpickles nothing.

The process ends with the run, and with each of its ancestors: the task's Python worker, the daemon that forked the
worker, and the executor. So killing an executor kills its site at once.
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

ENDED, ELSEWHERE = 0, 75  # Exit statuses: the run does not need the site any more; it should be on another executor.

_ANCESTORS = 3
_ASK_TIMEOUT_S = 30.0
_PR_SET_PDEATHSIG = 1
_STDERR = 2
_FIRST_FILE = 3  # After standard input, output and error.
_FILES_MAX = 65_536


@dataclass(frozen=True, kw_only=True)
class TcpConfig(ProcessConfig):
    """The addresses of the program and the controller; every other process listens at `here`."""

    program: str
    controller: str
    here: str

    def address(self, name: str) -> str:
        return {"program": self.program, CONTROLLER: self.controller}.get(name, self.here)


@dataclass(frozen=True, kw_only=True)
class SitePosting:
    """The order to a task to run the `index`-th site of a run."""

    index: int
    plan: Plan
    run: str
    secret: bytes = field(repr=False)
    program: str
    controller: str

    def __call__(self, rows: Iterator[Any]) -> Iterator[int]:
        """Run the site, in the task; yield its exit status."""
        from pyspark import TaskContext

        attempt = TaskContext.get().taskAttemptId()
        # The nearest first; read before the fork, while all are alive.
        ancestors = [os.getpid(), *_parents_of(os.getpid(), _ANCESTORS - 1)]
        note = shared_note()
        pid = os.fork()
        if pid == 0:
            _become(self, attempt, ancestors, note)
        _, status = os.waitpid(pid, 0)
        exit_code = os.waitstatus_to_exitcode(status)
        if exit_code < 0:
            self._report_death(attempt, exit_code, job_of(note[:]))
        yield exit_code

    def _report_death(self, attempt: int, status: int, job: Job | None) -> None:
        """Report that a signal killed the site, with the rows it was processing, which may be the cause."""
        plain = None if job is None else job.to_plain()
        death = TaskSiteDeath(index=self.index, attempt=attempt, status=status, job=plain)
        with contextlib.suppress(FluxError):  # The run may be over.
            ask(self.program, command(self.secret), death, _ASK_TIMEOUT_S)


class TaskSite(Worker):
    """A site that ends with any of its ancestor processes."""

    def __init__(self, config: ProcessConfig, name: str, ancestors: list[int], note: mmap.mmap) -> None:
        super().__init__(config, name, note)
        self._ancestors = ancestors

    def start(self, nursery: trio.Nursery) -> None:
        for pidfd in self._ancestors:
            nursery.start_soon(_end_with, pidfd)
        super().start(nursery)


def _become(posting: SitePosting, attempt: int, ancestors: list[int], note: mmap.mmap) -> NoReturn:
    """Close the task's files, join the run, and run as a site, in the forked process."""
    try:
        # So that it does not outlive the task even while an operator blocks its loop.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.closerange(_FIRST_FILE, _FILES_MAX)
        watched = [os.pidfd_open(pid) for pid in ancestors if pid > 1]
        if os.getppid() != ancestors[0]:
            leave(1)  # The task died before the death signal was set.
        site = _join(posting, attempt, ancestors[-1], watched, note)
        live(lambda: site, watched[0], os.dup(_STDERR))
    except FluxError as error:
        sys.stderr.write(f"flux: site {posting.index}: {error}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        leave(1)  # In any case, this process must not continue as a second task.


def _join(posting: SitePosting, attempt: int, executor: int, watched: list[int], note: mmap.mmap) -> TaskSite:
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
        return TaskSite(config, joined["name"], watched[1:], note)  # `live` watches the first.
    finally:
        # Open files stay usable. Removed now, because a killed site could not clean up.
        shutil.rmtree(directory, ignore_errors=True)


def _own_host(driver: str) -> str:
    """Return the address at which others reach this machine: its own end of a connection to the driver."""
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
