"""The hand-off with a real Spark: `flux.spark.Stream` and the data source "flux".

Its time is Spark's: a query takes seconds to start and to stop, and each micro-batch about one.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from spark_ingress import DEADLINE_S, IngressFactory

from flux.sources import SourceContext
from flux.spark import Stream
from flux.spark.source.spark_stream import ARROW_ROWS, _reason
from flux.types.errors import FluxError, PlanError

FILES = 10
FILES_PER_BATCH = 2
FILE_ROWS = 10_000
ROWS = FILES * FILE_ROWS


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten files whose values count up through all of them; Spark reads them by age, two to a micro-batch."""
    folder = tmp_path_factory.mktemp("rows")
    for number in range(FILES):
        path = folder / f"{number}.parquet"
        first = number * FILE_ROWS
        columns = {
            "value": np.arange(first, first + FILE_ROWS, dtype=np.int64),
            "data": pa.repeat(pa.scalar(bytes(32)), FILE_ROWS),
        }
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return folder


def read(spark: Any, folder: Path) -> Any:
    reader = spark.readStream.schema("value long, data binary").option("maxFilesPerTrigger", FILES_PER_BATCH)
    return reader.parquet(str(folder))


class Consumer:
    """What an ingress does with a stream, in a thread instead of a fork."""

    def __init__(self, stream: Stream, directory: Path, *, received: bool = True, after: Any = None) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.ends: list[int] = []
        self.error: Exception | None = None
        self.has_rows = threading.Event()
        self.offset = after
        self._received = received
        stream.bind(directory)
        self._thread = threading.Thread(target=trio.run, args=(self._consume, stream, directory), daemon=True)
        self._thread.start()
        stream.start()

    async def _consume(self, stream: Stream, directory: Path) -> None:
        try:
            async for batch in stream.batches(SourceContext(directory), self.offset):
                self.offset = batch.offset
                if batch.rows.num_rows:  # Boundaries of micro-batches have none.
                    self.batches.append(batch.rows)
                if batch.received is not None:
                    self.ends.append(sum(rows.num_rows for rows in self.batches))
                    if self._received:
                        batch.received()
                if batch.rows.num_rows:
                    self.has_rows.set()
        except Exception as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def values(self) -> list[int]:
        return [value for rows in self.batches for value in rows.column("value").to_pylist()]


def consume(stream: Stream, directory: Path, after: Any = None) -> Consumer:
    consumer = Consumer(stream, directory, after=after)
    consumer.join()
    stream.stop()
    return consumer


