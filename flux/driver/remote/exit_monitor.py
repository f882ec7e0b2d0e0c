"""Exit monitor: a small process beside a site, an ingress or an egress of a remote run, which reports how that ends.

A row may kill every site that works on it. All that reaches the controller from a dead site is the note in memory that
it shares with its monitor (`crash_note`); with it, poison rows are detected (`poison_rows`).

An ingress or egress that is stopped (SIGSTOP) holds up the run, and no supervisor takes it for dead. Its monitor kills
it, so that it is started again. It cannot be continued later and write to the same sink as its successor.

The monitor is the child of the process that it monitors, so that signals to that process do not reach the monitor. In a
container it is the parent, because the end of the first process of a namespace kills all others in it. There the
monitor forwards signals, and exits with the status of its child. Either way the fork precedes the import of the user's
code: it would lose threads that were started before.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from types import TracebackType
from typing import NoReturn, Self

from ...controller.failure_detector import StandstillClock
from ...site.crash_note import Job, job_of, shared_note
from ...site.heartbeat import BEAT_EVERY_S
from ...site.shell import leave
from ...types.errors import FluxError
from ...wire.connections import Identity
from ...wire.requests import SiteDeath, Unanswered, ask

_ASK_TIMEOUT_S = 10.0
_REPORT_TIMEOUT_S = 15.0  # The controller may be restarting; but a supervisor may wait for the monitor to end.
_RETRY_S = 0.2
_FIRST_PID = 1  # Of the process with which its namespace ends.
_MESSAGE_MAX_BYTES = 4096
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ExitMonitor:
    """The monitor of the process that enters it, for the run of `controller`.

    `own` is its identity in the handshake: that of a command. It ends with the process, or when that exits its block.
    """

    def __init__(self, controller: str, own: Identity) -> None:
        self.note = shared_note()  # Where a site notes what it works on.
        self._controller = controller
        self._own = own

    def __enter__(self) -> Self:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # Else buffered text would be written twice.
        called = os.getpid()
        read_fd, self._write_fd = os.pipe()
        child = os.fork()
        if called == _FIRST_PID and child:
            self._watch(child, read_fd, is_child=True)
        elif called != _FIRST_PID and not child:
            self._watch(called, read_fd, is_child=False)
        os.close(read_fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._send()
        os.close(self._write_fd)

    def joined(self, name: str, run: str) -> None:
        """Note that the process is `name` in its run from now on."""
        self._send(name=name, run=run)

    def _send(self, **message: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # The monitor may have been killed.
            os.write(self._write_fd, f"{json.dumps(message)}\n".encode())

    # In the monitor.

    def _watch(self, pid: int, read_fd: int, is_child: bool) -> NoReturn:
        """Wait for the end of the process, and report it."""
        try:
            os.close(self._write_fd)
            for number in _FORWARDED:
                signal.signal(number, signal.SIG_IGN)
            ended: dict[str, str] = {}
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                if is_child:
                    _forward_signals(pidfd)
                if is_child or os.getppid() == pid:  # Else it has ended, and its pid may belong to another process.
                    ended = _await_end(pid, pidfd, read_fd)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if is_child else 0
            if ended and ended["name"].startswith("site-"):
                with contextlib.suppress(FluxError):  # The controller of another run may be there by now.
                    self._report_death(ended, job_of(self.note[:]))
            leave(status if status >= 0 else 128 - status)  # As shells do.
        except BaseException:
            traceback.print_exc()
        finally:
            leave(1)  # In any case, this process must not go on as a second one of its kind.

    def _report_death(self, site: dict[str, str], job: Job | None) -> None:
        """Report the death of a site; retry only if it died at work: after the end of a run the controller is gone."""
        deadline = time.monotonic() + (0 if job is None else _REPORT_TIMEOUT_S)
        death = SiteDeath(run=site["run"], name=site["name"], job=None if job is None else job.to_plain())
        while True:
            try:
                ask(self._controller, self._own, death, _ASK_TIMEOUT_S)
                return
            except Unanswered:
                if time.monotonic() > deadline:
                    return
            time.sleep(_RETRY_S)


def _await_end(pid: int, pidfd: int, read_fd: int) -> dict[str, str]:
    """Wait until a process ends or wants no monitor any more; return its name and run, empty if it never joined."""
    joined: dict[str, str] = {}
    awaited, standstill = select.poll(), StandstillClock(pid)
    for descriptor in (pidfd, read_fd):
        awaited.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in awaited.poll(BEAT_EVERY_S * 1000)]
        if pidfd in ready:
            return joined
        if read_fd in ready:
            messages = os.read(read_fd, _MESSAGE_MAX_BYTES).splitlines()
            if not messages:
                awaited.unregister(read_fd)  # The process is ending.
            elif not (joined := dict(json.loads(messages[-1]))):
                return joined
        # The controller declares a stopped site dead, and other sites take over.
        if joined and not joined["name"].startswith("site-") and standstill.lasts():
            sys.stderr.write(f"flux: {joined['name']} was stopped, and is killed so that it can be started again\n")
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _forward_signals(pidfd: int) -> None:
    for number in _FORWARDED:
        signal.signal(number, lambda number, _: signal.pidfd_send_signal(pidfd, number))
