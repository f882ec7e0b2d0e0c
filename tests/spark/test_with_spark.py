"""Spark's operators under Flux, fed by Spark: a stream with its micro-batches, and a DataFrame that is no stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import processors as p
import pyarrow as pa
import pytest
from cases import CASES, inputs, recorded
from traces import INPUT, comparable, stream_of

import flux
from flux.errors import FluxError, PlanError
from flux.spark import Frame, Stream, stateful_processor, to_dataframe

EVENT_TIME = "event_timers"


def test_a_stream_brings_sparks_micro_batches_and_its_watermark(spark: Any, tmp_path: Path) -> None:
    """Event time does not depend on the clock: what is emitted is what Spark emitted when it was recorded."""
    source = Stream(stream_of(spark, tmp_path / "in", inputs()))
    flow = flux.Dataflow("stream")
    flow.source(source).exchange("id", partitions=4).apply(CASES[EVENT_TIME].flux()).sink(flux.sinks.Collect())
    table = flow.run(sites=2).table
    expected = [row for batch in recorded(EVENT_TIME) for row in batch.output]
    assert comparable([tuple(row.values()) for row in table.to_pylist()]) == comparable(expected)


def test_a_static_dataframe_is_one_micro_batch_and_the_result_is_a_dataframe(spark: Any) -> None:
    rows = [row for batch in inputs() for row in batch]
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


def test_each_kind_of_dataframe_has_its_source(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"flux.spark.Frame"):
        Stream(spark.createDataFrame([(1,)], "n int"))
    with pytest.raises(PlanError, match=r"flux.spark.Stream"):
        Frame(stream_of(spark, tmp_path / "in", inputs()))
    with pytest.raises(PlanError, match=r"flux.sources.Table"):
        Frame(INPUT)
