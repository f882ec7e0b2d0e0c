"""Output that is kept on disk until Spark has committed it: how it lies there, and how it is found again.

A row's position is its place in the output: the first row has position 0. Rows lie in segments, named after the
position of their first row: ``0000000000000000042.rows`` holds record batches as Arrow serialises them, one behind the
other, and ``0000000000000000042.index`` one entry of fixed size for each of them. A batch counts when its entry is
there. Beside the segments are ``outlet.json`` (which run, and the schema), ``committed`` (behind which position Spark
will never ask again), ``read`` (behind which it has not begun) and, once the stream has ended, ``ended``.

One process writes, the egress (see `outlet`); one query reads and deletes what it has committed (see `reader`). This
module imports nothing of Flux: a task that reads has no need of the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import zlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

CLAIM, COMMITTED, READ, ENDED, LOCK = "outlet.json", "committed", "read", "ended", "writer.lock"
ROWS, INDEX = ".rows", ".index"
DIGITS = 19  # Positions are 64 bits: with as many digits, the order of names is the order of rows.

# Position of the first row, rows, the sequence numbers (after, upto] they are the output of, where the bytes begin, how
# many there are, their crc32; and the crc32 of all that.
ENTRY = struct.Struct("<QQQQQQII")


@dataclass(frozen=True)
class OutletEntry:
    """One record batch: its rows, the input that they are the output of, and where it lies in its segment."""

    first: int
    rows: int
    after: int
    upto: int
    offset: int
    size_bytes: int
    crc: int

    @property
    def end(self) -> int:
        """The position behind its last row."""
        return self.first + self.rows


def packed(entry: OutletEntry) -> bytes:
    fields = (entry.first, entry.rows, entry.after, entry.upto, entry.offset, entry.size_bytes, entry.crc)
    body = ENTRY.pack(*fields, 0)[:-4]
    return body + struct.pack("<I", zlib.crc32(body))


def entries(data: bytes) -> list[OutletEntry]:
    """The entries of an index; one that is torn, at its end, does not count."""
    found = []
    for position in range(0, len(data) - ENTRY.size + 1, ENTRY.size):
        *fields, crc = ENTRY.unpack_from(data, position)
        if zlib.crc32(data[position : position + ENTRY.size - 4]) != crc:
            break
        found.append(OutletEntry(*fields))
    return found


def segment(first: int) -> str:
    """The name of the segment whose first row is at this position."""
    return f"{first:0{DIGITS}}"


def segments(directory: str) -> list[int]:
    """The positions at which the segments begin, in order."""
    names = os.listdir(directory)
    return sorted(int(name[:DIGITS]) for name in names if name.endswith(INDEX) and name[:DIGITS].isdigit())


def read_json(directory: str, name: str) -> dict[str, Any] | None:
    """The content of a small file that is replaced as a whole; None if there is none."""
    try:
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            content: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    return content


def write_json(directory: str, name: str, content: dict[str, Any]) -> None:
    fresh = os.path.join(directory, f"{name}.new")
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, os.path.join(directory, name))


def committed(directory: str) -> int:
    """The position behind which Spark will not ask again."""
    return _position(directory, COMMITTED)


def done(directory: str) -> int:
    """The position up to which micro-batches of Spark are done with.

    Spark commits a micro-batch when it plans the next one, and plans none before there are rows for it. So what is done
    with is more than what is committed; but only that may be deleted.
    """
    return max(_position(directory, COMMITTED), _position(directory, READ))


def _position(directory: str, name: str) -> int:
    noted = read_json(directory, name)
    return 0 if noted is None else int(noted["rows"])


def is_written(directory: str) -> bool:
    """Whether a process has the outlet open to write to it."""
    try:
        fd = os.open(os.path.join(directory, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def decoded(data: bytes, entry: OutletEntry, schema: pa.Schema, path: str) -> pa.RecordBatch:
    if len(data) != entry.size_bytes or zlib.crc32(data) != entry.crc:
        raise OSError(
            f"flux: {path} is damaged: the {entry.rows:,} rows at {entry.first:,} do not fit their checksum. A process "
            "that is killed does not do that: the disk or another program did"
        )
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


class OutletStore:
    """What a reader knows of an outlet: all entries that it has, read as they come."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._entries: dict[int, list[OutletEntry]] = {}  # By segment.

    def look(self) -> None:
        """Read what was written since the last time, and forget what was deleted."""
        present = segments(self.directory)
        self._entries = {first: self._entries.get(first, []) for first in present}
        for first in present:
            # Only the last one of those that were known grows.
            if not self._entries[first] or first >= present[-1] or self._is_open(first, present):
                self._entries[first] = self._entries[first] + self._news(first)

    def _is_open(self, first: int, present: list[int]) -> bool:
        following = present[present.index(first) + 1]
        return self._entries[first][-1].end < following

    def _news(self, first: int) -> list[OutletEntry]:
        known = len(self._entries[first]) * ENTRY.size
        with contextlib.suppress(FileNotFoundError), open(self.path(first, INDEX), "rb") as file:
            file.seek(known)
            return entries(file.read())
        return []

    def path(self, first: int, suffix: str) -> str:
        return os.path.join(self.directory, segment(first) + suffix)

    @property
    def end(self) -> int:
        """The position behind the last row that is there."""
        last = [found[-1].end for found in self._entries.values() if found]
        return max(last, default=0)

    @property
    def begin(self) -> int:
        """The position of the first row that is still there."""
        return min((found[0].first for found in self._entries.values() if found), default=0)

    def between(self, start: int, end: int) -> list[tuple[int, OutletEntry]]:
        """The entries with rows at the positions from `start` up to, and without, `end`, with their segments."""
        found = []
        for first in sorted(self._entries):
            held = self._entries[first]
            if held and first < end and held[-1].end > start:
                low = bisect_right(held, start, key=lambda entry: entry.end)
                high = bisect_left(held, end, key=lambda entry: entry.first)
                found += [(first, entry) for entry in held[low:high]]
        return found

    def sn_at(self, position: int) -> int:
        """The highest sequence number of which the whole output is before `position`, as far as is known."""
        before = self.between(position - 1, position)
        if not before:
            return 0
        entry = before[-1][1]
        return entry.upto if entry.end == position else entry.after

    def forget(self, position: int) -> None:
        """Delete the segments whose rows are all before `position`, but never the last row: it says how far all is."""
        for first in sorted(self._entries)[:-1]:
            following = min(other for other in self._entries if other > first)
            if following <= position and self._entries[following]:
                for suffix in (ROWS, INDEX):  # By its index a segment is found, should this process be killed between.
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self.path(first, suffix))
                del self._entries[first]
