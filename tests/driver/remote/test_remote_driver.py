"""What the controller of a remote run tells of it: deaths and what they cost, drains, and copies that differ.

It takes long because each test starts six or more commands, and each of them is an interpreter of its own.
"""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from flux.commands.main import main
from flux.driver.remote.remote_driver import RemoteDriver, RowsAtEnd
from flux.driver.status import Status
from flux.plan import Policy
from flux.site.crash_note import Job
from flux.types.errors import DataLost, FluxError, OperatorError
from flux.wire.link import Link
from flux.wire.reports import (
    NodeDead,
    ProcessFailed,
    Report,
    RowsNumbered,
    RowsWritten,
    SiteDrained,
    StateSent,
    ViewPublished,
    report_frame,
)
from tests.runtime.commands import DEADLINE_S, Processes, Running
from tests.runtime.fakes import flow
from tests.runtime.waiting import wait_until

STARTED_AT = 1_000.0


class Hearing:
    """A leader that is told what happened when, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = STARTED_AT
        for module in ("flux.driver.remote.remote_driver", "flux.driver.processes"):
            monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: self.now))
        self.noted: list[RowsAtEnd] = []
        self.plan = flow()._logical.plan(2, 1, "pairs", 1_000, Policy())
        self.driver = RemoteDriver(self.plan, None, self.noted.append)
        self._rows = 0

    def take(self, t_s: float, report: Report, by: str = "controller") -> None:
        self.now = STARTED_AT + t_s
        self.driver._take(Link(by), report_frame(report))

    def view(self, t_s: float, number: int, versions: int = 0, whole: bool = True) -> None:
        self.take(t_s, ViewPublished(number=number, versions=versions, whole=whole, at=0.0))

    def written(self, t_s: float, upto: int, end: bool = False) -> None:
        report = RowsWritten(sink=0, after=upto - 1, upto=upto, rows=1, end=end, position=upto, ahead=(), total=upto)
        self.take(t_s, report, "egress")

    def rows(self, *seconds: float) -> None:
        for t_s in seconds:
            self._rows += 1
            self.written(t_s, self._rows)

    def gone(self, t_s: float, node: str, seen_s: float | None = None) -> None:
        seen_at = None if seen_s is None else STARTED_AT + seen_s
        self.take(t_s, NodeDead(node=node, at=STARTED_AT + t_s, seen_at=seen_at))

    def status(self) -> Status:
        return self.driver.status()


@pytest.fixture
def hearing(monkeypatch: pytest.MonkeyPatch) -> Hearing:
    return Hearing(monkeypatch)


def test_what_a_death_cost_is_told_and_still_known_when_the_history_is_cut(hearing: Hearing) -> None:
    hearing.view(0.0, 1, 0, whole=True)
    hearing.rows(9.0, 9.75)
    hearing.gone(13.0, "site-2", seen_s=10.0)
    hearing.view(13.0, 2, 9, whole=False)
    sent = StateSent(version=9, stage=1, partition=2, to="site-3", size_bytes=700, snapshot_s=0.1, send_s=0.2)
    hearing.take(13.5, sent, "site-1")
    hearing.view(14.0, 3, 9, whole=True)
    hearing.rows(14.25)
    [failure] = hearing.status().failures
    assert (failure.site, failure.when_s, failure.detected_after_s) == ("site-2", 10.0, 3.0)
    assert (failure.output_gap_s, failure.recovered_after_s, failure.bytes_moved) == (4.25, 4.0, 700)
    hearing.rows(*(15.0 + second for second in range(600)))
    run_state = hearing.driver.run_state
    assert len(run_state.history.outputs) < 300 and run_state.recent_transfers == []
    assert hearing.status().failures == [failure]


def test_an_end_has_recovered_when_the_next_is_there(hearing: Hearing) -> None:
    hearing.view(0.0, 1, 0, whole=True)
    hearing.gone(5.0, "ingress")
    assert hearing.status().failures[0].recovered_after_s is None
    hearing.now = STARTED_AT + 7.0
    hearing.driver._note_return("ingress.2")
    hearing.gone(8.0, "ingress.2")
    first, second = hearing.status().failures
    assert (first.site, first.recovered_after_s) == ("ingress", 2.0)
    assert (second.site, second.recovered_after_s) == ("ingress", None)


def test_who_was_drained_or_sent_home_has_not_failed(hearing: Hearing, caplog: pytest.LogCaptureFixture) -> None:
    hearing.view(0.0, 1, 0, whole=True)
    hearing.take(1.0, SiteDrained(site="site-1"))
    hearing.gone(2.0, "site-1")
    hearing.written(3.0, 1, end=True)
    hearing.gone(4.0, "site-2")
    assert hearing.status().failures == []
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []


class Stopped(Link):
    """A link to a process, which notes what was known of the end when something was sent."""

    def __init__(self, peer: str, noted: list[RowsAtEnd]) -> None:
        super().__init__(peer)
        self._noted = noted
        self.noted_before: list[list[RowsAtEnd]] = []

    def send(self, *given: Any, **named: Any) -> None:
        self.noted_before.append(list(self._noted))


def test_the_end_is_noted_before_any_process_is_stopped(hearing: Hearing) -> None:
    hearing.driver.links["site-1"] = link = Stopped("site-1", hearing.noted)
    hearing.view(0.0, 1, 0, whole=True)
    hearing.rows(1.0, 2.0)
    hearing.take(2.5, RowsNumbered(log=[], upto=3, total=3), "ingress")
    assert hearing.noted == []
    hearing.written(3.0, 3, end=True)
    assert hearing.noted == [RowsAtEnd(3, [3])] and link.noted_before == [hearing.noted]


def test_a_controller_that_is_started_after_the_end_has_the_rows_of_the_run(hearing: Hearing) -> None:
    status = RemoteDriver(hearing.plan, RowsAtEnd(4, [3]), hearing.noted.append).status()
    assert (status.ended, status.inputs, status.outputs) == (True, 4, 3)


def test_a_disk_that_cannot_keep_the_end_is_an_error_of_the_run(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(rows: RowsAtEnd) -> None:
        raise FluxError("no room")

    monkeypatch.setattr(hearing.driver, "_note_end", full)
    hearing.written(3.0, 3, end=True)
    assert str(hearing.driver.run_state.error) == "no room" and not hearing.driver.run_state.ended


@pytest.fixture
def bereft(hearing: Hearing) -> Hearing:
    """Both sites have died a moment ago."""
    hearing.view(0.0, 1, 0, whole=True)
    for site in ("site-1", "site-2"):
        hearing.gone(1.0, site)
    hearing.take(1.0, ProcessFailed(node="controller", error=DataLost([("Sums", 1)]).to_dict()))
    hearing.driver.end_if_lost()
    assert not hearing.driver.over
    return hearing


def test_a_loss_is_told_when_every_witness_has_spoken(bereft: Hearing) -> None:
    bereft.driver.note_site_death("site-1", None)
    bereft.driver.end_if_lost()
    assert not bereft.driver.over
    bereft.driver.note_site_death("site-2", None)
    bereft.driver.end_if_lost()
    assert isinstance(bereft.driver.run_state.error, DataLost)


def test_a_loss_is_told_after_a_while_where_the_witnesses_are_lost_too(bereft: Hearing) -> None:
    bereft.now += 20.0
    bereft.driver.end_if_lost()
    assert isinstance(bereft.driver.run_state.error, DataLost)


def test_a_loss_by_rows_that_kill_is_told_as_that(bereft: Hearing) -> None:
    first = Job(stage=1, after=10, upto=30, partitions=frozenset({0, 2}))
    second = Job(stage=1, after=20, upto=40, partitions=frozenset({2}))
    bereft.driver.note_site_death("site-1", first)
    bereft.driver.note_site_death("site-2", second)
    assert isinstance(bereft.driver.run_state.error, OperatorError)
    assert "site-1 and site-2 both died while they worked on rows 21 to 30" in str(bereft.driver.run_state.error)


def test_deaths_leave_no_open_files(hearing: Hearing) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        hearing.gone(float(number), f"site-{number}")
    assert len(hearing.status().failures) == 20
    assert len(os.listdir("/proc/self/fd")) == before


def start_in_turn(processes: Processes, *names: str) -> None:
    """Sites, so that their names are known."""
    for number, name in enumerate(names, start=1):
        processes.start(name)
        processes.await_up(lambda up, number=number: (f"site-{number}", 1) in up, f"{name} is not up")  # type: ignore[misc]


def drain(processes: Processes, site: str) -> Running:
    """`flux drain`, which may take its time."""
    return processes.call("drain", "drain", site, "--controller", processes.controller)


# State is not moved while there is a file `held`.
HELD = """
import os
import time
import flux
import job

