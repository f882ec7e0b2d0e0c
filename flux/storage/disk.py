"""Writing files so that a process may die at any moment: whole or not at all, and a full disk is said plainly."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from ..types.errors import FluxError

__all__ = ["append", "disk_error", "replace_file", "sync_directory"]


def append(fd: int, data: bytes | memoryview, length: int) -> None:
    """Write all of `data` at the end of a file of `length` bytes, or leave it as it was and raise `OSError`."""
    view = memoryview(data)
    written = 0
    try:
        while written < len(view):
            written += os.pwrite(fd, view[written:], length + written)
    except OSError:
        # What follows a torn piece could not be read, so it must not stay.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, length)
        raise


def replace_file(path: Path, data: bytes, *, fsync: bool) -> None:
    """Let `path` hold `data`: whoever reads it finds the old or the new content, never a mixture."""
    fresh = path.with_name(f"{path.name}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        append(fd, data, 0)
        if fsync:
            os.fsync(fd)
    finally:
        os.close(fd)
    fresh.rename(path)
    if fsync:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make durable which names a directory has: a file that was renamed is not safe before."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def disk_error(who: str, path: Path, error: OSError, kept: str) -> FluxError:
    """What to raise when the disk did not take something; `kept` says what is safe all the same.

    >>> print(disk_error("flux.sinks.Jsonl", Path("out"), OSError(errno.ENOSPC, "No space left on device"), "All is"))
    flux.sinks.Jsonl cannot write out: No space left on device. All is. Make room there or choose another disk
    """
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = (
        "Make room there or choose another disk" if is_full else "See that it can be written or choose another path"
    )
    return FluxError(f"{who} cannot write {path}: {error.strerror or error}. {kept}. {advice}")
