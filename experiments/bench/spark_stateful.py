"""Spark's own stateful operators, unchanged, under Flux and in Spark: events per second, side by side.

The dataflow is that of thesis 2.2 as two `StatefulProcessor`s that take rows: one finds sessions by (src, dst), the
other tells maximum and mean of the last two of each (app, src). Flux runs them with pairs, Spark with its
`transformWithState`; both get the same micro-batches, and both outputs are compared with those of a plain loop. They
take turns in one run, so that a busy machine slows both; the figure to quote is the ratio of the medians. Spark's start
is not counted: its time is that of its micro-batches, without the first.

    python -m experiments.bench.spark_stateful [--rows N] [--spark-rows N] [--batch-rows N] [--repeats N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import flux
from experiments import dmz, results

SITES, PARTITIONS = 2, 32
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
START, END = ord("S"), ord("E")
TRIES = 5


class Sessions(StatefulProcessor):  # type: ignore[misc]  # pyspark is untyped here
    """Finds sessions: from a packet that starts one to the packet that ends it."""

    OUTPUT = "app int, src int, ts long, dur long"

    def init(self, handle: Any) -> None:
        self.open = handle.getValueState("open", "app int, since long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = started = self.open.get()
        for row in rows:
            data = row.data
            if data[0] == START:
                started = data[1], row.ts
            elif data[0] == END and started is not None:
                app, since = started
                started = None
                yield Row(app=app, src=key[0], ts=row.ts, dur=row.ts - since)
        if started is None:
            self.open.clear()
        elif started != before:
            self.open.update(started)


class Windows(StatefulProcessor):  # type: ignore[misc]
    """Tells maximum and mean of each two sessions that follow each other."""

    OUTPUT = "app int, src int, max_dur long, avg_dur double"

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "dur long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        last = self.last.get()
        # Spark does not say in which order rows come that several tasks have made.
        for row in sorted(rows, key=lambda row: row.ts):
            if last is not None:
                yield Row(app=key[0], src=key[1], max_dur=max(row.dur, last[0]), avg_dur=(row.dur + last[0]) / 2)
            last = (row.dur,)
        self.last.update(last)


def plain(batches: Sequence[Any]) -> list[Any]:
    return sorted(dmz.plain_loop(batches))


def run_flux(batches: Sequence[Any], batch_rows: int, availability: str = "pairs") -> tuple[float, list[Any]]:
    """Seconds and output of Flux."""
    flow = flux.Dataflow("spark_stateful")
    (
        flow.source(flux.spark.MicroBatches(flux.sources.Table(list(batches)), rows=batch_rows))
        .exchange("src", "dst", partitions=PARTITIONS)
        .apply(flux.spark.stateful_processor(Sessions, Sessions.OUTPUT))
        .exchange("app", "src", partitions=PARTITIONS)
        .apply(flux.spark.stateful_processor(Windows, Windows.OUTPUT))
        .sink(flux.sinks.Collect())
    )
    with flow.start(SITES, availability=availability) as run:
        began = time.perf_counter()
        report = run.wait()
        seconds = time.perf_counter() - began
    table = report.table
    return seconds, sorted(zip(*(table.column(name).to_pylist() for name in table.schema.names), strict=True))


def write_files(folder: Path, batches: Sequence[Any], batch_rows: int) -> None:
    """One file to a micro-batch, read by age."""
    folder.mkdir()
    whole = pa.Table.from_batches(batches)
    whole = whole.set_column(2, "data", whole.column("data").cast(pa.binary()))
    for number, start in enumerate(range(0, whole.num_rows, batch_rows)):
        path = folder / f"{number}.parquet"
        pq.write_table(whole.slice(start, batch_rows), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def run_spark(spark: Any, batches: Sequence[Any], batch_rows: int, folder: Path) -> tuple[float, list[Any]]:
    """Seconds for the rows of all micro-batches but the first, and the output of all."""
    write_files(folder / "in", batches, batch_rows)
    reader = spark.readStream.schema("src int, dst int, data binary, ts long").option("maxFilesPerTrigger", 1)
    sessions = reader.parquet(str(folder / "in")).groupBy("src", "dst")
    sessions = sessions.transformWithState(Sessions(), Sessions.OUTPUT, "Append", "None")
    windows = sessions.groupBy("app", "src").transformWithState(Windows(), Windows.OUTPUT, "Append", "None")
    writer = windows.writeStream.format("memory").queryName("windows").outputMode("append")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress]
    counted = [s for s, progress in zip(seconds, query.recentProgress, strict=True) if progress["numInputRows"]]
    return sum(counted[1:]), sorted(tuple(row) for row in spark.table("windows").collect())


def new_session() -> Any:
    from pyspark import cloudpickle

    flux.spark.check_java()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "OFF")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.stateStore.providerClass", STATE_STORE)
        .config("spark.sql.streaming.checkpoint.fileChecksum.enabled", "false")
        .getOrCreate()
    )


def check(whose: str, found: list[Any], expected: list[Any]) -> None:
    if found != expected:
        raise SystemExit(f"spark_stateful: {whose} gave {len(found)} rows, not the {len(expected)} of the plain loop")


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Let Flux and Spark take turns; each output is checked."""
    many, few = dmz.packets(options.rows), dmz.packets(options.spark_rows)
    expected_many, expected_few = plain(many), plain(few)
    taken: list[dict[str, Any]] = []
    spark = None if options.no_spark else new_session()

    def take(engine: str, repeat: int, rows: int, seconds: float) -> None:
        taken.append({"engine": engine, "repeat": repeat, "events_per_s": rows / seconds})
        if not options.json:
            print(f"  {repeat + 1}/{options.repeats} {engine}: {rows / seconds:,.0f} events/s", flush=True)

    for repeat in range(options.repeats):
        seconds, out = run_flux(many, options.batch_rows)
        check("Flux", out, expected_many)
        take("flux", repeat, options.rows, seconds)
        if spark is not None:
            seconds, out = spark_tries(spark, few, options.batch_rows)
            check("Spark", out, expected_few)
            take("spark", repeat, options.spark_rows - options.batch_rows, seconds)
    if spark is not None:
        spark.stop()
    return taken


