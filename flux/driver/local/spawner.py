"""Spawner: the process that forks the others of a local run, whenever the driver asks for one.

It is forked from the user's program before the run has threads, and its memory stays as it was then: it runs no loop
and no code of the user. So a process that is started later is forked from the same memory as the first ones: an
iterator that an ingress has used up is unused here, and sockets that the program opened before are still open. It is
the parent of all: it reaps them and reports how they ended.

The spawner and the driver exchange packets over a socket pair, one small msgpack value each, with descriptors attached.
Signals that are meant for the program do not reach it. It ends when the program does, and kills its children; after a
program that was killed, it also cleans up. If the spawner is killed, its children end, and the driver ends the run.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import msgpack
import trio

from ...types.errors import FluxError
from ..launcher import Runnable, live

Make: TypeAlias = Callable[[str, int], Runnable]  # What the process `name` does in its n-th incarnation.

_PACKET_MAX_BYTES = 4096
_CLOSE: bytes = msgpack.packb(None)  # The last packet. A program that did not send it was killed.
_CLOSE_PATIENCE_S = 10.0
# The program opens 19 and 3 more for each site, the controller 2; the rest is for restarts, forks and commands.
_DESCRIPTORS = 32
_DESCRIPTORS_OF_A_SITE = 4
_NOT_FOR_US = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def check_descriptors(sites: int) -> None:
    """Raise `FluxError` if the program, and so each fork of it, may not open as many files as a run needs."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    have = len(os.listdir("/proc/self/fd"))
    needed = have + _DESCRIPTORS + _DESCRIPTORS_OF_A_SITE * sites
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        raise FluxError(
            f"a run on {sites} sites needs {needed} file descriptors in each process, and {allowed} are allowed, of "
            f"which the program has {have} in use. Allow more with `ulimit -n {needed}`"
        )


@dataclass(frozen=True, kw_only=True)
class ProcessStarted:
    """A process runs. The receiver of the report closes `pidfd`."""

    name: str
    incarnation: int
    pid: int
    pidfd: int


@dataclass(frozen=True, kw_only=True)
class StartRefused:
    """The system would not fork."""

    name: str
    incarnation: int
    why: str


@dataclass(frozen=True, kw_only=True)
class ProcessExited:
    """A process has ended: negative is a signal, otherwise an exit status."""

    name: str
    incarnation: int
    status: int
    cpu_s: float


SpawnerReport: TypeAlias = ProcessStarted | StartRefused | ProcessExited


