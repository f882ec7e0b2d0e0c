"""Sites on the executors of a Spark cluster on this machine, `local-cluster[3,1,1024]`, and kill -9.

`executor`: packets come at a steady rate; the executor of a site is killed. How long is there no output, is all of it
there, and does the site that Spark starts in its place become a standby? Killed again and again, `--kills` times.

`exactly-once`: Spark source -> Flux -> Spark sink, while a Spark task, the query in front, an executor, sites, ingress,
egress, controller and the query behind are killed in turn. Is the final table what a plain loop computes?
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import flux
from experiments import dmz, results
from flux.report import output_gap

from .exactly_once import Kill, Pipeline, ends, sites
from .executors import active_jobs, executor_of, kill_executor_of, wait_until

WINDOW_S = 2.0
LASTS_S = 400.0  # At most.
MASTER = "local-cluster[3,1,1024]"


def main(arguments: list[str] | None = None) -> None:
    """Run one of the two and print its figures; exit status 1 if output is lost or wrong."""
    parser = argparse.ArgumentParser(prog="python -m experiments.spark_sites", description=__doc__)
    parser.add_argument("what", choices=("executor", "exactly-once"))
    parser.add_argument("--kills", type=int, default=3, help="of `executor` (default 3)")
    parser.add_argument("--rate", type=float, default=10_000, help="packets per second of `executor`")
    parser.add_argument("--rows", type=int, default=48_000, help="packets of `exactly-once`")
    parser.add_argument("--quick", action="store_true", help="one kill")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if not options.json:
        logging.basicConfig(level=logging.WARNING, format="  %(message)s")
    spark = session()
    try:
        if options.what == "executor":
            figures = executor(spark, 1 if options.quick else options.kills, options.rate)
        else:
            figures = exactly_once(spark, options.rows, lambda text: options.json or print(f"  {text}", flush=True))
    finally:
        spark.stop()
    rows = figures.get("kills") or [figures]
    path = results.write("spark_sites", options.what, rows, rate=options.rate)
    print(json.dumps(figures) if options.json else f"{figures}\nwritten to {path}")
    if not figures["exact"]:
        raise SystemExit(1)


def session() -> Any:
    """Three executors of one core each."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def executor(spark: Any, kills: int, rate: float) -> dict[str, Any]:
    """Kill the executor of the first site that holds partitions, `kills` times."""
    packets = pa.Table.from_batches(dmz.packets(int(rate * LASTS_S), sources=100, destinations=10))
    over = Path(tempfile.mkdtemp()) / "over"

    def some(offset: int, count: int) -> Any:
        return None if over.exists() else packets.slice(offset, count)

    source = flux.sources.Generator(some, rate=rate, schema=dmz.PACKETS, batch_rows=max(1, int(rate / 100)))
    taken = []
    with (
        flux.spark.Cluster(spark, sites=2, standby=1, patience_s=600) as cluster,
        cluster.start(dmz.flow(source)) as run,
    ):
        began = time.monotonic() - run.status().t_s
        run.wait_for_output(int(rate), timeout=300)
        for _ in range(kills):
            taken.append(_kill_one(run, began))
        over.touch()
        report = run.wait(timeout=600)
    expected = dmz.plain_table(packets.slice(0, report.inputs).to_batches())
    return {
        "exact": report.table is not None and report.table.equals(expected),
        "rows": report.outputs,
        "gap_s": results.spread([row["gap_s"] for row in taken]),
        "descendants": all(row["descendants"] for row in taken),
        "standby": all(row["standby"] for row in taken),
        "tasks_left": len(active_jobs(spark)),
        "kills": taken,
    }


def _kill_one(run: Any, began: float) -> dict[str, Any]:
    """Kill an executor under load; return when its site is replaced and every partition has both copies."""
    there = [
        process for process in run.status().processes if process.name.startswith("site-") and process.state == "up"
    ]
    victim = next(process for process in there if process.copies)
    before = {process.name for process in there}
    descendants = all(executor_of(process.pid) is not None for process in there)
    quiet_s = output_gap(run.output_log(), time.monotonic() - began - WINDOW_S, WINDOW_S)
    at_s = kill_executor_of(victim.pid) - began
    log = run.output_log
    wait_until(lambda: log()[-1][0] > at_s + WINDOW_S, "the output behind the kill")
    gap_s = output_gap(log(), at_s, WINDOW_S)
    wait_until(lambda: run.status().whole and bool(_fresh(run, before)), "Spark to start the site again")
    back_s = time.monotonic() - began - at_s
    fresh = _fresh(run, before)[0]
    return {
        "victim": victim.name,
        "descendants": descendants,
        "gap_s": gap_s,
        "without_kill_s": quiet_s,
        "fresh": fresh.name,
        "standby": fresh.copies == 0,
        "fresh_after_s": back_s,
    }


def _fresh(run: Any, before: set[str]) -> list[Any]:
    there = [process for process in run.status().processes if process.name.startswith("site-")]
    return [process for process in there if process.state == "up" and process.name not in before]


def exactly_once(spark: Any, rows: int, said: Any) -> dict[str, Any]:
    """Two sites on executors, and one core for both queries."""
    with flux.spark.Cluster(spark, sites=2, patience_s=600) as cluster:
        pipeline = Pipeline(spark, Path(tempfile.mkdtemp(prefix="flux-exactly-once-")), rows, cluster.start)
        kills: list[Kill] = [("the executor of site-1", _kill_executor), *sites(["site-2"]), *ends()]
        pipeline.kill_all(kills, said)
        table = pipeline.finish()
    killed = [what for what in ("worker", "query") if pipeline.has_killed(what)]
    return {
        "exact": pipeline.is_exact(table),
        "rows": table.num_rows,
        "killed": ", ".join([*killed, *(what for what, _ in kills)]),
        "tasks_left": len(active_jobs(spark)),
    }


def _kill_executor(pipeline: Pipeline) -> None:
    [first] = [process for process in pipeline.run.status().processes if process.name == "site-1"]
    kill_executor_of(first.pid)
    wait_until(lambda: not _is_up(pipeline, "site-1"), "the site to be missed")
    wait_until(lambda: pipeline.run.status().whole, "the copies of site-1 to be rebuilt")


def _is_up(pipeline: Pipeline, name: str) -> bool:
    return any(process.name == name and process.state == "up" for process in pipeline.run.status().processes)
