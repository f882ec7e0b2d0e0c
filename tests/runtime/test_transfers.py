"""Real processes, large state: it moves while rows flow, and whoever dies on the way, the output is exact.

It takes half a minute: each test is a run of real processes that die and are replaced.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import flux
from flux.driver.run_state import RunState

from .relay import Relay, relayed
from .waiting import wait_until

KEYS = 100
ROWS = 60_000
ROWS_PER_S = 5_000  # So that the stream outlasts what is done to it.
WORDS = 3_000_000  # 24 MB: more than is copied in place, and more than a link has on its way.
BEGUN_BYTES = 1 << 20  # When so many have passed the relay, the state is on its way, and far from through.
PATIENCE_S = 60.0


class Ballast(flux.Operator):
    """Counts each key, beside state that makes copies slow to move; what it emits depends on all of it."""

    output: ClassVar = {"key": "int64", "count": "int64"}

    def open(self, context: flux.Context) -> None:
        self._counts: dict[int, int] = {}
        self._ballast: Any = None

    def process(self, batch: flux.Batch) -> Any:
        if self._ballast is None:
            self._ballast = np.ones(WORDS, np.int64)
        counts = []
        for key in batch["key"].tolist():
            place = key * (WORDS // KEYS)
            self._ballast[place] += 1
            self._counts[key] = self._counts.get(key, 0) + int(self._ballast[place + 1])
            counts.append(self._counts[key] + int(self._ballast[place]))
        return batch.emit({"key": batch["key"], "count": counts})

    def get_state(self) -> Any:
        yield {"counts": self._counts}
        if self._ballast is not None:
            half = WORDS // 2
            yield {"half": self._ballast[:half]}
            yield {"half": self._ballast[half:]}

    def install_state(self, state: Any) -> None:
        if "counts" in state:
            self._counts = state["counts"]
        elif self._ballast is None:
            self._ballast = state["half"]
        else:
            self._ballast = np.concatenate([self._ballast, state["half"]])


class Held(Ballast):
    """Its state is read when a file is there."""

    def open(self, context: flux.Context) -> None:
        super().open(context)
        self._go = Path(context.parameters["go"])

    def get_state(self) -> Any:
        yield from super().get_state()
        wait_until(self._go.exists, "the file")


def flow(operator: Any = Ballast, **parameters: Any) -> flux.Dataflow:
    made = flux.Dataflow("large")
    rows = pa.record_batch({"key": pa.array(np.arange(ROWS) % KEYS)})
    source = made.source(flux.sources.Table(rows, rate=ROWS_PER_S))
    source.exchange("key", partitions=1).apply(operator, **parameters).sink(flux.sinks.Collect())
    return made


def check(report: flux.Report) -> None:
    """Row i is the (i // KEYS + 1)-th of its key: it has counted so many, and the ballast was 1 at first."""
    rows = np.arange(ROWS)
    assert report.table.column("key").to_numpy().tolist() == (rows % KEYS).tolist()
    assert report.table.column("count").to_numpy().tolist() == (2 * (rows // KEYS + 1) + 1).tolist()


def whole_without(*dead: str) -> Any:
    def holds(run_state: RunState) -> bool:
        if run_state.error is not None:
            raise run_state.error
        last = [run_state.closed_at.get(site) for site in dead]
        return (
            None not in last and run_state.whole and run_state.wholes[-1].at > max(at for at in last if at is not None)
        )

    return holds


def pid_of(run: flux.Run, name: str) -> int:
    [pid] = [process.pid for process in run.status().processes if process.name == name and process.pid]
    return pid


def forks_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@contextmanager
def slow_transfer(monkeypatch: pytest.MonkeyPatch, standby: int) -> Iterator[tuple[flux.Run, Relay]]:
    """A run whose site-1, the donor of everything, reaches site-3 through a relay that passes on little at a time."""
    with relayed(monkeypatch, "site-1", "site-3") as relay, flow().start(sites=2, standby=standby) as run:
        relay.start()
        run.wait_for_output(1_000)
        relay.pause_s = 0.05
        yield run, relay


def begun(relay: Relay) -> None:
    before = relay.passed_bytes
    wait_until(lambda: relay.passed_bytes > before + BEGUN_BYTES, "the state to be on its way")


def test_large_state_moves_while_rows_flow() -> None:
    with flow().start(sites=2, standby=1) as run:
        run.wait_for_output(1_000)
        run.kill("site-2")
        assert run._driver.wait(whole_without("site-2"), PATIENCE_S)
        donor = pid_of(run, "site-1")
        assert forks_of(donor) == []
        wait_until(
            lambda: bool(run.moved_log()), "the donor to tell what it has moved"
        )  # On another link than the view.
        [moved] = run.moved_log()
        assert moved.to == "site-3" and moved.size_bytes > 8 * WORDS
        run.kill("site-1")  # Now the copy must stand alone.
        report = run.wait(timeout=PATIENCE_S)
    check(report)
    assert report.failures[0].bytes_moved == moved.size_bytes


@pytest.mark.long
def test_rows_pass_state_that_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with slow_transfer(monkeypatch, standby=1) as (run, relay):
        run.kill("site-2")
        begun(relay)
        run.wait_for_output(run.status().outputs + 1_000)
        assert run.moved_log() == [], "the state was through before the rows"
        relay.pause_s = 0.0
        assert run._driver.wait(whole_without("site-2"), PATIENCE_S)
        report = run.wait(timeout=PATIENCE_S)
    check(report)


@pytest.mark.long
def test_rows_flow_on_however_long_a_transfer_takes(tmp_path: Path) -> None:
    """Many pools of rows are kept for the copy; then it takes them all, and can stand alone."""
    pool_rows = 1_000
    made = flux.Dataflow("held")
    rows = pa.record_batch({"key": pa.array(np.arange(ROWS) % KEYS)})
    source = made.source(flux.sources.Table(rows, rate=ROWS_PER_S, batch_rows=200))
    source.exchange("key", partitions=1).apply(Held, go=str(tmp_path / "go")).sink(flux.sinks.Collect())
    with made.start(sites=2, standby=1, pool_rows=pool_rows) as run:
        run.wait_for_output(1_000)
        run.kill("site-2")
        run.wait_for_output(run.status().outputs + 15 * pool_rows, timeout=PATIENCE_S)
        assert run.moved_log() == [], "nobody waited for the file"
        (tmp_path / "go").touch()
        assert run._driver.wait(whole_without("site-2"), PATIENCE_S)
        run.kill("site-1")
        report = run.wait(timeout=PATIENCE_S)
    check(report)


@pytest.mark.long
def test_a_connection_that_breaks_under_a_transfer_goes_on_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with slow_transfer(monkeypatch, standby=1) as (run, relay):
        run.kill("site-2")
        for _ in range(3):
            begun(relay)
            relay.cut()
        relay.pause_s = 0.0
        assert run._driver.wait(whole_without("site-2"), PATIENCE_S)
        run.kill("site-1")
        report = run.wait(timeout=PATIENCE_S)
    check(report)


@pytest.mark.long
def test_a_receiver_that_dies_half_way_leaves_nothing_at_the_donor(monkeypatch: pytest.MonkeyPatch) -> None:
    with slow_transfer(monkeypatch, standby=2) as (run, relay):
        donor = pid_of(run, "site-1")
        run.kill("site-2")
        begun(relay)
        assert len(forks_of(donor)) == 1
        run.kill("site-3")
        assert run._driver.wait(whole_without("site-2", "site-3"), PATIENCE_S)
        wait_until(lambda: forks_of(donor) == [], "the fork that read the state to be gone")
        run.kill("site-1")
        report = run.wait(timeout=PATIENCE_S)
    check(report)


def test_a_donor_that_dies_half_way_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with slow_transfer(monkeypatch, standby=2) as (run, relay):
        draining = threading.Thread(target=run.drain, args=("site-2",))
        draining.start()  # A third copy is built, from that of site-1.
        begun(relay)
        run.kill("site-1")
        draining.join(PATIENCE_S)
        assert run._driver.wait(whole_without("site-1"), PATIENCE_S)
        report = run.wait(timeout=PATIENCE_S)
    check(report)


class ReaderKiller(Ballast):
    """The first two forks that read its state are killed, as the system does when memory runs out."""

    def open(self, context: flux.Context) -> None:
        super().open(context)
        self._site, self._killed = os.getpid(), Path(context.parameters["killed"])

    def get_state(self) -> Any:
        yield from super().get_state()
        if os.getpid() != self._site and len(list(self._killed.iterdir())) < 2:
            (self._killed / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_reader_of_state_that_is_killed_is_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with flow(ReaderKiller, killed=str(tmp_path)).start(sites=2, standby=1) as run:
        run.wait_for_output(1_000)
        run.kill("site-2")
        assert run._driver is not None
        assert run._driver.wait(whole_without("site-2"), PATIENCE_S)
        assert len(list(tmp_path.iterdir())) == 2
        check(run.wait(PATIENCE_S))
    assert "ended with status -9" in caplog.text
