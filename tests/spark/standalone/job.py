"""What a user gives to spark-submit: a flow over the executors, one of which is killed; prints figures as JSON."""

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
from carried_ops import RunningSum
from pyspark.sql import SparkSession

import flux

ROWS, KEYS = 20_000, 40
PATIENCE_S = 300.0


class Doubled(flux.KeyedOperator):
    """An operator of the main program: it travels by value."""

    output = {"key": "int64", "n": "int64"}  # noqa: RUF012

    def on_tuple(self, key, row, state):  # type: ignore[no-untyped-def]
        return None, [{"key": key[0], "n": 2 * row.n}]


def executor_above(pid: int) -> int:
    """The executor whose descendant the process is: the first Java above it."""
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    numbers = pa.table({"key": [i % KEYS for i in range(ROWS)], "n": list(range(ROWS))})
    flow = flux.Dataflow("submitted")
    source = flow.source(flux.sources.Table(numbers, rate=2_000))
    doubled = source.exchange("key", partitions=4).apply(Doubled)
    doubled.exchange("key", partitions=4).apply(RunningSum).sink(flux.sinks.Collect())
    with flux.spark.Cluster(spark, sites=2, standby=1, patience_s=PATIENCE_S) as cluster:
        run = cluster.start(flow)
        run.wait_for_output(2_000, timeout=PATIENCE_S)
        [first] = [process for process in run.status().processes if process.name == "site-1"]
        assert first.pid is not None
        os.kill(executor_above(first.pid), signal.SIGKILL)
        report = run.wait(timeout=PATIENCE_S)
    figures = {
        "failures": [failure.site for failure in report.failures],
        "rows": [[row["key"], row["total"]] for row in report.table.to_pylist()],
        "flux": sorted(set(report.table["flux"].to_pylist())),
    }
    spark.stop()
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
