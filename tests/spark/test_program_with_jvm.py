"""A program with a started JVM: its flows run while Spark works, and code that would call Spark in one is refused."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import flux
from tests.runtime.test_snapshots_with_threads import InNumpy, assert_state_is_transferred

ROWS = 5_000


class Count(flux.KeyedOperator):
    """Counts the rows of each key."""

    output: ClassVar = {"k": "int64", "n": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        n = (state or 0) + 1
        return n, [{"k": row.k, "n": n}]


def flow_of(step: Any, sink: Any = None, **parameters: Any) -> flux.Dataflow:
    flow = flux.Dataflow("with-jvm")
    rows = flow.source(flux.sources.Table(pa.table({"k": [i % 7 for i in range(ROWS)]}), rate=5_000))
    rows.exchange("k").apply(step, **parameters).sink(sink or flux.sinks.Collect())
    return flow


def test_a_flow_is_exact_while_spark_works_in_its_program(spark: Any) -> None:
    counts: list[int] = []
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            counts.append(spark.range(1_000).selectExpr("id % 7 as k").groupBy("k").count().count())

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with flow_of(Count).start(sites=2, standby=1) as run:
            run.wait_for_output(500)
            run.kill("site-1")
            table = run.wait(60).table
    finally:
        done.set()
        worker.join()
    assert counts and set(counts) == {7}
    for key in range(7):
        ours = table.filter(pc.equal(table["k"], key))["n"].to_pylist()
        assert ours == list(range(1, len(ours) + 1))
    assert table.num_rows == ROWS


@pytest.mark.long
def test_large_state_is_read_in_a_fork_while_spark_works_in_the_program(spark: Any) -> None:
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            spark.range(1_000).selectExpr("id % 7 as k").groupBy("k").count().count()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert_state_is_transferred(InNumpy)
    finally:
        done.set()
        worker.join()


def test_an_operator_that_calls_spark_is_refused_before_anything_starts(spark: Any) -> None:
    frame = spark.range(3)

    class UsesSession(Count):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return None, [{"k": key, "n": spark.range(row.k).count()}]

    class UsesFrame(Count):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return None, [{"k": key, "n": frame.count()}]

    class FindsSession(Count):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return None, [{"k": key, "n": SparkSession.builder.getOrCreate().range(3).count()}]

    for operator in (UsesSession, UsesFrame, FindsSession):
        with pytest.raises(flux.PlanError, match=rf"step {operator.__name__} uses Spark in .*on_tuple .*JVM"):
            flow_of(operator).start()
    with pytest.raises(flux.PlanError, match=r"Callback uses Spark in .*JVM"):
        flow_of(Count, flux.sinks.Callback(lambda batch: frame.count())).start()
