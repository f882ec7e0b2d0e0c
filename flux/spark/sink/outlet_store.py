"""The layout on disk of output that is kept until Spark has committed it, and how it is read.

A row's position is its place in the output: the first row has position 0. Rows are stored in segments, named after the
position of their first row. ``0000000000000000042.rows`` holds record batches as Arrow serialises them, one after the
other, and ``0000000000000000042.index`` one entry of fixed size for each of them. A batch counts when its entry is
complete. Other files are ``outlet.json`` (run and schema), ``committed`` (the position before which Spark never asks
again) and ``read`` (up to which it has processed rows). Once the stream has ended, there is ``ended``.

One process writes, the egress (see `outlet`). One query reads and deletes what it has committed (see `reader`). It
holds a lock on ``outlet.json``, so that a second one is refused, and does not miss what the first deletes.

This module imports nothing of Flux: a task that reads does not need the rest. It calls the system by way of `calls`
and `lock_file`, so that `flux.simulation` can put a simulated disk in their place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import time
import zlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

CLAIM, COMMITTED, READ, ENDED, LOCK = "outlet.json", "committed", "read", "ended", "writer.lock"
ROWS, INDEX = ".rows", ".index"
_LOCK_RETRY_S = 0.05
_READ_BYTES = 1 << 20  # Of a file whose length is not known.
calls = os
lock_file = fcntl.flock
DIGITS = 19  # Enough for positions of 64 bits, so that the order of names is the order of rows.

# Position of the first row, number of rows, the input sequence numbers (after, upto], offset and number of the bytes,
# their crc32; and the crc32 of the entry.
ENTRY = struct.Struct("<QQQQQQII")


@dataclass(frozen=True)
class OutletEntry:
    """One record batch: its rows, the input that produced them, and its place in the segment."""

    first: int
    rows: int
    after: int
    upto: int
    offset: int
    size_bytes: int
    crc: int

    @property
    def end(self) -> int:
        """The position after its last row."""
        return self.first + self.rows


def pack(entry: OutletEntry) -> bytes:
    fields = (entry.first, entry.rows, entry.after, entry.upto, entry.offset, entry.size_bytes, entry.crc)
    body = ENTRY.pack(*fields, 0)[:-4]
    return body + struct.pack("<I", zlib.crc32(body))


def entries(data: bytes) -> list[OutletEntry]:
    """Return the entries of an index; a torn one at its end does not count."""
    found = []
    for position in range(0, len(data) - ENTRY.size + 1, ENTRY.size):
        *fields, crc = ENTRY.unpack_from(data, position)
        if zlib.crc32(data[position : position + ENTRY.size - 4]) != crc:
            break
        found.append(OutletEntry(*fields))
    return found


def segment(first: int) -> str:
    """Return the name of the segment whose first row is at this position."""
    return f"{first:0{DIGITS}}"


def segments(directory: str) -> list[int]:
    """Return the positions at which the segments begin, in order."""
    names = calls.listdir(directory)
    return sorted(int(name[:DIGITS]) for name in names if name.endswith(INDEX) and name[:DIGITS].isdigit())


def read_json(directory: str, name: str) -> dict[str, Any] | None:
    """Return the content of a small file that is replaced as a whole; None if it does not exist."""
    try:
        content: dict[str, Any] = json.loads(read_from(os.path.join(directory, name), 0))
    except FileNotFoundError:
        return None
    return content


def write_json(directory: str, name: str, content: dict[str, Any]) -> None:
    fresh = os.path.join(directory, f"{name}.new")
    rest = memoryview(json.dumps(content).encode())
    fd = calls.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        written = 0
        while written < len(rest):  # One call may write a part.
            written += calls.pwrite(fd, rest[written:], written)
        calls.fsync(fd)
    finally:
        calls.close(fd)
    calls.rename(fresh, os.path.join(directory, name))


def read_from(path: str, begin: int, length: int | None = None) -> bytes:
    """Return `length` bytes of a file from `begin` on, or all to its end; fewer if it ends before."""
    fd = calls.open(path, os.O_RDONLY | os.O_CLOEXEC)
    content = bytearray()
    try:
        while part := calls.pread(
            fd, _READ_BYTES if length is None else length - len(content), begin + len(content)
        ):  # One call may read a part.
            content += part
    finally:
        calls.close(fd)
    return bytes(content)


def committed_end(directory: str) -> int:
    """Return the position up to which Spark has committed: it never asks again for rows before it."""
    return _position(directory, COMMITTED)


def read_end(directory: str) -> int:
    """Return the position up to which Spark has processed its micro-batches.

    Spark commits a micro-batch when it plans the next one, and plans none before there are rows for it. So more is
    processed than committed; only committed rows may be deleted.
    """
    return max(_position(directory, COMMITTED), _position(directory, READ))


def _position(directory: str, name: str) -> int:
    noted = read_json(directory, name)
    return 0 if noted is None else int(noted["rows"])


def lock_claim(directory: str, timeout_s: float) -> int | None:
    """Return the open claim, locked for one reader until it is closed; None if another has it after `timeout_s`.

    A new run replaces the claim, and with it the lock.
    """
    deadline = time.monotonic() + timeout_s
    fd = calls.open(os.path.join(directory, CLAIM), os.O_RDONLY | os.O_CLOEXEC)
    while True:
        try:
            lock_file(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                calls.close(fd)
                return None
        time.sleep(_LOCK_RETRY_S)


def is_written(directory: str) -> bool:
    """Whether a process has the outlet open to write to it."""
    try:
        fd = calls.open(os.path.join(directory, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        lock_file(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        calls.close(fd)
    return False


def decode(data: bytes, entry: OutletEntry, schema: pa.Schema, path: str) -> pa.RecordBatch:
    if len(data) != entry.size_bytes or zlib.crc32(data) != entry.crc:
        raise OSError(
            f"flux: {path} is damaged: the {entry.rows:,} rows at {entry.first:,} do not match their checksum. A "
            "killed process does not cause this: the disk or another program did"
        )
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


class OutletStore:
    """A reader's view of an outlet: its index entries, up to the last `refresh`."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._entries: dict[int, list[OutletEntry]] = {}  # By segment.

    def refresh(self) -> None:
        """Read the entries written since the last call, and forget deleted segments."""
        present = segments(self.directory)
        self._entries = {first: self._entries.get(first, []) for first in present}
        for first in present:
            # Only the last known segment grows.
            if not self._entries[first] or first >= present[-1] or self._is_open(first, present):
                self._entries[first] = self._entries[first] + self._new_entries(first)

    def _is_open(self, first: int, present: list[int]) -> bool:
        following = present[present.index(first) + 1]
        return self._entries[first][-1].end < following

    def _new_entries(self, first: int) -> list[OutletEntry]:
        known = len(self._entries[first]) * ENTRY.size
        with contextlib.suppress(FileNotFoundError):
            return entries(read_from(self.path(first, INDEX), known))
        return []

    def path(self, first: int, suffix: str) -> str:
        return os.path.join(self.directory, segment(first) + suffix)

    @property
    def end(self) -> int:
        """The position after the last row in the outlet."""
        last = [found[-1].end for found in self._entries.values() if found]
        return max(last, default=0)

    @property
    def begin(self) -> int:
        """The position of the first row that is not deleted."""
        return min((found[0].first for found in self._entries.values() if found), default=0)

    def between(self, start: int, end: int) -> list[tuple[int, OutletEntry]]:
        """Return the entries with rows at positions from `start` up to, but without, `end`, with their segments."""
        found = []
        for first in sorted(self._entries):
            held = self._entries[first]
            if held and first < end and held[-1].end > start:
                low = bisect_right(held, start, key=lambda entry: entry.end)
                high = bisect_left(held, end, key=lambda entry: entry.first)
                found += [(first, entry) for entry in held[low:high]]
        return found

    def sn_at(self, position: int) -> int:
        """Return the highest sequence number whose whole output is known to be before `position`."""
        before = self.between(position - 1, position)
        if not before:
            return 0
        entry = before[-1][1]
        return entry.upto if entry.end == position else entry.after

    def forget(self, position: int) -> None:
        """Delete the segments whose rows are all before `position`, but never the last row, which marks the end."""
        for first in sorted(self._entries)[:-1]:
            following = min(other for other in self._entries if other > first)
            if following <= position and self._entries[following]:
                for suffix in (ROWS, INDEX):  # The index last: with it, the segment is found again after a crash here.
                    with contextlib.suppress(FileNotFoundError):
                        calls.unlink(self.path(first, suffix))
                del self._entries[first]
