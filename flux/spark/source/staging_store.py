"""Staged attempts on disk: their files, the journal of published batches, and how they are read back.

The file of an attempt is ``staged/<query>/<batch>/<partition>-<attempt>.arrow``, the Arrow IPC stream that the task
sent; its name ends in ``.part`` until it is complete. The journal has a record for each published batch, with the
attempts that count. It has another when the batch is done, that is, received by every live copy, and one when the
query has ended. So an ingress that is killed and restarted on the same directory yields again what was not done.

Two records are on the disk before Spark gets its answer: that a batch is done, and the end of the query. Spark repeats
neither. A journal that lost them with the power of the machine would give a later batch the place of an earlier one.
That a batch is published may get lost: Spark then commits it again.
This module does not know sockets or the event loop.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa

from ...storage.journal import Journal, reading

# By default Spark sends batches of 10,000 rows. The ingress is faster with fewer and larger ones, until they no
# longer fit the processor's cache.
BATCH_ROWS_MIN = 16 * 1024
BATCH_ROWS_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one partition, as commit names it."""

    partition: int
    name: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Published:
    """A batch id of a query, with the attempts that make it up in partition order."""

    query: str
    batch_id: int
    attempts: tuple[Attempt, ...]


class StagingStore:
    """The staging directory: attempts are added, batches are published once, and removed when they are done."""

    def __init__(self, directory: Path) -> None:
        self._root = directory / "staged"
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = directory / "staging.journal"
        self._size = 0
        self.undone: dict[tuple[str, int], Published] = {}
        # Spark has one batch of a query in flight at a time and commits in order, so one number is enough.
        self._done_upto: dict[str, int] = {}
        self._ended: dict[str, str | None] = {}
        self._read_journal()

    def path(self, query: str, batch_id: int, partition: int, attempt: str) -> Path:
        """Return the path of an attempt's finished file, and create its folder."""
        folder = self._root / query / str(batch_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / f"{partition}-{attempt}.arrow"

    def is_done(self, query: str, batch_id: int) -> bool:
        return batch_id <= self._done_upto.get(query, -1)

    @property
    def last_done(self) -> int:
        """The last batch that is done; -1 if there is none."""
        return max(self._done_upto.values(), default=-1)

    def missing(self, batch: Published) -> Attempt | None:
        """Return an attempt that commit names but that is missing or incomplete here; else None."""
        for attempt in batch.attempts:
            path = self._root / batch.query / str(batch.batch_id) / f"{attempt.partition}-{attempt.name}.arrow"
            if not path.is_file() or path.stat().st_size != attempt.size_bytes:
                return attempt
        return None

    def publish(self, batch: Published) -> None:
        """Journal the attempts of the batch, and remove its other attempts and those of earlier batches."""
        attempts = [[a.partition, a.name, a.rows, a.size_bytes] for a in batch.attempts]
        self._write("published", batch.query, batch.batch_id, attempts)
        self.undone[batch.query, batch.batch_id] = batch
        self._remove_leftovers(batch)

    def finish(self, batch: Published) -> None:
        """Journal that every live copy has the batch, and remove its files."""
        self._write("done", batch.query, batch.batch_id, fsync=True)
        self.undone.pop((batch.query, batch.batch_id), None)
        self._done_upto[batch.query] = max(batch.batch_id, self._done_upto.get(batch.query, -1))
        self.drop(batch.query, batch.batch_id)

    def drop(self, query: str, batch_id: int) -> None:
        """Remove all files staged for a batch. Mapped files stay readable until the last reference is dropped."""
        shutil.rmtree(self._root / query / str(batch_id), ignore_errors=True)

    def end(self, run: str, error: str | None) -> None:
        """Journal the end of the query in this run. A later run on the same directory is not affected."""
        self._write("end", run, error, fsync=True)
        self._ended[run] = error

    def has_ended(self, run: str) -> bool:
        return run in self._ended

    def error(self, run: str) -> str | None:
        return self._ended.get(run)

    def read(self, batch: Published) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch in order, mapped from its files, in record batches of an efficient size."""
        folder = self._root / batch.query / str(batch.batch_id)
        paths = [folder / f"{attempt.partition}-{attempt.name}.arrow" for attempt in batch.attempts]
        return resize(_read_mapped(paths))

    def _remove_leftovers(self, batch: Published) -> None:
        named = {f"{attempt.partition}-{attempt.name}.arrow" for attempt in batch.attempts}
        for folder in (self._root / batch.query).glob("*"):
            batch_id = int(folder.name)
            if batch_id == batch.batch_id:
                for path in folder.iterdir():
                    if path.name not in named:
                        path.unlink(missing_ok=True)
            # Spark has one batch of a query in flight at a time, so it never commits an earlier one. A task that
            # still writes one keeps its file open; its rename fails, and the attempt does not count.
            elif batch_id < batch.batch_id and (batch.query, batch_id) not in self.undone:
                shutil.rmtree(folder, ignore_errors=True)

    def _write(self, *record: Any, fsync: bool = False) -> None:
        # Opened for each of the few records of a micro-batch, so that there is no file to close at the end.
        journal = Journal.reopen(self._path, self._size)
        try:
            journal.append(msgpack.packb(record), fsync=fsync)
            self._size = journal.size
        finally:
            journal.close()

    def _read_journal(self) -> None:
        journal, records = Journal.open(self._path, fsync=True)
        self._size = journal.size
        journal.close()
        for record in records:
            with reading(self._path, record):
                self._apply(*msgpack.unpackb(record.content))

    def _apply(self, event: str, name: str, *fields: Any) -> None:
        match event, fields:
            case "end", (error,):
                self._ended[name] = error
            case "published", (int(batch_id), attempts):
                batch = Published(name, batch_id, tuple(Attempt(*attempt) for attempt in attempts))
                self.undone[name, batch_id] = batch
            case "done", (int(batch_id),):
                self.undone.pop((name, batch_id), None)
                self._done_upto[name] = max(batch_id, self._done_upto.get(name, -1))
            case _:
                raise ValueError(
                    f"expected that a batch is published or done, or the end, got {event!r:.80} {fields!r:.80}"
                )


def _read_mapped(paths: list[Path]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            yield from reader


def resize(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge small batches and split large ones, in order; a batch of suitable size is not copied."""
    pending: list[pa.RecordBatch] = []
    pending_rows = 0
    for batch in batches:
        if pending and pending_rows + batch.num_rows > BATCH_ROWS_MAX:
            yield _concat(pending)
            pending, pending_rows = [], 0
        if batch.num_rows:
            pending.append(batch)
            pending_rows += batch.num_rows
        if pending_rows >= BATCH_ROWS_MIN:
            yield from _split(_concat(pending))
            pending, pending_rows = [], 0
    if pending:
        yield _concat(pending)


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # Into equal slices, so that the last is not small.
    count = math.ceil(batch.num_rows / BATCH_ROWS_MAX)
    rows = math.ceil(batch.num_rows / count)
    for offset in range(0, batch.num_rows, rows):
        yield batch.slice(offset, rows)


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
