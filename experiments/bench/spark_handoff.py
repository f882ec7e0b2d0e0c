"""What the hand-off from Spark costs: the same query into a writer that discards, and into Flux's staging.

The discarding writer is the fastest Arrow writer there can be, since Spark has brought the rows to Python and nothing
is done with them. Staging adds the way through the socket to the disk, commit, and a consumer that maps all rows,
checks their order and says that they were received. Both run in one session, by turns, so that a busy machine
slows both; the figures to quote are the ratios of the medians.

    python -m experiments.bench.spark_handoff [--rows N] [--repeats N] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import trio
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from flux.sources import SourceContext
from flux.spark import Stream
from flux.spark.source.spark_stream import ARROW_ROWS, ARROW_ROWS_WANTED

FILES = 8
FILES_PER_BATCH = 4
SCHEMA = "src int, dst int, data binary, ts long"


class Discard(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    @classmethod
    def name(cls) -> str:
        return "discard"

    def streamWriter(self, schema: Any, overwrite: bool) -> DiscardWriter:
        return DiscardWriter()


class DiscardWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


@dataclass(frozen=True)
class Timing:
    """How long a query took: from start to end, and in its micro-batches alone (write and commit)."""

    wall_s: float
    batches_s: float


def write_files(folder: Path, rows: int) -> None:
    """Write packets whose `ts` counts up through all files, so that a reader can check the order."""
    rng = np.random.default_rng(1)
    per_file = rows // FILES
    for number in range(FILES):
        data = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(32), per_file, [None, pa.py_buffer(rng.bytes(32 * per_file))]
        )
        first = number * per_file
        columns = {
            "src": rng.integers(0, 1000, per_file, dtype=np.int32),
            "dst": rng.integers(0, 100, per_file, dtype=np.int32),
            "data": data.cast(pa.binary()),
            "ts": np.arange(first, first + per_file, dtype=np.int64),
        }
        pq.write_table(pa.table(columns), folder / f"{number:03}.parquet", compression="none")


def stream_of(spark: Any, folder: Path) -> Any:
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH)
    return reader.parquet(str(folder))


def timing_of(query: Any, begin_s: float) -> Timing:
    wall_s = time.perf_counter() - begin_s
    return Timing(wall_s, sum(p["durationMs"].get("addBatch", 0) for p in query.recentProgress) / 1000)


def run_discard(spark: Any, folder: Path, scratch: Path) -> Timing:
    spark.conf.set(ARROW_ROWS, str(ARROW_ROWS_WANTED))
    try:
        begin_s = time.perf_counter()
        writer = stream_of(spark, folder).writeStream.format("discard").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(scratch / "checkpoint")).start()
        query.awaitTermination()
        return timing_of(query, begin_s)
    finally:
        spark.conf.unset(ARROW_ROWS)


def run_staging(spark: Any, folder: Path, scratch: Path, rows: int) -> Timing:
    stream = Stream(stream_of(spark, folder))
    stream.bind(scratch)
    seen: list[Any] = []

    async def consume() -> None:
        async for batch in stream.batches(SourceContext(scratch)):
            seen.append(batch.rows.column("ts").to_numpy())
            if batch.received:
                batch.received()

    consumer = threading.Thread(target=trio.run, args=(consume,))
    consumer.start()
    begin_s = time.perf_counter()
    stream.start()
    query = stream.query
    query.awaitTermination()
    timing = timing_of(query, begin_s)
    consumer.join()
    stream.stop()
    check(np.concatenate(seen), rows)
    return timing


def check(ts: Any, rows: int) -> None:
    """Every row came once; files may come in any order, but each is whole and in order."""
    files = ts.reshape(FILES, rows // FILES)
    if not (np.diff(files) == 1).all() or not (np.sort(files[:, 0]) == np.arange(0, rows, rows // FILES)).all():
        raise SystemExit("spark_handoff: rows were lost, repeated or reordered on the way")


def measure(rows: int, repeats: int) -> dict[str, Any]:
    rows -= rows % FILES
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark.dataSource.register(Discard)
    timings: dict[str, list[Timing]] = {"discard": [], "staging": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "rows"
        folder.mkdir()
        write_files(folder, rows)
        for repeat in range(repeats + 1):
            for way in ("discard", "staging"):
                scratch = Path(name) / f"{way}-{repeat}"
                scratch.mkdir()
                if way == "discard":
                    timing = run_discard(spark, folder, scratch)
                else:
                    timing = run_staging(spark, folder, scratch, rows)
                print(f"{way} {repeat}: {timing}", file=sys.stderr)
                # The first of each warms up the JVM and the Python workers.
                if repeat:
                    timings[way].append(timing)
    spark.stop()
    wall_s = {way: statistics.median(t.wall_s for t in found) for way, found in timings.items()}
    batches_s = {way: statistics.median(t.batches_s for t in found) for way, found in timings.items()}
    return {
        "rows": rows,
        "repeats": repeats,
        "wall_s": wall_s,
        "batches_s": batches_s,
        "rows_per_s": {way: rows / seconds for way, seconds in batches_s.items()},
        "rate_ratio_wall": wall_s["discard"] / wall_s["staging"],
        "rate_ratio_batches": batches_s["discard"] / batches_s["staging"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.rows, options.repeats)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for way in ("discard", "staging"):
        print(
            f"{way:8} {result['rows_per_s'][way] / 1e6:5.2f} million rows/s in micro-batches, "
            f"{result['wall_s'][way]:5.2f} s from start to end"
        )
    print(
        f"rate ratio staging : discard = {result['rate_ratio_batches']:.2f} in micro-batches, "
        f"{result['rate_ratio_wall']:.2f} from start to end"
    )


if __name__ == "__main__":
    main()
