"""Simulated disk: files in memory, with what is written and what is synced, for the processes of one machine.

It has the calls of `os` that `flux.system.filesystem` names. A process that dies in the middle of a write leaves a part
of it. What was written survives the death of a process. A loss of power takes what was not synced: see `lose_power`.
In some worlds a call reads or writes less than it was asked to, as those of `os` may.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .doom import DISK
from .kernel import Kernel, running

_FIRST_FD = 1_000_000  # No descriptor of the real system.
_FULL_SLEEPS = 3
_CHOPPY_WORLDS = 0.3
_CUT_BYTES = 400  # What a file may lose: some records.
_WAITS_FOR_ROOM = (".journal", ".journal.new")  # A sink without room is an error, and ends the run.


@dataclass(eq=False)
class _Inode:
    number: int
    data: bytearray = field(default_factory=bytearray)
    synced: bytes | None = None  # None: never.
    is_directory: bool = False
    locked_by: OpenFile | None = None
    shared_by: dict[OpenFile, None] = field(default_factory=dict)


@dataclass(eq=False)
class OpenFile:
    disk: SimulatedDisk
    fd: int
    path: str
    inode: _Inode

    def abandon(self) -> None:
        self.disk.forget(self)


class SimulatedDisk:
    """The files of one machine."""

    def __init__(self, kernel: Kernel, seed: str) -> None:
        self._kernel = kernel
        self._rng = random.Random(f"{seed} disk")
        self._names: dict[str, _Inode] = {"/": _Inode(0, is_directory=True)}
        self._synced_names: dict[str, _Inode] = dict(self._names)
        self._open: dict[int, OpenFile] = {}
        self._next_fd = _FIRST_FD
        self._inodes = 1
        self._full_for = 0  # Attempts to write that fail.
        self._fails_read = False
        self.failed_reads = 0  # Those that did.
        self.cuts = 0  # Files that lost their ends.
        self._tails = random.Random(f"{seed} tails of files")
        self._sizes = random.Random(f"{seed} sizes")
        self._is_choppy = self._sizes.random() < _CHOPPY_WORLDS

    # The calls of `os`.

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        name = os.fspath(path)
        inode = self._names.get(name)
        if inode is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
            self._effect(f"create {name}")
            inode = self._new(name)
        elif flags & os.O_TRUNC and inode.data:
            self._effect(f"truncate {name}")
            inode.data.clear()
        fd = self._next_fd
        self._next_fd += 1
        opened = self._open[fd] = OpenFile(self, fd, name, inode)
        process = running.get()
        if process is not None:
            process.owned[opened] = None
        return fd

    def close(self, fd: int) -> None:
        if fd < _FIRST_FD:
            os.close(fd)
        elif fd in self._open:
            opened = self._open[fd]
            self.forget(opened)
            process = running.get()
            if process is not None:
                process.owned.pop(opened, None)

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        opened = self._open_file(fd)
        if self._fails_read:
            self._fails_read = False
            self.failed_reads += 1
            self._kernel.note("disk", f"cannot read {opened.path}")
            raise OSError(errno.EIO, "Input/output error", opened.path)
        there = bytes(opened.inode.data[offset : offset + count])
        return there[: self._transferred(len(there))]

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        opened = self._open_file(fd)
        content = bytes(data[: self._transferred(len(data))])
        if self._full_for and opened.path.endswith(_WAITS_FOR_ROOM):
            self._full_for -= 1
            raise OSError(errno.ENOSPC, "No space left on device", opened.path)
        dies = self._effect(f"write {opened.path} {len(content)} at {offset}")
        if dies == "torn":
            content = content[: self._rng.randrange(len(content) + 1)]
        self._put(opened.inode, content, offset)
        if dies is not None:
            self._kernel.die()
        return len(content)

    def ftruncate(self, fd: int, length: int) -> None:
        opened = self._open_file(fd)
        self._effect(f"truncate {opened.path} to {length}")
        data = opened.inode.data
        del data[length:]
        data.extend(bytes(length - len(data)))

    def fsync(self, fd: int) -> None:
        opened = self._open_file(fd)
        self._effect(f"sync {opened.path}")
        if opened.inode.is_directory:
            self._sync_names(opened.path)
        else:
            opened.inode.synced = bytes(opened.inode.data)

    def fstat(self, fd: int) -> Any:
        return _status(self._open_file(fd).inode)

    def stat(self, path: Any) -> Any:
        name = os.fspath(path)
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        return _status(self._names[name])

    def rename(self, old: Any, new: Any) -> None:
        dies = self._effect(f"rename {os.fspath(old)} to {os.fspath(new)}")
        inode = self._names[os.fspath(new)] = self._names.pop(os.fspath(old))
        for opened in self._open.values():
            if opened.inode is inode:
                opened.path = os.fspath(new)
        if dies is not None:
            self._kernel.die()

    def unlink(self, path: Any) -> None:
        name = os.fspath(path)
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        self._effect(f"remove {name}")
        del self._names[name]

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        self._effect(f"make {os.fspath(path)}")
        inode = self._new(os.fspath(path))
        inode.is_directory = True
        if running.get() is None:
            self._synced_names[os.fspath(path)] = inode  # The world was made with it.

    def listdir(self, path: Any) -> list[str]:
        name = os.fspath(path)
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        return [os.path.basename(each) for each in self._names if each != "/" and os.path.dirname(each) == name]

    def flock(self, fd: int, operation: int) -> None:
        """Lock a file for this opener alone, or shared with others; never wait."""
        opened = self._open_file(fd)
        others = opened.inode.shared_by.keys() - {opened}
        is_shared = bool(operation & fcntl.LOCK_SH)
        if opened.inode.locked_by not in (None, opened) or (others and not is_shared):
            raise BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable")
        if is_shared:
            opened.inode.shared_by[opened] = None
        else:
            opened.inode.locked_by = opened

    def lock_file(self, fd: int) -> None:
        """Take the place of `flock`."""
        self.flock(fd, fcntl.LOCK_EX)

    # Faults, and what tests read.

    def fill(self) -> None:
        """Have the next writes to journals fail, for want of room."""
        self._full_for = self._rng.randint(1, _FULL_SLEEPS)

    def fail_read(self) -> None:
        """Have the next read fail."""
        self._fails_read = True

    def cut(self, path: str) -> None:
        """Have a file lose its end, and nothing that was synced."""
        if (inode := self._names.get(path)) is not None:
            content = inode.data
            least = max(len(inode.synced or b""), len(content) - _CUT_BYTES)
            del content[self._tails.randint(min(least, len(content)), len(content)) :]
            self.cuts += 1
            self._kernel.note("disk", f"{path} loses its end, and has {len(content)} bytes")

    def content(self, path: str | Path) -> bytes:
        """Return the content of a file; empty if it is not there."""
        inode = self._names.get(os.fspath(path))
        return b"" if inode is None else bytes(inode.data)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files, by name."""
        return {name: len(inode.data) for name, inode in self._names.items() if not inode.is_directory}

    def lose_power(self) -> None:
        """Keep of each file and each name what was synced; of the rest, what chance leaves."""
        names = dict(self._synced_names)
        for name, inode in self._names.items():
            if self._rng.random() < 0.5:
                names[name] = inode
        names = {name: inode for name, inode in names.items() if all(map(names.__contains__, _above(name)))}
        for inode in {id(inode): inode for inode in names.values()}.values():
            inode.locked_by = None
            inode.shared_by.clear()
            synced = inode.synced or b""
            if inode.is_directory or bytes(inode.data) == synced:
                continue
            cut = self._rng.randrange(len(inode.data) + 1)
            inode.data = bytearray(synced) if cut < len(synced) else inode.data[:cut]
        self._names, self._synced_names = names, dict(names)

    def forget(self, opened: OpenFile) -> None:
        """Close an open file, and release its lock."""
        self._open.pop(opened.fd, None)
        opened.inode.shared_by.pop(opened, None)
        if opened.inode.locked_by is opened:
            opened.inode.locked_by = None

    def _effect(self, text: str) -> str | None:
        return self._kernel.effect(DISK, text)

    def _transferred(self, count: int) -> int:
        """Return how much of so many bytes a call reads or writes."""
        return self._sizes.randint(1, count) if self._is_choppy and count else count

    def _open_file(self, fd: int) -> OpenFile:
        if fd not in self._open:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return self._open[fd]

    def _new(self, name: str) -> _Inode:
        inode = self._names[name] = _Inode(self._inodes)
        self._inodes += 1
        return inode

    def _put(self, inode: _Inode, content: bytes, offset: int) -> None:
        data = inode.data
        data.extend(bytes(max(0, offset - len(data))))
        data[offset : offset + len(content)] = content

    def _sync_names(self, directory: str) -> None:
        inside = [name for name in {*self._names, *self._synced_names} if os.path.dirname(name) == directory]
        for name in inside:
            if name in self._names:
                self._synced_names[name] = self._names[name]
            else:
                del self._synced_names[name]


def _above(name: str) -> Iterator[str]:
    """Yield the directories in which a name is, and which it is lost with."""
    while (name := os.path.dirname(name)) != "/":
        yield name


def _status(inode: _Inode) -> Any:
    kind = stat.S_IFDIR if inode.is_directory else stat.S_IFREG
    return SimpleNamespace(st_size=len(inode.data), st_ino=inode.number, st_dev=1, st_mode=kind | 0o700)
