"""Snapshot: the state of a partition as it is at one instant, read while its operator goes on.

What is transferred is of one instant (rule 16), and to copy 200 MB or to pack a million Python objects takes a second
in which the dataflow would stand still. So the process is forked: the child has everything as it was, for the price of
a page table (2 ms with 200 MB in arrays, 18 ms with a million small objects), and the system copies the pages that the
parent changes meanwhile. The child packs the state and writes it to a socket, piece by piece; its parent forwards it
as the link has room. Neither needs memory for the whole.

The child of a process with threads has only the thread that forked, and locks of other threads stay locked. Python's,
the C library's and Arrow's locks are reset after a fork. An operator's `get_state` that waits for a lock or a thread of
its own would wait for ever: a child that gives nothing for `_SILENT_MAX_S` is given up. So is one that was killed, for
want of memory say. The state of that instant is lost then, and another snapshot is taken. It closes the
connections of its parent, because peers must see when that dies; and it dies with its parent.

A fork has its price too: each page that the parent writes to while the child lives is copied then. A copy of little
state costs less: it is tried first, and given up when it turns out to be more (`Snapshotter`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import stat
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Protocol

import msgpack
import numpy as np
import trio

from ...types.errors import FluxError, StateError, from_dict, is_out_of_memory
from ...wire.transfer import CHUNK_BYTES, StateOwner, items, state_chunks

_SILENT_MAX_S = 60.0
_FORKS_LOST_MAX = 3
_LITTLE_BYTES = 8 << 20
_LITTLE_S = 0.03  # Of this thread's time: the load of others says nothing about the state.
_BUFFER_BYTES = 4 << 20  # Of the kernel, which may grant less: what the child gives while its parent is busy.
_PARTS_MAX = 64  # Of one call; the system takes 1,024.
_ERROR_MAX_CHARS = 10_000  # A pipe takes 64 KiB without a reader.
_PR_SET_PDEATHSIG = 1
_NICER = 10


StateValues = Callable[[], Iterable[Any]]


class SnapshotLost(Exception):
    """The fork that read the state was killed or hangs; the next snapshot is of another instant."""


class Snapshot(Protocol):
    """A stream of one instant."""

    async def read(self) -> Any:
        """Return the next chunk of the stream, of at most `CHUNK_BYTES`; None at its end."""

    def close(self) -> None:
        """Drop the rest."""


class Snapshotter:
    """Takes snapshots of the states of one stage's partitions."""

    def __init__(self) -> None:
        self._is_slow = False  # Whether reading a state takes long, however large it is.
        self._forks_left = _FORKS_LOST_MAX

    def note_lost(self, lost: SnapshotLost) -> None:
        """Note that a fork was lost: after the last that may be, the state is copied in place, and rows wait for it."""
        self._forks_left -= 1 if isinstance(lost, ForkKilled) else self._forks_left

    def take(self, values: StateValues, whose: str | StateOwner, may_fork: bool) -> Snapshot:
        """Return a snapshot of `values` as they are now; `whose` says in errors what they are."""
        if not may_fork or not self._forks_left:
            return _Copy(items(values(), whose))
        if not self._is_slow:
            budget = Budget()
            try:
                return _Copy(items(values(), whose, budget.note))
            except TooMuch:
                pass
            finally:
                self._is_slow = budget.time_is_spent()
        try:
            return Fork(items(values(), whose), whose)
        except OSError:
            return _Copy(items(values(), whose))  # The system refuses one more process.


class ForkKilled(SnapshotLost):
    """The fork was killed. Another one may live: a copy in place needs more memory still."""


class TooMuch(Exception):
    """The state is more than little."""


