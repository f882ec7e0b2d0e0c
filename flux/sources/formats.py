"""File formats, read as record batches from any place: Parquet by rows, CSV and lines of JSON by bytes.

A *place* in a file is a number: of rows in a Parquet file, of bytes in a text. Readers yield batches with the place
after each. A text is read in chunks that end with a record, so every place but the last is the start of a record.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from ..types.errors import FluxError
from ..types.normalize import describe_columns, normalize_batch, normalize_schema

CHUNK_BYTES = 1 << 20
RECORD_MAX_BYTES = 64 << 20
PARQUET_BATCH_ROWS = 32 * 1024

Placed = tuple[pa.RecordBatch, int]


class Format(Protocol):
    """A file format, and how it is read."""

    suffixes: tuple[str, ...]
    grows: bool  # Whether records may be appended to a file.

    def schema(self, path: Path) -> pa.Schema:
        """Return the columns of a file."""

    def end(self, path: Path) -> int:
        """Return the place after all that the file holds now."""

    def read(self, path: Path, schema: pa.Schema, place: int, upto: int, last: bool) -> Iterator[Placed]:
        """Yield the records in [place, upto); a last line without an end is a record only if `last` is set."""


class ParquetFormat:
    """Parquet files, which do not grow."""

    suffixes: tuple[str, ...] = (".parquet", ".pq")
    grows = False

    def schema(self, path: Path) -> pa.Schema:
        return pq.read_schema(path)

    def end(self, path: Path) -> int:
        return int(pq.read_metadata(path).num_rows)

    def read(self, path: Path, schema: pa.Schema, place: int, upto: int, last: bool) -> Iterator[Placed]:
        with pq.ParquetFile(path) as file:
            found = normalize_schema(file.schema_arrow)
            if not found.equals(schema):
                raise other_columns(path, found, schema)
            groups, position = _groups_from(file.metadata, place)
            for batch in file.iter_batches(PARQUET_BATCH_ROWS, groups):
                start, stop = max(0, place - position), min(batch.num_rows, upto - position)
                position += batch.num_rows
                if start < stop:
                    yield _under(schema, normalize_batch(batch.slice(start, stop - start))), min(position, upto)
            if position < upto:
                raise _shorter(path)


class TextFormat:
    """What CSV and lines of JSON have in common: records that end with a line."""

    title: str
    grows = True

    def end(self, path: Path) -> int:
        return path.stat().st_size

    def read(self, path: Path, schema: pa.Schema, place: int, upto: int, last: bool) -> Iterator[Placed]:
        with path.open("rb") as file:
            if place == 0:
                begin = self.begin(path, file, schema, last)
                if begin is None:
                    return
                place = begin
            file.seek(place)
            rest = b""
            while place + len(rest) < upto:
                more = file.read(min(CHUNK_BYTES, upto - place - len(rest)))
                if not more:
                    raise _shorter(path)
                chunk = rest + more
                whole = len(chunk) if last and place + len(chunk) == upto else self.whole(chunk)
                rest = chunk[whole:]
                _check_record(path, place, rest)
                if whole:
                    rows = self.parse(path, chunk[:whole], schema, place)
                    place += whole
                    if rows is not None:
                        yield rows, place

    def begin(self, path: Path, file: io.BufferedReader, schema: pa.Schema, last: bool) -> int | None:
        """Check the start of a file; return the place of its first record, None if the header is not complete yet."""
        return 0

    def whole(self, chunk: bytes) -> int:
        """Return how many bytes of a chunk that begins with a record are whole records."""
        return chunk.rfind(b"\n") + 1

    def parse(self, path: Path, chunk: bytes, schema: pa.Schema, place: int) -> pa.RecordBatch | None:
        """Return the rows of whole records; None if there are none."""
        if not chunk.strip():
            return None
        try:
            table = self.table(chunk, schema)
        except pa.ArrowException as error:
            raise FluxError(
                f"Files: {path} cannot be read as {self.title} with the columns {describe_columns(schema)}, between "
                f"bytes {place:,} and {place + len(chunk):,}: {error}. Correct the file, or give schema=..."
            ) from error
        batches = table.combine_chunks().to_batches()
        return _under(schema, batches[0]) if batches else None

    def table(self, chunk: bytes, schema: pa.Schema | None) -> pa.Table:
        """Return the records of a chunk, with the schema or with inferred types."""
        raise NotImplementedError

    def first_chunk(self, path: Path) -> bytes:
        """Return records from the start of a file, to infer its columns."""
        with path.open("rb") as file:
            chunk = file.read(CHUNK_BYTES)
            return chunk if len(chunk) < CHUNK_BYTES else chunk[: self.whole(chunk)]


class CsvFormat(TextFormat):
    """Comma-separated values with a line of names; a quoted value may hold line breaks."""

    title = "csv"
    suffixes: tuple[str, ...] = (".csv",)

    def schema(self, path: Path) -> pa.Schema:
        return self.table(self.first_chunk(path), None).schema

    def whole(self, chunk: bytes) -> int:
        if b'"' not in chunk:
            return super().whole(chunk)
        # A line break ends a record only outside quotes: after an even number of them.
        octets = np.frombuffer(chunk, dtype=np.uint8)
        outside = np.cumsum(octets == ord('"')) % 2 == 0
        ends = np.flatnonzero((octets == ord("\n")) & outside)
        return int(ends[-1]) + 1 if len(ends) else 0

    def begin(self, path: Path, file: io.BufferedReader, schema: pa.Schema, last: bool) -> int | None:
        header = b""
        while not self.whole(header) and (line := file.readline(RECORD_MAX_BYTES)):
            header += line
            _check_record(path, 0, header)
        if not self.whole(header) and not (last and header):
            return None
        try:
            names = self.table(header.rstrip(b"\r\n") + b"\n", None).column_names
        except pa.ArrowException as error:
            raise FluxError(f"Files: the line of names of {path} cannot be read: {error}") from error
        if names != schema.names:
            raise FluxError(
                f"Files: {path} has the columns {', '.join(names)}; the first file had {', '.join(schema.names)}. "
                "Files that are read together have the same columns in the same order"
            )
        return len(header)

    def table(self, chunk: bytes, schema: pa.Schema | None) -> pa.Table:
        names = None if schema is None else schema.names
        return pyarrow.csv.read_csv(
            io.BytesIO(chunk),
            pyarrow.csv.ReadOptions(use_threads=False, block_size=len(chunk) + 1, column_names=names),
            pyarrow.csv.ParseOptions(newlines_in_values=True),
            pyarrow.csv.ConvertOptions(column_types=schema),
        )


class JsonlFormat(TextFormat):
    """One JSON object in each line."""

    title = "jsonl"
    suffixes: tuple[str, ...] = (".jsonl", ".ndjson", ".json")

    def schema(self, path: Path) -> pa.Schema:
        return self.table(self.first_chunk(path), None).schema

    def table(self, chunk: bytes, schema: pa.Schema | None) -> pa.Table:
        behaviour = "infer" if schema is None else "error"
        return pyarrow.json.read_json(
            io.BytesIO(chunk),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
            pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=behaviour),
        )


FORMATS: dict[str, Format] = {"parquet": ParquetFormat(), "csv": CsvFormat(), "jsonl": JsonlFormat()}


def other_columns(path: Path, found: pa.Schema, expected: pa.Schema) -> FluxError:
    """Return the error for a file whose columns differ from those of the first."""
    return FluxError(
        f"Files: {path} has the columns {describe_columns(found)}; the first file had {describe_columns(expected)}. "
        "Files that are read together have the same columns"
    )


def _groups_from(metadata: pq.FileMetaData, place: int) -> tuple[list[int], int]:
    """Return the row groups that hold rows from `place` on, and the number of rows before them."""
    position = 0
    for index in range(metadata.num_row_groups):
        rows = metadata.row_group(index).num_rows
        if position + rows > place:
            return list(range(index, metadata.num_row_groups)), position
        position += rows
    return [], position


def _shorter(path: Path) -> FluxError:
    return FluxError(
        f"Files: {path} is shorter than what was read of it before: it was cut or replaced, and its rows cannot be "
        "read again. Files may grow or be added while they are read, but not change"
    )


def _check_record(path: Path, place: int, rest: bytes) -> None:
    if len(rest) > RECORD_MAX_BYTES:
        raise FluxError(
            f"Files: {path} has a record of more than {RECORD_MAX_BYTES:,} bytes at byte {place:,}. Is there a quote "
            "that is not closed, or no end of line?"
        )


def _under(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
