"""`spark.readStream.format("flux")` with a real Spark: a dataflow's output as a stream, and as its checkpoint says.

Its time is Spark's: a query takes seconds to start and to stop, and each micro-batch about one.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_ingress import DEADLINE_S

import flux
from experiments.spark_sites.executors import wait_until
from flux.spark.sink import outlet_store
from flux.spark.source.spark_stream import _reason

ROWS = 5_000


class Counted(flux.KeyedOperator):
    output = pa.schema(
        {
            "k": pa.int64(),
            "count": pa.uint32(),
            "name": pa.string(),
            "at": pa.timestamp("us", tz="UTC"),
            "data": pa.binary(3),
        }
    )

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        count = (state or 0) + 1
        at = datetime.fromtimestamp(count, UTC)
        return count, [{"k": row.k, "count": count, "name": str(row.k), "at": at, "data": b"abc"}]


def start(outlet: Path, rate: float | None = None, **settings: Any) -> Any:
    """Start a dataflow that counts, with its output for Spark."""
    flow = flux.Dataflow("counted")
    numbers = pa.table({"k": [n % 7 for n in range(ROWS)]})
    events = flow.source(flux.sources.Table(numbers, rate=rate, batch_rows=500))
    events.exchange("k", partitions=4).apply(Counted).sink(flux.spark.Outlet(outlet, **settings))
    return flow.start(sites=2)


def expected() -> list[tuple[int, int]]:
    return sorted((n % 7, n // 7 + 1) for n in range(ROWS))


def frame(spark: Any, outlet: Path, **options: Any) -> Any:
    flux.spark.register(spark)
    reader = spark.readStream.format("flux").option("path", str(outlet))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def query(df: Any, folder: Path, **trigger: Any) -> Any:
    writer = df.writeStream.format("parquet").option("path", str(folder / "table"))
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(**trigger).start()


def to_its_end(df: Any, folder: Path) -> Any:
    """Run a query until it ends by itself, and return it; from its checkpoint again where Spark was too slow.

    Spark gives a process of its own 10 s to start, which it may not do on a machine that is busy with tests.
    """
    deadline = time.monotonic() + 10 * DEADLINE_S
    while True:
        reading = query(df, folder, availableNow=True)
        try:
            assert reading.awaitTermination(10 * DEADLINE_S)
            return reading
        except Exception as error:
            if "failed to connect back" not in str(error) or time.monotonic() > deadline:
                raise


def counted(spark: Any, folder: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(folder / "table")).select("k", "count").collect()
    return sorted((row["k"], row["count"]) for row in rows)


@pytest.mark.long
def test_a_query_reads_the_output_to_its_end_while_it_comes(spark: Any, tmp_path: Path) -> None:
    with start(tmp_path / "outlet", max_rows=1_000) as run:
        df = frame(spark, tmp_path / "outlet", maxRowsPerTrigger=900, until="end")
        assert df.dtypes == [
            ("k", "bigint"),
            ("count", "bigint"),
            ("name", "string"),
            ("at", "timestamp"),
            ("data", "binary"),
        ]
        reading = to_its_end(df, tmp_path)
        assert run.wait(timeout=10 * DEADLINE_S).outputs == ROWS
    assert counted(spark, tmp_path) == expected()
    assert max(progress["numInputRows"] for progress in reading.recentProgress) <= 900
    row = spark.read.parquet(str(tmp_path / "table")).where("k = 3 and count = 5").first()
    assert (row["name"], bytes(row["data"]), row["at"].timestamp()) == ("3", b"abc", 5.0)


def test_an_outlet_that_is_full_before_the_query_begins_goes_on(spark: Any, tmp_path: Path) -> None:
    # The first micro-batch takes all there is. Spark commits it when it plans the next, for which there must be room.
    with start(tmp_path / "outlet", max_rows=1_000) as run:
        run.wait_for_output(1_000, timeout=10 * DEADLINE_S)
        to_its_end(frame(spark, tmp_path / "outlet", until="end"), tmp_path)
        assert run.wait(timeout=10 * DEADLINE_S).outputs == ROWS
    assert counted(spark, tmp_path) == expected()


def test_a_query_that_is_restarted_goes_on_from_its_checkpoint(spark: Any, tmp_path: Path) -> None:
    with start(tmp_path / "outlet", rate=2_000, segment_bytes=1) as run:  # So it comes in several segments.
        run.wait(timeout=10 * DEADLINE_S)
    segments = len(list((tmp_path / "outlet").glob("*.rows")))
    first, deadline = None, time.monotonic() + 10 * DEADLINE_S
    df = frame(spark, tmp_path / "outlet", maxRowsPerTrigger=1_000)
    while first is None or first.lastProgress is None or first.lastProgress["batchId"] < 1:
        if first is None or not first.isActive:  # Too slow, as above.
            first = query(df, tmp_path, processingTime="0 seconds")
        assert time.monotonic() < deadline, first.exception()
        time.sleep(0.05)
    first.stop()
    to_its_end(frame(spark, tmp_path / "outlet"), tmp_path)
    assert counted(spark, tmp_path) == expected()
    assert len(list((tmp_path / "outlet").glob("*.rows"))) < segments, "what is committed is deleted"


def test_a_query_that_waits_for_rows_can_be_stopped(spark: Any, tmp_path: Path) -> None:
    flow = flux.Dataflow("silent")
    quiet = flow.source(flux.sources.Generator(lambda offset, count: {"k": [1]}, rate=0.01, batch_rows=1))
    quiet.exchange("k", partitions=2).apply(Counted).sink(flux.spark.Outlet(tmp_path / "outlet"))
    with flow.start(sites=2):
        waiting = query(frame(spark, tmp_path / "outlet", until="end"), tmp_path, availableNow=True)
        # The first row comes at once, the next in minutes; it has been asked for when the first is done with.
        wait_until(lambda: outlet_store.read_end(str(tmp_path / "outlet")) == 1 or not waiting.isActive, "first row")
        assert waiting.isActive, waiting.exception()
        began = time.monotonic()
        waiting.stop()
        assert not waiting.isActive and time.monotonic() < began + DEADLINE_S


def test_an_option_that_there_is_none_is_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception) as raised:
        frame(spark, tmp_path, maxRowsPerTriger=5)
    assert "there is no option 'maxrowspertriger' to read; options are path, maxRows" in _reason(raised.value)


def test_an_outlet_is_read_as_a_stream(spark: Any, tmp_path: Path) -> None:
    with start(tmp_path / "outlet") as run:
        run.wait(timeout=10 * DEADLINE_S)
    flux.spark.register(spark)
    with pytest.raises(Exception) as raised:
        spark.read.format("flux").option("path", str(tmp_path / "outlet")).load().collect()
    assert 'format("flux") is read as a stream: spark.readStream' in _reason(raised.value)


def test_a_directory_that_is_no_outlet_is_said_in_one_line(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception) as raised:  # which class it is, is Spark's affair
        frame(spark, tmp_path)
    assert f'FileNotFoundError: format("flux"): {tmp_path} is not an outlet of a dataflow' in _reason(raised.value)


@pytest.mark.long
def test_a_second_query_on_an_outlet_is_refused_and_the_first_reads_all(spark: Any, tmp_path: Path) -> None:
    outlet = tmp_path / "outlet"
    with start(outlet) as run:
        run.wait(timeout=10 * DEADLINE_S)
    df = frame(spark, outlet, maxRowsPerTrigger=500)
    first = query(df, tmp_path / "first", processingTime="0 seconds")

    def has_read(rows: int) -> bool:
        nonlocal first
        if not first.isActive:  # Too slow, as above.
            first = query(df, tmp_path / "first", processingTime="0 seconds")
        return outlet_store.read_end(str(outlet)) >= rows

    try:
        wait_until(lambda: has_read(1), "first rows")
        with pytest.raises(Exception) as raised:  # which class it is, is Spark's affair
            to_its_end(frame(spark, outlet), tmp_path / "second")
        assert "another query reads" in _reason(raised.value)
        wait_until(lambda: has_read(ROWS), "all rows")
    finally:
        first.stop()
    assert counted(spark, tmp_path / "first") == expected()
