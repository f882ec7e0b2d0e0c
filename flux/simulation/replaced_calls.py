"""Replaced calls: while a world runs, Flux calls the simulated system by way of `flux.system`, and reads its clock.

The clock has no module of its own there: the functions of `time` are replaced themselves, because operators, sources
and libraries read it too. What is replaced is put back at the end.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import trio
from trio._core import _run

from ..controller import view_journal
from ..site.egress import sink_journal
from ..site.ingress import sequence_journal
from ..site.state_transfer import snapshot
from ..spark.sink import outlet_store
from ..system import filesystem, idle_time, network, process_control, threads
from ..wire.transfer import state_chunks
from .kernel import Kernel, Killed, WorldProcess, running
from .simulated_disk import SimulatedDisk
from .simulated_network import SimulatedNetwork, SimulatedSocket

_EPOCH_S = 1_700_000_000.0
_THREAD_MAX_S = 0.005
_FORK_MAX_S = 0.02
_FORKS_KILLED = 0.1
_SHORTEN_AT_BYTES = (300, 2_000, 256 << 10)  # The last is that of production, which no world reaches.


class _LoopThread:
    """Stands in for a thread with a loop."""

    def is_alive(self) -> bool:
        return True

    def join(self) -> None:
        return None


class _SimulatedFork:
    """Stands in for the fork that reads state: it has everything as it was, gives it slowly, and may be killed."""

    def __init__(self, stream: Iterable[list[memoryview]], rng: random.Random) -> None:
        self._chunks = state_chunks(bytearray(b"".join(part for parts in stream for part in parts)))
        self._rng = rng

    async def read(self) -> Any:
        await trio.sleep(self._rng.uniform(0, _FORK_MAX_S))
        if self._rng.random() < _FORKS_KILLED:
            raise snapshot.ForkKilled("the fork that read the state was killed")
        return next(self._chunks, None)

    def close(self) -> None:
        return None


class SimulatedSystem:
    """The system of one world: what its processes call instead of the real one."""

    def __init__(self, seed: str, keeps_trace: bool = False) -> None:
        self.seed = seed
        self.kernel = Kernel(seed, keeps_trace)
        self.disk = SimulatedDisk(self.kernel, seed)
        self.network = SimulatedNetwork(self.kernel, seed)
        self.by_pidfd: dict[int, WorldProcess] = {}
        self._rng = random.Random(f"{seed} threads")
        self._thread_s = 0.0
        self._call_s = self._rng.choice((0.0, 0.0, 1.0))  # If calls take long, state is read in forks.
        self.shorten_at_bytes = random.Random(f"{seed} journals").choice(_SHORTEN_AT_BYTES)
        self._tokens = random.Random(f"{seed} tokens")

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace the calls until the block ends."""
        with ExitStack() as stack:
            for holder, name, replacement in self._replacements():
                stack.enter_context(patch.object(holder, name, replacement))
            state = _run._r.getstate()
            stack.callback(_run._r.setstate, state)
            _run._r.seed(f"{self.seed} scheduler")
            yield

    def _replacements(self) -> list[tuple[Any, str, Any]]:
        net, disk, kernel = self.network, self.disk, self.kernel
        return [
            (network, "open_socket", net.open_socket),
            (network, "open_pair", net.open_pair),
            (network, "wait_readable", _wait_readable),
            (network, "wait_writable", _wait_writable),
            (network, "notify_closing", _notify_closing),
            (network, "shut_plain", lambda sock, how: sock.shutdown(how)),
            (network, "receive_plain", lambda sock, most: sock.recv(most)),
            (filesystem, "calls", disk),
            (filesystem, "lock_file", disk.lock_file),
            (outlet_store, "calls", disk),
            (outlet_store, "lock_file", disk.flock),
            (view_journal, "SHORTEN_BYTES", self.shorten_at_bytes),
            (sequence_journal, "SHORTEN_AT_BYTES", self.shorten_at_bytes),
            (sink_journal, "_SHORTEN_AT_BYTES", self.shorten_at_bytes),
            (threads, "call_in_thread", self._call_in_thread),
            (threads, "start_loop", self._start_loop),
            (process_control, "exit_now", self._exit_now),
            (process_control, "kill_self", kernel.die),
            (process_control, "send_signal", self._send_signal),
            (process_control, "state_of", self._state_of),
            (process_control, "cpu_s_of", lambda pid: 0.0),
            (process_control, "run_ns_of", lambda pid: None),
            (process_control, "watch_waits", lambda: lambda: 0.0),
            (snapshot, "Fork", self._fork),
            (time, "monotonic", lambda: kernel.now),
            (time, "time", lambda: _EPOCH_S + kernel.now),
            (time, "time_ns", lambda: int((_EPOCH_S + kernel.now) * 1e9)),
            (time, "thread_time", self._thread_time),
            (time, "sleep", self._sleep),
            (idle_time, "watch", self._watch_idle_time),
            (os, "getpid", _pid),
            (secrets, "token_bytes", self._tokens.randbytes),
            (secrets, "token_hex", lambda count: self._tokens.randbytes(count).hex()),
            (_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        ]

    # Threads, forks and processes.

    async def _call_in_thread(self, call: Callable[..., Any], *values: Any, abandon_on_cancel: bool = False) -> Any:
        await trio.sleep(self._rng.uniform(0, _THREAD_MAX_S))
        result = call(*values)
        await trio.sleep(self._rng.uniform(0, _THREAD_MAX_S))
        return result

    def _start_loop(self, run: Callable[[], Awaitable[None]], name: str) -> _LoopThread:
        self.kernel.spawn(run)
        return _LoopThread()

    def _thread_time(self) -> float:
        """Return the time that this thread has worked: none, or in some worlds a second more with each call."""
        self._thread_s += self._call_s
        return self._thread_s

    def _sleep(self, seconds: float) -> None:
        """Let time pass that the process which runs is at work: it does not return to its loop."""
        self.kernel.clock.jump(seconds)
        if (process := running.get()) is not None:
            process.busy_s += seconds

    def _watch_idle_time(self) -> Callable[[], float]:
        process, kernel = running.get(), self.kernel
        assert process is not None
        before_s = kernel.now - process.busy_s
        return lambda: kernel.now - process.busy_s - before_s

    def _fork(self, stream: Any, whose: Any) -> _SimulatedFork:
        return _SimulatedFork(stream, self._rng)

    def _exit_now(self, status: int) -> None:
        process = running.get()
        assert process is not None
        self.kernel.end(process, status)
        raise Killed

    def _send_signal(self, pidfd: int, number: int) -> None:
        process = self.by_pidfd.get(pidfd)
        if process is None or process.is_dead:
            raise ProcessLookupError
        self.kernel.end(process, -int(number))

    def _state_of(self, pid: int) -> str | None:
        process = self.kernel.processes.get(pid)
        return None if process is None else "T" if process.is_stopped else "S"


async def _wait_readable(sock: Any) -> None:
    await (sock.wait(True) if isinstance(sock, SimulatedSocket) else trio.lowlevel.wait_readable(sock))


async def _wait_writable(sock: Any) -> None:
    await (sock.wait(False) if isinstance(sock, SimulatedSocket) else trio.lowlevel.wait_writable(sock))


def _notify_closing(sock: Any) -> None:
    if not isinstance(sock, SimulatedSocket):
        trio.lowlevel.notify_closing(sock)


def _pid() -> int:
    process = running.get()
    return 1 if process is None else process.pid
