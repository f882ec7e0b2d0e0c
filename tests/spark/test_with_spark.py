"""Spark's operators under Flux, fed by Spark: a stream with its micro-batches, and a DataFrame that is no stream.

Its time is Spark's: a query takes seconds to start and to stop, and each micro-batch about one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import processors as p
import pyarrow as pa
import pytest
from cases import BERLIN, CASES, recorded
from traces import DDL, INPUT, ZONE, comparable, stream_of

import flux
from flux.spark import Frame, Stream, stateful_processor, to_dataframe
from flux.types.errors import FluxError, PlanError

EVENT_TIME = "event_timers"


def test_a_stream_brings_sparks_micro_batches_and_its_watermark(spark: Any, tmp_path: Path) -> None:
    """Event time does not depend on the clock: what is emitted is what Spark emitted when it was recorded."""
    source = Stream(stream_of(spark, tmp_path / "in", CASES[EVENT_TIME].inputs()))
    flow = flux.Dataflow("stream")
    flow.source(source).exchange("id", partitions=4).apply(CASES[EVENT_TIME].flux()).sink(flux.sinks.Collect())
    table = flow.run(sites=2).table
    expected = [row for batch in recorded(EVENT_TIME) for row in batch.output]
    assert comparable([tuple(row.values()) for row in table.to_pylist()]) == comparable(expected)


def test_a_static_dataframe_is_one_micro_batch_and_the_result_is_a_dataframe(spark: Any) -> None:
    rows = [row for batch in CASES[EVENT_TIME].inputs() for row in batch]
    frame = spark.createDataFrame(rows, "id string, value int, ts timestamp")
    flow = flux.Dataflow("static")
    counts = stateful_processor(p.RunningCount, p.RunningCount.OUTPUT)
    flow.source(Frame(frame)).exchange("id", partitions=4).apply(counts).sink(flux.sinks.Collect())
    result = to_dataframe(flow.run(sites=2), spark)
    assert result.columns == ["id", "count", "last", "clock", "watermark"]
    found = {row.id: row["count"] for row in result.collect()}
    assert found == {key: len([row for row in rows if row[0] == key]) for key in {row[0] for row in rows}}


def test_a_result_of_types_that_spark_has_not_is_widened(spark: Any) -> None:
    numbers = pa.table({"k": [1, 2], "n": pa.array([2**32 - 1, None], pa.uint32())})
    flow = flux.Dataflow("wide")
    flow.source(flux.sources.Table(numbers)).exchange("k", partitions=2).apply(flux.operators.Distinct).sink(
        flux.sinks.Collect()
    )
    result = to_dataframe(flow.run(sites=2), spark)
    assert result.dtypes == [("k", "bigint"), ("n", "bigint")]
    assert [tuple(row) for row in result.orderBy("k").collect()] == [(1, 2**32 - 1), (2, None)]


def test_a_result_that_was_not_collected_is_none(spark: Any) -> None:
    flow = flux.Dataflow("gone")
    flow.source(flux.sources.Table([{"k": 1}])).exchange("k", partitions=2).apply(flux.operators.Distinct).sink(
        flux.sinks.Null()
    )
    with pytest.raises(FluxError, match=r"collected nothing: it needs the sink flux.sinks.Collect"):
        to_dataframe(flow.run(sites=2), spark)


def test_the_clock_of_a_static_dataframe_is_that_of_the_wall_as_in_sparks_batch_mode(spark: Any) -> None:
    begun_ms = time.time_ns() // 1_000_000
    rows = [row for batch in CASES[EVENT_TIME].inputs() for row in batch]
    frame = spark.createDataFrame(rows, DDL)
    flow = flux.Dataflow("clock")
    clocks = stateful_processor(p.Clocks, p.Clocks.OUTPUT, "Update", "ProcessingTime")
    flow.source(Frame(frame)).exchange("id", partitions=4).apply(clocks).sink(flux.sinks.Collect())
    found = [tuple(row.values()) for row in flow.run(sites=2).table.to_pylist()]
    grouped = frame.groupBy("id")
    expected = grouped.transformWithState(p.Clocks(), p.Clocks.OUTPUT, "Update", "ProcessingTime").collect()
    assert comparable([row[:2] for row in found]) == comparable([tuple(row)[:2] for row in expected])
    for ours in (found, expected):
        [clock_ms] = {row[2] for row in ours}
        assert begun_ms <= clock_ms <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("rows", ["rows", "pandas"])
def test_times_are_in_the_time_zone_of_the_session(spark: Any, rows: str) -> None:
    """A static DataFrame comes in UTC, whatever the session says; a processor sees the session's zone all the same."""
    given = [row for batch in CASES[EVENT_TIME].inputs() for row in batch]
    cls, apply = (p.Hours, "transformWithState") if rows == "rows" else (p.Moments, "transformWithStateInPandas")
    was = spark.conf.get(ZONE)
    spark.conf.set(ZONE, BERLIN)
    try:
        frame = spark.createDataFrame(given, DDL)
        expected = getattr(frame.groupBy("id", "ts"), apply)(cls(), cls.OUTPUT, "Update", "None").collect()
        operator = stateful_processor(cls, cls.OUTPUT, rows=rows)
        source = Frame(frame)
    finally:
        spark.conf.set(ZONE, was)
    flow = flux.Dataflow("zone")
    flow.source(source).exchange("id", "ts", partitions=4).apply(operator).sink(flux.sinks.Collect())
    found = [tuple(row.values()) for row in flow.run(sites=2).table.to_pylist()]
    assert comparable(found) == comparable([tuple(row) for row in expected])
    assert {row[1] for row in found} == {14}


def test_each_kind_of_dataframe_has_its_source(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"flux.spark.Frame"):
        Stream(spark.createDataFrame([(1,)], "n int"))
    with pytest.raises(PlanError, match=r"flux.spark.Stream"):
        Frame(stream_of(spark, tmp_path / "in", CASES[EVENT_TIME].inputs()))
    with pytest.raises(PlanError, match=r"flux.sources.Table"):
        Frame(INPUT)
