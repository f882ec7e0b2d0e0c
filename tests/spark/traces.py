"""What Spark does with a processor: its micro-batches, with their clock, watermark and output.

The input is a folder of files, one to a micro-batch, so that batches are what the test says. The clock and the
watermark of each are read from the query's own log of offsets. Flux is given the same and must give the same.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

INPUT = pa.schema([("id", pa.string()), ("value", pa.int32()), ("ts", pa.timestamp("us", "UTC"))])
DDL = "id string, value int, ts timestamp"
ZONE = "spark.sql.session.timeZone"
DEADLINE_S = 300.0
# What Spark says when a worker takes more than ten seconds to start, as on a machine that is very busy.
TOO_SLOW = "failed to connect back"

Rows = list[tuple[str | None, int, datetime]]


@dataclass(frozen=True)
class MicroBatch:
    """One of Spark's micro-batches: its rows (none, if it was run for its timers alone), times and output."""

    rows: Rows
    clock_ms: int
    watermark_ms: int
    output: list[tuple[Any, ...]]


def to_plain(batch: MicroBatch) -> dict[str, Any]:
    """A micro-batch in JSON types."""
    output = [[_paired(value) for value in row] for row in batch.output]
    plain = {"rows": batch.rows, "clock_ms": batch.clock_ms, "watermark_ms": batch.watermark_ms, "output": output}
    encoded: dict[str, Any] = json.loads(json.dumps(plain, default=datetime.isoformat))
    return encoded


def _paired(value: Any) -> Any:
    """A value of Spark's with its maps as lists of pairs by key, which are in no order; structs are tuples there."""
    if isinstance(value, dict):
        return [[key, _paired(of)] for key, of in sorted(value.items())]
    return [_paired(each) for each in value] if isinstance(value, list | tuple) else value


def from_plain(plain: dict[str, Any]) -> MicroBatch:
    """What `to_plain` was given, but for times in the output, which stay texts."""
    rows = [(key, value, datetime.fromisoformat(ts)) for key, value, ts in plain["rows"]]
    output = [tuple(row) for row in plain["output"]]
    return MicroBatch(rows, plain["clock_ms"], plain["watermark_ms"], output)


def comparable(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows whose order does not count: Spark's and Flux's partitions are not the same. Times are in UTC."""
    return sorted(repr([_naive(value) for value in row]) for row in rows)


def _naive(value: Any) -> Any:
    """A value as JSON has it: a struct is a list of its fields, a map one of its pairs by key."""
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
        value = sorted(value)
    if isinstance(value, list | tuple | dict):
        return [_naive(each) for each in (value.values() if isinstance(value, dict) else value)]
    return value.replace(tzinfo=None).isoformat() if isinstance(value, datetime) else value


def stream_of(spark: Any, files: Path, inputs: Sequence[Rows]) -> Any:
    """A streaming DataFrame with a micro-batch for each of the inputs, and a watermark of ten seconds."""
    files.mkdir(parents=True)
    for number, rows in enumerate(inputs):
        path = files / f"{number}.parquet"
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, INPUT, strict=True)]
        pq.write_table(pa.table(arrays, schema=INPUT), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    stream = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(files))
    return stream.withWatermark("ts", "10 seconds")


@dataclass
class Query:
    """A query under way, one file to a micro-batch."""

    folder: Path
    inputs: list[Rows]
    zone: str = "UTC"
    mode: str = "update"
    outputs: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    query: Any = None
    _writer: Any = None
    _conf: Any = None

    def start(self, spark: Any, applied: Callable[[Any], Any], trigger: dict[str, Any]) -> Query:
        """Start the query over `applied(stream)`; the stream has a watermark of ten seconds."""
        stream = stream_of(spark, self.folder / "in", self.inputs)
        writer = applied(stream).writeStream.foreachBatch(self._collect)
        writer = writer.outputMode(self.mode).option("checkpointLocation", str(self.folder / "checkpoint"))
        self._writer, self._conf = writer.trigger(**trigger), spark.conf
        self._begin()
        return self

    def _begin(self) -> None:
        """Start it, or go on where it was. A query keeps the settings that the session had when it was started."""
        was = self._conf.get(ZONE)
        self._conf.set(ZONE, self.zone)
        try:
            self.query = self._writer.start()
        finally:
            self._conf.set(ZONE, was)

    def _collect(self, df: Any, batch_id: int) -> None:
        self.outputs[batch_id] = [tuple(row) for row in df.collect()]

    def trace(self, batches: int) -> list[MicroBatch]:
        """Wait for so many micro-batches, stop, and tell them."""
        deadline = time.monotonic() + DEADLINE_S
        while len(self.outputs) < batches and time.monotonic() < deadline:
            error = self.query.exception()
            if error is not None and TOO_SLOW not in str(error):
                raise error
            if not self.query.isActive and len(self.outputs) < batches:
                self._begin()
            threading.Event().wait(0.05)
        self.query.stop()
        assert len(self.outputs) >= batches, f"Spark ran {len(self.outputs)} of {batches} micro-batches"
        return [self._told(number) for number in range(len(self.outputs)) if number in self.outputs]

    def _told(self, number: int) -> MicroBatch:
        _, metadata, *_ = (self.folder / "checkpoint" / "offsets" / str(number)).read_text().splitlines()
        times = json.loads(metadata)
        rows = self.inputs[number] if number < len(self.inputs) else []
        return MicroBatch(rows, times["batchTimestampMs"], times["batchWatermarkMs"], self.outputs[number])
