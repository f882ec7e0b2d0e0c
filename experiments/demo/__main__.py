"""`make demo`: the dataflow of thesis 2.2 from a Spark stream, with a SIGKILL half-way."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import flux
from experiments import dmz, results
from flux.driver.report import build_timeline, output_gap

FILES = 40
VICTIM = "site-2"


def main() -> int:
    """Run the demo; the exit status says whether the output was exact."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--sites", type=int, default=4)
    options = parser.parse_args()
    batches = dmz.packets(options.rows, batch_rows=-(-options.rows // FILES))
    print(f"{options.rows:,} packets; a plain Python loop computes the expected output ...", flush=True)
    expected = dmz.plain_table(batches)
    print("starting Spark ...", flush=True)
    spark = spark_session()
    try:
        with tempfile.TemporaryDirectory(prefix="flux-demo-") as directory:
            write_files(batches, Path(directory))
            report, log = run(spark, directory, options.sites, expected.num_rows)
    finally:
        spark.stop()
    return tell(report, log, expected)


def run(spark: Any, directory: str, sites: int, expected_rows: int) -> tuple[flux.Report, list[Any]]:
    """The dataflow on `sites` sites, one killed when half of the output is there."""
    stream = (
        spark.readStream.schema("src int, dst int, data binary, ts long")
        .option("maxFilesPerTrigger", 1)
        .parquet(directory)
    )
    source = flux.spark.Stream(stream, types={"data": pa.binary(dmz.PAYLOAD_BYTES)})
    with dmz.flow(source).start(sites=sites) as running:
        print(f"running on {sites} sites, 32 partition pairs for each operator ...", flush=True)
        running.wait_for_output(expected_rows // 2, timeout=300)
        print(f"SIGKILL to {VICTIM}", flush=True)
        running.kill(VICTIM)
        report = running.wait(timeout=300)
        # Spark delivers a micro-batch every third of a second or so: shorter intervals would show its rhythm only.
        events = [(failure.when_s, f"{failure.site} died") for failure in report.failures]
        timeline = build_timeline(running.input_log(), running.output_log(), interval_s=1.0, events=events)
        return dataclasses.replace(report, timeline=timeline), running.output_log()


def tell(report: flux.Report, log: list[Any], expected: pa.Table) -> int:
    """Print what happened and draw it."""
    assert report.table is not None
    got, wanted = (collections.Counter(zip(*t.to_pydict().values(), strict=True)) for t in (report.table, expected))
    lost, repeated = (wanted - got).total(), (got - wanted).total()
    in_order = report.table.equals(expected)
    failure = report.failures[0]
    before_s = output_gap(log, failure.when_s - 2.0)
    print(f"input {report.inputs:,} rows, output {report.outputs:,} rows in {report.duration_s:.1f} s")
    print(f"lost {lost}, repeated {repeated}, in order: {'yes' if in_order else 'NO'}")
    print(
        f"{failure.site} died at {failure.when_s:.2f} s and was noticed after {failure.detected_after_s * 1e3:.0f} ms; "
        f"the output gap was {failure.output_gap_s * 1e3:.0f} ms\n"
        f"(the longest in the 2 s before it: {before_s * 1e3:.0f} ms; Spark delivers a micro-batch every "
        f"{(log[-1][0] - log[0][0]) / (FILES - 1) * 1e3:.0f} ms)"
    )
    picture = results.out("demo") / "demo.png"
    report.plot(picture)
    print(f"the output rate over time: {os.path.relpath(picture)}")
    return 0 if in_order and not lost and not repeated else 1


def write_files(batches: list[Any], directory: Path) -> None:
    """One Parquet file a batch; Spark takes them by their times."""
    for number, batch in enumerate(batches):
        path = directory / f"packets-{number:03}.parquet"
        pq.write_table(pa.Table.from_batches([batch]), path)
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))


def spark_session() -> Any:
    """A small local Spark that keeps quiet."""
    from pyspark.sql import SparkSession

    import flux.spark  # It sets which Python Spark's workers use.

    flux.spark.check_java()

    checkpoints = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    spark = (
        SparkSession.builder.master("local[2,4]")
        .appName("flux")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.checkpoint.fileChecksum.enabled", "false")
        .config("spark.sql.streaming.checkpointFileManagerClass", checkpoints)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


if __name__ == "__main__":
    sys.exit(main())
