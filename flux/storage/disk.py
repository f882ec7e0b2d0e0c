"""Crash-safe file writes: whole or not at all. A full disk is a plain error."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from pathlib import Path

from ..system import filesystem
from ..types.errors import FluxError

__all__ = ["append", "append_when_room", "disk_error", "make_durable_directory", "replace_file", "sync_directory"]

_TRY_AGAIN_S = 0.1
_SAY_AGAIN_S = 30.0


def append(fd: int, data: bytes | memoryview, length: int) -> None:
    """Write all of `data` at the end of a file of `length` bytes, or leave the file unchanged and raise `OSError`."""
    view = memoryview(data)
    written = 0
    try:
        while written < len(view):
            written += filesystem.calls.pwrite(fd, view[written:], length + written)
    except OSError:
        # Anything after a torn write could not be read, so the torn write must not stay.
        with contextlib.suppress(OSError):
            filesystem.calls.ftruncate(fd, length)
        raise


def append_when_room(fd: int, data: bytes | memoryview, length: int, path: Path) -> None:
    """Append as `append` does; while the disk is full, wait for room, and say so on standard error.

    Nothing else is done meanwhile: what depends on the write may not happen before it. State stays in memory.
    """
    said_at_s = -_SAY_AGAIN_S
    while True:
        try:
            append(fd, data, length)
            return
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if time.monotonic() - said_at_s >= _SAY_AGAIN_S:
                said_at_s = time.monotonic()
                sys.stderr.write(
                    f"flux: {path}: {error.strerror}. The run waits for room there, and goes on by itself; make some\n"
                )
                sys.stderr.flush()
        time.sleep(_TRY_AGAIN_S)


def replace_file(path: Path, data: bytes, *, fsync: bool, mode: int = 0o600) -> None:
    """Replace the content of `path` with `data`: a reader gets the old or the new content, never a mixture.

    By default only this user may read it: notes of a run are for the run.
    """
    fresh = path.with_name(f"{path.name}.new")
    fd = filesystem.calls.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        append(fd, data, 0)
        if fsync:
            filesystem.calls.fsync(fd)
    finally:
        filesystem.calls.close(fd)
    filesystem.calls.rename(fresh, path)
    if fsync:
        sync_directory(path.parent)


def make_durable_directory(path: Path, mode: int = 0o777) -> None:
    """Make a directory and those above it, as far as they are not there; its name lasts, and with it what is in it.

    The process that made it may have died before its name was durable, so that is done in any case; above a directory
    that was there before, this user may have nothing to open.
    """
    if not filesystem.exists(path):
        make_durable_directory(path.parent)
        filesystem.make_directory(path, mode)
    with contextlib.suppress(PermissionError):
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: a renamed file is not safe before."""
    fd = filesystem.calls.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        filesystem.calls.fsync(fd)
    finally:
        filesystem.calls.close(fd)


def disk_error(writer: str, path: Path, error: OSError, kept: str) -> FluxError:
    """Return the error to raise when a write, or a read, fails; `kept` says what is safe nevertheless.

    >>> print(disk_error("flux.sinks.Jsonl", Path("out"), OSError(errno.ENOSPC, "No space left on device"), "All is"))
    flux.sinks.Jsonl cannot write out: No space left on device. All is. Make room there or choose another disk
    """
    if error.errno == errno.EIO:
        advice = "The disk or the network to it does not work: look at what the system's log says of it"
        return FluxError(f"{writer} cannot read or write {path}: {error.strerror}. {kept}. {advice}")
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "Make room there or choose another disk" if is_full else "Make it writable or choose another path"
    return FluxError(f"{writer} cannot write {path}: {error.strerror or error}. {kept}. {advice}")
