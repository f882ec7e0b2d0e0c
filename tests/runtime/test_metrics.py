"""The metrics of real runs, read over HTTP by Prometheus's own parser while every kind of process is killed.

It takes half a minute: rows trickle, so that there are some while copies are rebuilt.
"""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import flux
from flux.commands.main import main
from flux.driver.metrics_endpoint import listen
from flux.types.errors import FluxError, PlanError
from flux.types.hashing import partition_of
from tests.driver.metrics_text import Series, assert_nothing_fell, parsed, total

from .commands import DEADLINE_S, Processes
from .waiting import wait_until

ROWS, PARTITIONS, BAD_EVERY, BATCH_ROWS = 12_000, 4, 1_000, 100
VICTIMS = ("site-1", "ingress", "site-2", "egress", "controller")
SCRAPE_EVERY_S = 0.1


class Counts(flux.KeyedOperator):
    output: ClassVar = {"k": "int64", "n": "int64"}

    def on_tuple(self, key, row, state):  # type: ignore[no-untyped-def]
        if row.n % BAD_EVERY == BAD_EVERY - 1:
            raise ValueError("one of many")
        return (state or 0) + 1, [{"k": row.k, "n": row.n}] * (1 + row.n % 2)


class Sums(flux.PooledOperator):
    output: ClassVar = {"n": "int64"}

    def process(self, batch: flux.Batch) -> flux.Batch:
        return batch.emit({"n": batch.column("n")})

    def get_partition_state(self, pid: int) -> Any:
        return 0

    def install_partition_state(self, pid: int, state: Any) -> None:
        pass

    def drop_partition(self, pid: int) -> None:
        pass


def rows_of() -> pa.Table:
    n = np.arange(ROWS)
    return pa.table({"k": n % 97, "n": n})


def trickling(rows: pa.Table, directory: Path) -> Iterator[pa.Table]:
    """The rows, in a part for each victim and a last one; each part waits for the file that is its gate."""
    part_rows = rows.num_rows // (len(VICTIMS) + 1)
    for begin in range(0, rows.num_rows, BATCH_ROWS):
        while begin and not (directory / f"part-{begin // part_rows}").exists():
            time.sleep(0.01)
        time.sleep(0.005)
        yield rows.slice(begin, BATCH_ROWS)


def flow_of(rows: pa.Table | Iterator[pa.Table]) -> flux.Dataflow:
    flow = flux.Dataflow("measured")
    source = flux.sources.Table(rows, batch_rows=BATCH_ROWS)
    counts = flow.source(source).exchange("k", partitions=PARTITIONS).apply(Counts)
    counts.exchange("n", partitions=PARTITIONS).apply(Sums).sink(flux.sinks.Null())
    return flow


def by_partition(rows: pa.Table, column: str) -> list[int]:
    """The rows of each partition, as the hash alone says."""
    partition = partition_of([rows[column].combine_chunks()], PARTITIONS)
    return [int(count) for count in np.bincount(partition, minlength=PARTITIONS)]


def is_whole(run: flux.Run) -> bool:
    status = run.status()
    assert status.error is None
    return status.whole


class Scraper:
    """Reads the metrics of a run again and again, as Prometheus does, until the endpoint is gone."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.scrapes: list[dict[Series, float]] = []
        self._thread = threading.Thread(target=self._scrape)
        self._thread.start()

    def _scrape(self) -> None:
        while True:
            time.sleep(SCRAPE_EVERY_S)
            try:
                with urllib.request.urlopen(self.url, timeout=DEADLINE_S) as answer:
                    self.scrapes.append(parsed(answer.read().decode()))
            except OSError:
                return

    def end(self) -> None:
        """Return when the endpoint is gone; it goes with its run."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the endpoint outlives its run"


def test_no_total_falls_while_each_kind_of_process_is_killed_and_all_equal_the_report(tmp_path: Path) -> None:
    rows = rows_of()
    with flow_of(trickling(rows, tmp_path)).start(sites=3, standby=1, on_error="skip", metrics_port=0) as run:
        assert run.metrics_url is not None
        scraper = Scraper(run.metrics_url)
        for part, victim in enumerate(VICTIMS):
            wait_until(lambda: is_whole(run), f"what was lost before {victim} was not rebuilt", every_s=0.05)
            (tmp_path / f"part-{part}").touch()
            so_far = part * ROWS // (len(VICTIMS) + 1) + BATCH_ROWS
            wait_until(lambda so_far=so_far: run.status().inputs > so_far, "the source gives no rows")  # type: ignore[misc]
            seen = len(scraper.scrapes)
            run.kill(victim)
            wait_until(lambda seen=seen: len(scraper.scrapes) >= seen + 4, "nothing was scraped")  # type: ignore[misc]
        (tmp_path / f"part-{len(VICTIMS)}").touch()
        report = run.wait(timeout=120)
    scraper.end()
    metrics = run.metrics()
    last = parsed(metrics.to_text())

    for before, after in zip(scraper.scrapes, [*scraper.scrapes[1:], last], strict=True):
        assert_nothing_fell(before, after)
    # What the report says.
    assert total(last, "flux_input_rows_total") == report.inputs == ROWS
    assert total(last, "flux_output_rows_total") == report.outputs
    assert total(last, "flux_skipped_rows_total", step="Counts") == report.skipped == ROWS // BAD_EVERY
    assert total(last, "flux_moves_total") == len(report.moves) > 0
    assert total(last, "flux_moved_bytes_total") == sum(move["bytes"] for move in report.moves)
    assert total(last, "flux_balance_rounds_total") == len(report.rounds)
    died = Counter(failure.site.partition("-")[0] for failure in report.failures)
    assert {role: total(last, "flux_failures_total", role=role) for role in died} == died
    assert total(last, "flux_recoveries_total") == len([1 for each in report.failures if each.recovered_after_s])
    # Rows once per partition, in however many copies they were.
    emitted = rows.filter(pa.array(np.arange(ROWS) % BAD_EVERY != BAD_EVERY - 1))
    emitted = emitted.take(np.repeat(np.arange(len(emitted)), 1 + emitted["n"].to_numpy() % 2))
    assert report.outputs == len(emitted)
    for step, taken, column in (("Counts", rows, "k"), ("Sums", emitted, "n")):
        of_step = [total(last, "flux_rows_total", step=step, partition=str(p)) for p in range(PARTITIONS)]
        assert of_step == by_partition(taken, column)
    # Series of sites end with them, and those that live have all of theirs.
    sites = {dict(labels)["site"] for (name, labels) in scraper.scrapes[-1] if name == "flux_busy_share"}
    assert {"site-1", "site-2"}.isdisjoint(sites) and {"site-3", "site-4"} <= sites


