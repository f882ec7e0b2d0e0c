"""`spark.readStream.format("flux")`: the output that an `Outlet` keeps, as a streaming source.

An offset is a position in the output: how many rows are before it, the sequence number of the input up to which they
are complete, and their run. The rows between two offsets are always the same, so a failed micro-batch is read again
unchanged. What Spark has committed is deleted. A query that is restarted from its checkpoint asks for no earlier rows,
and one without a checkpoint begins there.

The directory is on the driver's host. Tasks read it directly. With ``deliver=task``, for executors that do not see it,
the driver sends them their rows.

This module runs in the driver's planning process and in tasks; `register` ships Flux to both.
"""

from __future__ import annotations

import base64
import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from . import outlet_store

PARTITION_ROWS = 64 * 1024  # Fewer rows are not worth a separate task.
PARTITIONS = 4
POLL_INTERVAL_S = 0.02
OTHER_READER_TIMEOUT_S = 10.0  # The process of a query that was stopped takes less to end.
ABANDONED_TIMEOUT_S = 15.0  # Restarting an egress takes much less.
# Arrow types that Spark lacks, and the next wider type that it has.
WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}
OPTIONS = ("path", "maxRowsPerTrigger", "partitions", "until", "deliver")


@dataclass
class Piece(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Rows for one task: of each entry, `take` rows after `skip`, and its bytes if the task cannot read the file."""

    schema: bytes
    parts: list[tuple[str, outlet_store.OutletEntry, int, int, bytes | None]]


class OutletReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The reader of the outlet at `path`. One exists in a process on the driver's host while the query runs."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self.target = to_arrow_schema(schema, timezone="UTC")
        # Spark passes option names in lower case.
        given = {name.lower(): value for name, value in options.items()}
        self.directory = _directory(given)
        self.max_rows = _number(given, "maxrowspertrigger", None)
        self.partitions_max = _number(given, "partitions", PARTITIONS)
        self.to_the_end = _choice(given, "until", ("now", "end")) == "end"
        self.delivers = _choice(given, "deliver", ("file", "task")) == "task"
        self.stops_at: int | None = None
        self.is_bounded = False
        self.store = outlet_store.OutletStore(self.directory)
        # Releases the lock on the outlet, which the reader that plans holds, and not its copies in tasks.
        self.unlock: Callable[[], object] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "unlock": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return the committed position: a new query resumes where the last one stopped."""
        self._lock()
        return self._offset(outlet_store.committed_end(self.directory))

    def getDefaultReadLimit(self) -> Any:
        return ReadAllAvailable() if self.max_rows is None else ReadMaxRows(self.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the rows present now with `until=now`; with `until=end`, at the end of the stream."""
        self.store.refresh()
        self.is_bounded = True
        self.stops_at = None if self.to_the_end else self.store.end

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Return the offset after the last row that exists and that the limit allows."""
        self._check(start)
        begin = int(start["rows"])
        # Micro-batches up to `begin` are in Spark's commit log, although it has not called `commit` for the last.
        if begin > outlet_store.read_end(self.directory):
            outlet_store.write_json(self.directory, outlet_store.READ, {"rows": begin})
        if self.is_bounded and self.to_the_end:
            self._wait_for_rows_after(begin)
        self._refresh()
        end = self.store.end if self.stops_at is None else self.stops_at
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        return self._offset(end) if end > begin else start

    def reportLatestOffset(self) -> dict[str, Any]:
        self.store.refresh()
        return self._offset(self.store.end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Piece]:
        """Return the rows between two offsets, split into ranges of about the same size."""
        self._check(start)
        begin, stop = int(start["rows"]), int(end["rows"])
        self.store.refresh()
        if begin >= stop:
            return []
        if begin < self.store.begin or stop > self.store.end:
            raise ValueError(
                f'format("flux"): the query asks for the rows {begin:,} to {stop - 1:,} of {self.directory}, which '
                f"keeps {self.store.begin:,} to {self.store.end - 1:,}: its checkpoint is older than what Spark has "
                "committed here. Give the query a new checkpointLocation"
            )
        count = max(1, min(self.partitions_max, -(-(stop - begin) // PARTITION_ROWS)))
        cuts = [begin + (stop - begin) * number // count for number in range(count + 1)]
        schema = _claim(self.directory)["schema"]
        return [Piece(base64.b64decode(schema), self._parts(*cut)) for cut in itertools.pairwise(cuts)]

    def _parts(self, begin: int, stop: int) -> list[tuple[str, outlet_store.OutletEntry, int, int, bytes | None]]:
        parts = []
        for first, entry in self.store.between(begin, stop):
            path = self.store.path(first, outlet_store.ROWS)
            skip, end = max(begin - entry.first, 0), min(stop - entry.first, entry.rows)
            data = outlet_store.read_from(path, entry.offset, entry.size_bytes) if self.delivers else None
            parts.append((path, entry, skip, end - skip, data))
        return parts

    def read(self, partition: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece; runs in a task on an executor."""
        schema = pa.ipc.read_schema(pa.py_buffer(partition.schema))
        for path, entry, skip, take, data in partition.parts:
            try:
                found = outlet_store.read_from(path, entry.offset, entry.size_bytes) if data is None else data
            except FileNotFoundError:
                raise FileNotFoundError(
                    f"format(\"flux\"): {path} does not exist on this executor's host. If the outlet's directory is "
                    'on the driver\'s host only, set .option("deliver", "task")'
                ) from None
            yield self._as_declared(outlet_store.decode(found, entry, schema, path).slice(skip, take))

    def _as_declared(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows in the types that Spark declared: it lacks some of Arrow's."""
        if rows.schema.names != self.target.names:
            raise ValueError(
                f'format("flux"): the query was given the columns {self.target.names}, the outlet has '
                f"{rows.schema.names}; leave .schema(...) out"
            )
        columns = [column.cast(field.type) for column, field in zip(rows.columns, self.target, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.target)

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the rows before `end`, which Spark will not ask for again; this makes room for the egress."""
        self._check(end)
        position = int(end["rows"])
        if position > outlet_store.committed_end(self.directory):
            outlet_store.write_json(self.directory, outlet_store.COMMITTED, {"rows": position, "sn": int(end["sn"])})
        self.store.refresh()
        self.store.forget(position)

    def _wait_for_rows_after(self, position: int) -> None:
        """Wait for rows after `position`, or for the end of the stream: Spark ends a query without new rows."""
        abandoned_since: float | None = None
        while True:
            # Checked before `refresh`, which then sees all rows that were written before the end.
            ended = outlet_store.read_json(self.directory, outlet_store.ENDED) is not None
            self.store.refresh()
            if ended or self.store.end > position:
                return
            abandoned_since = None if outlet_store.is_written(self.directory) else abandoned_since or time.monotonic()
            if abandoned_since is not None and time.monotonic() > abandoned_since + ABANDONED_TIMEOUT_S:
                raise ValueError(
                    f'format("flux"): the stream in {self.directory} has not ended, and no run of Flux writes there '
                    f"any more: it was stopped, or has failed. What it wrote, {self.store.end:,} rows, was read"
                )
            time.sleep(POLL_INTERVAL_S)

    def _refresh(self) -> None:
        """Read the entries written since the last call, and check that all are there if the stream has ended."""
        ended = outlet_store.read_json(self.directory, outlet_store.ENDED)
        self.store.refresh()
        if ended is not None and self.store.end < ended["rows"]:
            raise outlet_store.damaged(
                self.directory, f"the stream ended after {ended['rows']:,} rows, and there are {self.store.end:,}"
            )

    def _offset(self, position: int) -> dict[str, Any]:
        self.store.refresh()
        return {"run": _claim(self.directory)["run"], "rows": position, "sn": self.store.sn_at(position)}

    def _lock(self) -> None:
        """Make this the one reader of the outlet, or raise: of two, each would miss what the other has committed."""
        if self.unlock is not None:
            return
        _claim(self.directory)
        claim = outlet_store.lock_claim(self.directory, OTHER_READER_TIMEOUT_S)
        if claim is not None:
            self.unlock = weakref.finalize(self, outlet_store.calls.close, claim)
        else:
            raise ValueError(
                f'format("flux"): another query reads {self.directory}. An outlet deletes what its query has '
                "committed, so it serves one: stop the other query (spark.streams.active), write to several places "
                "from one query (foreachBatch), or give the dataflow an outlet for each query"
            )

    def _check(self, offset: dict[str, Any]) -> None:
        self._lock()
        run = _claim(self.directory)["run"]
        if offset["run"] != run:
            raise ValueError(
                f'format("flux"): {self.directory} holds the output of another run of Flux than the one in this '
                "query's checkpoint. Give the query a new checkpointLocation"
            )


def schema_of(options: Mapping[str, str]) -> Any:
    """Return the columns of the outlet in Spark's types."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(_claim(_directory(options))["schema"])))
    fields = [pa.field(field.name, WIDER.get(field.type, field.type), field.nullable) for field in schema]
    try:
        return from_arrow_schema(pa.schema(fields))
    except Exception as error:
        raise ValueError(f'format("flux"): Spark has no type for a column of the outlet: {error}') from error


def _claim(directory: str) -> dict[str, Any]:
    claim = outlet_store.read_json(directory, outlet_store.CLAIM)
    if claim is None:
        raise FileNotFoundError(
            f'format("flux"): {directory} is not an outlet of a dataflow: start the flow with '
            f"sink(flux.spark.Outlet({directory!r})) before the query"
        )
    return claim


def _directory(options: Mapping[str, str]) -> str:
    known = {name.lower() for name in OPTIONS}
    unknown = sorted(name for name in options if name.lower() not in known)
    if unknown:
        raise ValueError(f'format("flux"): there is no option {unknown[0]!r} to read; options are {", ".join(OPTIONS)}')
    path = options.get("path")
    if not path:
        raise ValueError(
            'format("flux"): to read, give .option("path", directory of a flux.spark.Outlet); '
            f"options are {', '.join(OPTIONS)}"
        )
    return path.removeprefix("file://").removeprefix("file:")


def _number(options: Mapping[str, str], name: str, default: int | None) -> Any:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f'format("flux"): option {name} is a whole number above 0, got {text!r}')
    return int(text)


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = options.get(name, choices[0])
    if text not in choices:
        raise ValueError(f'format("flux"): option {name} is {" or ".join(choices)}, got {text!r}')
    return text
