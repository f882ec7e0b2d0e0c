"""Journal: a file of records that grows at its end and outlives the process that writes it.

Each record is its length, the crc32 of its content, the crc32 of these two, and the content. A killed process leaves
at most one record unfinished, the last. It is cut off when the journal is opened again; no effect had depended on it.
Any other mismatch with a checksum is damage, and an error.

A written record survives the death of the process, because the operating system has it. It survives the loss of power
only with `fsync`, which costs milliseconds for each record. A journal has one writer: the file is locked while a
process has it open.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..protocols.messages import VERSION
from ..system import filesystem
from ..types.errors import FluxError
from .disk import append, append_when_room, disk_error, sync_directory

__all__ = ["InUse", "Journal", "Record", "reading"]

_BEGIN = b"flux journal "
MAGIC = _BEGIN + b"%d\n" % VERSION  # What is in records changes with the protocol.
_HEAD = struct.Struct("<III")
_CHECKED_BYTES = 8  # Of the head: length and crc32 of the content.
_KEPT = "What the journal held before is safe"


class InUse(FluxError):
    """The journal is open in another live process."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record as read: its position in the file, and its content."""

    position: int
    content: bytes


class Journal:
    """The journal at `path`, open for appending; `size` is its length in bytes."""

    def __init__(self, path: Path, fd: int, size: int, fsync: bool) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self._fsync = fsync

    @classmethod
    def open(cls, path: Path, *, fsync: bool = False) -> tuple[Journal, list[Record]]:
        """Open or create the journal at `path`; return it and the records it holds."""
        try:
            fd = _open_locked(path)
            try:
                return cls._read(path, fd, fsync)
            except BaseException:
                filesystem.calls.close(fd)
                raise
        except OSError as error:
            raise disk_error("the journal", path, error, _KEPT) from error

    @classmethod
    def reopen(cls, path: Path, size: int) -> Journal:
        """Open a journal of this size again, to append to it; its records are not read."""
        try:
            return cls(path, _open_locked(path), size, False)
        except OSError as error:
            raise disk_error("the journal", path, error, _KEPT) from error

    @classmethod
    def _read(cls, path: Path, fd: int, fsync: bool) -> tuple[Journal, list[Record]]:
        data = filesystem.read_whole(path)
        if len(data) < len(MAGIC) and MAGIC.startswith(data):
            # The file is new, or the process died while it wrote the header.
            append(fd, MAGIC, 0)
            if fsync:
                filesystem.calls.fsync(fd)
                sync_directory(path.parent)
            return cls(path, fd, len(MAGIC), fsync), []
        found = list(_records(path, data))
        size = found[-1].position + _HEAD.size + len(found[-1].content) if found else len(MAGIC)
        filesystem.calls.ftruncate(fd, size)
        return cls(path, fd, size, fsync), found

    def append(self, content: bytes, *, fsync: bool | None = None) -> int:
        """Write one record and return its position; from then on the record outlives this process."""
        try:
            append_when_room(self._fd, _frame(content), self.size, self.path)
            if self._fsync if fsync is None else fsync:
                filesystem.calls.fsync(self._fd)
        except OSError as error:
            raise disk_error("the journal", self.path, error, _KEPT) from error
        position = self.size
        self.size += _HEAD.size + len(content)
        return position

    def shorten(self, first: Iterable[bytes], keep_from: int, *, fsync: bool | None = None) -> int:
        """Replace all records before position `keep_from` with the records `first`.

        A new file takes the old one's name when it is whole; with `fsync`, whole on the disk. Return the number of
        bytes by which later records moved forward.
        """
        is_synced = self._fsync if fsync is None else fsync
        fresh = self.path.with_name(f"{self.path.name}.new")
        head = MAGIC + b"".join(map(_frame, first))
        try:
            filesystem.remove(fresh)
            fd = _open_locked(fresh)
            try:
                append_when_room(fd, head, 0, fresh)
                append_when_room(fd, filesystem.read_range(self._fd, keep_from, self.size), len(head), fresh)
                if is_synced:
                    filesystem.calls.fsync(fd)
                filesystem.calls.rename(fresh, self.path)
            except OSError:
                filesystem.calls.close(fd)
                raise
            if is_synced:
                sync_directory(self.path.parent)
        except OSError as error:
            raise disk_error("the journal", fresh, error, _KEPT) from error
        filesystem.calls.close(self._fd)
        self._fd = fd
        forward = keep_from - len(head)
        self.size -= forward
        return forward

    def close(self) -> None:
        """Close the file and release its lock."""
        filesystem.calls.close(self._fd)


@contextlib.contextmanager
def reading(path: Path, record: Record) -> Iterator[None]:
    """Raise a `FluxError` that names the journal if what `record` holds is not what its reader expects.

    Its checksum is right: it is the record of another journal, or of a development version with the same number.
    """
    try:
        yield
    except FluxError:
        raise
    except Exception as error:
        raise FluxError(
            f"the journal {path} has a record of another shape at byte {record.position}: {type(error).__name__}: "
            f"{error}. Nothing was changed. It is the journal of another part of Flux, or of another release: give "
            "each its own place, or run the flow again from an empty directory"
        ) from error


def _open_locked(path: Path) -> int:
    fd = filesystem.calls.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        filesystem.lock_file(fd)
    except BlockingIOError:
        filesystem.calls.close(fd)
        raise InUse(
            f"the journal {path} is in use by a process that still lives. Its successor must not write to it as "
            "well: end that process first"
        ) from None
    return fd


def _frame(content: bytes) -> bytes:
    checked = struct.pack("<II", len(content), zlib.crc32(content))
    return checked + struct.pack("<I", zlib.crc32(checked)) + content


def _records(path: Path, data: bytes) -> Iterator[Record]:
    """Yield the complete records; raise if anything but the end of the last one is missing."""
    if data.startswith(_BEGIN) and not data.startswith(MAGIC):
        raise _other_release(path, data[len(_BEGIN) :].partition(b"\n")[0])
    if not data.startswith(MAGIC):
        raise _damaged(path, 0, "it does not begin as a journal does")
    position = len(MAGIC)
    while position + _HEAD.size <= len(data):
        length, content_crc, head_crc = _HEAD.unpack_from(data, position)
        if zlib.crc32(data[position : position + _CHECKED_BYTES]) != head_crc:
            raise _damaged(path, position, "the head of a record does not fit its checksum")
        content = data[position + _HEAD.size : position + _HEAD.size + length]
        if len(content) < length:
            return
        if zlib.crc32(content) != content_crc:
            raise _damaged(path, position, "a record does not fit its checksum")
        yield Record(position, content)
        position += _HEAD.size + length


def _other_release(path: Path, version: bytes) -> FluxError:
    return FluxError(
        f"the journal {path} is of another release: its version is {version.decode('ascii', 'replace'):.20}, and this "
        f"release of Flux reads version {VERSION}. Nothing was changed. Finish the run with the release that began it, "
        "or run the flow again from an empty directory"
    )


def _damaged(path: Path, position: int, what: str) -> FluxError:
    return FluxError(
        f"the journal {path} is damaged at byte {position}: {what}. A killed process does not cause that: the disk or "
        "another program did. The run cannot resume from it; run the flow again"
    )
