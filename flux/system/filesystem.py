"""File system: the calls by which journals, notes and output are written and read.

`calls` is the module `os`. Modules use it, and the functions here, by way of this module, so that `flux.simulation` can
put a simulated disk in their place.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

__all__ = ["calls", "exists", "is_directory", "lock_file", "make_directory", "read_range", "read_whole", "remove"]

calls = os


def lock_file(fd: int) -> None:
    """Lock an open file until it is closed; `BlockingIOError` if another process has it locked."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_whole(path: Path) -> bytes:
    """Return the content of a file."""
    fd = calls.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_range(fd, 0, calls.fstat(fd).st_size)
    finally:
        calls.close(fd)


def read_range(fd: int, begin: int, end: int) -> bytes:
    """Return the bytes of a file from `begin` up to `end`, or up to its end if that comes before.

    One call may read less than it is asked for: 2 GiB at most, and on some file systems any part.
    """
    content = bytearray()
    while part := calls.pread(fd, end - begin - len(content), begin + len(content)):
        content += part
    return bytes(content)


def exists(path: Path) -> bool:
    """Return whether something has this name."""
    try:
        calls.stat(path)
    except FileNotFoundError:
        return False
    return True


def is_directory(path: Path) -> bool:
    """Return whether it is a directory."""
    return exists(path) and stat.S_ISDIR(calls.stat(path).st_mode)


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Make a directory and those above it, as far as they are not there."""
    if not exists(path):
        make_directory(path.parent)
        with contextlib.suppress(FileExistsError):
            calls.mkdir(path, mode)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        calls.unlink(path)
