"""`Files`: rows of files, one after the other, and of what is added to them.

Files that are followed may grow in any order, so the order in which they were read is written down: a *segment* is a
piece of one file, and a new one begins when another file is read. An offset is a segment, a place in its file and a
number of rows behind that place. An ingress that is started again reads the same segments, and goes on. Segments whose
rows every copy has are never read again: what stays of them is how far each file was read.
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

# A file that cannot be read and was changed so lately is probably still being written, if files are followed.
SETTLES_S = 2.0

T = TypeVar("T")


class Files(Source):
    """The rows of a file, of the files in a directory, or of those that a pattern such as ``logs/*.csv`` names.

    They are read in the order of their names. In a directory, files count whose names end as `format` says
    (.parquet, .csv; .jsonl, .ndjson or .json) and do not begin with a dot or an underscore. With `follow`, the stream
    does not end: new files are read as they appear, and lines as they are appended to CSV and JSON files; a line counts
    when its end has come. A Parquet file should be written elsewhere and renamed.

    The columns are those of the first file, unless `schema` says them; a file that has others ends the run, and so
    does one that cannot be read or has become shorter. CSV files begin with a line of names.
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
        """Yield the rows behind the offset `after`."""
        with contextlib.closing(_Segments(context.directory / JOURNAL)) as segments:
            places: dict[str, int] = {}
            if after is None:
                await _in_thread(self._check_there)
            async with contextlib.aclosing(self._again(segments, places, after)) as again:
                async for batch in again:
                    yield batch
            while True:
                came = False
                for path in await _in_thread(self._listed):
                    async with contextlib.aclosing(self._news(segments, places, path)) as news:
                        async for batch in news:
                            came = True
                            yield batch
                if not self.follow:
                    return
                if not came:
                    await trio.sleep(POLL_EVERY_S)

    async def _again(
        self, segments: _Segments, places: dict[str, int], after: Any
    ) -> AsyncGenerator[SourceBatch, None]:
        """What was read before, behind the offset; then `places` says how far each file is."""
        number, place, skip = after or (0, None, 0)
        places.update(segments.places_before(number))
        for segment in segments.behind(number):
            begin = segment.start if place is None else place
            upto = await _in_thread(self._end, Path(segment.path)) if segment.end is None else segment.end
            last = segment.end is not None or not self.follow
            places[segment.path] = begin
            async with contextlib.aclosing(self._read(segments, segment, begin, upto, last, skip)) as pieces:
                async for batch, places[segment.path] in pieces:
                    yield batch
            place, skip = None, 0

    async def _news(self, segments: _Segments, places: dict[str, int], path: Path) -> AsyncGenerator[SourceBatch, None]:
        """What a file holds and was not read yet."""
        if str(path) in places and not (self.follow and self._format.grows):
            return
        end = await _in_thread(self._settled_end, path)
        begin = places.get(str(path), 0)
        if end is None or end == begin:
            return
        segment = segments.present
        if segment is None or segment.path != str(path):
            segment = _FileSegment(segments.next_number, str(path), begin, None)
        async with contextlib.aclosing(self._read(segments, segment, begin, end, not self.follow, 0)) as pieces:
            async for batch, place in pieces:
                if segments.present is not segment:
                    segments.begin(segment, None if segments.present is None else places[segments.present.path])
                places[segment.path] = place
                yield batch
        if not self._format.grows:
            places[str(path)] = end

    async def _read(
        self, segments: _Segments, segment: _FileSegment, begin: int, upto: int, last: bool, skip: int
    ) -> AsyncGenerator[tuple[SourceBatch, int], None]:
        """The rows of a piece of a file, without the first `skip`; with each batch the place that is read up to."""
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

    def _check_there(self) -> None:
        """A run that reads nothing, because what it was made for is gone, would look like one that went well."""
        if self._first is not None and not self._first.exists():
            raise FluxError(
                f"Files: {self._first} was there when the flow was made, and is gone. Put it back, or make the flow "
                "when its files are there"
            )
        if not self.follow and not self._listed() and not self.path.is_dir():
            raise FluxError(
                f"Files: there are no files at {self.path}. Give the path of some, or follow=True to wait for them"
            )

    def _end(self, path: Path) -> int:
        """Where a file ends now."""
        with _naming(path):
            return self._format.end(path)

    def _settled_end(self, path: Path) -> int | None:
        """Where a file ends; None if it is followed and seems to be still being written."""
        try:
            return self._end(path)
        except FluxError:
            if self.follow and path.exists() and time.time() - path.stat().st_mtime < SETTLES_S:
                return None
            raise

    def _listed(self) -> list[Path]:
        """The files that are there, in the order of their names."""
        if self.path.is_dir():
            return sorted(path for path in self.path.iterdir() if self._counts(path))
        if self.path.exists():
            return [self.path]
        return sorted(path for path in map(Path, glob.glob(str(self.path), recursive=True)) if path.is_file())

    def _counts(self, path: Path) -> bool:
        return path.suffix in self._format.suffixes and not path.name.startswith((".", "_")) and path.is_file()

    def _first_schema(self) -> pa.Schema:
        listed = self._listed()
        if not listed:
            what = f" with names that end in {' or '.join(self._format.suffixes)}" if self.path.is_dir() else ""
            raise PlanError(
                f"Files: there are no files{what} at {self.path}, so the columns are unknown. Give the path of some, "
                "or say with schema=... which columns there will be"
            )
        self._first = listed[0]
        try:
            return self._format.schema(listed[0])
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise PlanError(
                f"Files: {listed[0]} cannot be read as {self._name}: {error}. See that this user may read it, and that "
                "format=... says what it is"
            ) from error


@dataclass(frozen=True, slots=True)
class _FileSegment:
    """A piece of a file that was read at once; `end` is not known while it is the last."""

    number: int
    path: str
    start: int
    end: int | None


class _Segments:
    """The segments that were read, in a journal in the run's directory; of those that are done with, only the ends."""

    def __init__(self, path: Path) -> None:
        self._journal, records = Journal.open(path)
        self._known: deque[_FileSegment] = deque()
        self._ends: dict[str, int] = {}  # How far files were read in segments that are not known any more.
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
    def present(self) -> _FileSegment | None:
        """The one that is being read."""
        return self._known[-1] if self._known else None

    def behind(self, number: int) -> list[_FileSegment]:
        """Those from `number` on."""
        return [segment for segment in self._known if segment.number >= number]

    def places_before(self, number: int) -> dict[str, int]:
        """How far each file was read before segment `number` began."""
        places = dict(self._ends)
        for segment in self._known:
            if segment.number < number:
                assert segment.end is not None
                places[segment.path] = segment.end
        return places

    def release(self, number: int) -> None:
        """Rows of segment `number` are where they are never asked for again, and so are those before it."""
        self._released = max(self._released, number)
        if self._journal.size > self._shorten_at and self._known[0].number < self._released:
            self._shorten()

    def _shorten(self) -> None:
        self._ends = self.places_before(self._released)
        self._known = deque(self.behind(self._released))
        last_end: int | None = None
        records = [msgpack.packb([self._ends, self._released])]
        for segment in self._known:
            records.append(msgpack.packb([last_end, segment.path, segment.start]))
            last_end = segment.end
        self._journal.shorten(records, self._journal.size)
        self._shorten_at = max(SHORTEN_AT_BYTES, 2 * self._journal.size)

    def begin(self, segment: _FileSegment, ended_at: int | None) -> None:
        """Write down, before its rows are given, that another file is read, and where the last one was left."""
        self._journal.append(msgpack.packb([ended_at, segment.path, segment.start]))
        self._add(ended_at, segment)

    def close(self) -> None:
        """Let go of the file."""
        self._journal.close()

    def _add(self, ended_at: int | None, segment: _FileSegment) -> None:
        if self._known:
            last = self._known[-1]
            self._known[-1] = _FileSegment(last.number, last.path, last.start, ended_at)
        self._known.append(segment)
        self.next_number = segment.number + 1


def _next(reader: Iterator[Placed], path: Path) -> Placed | None:
    with _naming(path):
        return next(reader, None)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise FluxError(f"Files: {path} cannot be read: {error}. Mend or remove it, and run the flow again") from error


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """A disk may be slow, and the ingress has acks to answer meanwhile."""
    return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True)
