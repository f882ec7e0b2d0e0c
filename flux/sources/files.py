"""The source `Files`: rows of files, one after the other, and of what is appended to them.

Files that are followed may grow in any order, so a journal keeps the order in which they were read: their segments. An
offset is a segment, a place in its file, a number of rows after that place, and a check of what is before it. A
restarted ingress replays the same segments of the same files, and resumes.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa
import trio

from ..types.errors import FluxError, PlanError
from .codecs import plain_name
from .file_tracker import FileTracker, TrackedFile
from .formats import FORMATS, LINE, Malformed, ParquetFormat, Placed, errors_from
from .pieces import DEFAULT_BATCH_ROWS, checked_schema
from .segments import FileSegment, Segments
from .source import Source, SourceBatch, SourceContext
from .text_file import FileChanged, Prefix

JOURNAL = "files.journal"
POLL_EVERY_S = 0.2

T = TypeVar("T")
Skip = Callable[[int, int, str, str], None]  # See `SourceContext`.


class Files(Source):
    """The rows of a file, of the files in a directory, or of those that a pattern such as ``logs/*.csv`` names.

    They are read in the order of their names. In a directory, files are read whose names have the suffix of `format`
    (.parquet, .csv, .txt or .log; .jsonl, .ndjson or .json) and do not begin with a dot or an underscore. With
    `follow`, the stream does not end: new files are read as they appear, and lines as they are appended to texts. A
    line is read when its end is written. A Parquet file should be written elsewhere and renamed.

    A followed file is known by its inode and its content, not by its name. One that is renamed or removed is read to
    its end, also what is written to it later, and the file that takes its name is read from the start. One that is
    truncated is read on in the copy beside it, as logrotate's ``copytruncate`` leaves it, compressed or not; what was
    written between copy and truncation is lost, as logrotate says itself. One that is truncated without a copy is an
    error. A restarted ingress finds files again in the same directory; if one of them is gone, that is an error. Files
    that had the name in between, if it was rotated more than once, are found by the number or date in their names.

    The columns are those of the first file, unless `schema` declares them. Of a text, its first records say what they
    are, without those that cannot be read. A file with other columns ends the run, and
    so does one that cannot be read; in Parquet files, columns may be in any order. A line that cannot be read ends the
    run too; with ``flow.run(on_error="skip")`` it is skipped, and the report has its file and number.

    ``format="text"`` gives each line as it is, in the column `line`. CSV files begin with a line of names, unless
    `column_names` are given; `delimiter`, `quote_char` and `convert_options` are those of ``pyarrow.csv``. A text whose
    name ends in .gz, .bz2, .xz or .zst is decompressed; it does not grow, and should be renamed when it is whole.
    """

    replays = True
    emits_time = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: Literal["parquet", "csv", "jsonl", "text"] = "parquet",
        follow: bool = False,
        *,
        schema: pa.Schema | None = None,
        **csv_options: Any,
    ) -> None:
        if format not in FORMATS:
            raise PlanError(f"Files: format is {' or '.join(map(repr, FORMATS))}, got {format!r}")
        if csv_options and format != "csv":
            raise PlanError(f"Files: {', '.join(csv_options)} is for format='csv', and the format is {format!r}")
        self.path = Path(path)
        self.follow = self.is_endless = follow
        try:
            self._format = FORMATS[format](**csv_options)
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"Files: {error}. Options of CSV are delimiter, quote_char, column_names and convert_options"
            ) from error
        if format == "text" and schema is not None and schema != LINE:
            raise PlanError(f"Files: with format='text' the only column is line, a string; schema has {schema.names}")
        self._name = format
        self._first: Path | None = None  # The file whose columns the plan was made with.
        if format == "text":
            schema = LINE
        self.schema = checked_schema("Files", self._first_schema() if schema is None else schema)

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        """Yield the rows after the offset `after`."""
        with (
            contextlib.closing(Segments(context.directory / JOURNAL)) as segments,
            contextlib.closing(FileTracker(self._format, self.follow, segments)) as tracker,
        ):
            reader = _SegmentReader(self, segments, tracker, context.skip)
            if after is None:
                await _in_thread(self._check_exists)
            async with contextlib.aclosing(reader.replay(after)) as replayed:
                async for batch in replayed:
                    yield batch
            while True:
                is_idle = True
                for tracked in await _in_thread(self._poll, tracker):
                    async with contextlib.aclosing(reader.read_new(tracked)) as batches:
                        async for batch in batches:
                            is_idle = False
                            yield batch
                if not self.follow:
                    return
                if is_idle:
                    await trio.sleep(POLL_EVERY_S)

    def _poll(self, tracker: FileTracker) -> list[TrackedFile]:
        with errors_from(self.path):
            paths = self._list_files()
        return tracker.poll(paths)

    def rows_of(self, tracked: TrackedFile, upto: int | None, is_last: bool, skips: bool) -> Iterator[Placed]:
        """Return the rows of a file that were not read, up to `upto`, or to its end."""
        if isinstance(self._format, ParquetFormat):
            return self._format.read(tracked.path, self.schema, tracked.state.read.place, upto)
        assert tracked.file is not None
        return self._format.read(tracked.file, self.schema, upto, is_last, skips)

    def _check_exists(self) -> None:
        """Raise if the files are gone: a run that reads nothing would look like a success."""
        if self._first is not None and not self._first.exists():
            raise FluxError(
                f"Files: {self._first} was there when the flow was made, and is gone. Put it back, or make the flow "
                "when its files are there"
            )
        if not self.follow and not self._list_files() and not self.path.is_dir():
            raise FluxError(
                f"Files: there are no files at {self.path}. Give the path of some, or follow=True to wait for them"
            )

    def _list_files(self) -> list[Path]:
        """Return the files that exist, in the order of their names."""
        if self.path.is_dir():
            return sorted(path for path in self.path.iterdir() if self._is_included(path))
        if self.path.exists():
            return [self.path]
        return sorted(path for path in map(Path, glob.glob(str(self.path), recursive=True)) if path.is_file())

    def _is_included(self, path: Path) -> bool:
        plain = plain_name(path) if self._format.grows else path
        return plain.suffix in self._format.suffixes and not path.name.startswith((".", "_")) and path.is_file()

    def _first_schema(self) -> pa.Schema:
        paths = self._list_files()
        if not paths:
            what = f" with names that end in {' or '.join(self._format.suffixes)}" if self.path.is_dir() else ""
            raise PlanError(
                f"Files: there are no files{what} at {self.path}, so the columns are unknown. Give the path of some, "
                "or say with schema=... which columns there will be"
            )
        self._first = paths[0]
        try:
            return self._format.schema(paths[0])
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise PlanError(
                f"Files: {paths[0]} cannot be read as {self._name}: {error}. See that this user may read it and "
                "that format=... says what it is, or name its columns with schema=..."
            ) from error


class _SegmentReader:
    """Reads pieces of files as segments, for one ingress."""

    def __init__(self, source: Files, segments: Segments, tracker: FileTracker, skip: Skip | None) -> None:
        self._source = source
        self._segments = segments
        self._tracker = tracker
        self._skip = skip
        self._skipped = 0  # Records of the run that cannot be read.

    async def replay(self, after: Any) -> AsyncGenerator[SourceBatch, None]:
        """Yield what was read before, after the offset; then the tracker knows the place reached in each file."""
        number, place, skip, check, self._skipped = after or (0, None, 0, 0, 0)
        files = self._segments.files_before(number)
        for segment in self._segments.from_number(number):
            begin = segment.file.read if place is None else Prefix(place, check)
            place = None
            files[segment.key] = segment.file if segment.end is None else replace(segment.file, read=segment.end)
            if begin == segment.end:
                continue
            tracked = await _in_thread(self._tracker.reopen, segment, begin)
            upto = self._tracker.end(tracked) if segment.end is None else segment.end.place
            is_last = segment.end is not None or not self._source.follow
            async with contextlib.aclosing(self._read(tracked, segment, upto, is_last, skip)) as batches:
                async for batch in batches:
                    yield batch
            skip = 0
        await _in_thread(self._tracker.adopt, files)

    async def read_new(self, tracked: TrackedFile) -> AsyncGenerator[SourceBatch, None]:
        """Yield what a file holds and was not read yet."""
        is_last = tracked.is_final or not self._source.follow
        upto = self._tracker.end(tracked)
        try:
            async with contextlib.aclosing(self._read(tracked, None, upto, is_last, 0)) as batches:
                async for batch in batches:
                    yield batch
        except FileChanged:
            return  # The tracker finds where it is now.
        if is_last:
            await _in_thread(self._tracker.note_done, tracked)

    async def _read(
        self, tracked: TrackedFile, segment: FileSegment | None, upto: int | None, is_last: bool, skip: int
    ) -> AsyncGenerator[SourceBatch, None]:
        """Yield the rows of a piece of a file, without the first `skip`; without a segment, journal one."""
        rows_of = self._source.rows_of(tracked, upto, is_last, self._skip is not None)
        before = tracked.state.read
        while (placed := await _in_thread(_next, rows_of, tracked.path)) is not None:
            rows, read, malformed = placed
            segment = segment or self._segment_of(tracked)
            self._tracker.note_read(tracked, read)
            received = partial(self._segments.release, segment.number) if self._source.follow else None
            skipped_before = self._skipped
            self._report(malformed)
            first = min(skip, rows.num_rows)
            skip -= first
            for start in range(first, rows.num_rows, DEFAULT_BATCH_ROWS):
                piece = rows.slice(start, DEFAULT_BATCH_ROWS)
                stop = start + piece.num_rows
                at = (*read, 0, self._skipped) if stop == rows.num_rows else (*before, stop, skipped_before)
                place, check, rows_after, skipped = at
                yield SourceBatch(piece, received, offset=[segment.number, place, rows_after, check, skipped])
            before = read

    def _report(self, malformed: list[Malformed]) -> None:
        """Report records that cannot be read; an ingress that is restarted numbers them as this one does."""
        for record in malformed:
            assert self._skip is not None
            self._skipped += 1
            content = f"{record.path}, line {record.line:,}: {record.text}"
            self._skip(self._skipped, record.line, content, record.error)

    def _segment_of(self, tracked: TrackedFile) -> FileSegment:
        """Return the segment that is being read if it is of this file, else begin one."""
        current = self._segments.current
        if current is not None and (current.key, current.file.identity) == (tracked.key, tracked.identity):
            return current
        ended = None if current is None else self._tracker.read_of(current.key)
        segment = self._segments.begin(tracked.key, tracked.state, ended)
        tracked.key = segment.key
        return segment


def _next(rows: Iterator[Placed], path: Path) -> Placed | None:
    with errors_from(path):
        return next(rows, None)


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call `function` in a thread: a disk may be slow, and the ingress must go on to process acks."""
    return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True)
