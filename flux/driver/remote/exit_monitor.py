"""Witness: a small process beside a site, an ingress or an egress of a remote run, which sees how that ends.

A row may kill every site that works on it. Nothing that a dead site had in mind reaches the controller, but for what
it noted in memory that it shares with its witness (`at_work`); that tells poison from bad luck (`post_mortem`).

An ingress or egress that is stopped (SIGSTOP) holds up the run, and no supervisor takes it for dead. Its witness kills
it, so that it is started again: then it cannot wake up behind its successor's back and write to the same sink.

The process that was called remains what it is, so that whoever signals it does not signal the witness, its child. In a
container it is the other way round: with the first process of a namespace all others in it are killed, so there the
witness is the parent, passes signals on, and ends as the other did. Either way they part before anything of the user's
is imported: a fork would lose threads that it has started.
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
_TELL_WITHIN_S = 15.0  # The controller may be on its way back; and a supervisor may wait for its witness.
_RETRY_S = 0.2
_FIRST = 1  # The process with which its namespace ends.
_WORD_MAX_BYTES = 4096
_NOT_FOR_IT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ExitMonitor:
    """The witness of the process that enters it, to be a process of the run that `controller` leads.

    `own` is who it is to the controller: a command. It ends with the process, or when that leaves it.
    """

    def __init__(self, controller: str, own: Identity) -> None:
        self.note = shared_note()  # Where a site notes what it works on.
        self._controller = controller
        self._own = own

    def __enter__(self) -> Self:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # Else what waits in them would be written twice.
        called = os.getpid()
        hearing, self._saying = os.pipe()
        child = os.fork()
        if called == _FIRST and child:
            self._watch(child, hearing, is_child=True)
        elif called != _FIRST and not child:
            self._watch(called, hearing, is_child=False)
        os.close(hearing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._say()
        os.close(self._saying)

    def joined(self, name: str, run: str) -> None:
        """The process is `name` in its run from now on."""
        self._say(name=name, run=run)

    def _say(self, **word: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # Somebody may have killed it.
            os.write(self._saying, f"{json.dumps(word)}\n".encode())

    # In the witness.

    def _watch(self, pid: int, hearing: int, is_child: bool) -> NoReturn:
        """Wait for the end of the process, and tell of it."""
        try:
            os.close(self._saying)
            for number in _NOT_FOR_IT:
                signal.signal(number, signal.SIG_IGN)
            seen: dict[str, str] = {}
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                if is_child:
                    _pass_on(pidfd)
                if is_child or os.getppid() == pid:  # Else it has ended, and its number may be another's.
                    seen = _see_the_end(pid, pidfd, hearing)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if is_child else 0
            if seen and seen["name"].startswith("site-"):
                with contextlib.suppress(FluxError):  # Another may lead another run there by now.
                    self._tell(seen, job_of(self.note[:]))
            leave(status if status >= 0 else 128 - status)  # As shells say it.
        except BaseException:
            traceback.print_exc()
        finally:
            leave(1)  # Whatever happens, this process must not go on as a second one of its kind.

    def _tell(self, who: dict[str, str], job: Job | None) -> None:
        """The controller may be gone because the run has ended: only who died at work is worth another try."""
        deadline = time.monotonic() + (0 if job is None else _TELL_WITHIN_S)
        death = SiteDeath(run=who["run"], name=who["name"], job=None if job is None else job.to_plain())
        while True:
            try:
                ask(self._controller, self._own, death, _ASK_TIMEOUT_S)
                return
            except Unanswered:
                if time.monotonic() > deadline:
                    return
            time.sleep(_RETRY_S)


def _see_the_end(pid: int, pidfd: int, hearing: int) -> dict[str, str]:
    """Return when a process has ended, or wants no witness any more: who it was in its run; nobody if it never was."""
    who: dict[str, str] = {}
    awaited, standstill = select.poll(), StandstillClock(pid)
    for descriptor in (pidfd, hearing):
        awaited.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in awaited.poll(BEAT_EVERY_S * 1000)]
        if pidfd in ready:
            return who
        if hearing in ready:
            word = os.read(hearing, _WORD_MAX_BYTES).splitlines()
            if not word:
                awaited.unregister(hearing)  # It is ending.
            elif not (who := dict(json.loads(word[-1]))):
                return who
        # A site that is stopped is declared dead by the controller, and others go on for it.
        if who and not who["name"].startswith("site-") and standstill.lasts():
            sys.stderr.write(f"flux: {who['name']} was stopped, and is killed: else nobody would start it again\n")
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _pass_on(pidfd: int) -> None:
    for number in _NOT_FOR_IT:
        signal.signal(number, lambda number, _: signal.pidfd_send_signal(pidfd, number))
