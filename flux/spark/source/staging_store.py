"""Staged attempts on disk: where they lie, which batches were published, and how they are read back.

The files of an attempt are ``staged/<query>/<batch>/<partition>-<attempt>.arrow``, Arrow IPC streams as the
task sent them; a name ends in ``.part`` until all of it has come. The journal has a line when a batch is published,
with the attempts that count, one when it is done, that is, received by every live copy, and one when the query has
ended. So an ingress that is killed and restarted on the same directory hands out again what was not done, and
knows what was.

The journal is not forced to the disk: it survives the death of the process, not of the machine.
This module knows no socket and no event loop.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

# Spark sends batches of 10,000 rows unless told otherwise. The ingress does better with fewer and larger
# ones, but beyond some point they only leave the processor's cache.
SMALL_ROWS = 16 * 1024
LARGE_ROWS = 64 * 1024


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
    """The staging directory: attempts come in, batches are published once, done ones are removed."""

    def __init__(self, directory: Path) -> None:
        self._root = directory / "staged"
        self._root.mkdir(parents=True, exist_ok=True)
        self._path = directory / "staging-journal.jsonl"
        self.undone: dict[tuple[str, int], Published] = {}
        # Spark has one batch of a query under way at a time and commits in order, so one number says it all.
        self._done_upto: dict[str, int] = {}
        self._ended: dict[str, str | None] = {}
        self._read_journal()

    def path(self, query: str, batch_id: int, partition: int, attempt: str) -> Path:
        """Return where the finished file of an attempt lies; its folder exists afterwards."""
        folder = self._root / query / str(batch_id)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{partition}-{attempt}.arrow"

    def is_done(self, query: str, batch_id: int) -> bool:
        return batch_id <= self._done_upto.get(query, -1)

    def missing(self, batch: Published) -> Attempt | None:
        """Return an attempt that commit names but that is not here in full, if there is one."""
        for attempt in batch.attempts:
            path = self._root / batch.query / str(batch.batch_id) / f"{attempt.partition}-{attempt.name}.arrow"
            if not path.is_file() or path.stat().st_size != attempt.size_bytes:
                return attempt
        return None

    def publish(self, batch: Published) -> None:
        """Journal that these attempts are the batch, and remove all others of it and of earlier batches."""
        attempts = [[a.partition, a.name, a.rows, a.size_bytes] for a in batch.attempts]
        self._note(event="published", query=batch.query, batch=batch.batch_id, attempts=attempts)
        self.undone[batch.query, batch.batch_id] = batch
        self._remove_leftovers(batch)

    def finish(self, batch: Published) -> None:
        """Journal that every live copy has the batch, and remove its files."""
        self._note(event="done", query=batch.query, batch=batch.batch_id)
        self.undone.pop((batch.query, batch.batch_id), None)
        self._done_upto[batch.query] = max(batch.batch_id, self._done_upto.get(batch.query, -1))
        self.drop(batch.query, batch.batch_id)

    def drop(self, query: str, batch_id: int) -> None:
        """Remove all that is staged for a batch. Files that are mapped stay readable until they are let go."""
        shutil.rmtree(self._root / query / str(batch_id), ignore_errors=True)

    def end(self, run: str, error: str | None) -> None:
        """Journal that no more batches come in this run. A later run on the same directory is not ended by it."""
        self._note(event="end", run=run, error=error)
        self._ended[run] = error

    def has_ended(self, run: str) -> bool:
        return run in self._ended

    def error(self, run: str) -> str | None:
        return self._ended.get(run)

    def read(self, batch: Published) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch in order, mapped from its files, as record batches worth their overhead."""
        folder = self._root / batch.query / str(batch.batch_id)
        paths = [folder / f"{attempt.partition}-{attempt.name}.arrow" for attempt in batch.attempts]
        return resized(_mapped(paths))

    def _remove_leftovers(self, batch: Published) -> None:
        named = {f"{attempt.partition}-{attempt.name}.arrow" for attempt in batch.attempts}
        for folder in (self._root / batch.query).glob("*"):
            batch_id = int(folder.name)
            if batch_id == batch.batch_id:
                for path in folder.iterdir():
                    if path.name not in named:
                        path.unlink(missing_ok=True)
            # Spark has one batch of a query under way at a time, so nobody will commit an earlier one. A task
            # that is still writing one keeps its file open and fails, unheard, when it wants to rename it.
            elif batch_id < batch.batch_id and (batch.query, batch_id) not in self.undone:
                shutil.rmtree(folder, ignore_errors=True)

    def _note(self, **line: Any) -> None:
        # Opened for each of the few lines that a micro-batch makes: there is nothing to close, and when.
        with open(self._path, "a", encoding="utf-8") as journal:
            journal.write(json.dumps(line) + "\n")

    def _read_journal(self) -> None:
        if not self._path.exists():
            return
        text = self._path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            # A process that was killed in the middle of a line had not acted on it yet.
            with open(self._path, "r+b") as journal:
                journal.truncate(whole)
        for line in map(json.loads, text[:whole].splitlines()):
            if line["event"] == "end":
                self._ended[line["run"]] = line["error"]
                continue
            key = line["query"], line["batch"]
            if line["event"] == "published":
                self.undone[key] = Published(*key, tuple(Attempt(*a) for a in line["attempts"]))
            else:
                self.undone.pop(key, None)
                self._done_upto[line["query"]] = max(line["batch"], self._done_upto.get(line["query"], -1))


def _mapped(paths: list[Path]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            yield from reader


def resized(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put small batches together and cut large ones, in order; one of fair size is not copied."""
    held: list[pa.RecordBatch] = []
    held_rows = 0
    for batch in batches:
        if held and held_rows + batch.num_rows > LARGE_ROWS:
            yield _together(held)
            held, held_rows = [], 0
        if batch.num_rows:
            held.append(batch)
            held_rows += batch.num_rows
        if held_rows >= SMALL_ROWS:
            yield from _cut(_together(held))
            held, held_rows = [], 0
    if held:
        yield _together(held)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # Into equal pieces, so that no small one remains at the end.
    pieces = math.ceil(batch.num_rows / LARGE_ROWS)
    rows = math.ceil(batch.num_rows / pieces)
    for offset in range(0, batch.num_rows, rows):
        yield batch.slice(offset, rows)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
