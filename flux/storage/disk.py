"""Crash-safe file writes: whole or not at all. A full disk is a plain error."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from ..types.errors import FluxError

__all__ = ["append", "disk_error", "replace_file", "sync_directory"]


def append(fd: int, data: bytes | memoryview, length: int) -> None:
    """Write all of `data` at the end of a file of `length` bytes, or leave the file unchanged and raise `OSError`."""
    view = memoryview(data)
    written = 0
    try:
        while written < len(view):
            written += os.pwrite(fd, view[written:], length + written)
    except OSError:
        # Anything after a torn write could not be read, so the torn write must not stay.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, length)
        raise


def replace_file(path: Path, data: bytes, *, fsync: bool) -> None:
    """Replace the content of `path` with `data`: a reader gets the old or the new content, never a mixture."""
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
    """Make the names in a directory durable: a renamed file is not safe before."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def disk_error(writer: str, path: Path, error: OSError, kept: str) -> FluxError:
    """Return the error to raise when a write fails; `kept` says what is safe nevertheless.

    >>> print(disk_error("flux.sinks.Jsonl", Path("out"), OSError(errno.ENOSPC, "No space left on device"), "All is"))
    flux.sinks.Jsonl cannot write out: No space left on device. All is. Make room there or choose another disk
    """
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "Make room there or choose another disk" if is_full else "Make it writable or choose another path"
    return FluxError(f"{writer} cannot write {path}: {error.strerror or error}. {kept}. {advice}")
