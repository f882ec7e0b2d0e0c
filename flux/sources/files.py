"""The source `Files`: rows of files, one after the other, and of what is appended to them.

Files that are followed may grow in any order, so a journal keeps the order in which they were read. A *segment* is a
piece of one file; a new one begins when another file is read. An offset is a segment, a place in its file and a number
of rows after that place. A restarted ingress replays the same segments, and resumes. Segments whose rows every copy has
are never read again: of them only the place up to which each file was read is kept.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgpack
import pyarrow as pa
import trio

from ..storage.journal import Journal
from ..types.errors import FluxError, PlanError
from .formats import FORMATS, Placed
from .pieces import DEFAULT_BATCH_ROWS, checked_schema
from .source import Source, SourceBatch, SourceContext

JOURNAL = "files.journal"
POLL_EVERY_S = 0.2
SHORTEN_AT_BYTES = 1 << 20  # Below this the journal of segments is left alone.

# A followed file that cannot be read is retried until its last change is this old: it may still be being written.
WRITE_GRACE_S = 2.0

T = TypeVar("T")


class Files(Source):
    """The rows of a file, of the files in a directory, or of those that a pattern such as ``logs/*.csv`` names.

    They are read in the order of their names. In a directory, files are read whose names have the suffix of `format`
    (.parquet, .csv; .jsonl, .ndjson or .json) and do not begin with a dot or an underscore. With `follow`, the stream
    does not end: new files are read as they appear, and lines as they are appended to CSV and JSON files. A line is
    read when its end is written. A Parquet file should be written elsewhere and renamed.

    The columns are those of the first file, unless `schema` declares them. A file with other columns ends the run, and
    so does one that cannot be read or has become shorter. CSV files begin with a line of names.
    """

    replays = True
    emits_time = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: Literal["parquet", "csv", "jsonl"] = "parquet",
        follow: bool = False,
        *,
        schema: pa.Schema | None = None,
    ) -> None:
        if format not in FORMATS:
            raise PlanError(f"Files: format is {' or '.join(map(repr, FORMATS))}, got {format!r}")
        self.path = Path(path)
        self.follow = self.is_endless = follow
        self._format = FORMATS[format]
        self._name = format
        self._first: Path | None = None  # The file whose columns the plan was made with.
        self.schema = checked_schema("Files", self._first_schema() if schema is None else schema)

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        """Yield the rows after the offset `after`."""
        with contextlib.closing(_Segments(context.directory / JOURNAL)) as segments:
            places: dict[str, int] = {}
            if after is None:
                await _in_thread(self._check_exists)
            async with contextlib.aclosing(self._replay(segments, places, after)) as replayed:
                async for batch in replayed:
                    yield batch
            while True:
                is_idle = True
                for path in await _in_thread(self._list_files):
                    async with contextlib.aclosing(self._read_new(segments, places, path)) as batches:
                        async for batch in batches:
                            is_idle = False
                            yield batch
                if not self.follow:
                    return
                if is_idle:
                    await trio.sleep(POLL_EVERY_S)

    async def _replay(
        self, segments: _Segments, places: dict[str, int], after: Any
    ) -> AsyncGenerator[SourceBatch, None]:
        """Yield what was read before, after the offset; then `places` holds the place reached in each file."""
        number, place, skip = after or (0, None, 0)
        places.update(segments.places_before(number))
        for segment in segments.from_number(number):
            begin = segment.start if place is None else place
            upto = await _in_thread(self._end, Path(segment.path)) if segment.end is None else segment.end
            last = segment.end is not None or not self.follow
            places[segment.path] = begin
            async with contextlib.aclosing(self._read(segments, segment, begin, upto, last, skip)) as pieces:
                async for batch, places[segment.path] in pieces:
                    yield batch
            place, skip = None, 0

    async def _read_new(
        self, segments: _Segments, places: dict[str, int], path: Path
    ) -> AsyncGenerator[SourceBatch, None]:
        """Yield what a file holds and was not read yet."""
        if str(path) in places and not (self.follow and self._format.grows):
            return
        end = await _in_thread(self._readable_end, path)
        begin = places.get(str(path), 0)
        if end is None or end == begin:
            return
        segment = segments.current
        if segment is None or segment.path != str(path):
            segment = _FileSegment(segments.next_number, str(path), begin, None)
        async with contextlib.aclosing(self._read(segments, segment, begin, end, not self.follow, 0)) as pieces:
            async for batch, place in pieces:
                if segments.current is not segment:
                    segments.begin(segment, None if segments.current is None else places[segments.current.path])
                places[segment.path] = place
                yield batch
        if not self._format.grows:
            places[str(path)] = end

    async def _read(
        self, segments: _Segments, segment: _FileSegment, begin: int, upto: int, last: bool, skip: int
    ) -> AsyncGenerator[tuple[SourceBatch, int], None]:
        """Yield the rows of a piece of a file, without the first `skip`; with each batch, the place after it."""
        path = Path(segment.path)
        if begin > upto:
            raise FluxError(
                f"Files: {path} was read up to {begin:,} and now ends at {upto:,}: it was cut or replaced. Files may "
                "grow or be added while they are read, but not change"
            )
        received = partial(segments.release, segment.number) if self.follow else None
        reader = self._format.read(path, self.schema, begin, upto, last)
        before = begin
        while (placed := await _in_thread(_next, reader, path)) is not None:
            rows, place = placed
            skipped = min(skip, rows.num_rows)
            skip -= skipped
            for start in range(skipped, rows.num_rows, DEFAULT_BATCH_ROWS):
                piece = rows.slice(start, DEFAULT_BATCH_ROWS)
                stop = start + piece.num_rows
                at = (place, 0) if stop == rows.num_rows else (before, stop)
                yield SourceBatch(piece, received, offset=[segment.number, *at]), at[0]
            before = place

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

    def _end(self, path: Path) -> int:
        """Return where a file ends now."""
        with _errors_from(path):
            return self._format.end(path)

    def _readable_end(self, path: Path) -> int | None:
        """Return where a file ends; None if it is followed and may still be being written."""
        try:
            return self._end(path)
        except FluxError:
            if self.follow and path.exists() and time.time() - path.stat().st_mtime < WRITE_GRACE_S:
                return None
            raise

    def _list_files(self) -> list[Path]:
        """Return the files that exist, in the order of their names."""
        if self.path.is_dir():
            return sorted(path for path in self.path.iterdir() if self._is_included(path))
        if self.path.exists():
            return [self.path]
        return sorted(path for path in map(Path, glob.glob(str(self.path), recursive=True)) if path.is_file())

    def _is_included(self, path: Path) -> bool:
        return path.suffix in self._format.suffixes and not path.name.startswith((".", "_")) and path.is_file()

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
                f"Files: {paths[0]} cannot be read as {self._name}: {error}. See that this user may read it, and that "
                "format=... says what it is"
            ) from error


@dataclass(frozen=True, slots=True)
class _FileSegment:
    """A piece of a file that was read without another file in between; `end` is unknown for the last segment."""

    number: int
    path: str
    start: int
    end: int | None


class _Segments:
    """The segments that were read, in a journal in the run's directory; of released ones only the ends are kept."""

    def __init__(self, path: Path) -> None:
        self._journal, records = Journal.open(path)
        self._known: deque[_FileSegment] = deque()
        self._ends: dict[str, int] = {}  # Up to where files were read in segments that are no longer known.
        self._shorten_at = SHORTEN_AT_BYTES
        self._released = 0  # Segments before this one are never read again.
        self.next_number = 0
        for record in records:
            content = msgpack.unpackb(record.content)
            if isinstance(content[0], dict):
                self._ends, self.next_number = content
            else:
                ended_at, name, start = content
                self._add(ended_at, _FileSegment(self.next_number, name, start, None))

    @property
    def current(self) -> _FileSegment | None:
        """The segment that is being read."""
        return self._known[-1] if self._known else None

    def from_number(self, number: int) -> list[_FileSegment]:
        """Return the segments from `number` on."""
        return [segment for segment in self._known if segment.number >= number]

    def places_before(self, number: int) -> dict[str, int]:
        """Return up to where each file was read before segment `number` began."""
        places = dict(self._ends)
        for segment in self._known:
            if segment.number < number:
                assert segment.end is not None
                places[segment.path] = segment.end
        return places

    def release(self, number: int) -> None:
        """Note that the segments before `number` are never replayed: every copy has rows of segment `number`."""
        self._released = max(self._released, number)
        if self._journal.size > self._shorten_at and self._known[0].number < self._released:
            self._shorten()

    def _shorten(self) -> None:
        self._ends = self.places_before(self._released)
        self._known = deque(self.from_number(self._released))
        last_end: int | None = None
        records = [msgpack.packb([self._ends, self._released])]
        for segment in self._known:
            records.append(msgpack.packb([last_end, segment.path, segment.start]))
            last_end = segment.end
        self._journal.shorten(records, self._journal.size)
        self._shorten_at = max(SHORTEN_AT_BYTES, 2 * self._journal.size)

    def begin(self, segment: _FileSegment, ended_at: int | None) -> None:
        """Journal, before its rows are emitted, that another file is read, and the place reached in the last one."""
        self._journal.append(msgpack.packb([ended_at, segment.path, segment.start]))
        self._add(ended_at, segment)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def _add(self, ended_at: int | None, segment: _FileSegment) -> None:
        if self._known:
            last = self._known[-1]
            self._known[-1] = _FileSegment(last.number, last.path, last.start, ended_at)
        self._known.append(segment)
        self.next_number = segment.number + 1


def _next(reader: Iterator[Placed], path: Path) -> Placed | None:
    with _errors_from(path):
        return next(reader, None)


@contextlib.contextmanager
def _errors_from(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise FluxError(f"Files: {path} cannot be read: {error}. Fix or remove it, and run the flow again") from error


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call `function` in a thread: a disk may be slow, and the ingress must go on to process acks."""
    return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True)
