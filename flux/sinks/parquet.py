"""The sink `Parquet`: the output as Parquet files in a directory.

A Parquet file cannot grow, and a file for each small batch would be slow to read. So `write` appends the rows to a
journal in the same directory and forces it to the disk. When enough rows are buffered, or they have waited long enough,
they become a file. It is written under another name, forced to the disk and renamed; only then is the journal
truncated. An egress that finds rows in the journal first makes their file: it has the same name and the same rows,
whether the last egress had written it or not.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq

from ..storage.disk import disk_error, make_durable_directory, sync_directory
from ..storage.journal import Journal, Record, reading
from ..types.errors import FluxError, PlanError, SinkError
from ..wire.batches import batch_bytes
from .claim import Claim, changed_output, foreign_output, taken_over
from .sink import Sink, check_alike

_NAME = "flux.sinks.Parquet"
_JOURNAL = ".flux-open"
_KEPT = "The output that was written before is safe and whole"
_JOURNAL_MAX_BYTES = 64 << 20  # At this size the buffered rows become a file, however few they are.

# Sequence numbers are 64 bits: with as many digits, the order of names is the order of rows.
_DIGITS = 19


class Parquet(Sink):
    """Write the rows to files ``part-<first sn>-<last sn>.parquet`` in `directory`: in order, each exactly once.

    The order of names is the order of rows. A file has at most `file_rows` rows, and rows become readable within about
    `flush_every_s` seconds; they are on the disk (fsync) before they are acknowledged. If the whole run is killed, rows
    that were not readable yet are left in ``.flux-open``, which says whose they are; the end of the stream removes it.

    The step before it must declare its `output`.

    A directory that holds anything else is an error; with `overwrite`, the files of another run are removed. One to
    which another run writes is an error in any case, and so are files that are removed before the stream has ended.
    """

    blocks = True

    def __init__(
        self,
        directory: str | os.PathLike[str],
        file_rows: int = 256 * 1024,
        flush_every_s: float = 1.0,
        overwrite: bool = False,
    ) -> None:
        if isinstance(file_rows, bool) or not isinstance(file_rows, int) or file_rows < 1:
            raise PlanError(f"{_NAME}: file_rows must be a whole number of rows above 0; it is {file_rows!r}")
        if isinstance(flush_every_s, bool) or not isinstance(flush_every_s, int | float) or not flush_every_s > 0:
            raise PlanError(f"{_NAME}: flush_every_s must be a number of seconds above 0; it is {flush_every_s!r}")
        self.flush_every_s = float(flush_every_s)
        self._directory = Path(directory)
        self._file_rows = file_rows
        self._overwrite = overwrite
        self._claim: Claim | None = None
        self._journal: Journal | None = None
        self._journal_inode = (0, 0)
        self._parts = 0
        self._upto = 0
        self._flushed_upto = 0
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._schema: pa.Schema | None = None

    def expect(self, schema: pa.Schema | None) -> None:
        if schema is None:
            raise PlanError(
                f"{_NAME}: all files have the same columns, which must be known before the first row: declare "
                "`output` with the operator, map or flat_map before the sink; in a select, the type of each function"
            )

    def open(self, directory: Path) -> int | None:
        try:
            self._claim = Claim(directory)
            if (ended_upto := self._claim.ended_upto) is not None:
                return ended_upto
            make_durable_directory(self._directory)
            self._open_directory(self._claim)
        except OSError as error:
            raise disk_error(_NAME, self._directory, error, _KEPT) from error
        self.flush()
        return self._upto

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        if self._schema is not None and rows.schema != self._schema and self.takes(rows.schema, self._schema):
            self.flush()  # Another file begins; the journal has rows of one schema.
        elif self._schema is not None:
            check_alike(self._schema, rows.schema)
        self._schema = rows.schema
        assert self._journal is not None
        self._check_owner()
        try:
            self._journal.append(msgpack.packb([upto, batch_bytes(rows)]))
        except FluxError as error:
            raise FluxError(f"{_NAME}: {error}") from error
        self._buffer(rows, upto)
        if self._buffered_rows >= self._file_rows or self._journal.size > _JOURNAL_MAX_BYTES:
            self.flush()

    def takes(self, schema: pa.Schema, before: pa.Schema | None) -> bool:
        """Further columns make another file; those before stay, as they are."""
        return before is not None and all(field in list(schema) for field in before)

    def flush(self) -> None:
        """Write the buffered rows to files."""
        if not self._buffered:
            return
        self._check_owner()
        self._parts += self._write_parts(pa.Table.from_batches(self._buffered))
        self._write_base(self._upto)
        self._flushed_upto = self._upto
        self._buffered, self._buffered_rows = [], 0

    def close(self) -> None:
        if self._journal is None:
            return
        assert self._claim is not None
        self.flush()
        self._check_owner()
        parts = len([*self._directory.glob("part-*.parquet")])
        if parts != self._parts:
            raise self._changed(
                f"has {parts:,} part files, but {self._parts:,} were written: some were removed or added"
            )
        try:
            self._claim.end(self._upto)
            (self._directory / _JOURNAL).unlink()
        except OSError as error:
            raise disk_error(_NAME, self._directory, error, _KEPT) from error
        self._journal.close()
        self._journal = None

    # The state of the directory when an egress starts.

    def _open_directory(self, claim: Claim) -> None:
        found = [path for path in self._directory.iterdir() if not path.name.startswith(_JOURNAL)]
        journal_path = self._directory / _JOURNAL
        if not journal_path.exists():
            if claim.is_made:
                raise self._changed("was removed, or its .flux-open was,")
            if found and not self._overwrite:
                raise foreign_output(_NAME, self._directory, f"holds {found[0].name!r} already")
        self._journal, records = Journal.open(journal_path, fsync=True)
        try:
            run, position, self._parts, owner = _noted(journal_path, records)
            if run == claim.run:
                self._resume(position, journal_path, records[1:])
            elif claim.is_made:
                raise taken_over(_NAME, self._directory, owner)
            else:
                self._replace(found, len(records) > 1, owner)
        except BaseException:
            self._journal.close()
            raise
        for path in self._directory.glob(".part-*"):
            path.unlink()  # Half written.
        self._note_inode()
        claim.make()

    def _resume(self, position: int, journal_path: Path, records: list[Record]) -> None:
        self._upto = self._flushed_upto = position
        for record in records:
            with reading(journal_path, record):
                upto, encoded = msgpack.unpackb(record.content)
                rows = _decode(encoded)
            self._buffer(rows, upto)

    def _replace(self, found: list[Path], rows_left: bool, owner: str | None) -> None:
        """Remove the output of another run, if there is some and it may be removed."""
        if (found or rows_left) and not self._overwrite:
            what = f"{found[0].name!r} of another run" if found else "rows of another run that was killed"
            raise foreign_output(_NAME, self._directory, f"holds {what}{'' if owner is None else f' ({owner})'}")
        for path in found:
            if not path.name.startswith(("part-", ".part-")):
                raise PlanError(
                    f"{_NAME}: {self._directory} holds {path.name!r}, which no run of Flux wrote. overwrite=True "
                    "removes only part-*.parquet; choose another directory"
                )
        for path in found:
            path.unlink()
        self._parts = 0
        self._write_base(0)

    # Whose directory it is.

    def _check_owner(self) -> None:
        """Raise if the directory is not this run's any more."""
        try:
            inode = self._inode()
        except FileNotFoundError:
            raise self._changed("was removed, or its .flux-open was,") from None
        if inode != self._journal_inode:
            raise taken_over(_NAME, self._directory, None)

    def _inode(self) -> tuple[int, int]:
        stat = (self._directory / _JOURNAL).stat()
        return stat.st_dev, stat.st_ino

    def _note_inode(self) -> None:
        self._journal_inode = self._inode()

    def _changed(self, what: str) -> SinkError:
        return changed_output(_NAME, self._directory, what)

    # Rows and files.

    def _buffer(self, rows: pa.RecordBatch, upto: int) -> None:
        self._buffered.append(rows)
        self._buffered_rows += rows.num_rows
        self._upto = upto

    def _write_base(self, position: int) -> None:
        """Replace the rows in the journal by the owner and the position after which the next ones come."""
        assert self._journal is not None and self._claim is not None
        base = msgpack.packb([self._claim.run, position, self._parts, self._claim.owner])
        self._journal.shorten([base], self._journal.size)
        self._note_inode()

    def _write_parts(self, table: pa.Table) -> int:
        """Write the rows to files; return how many."""
        name = f"part-{self._flushed_upto + 1:0{_DIGITS}}-{self._upto:0{_DIGITS}}"
        starts = range(0, table.num_rows, self._file_rows)
        width = len(str(len(starts)))
        for number, start in enumerate(starts):
            of_several = f"-{number:0{width}}" if len(starts) > 1 else ""
            self._write_part(self._directory / f"{name}{of_several}.parquet", table.slice(start, self._file_rows))
        try:
            sync_directory(self._directory)
        except OSError as error:
            raise disk_error(_NAME, self._directory, error, _KEPT) from error
        return len(starts)

    def _write_part(self, path: Path, table: pa.Table) -> None:
        fresh = path.with_name(f".{path.name}")
        try:
            with fresh.open("wb") as file:
                pq.write_table(table, file)
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise disk_error(_NAME, path, error, _KEPT) from error


def _decode(encoded: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(encoded)) as reader:
        return reader.read_next_batch()


def _noted(journal_path: Path, records: list[Record]) -> tuple[str, int, int, str | None]:
    """Return the run whose rows are in the journal, the position before them, the files written, and the owner."""
    if not records:
        return "", 0, 0, None
    with reading(journal_path, records[0]):
        run, position, parts, owner = msgpack.unpackb(records[0].content)
        if not isinstance(run, str):
            raise TypeError(f"expected the name of a run, got {run!r:.100}")
        return run, int(position), int(parts), owner
