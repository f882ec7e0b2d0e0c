"""Text file: a text that is read in chunks, and proof that it is still the text that was read.

A *prefix* of a file is all up to a place in it. Its `check` is a checksum of its first and of its last bytes: a file
that was rotated, truncated or replaced has another one, whatever its name, size and inode are. The check of what was
read is taken from the bytes that were read, so it holds also if the file is changed meanwhile.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..types.errors import FluxError
from .codecs import is_compressed, open_plain

END_BYTES = 1024  # So much is checked of the begin and of the end of a prefix.
CHUNK_BYTES = 1 << 20


class Prefix(NamedTuple):
    """A place in a file, and the check of what is before it: of the first bytes, and of the last."""

    place: int
    check: int


class FileChanged(FluxError):
    """A file is no longer the one that was read: it was truncated or overwritten."""


def changed(path: Path, place: int) -> str:
    """Return what is wrong with a file that was read up to `place` and has other content there now."""
    return f"Files: {path} was read up to {place:,}, and what was read is not in it any more: it was cut or overwritten"


def prefix_of(file: BinaryIO, place: int) -> Prefix:
    """Return the prefix of a file up to `place`; of less, if the file is shorter."""
    file.seek(0)
    head = file.read(min(END_BYTES, place))
    file.seek(max(0, place - END_BYTES))
    return _prefix(place, head, file.read(min(END_BYTES, place)))


def has_prefix(file: BinaryIO, prefix: Prefix) -> bool:
    """Return whether a file begins as one did before; a file with another begin is not read further."""
    file.seek(0)
    head = file.read(min(END_BYTES, prefix.place))
    return zlib.crc32(head) == prefix.check >> 32 and prefix_of(file, prefix.place) == prefix


def _prefix(place: int, head: bytes, tail: bytes) -> Prefix:
    return Prefix(place, zlib.crc32(head) << 32 | zlib.crc32(tail))


class TextFile:
    """The text at `path` from `place` on, open: it is the same one also when it is renamed or removed."""

    def __init__(self, path: Path, place: int = 0) -> None:
        self.path = path
        self.is_compressed = is_compressed(path)
        self._file = open_plain(path)
        self.place = place
        self._file.seek(0)
        self._head = self._file.read(min(END_BYTES, place))
        self._file.seek(max(0, place - END_BYTES))
        self._tail = self._file.read(min(END_BYTES, place))
        self.left = b""  # What was read after `place`.
        self._counted = 0, 1  # A place, and the number of its line.

    @property
    def prefix(self) -> Prefix:
        """What was read."""
        return _prefix(self.place, self._head, self._tail)

    @property
    def stat(self) -> os.stat_result:
        """The size, the inode and the number of names that the open file has now."""
        return os.fstat(self._file.fileno())

    def is_intact(self) -> bool:
        """Return whether the file still begins with what was read."""
        return has_prefix(self._file, self.prefix)

    def first(self, size: int) -> Prefix:
        """Return the prefix of at most `size` bytes that the file has now, of those that a check looks at."""
        return prefix_of(self._file, min(size, END_BYTES))

    def line_at(self, place: int) -> int:
        """Return the number of the line at a place, from 1; what was counted before is not read again."""
        counted, line = self._counted if self._counted[0] <= place else (0, 1)
        self._file.seek(counted)
        while counted < place and (data := self._file.read(min(CHUNK_BYTES, place - counted))):
            counted, line = counted + len(data), line + data.count(b"\n")
        self._counted = counted, line
        return line

    def rewind(self) -> None:
        """Drop what was read and not taken: it is read again."""
        self.left = b""

    def more(self, upto: int | None) -> bool:
        """Read on, at most up to `upto`; return whether there was more. `left` is all that is read and not taken.

        Raise `FileChanged` if it does not follow what was taken.
        """
        position = self.place + len(self.left)
        size = CHUNK_BYTES if upto is None else min(CHUNK_BYTES, upto - position)
        if size <= 0:
            return False
        self._file.seek(position)
        data = self._file.read(size)
        # Checked after the read: a file that is truncated and written anew in between gives bytes of another text.
        if not self.is_compressed and (not data or not self.is_intact()):
            raise FileChanged(changed(self.path, self.place))
        self.left += data
        return bool(data)

    def take(self, size: int) -> None:
        """Move on by `size` bytes of what is left."""
        if len(self._head) < END_BYTES:
            self._head = (self._head + self.left[: min(size, END_BYTES)])[:END_BYTES]
        self._tail = (self._tail + self.left[max(0, size - END_BYTES) : size])[-END_BYTES:]
        self.left = self.left[size:]
        self.place += size

    def close(self) -> None:
        """Close the file."""
        self._file.close()