class Held(job.Counts):
    def init_trans(self):
        while os.path.exists("held"):
            time.sleep(0.01)

job.Counts = Held
flow = job.flow_of(4, flux.sinks.Jsonl("out.jsonl"))
"""


def drain_that_is_held_up(processes: Processes) -> Running:
    """Drain site-1 of three, so that everything on it has to go to site-3."""
    (processes.directory / "slow.py").write_text(HELD)
    processes.flow = "slow:flow"
    processes.start("controller")
    start_in_turn(processes, "site-a", "site-b", "site-c")
    for name in ("ingress", "egress"):
        processes.start(name)
    processes.advance(100)
    (processes.directory / "held").touch()
    call = drain(processes, "site-1")
    wait_until(lambda: processes.status().get("building", 0) > 0, f"nothing is moved: {processes.logs()}")
    return call


@pytest.mark.long
def test_a_drain_for_which_there_are_too_few_sites_says_at_once_what_to_start(processes: Processes) -> None:
    processes.start("controller", "--standby", "0")
    start_in_turn(processes, "site-a", "site-b")
    for name in ("ingress", "egress"):
        processes.start(name)
    processes.advance(10)
    assert drain(processes, "site-1").wait(DEADLINE_S) == 1
    said = (processes.directory / "drain.log").read_text()
    assert "site-1 cannot be drained: its partitions need 2 other sites to live on, and there is 1 (site-2)" in said
    assert "Start one with `flux site MODULE:FLOW --controller HOST:PORT`" in said
    processes.advance(100)
    processes.start("site-c")
    processes.await_up(lambda up: ("site-3", 1) in up, "site-c is not up")
    assert drain(processes, "site-1").wait(DEADLINE_S) == 0, processes.logs()
    assert processes.running["site-a"].wait(DEADLINE_S) == 0


@pytest.mark.long
def test_a_drain_that_has_nowhere_to_go_any_more_says_so(processes: Processes) -> None:
    call = drain_that_is_held_up(processes)
    processes.kill("site-c")
    assert call.wait(DEADLINE_S) == 1
    (processes.directory / "held").unlink()
    said = (processes.directory / "drain.log").read_text()
    assert "site-1 cannot be drained: its partitions need 2 other sites to live on, and there is 1 (site-2)" in said
    processes.advance(100)


@pytest.mark.long
def test_a_site_that_dies_while_it_is_drained_is_said_to_have_died(processes: Processes) -> None:
    call = drain_that_is_held_up(processes)
    processes.kill("site-a")
    assert call.wait(DEADLINE_S) == 1
    assert "site-1 died before all its state was transferred" in (processes.directory / "drain.log").read_text()


@pytest.mark.long
def test_the_death_of_a_site_that_was_stopped_began_when_it_fell_silent(processes: Processes) -> None:
    processes.start("controller")
    start_in_turn(processes, "site-a", "site-b", "site-c")
    for name in ("ingress", "egress"):
        processes.start(name)
    processes.advance(100)
    processes.running["site-a"].send_signal(signal.SIGSTOP)
    wait_until(lambda: bool(processes.status().get("failures")), f"nobody died: {processes.logs()}")
    [told] = [process for process in processes.status()["processes"] if process["name"] == "site-1"]
    assert (told["state"], told["copies"], told["buffered_rows"]) == ("dead", 0, 0)
    processes.advance(100)
    [failure] = processes.status()["failures"]
    assert failure["site"] == "site-1" and failure["detected_after_s"] > 0.4
    assert failure["recovered_after_s"] > failure["detected_after_s"] and failure["bytes_moved"] > 0
    assert main(["status", "--controller", processes.controller]) == 0


# Over before the copies would be compared on the way.
DIVERGING = """
import os
import flux
import pyarrow as pa

class Random(flux.KeyedOperator):
    output = {"v": "int64"}
    def on_tuple(self, key, row, state):
        return None, [{"v": os.getpid()}]

flow = flux.Dataflow("diverging")
stream = flow.source(flux.sources.Table([{"k": n % 50, "v": n} for n in range(500)]))
stream.exchange("k", partitions=4).apply(Random).sink(flux.sinks.Jsonl("out.jsonl"))
"""


def test_copies_that_emitted_different_rows_end_a_short_run_with_an_error(processes: Processes) -> None:
    (processes.directory / "diverging.py").write_text(DIVERGING)
    processes.flow = "diverging:flow"
    for name in ("controller", "site-a", "site-b", "site-c", "ingress", "egress"):
        processes.start(name)
    assert processes.running["controller"].wait(DEADLINE_S) == 1, processes.logs()
    assert "The operator is not deterministic" in (processes.directory / "controller.log").read_text()