class Spawner:
    """The driver's handle: it asks for processes, and returns the reports on them."""

    def __init__(self, make: Make, clean_up: Callable[[], None] = lambda: None) -> None:
        """Fork the spawner. It calls `clean_up` if the program was killed, when all processes have ended."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = os.pidfd_open(os.getpid())
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # Else each process would write the buffered text.
        # Signals are blocked between the fork and the moment at which the spawner ignores them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_US)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                ours.close()
                _Forking(make, clean_up, theirs, program).live(mask)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        os.close(program)
        self._pidfd = os.pidfd_open(self.pid)
        self._sock = ours
        self._status: int | None = None
        self._closed = False

    def start(self, name: str, incarnation: int, stderr: int) -> None:
        """Ask for a process whose standard error is `stderr`; a report says whether it started.

        If the spawner is gone this does nothing: `report` returns None then.
        """
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._sock, [msgpack.packb([name, incarnation])], [stderr])

    async def report(self) -> SpawnerReport | None:
        """Return the next report; None when the spawner is gone."""
        await trio.lowlevel.wait_readable(self._sock)
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._sock, _PACKET_MAX_BYTES, 1)
        except ConnectionResetError:
            return None
        return _decode(packet, descriptors) if packet else None

    def close(self) -> int | None:
        """End the spawner and all its children; return its exit status, None if it was reaped elsewhere."""
        if self._closed:
            return self._status
        self._closed = True
        with suppress(OSError):
            self._sock.send(_CLOSE)
            self._sock.shutdown(socket.SHUT_RDWR)  # A fork of the program may hold the socket too.
        gone = select.poll()
        gone.register(self._pidfd, select.POLLIN)
        if not gone.poll(_CLOSE_PATIENCE_S * 1000):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)  # It was stopped (SIGSTOP).
        with suppress(ChildProcessError):
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._sock.close()
        os.close(self._pidfd)
        return self._status


def _decode(packet: bytes, descriptors: list[int]) -> SpawnerReport:
    kind, fields = msgpack.unpackb(packet)
    if kind == "started":
        [pidfd] = descriptors
        return ProcessStarted(**fields, pidfd=pidfd)
    return ProcessExited(**fields) if kind == "exited" else StartRefused(**fields)


@dataclass(frozen=True)
class _Child:
    name: str
    incarnation: int
    pid: int


class _Forking:
    """The spawner's process. `program` is a pidfd of the user's program."""

    def __init__(self, make: Make, clean_up: Callable[[], None], sock: socket.socket, program: int) -> None:
        self._make = make
        self._clean_up = clean_up
        self._closed = False
        self._sock = sock
        self._program = program
        self._children: dict[int, _Child] = {}  # By the descriptor of each.
        self._poll = select.poll()

    def live(self, mask: Iterable[int]) -> NoReturn:
        """Fork and reap until the program is gone or closes the spawner; `mask` are the signals it had blocked."""
        code = 0
        try:
            self._prepare()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._serve()
        except BaseException:
            traceback.print_exc()
            code = 1
        self._end_all()
        if not self._closed:
            self._clean_up()
        os._exit(code)

    def _prepare(self) -> None:
        signal.set_wakeup_fd(-1)  # It is of the program's loop, if that has one.
        for number in _NOT_FOR_US:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gc.freeze()  # Objects of the program stay: to collect them would only copy their pages.
        self._myself = os.pidfd_open(os.getpid())
        for descriptor in (self._sock.fileno(), self._program):
            self._poll.register(descriptor, select.POLLIN)

    def _serve(self) -> None:
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            for descriptor in ready & self._children.keys():
                self._report("exited", self._reap(descriptor))
            if self._program in ready or (self._sock.fileno() in ready and not self._obey()):
                return

    def _obey(self) -> bool:
        """Fork what is asked for; return False if this was the last packet."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._sock, _PACKET_MAX_BYTES, 1)
        except ConnectionResetError:
            return False  # The program was killed before it had read all reports.
        if not packet or packet == _CLOSE:
            self._closed = packet == _CLOSE
            return False
        name, incarnation = msgpack.unpackb(packet)
        [stderr] = descriptors
        try:
            pid = os.fork()
        except OSError as error:
            self._report("refused", {"name": name, "incarnation": incarnation, "why": str(error)})
        else:
            if pid == 0:
                self._become(name, incarnation, stderr)
            pidfd = os.pidfd_open(pid)
            self._children[pidfd] = _Child(name, incarnation, pid)
            self._poll.register(pidfd, select.POLLIN)
            self._report("started", {"name": name, "incarnation": incarnation, "pid": pid}, pidfd)
        os.close(stderr)
        return True

    def _become(self, name: str, incarnation: int, stderr: int) -> NoReturn:
        """In the forked process: close what belongs to the spawner, and run."""
        try:
            self._sock.close()
            for descriptor in (self._program, *self._children):
                os.close(descriptor)
            live(lambda: self._make(name, incarnation), self._myself, stderr)
        finally:
            os._exit(1)  # In any case, this process must not go on as a second spawner.

    def _reap(self, descriptor: int) -> dict[str, Any]:
        child = self._children.pop(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        _, status, usage = os.wait4(child.pid, 0)
        return {
            "name": child.name,
            "incarnation": child.incarnation,
            "status": os.waitstatus_to_exitcode(status),
            "cpu_s": usage.ru_utime + usage.ru_stime,
        }

    def _report(self, kind: str, fields: dict[str, Any], *descriptors: int) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # The program is gone; the next poll says so.
            socket.send_fds(self._sock, [msgpack.packb([kind, fields])], descriptors)

    def _end_all(self) -> None:
        for descriptor in list(self._children):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for descriptor in list(self._children):
            self._reap(descriptor)
