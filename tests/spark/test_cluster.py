"""Sites as tasks of a real Spark; here all in one executor, with two cores. For executors that die: test_executors.

Its time is Spark's: a query takes seconds to start and to stop, and each micro-batch about one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import flux
from experiments import dmz
from experiments.spark_sites.executors import active_jobs
from flux.types.errors import FluxError, OperatorError, PlanError
from flux.wire.requests import TaskJoinRequest

PATIENCE_S = 300.0


def packets(rows: int) -> tuple[list[Any], pa.Table]:
    batches = dmz.packets(rows, batch_rows=500, sources=20, destinations=5)
    return batches, dmz.plain_table(batches)


def site_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("flux-spark-site")]


def is_descendant(pid: int, of: int) -> bool:
    while pid not in (0, 1, of):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == of


def test_sites_are_tasks_and_one_that_is_killed_is_replaced_by_spark(spark: Any) -> None:
    batches, expected = packets(20_000)
    source = flux.sources.Table(batches, rate=2_000)
    with flux.spark.Cluster(spark, sites=2, patience_s=PATIENCE_S) as cluster:
        run = cluster.start(dmz.flow(source, partitions=4))
        run.wait_for_output(10, timeout=PATIENCE_S)
        sites = [process for process in run.status().processes if process.name.startswith("site-")]
        assert [site.name for site in sites] == ["site-1", "site-2"]
        assert all(is_descendant(site.pid or 0, os.getpid()) for site in sites)
        assert len(active_jobs(spark)) == 2
        late = TaskJoinRequest(index=1, attempt=-1, pid=1, host="here", executor=1)
        assert "joins after a later one" in str(run._answer(late))  # type: ignore[attr-defined]

        run.kill("site-1")
        run._await(
            lambda run_state: "site-3" in run_state.copies and run_state.whole, PATIENCE_S, "site-3 to hold copies"
        )
        report = run.wait(timeout=PATIENCE_S)
    assert report.table is not None and report.table.equals(expected)
    assert [failure.site for failure in report.failures] == ["site-1"]
    assert active_jobs(spark) == [] and site_threads() == []


def test_stopping_a_run_in_its_middle_leaves_no_task(spark: Any) -> None:
    batches, _ = packets(20_000)
    with flux.spark.Cluster(spark, sites=2, patience_s=PATIENCE_S) as cluster:
        run = cluster.start(dmz.flow(flux.sources.Table(batches, rate=500), partitions=4))
        run.wait_for_output(1, timeout=PATIENCE_S)
        pids = [process.pid for process in run.status().processes if process.name.startswith("site-")]
    assert active_jobs(spark) == [] and site_threads() == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_too_few_cores_are_said_and_nothing_is_left_waiting(spark: Any) -> None:
    batches, _ = packets(100)
    with (
        flux.spark.Cluster(spark, sites=3, patience_s=5.0) as cluster,
        pytest.raises(FluxError, match=r"of 3 sites have joined within 5 s\. Each needs its own core.* has 2 in all"),
    ):
        cluster.start(dmz.flow(batches, partitions=4))
    assert active_jobs(spark) == [] and site_threads() == []


def test_a_row_that_kills_each_site_that_works_on_it_is_named(spark: Any) -> None:
    # As by a bug in native code. A class of the test's own is carried by value.
    class Deadly(flux.KeyedOperator):
        output = {"n": "int64"}  # noqa: RUF012

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            if row.n == 700:
                os.kill(os.getpid(), signal.SIGSEGV)
            return None, [{"n": row.n}]

    numbers = [{"k": n % 10, "n": n} for n in range(2_000)]
    flow = flux.Dataflow("deadly")
    stream = flow.source(flux.sources.Table(numbers, rate=2_000)).exchange("k", partitions=4).apply(Deadly)
    stream.sink(flux.sinks.Null())
    with flux.spark.Cluster(spark, sites=2, patience_s=PATIENCE_S) as cluster, pytest.raises(FluxError) as raised:
        cluster.start(flow).wait(timeout=PATIENCE_S)
    said = str(raised.value)
    assert isinstance(raised.value, OperatorError) and "both died while they worked on rows" in said
    assert f"with signal {int(signal.SIGSEGV)}" in said
    assert active_jobs(spark) == [] and site_threads() == []


def test_an_operator_that_executors_cannot_import_is_named_in_one_line(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("only_here")
    methods = "output = {'n': 'int64'}\n    def on_tuple(self, key, row, state): return None, []"
    exec(f"import flux\nclass Op(flux.KeyedOperator):\n    {methods}\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    flow = flux.Dataflow("far")
    stream = flow.source(flux.sources.Table([{"n": 1}])).exchange("n", partitions=2).apply(module.Op)
    stream.sink(flux.sinks.Null())
    with flux.spark.Cluster(spark, sites=2, patience_s=PATIENCE_S) as cluster, pytest.raises(FluxError) as raised:
        cluster.start(flow)
    message = "a site could not be started on an executor: ModuleNotFoundError: No module named 'only_here'"
    assert str(raised.value) == f"flux.spark.Cluster: {message}"
    assert active_jobs(spark) == [] and site_threads() == []


def test_an_operator_that_cannot_be_carried_is_named(spark: Any) -> None:
    lock = threading.Lock()

    class Locked(flux.KeyedOperator):
        output = {"n": "int64"}  # noqa: RUF012

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            with lock:
                return None, []

    flow = flux.Dataflow("locked")
    flow.source(flux.sources.Table([{"n": 1}])).exchange("n", partitions=2).apply(Locked).sink(flux.sinks.Null())
    with pytest.raises(PlanError, match=r"operator Locked cannot be shipped to the executors: .*lock"):
        flux.spark.Cluster(spark, sites=2).start(flow)


def test_a_cluster_needs_a_session() -> None:
    with pytest.raises(PlanError, match="a SparkSession was expected, got a str"):
        flux.spark.Cluster("spark://host:7077")
