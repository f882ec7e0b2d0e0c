"""Crash note: the rows that a site's operator is processing, in memory that outlives the process.

An operator may kill its process: a bug in native code, or more memory than there is. The other copy is given the same
rows and dies of them too. To detect that, a site notes what it is about to process; the driver reads the note of a dead
site. The note is a file, or pages shared with the exit monitor. It is mapped into memory, so writing it costs no system
call.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from ..storage.disk import disk_error
from ..storage.private import private_opener
from ..wire.requests import PlainJob

_HEAD = struct.Struct("<qqqq")  # Whether the operator is busy, the stage, after, upto.
_PARTITIONS_BYTES = 65_536 // 8
_NOTE_BYTES = _HEAD.size + _PARTITIONS_BYTES
SUFFIX = ".work"


@dataclass(frozen=True, kw_only=True)
class Job:
    """Rows (after, upto] of some partitions of a stage."""

    stage: int
    after: int
    upto: int
    partitions: frozenset[int]

    def overlaps(self, other: Job) -> bool:
        """Return whether some row is in both, for a partition in both."""
        same = self.stage == other.stage and bool(self.partitions & other.partitions)
        return same and self.after < other.upto and other.after < self.upto

    def to_plain(self) -> PlainJob:
        """Return the fields for a request."""
        return (self.stage, self.after, self.upto, tuple(sorted(self.partitions)))

    @staticmethod
    def from_plain(plain: PlainJob) -> Job:
        """Return what `to_plain` was called on."""
        stage, after, upto, partitions = plain
        return Job(stage=stage, after=after, upto=upto, partitions=frozenset(partitions))


def note_in(path: Path) -> mmap.mmap:
    """Return a note in a file."""
    try:
        with open(path, "w+b", opener=private_opener) as file:
            # Room is taken now: a page for which the disk has none would kill the process when it is written.
            os.posix_fallocate(file.fileno(), 0, _NOTE_BYTES)
            return mmap.mmap(file.fileno(), 0)
    except OSError as error:
        raise disk_error("the site's note of its work", path, error, "Nothing was processed yet") from error


def shared_note() -> mmap.mmap:
    """Return a note that this process shares with those it forks."""
    return mmap.mmap(-1, _NOTE_BYTES)


class CrashNote:
    """Writes what the operator of a site is processing to a note."""

    def __init__(self, note: mmap.mmap) -> None:
        self._map = note
        self._noted: frozenset[int] = frozenset()

    def begin(self, job: Job) -> None:
        """Note that the operator processes `job` from now on."""
        if job.partitions != self._noted:
            self._noted = job.partitions
            bits = bytearray(_PARTITIONS_BYTES)
            for partition in job.partitions:
                bits[partition >> 3] |= 1 << (partition & 7)
            self._map[_HEAD.size :] = bytes(bits)
        _HEAD.pack_into(self._map, 0, 1, job.stage, job.after, job.upto)

    def end(self) -> None:
        """Note that the operator is idle."""
        _HEAD.pack_into(self._map, 0, 0, 0, 0, 0)


def last_job(path: Path) -> Job | None:
    """Return what the site whose note is in `path` was processing when it died; None if it was idle."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return job_of(content) if len(content) == _NOTE_BYTES else None


def job_of(content: bytes) -> Job | None:
    """Return the job in a note; None if the operator was idle."""
    busy, stage, after, upto = _HEAD.unpack_from(content)
    if not busy:
        return None
    bits = content[_HEAD.size :]
    partitions = frozenset(8 * i + bit for i, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1)
    return Job(stage=stage, after=after, upto=upto, partitions=partitions)
