"""Spark's operators under Flux, fed by Spark: a stream with its micro-batches, and a DataFrame that is no stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import processors as p
import pytest
from cases import CASES, inputs, recorded
from traces import INPUT, comparable, stream_of

import flux
from flux.errors import PlanError
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


def test_each_kind_of_dataframe_has_its_source(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"flux.spark.Frame"):
        Stream(spark.createDataFrame([(1,)], "n int"))
    with pytest.raises(PlanError, match=r"flux.spark.Stream"):
        Frame(stream_of(spark, tmp_path / "in", inputs()))
    with pytest.raises(PlanError, match=r"flux.sources.Table"):
        Frame(INPUT)