def test_a_stream_arrives_complete_once_and_in_order(spark: Any, folder: Path, tmp_path: Path) -> None:
    stream = Stream(read(spark, folder))
    consumer = consume(stream, tmp_path)

    assert consumer.error is None
    assert sorted(consumer.values()) == list(range(ROWS))
    # Two files to a micro-batch: each ends where a pair of files ends, and holds that pair, each file in order.
    assert consumer.ends == [(number + 1) * 2 * FILE_ROWS for number in range(FILES // FILES_PER_BATCH)]
    by_file = np.array(consumer.values()).reshape(FILES, FILE_ROWS)
    assert (np.diff(by_file) == 1).all()
    assert [set(pair) for pair in (by_file[:, 0] // FILE_ROWS).reshape(-1, 2)] == [
        {number, number + 1} for number in range(0, FILES, 2)
    ]
    assert all(rows.schema.equals(stream.schema) for rows in consumer.batches)


def test_rows_are_in_the_order_of_spark_partitions(spark: Any, folder: Path, tmp_path: Path) -> None:
    from pyspark.sql.functions import spark_partition_id

    consumer = consume(Stream(read(spark, folder).withColumn("part", spark_partition_id())), tmp_path)
    parts = np.concatenate([rows.column("part").to_numpy() for rows in consumer.batches])
    per_batch = parts.reshape(-1, FILES_PER_BATCH * FILE_ROWS)
    assert (np.diff(per_batch) >= 0).all()
    assert set(parts) == {0, 1}


@pytest.mark.long
def test_a_task_that_fails_once_leaves_no_trace(spark: Any, folder: Path, tmp_path: Path) -> None:
    from pyspark.sql.functions import udf

    def fail_once(value: int) -> int:
        from pyspark import TaskContext

        task = TaskContext.get()
        if value % FILE_ROWS == FILE_ROWS // 2 and task.partitionId() == 1 and task.attemptNumber() == 0:
            raise RuntimeError("this attempt fails in the middle")
        return value

    spark.conf.set(ARROW_ROWS, "1000")
    try:
        df = read(spark, folder).withColumn("value", udf(fail_once, "long", useArrow=False)("value"))
        consumer = consume(Stream(df), tmp_path)
    finally:
        spark.conf.unset(ARROW_ROWS)
    assert consumer.error is None
    assert sorted(consumer.values()) == list(range(ROWS))
    for _ in range(100):  # The failed attempt ends when it ends.
        if not trace(tmp_path):
            break
        time.sleep(0.1)
    assert trace(tmp_path) == []


def trace(folder: Path) -> list[Path]:
    return [*folder.rglob("*.arrow"), *folder.rglob("*.part")]


def test_a_batch_that_spark_commits_again_is_ignored(spark: Any, folder: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    first = consume(Stream(read(spark, folder), checkpoint=checkpoint), tmp_path)
    assert len(first.values()) == ROWS

    # As if Spark and the ingress had died between our answer and Spark's own note of it.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    again = consume(Stream(read(spark, folder), checkpoint=checkpoint), tmp_path, first.offset)

    assert again.error is None and again.values() == []
    assert last.exists()


def test_a_query_that_fails_raises_its_reason_in_one_line(spark: Any, folder: Path, tmp_path: Path) -> None:
    from pyspark.sql.functions import udf

    def fail(value: int) -> int:
        raise ValueError("no such planet")

    consumer = consume(
        Stream(read(spark, folder).withColumn("value", udf(fail, "long", useArrow=False)("value"))), tmp_path
    )
    assert isinstance(consumer.error, FluxError)
    assert str(consumer.error) == "flux.spark.Stream: the Spark query failed: ValueError: no such planet"


def test_a_wrong_secret_fails_the_query_with_one_clear_error(
    spark: Any, folder: Path, tmp_path: Path, ingress: IngressFactory
) -> None:
    one = ingress()
    query = (
        read(spark, folder)
        .writeStream.format("flux")
        .option("address", one.address)
        .option("secret", bytes(32).hex())
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    with pytest.raises(Exception) as raised:  # which class it is, is Spark's affair
        query.awaitTermination()
    reason = _reason(raised.value)
    assert reason.startswith("PermissionError: flux staging at 127.0.0.1:")
    assert "the secret of this query is not the one of this run" in reason
    assert one.taken == []


def test_stop_ends_a_query_whose_commit_waits(spark: Any, folder: Path, tmp_path: Path) -> None:
    stream = Stream(read(spark, folder), trigger={"processingTime": "0 seconds"})
    consumer = Consumer(stream, tmp_path, received=False)
    assert consumer.has_rows.wait(DEADLINE_S)
    stream.stop()
    consumer.join()
    assert consumer.error is None
    assert len(consumer.values()) == FILES_PER_BATCH * FILE_ROWS
    stream.stop()


def test_types_say_what_spark_cannot(spark: Any, folder: Path, tmp_path: Path) -> None:
    stream = Stream(read(spark, folder), types={"data": pa.binary(32)})
    assert stream.schema.field("data").type == pa.binary(32)
    consumer = consume(stream, tmp_path)
    assert consumer.error is None
    assert {rows.schema.field("data").type for rows in consumer.batches} == {pa.binary(32)}


def test_a_value_that_does_not_fit_its_type_is_named(spark: Any, folder: Path, tmp_path: Path) -> None:
    consumer = Consumer(stream := Stream(read(spark, folder), types={"data": pa.binary(16)}), tmp_path)
    consumer.join()
    stream.stop()
    assert isinstance(consumer.error, FluxError)
    assert "column 'data' was declared fixed_size_binary[16], but Spark sent binary" in str(consumer.error)


def test_times_and_nested_values_have_the_declared_types(spark: Any, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    spark.createDataFrame(
        [(datetime(2024, 5, 1, tzinfo=UTC), "x", [1, None], None)],
        "at timestamp, name string, counts array<int>, cost decimal(10,2)",
    ).write.parquet(str(rows))
    df = spark.readStream.schema(spark.read.parquet(str(rows)).schema).parquet(str(rows))
    stream = Stream(df)
    consumer = consume(stream, tmp_path)
    assert stream.schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert [batch.to_pylist() for batch in consumer.batches] == [
        [{"at": datetime(2024, 5, 1, tzinfo=UTC), "name": "x", "counts": [1, None], "cost": None}]
    ]


def test_record_batches_are_large_and_the_setting_is_put_back(spark: Any, folder: Path, tmp_path: Path) -> None:
    before = spark.conf.get(ARROW_ROWS)
    consumer = consume(Stream(read(spark, folder)), tmp_path)
    assert spark.conf.get(ARROW_ROWS) == before
    # The two files of a micro-batch, one to a task, fit together in one record batch.
    assert [rows.num_rows for rows in consumer.batches] == [2 * FILE_ROWS] * (FILES // FILES_PER_BATCH)


def test_the_ingress_is_a_fork_that_does_not_touch_spark(spark: Any, folder: Path, tmp_path: Path) -> None:
    stream = Stream(read(spark, folder))
    stream.bind(tmp_path)
    if (child := os.fork()) == 0:
        status = 1
        try:
            status = trio.run(_count_in_fork, stream, tmp_path)
        finally:
            os._exit(status)
    stream.start()
    assert os.waitpid(child, 0)[1] == 0
    stream.stop()
    assert spark.range(10).count() == 10


async def _count_in_fork(stream: Stream, directory: Path) -> int:
    rows = 0
    async for batch in stream.batches(SourceContext(directory)):
        rows += batch.rows.num_rows
        if batch.received is not None:
            batch.received()
    del stream
    gc.collect()
    return 0 if rows == ROWS else 2


def test_a_restarted_ingress_gets_the_report_of_the_end(spark: Any, folder: Path, tmp_path: Path) -> None:
    stream = Stream(read(spark, folder))
    stream.bind(tmp_path)
    assert stream._listener is not None
    reporter = threading.Thread(target=stream._report_end, args=(None,))
    stream._stopping.clear()
    reporter.start()
    # The first ingress dies before it answers.
    connection, _ = stream._listener.accept()
    connection.close()
    assert trio.run(_count_in_fork, stream, tmp_path) == 2
    reporter.join(DEADLINE_S)
    assert not reporter.is_alive()
    stream.stop()


def refused(stream: Stream) -> bool:
    """Whether no process holds the stream's socket any more."""
    host, port = stream._address.split(":")
    try:
        socket.create_connection((host, int(port)), DEADLINE_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_process_that_is_not_the_ingress_lets_go_of_the_socket(spark: Any, folder: Path, tmp_path: Path) -> None:
    stream = Stream(read(spark, folder))
    stream.bind(tmp_path)
    assert not refused(stream)
    stream.release()
    assert refused(stream)
    stream.release()


def test_when_the_ingress_is_dead_stop_is_refused_at_once(
    spark: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WaitingQuery:
        isActive = True

        def stop(self) -> None:
            requests.append("stopped")

    requests: list[Any] = []
    stream = Stream(read(spark, folder))
    monkeypatch.setattr(
        stream, "_send_to_ingress", lambda request, timeout_s: requests.append((request["do"], refused(stream)))
    )
    stream.bind(tmp_path)
    stream._query = WaitingQuery()
    # No other process holds the socket, as when the ingress has died.
    stream.stop()
    assert requests == [("stop", True), "stopped"]


def test_a_stream_serves_one_run_at_a_time(spark: Any, folder: Path, tmp_path: Path) -> None:
    stream = Stream(read(spark, folder))
    stream.bind(tmp_path)
    with pytest.raises(PlanError, match="in use by a run"):
        stream.bind(tmp_path)
    assert not refused(stream)
    stream.stop()
    stream.bind(tmp_path)
    stream.stop()


def test_columns_with_names_of_flux_or_the_same_name_are_refused(spark: Any, folder: Path) -> None:
    with pytest.raises(PlanError, match=r"flux\.spark\.Stream: a column cannot be called '__sn'"):
        Stream(read(spark, folder).withColumnRenamed("value", "__sn"))
    with pytest.raises(PlanError, match=r"flux\.spark\.Stream: column names must differ; 'data'"):
        Stream(read(spark, folder).withColumnRenamed("value", "data"))


def test_only_a_streaming_dataframe_is_taken(spark: Any) -> None:
    with pytest.raises(PlanError, match=r"got one that is not streaming; .* flux\.spark\.Frame"):
        Stream(spark.range(3))
    with pytest.raises(PlanError, match=r"got a builtins\.list"):
        Stream([1])


@pytest.mark.parametrize(
    ("trigger", "says"),
    [
        ({"every": 5}, "unexpected keyword argument 'every'"),
        ({"processingTime": "soon"}, "soon"),
        ({"continuous": "1 second"}, "continuous has no micro-batches"),
    ],
)
def test_a_trigger_that_spark_would_not_have_is_refused_before_anything_is_started(
    spark: Any, folder: Path, trigger: dict[str, Any], says: str
) -> None:
    with pytest.raises(PlanError, match=f"flux.spark.Stream: trigger .*{says}") as raised:
        Stream(read(spark, folder), trigger=trigger)
    assert "\n" not in str(raised.value)


def test_a_trigger_that_is_no_dict_is_refused(spark: Any, folder: Path) -> None:
    with pytest.raises(PlanError, match=r"trigger must be the keywords .* got .1 second."):
        Stream(read(spark, folder), trigger="1 second")  # type: ignore[arg-type]


def test_types_of_unknown_columns_are_refused(spark: Any, folder: Path) -> None:
    with pytest.raises(PlanError, match=r"types names \['date'\], but the columns are \['value', 'data'\]"):
        Stream(read(spark, folder), types={"date": pa.binary(32)})


def test_start_without_bind_is_an_error(spark: Any, folder: Path) -> None:
    with pytest.raises(FluxError, match="before bind"):
        Stream(read(spark, folder)).start()


def test_the_secret_is_not_in_the_checkpoint(spark: Any, folder: Path, tmp_path: Path) -> None:
    stream = Stream(read(spark, folder), checkpoint=tmp_path / "checkpoint")
    consume(stream, tmp_path)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert stream._secret and stream._secret.hex().encode() not in written
    assert json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"].encode() in written
