"""`flux.spark.Stream`: a streaming DataFrame as the source of a dataflow.

A `Stream` lives on both sides of a fork. In the user's program, which holds the Spark session, `bind` makes the
listening socket and the secret before the processes are forked, and `start` starts a streaming query that writes to
them. In the ingress process, a fork, `batches` serves the socket and yields what Spark has committed; there
nothing of Spark is touched. When the query ends, a thread of the user's program says so over the same socket.

Spark sees a sink that commits a micro-batch when every live copy of the dataflow has received it. So Spark's own
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
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

from ...sources import Source, SourceBatch, SourceContext
from ...types.errors import FluxError, PlanError
from ...types.normalize import ColumnError, normalize_schema
from ..session import activate, driver_host, register
from .batch_times import BatchTimes, watermarked
from .staging import CommittedBatch, Staging
from .staging_protocol import HANDSHAKE_TIMEOUT_S

__all__ = ["Stream"]

log = logging.getLogger("flux.spark")

LISTEN_BACKLOG = 128
SECRET_BYTES = 32

# An ingress that is there answers in milliseconds; one that is not is not waited for.
STOP_TIMEOUT_S = 5.0
RETRY_PAUSE_S = 0.2

# Spark takes the Python of its workers from here when a session is made. If flux.spark is imported earlier, this
# is enough; if later, `register` corrects it for a local session.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
# Six times Spark's default costs Spark less for each row, and the ingress has nothing to put together.
ARROW_ROWS_WANTED = 64 * 1024
# Spark's timers of processing time fire with the next micro-batch; one without rows every second is often enough.
TICK_S = 1.0


@dataclass(slots=True)
class BatchPlace:
    """Where the stream stands: its offset. So many rows of a micro-batch, and so many boundaries behind them."""

    batch_id: int = -1
    rows: int = 0
    boundaries: int = 1
    times: Any = None

    @classmethod
    def of(cls, plain: Any) -> BatchPlace:
        """What `plain` was; None is the beginning."""
        return cls() if plain is None else cls(*plain)

    @property
    def plain(self) -> list[Any]:
        """The offset in msgpack types."""
        return [self.batch_id, self.rows, self.boundaries, self.times]

    def is_behind(self, committed: CommittedBatch) -> bool:
        """Whether all of a micro-batch, its boundary too, has been given."""
        return (committed.batch_id, 0) < (self.batch_id, self.boundaries)

    def enter(self, committed: CommittedBatch) -> int:
        """Go on with a micro-batch; returns how many of its rows have been given."""
        if committed.batch_id != self.batch_id:
            self.batch_id, self.rows, self.boundaries = committed.batch_id, 0, 0
        return self.rows


class Stream(Source):
    """The rows of a streaming DataFrame, each once, in the order of micro-batches and their partitions.

    `trigger` is what `DataStreamWriter.trigger` takes, as a dict; by default ``{"availableNow": True}``: what is
    there now is read and then the stream ends. `checkpoint` is Spark's checkpoint location; without one the
    query begins anew in each run. `types` replaces Arrow types that Spark cannot say, for example
    ``{"data": pa.binary(32)}`` for binary values that are all 32 bytes long; a value that does not fit ends
    the run. A query that fails ends the run, unless it has `restarts` left: then it is started again from its
    checkpoint, and neither loses nor repeats a row.

    Behind each micro-batch stand its boundary, the clock, and the watermark if ``df.withWatermark(...)`` asks for one:
    Spark's own operators (`flux.spark.stateful_processor`) go by them. While nothing comes, an empty micro-batch every
    `tick_s` seconds lets the clock go on, as Spark does; not with ``availableNow`` or ``once``, where the stream ends.

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
    ) -> None:
        if not getattr(df, "isStreaming", False):
            raise PlanError(
                "flux.spark.Stream: a streaming DataFrame (from spark.readStream) was expected, "
                f"{_described(df)} came; for one that is not streaming use flux.spark.Frame(df)"
            )
        if trigger is not None and not isinstance(trigger, Mapping):
            raise PlanError(
                "flux.spark.Stream: trigger must be the keywords of DataStreamWriter.trigger, such as "
                f'{{"processingTime": "1 second"}}; it is {trigger!r}'
            )
        _check_trigger(df, trigger or {})
        if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 0:
            raise PlanError(f"flux.spark.Stream: restarts counts how often; it is {restarts!r}")
        self._restarts = restarts
        self._df = df
        self._trigger = dict(trigger) if trigger is not None else {"availableNow": True}
        self._checkpoint = os.fspath(checkpoint) if checkpoint is not None else None
        self.schema = _arrow_schema(df, types or {})
        self._watermarked = watermarked(df)
        self.is_endless = not self._trigger.keys() & {"availableNow", "once"}
        self._tick_s = tick_s if self.is_endless else None
        self._listener: socket.socket | None = None
        self._secret = b""
        self._directory = Path()
        self._address = ""
        self._query: Any = None
        self._stopping = threading.Event()
        self._changing = threading.Lock()  # Of who starts or stops the query.
        self._waiter: threading.Thread | None = None

    @property
    def query(self) -> Any:
        """The `StreamingQuery` between start and stop, for its progress; else None."""
        return self._query

    # In the user's program.

    def bind(self, directory: Path) -> None:
        """Make the socket and the secret, so that both sides of the fork know them."""
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
        """Close this process's end of the socket: if the ingress dies, Spark is refused at once, not left waiting."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def start(self) -> None:
        """Start the streaming query, and a thread that tells the ingress how it ended."""
        if self._listener is None:
            raise FluxError("flux.spark.Stream: start was called before bind; a run calls both, in order")
        register(self._df.sparkSession)
        checkpoint = self._checkpoint or tempfile.mkdtemp(prefix="checkpoint-", dir=self._directory)
        self._query = self._begin(checkpoint)
        self._stopping.clear()
        self._waiter = threading.Thread(
            target=self._mind, args=(self._query, checkpoint), name="flux-spark-end", daemon=True
        )
        self._waiter.start()

    def _begin(self, checkpoint: str) -> Any:
        writer = (
            self._df.writeStream.format("flux")
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
        with self._changing:
            query, self._query = self._query, None
        # Closed first: the ingress holds the socket too. If it is gone, we and Spark's commit are refused at once.
        self.release()
        if query is not None and query.isActive:
            # Spark waits for a commit that is under way, and the commit for the ingress, if there still is one.
            self._tell({"do": "stop"}, STOP_TIMEOUT_S)
        if query is not None:
            query.stop()
        if self._waiter is not None:
            self._waiter.join()
            self._waiter = None

    def _mind(self, query: Any, checkpoint: str) -> None:
        """Wait for the query to end; start it again if it failed and may be; then tell the ingress."""
        left = self._restarts
        while (error := self._how_it_ended(query)) is not None and left > 0:
            left -= 1
            log.warning("%s; it is started again from its checkpoint", error)
            with self._changing:
                if self._stopping.is_set():
                    return
                try:
                    activate(self._df.sparkSession)
                    query = self._query = self._begin(checkpoint)
                except Exception as failure:
                    error = f"flux.spark.Stream: the Spark query could not be started again: {_reason(failure)}"
                    break
        self._tell_the_end(error)

    def _how_it_ended(self, query: Any) -> str | None:
        """None: all that there is was read. Else why it failed."""
        try:
            query.awaitTermination()
        except Exception as failure:
            # A query that was told to stop may well fail of it.
            if not self._stopping.is_set():
                return f"flux.spark.Stream: the Spark query failed: {_reason(failure)}"
        return None

    def _tell_the_end(self, error: str | None) -> None:
        # An ingress that was killed is restarted by the run, and must hear of the end too. The run is over when
        # the socket is closed, which refuses us, or when `stop` was called.
        while not self._tell({"do": "end", "error": error}, HANDSHAKE_TIMEOUT_S):
            if self._stopping.wait(RETRY_PAUSE_S):
                return

    def _tell(self, request: dict[str, Any], timeout_s: float) -> bool:
        """Tell the ingress something; returns false if it was out of reach, but may come back."""
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
        """Yield what Spark commits until the query ends; raise `FluxError` with its reason if it failed.

        An offset is a micro-batch and how many of its rows: one that is not done is still staged.
        """
        if self._listener is None:
            raise FluxError("flux.spark.Stream: batches was asked for before bind; a run calls both, in order")
        place = BatchPlace.of(after)
        times = BatchTimes(*self._watermarked, place.times)
        staging = Staging(context.directory, self._secret)
        # A copy of its own, which `stop` in the user's program does not close even where there was no fork.
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._listener.dup()))
        serving = trio.CancelScope()

        async def serve() -> None:
            with serving:
                await staging.serve([listener])

        # Not a nursery: an async generator may be left at a yield, and a nursery must not be.
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
            serving.cancel()

    def _source_batches(self, committed: CommittedBatch, place: BatchPlace, times: BatchTimes) -> Iterator[SourceBatch]:
        """Yield what is behind `place` of a micro-batch; its boundary, or nobody, says that all was received."""
        if place.is_behind(committed):
            # An ingress may die between noting that all copies have a batch and saying so here.
            committed.done()
            return
        done_rows = place.enter(committed)
        position = 0
        for rows in committed.batches():
            rest = rows.slice(max(0, done_rows - position))
            position += rows.num_rows
            if rest.num_rows:
                rest = self._as_declared(rest)
                times.see(rest)
                place.rows, place.times = position, times.plain
                yield SourceBatch(rest, offset=place.plain)
        yield replace(self._boundary(place, times), received=committed.done)

    def _boundary(self, place: BatchPlace, times: BatchTimes) -> SourceBatch:
        """The end of a micro-batch; also of one without rows."""
        punctuations = times.punctuations(place.batch_id)
        place.boundaries, place.times = place.boundaries + 1, times.plain
        return SourceBatch(pa.RecordBatch.from_pylist([], self.schema), offset=place.plain, punctuations=punctuations)

    def _as_declared(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field, column in zip(self.schema, rows.columns, strict=True):
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowException as error:
                raise FluxError(
                    f"flux.spark.Stream: column {field.name!r} was declared {field.type}, but Spark sent "
                    f"{column.type} that does not fit: {error}; correct `types`"
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _check_trigger(df: Any, trigger: Mapping[str, Any]) -> None:
    """`PlanError` if Spark would not have it: then nothing is started."""
    if "continuous" in trigger:
        raise PlanError(
            "flux.spark.Stream: trigger continuous has no micro-batches, by which rows are handed over; use "
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
        raise PlanError(f"flux.spark.Stream: Spark cannot hand a column on: {_reason(error)}") from error
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
    """Raise the size of Arrow batches for a query started meanwhile; a query keeps the settings of its start."""
    if spark.conf.get(ARROW_ROWS) != "10000":
        yield
        return
    spark.conf.set(ARROW_ROWS, str(ARROW_ROWS_WANTED))
    try:
        yield
    finally:
        spark.conf.unset(ARROW_ROWS)


def _reason(failure: Exception) -> str:
    """Return in one line why a query failed; Spark's text is a page with plans and stack traces."""
    text = str(failure)
    for rest in ("=== Streaming Query ===", "\n\nJVM stacktrace:", "\n\tat "):
        text = text.split(rest)[0]
    lines = [line for line in text.splitlines() if line.strip()]
    if "Traceback (most recent call last):" in text:
        # Of a Python traceback the last line that is not indented is the error itself.
        lines = [line for line in lines if not line.startswith(" ")][-1:]
    reason = " ".join(" ".join(lines).split())
    return reason or type(failure).__name__


def _described(df: Any) -> str:
    if hasattr(df, "isStreaming"):
        return "one that is not streaming"
    return f"a {type(df).__module__}.{type(df).__qualname__}"