@pytest.mark.parametrize("balance", ["auto", "off"])
def test_a_full_pool_shows_as_back_pressure_of_its_edge(balance: str) -> None:
    flow = flux.Dataflow("pressed")
    rows = flow.source(flux.sources.Table(pa.concat_tables([rows_of()] * 30)))
    slow = flux.sinks.Callback(lambda rows: time.sleep(0.02))
    rows.exchange("k", partitions=2).apply(Sums).sink(slow)
    with flow.start(sites=2, pool_rows=500, balance=balance) as run:

        def waited(**labels: str) -> float:
            return run.metrics().total("flux_backpressure_seconds_total", **labels)

        wait_until(lambda: waited(step="Sums", to="sink 0") > 0.5, "no site waits for the sink")
        wait_until(lambda: waited(step="ingress", to="Sums") > 0.5, "the source does not wait")
        wait_until(lambda: run.metrics().total("flux_pool_rows", step="Sums") >= 500, "no pool is seen full")
        metrics = run.metrics()
        assert metrics.total("flux_pool_rows_max", step="Sums", site="site-1") == 500
        assert 0 < metrics.total("flux_rows_total", step="Sums") <= metrics.total("flux_input_rows_total")
        run.stop()


def test_a_port_that_is_taken_ends_the_start_and_leaves_nothing() -> None:
    with listen("tcp:127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FluxError, match=f"metrics cannot be served: cannot listen at tcp:127.0.0.1:{port}"):
            flow_of(rows_of()).start(sites=2, metrics_port=port)
    with pytest.raises(PlanError, match="metrics_port is a port"):
        flow_of(rows_of()).start(sites=2, metrics_port="everywhere")


def test_the_command_prints_what_a_local_run_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "part-0").touch()
    with flow_of(trickling(rows_of(), tmp_path)).start(sites=2, on_error="skip") as run:
        assert run.metrics_url is None
        run.wait_for_output(100)
        assert main(["metrics", "measured"]) == 0
        values = parsed(capsys.readouterr().out)
        assert total(values, "flux_run_info", run="measured") == 1
        assert total(values, "flux_output_rows_total") >= 100
        assert main(["metrics", "measured", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["flux_rows_total"]["type"] == "counter"
        run.stop()


def test_a_remote_run_is_scraped_at_its_controller_and_no_total_falls_when_that_is_restarted(
    processes: Processes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listen("tcp:127.0.0.1:0") as free:
        port = free.getsockname()[1]
    others = ("site-a", "site-b", "site-c", "egress", "ingress")
    processes.start("controller", "--metrics-port", str(port))
    for name in others:
        processes.start(name)

    def scrape() -> dict[Series, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
            return parsed(answer.read().decode())

    processes.advance(300)
    wait_until(lambda: total(scrape(), "flux_rows_total", step="Counts") > 300, "no site reports")
    assert main(["kill", "--controller", processes.controller, "--", "site-1"]) == 0
    wait_until(lambda: total(scrape(), "flux_recoveries_total", role="site") == 1, "nothing is rebuilt")
    capsys.readouterr()
    before = scrape()
    assert total(before, "flux_failures_total", role="site") == 1
    assert total(before, "flux_moves_total") > 0
    processes.kill("controller")
    processes.start("controller", "--metrics-port", str(port))
    wait_until(lambda: _answers(scrape), "the endpoint is not back")
    first = scrape()
    assert_nothing_fell(before, first)
    processes.advance(300)
    numbered = total(before, "flux_input_rows_total")
    wait_until(lambda: total(scrape(), "flux_input_rows_total") > numbered, "no new rows are counted")
    after = scrape()
    assert_nothing_fell(first, after)
    assert total(after, "flux_failures_total", role="site") == 1

    assert main(["metrics", "--controller", processes.controller]) == 0
    assert_nothing_fell(after, parsed(capsys.readouterr().out))
    (tmp_path / "enough").touch()
    ends = [process.wait(DEADLINE_S) for process in processes.running.values()]
    assert sorted(ends) == [-signal.SIGKILL, 0, 0, 0, 0, 0], processes.logs()


def _answers(scrape: Any) -> bool:
    try:
        scrape()
    except OSError:
        return False
    return True
