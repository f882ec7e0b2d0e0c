"""File formats, read as record batches from any place: Parquet by rows, CSV, lines of JSON and text by bytes.

A *place* in a file is a number: of rows in a Parquet file, of bytes in a text. Readers yield batches with the place
after each. A text is read in chunks that end with a record, so every place but the last is the start of a record.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from ..types.errors import FluxError
from ..types.normalize import describe_columns, normalize_batch, normalize_schema
from .codecs import DAMAGED, open_plain, read_to_the_end
from .text_file import CHUNK_BYTES, Prefix, TextFile

LINE = pa.schema({"line": pa.string()})
RECORD_MAX_BYTES = 64 << 20
PARQUET_BATCH_ROWS = 32 * 1024

_CONVERT_OPTIONS = (
    "check_utf8",
    "null_values",
    "true_values",
    "false_values",
    "decimal_point",
    "strings_can_be_null",
    "quoted_strings_can_be_null",
    "timestamp_parsers",
)


class Malformed(NamedTuple):
    """A record that cannot be read: where it is, its text and what is wrong with it."""

    path: Path
    line: int
    text: str
    error: str


class Placed(NamedTuple):
    """Rows, what was read with them, and the records among them that cannot be read."""

    rows: pa.RecordBatch
    read: Prefix
    malformed: list[Malformed] = []  # noqa: RUF012  # It is not changed.


class ParquetFormat:
    """Parquet files, which do not grow."""

    suffixes: tuple[str, ...] = (".parquet", ".pq")
    grows = False  # Whether records may be appended to a file.

    def schema(self, path: Path) -> pa.Schema:
        """Return the columns of a file."""
        return pq.read_schema(path)

    def check_whole(self, path: Path) -> None:
        """Raise if a file is not whole."""
        pq.read_metadata(path)

    def read(self, path: Path, schema: pa.Schema, place: int, upto: int | None) -> Iterator[Placed]:
        """Yield the rows in [place, upto), or all from `place` on; with each batch, the place after it."""
        with pq.ParquetFile(path) as file:
            found = normalize_schema(file.schema_arrow)
            # The columns may stand in another order: their names say which they are.
            if set(found.names) != set(schema.names) or not _ordered(found, schema).equals(schema):
                raise other_columns(path, found, schema)
            end = file.metadata.num_rows if upto is None else upto
            groups, position = _groups_from(file.metadata, place)
            for batch in file.iter_batches(PARQUET_BATCH_ROWS, groups):
                start, stop = max(0, place - position), min(batch.num_rows, end - position)
                position += batch.num_rows
                if start < stop:
                    rows = normalize_batch(batch.slice(start, stop - start)).select(schema.names)
                    yield Placed(_under(schema, rows), Prefix(min(position, end), 0))


class TextFormat:
    """What CSV and lines of JSON have in common: records that end with a line."""

    title: str
    suffixes: tuple[str, ...]
    grows = True

    def schema(self, path: Path) -> pa.Schema:
        """Return the columns of a file, of which some of the first records may not be readable."""
        chunk = self.first_chunk(path)
        try:
            return self.table(chunk, None).schema
        except pa.ArrowException:
            if not (most := self._readable(chunk)):
                raise
            return self.table(most, None).schema

    def _readable(self, chunk: bytes) -> bytes:
        """Return the records that can be read, from the start of a file; nothing if they are not most of them."""
        names = self.names_end(chunk)
        header, chunk = chunk[:names], chunk[names:]
        readable, malformed = [], 0
        for start, stop, error in self._split(chunk, lambda part: self.table(header + part, None)):
            if error is None:
                readable.append(chunk[start:stop])
            else:
                malformed += 1
        records = sum(len(self.ends(part)) for part in readable)
        return header + b"".join(readable) if records > malformed else b""

    def check_whole(self, path: Path) -> None:
        """Raise if a compressed file is not whole."""
        read_to_the_end(path)

    def read(self, file: TextFile, schema: pa.Schema, upto: int | None, last: bool, skips: bool) -> Iterator[Placed]:
        """Yield the records from the file's place up to `upto`, or to its end.

        A last line without an end is a record only if `last` is set. A record that cannot be read is an error, unless
        `skips` is set.
        """
        file.rewind()
        is_more = file.more(upto)
        if file.place == 0:
            begin = self.begin(file, schema, upto, last)
            if begin is None:
                return
            file.take(begin)
        while is_more or (last and file.left):
            whole = self.whole(file.left) if is_more else len(file.left)
            _check_record(file.path, file.place, file.left[whole:])
            rows, malformed = self._records(file, file.left[:whole], schema, skips)
            file.take(whole)
            if rows or malformed:
                yield Placed(pa.concat_batches(rows) if rows else _empty(schema), file.prefix, malformed)
            is_more = file.more(upto)

    def _records(
        self, file: TextFile, chunk: bytes, schema: pa.Schema, skips: bool
    ) -> tuple[list[pa.RecordBatch], list[Malformed]]:
        """Return the rows of whole records, and those records that cannot be read."""
        if not self.has_records(chunk):
            return [], []
        try:
            table = self.table(chunk, schema)
        except pa.ArrowException as error:
            if not skips:
                raise FluxError(
                    f"Files: {file.path} cannot be read as {self.title} with the columns {describe_columns(schema)}, "
                    f"between bytes {file.place:,} and {file.place + len(chunk):,}: {error}. Correct the file, give "
                    'schema=..., or let on_error="skip" leave out and count such lines'
                ) from error
            return self._bisect(file, chunk, schema)
        return [_under(schema, batch) for batch in table.combine_chunks().to_batches()], []

    def _bisect(self, file: TextFile, chunk: bytes, schema: pa.Schema) -> tuple[list[pa.RecordBatch], list[Malformed]]:
        """Return the rows of records some of which cannot be read: halves of halves, until those are alone."""
        rows: list[pa.RecordBatch] = []
        malformed = []

        def read(part: bytes) -> None:
            rows.extend([_under(schema, batch) for batch in self.table(part, schema).combine_chunks().to_batches()])

        for start, stop, error in self._split(chunk, read):
            if error is not None:
                line = file.line_at(file.place + start)
                text = chunk[start:stop].decode("utf-8", "replace").rstrip()
                malformed.append(Malformed(file.path, line, text, str(error)))
        return rows, malformed

    def _split(
        self, chunk: bytes, read: Callable[[bytes], object]
    ) -> Iterator[tuple[int, int, pa.ArrowException | None]]:
        """Yield where records are that `read` takes together, and each that it does not take, with the error."""
        bounds = sorted({0, *self.ends(chunk).tolist(), len(chunk)})
        halves = [(0, len(bounds) - 1)]
        while halves:
            first, last = halves.pop()
            start, stop = bounds[first], bounds[last]
            try:
                if self.has_records(chunk[start:stop]):
                    read(chunk[start:stop])
            except pa.ArrowException as error:
                if last - first > 1:
                    middle = (first + last) // 2
                    halves += [(middle, last), (first, middle)]
                else:
                    yield start, stop, error
            else:
                yield start, stop, None

    def has_records(self, chunk: bytes) -> bool:
        """Return whether there is more than empty lines, which are not records."""
        return bool(chunk.strip())

    def ends(self, chunk: bytes) -> npt.NDArray[np.int64]:
        """Return where the records of a chunk end."""
        return np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")) + 1

    def names_end(self, chunk: bytes) -> int:
        """Return where the first record begins in the start of a file, after a line of names if there is one."""
        return 0

    def begin(self, file: TextFile, schema: pa.Schema, upto: int | None, last: bool) -> int | None:
        """Check the start of a file; return the place of its first record, None if the header is not complete yet."""
        return 0

    def whole(self, chunk: bytes) -> int:
        """Return how many bytes of a chunk that begins with a record are whole records."""
        return chunk.rfind(b"\n") + 1

    def table(self, chunk: bytes, schema: pa.Schema | None) -> pa.Table:
        """Return the records of a chunk, with the schema or with inferred types."""
        raise NotImplementedError

    def first_chunk(self, path: Path) -> bytes:
        """Return records from the start of a file, to infer its columns."""
        with open_plain(path) as file:
            chunk = file.read(CHUNK_BYTES)
            return chunk if len(chunk) < CHUNK_BYTES else chunk[: self.whole(chunk)]


class CsvFormat(TextFormat):
    """Values with a delimiter, after a line of names unless those are given; quoted values may hold line breaks."""

    title = "csv"
    suffixes: tuple[str, ...] = (".csv",)

    def __init__(
        self,
        delimiter: str = ",",
        quote_char: str | Literal[False] = '"',
        column_names: Sequence[str] | None = None,
        convert_options: pyarrow.csv.ConvertOptions | None = None,
    ) -> None:
        self._names = None if column_names is None else list(column_names)
        self._quote = ord(quote_char) if quote_char else None
        self._parse = pyarrow.csv.ParseOptions(
            delimiter=delimiter, quote_char=quote_char, newlines_in_values=bool(quote_char)
        )
        given = convert_options or pyarrow.csv.ConvertOptions()
        if given.include_columns or given.column_types:
            raise ValueError("convert_options may not choose columns or their types; use select, or schema=...")
        self._convert = {name: getattr(given, name) for name in _CONVERT_OPTIONS}

    def whole(self, chunk: bytes) -> int:
        if self._quote is None or self._quote not in chunk:
            return super().whole(chunk)
        ends = self.ends(chunk)
        return int(ends[-1]) if len(ends) else 0

    def ends(self, chunk: bytes) -> npt.NDArray[np.int64]:
        if self._quote is None:
            return super().ends(chunk)
        octets = np.frombuffer(chunk, dtype=np.uint8)
        # A line break ends a record only outside quotes: after an even number of them.
        outside = np.cumsum(octets == self._quote) % 2 == 0
        return np.flatnonzero((octets == ord("\n")) & outside) + 1

    def names_end(self, chunk: bytes) -> int:
        return 0 if self._names is not None else next(iter(self.ends(chunk).tolist()), 0)

    def begin(self, file: TextFile, schema: pa.Schema, upto: int | None, last: bool) -> int | None:
        if self._names is not None:
            return 0
        while not self.whole(file.left) and file.more(upto):
            _check_record(file.path, 0, file.left)
        ends = self.ends(file.left)
        if not len(ends) and not (last and file.left):
            return None
        header = file.left[: ends[0]] if len(ends) else file.left
        try:
            names = self.table(header.rstrip(b"\r\n") + b"\n", None).column_names
        except pa.ArrowException as error:
            raise FluxError(f"Files: the line of names of {file.path} cannot be read: {error}") from error
        if names != schema.names:
            raise FluxError(
                f"Files: {file.path} has the columns {', '.join(names)}; the first file had {', '.join(schema.names)}. "
                "Files that are read together have the same columns in the same order"
            )
        return len(header)

    def table(self, chunk: bytes, schema: pa.Schema | None) -> pa.Table:
        names = self._names if schema is None else schema.names
        return pyarrow.csv.read_csv(
            io.BytesIO(chunk),
            pyarrow.csv.ReadOptions(use_threads=False, block_size=len(chunk) + 1, column_names=names),
            self._parse,
            pyarrow.csv.ConvertOptions(column_types=schema, **self._convert),
        )


class JsonlFormat(TextFormat):
    """One JSON object in each line."""

    title = "jsonl"
    suffixes: tuple[str, ...] = (".jsonl", ".ndjson", ".json")

    def table(self, chunk: bytes, schema: pa.Schema | None) -> pa.Table:
        behaviour = "infer" if schema is None else "error"
        return pyarrow.json.read_json(
            io.BytesIO(chunk),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
            pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=behaviour),
        )


class LineFormat(TextFormat):
    """Text as it is: each line, also an empty one, is a row with one column."""

    title = "text"
    suffixes: tuple[str, ...] = (".txt", ".log")

    def schema(self, path: Path) -> pa.Schema:
        return LINE

    def has_records(self, chunk: bytes) -> bool:
        return bool(chunk)

    def table(self, chunk: bytes, schema: pa.Schema | None) -> pa.Table:
        text = pa.array([chunk.removesuffix(b"\n")], pa.large_binary()).cast(pa.large_string())
        lines = pc.split_pattern(text, pattern="\n").flatten()
        if b"\r" in chunk:
            lines = pc.replace_substring_regex(lines, pattern="\r$", replacement="")
        return pa.table([lines.cast(pa.string())], schema=LINE)


Format = ParquetFormat | TextFormat

FORMATS: dict[str, Callable[..., Format]] = {
    "parquet": ParquetFormat,
    "csv": CsvFormat,
    "jsonl": JsonlFormat,
    "text": LineFormat,
}


def other_columns(path: Path, found: pa.Schema, expected: pa.Schema) -> FluxError:
    """Return the error for a file whose columns differ from those of the first."""
    return FluxError(
        f"Files: {path} has the columns {describe_columns(found)}; the first file had {describe_columns(expected)}. "
        "Files that are read together have the same columns"
    )


@contextlib.contextmanager
def errors_from(path: Path) -> Iterator[None]:
    """Name the file of an error that is raised when it is read."""
    try:
        yield
    except (*DAMAGED, UnicodeDecodeError) as error:
        raise FluxError(f"Files: {path} cannot be read: {error}. Fix or remove it, and run the flow again") from error


def _groups_from(metadata: pq.FileMetaData, place: int) -> tuple[list[int], int]:
    """Return the row groups that hold rows from `place` on, and the number of rows before them."""
    position = 0
    for index in range(metadata.num_row_groups):
        rows = metadata.row_group(index).num_rows
        if position + rows > place:
            return list(range(index, metadata.num_row_groups)), position
        position += rows
    return [], position


def _check_record(path: Path, place: int, rest: bytes) -> None:
    if len(rest) > RECORD_MAX_BYTES:
        raise FluxError(
            f"Files: {path} has a record of more than {RECORD_MAX_BYTES:,} bytes at byte {place:,}. Is there a quote "
            "that is not closed, or no end of line?"
        )


def _ordered(found: pa.Schema, schema: pa.Schema) -> pa.Schema:
    return pa.schema([found.field(name) for name in schema.names])


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)


def _under(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
