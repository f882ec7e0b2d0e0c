"""What a report tells of deaths, drains and moves, with real processes: also of those that only seem to be alive."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import flux
from flux.driver.processes import Process

from .waiting import DEADLINE_S, wait_until


class Counts(flux.KeyedOperator):
    output = {"k": "int64", "n": "int64"}  # noqa: RUF012 - as users write it.

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        n = (state or 0) + 1
        return n, [{"k": row.k, "n": n}]


@contextmanager
def running(tmp_path: Any, **settings: Any) -> Iterator[flux.Run]:
    """A run that goes on until there is a file `enough`, under way; its sink waits while there is a file `held`."""
    flow = flux.Dataflow("job")

    def rows(at: int, n: int) -> Any:
        return None if (tmp_path / "enough").exists() else {"k": [v % 11 for v in range(at, at + n)]}

    def take(rows: Any) -> None:
        while (tmp_path / "held").exists():
            time.sleep(0.01)

    stream = flow.source(flux.sources.Generator(rows, rate=5_000))
    stream.exchange("k", partitions=4).apply(Counts).sink(flux.sinks.Callback(take))
    with flow.start(**settings) as run:
        run.wait_for_output(100)
        yield run


def end(run: flux.Run, tmp_path: Any) -> flux.Report:
    run.wait_for_output(run.status().outputs + 100)
    (tmp_path / "enough").touch()
    return run.wait(timeout=DEADLINE_S)


def stop(run: flux.Run, name: str) -> Process:
    """SIGSTOP a process; return when the controller has declared it dead."""
    process = run._driver.processes.live(name)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    assert run._driver.wait(lambda run_state: name in run_state.closed_at, DEADLINE_S)
    return process


def test_a_dead_site_whose_process_is_still_there_is_not_drained(tmp_path: Any) -> None:
    with running(tmp_path, sites=4) as run:
        site = stop(run, "site-2")
        with pytest.raises(flux.FluxError, match=r"site-2 died before all its state .*, with no answer"):
            run.drain("site-2")
        assert site.pid is not None and not site.drained
        assert [failure.site for failure in run.status().failures] == ["site-2"]
        os.kill(site.pid, signal.SIGCONT)
        wait_until(lambda: site.gone, "site-2 did not end when it woke up")
        assert site.state == "dead"
        report = end(run, tmp_path)
    assert [failure.site for failure in report.failures] == ["site-2"]


def test_a_site_that_is_stopped_while_it_is_drained_is_an_error_or_is_empty(tmp_path: Any) -> None:
    with running(tmp_path, sites=4) as run:
        pid = run._driver.processes.live("site-2").pid
        assert pid is not None
        process = run._begin_drain("site-2")
        os.kill(pid, signal.SIGSTOP)
        gone = run._driver.wait(lambda run_state: "site-2" in run_state.closed_at, DEADLINE_S)
        os.kill(pid, signal.SIGCONT)
        assert gone
        if process.drained:  # It was stopped when nothing was on it any more.
            run._await_drained(process, DEADLINE_S, run._await)
        else:
            with pytest.raises(flux.FluxError, match="site-2 died before all its state was transferred"):
                run._await_drained(process, DEADLINE_S, run._await)
        report = end(run, tmp_path)
    assert [failure.site for failure in report.failures] == ([] if process.drained else ["site-2"])


def test_a_site_that_was_stopped_and_never_woke_is_a_failure_that_began_when_it_fell_silent(tmp_path: Any) -> None:
    with running(tmp_path, sites=3) as run:
        stop(run, "site-2")
        assert [failure.site for failure in run.status().failures] == ["site-2"]
        [told] = [process for process in run.status().processes if process.name == "site-2"]
        assert (told.state, told.copies, told.buffered_rows) == ("dead", 0, 0)
        wait_until(lambda: run.status().failures[0].recovered_after_s is not None, "the copies were not rebuilt")
        report = end(run, tmp_path)
    [failure] = report.failures
    # Five beats are missed before anybody is taken for dead.
    assert failure.site == "site-2" and failure.detected_after_s >= 0.4
    assert failure.recovered_after_s is not None and failure.recovered_after_s > failure.detected_after_s
    assert failure.bytes_moved > 0


def test_moves_and_what_happened_when_are_told(tmp_path: Any) -> None:
    with running(tmp_path, sites=3) as run:
        copies = next(process.copies for process in run.status().processes if process.name == "site-1")
        run.drain("site-1")
        run.add_site()
        run.kill("site-3")
        wait_until(lambda: run.status().failures[0].recovered_after_s is not None, "the copies were not rebuilt")
        report = end(run, tmp_path)
    drained = [move for move in report.moves if move["to"] != "site-4"]
    assert len(drained) >= copies > 0
    for move in report.moves:
        assert move["step"] == "Counts" and move["partition"] in range(4)
        assert move["from"] != move["to"] and move["bytes"] > 0 and move["took_s"] >= 0
        assert 0 < move["when_s"] <= report.duration_s
    assert len({move["version"] for move in report.moves}) == len(report.moves)
    assert [move["when_s"] for move in report.moves] == sorted(move["when_s"] for move in report.moves)
    assert report.to_dict()["moves"] == report.moves
    events = [event for interval in report.timeline for event in interval.events]
    told = [event for event in events if "transferred" not in event]
    assert told == ["site-1 is drained", "site-4 joined", "site-3 died", "site-3 recovered"]
    assert any(event.startswith("partitions transferred from site-") for event in events)


def test_an_outage_is_told_while_it_goes_on_and_whole_when_it_is_over(tmp_path: Any) -> None:
    with running(tmp_path, sites=3) as run:
        (tmp_path / "held").touch()
        run.kill("site-1")
        wait_until(lambda: run.status().failures[0].output_gap_s > 2.5, "the outage is not told")
        (tmp_path / "held").unlink()
        report = end(run, tmp_path)
    [failure] = report.failures
    assert failure.site == "site-1" and failure.output_gap_s > 2.5


def test_rows_that_come_shortly_before_a_source_falls_silent_are_told(tmp_path: Any) -> None:
    def rows() -> Iterator[Any]:
        for n in range(20):
            yield pa.table({"k": [n]})
            time.sleep(0.01)  # Or they would come as one batch.
        while not (tmp_path / "enough").exists():
            time.sleep(0.01)

    flow = flux.Dataflow("silent")
    flow.source(flux.sources.Table(rows())).exchange("k", partitions=2).apply(Counts).sink(flux.sinks.Null())
    with flow.start(sites=2) as run:
        wait_until(lambda: run.status().inputs == 20, "not all rows were told")
        (tmp_path / "enough").touch()
        run.wait(timeout=DEADLINE_S)