class Budget:
    """What a copy may cost."""

    def __init__(self) -> None:
        self._began_s = time.thread_time()
        self._bytes = 0

    def time_is_spent(self) -> bool:
        return time.thread_time() - self._began_s > _LITTLE_S

    def note(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes > _LITTLE_BYTES or self.time_is_spent():
            raise TooMuch


class _Copy:
    def __init__(self, stream: Iterable[list[memoryview]]) -> None:
        whole = bytearray()
        for parts in stream:
            for part in parts:
                whole += part
        self._chunks = state_chunks(whole)

    async def read(self) -> Any:
        return next(self._chunks, None)

    def close(self) -> None:
        pass


class Fork:
    """This process as it is now, in a child that gives `stream`."""

    def __init__(self, stream: Iterable[list[memoryview]], whose: str | StateOwner) -> None:
        self._whose = whose
        self._out, theirs = socket.socketpair()
        try:
            self._error, error = os.pipe()
        except OSError:
            self._out.close()
            theirs.close()
            raise
        parent = os.getpid()
        try:
            self._pid = os.fork()
            if not self._pid:
                # They are the parent's. The child needs a descriptor, and may not open one more.
                self._out.close()
                os.close(self._error)
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
                _live(parent, stream, theirs, error)
        except OSError:
            self._out.close()
            os.close(self._error)
            raise
        finally:
            theirs.close()
            os.close(error)
        self._out.setblocking(False)

    async def read(self) -> Any:
        chunk = np.empty(CHUNK_BYTES, np.uint8)
        filled = 0
        while filled < CHUNK_BYTES:
            try:
                count = self._out.recv_into(memoryview(chunk[filled:]))  # type: ignore[arg-type]
            except BlockingIOError:
                await self._readable()
                continue
            if not count:
                break
            filled += count
        if not filled:
            self._reap()
        return chunk[:filled] if filled else None

    async def _readable(self) -> None:
        with trio.move_on_after(_SILENT_MAX_S) as patience:
            await trio.lowlevel.wait_readable(self._out)
        if patience.cancelled_caught:
            raise SnapshotLost(
                f"{self._whose}: a fork of the site was to read the state and gave nothing for {_SILENT_MAX_S:g} s. "
                "If get_state waits for a lock or a thread, say `state_in_memory = False` in the operator"
            )

    def _reap(self) -> None:
        """Wait for the child, which has ended; raise what went wrong there."""
        pid, self._pid = self._pid, 0
        _, status = os.waitpid(pid, 0)
        if document := os.read(self._error, 1 << 16):
            raise from_dict(msgpack.unpackb(document))
        if status:
            raise ForkKilled(
                f"{self._whose}: the fork of the site that read the state ended with status "
                f"{os.waitstatus_to_exitcode(status)}. If that was for want of memory, give the site more of it"
            )

    def close(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
        self._out.close()
        os.close(self._error)


def _live(parent: int, stream: Iterable[list[memoryview]], out: socket.socket, error: int) -> NoReturn:
    """In the child: write the stream and exit. No exit handler of the parent may run."""
    code = 0
    try:
        gc.disable()  # It would write to every object, and so copy it.
        os.nice(_NICER)  # Rows have priority over state transfers.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            signal.set_wakeup_fd(-1)
            _close_sockets(out.fileno())
            _write(out, stream)
    except BrokenPipeError:
        pass  # The parent does not want it any more.
    except BaseException as raised:
        code = 1
        if not is_out_of_memory(raised):  # The parent may have the memory: then only this reader is lost.
            _report(raised, error)
    finally:
        os._exit(code)


def _report(raised: BaseException, error: int) -> None:
    """In the child: write what was raised to the pipe `error`; its parent raises it again."""
    known = raised if isinstance(raised, FluxError) else StateError("".join(traceback.format_exception(raised)))
    document = known.to_dict()
    document["message"] = document["message"][:_ERROR_MAX_CHARS]
    with contextlib.suppress(BaseException):
        os.write(error, msgpack.packb(document, unicode_errors="replace"))


def _close_sockets(ours: int) -> None:
    """Close all other sockets: peers see a process die when all holders of its connections have closed them."""
    for text in os.listdir("/proc/self/fd"):
        descriptor = int(text)
        with contextlib.suppress(OSError):  # The descriptor of the directory itself is closed by now.
            if descriptor != ours and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.close(descriptor)


def _write(out: socket.socket, stream: Iterable[list[memoryview]]) -> None:
    for parts in stream:
        while parts:
            sent = out.sendmsg(parts[:_PARTS_MAX])
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = parts[0][sent:]
