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
import itertools
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


class Damaged(OSError):
    """A part of the output does not fit its checksum, or is not there."""


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


def entries(data: bytes, path: str = "") -> list[OutletEntry]:
    """Return the entries of an index; a torn one at its end does not count, and any other is damage."""
    found = []
    for position in range(0, len(data) - ENTRY.size + 1, ENTRY.size):
        *fields, crc = ENTRY.unpack_from(data, position)
        if zlib.crc32(data[position : position + ENTRY.size - 4]) != crc:
            if position + ENTRY.size < len(data):
                raise damaged(path, "an entry before its last does not fit its checksum")
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
    path = os.path.join(directory, name)
    try:
        content: dict[str, Any] = json.loads(read_from(path, 0))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise damaged(path, f"it is not JSON ({error})") from error
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
        lock_file(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        calls.close(fd)
    return False


def damaged(path: str, what: str) -> Damaged:
    return Damaged(
        f"flux: {path} is damaged: {what}. A killed process does not cause this: the disk or another program did. Run "
        "the flow again with an empty directory, and give the query a new checkpointLocation"
    )


def decode(data: bytes, entry: OutletEntry, schema: pa.Schema, path: str) -> pa.RecordBatch:
    if len(data) != entry.size_bytes or zlib.crc32(data) != entry.crc:
        raise damaged(path, f"the {entry.rows:,} rows at {entry.first:,} do not match their checksum")
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


class OutletStore:
    """A reader's view of an outlet: its index entries, up to the last `refresh`."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._entries: dict[int, list[OutletEntry]] = {}  # By segment.

    def refresh(self) -> None:
        """Read the entries written since the last call, and forget deleted segments."""
        present = segments(self.directory)
        known, self._entries = self._entries, {}
        for first, following in itertools.zip_longest(present, present[1:]):
            held = known.get(first, [])
            if following is None or _end(first, held) < following:  # Only the last known segment grows.
                new = self._new_entries(first, len(held))
                if new is None:
                    continue  # It was deleted meanwhile.
                held = held + new
            self._entries[first] = held
            if following is not None and (end := _end(first, held)) != following:
                self._forget_before(end, following)

    def _forget_before(self, end: int, following: int) -> None:
        """Forget the segments up to a gap. They were to be deleted, and a loss of power kept some; or it is damage."""
        if following > committed_end(self.directory):
            raise damaged(self.directory, f"of the rows {end:,} to {following - 1:,} there is no entry in an index")
        self._entries = {}

    def _new_entries(self, first: int, known: int) -> list[OutletEntry] | None:
        """Return the entries of a segment after those that are known; None if it is deleted."""
        path = self.path(first, INDEX)
        try:
            return entries(read_from(path, known * ENTRY.size), path)
        except FileNotFoundError:
            return None

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


def _end(first: int, held: list[OutletEntry]) -> int:
    return held[-1].end if held else first
