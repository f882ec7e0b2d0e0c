"""Feeding: how much of what the machine sends goes into one frame, and what of it waits on disk.

A lane that is opened for a copy that was just built begins far behind: what came while the state was on its way may be
many times what a lane carries otherwise. It goes in pieces, in the order of sequence numbers, each of them a message of
its own, and a piece is made when the link is ready for it: neither the loop nor the memory of this process is taken
up by the whole.

Until that lane is opened nobody reads those rows, and when they have come they wait for their turn. What is more than a
pool holds is written to a file and mapped into memory from there: the system may take the memory for something else,
and brings back what is read. The file has no name any more: nothing is left of it when the rows are released or the
process dies.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..exchange.edge_bodies import rows_of_edges
from ..exchange.rows import Rows
from ..protocols.buffer import Buffer
from ..protocols.messages import OutputRun, PendingInput

TRANSFER_POOLS_MAX = 64  # As many pools of rows may be kept for a site to which a copy is on its way.
_SPILLED_MIN_BYTES = 64 << 10  # A file for less than that is not worth it.
_AT_ONCE_BYTES = 4 << 20  # To write takes time, in which nothing else is done.


def spillable_runs(buffer: Buffer) -> list[OutputRun]:
    """Runs that nobody needs but those to whom a copy comes, or who catch up: they are not wanted soon."""
    if not buffer.quota_rows:
        return []
    needed = min([floor for dest, floor in buffer.floors.items() if dest not in buffer.quota_rows], default=0)
    return [run for run in buffer.runs if run.upto <= needed]


class Spill:
    """Rows that are not wanted soon and are more than a pool: in files in `directory`."""

    def __init__(self, directory: Path, warn: Callable[[str], None]) -> None:
        self._directory = directory
        self._warn = warn
        self._is_full = False  # Whether a file could not be written: then rows stay in memory.

    def relieve(self, buffer: Buffer) -> None:
        """Write what is kept for a copy that is on its way, or catches up, and for nobody else."""
        if not buffer.quota_rows:
            self._is_full = False
        elif buffer.rows > buffer.bound_rows:
            kept = sum(len(rows) for run in buffer.runs for rows in rows_of_edges(run.body) if not rows.spilled)
            self._write(
                [rows for run in spillable_runs(buffer) for rows in rows_of_edges(run.body)], kept - buffer.bound_rows
            )

    def relieve_frames(self, pending: Iterable[Sequence[PendingInput]], pool_rows: int) -> None:
        """Write what has come for a copy that catches up, but for what it takes next."""
        for waiting in pending:
            kept = sum(len(frame.body) for frame in waiting)
            if kept > pool_rows:
                last = [frame.body for frame in reversed(waiting)]
                spilled = sum(len(body) for body in last if body.spilled)
                self._write(last, kept - spilled - pool_rows)

    def _write(self, bodies: Sequence[Rows], excess_rows: int) -> None:
        """Write bodies until there are so many rows less in memory, or it is others' turn."""
        written = 0
        for body in bodies:
            if excess_rows <= 0 or self._is_full or written > _AT_ONCE_BYTES:
                return
            encoded = None if body.spilled else body.encode()
            if encoded is not None and encoded.size >= _SPILLED_MIN_BYTES:
                excess_rows -= len(body)
                written += encoded.size
                self._spill(body, encoded)

    def _spill(self, rows: Rows, encoded: Any) -> None:
        try:
            rows.spill(_mapped(self._directory, encoded))
        except OSError as error:
            self._is_full = True
            self._warn(
                f"rows that wait for a copy on its way cannot be written to {self._directory}: {error}. They stay in "
                f"memory; make room there. When {TRANSFER_POOLS_MAX} pools of rows are kept, the source waits"
            )


def _mapped(directory: Path, data: Any) -> mmap.mmap:
    """`data` in a file without a name."""
    with tempfile.TemporaryFile(dir=directory, prefix="kept-", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
