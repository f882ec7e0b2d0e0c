"""Witness: a small process beside a site of a remote run, which outlives it and tells the controller what it died of.

A row may kill every site that works on it. Nothing that a dead site had in mind reaches the controller, but for what
it noted in memory that it shares with its witness (`at_work`); that tells poison from bad luck (`post_mortem`).

The process that was called remains the site, so that whoever signals it signals the site, and the witness is its child.
In a container it is the other way round: with the first process of a namespace all others in it are killed, so there
the witness is the parent, passes signals on, and ends as the site did.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from typing import NoReturn

from ..site.at_work import Job, job_of
from ..site.shell import leave
from ..wire.asking import Unanswered, ask
from ..wire.connections import Identity

_ASK_TIMEOUT_S = 10.0
_TELL_WITHIN_S = 30.0  # The controller may be on its way back.
_RETRY_S = 0.2
_FIRST = 1  # The process with which its namespace ends.
_FIRST_FILE, _FILES_MAX = 3, 65_536  # Behind standard input, output and error.
_MEANT_FOR_THE_SITE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class Witness:
    """The witness of the process `name` of a run, which notes what it works on in `note`."""

    name: str
    run: str
    controller: str
    own: Identity  # As a command: it has no name in the run.
    note: mmap.mmap

    def stand_by(self) -> None:
        """Go on as the process that has a witness; it must have no threads yet that matter to it."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # Else what waits in them would be written twice.
        called = os.getpid()
        child = os.fork()
        if called == _FIRST and child:
            self._watch(child, is_child=True)
        elif called != _FIRST and not child:
            self._watch(called, is_child=False)

    def _watch(self, pid: int, is_child: bool) -> NoReturn:
        """In the witness: wait for the end of the process, and tell of it."""
        try:
            for number in _MEANT_FOR_THE_SITE:
                signal.signal(number, signal.SIG_IGN)
            os.closerange(_FIRST_FILE, _FILES_MAX)
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                if is_child:
                    _pass_on(pidfd)
                if is_child or os.getppid() == pid:  # Else it has ended, and its number may be another's.
                    gone = select.poll()
                    gone.register(pidfd, select.POLLIN)
                    gone.poll()
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if is_child else None
            if (job := job_of(self.note[:])) is not None:
                self._tell(job)
            leave(0 if status is None else status if status >= 0 else 128 - status)  # As shells say it.
        except BaseException:
            traceback.print_exc()
        finally:
            leave(1)  # Whatever happens, this process must not go on as a second site.

    def _tell(self, job: Job) -> None:
        deadline = time.monotonic() + _TELL_WITHIN_S
        while time.monotonic() < deadline:
            with contextlib.suppress(Unanswered):
                told = {"run": self.run, "name": self.name, "job": job.to_plain()}
                ask(self.controller, self.own, "died", _ASK_TIMEOUT_S, **told)
                return
            time.sleep(_RETRY_S)


def _pass_on(pidfd: int) -> None:
    for number in _MEANT_FOR_THE_SITE:
        signal.signal(number, lambda number, _: signal.pidfd_send_signal(pidfd, number))
