"""Segments: in which order pieces of files were read, in a journal that outlives the ingress.

A *segment* is a piece of one file that was read without another file in between. Each has a number, and says which file
it is of: not by name alone, because files are renamed, removed and created anew, but by inode and content. A file is
known by its *key*, the number of its first segment. Segments whose rows every copy has are never read again: of them
only the state of each file is kept.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack

from ..storage.journal import Journal, reading
from .text_file import Prefix

SHORTEN_AT_BYTES = 1 << 20  # Below this the journal of segments is left alone.

_BASE, _SEGMENT, _STATUS = "base", "segment", "status"

# Of a file: it has its name; it has lost its name, and was read to its end then; it is never read again.
NAMED, ROTATED, DONE = "named", "rotated", "done"


@dataclass(frozen=True, slots=True)
class FileState:
    """A file, what was known of its content when it was first seen under this inode, and what was read of it.

    `known` is of the file as it is on the disk, and `read` of what it holds.
    """

    path: str
    device: int
    inode: int
    known: Prefix
    read: Prefix
    status: str = NAMED

    @property
    def identity(self) -> tuple[int, int]:
        """Its device and inode."""
        return self.device, self.inode

    def to_plain(self) -> list[Any]:
        """Return the fields in msgpack types."""
        return [self.path, self.device, self.inode, *self.known, *self.read, self.status]

    @classmethod
    def from_plain(cls, fields: list[Any]) -> FileState:
        """Return what `to_plain` was called on."""
        path, device, inode, known, known_check, place, check, status = fields
        return cls(path, device, inode, Prefix(known, known_check), Prefix(place, check), status)


@dataclass(frozen=True, slots=True)
class FileSegment:
    """The piece of the file `key` from `file.read` up to `end`, which is unknown for the last segment."""

    number: int
    key: int
    file: FileState
    end: Prefix | None = None


class Segments:
    """The segments that were read, in the journal at `path`; of released ones only the states of files are kept."""

    def __init__(self, path: Path) -> None:
        self._journal, records = Journal.open(path)
        self._known: deque[FileSegment] = deque()
        self._files: dict[int, FileState] = {}  # As they were left by segments that are no longer known.
        self._status: dict[int, str] = {}  # Of those that have lost their names.
        self._shorten_at = SHORTEN_AT_BYTES
        self._released = 0  # Segments before this one are never read again.
        self.next_number = 0
        for record in records:
            with reading(path, record):
                self._read_record(*msgpack.unpackb(record.content))

    @property
    def current(self) -> FileSegment | None:
        """The segment that is being read."""
        return self._known[-1] if self._known else None

    def from_number(self, number: int) -> list[FileSegment]:
        """Return the segments from `number` on."""
        return [segment for segment in self._known if segment.number >= number]

    def files_before(self, number: int) -> dict[int, FileState]:
        """Return the state of each file when segment `number` began; its status is that of now."""
        files = dict(self._files)
        for segment in self._known:
            if segment.number < number:
                assert segment.end is not None
                files[segment.key] = replace(segment.file, read=segment.end)
        return {key: replace(file, status=self.status(key)) for key, file in files.items()}

    def status(self, key: int) -> str:
        """Return the status of a file."""
        return self._status.get(key, NAMED)

    def begin(self, key: int | None, file: FileState, ended: Prefix | None) -> FileSegment:
        """Journal, before its rows are emitted, that another file is read, and what was read of the last one."""
        segment = FileSegment(self.next_number, self.next_number if key is None else key, file)
        self._journal.append(_packed(segment, ended))
        self._add(segment, ended)
        return segment

    def note(self, key: int, status: str) -> None:
        """Journal the status of a file."""
        if self.status(key) != status:
            self._status[key] = status
            self._journal.append(msgpack.packb([_STATUS, key, status]))

    def release(self, number: int) -> None:
        """Note that the segments before `number` are never replayed: every copy has rows of segment `number`."""
        self._released = max(self._released, number)
        if self._journal.size > self._shorten_at and self._known[0].number < self._released:
            self._shorten()

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def _shorten(self) -> None:
        self._files = self.files_before(self._released)
        self._known = deque(self.from_number(self._released))
        files = [[key, *file.to_plain()] for key, file in self._files.items()]
        records, ended = [msgpack.packb([_BASE, self._released, files])], None
        for segment in self._known:
            records.append(_packed(segment, ended))
            ended = segment.end
        live = {segment.key for segment in self._known} & self._status.keys()
        records += [msgpack.packb([_STATUS, key, self._status[key]]) for key in sorted(live)]
        self._journal.shorten(records, self._journal.size)
        self._shorten_at = max(SHORTEN_AT_BYTES, 2 * self._journal.size)

    def _read_record(self, kind: str, *fields: Any) -> None:
        if kind == _BASE:
            self.next_number, files = fields
            self._files = {key: FileState.from_plain(plain) for key, *plain in files}
            self._status = {key: file.status for key, file in self._files.items() if file.status != NAMED}
        elif kind == _STATUS:
            key, self._status[key] = fields
        elif kind == _SEGMENT:
            ended, key, plain = fields
            segment = FileSegment(self.next_number, key, FileState.from_plain(plain))
            self._add(segment, None if ended is None else Prefix(*ended))
        else:
            raise ValueError(f"expected a record of {_BASE!r}, {_STATUS!r} or {_SEGMENT!r}, got {kind!r}")

    def _add(self, segment: FileSegment, ended: Prefix | None) -> None:
        if self._known:
            self._known[-1] = replace(self._known[-1], end=ended)
        self._known.append(segment)
        self.next_number = segment.number + 1


def _packed(segment: FileSegment, ended: Prefix | None) -> bytes:
    packed: bytes = msgpack.packb([_SEGMENT, ended, segment.key, segment.file.to_plain()])
    return packed
