"""How the query of a `flux.spark.Stream` ends or begins again with a real Spark: never in silence with less output.

Its time is Spark's: a query takes seconds to start and to stop, and each micro-batch about one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark_ingress import DEADLINE_S

import flux
from flux.spark import Outlet, Stream
from flux.spark.sink import outlet_store
from flux.types.errors import PlanError, SourceError

FILES = 40


class Counts(flux.KeyedOperator):
    output = {"k": "int64", "count": "int64"}  # noqa: RUF012

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        count = (state or 0) + 1
        return count, [{"k": row.k, "count": count}]


def add_files(folder: Path, first: int, count: int) -> None:
    """Add files of one row each, of which Spark reads one to a micro-batch."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        pq.write_table(pa.table({"k": [1]}), folder / f"{number}.parquet")
        os.utime(folder / f"{number}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))


def read(spark: Any, folder: Path) -> Any:
    return spark.readStream.schema("k long").option("maxFilesPerTrigger", 1).parquet(str(folder))


def counting(stream: Stream, sink: Any, name: str = "counts") -> flux.Dataflow:
    flow = flux.Dataflow(name)
    flow.source(stream).exchange("k", partitions=2).apply(Counts).sink(sink)
    return flow


def names(spark: Any) -> list[str]:
    return [query.name for query in spark.streams.active]


@pytest.mark.parametrize("trigger", [{"processingTime": "0 seconds"}, {"availableNow": True}])
def test_a_stop_that_flux_did_not_ask_for_is_an_error(spark: Any, tmp_path: Path, trigger: dict[str, Any]) -> None:
    add_files(tmp_path / "in", 0, FILES)
    outlet = tmp_path / "out"
    with counting(Stream(read(spark, tmp_path / "in"), trigger), Outlet(outlet)).start(sites=2) as run:
        run.wait_for_output(1, timeout=10 * DEADLINE_S)
        assert names(spark) == ["flux-counts"]
        for query in spark.streams.active:  # As notebooks do.
            query.stop()
        with pytest.raises(SourceError, match=r"'flux-counts' was stopped, and not by Flux.* run\.stop\(\)"):
            run.wait(timeout=10 * DEADLINE_S)
    assert outlet_store.read_json(str(outlet), outlet_store.ENDED) is None, "the output is not complete"


def test_a_bounded_stream_that_was_read_to_its_end_is_none(spark: Any, tmp_path: Path) -> None:
    add_files(tmp_path / "in", 0, 3)
    for trigger in ({"availableNow": True}, {"once": True}):
        report = counting(Stream(read(spark, tmp_path / "in"), trigger), flux.sinks.Collect()).run(sites=2)
        assert report.table["count"].to_pylist()[0] == 1
    (tmp_path / "empty").mkdir()
    report = counting(Stream(read(spark, tmp_path / "empty")), flux.sinks.Collect()).run(sites=2)
    assert report.table.num_rows == 0


def test_queries_of_flows_of_one_name_have_names_of_their_own(spark: Any, tmp_path: Path) -> None:
    add_files(tmp_path / "in", 0, 1)
    trigger = {"processingTime": "0 seconds"}

    def started() -> Any:
        return counting(Stream(read(spark, tmp_path / "in"), trigger), flux.sinks.Collect()).start(sites=2)

    with started() as one, started() as other:
        assert sorted(names(spark)) == ["flux-counts", "flux-counts-2"]
        for run in (one, other):
            run.wait_for_output(1, timeout=10 * DEADLINE_S)


def test_a_used_checkpoint_is_refused_where_state_would_be_lost(spark: Any, tmp_path: Path) -> None:
    add_files(tmp_path / "in", 0, 3)
    checkpoint = tmp_path / "checkpoint"

    def run(**settings: Any) -> list[int]:
        stream = Stream(read(spark, tmp_path / "in"), checkpoint=checkpoint, **settings)
        return list(counting(stream, flux.sinks.Collect()).run(sites=2).table["count"].to_pylist())

    assert run() == [1, 2, 3]
    add_files(tmp_path / "in", 3, 2)
    with pytest.raises(PlanError, match=r"flux.spark.Stream of 'counts': .*has committed .*Counts.*fresh_state=True"):
        run()
    assert names(spark) == []
    # Spark would say 4, 5. Asked for, state begins anew.
    assert run(fresh_state=True) == [1, 2]


def test_a_used_checkpoint_goes_on_where_no_step_has_state(spark: Any, tmp_path: Path) -> None:
    add_files(tmp_path / "in", 0, 3)

    def run() -> int:
        flow = flux.Dataflow("plain")
        stream = flow.source(Stream(read(spark, tmp_path / "in"), checkpoint=tmp_path / "checkpoint"))
        stream.filter(lambda row: row.k == 1).select("k").exchange("k", partitions=2).map(
            lambda row: {"k": row.k}, output={"k": "int64"}
        ).sink(flux.sinks.Collect())
        return flow.run(sites=2).table.num_rows

    assert run() == 3
    add_files(tmp_path / "in", 3, 2)
    assert run() == 2


def test_a_restarted_ingress_and_a_restarted_query_go_on_with_their_state(spark: Any, tmp_path: Path) -> None:
    add_files(tmp_path / "in", 0, 3)
    stream = Stream(read(spark, tmp_path / "in"), {"processingTime": "0 seconds"}, tmp_path / "checkpoint", restarts=1)
    with counting(stream, flux.sinks.Collect()).start(sites=2) as run:
        run.wait_for_output(3, timeout=10 * DEADLINE_S)
        run.kill("ingress")
        add_files(tmp_path / "in", 3, 2)
        run.wait_for_output(5, timeout=10 * DEADLINE_S)
        assert _committed(tmp_path / "checkpoint") >= 3


def _committed(checkpoint: Path) -> int:
    return len(list((checkpoint / "commits").glob("[0-9]*")))