def spark_tries(spark: Any, batches: Sequence[Any], batch_rows: int) -> tuple[float, list[Any]]:
    """Run Spark; again, if one of its workers took more than the ten seconds that it gives them to start."""
    for attempt in range(TRIES):
        try:
            with tempfile.TemporaryDirectory() as folder:
                return run_spark(spark, batches, batch_rows, Path(folder))
        except Exception as error:
            if attempt + 1 == TRIES or "failed to connect back" not in str(error):
                raise
    raise AssertionError("there is at least one try")


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.spark_stateful", description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="events for Flux")
    parser.add_argument("--spark-rows", type=int, default=60_000, help="events for Spark, which takes longer")
    parser.add_argument("--batch-rows", type=int, default=20_000, help="events of a micro-batch, for both")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-spark", action="store_true", help="Flux alone")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    taken = measure(options)
    rates = {name: [row["events_per_s"] for row in taken if row["engine"] == name] for name in ("flux", "spark")}
    path = results.write("bench", "spark_stateful", taken, sites=SITES, batch_rows=options.batch_rows)
    figures: dict[str, Any] = {name: results.spread(found) for name, found in rates.items() if found}
    if rates["spark"]:
        figures["flux_over_spark"] = statistics.median(rates["flux"]) / statistics.median(rates["spark"])
    if options.json:
        print(json.dumps(figures))
        return
    for name, found in rates.items():
        if found:
            print(f"{name}: {results.shown(found)} events/s")
    if "flux_over_spark" in figures:
        print(f"Flux with pairs makes {figures['flux_over_spark']:.1f} times as many as Spark")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
