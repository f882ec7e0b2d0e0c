"""Spark source -> Flux -> Spark sink, and everything on the way is killed in turn; the table is then as if nothing was.

The dataflow is that of thesis 2.2: two stateful stages, each partition a pair. Packets come from files, one to a
micro-batch, through `flux.spark.Stream`; results go through `flux.spark.Outlet` and a second query to a Parquet table.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import flux
from experiments import dmz

from .executors import wait_until

FILES = 8
OUTLET_ROWS = 2_000  # Not committed by Spark: more wait in Flux, and then in Spark.
TRIGGER_ROWS = 1_500
PATIENCE_S = 900.0
LOOK_EVERY_S = 0.05
FAILURES_MAX = 20
TASK_TRIES = 4  # Then Spark gives a task up, and with it the query.

Kill = tuple[str, Callable[["Pipeline"], None]]


class Pipeline:
    """The pipeline over `rows` packets, in `directory`; `start` starts the flow, wherever its sites are."""

    def __init__(self, spark: Any, directory: Path, rows: int, start: Callable[[flux.Dataflow], Any]) -> None:
        self.spark = spark
        self.directory = directory
        # Of few pairs, so that there is output from the beginning.
        self.packets = pa.Table.from_batches(dmz.packets(rows, sources=20, destinations=5))
        self.expected = dmz.plain_table(self.packets.to_batches())
        self._write_files()
        source = flux.spark.Stream(
            self._frame(),
            checkpoint=directory / "in",
            types={"data": pa.binary(dmz.PAYLOAD_BYTES)},
            restarts=1 + FAILURES_MAX,
        )
        outlet = flux.spark.Outlet(directory / "outlet", max_rows=OUTLET_ROWS, segment_bytes=50_000)
        self.run = start(dmz.flow(source, partitions=8, sink=outlet))
        self.failures: list[str] = []
        self.query = self.begin_query()

    def kill_all(self, kills: Sequence[Kill], said: Callable[[str], None]) -> None:
        """Carry out `kills`, one behind the other, evenly over the output."""
        for number, (what, kill) in enumerate(kills):
            self._await_output(self.expected.num_rows * (number + 1) // (len(kills) + 2))
            kill(self)
            said(f"{what} was killed at {self.run.status().outputs:,} rows of output")

    def finish(self) -> pa.Table:
        """Wait for the end of it all; return the final table."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._has_ended():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE_S:g} s for the end of the stream")
        while self.query.isActive or self._has_failed():
            time.sleep(LOOK_EVERY_S)
        return self.spark.read.parquet(str(self.directory / "table")).toArrow()

    def is_exact(self, table: pa.Table) -> bool:
        """Whether the table is what a plain loop over the packets computes."""
        by = [(name, "ascending") for name in dmz.OUTPUT.names]
        return bool(table.cast(dmz.OUTPUT).sort_by(by).equals(self.expected.sort_by(by)))

    def begin_query(self) -> Any:
        """The query from the outlet to the table, from its checkpoint if it has one; it ends with the stream."""
        reader = self.spark.readStream.format("flux").option("path", str(self.directory / "outlet"))
        frame = reader.option("maxRowsPerTrigger", TRIGGER_ROWS).option("until", "end").load()
        writer = frame.writeStream.format("parquet").option("path", str(self.directory / "table"))
        return writer.option("checkpointLocation", str(self.directory / "out")).trigger(availableNow=True).start()

    def _await_output(self, rows: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.run.wait_for_output(rows, timeout=LOOK_EVERY_S)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
                self._has_failed()

    def _has_ended(self) -> bool:
        try:
            self.run.wait(timeout=LOOK_EVERY_S)
        except TimeoutError:
            self._has_failed()
            return False
        return True

    def _has_failed(self) -> bool:
        """Whether the query has, as it may on a busy machine where Python is slow to start; it then begins again."""
        if self.query.isActive or (reason := self.query.exception()) is None:
            return False
        self.failures.append(str(reason).splitlines()[0])
        if len(self.failures) > FAILURES_MAX:
            raise reason
        self.query = self.begin_query()
        return True

    def restart_query(self) -> None:
        """Stop the query, in the middle of whatever it does, and begin again from its checkpoint."""
        self.query.stop()
        self.query = self.begin_query()

    def kill_site(self, name: str) -> None:
        """Kill a site, and wait until every partition has both copies again."""
        self.run.kill(name)
        wait_until(lambda: self.run.status().whole, f"the copies of {name} to be rebuilt")

    def has_killed(self, what: str) -> bool:
        """Whether a task of the source has met its end: "worker" or "query"."""
        return (self.directory / f"{what}.killed").exists()

    def _write_files(self) -> None:
        folder = self.directory / "packets"
        folder.mkdir()
        size = -(-self.packets.num_rows // FILES)
        for number in range(FILES):
            path = folder / f"{number:02}.parquet"
            # Spark knows no binary of a fixed size.
            table = self.packets.slice(number * size, size)
            table = table.set_column(2, "data", table["data"].cast(pa.binary()))
            pq.write_table(table, path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def _frame(self) -> Any:
        from pyspark.sql.functions import udf

        times = self.packets["ts"].to_numpy()
        deadly = _deadly(str(self.directory), int(times[len(times) // 6]), int(times[len(times) // 3]))
        reader = self.spark.readStream.schema("src int, dst int, data binary, ts long")
        frame = reader.option("maxFilesPerTrigger", 1).parquet(str(self.directory / "packets"))
        return frame.withColumn("ts", udf(deadly, "long", useArrow=False)("ts"))


def _deadly(directory: str, kills_worker: int, kills_query: int) -> Callable[[int], int]:
    """A function for a packet's time: at one it kills its process, once; at another it fails until Spark gives up."""

    def pass_on(ts: int) -> int:
        if ts == kills_worker and not os.path.exists(f"{directory}/worker.killed"):
            open(f"{directory}/worker.killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if ts == kills_query and not os.path.exists(f"{directory}/query.killed"):
            with open(f"{directory}/query.tries", "a") as tries:
                tries.write(".")
            if os.path.getsize(f"{directory}/query.tries") >= TASK_TRIES:
                open(f"{directory}/query.killed", "w").close()
            raise RuntimeError("this task fails, whatever Spark tries")
        return ts

    return pass_on


def ends() -> list[Kill]:
    """The processes beside the driver, and the query behind."""
    return [
        ("the ingress", lambda pipeline: pipeline.run.kill("ingress")),
        ("the egress", lambda pipeline: pipeline.run.kill("egress")),
        ("the controller", lambda pipeline: pipeline.run.kill("controller")),
        ("the query behind", Pipeline.restart_query),
    ]


def sites(names: Sequence[str]) -> list[Kill]:
    """Each of these sites."""
    return [(name, lambda pipeline, name=name: pipeline.kill_site(name)) for name in names]  # type: ignore[misc]
