"""Sites on the executors of a Spark cluster on this machine, `local-cluster[3,1,1024]`, and kill -9.

`executor`: packets come at a steady rate; the executor of a site is killed. How long is there no output, is all of it
there, and does the site that Spark starts in its place become a standby? Killed again and again, `--kills` times.

`stopped`: the process of a site, and then an executor, does not answer for longer than it is waited for, and then wakes
up again. Spark may run a task twice then: of both, one is a site of the run.

`exactly-once`: Spark source -> Flux -> Spark sink, while a Spark task, the query in front, an executor, sites, ingress,
egress, controller and the query behind are killed in turn. Is the final table what a plain loop computes?
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import flux
from experiments import dmz, results
from flux.driver.report import output_gap

from .exactly_once import Kill, Pipeline, ends, sites
from .executors import active_jobs, executor_of, kill_executor_of, wait_until

WINDOW_S = 2.0
LASTS_S = 400.0  # At most.
MASTER = "local-cluster[3,1,1024]"


def main(arguments: list[str] | None = None) -> None:
    """Run one of the two and print its figures; exit status 1 if output is lost or wrong."""
    parser = argparse.ArgumentParser(prog="python -m experiments.spark_sites", description=__doc__)
    parser.add_argument("what", choices=("executor", "stopped", "exactly-once"))
    parser.add_argument("--kills", type=int, default=3, help="of `executor` (default 3)")
    parser.add_argument("--rate", type=float, default=10_000, help="packets per second of `executor` and `stopped`")
    parser.add_argument("--rows", type=int, default=48_000, help="packets of `exactly-once`")
    parser.add_argument("--quick", action="store_true", help="one kill")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if not options.json:
        logging.basicConfig(level=logging.WARNING, format="  %(message)s")
    spark = session(options.what == "stopped")
    try:
        if options.what == "executor":
            figures = executor(spark, 1 if options.quick else options.kills, options.rate)
        elif options.what == "stopped":
            figures = stopped(spark, options.rate)
        else:
            figures = exactly_once(spark, options.rows, lambda text: options.json or print(f"  {text}", flush=True))
    finally:
        spark.stop()
    rows = figures.get("kills") or [figures]
    path = results.write("spark_sites", options.what, rows, rate=options.rate)
    print(json.dumps(figures) if options.json else f"{figures}\nwritten to {path}")
    if not figures["exact"]:
        raise SystemExit(1)


def session(impatient: bool = False) -> Any:
    """Three executors of one core each; Spark is impatient if it waits seconds, not minutes, for one that is silent."""
    flux.spark.check_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark import cloudpickle
    from pyspark.sql import SparkSession

    # Executors have Flux, but not the experiments.
    cloudpickle.register_pickle_by_value(dmz.sessions)
    builder = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    if impatient:
        builder = builder.config("spark.executor.heartbeatInterval", "2s").config("spark.network.timeout", "20s")
        builder = builder.config("spark.network.timeoutInterval", "1s")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


class Load:
    """Packets at a steady rate, until they are over, through sites on the executors of `spark`."""

    def __init__(self, spark: Any, rate: float) -> None:
        self._spark = spark
        self._rate = rate
        self._packets = pa.Table.from_batches(dmz.packets(int(rate * LASTS_S), sources=100, destinations=10))
        self._over = Path(tempfile.mkdtemp()) / "over"

    def run(self, meanwhile: Callable[[Any], list[dict[str, Any]]]) -> dict[str, Any]:
        """Do what is to be done with the run when it is at work; its figures, and whether the output is right."""
        rate = self._rate
        source = flux.sources.Generator(self._some, rate=rate, schema=dmz.PACKETS, batch_rows=max(1, int(rate / 100)))
        with (
            flux.spark.Cluster(self._spark, sites=2, standby=1, patience_s=600) as cluster,
            cluster.start(dmz.flow(source)) as run,
        ):
            run.wait_for_output(int(rate), timeout=300)
            taken = meanwhile(run)
            self._over.touch()
            report = run.wait(timeout=600)
        expected = dmz.plain_table(self._packets.slice(0, report.inputs).to_batches())
        return {
            "exact": report.table is not None and report.table.equals(expected),
            "rows": report.outputs,
            "failures": [failure.site for failure in report.failures],
            "tasks_left": len(active_jobs(self._spark)),
            "kills": taken,
        }

    def _some(self, offset: int, count: int) -> Any:
        return None if self._over.exists() else self._packets.slice(offset, count)


def executor(spark: Any, kills: int, rate: float) -> dict[str, Any]:
    """Kill the executor of the first site that holds partitions, `kills` times."""
    figures = Load(spark, rate).run(lambda run: [_kill_one(run) for _ in range(kills)])
    taken = figures["kills"]
    told = {name: all(row[name] for row in taken) for name in ("descendants", "standby")}
    return figures | told | {"gap_s": results.spread([row["gap_s"] for row in taken])}


def stopped(spark: Any, rate: float) -> dict[str, Any]:
    """Stop the process of a site, and then an executor, for longer than they are waited for; both wake up again."""
    return Load(spark, rate).run(lambda run: [_stop_one(run, _site_itself), _stop_one(run, _its_executor)])


def _stop_one(run: Any, whom: Callable[[int], int]) -> dict[str, Any]:
    """SIGSTOP until another has come in its place; return when every partition has both copies again."""
    there = _sites_up(run)
    victim = next(process for process in there if process.copies)
    pid = whom(victim.pid)
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    # A stopped site is missed by the controller, a stopped executor by Spark.
    wait_until(lambda: not _holds(run, victim.name) and run.status().whole, f"{victim.name} to be given up")
    given_up_s = time.monotonic() - began
    with contextlib.suppress(ProcessLookupError):  # Spark may have killed it meanwhile.
        os.kill(pid, signal.SIGCONT)
    before = {process.name for process in there}
    wait_until(lambda: run.status().whole and bool(_fresh(run, before)), "Spark to start the site again")
    return {"victim": victim.name, "given_up_after_s": given_up_s, "fresh_after_s": time.monotonic() - began}


def _site_itself(pid: int) -> int:
    return pid


def _its_executor(pid: int) -> int:
    found = executor_of(pid)
    assert found is not None, f"process {pid} is a descendant of no executor"
    return found


def _holds(run: Any, name: str) -> bool:
    return any(process.name == name and process.copies for process in _sites_up(run))


def _sites_up(run: Any) -> list[Any]:
    there = [process for process in run.status().processes if process.name.startswith("site-")]
    return [process for process in there if process.state == "up"]


def _kill_one(run: Any) -> dict[str, Any]:
    """Kill an executor under load; return when its site is replaced and every partition has both copies."""
    began = time.monotonic() - run.status().t_s
    there = _sites_up(run)
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
    return [process for process in _sites_up(run) if process.name not in before]


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
    return any(process.name == name for process in _sites_up(pipeline.run))
