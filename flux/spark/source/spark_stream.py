"""`flux.spark.Stream`: a streaming DataFrame as the source of a dataflow.

A `Stream` exists on both sides of a fork. In the user's program, which holds the Spark session, `bind` makes the
listening socket and the secret before the processes are forked. Then `start` starts a streaming query that writes to
that socket. In the ingress process, a fork, `batches` serves the socket and yields what Spark has committed, without
using Spark. When the query ends, a thread of the user's program reports it over the same socket.

To Spark this is a sink that commits a micro-batch when every live copy of the dataflow has received it. So Spark's own
recovery and Flux's meet at one point: what was not received is sent again under the same batch id.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

from ...sources import Source, SourceBatch, SourceContext
from ...types.errors import FluxError, PlanError, SourceError
from ...types.normalize import ColumnError, normalize_schema
from ..session import activate, check_classic, driver_host, register
from .batch_times import BatchTimes, watermark_of
from .query_state import free_name, has_commits, has_read_all
from .staging import CommittedBatch, Staging

__all__ = ["Stream"]

log = logging.getLogger("flux.spark")

LISTEN_BACKLOG = 128
SECRET_BYTES = 32

# A live ingress answers in milliseconds; `stop` does not wait for a dead one.
STOP_TIMEOUT_S = 5.0
REPORT_TIMEOUT_S = 2.0
RETRY_PAUSE_S = 0.2

# Spark reads the Python of its workers from here when a session is created. If flux.spark is imported earlier, this
# is enough; if later, `register` corrects it for a local session.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
# Six times Spark's default: it costs Spark less for each row, and the ingress need not merge batches.
ARROW_ROWS_WANTED = 64 * 1024
# Spark's processing-time timers fire with the next micro-batch; an empty one every second is often enough.
TICK_S = 1.0


@dataclass(slots=True)
class BatchPlace:
    """The offset of the stream: a micro-batch, how many of its rows, and how many boundaries after them."""

    batch_id: int = -1
    rows: int = 0
    boundaries: int = 1
    times: Any = None

    @classmethod
    def of(cls, plain: Any) -> BatchPlace:
        """Return the offset that `plain` encodes; None is the beginning."""
        return cls() if plain is None else cls(*plain)

    @property
    def plain(self) -> list[Any]:
        """The offset in msgpack types."""
        return [self.batch_id, self.rows, self.boundaries, self.times]

    @property
    def done_upto(self) -> int:
        """The last micro-batch of which everything has been emitted, its boundary too; -1 if there is none."""
        return self.batch_id if self.boundaries else self.batch_id - 1

    def is_past(self, committed: CommittedBatch) -> bool:
        """Whether all of a micro-batch, its boundary too, has been emitted."""
        return committed.batch_id <= self.done_upto

    def enter(self, committed: CommittedBatch) -> int:
        """Begin or resume a micro-batch; return how many of its rows have been emitted."""
        if committed.batch_id != self.batch_id:
            self.batch_id, self.rows, self.boundaries = committed.batch_id, 0, 0
        return self.rows


class Stream(Source):
    """The rows of a streaming DataFrame, each once, in the order of micro-batches and their partitions.

    `trigger` holds the keywords of `DataStreamWriter.trigger`; the default ``{"availableNow": True}`` reads the rows
    present now and ends the stream. `checkpoint` is Spark's checkpoint location; without one the query starts from
    the beginning in each run. A checkpoint continues the input and not the state of operators, which is in memory: a
    flow with stateful steps refuses a checkpoint that has commits, unless `fresh_state` is true.

    `types` replaces Arrow types that Spark cannot express, for example ``{"data": pa.binary(32)}`` for binary values
    that are all 32 bytes long; a value that does not fit ends the run. A query that fails ends the run, unless it has
    `restarts` left: then it is restarted from its checkpoint, and neither loses nor repeats a row. The query is called
    ``flux-<flow>``. If anything but the run stops it, as a loop over ``spark.streams.active`` does, the run ends with a
    `SourceError`.

    Each micro-batch is followed by its boundary, the clock, and the watermark if ``df.withWatermark(...)`` sets one.
    Spark's own operators (`flux.spark.stateful_processor`) rely on them. While no rows arrive, an empty micro-batch
    every `tick_s` seconds advances the clock, as in Spark; not with ``availableNow`` or ``once``: these streams end.

    While the query starts, ``spark.sql.execution.arrow.maxRecordsPerBatch`` is raised to 64 Ki rows, unless the
    session has a value of its own for it.

        events = flow.source(flux.spark.Stream(spark.readStream.schema(schema).parquet(path)))
    """

    replays = True

    def __init__(
        self,
        df: Any,
        trigger: Mapping[str, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        types: Mapping[str, pa.DataType] | None = None,
        tick_s: float | None = TICK_S,
        restarts: int = 0,
        fresh_state: bool = False,
    ) -> None:
        if not getattr(df, "isStreaming", False):
            raise PlanError(
                "flux.spark.Stream: a streaming DataFrame (from spark.readStream) was expected, "
                f"got {_describe(df)}; for one that is not streaming use flux.spark.Frame(df)"
            )
        check_classic(df.sparkSession, "flux.spark.Stream")
        if trigger is not None and not isinstance(trigger, Mapping):
            raise PlanError(
                "flux.spark.Stream: trigger must be the keywords of DataStreamWriter.trigger, such as "
                f'{{"processingTime": "1 second"}}; got {trigger!r}'
            )
        _check_trigger(df, trigger or {})
        if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 0:
            raise PlanError(f"flux.spark.Stream: restarts must be a whole number from 0; got {restarts!r}")
        self._restarts = restarts
        self._df = df
        self._trigger = dict(trigger) if trigger is not None else {"availableNow": True}
        self._checkpoint = os.fspath(checkpoint) if checkpoint is not None else None
        self._fresh_state = fresh_state
        self._query_name = "flux"
        self.schema = _arrow_schema(df, types or {})
        self._watermark = watermark_of(df)
        self.is_endless = not self._trigger.keys() & {"availableNow", "once"}
        self._tick_s = tick_s if self.is_endless else None
        self._listener: socket.socket | None = None
        self._secret = b""
        self._directory = Path()
        self._address = ""
        self._query: Any = None
        self._stopping = threading.Event()
        self._query_lock = threading.Lock()  # Held while the query is started or stopped.
        self._watcher: threading.Thread | None = None

    @property
    def query(self) -> Any:
        """The `StreamingQuery` between start and stop, for its progress; otherwise None."""
        return self._query

    # In the user's program.

    def expect(self, flow: str, stateful_steps: Sequence[str]) -> None:
        """Refuse a checkpoint with commits, if operators would begin with empty state in the middle of the stream."""
        self._query_name = f"flux-{flow}"
        if self._checkpoint is None or not stateful_steps or self._fresh_state:
            return
        if has_commits(self._df.sparkSession, self._checkpoint):
            raise PlanError(
                f"flux.spark.Stream of {flow!r}: a run before this one has committed micro-batches in the checkpoint "
                f"{self._checkpoint}, and the state of {', '.join(stateful_steps)} was in that run's memory: this run "
                "would go on with the input and begin with empty state. Give a new checkpoint, to read the input from "
                "its beginning, or fresh_state=True, if empty state is right"
            )

    def bind(self, directory: Path) -> None:
        """Create the socket and the secret, so that both sides of the fork have them."""
        if self._listener is not None:
            raise PlanError(
                "flux.spark.Stream: this stream is in use by a run that has not ended, whose query would be stopped. "
                "Wait for that run or leave its `with` block; flows that run at the same time need a Stream each"
            )
        host = driver_host(self._df.sparkSession.sparkContext)
        listener = socket.socket()
        listener.bind((host, 0))
        listener.listen(LISTEN_BACKLOG)
        self._listener = listener
        self._address = f"{host}:{listener.getsockname()[1]}"
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._directory = directory

    def release(self) -> None:
        """Close this process's end of the socket: if the ingress dies, Spark is refused at once instead of waiting."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def start(self) -> None:
        """Start the streaming query, and a thread that reports its end to the ingress."""
        if self._listener is None:
            raise FluxError("flux.spark.Stream: start was called before bind; a run calls both, in order")
        register(self._df.sparkSession)
        self._query_name = free_name(self._df.sparkSession, self._query_name)
        checkpoint = self._checkpoint or tempfile.mkdtemp(prefix="checkpoint-", dir=self._directory)
        self._query = self._start_query(checkpoint)
        self._stopping.clear()
        self._watcher = threading.Thread(
            target=self._watch_query, args=(self._query, checkpoint), name="flux-spark-end", daemon=True
        )
        self._watcher.start()

    def _start_query(self, checkpoint: str) -> Any:
        writer = (
            self._df.writeStream.format("flux")
            .queryName(self._query_name)
            .option("address", self._address)
            .option("secret", self._secret.hex())
            .option("checkpointLocation", checkpoint)
            .trigger(**self._trigger)
        )
        with _large_arrow_batches(self._df.sparkSession):
            return writer.start()

    def stop(self) -> None:
        """Stop the query if it still runs, and close the socket. May be called at any time, more than once."""
        self._stopping.set()
        with self._query_lock:
            query, self._query = self._query, None
        # Closed first: then only the ingress holds the socket. If it is dead, we and Spark's commit are refused.
        self.release()
        if query is not None and query.isActive:
            # Spark waits for a commit in flight, and the commit for the ingress, if it is still alive.
            self._send_to_ingress({"do": "stop"}, STOP_TIMEOUT_S)
        if query is not None:
            query.stop()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None

    def _watch_query(self, query: Any, checkpoint: str) -> None:
        """Wait for the query to end; restart it if it failed and has restarts left; then report the end."""
        restarts_left = self._restarts
        while (error := self._wait_for_end(query)) is not None and restarts_left > 0:
            restarts_left -= 1
            log.warning("%s; restarting it from its checkpoint", error)
            with self._query_lock:
                if self._stopping.is_set():
                    return
                try:
                    activate(self._df.sparkSession)
                    query = self._query = self._start_query(checkpoint)
                except Exception as failure:
                    error = f"flux.spark.Stream: the Spark query could not be restarted: {_reason(failure)}"
                    break
        if error is None and not self._stopping.is_set() and not has_read_all(query, self._trigger):
            error = (
                f"flux.spark.Stream: the Spark query {self._query_name!r} was stopped, and not by Flux, before it had "
                "read its input: the output is right up to there, and not complete. A loop over spark.streams.active "
                "stops this query too: let it leave out names that begin with 'flux-'. To end the run, call run.stop()"
            )
        self._report_end(error)

    def _wait_for_end(self, query: Any) -> str | None:
        """Wait for the query to end; return why it failed, or None if it did not."""
        try:
            query.awaitTermination()
        except Exception as failure:
            # A query that is stopped may fail because of it.
            if not self._stopping.is_set():
                return f"flux.spark.Stream: the Spark query failed: {_reason(failure)}"
        return None

    def _report_end(self, error: str | None) -> None:
        # An ingress that was killed is restarted by the run, and needs this report too. The run is over when
        # the socket is closed, which refuses us, or when `stop` was called. `stop` waits for this thread, and the
        # ingress of a run that has failed does not answer: so each try is short.
        while not self._send_to_ingress({"do": "end", "error": error}, REPORT_TIMEOUT_S):
            if self._stopping.wait(RETRY_PAUSE_S):
                return

    def _send_to_ingress(self, request: dict[str, Any], timeout_s: float) -> bool:
        """Send a request to the ingress; return false if it was unreachable, but may be restarted."""
        from .writer import StagingRefused, ask_once

        try:
            ask_once(self._address, self._secret.hex(), request, timeout_s)
        except (ConnectionRefusedError, PermissionError, StagingRefused):
            return True
        except OSError:
            return False
        return True

    # In the ingress process.

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        """Yield what Spark commits until the query ends; raise `SourceError` with its reason if it failed.

        An offset is a micro-batch and a number of its rows. A micro-batch that is not done is still staged.
        """
        if self._listener is None:
            raise FluxError("flux.spark.Stream: batches was called before bind; a run calls both, in order")
        place = BatchPlace.of(after)
        times = BatchTimes(*self._watermark, place.times)
        staging = Staging(context.directory, self._secret)
        if (lost := staging.last_done) > place.done_upto:
            raise _lost_end(lost)
        # A duplicate, which `stop` in the user's program does not close even where there was no fork.
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._listener.dup()))
        serve_scope = trio.CancelScope()

        async def serve() -> None:
            with serve_scope:
                await staging.serve([listener])

        # Not a nursery: an async generator may be left at a yield; a nursery must not.
        trio.lowlevel.spawn_system_task(serve, name="flux.spark staging")
        try:
            async with contextlib.aclosing(staging.committed(self._tick_s)) as arriving:
                async for committed in arriving:
                    if committed is None:
                        yield self._boundary(place, times)
                        continue
                    for batch in self._source_batches(committed, place, times):
                        yield batch
        finally:
            serve_scope.cancel()

    def _source_batches(self, committed: CommittedBatch, place: BatchPlace, times: BatchTimes) -> Iterator[SourceBatch]:
        """Yield the rows of a micro-batch after `place`; its boundary carries the callback that acknowledges it."""
        if place.is_past(committed):
            # An ingress may die after it journals that all copies have a batch, and before it reports that here.
            committed.done()
            return
        done_rows = place.enter(committed)
        position = 0
        for rows in committed.batches():
            rest = rows.slice(max(0, done_rows - position))
            position += rows.num_rows
            if rest.num_rows:
                rest = self._as_declared(rest)
                times.observe(rest)
                place.rows, place.times = position, times.plain
                yield SourceBatch(rest, offset=place.plain)
        yield replace(self._boundary(place, times), received=committed.done)

    def _boundary(self, place: BatchPlace, times: BatchTimes) -> SourceBatch:
        """Return the end of a micro-batch, which may be one without rows."""
        punctuations = times.punctuations(place.batch_id)
        place.boundaries, place.times = place.boundaries + 1, times.plain
        return SourceBatch(pa.RecordBatch.from_pylist([], self.schema), offset=place.plain, punctuations=punctuations)

    def _as_declared(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field, column in zip(self.schema, rows.columns, strict=True):
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowException as error:
                raise SourceError(
                    f"flux.spark.Stream: column {field.name!r} was declared {field.type}, but Spark sent "
                    f"{column.type} that does not fit: {error}; correct `types`"
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _lost_end(batch_id: int) -> SourceError:
    return SourceError(
        "the ingress's journal has lost its end, as it may when a machine loses power: every copy has received "
        f"micro-batch {batch_id}, Spark has committed it and its rows are not staged any more, and the journal has not "
        "the numbers of all of them. Rows of a later micro-batch must not get those numbers. Output up to now is "
        "right; run the flow again"
    )


def _check_trigger(df: Any, trigger: Mapping[str, Any]) -> None:
    """Raise `PlanError` for a trigger that Spark would refuse, before anything is started."""
    if "continuous" in trigger:
        raise PlanError(
            "flux.spark.Stream: trigger continuous has no micro-batches, in which rows are transferred; use "
            '{"processingTime": "0 seconds"}'
        )
    if trigger:
        try:
            df.writeStream.trigger(**trigger)
        except Exception as error:
            raise PlanError(f"flux.spark.Stream: trigger {dict(trigger)!r}: {_reason(error)}") from error


def _arrow_schema(df: Any, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the schema of the record batches that Spark will send."""
    from pyspark.sql.pandas.types import to_arrow_schema

    conf = df.sparkSession.conf
    try:
        schema = to_arrow_schema(
            df.schema,
            timezone=conf.get("spark.sql.session.timeZone"),
            prefers_large_types=conf.get("spark.sql.execution.arrow.useLargeVarTypes") == "true",
        )
    except Exception as error:
        raise PlanError(f"flux.spark.Stream: Spark cannot send a column: {_reason(error)}") from error
    unknown = sorted(set(types) - set(schema.names))
    if unknown:
        raise PlanError(f"flux.spark.Stream: types names {unknown}, but the columns are {schema.names}")
    fields = [pa.field(field.name, types.get(field.name, field.type), field.nullable) for field in schema]
    try:
        return normalize_schema(pa.schema(fields))
    except ColumnError as error:
        raise PlanError(f"flux.spark.Stream: {error}") from error


@contextlib.contextmanager
def _large_arrow_batches(spark: Any) -> Iterator[None]:
    """Raise the size of Arrow batches for a query started in this block; a query keeps the settings of its start."""
    if spark.conf.get(ARROW_ROWS) != "10000":
        yield
        return
    spark.conf.set(ARROW_ROWS, str(ARROW_ROWS_WANTED))
    try:
        yield
    finally:
        spark.conf.unset(ARROW_ROWS)


def _reason(failure: Exception) -> str:
    """Return in one line why a query failed; Spark's text is a page of plans and stack traces."""
    text = str(failure)
    for rest in ("=== Streaming Query ===", "\n\nJVM stacktrace:", "\n\tat "):
        text = text.split(rest)[0]
    lines = [line for line in text.splitlines() if line.strip()]
    if "Traceback (most recent call last):" in text:
        # Of a Python traceback the last line that is not indented is the error itself.
        lines = [line for line in lines if not line.startswith(" ")][-1:]
    reason = " ".join(" ".join(lines).split())
    return reason or type(failure).__name__


def _describe(df: Any) -> str:
    if hasattr(df, "isStreaming"):
        return "one that is not streaming"
    return f"a {type(df).__module__}.{type(df).__qualname__}"
