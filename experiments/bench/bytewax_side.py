"""Row-wise operators beside bytewax: `python -m experiments.bench.bytewax_side`.

The dataflow of thesis 2.2, a row at a time: Flux's `KeyedOperator` with pairs on two sites, and bytewax's batch
operators (`flat_map_batch`, `stateful_batch`) with recovery on, in one process and in two. All take turns within one
run, because the machine is noisy; what counts are ratios of medians. Both begin with the same Arrow batches, and both
give as much output as the plain loop, Flux the same, which is checked. Time is taken from the first batch to
the last row at the sink.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import socket
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import flux
from experiments import dmz, results

SITES = 2
PARTITIONS = 32
SNAPSHOT_EVERY = timedelta(seconds=1)
Out = tuple[int, int, int, float]


# --- Flux ------------------------------------------------------------------------------------------------


class Sessions(flux.KeyedOperator):
    """By (src, dst): how long each session took."""

    output: ClassVar = {"app": "int32", "src": "int32", "dur": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        kind = row.data[0]
        if kind == 83:  # S
            return (row.data[1], row.ts), None
        if kind == 69 and state is not None:  # E
            return None, ({"app": state[0], "src": row.src, "dur": row.ts - state[1]},)
        return state, None


class LastTwo(flux.KeyedOperator):
    """By (app, src): maximum and mean of the last sessions."""

    output: ClassVar = {"app": "int32", "src": "int32", "max_dur": "int64", "avg_dur": "float64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        if state is None:
            return row.dur, None
        largest = state if state > row.dur else row.dur
        return row.dur, ({"app": key[0], "src": key[1], "max_dur": largest, "avg_dur": (state + row.dur) / 2},)


def measure_flux(batches: list[Any], availability: str) -> dict[str, Any]:
    """One run of Flux, from its first view until everything is at the sink."""
    flow = flux.Dataflow("rows")
    (
        flow.source(flux.sources.Table(batches))
        .exchange("src", "dst", partitions=PARTITIONS)
        .apply(Sessions)
        .exchange("app", "src", partitions=PARTITIONS)
        .apply(LastTwo)
        .sink(flux.sinks.Collect())
    )
    with flow.start(SITES, availability=availability) as run:
        began = time.perf_counter()
        report = run.wait()
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "cpu_s": sum(run.cpu_s.values()), "outputs": report.outputs, "sum": _sum(report.table)}


def _sum(table: Any) -> int:
    return sum(table.column("max_dur").to_pylist()) + sum(table.column("src").to_pylist())


# --- bytewax ---------------------------------------------------------------------------------------------


def bytewax_flow(batches: list[Any], said: Any) -> Any:
    """The same computation by bytewax's batch operators; `said` is told when it began and what came out."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    class Part(StatefulSourcePartition[Any, int]):
        def __init__(self, place: int | None) -> None:
            self.place = place or 0

        def next_batch(self) -> list[Any]:
            if self.place == 0:
                said["began"] = time.perf_counter()
            if self.place == len(batches):
                raise StopIteration
            self.place += 1
            return dmz.to_rows(batches[self.place - 1 : self.place])

        def snapshot(self) -> int:
            return self.place

    class Source(FixedPartitionedSource[Any, int]):
        def list_parts(self) -> list[str]:
            return ["all"]

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
            return Part(resume_state)

    class Session(op.StatefulBatchLogic[Any, Any, Any]):
        def __init__(self, started: Any) -> None:
            self.started = started

        def on_batch(self, values: list[Any]) -> Any:
            out = []
            for src, _, data, ts in values:
                if data[0] == 83:
                    self.started = (data[1], ts)
                elif data[0] == 69 and self.started is not None:
                    out.append((self.started[0], src, ts - self.started[1]))
                    self.started = None
            return out, self.started is None

        def snapshot(self) -> Any:
            return self.started

    class Last(op.StatefulBatchLogic[Any, Any, Any]):
        def __init__(self, last: int | None) -> None:
            self.last = last

        def on_batch(self, values: list[Any]) -> Any:
            out = []
            for app, src, dur in values:
                if self.last is not None:
                    out.append((app, src, max(self.last, dur), (self.last + dur) / 2))
                self.last = dur
            return out, False

        def snapshot(self) -> int | None:
            return self.last

    class Sink(StatelessSinkPartition[Any]):
        def write_batch(self, items: list[Any]) -> None:
            said["outputs"] = said.get("outputs", 0) + len(items)
            said["sum"] = said.get("sum", 0) + sum(row[2] + row[1] for _, row in items)

    class Sinks(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Sink:
            return Sink()

    flow: Any = Dataflow("rows")
    rows: Any = op.input("in", flow, Source())
    pairs = op.flat_map_batch("pairs", rows, lambda batch: [(f"{row[0]}:{row[1]}", row) for row in batch])
    ended = op.stateful_batch("sessions", pairs, Session)
    apps = op.flat_map_batch("apps", ended, lambda batch: [(f"{row[0]}:{row[1]}", row) for _, row in batch])
    op.output("out", op.stateful_batch("last", apps, Last), Sinks())
    return flow


def _bytewax_process(batches: list[Any], addresses: list[str], process: int, folder: str, told: Any) -> None:
    """In a process of its own: run, and tell what it took."""
    from bytewax.recovery import RecoveryConfig
    from bytewax.testing import cluster_main

    said: dict[str, Any] = {}
    flow = bytewax_flow(batches, said)
    cluster_main(flow, addresses, process, epoch_interval=SNAPSHOT_EVERY, recovery_config=RecoveryConfig(folder))
    used = resource.getrusage(resource.RUSAGE_SELF)
    told.put(said | {"ended": time.perf_counter(), "cpu_s": used.ru_utime + used.ru_stime})


def measure_bytewax(batches: list[Any], processes: int) -> dict[str, Any]:
    """One run of bytewax with recovery on."""
    from bytewax.recovery import init_db_dir

    context = multiprocessing.get_context("fork")
    told = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        init_db_dir(Path(folder), processes)
        addresses = [f"localhost:{_free_port()}" for _ in range(processes)] if processes > 1 else []
        running = [
            context.Process(target=_bytewax_process, args=(batches, addresses, number, folder, told))
            for number in range(processes)
        ]
        for process in running:
            process.start()
        said = [told.get() for _ in running]
        for process in running:
            process.join()
    began = min(each["began"] for each in said if "began" in each)
    totals = {name: sum(each.get(name, 0) for each in said) for name in ("cpu_s", "outputs", "sum")}
    return {"seconds": max(each["ended"] for each in said) - began, **totals}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


# --- side by side ------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> None:
    """Run all variants in turn, and print how they compare."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.bytewax_side", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few rows, one repeat: does it run at all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rows, options.repeats = 50_000, 1
    batches = dmz.packets(options.rows)
    expected = dmz.plain_loop(batches)
    check = (len(expected), sum(row[2] + row[1] for row in expected))
    variants = {
        "flux, pairs": lambda: measure_flux(batches, "pairs"),
        "bytewax, one process": lambda: measure_bytewax(batches, 1),
        "bytewax, two processes": lambda: measure_bytewax(batches, 2),
        "flux, one copy": lambda: measure_flux(batches, "none"),
    }
    taken: list[dict[str, Any]] = []
    for repeat in range(options.repeats):
        for name, measure in variants.items():
            found = measure()
            # bytewax gives the rows of a batch key by key, so the second step has sessions in another order.
            came = (found["outputs"], found["sum"] if name.startswith("flux") else check[1])
            assert came == check, f"{name} gave {came}, not {check}"
            taken.append({"variant": name, "repeat": repeat, "rows": options.rows, **found})
            if not options.json:
                rate = options.rows / found["seconds"]
                print(f"  {repeat + 1}/{options.repeats} {name}: {rate / 1e3:.0f} k/s, {found['cpu_s']:.1f} CPU s")
    path = results.write("bench", "bytewax", taken, sites=SITES, input_rows=options.rows)
    figures = _figures(taken)
    print(json.dumps(figures) if options.json else f"{_told(figures)}\nwritten to {path}")


def _figures(taken: list[dict[str, Any]]) -> dict[str, Any]:
    def median(variant: str, column: str) -> float:
        return statistics.median(row[column] for row in taken if row["variant"] == variant)

    rows, names = taken[0]["rows"], list(dict.fromkeys(row["variant"] for row in taken))
    rates = {name: rows / median(name, "seconds") for name in names}
    best = max((name for name in names if name.startswith("bytewax")), key=rates.__getitem__)
    return {
        "events_per_s": rates,
        "cpu_s_per_million": {name: median(name, "cpu_s") / rows * 1e6 for name in names},
        "best_of_bytewax": best,
        "pairs_over_bytewax": rates["flux, pairs"] / rates[best],
        "one_copy_over_bytewax": rates["flux, one copy"] / rates[best],
        "pairs_over_bytewax_per_cpu": median(best, "cpu_s") / median("flux, pairs", "cpu_s"),
    }


def _told(figures: dict[str, Any]) -> str:
    cpu = figures["cpu_s_per_million"]
    lines = [
        f"{name:24}{rate / 1e3:8.0f} thousand events/s{cpu[name]:8.2f} CPU s per million"
        for name, rate in figures["events_per_s"].items()
    ]
    lines.append(
        f"pairs {figures['pairs_over_bytewax']:.2f} times {figures['best_of_bytewax']} (by CPU "
        f"{figures['pairs_over_bytewax_per_cpu']:.2f}), one copy {figures['one_copy_over_bytewax']:.2f} times"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
