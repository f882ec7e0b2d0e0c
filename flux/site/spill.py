"""Spill: rows that are not read soon, and are more than a pool holds, wait in files.

A copy in transfer is sent nothing until its lane is opened, so the rows for it pile up in the buffers of its producers.
Then they pile up at its own site until it has caught up. What exceeds a pool is written to a file and mapped into
memory from there: the system may use the memory for something else, and brings back what is read. The file has no name:
nothing is left of it when the rows are released or the process dies.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..exchange.edge_bodies import EdgeBodies, LaneBody, rows_of_edges
from ..exchange.rows import Rows
from ..protocols.buffer import Buffer
from ..protocols.fh_cons import FhCons
from ..protocols.inspection import buffered_bodies, pending_bodies, replace_buffered, replace_pending

TRANSFER_POOLS_MAX = 64  # Pools of rows that a producer may buffer for a copy in transfer.
_FILE_MIN_BYTES = 64 << 10  # A file for less than that is not worth it.
_BATCH_BYTES = 4 << 20  # Writing takes time in which nothing else is done.


class Spill:
    """Writes bodies of rows to files in `directory`; `warn` reports that a file could not be written."""

    def __init__(self, directory: Path, warn: Callable[[str], None]) -> None:
        self._directory = directory
        self._warn = warn
        self._is_full = False  # Whether a file could not be written: then rows stay in memory.
        self._excess_rows = 0
        self._left_bytes = 0

    def relieve_buffer(self, buffer: Buffer) -> None:
        """Spill what is buffered only for copies in transfer or catching up."""
        if not buffer.quota_rows:
            self._is_full = False
        elif buffer.rows > buffer.bound_rows:
            bodies = buffered_bodies(buffer)
            kept = sum(_rows_in_memory(body) for body, _ in bodies)
            self._begin(kept - buffer.bound_rows)
            after = [self._spilled(body) if spillable else body for body, spillable in bodies]
            if any(new is not old for new, (old, _) in zip(after, bodies, strict=True)):
                replace_buffered(buffer, after)

    def relieve_pending(self, cons: FhCons, pool_rows: int) -> None:
        """Spill what waits for a copy that catches up, the last first: the operator takes the first next."""
        for cohort, bodies in pending_bodies(cons).items():
            if sum(map(len, bodies)) > pool_rows:
                self._begin(sum(map(_rows_in_memory, bodies)) - pool_rows)
                after = [self._spilled(body) for body in reversed(bodies)][::-1]
                if any(new is not old for new, old in zip(after, bodies, strict=True)):
                    replace_pending(cons, cohort, after)

    def _begin(self, excess_rows: int) -> None:
        self._excess_rows, self._left_bytes = excess_rows, _BATCH_BYTES

    def _spilled(self, body: LaneBody) -> LaneBody:
        """Return the body with its rows in files, or as it is if enough is there."""
        if isinstance(body, Rows):
            return self._spilled_rows(body)
        parts = {edge: self._spilled_rows(rows) for edge, rows in body.parts.items()}
        return body if all(parts[edge] is rows for edge, rows in body.parts.items()) else EdgeBodies(parts, body.token)

    def _spilled_rows(self, rows: Rows) -> Rows:
        if self._excess_rows <= 0 or self._is_full or self._left_bytes < 0 or rows.spilled:
            return rows
        encoded = rows.encode()
        if encoded is None or encoded.size < _FILE_MIN_BYTES:
            return rows
        try:
            mapped = _mapped(self._directory, encoded)
        except OSError as error:
            self._is_full = True
            self._warn(
                f"rows that wait for a copy in transfer cannot be written to {self._directory}: {error}. They stay in "
                f"memory; make room there. When {TRANSFER_POOLS_MAX} pools of rows are buffered, the source waits"
            )
            return rows
        self._excess_rows -= len(rows)
        self._left_bytes -= encoded.size
        return rows.spill(mapped)


def _rows_in_memory(body: LaneBody) -> int:
    return sum(len(rows) for rows in rows_of_edges(body) if not rows.spilled)


def _mapped(directory: Path, data: Any) -> mmap.mmap:
    """Return `data` in a file without a name."""
    with tempfile.TemporaryFile(dir=directory, prefix="kept-", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
