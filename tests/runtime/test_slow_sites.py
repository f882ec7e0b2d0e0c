"""Real processes, one site of two at a fraction of its speed: rows are kept for it, and then the source waits.

It takes half a minute: a backlog has to grow. The operator is slow in the process whose number is in shared
memory, so a test can slow a site down and let it recover.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio

import flux
from flux.balance import slow_marks
from flux.driver.status import ProcessStatus
from flux.plan.plan import CONTROLLER
from flux.run import Run
from flux.site import crash_points
from flux.site.spill import TRANSFER_POOLS_MAX
from flux.sources.source import SourceBatch

from .waiting import wait_until

PARTITIONS = 8
POOL_ROWS = 12
KEPT_ROWS_MAX = TRANSFER_POOLS_MAX * POOL_ROWS
BATCH_ROWS = 10
ROW_SOURCE_S, ROW_SLOW_S = 0.002, 0.02
STEP_ROWS = 200  # What is between the source and the slow operator, besides what is kept: a few pools.
_SLOW_PID = mmap.mmap(-1, 8)


class Counts(flux.Operator):
    """Counts each key, slowly in one process."""

    output: ClassVar = {"k": "int64", "n": "int64"}

    def open(self, context: flux.Context) -> None:
        self._counts: Counter[int] = Counter()

    def process(self, batch: flux.Batch) -> Any:
        if struct.unpack("q", _SLOW_PID[:8]) == (os.getpid(),):
            time.sleep(len(batch["k"]) * ROW_SLOW_S)
        counts = []
        for key in batch["k"].tolist():
            self._counts[key] += 1
            counts.append(self._counts[key])
        return batch.emit({"k": batch["k"], "n": counts})

    def get_state(self) -> Any:
        return dict(self._counts)

    def install_state(self, state: Any) -> None:
        self._counts = Counter(state)


@pytest.fixture(autouse=True)
def _no_site_is_slow_at_first() -> Iterator[None]:
    slow_down(0)
    yield
    slow_down(0)


def slow_down(pid: int | None) -> None:
    _SLOW_PID[:8] = struct.pack("q", pid or 0)


def rows(count: int) -> list[dict[str, int]]:
    return [{"k": index * 7919 % 97} for index in range(count)]


def counted(count: int) -> list[dict[str, int]]:
    """What `Counts` must give: the same in a plain loop."""
    seen: Counter[int] = Counter()
    result = []
    for row in rows(count):
        seen[row["k"]] += 1
        result.append({"k": row["k"], "n": seen[row["k"]]})
    return result


class SteadyTable(flux.sources.Table):
    """A table that pauses after each batch. One with a rate makes up for the time in which it waited, in a burst."""

    async def batches(self, context: Any, after: Any = None) -> AsyncIterator[SourceBatch]:
        async for batch in super().batches(context, after):
            yield batch
            await trio.sleep(BATCH_ROWS * ROW_SOURCE_S)


def flow(count: int) -> flux.Dataflow:
    made = flux.Dataflow("one is slow")
    source = made.source(SteadyTable(rows(count), batch_rows=BATCH_ROWS))
    source.exchange("k", partitions=PARTITIONS).apply(Counts).sink(flux.sinks.Collect())
    return made


def site(run: Run, name: str = "site-2") -> ProcessStatus:
    return next(process for process in run.status().processes if process.name == name)


def is_left(run: Run) -> bool:
    return bool(site(run).time_left_s)


def is_waited_for(run: Run) -> bool:
    return site(run).time_left_s == 0.0


def test_rows_are_kept_for_a_slow_site_and_then_the_source_goes_at_its_pace(caplog: pytest.LogCaptureFixture) -> None:
    count = 1_800
    with (
        caplog.at_level(logging.WARNING, "flux"),
        flow(count).start(sites=2, balance="auto", pool_rows=POOL_ROWS) as run,
    ):
        run.wait_for_output(100)
        slow_down(site(run).pid)
        slowed_at_s, before = time.monotonic(), run.status().outputs

        wait_until(lambda: is_left(run), "no time left is shown")
        shown = site(run)
        assert shown.slow and shown.kept_rows_max == KEPT_ROWS_MAX
        assert shown.kept_rows is not None and 0 < shown.kept_rows < KEPT_ROWS_MAX

        # The other copy goes on until the bound is reached: far more than the slow one can have consumed.
        wait_until(lambda: is_waited_for(run), "the source waits for nothing")
        at_s, outputs = time.monotonic(), run.status().outputs
        consumed = (at_s - slowed_at_s) / ROW_SLOW_S
        assert outputs - before >= KEPT_ROWS_MAX - STEP_ROWS
        assert outputs - before <= KEPT_ROWS_MAX + consumed + STEP_ROWS

        # From here on rows go in as the slow site makes room.
        run.wait_for_output(outputs + 100)
        assert run.status().outputs <= outputs + (time.monotonic() - at_s) / ROW_SLOW_S + STEP_ROWS
        status = run.status()
        slow_down(0)
        report = run.wait(timeout=60)

    assert report.table.to_pylist() == counted(count)
    assert report.failures == [] and status.whole
    assert {process.state for process in status.processes} == {"up"}
    assert status["processes"][-1]["kept_rows"] is not None, "it is in the JSON of flux status as well"
    span = report.slow[0]
    assert span["site"] == "site-2" and span["waits"] and span["given_up"] == 0
    assert KEPT_ROWS_MAX <= span["kept_rows"] <= KEPT_ROWS_MAX + STEP_ROWS
    events = [event for interval in report.timeline for event in interval.events]
    assert "site-2 is slow" in events and "the source waits for site-2" in events
    said = [record.getMessage() for record in caplog.records]
    slow, waits = [text for text in said if "site=site-2" in text]
    assert "site is slow, and no other waits for it." in slow and "add a site" in slow
    assert "the source waits for a slow site" in waits and f"kept_rows_max={KEPT_ROWS_MAX}" in waits


def test_the_copies_of_a_slow_site_are_given_up_and_rebuilt_when_it_recovers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_marks, "RETRY_AFTER_S", 0.5)  # The processes of the run are forks.
    count = 2_400
    with (
        caplog.at_level(logging.WARNING, "flux"),
        flow(count).start(sites=2, balance="auto", slow="give-up", pool_rows=POOL_ROWS) as run,
    ):
        run.wait_for_output(100)
        slow_down(site(run).pid)
        wait_until(lambda: site(run).copies == 0, "no copies are given up")
        slow_down(0)
        given_up = run.status()
        wait_until(lambda: run.status().whole and site(run).copies == PARTITIONS, "the copies are not rebuilt")
        report = run.wait(timeout=60)

    assert report.table.to_pylist() == counted(count)
    assert not given_up.whole and report.failures == []
    assert {process.state for process in given_up.processes} == {"up"}
    assert [span["given_up"] for span in report.slow if span["given_up"]] == [PARTITIONS]
    assert Counter((move["to"], move["why"]) for move in report.moves) == {
        ("site-2", "a copy was given up"): PARTITIONS
    }
    events = [event for interval in report.timeline for event in interval.events]
    assert f"site-2 is given up, copies: {PARTITIONS}" in events
    assert any("the copies of a slow site are given up" in record.getMessage() for record in caplog.records)


def test_the_controller_may_die_as_it_is_asked_to_mark_and_to_retire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each it dies once. The next controller finds out by itself what is slow, and goes on from the journal."""
    points = ("step-copy-costs", "step-slow", "step-retire")
    for point in points:
        (tmp_path / f"{CONTROLLER}:{point}").touch()
    monkeypatch.setenv(crash_points.VARIABLE, f"@{tmp_path}")
    count = 1_800
    with flow(count).start(sites=2, balance="auto", slow="give-up", pool_rows=POOL_ROWS) as run:
        run.wait_for_output(100)
        slow_down(site(run).pid)
        wait_until(lambda: site(run).copies == 0, "no copies are given up")
        slow_down(0)
        report = run.wait(timeout=60)

    assert report.table.to_pylist() == counted(count)
    assert [failure.site for failure in report.failures] == [CONTROLLER] * len(points)
    assert sorted(path.suffix[1:].isdecimal() for path in tmp_path.iterdir()) == [True] * len(points)
