"""What a run does when its processes die: real processes, real SIGKILL, fakes that only talk to the program."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import flux
from flux.commands.top import screen
from flux.driver.processes import CRASH_LIMIT, Process, Processes
from flux.driver.report_builder import RATE_WINDOW_S, rate
from flux.wire.reports import Collected, Command, DrainSite, RowsDurable

from .fakes import ROWS, FakeController, FakeEgress, FakeIngress, FakeWorker, flow, gated, written
from .waiting import DEADLINE_S, is_gone, wait_until

ALL = [{"n": n} for n in range(1, ROWS + 1)]


class Silent(FakeEgress):
    """An egress without output: the stream does not end before the test has seen what it waits for."""

    def obey(self, command: Command) -> None:
        pass


def process(run: flux.Run, name: str) -> Process:
    assert run._driver is not None
    with run._driver.changed:
        return run._driver.processes.live(name)


def up(run: flux.Run, name: str, incarnation: int) -> Process:
    """Wait for an incarnation of a process to connect."""

    def is_up() -> bool:
        present = process(run, name)
        return present.incarnation == incarnation and present.state == "up" and present.pid is not None

    wait_until(is_up, f"incarnation {incarnation} of {name} did not come up")
    return process(run, name)


@pytest.mark.parametrize("name", ["ingress", "egress", "controller"])
def test_a_killed_process_is_started_again_under_the_next_incarnation(
    fake: Callable[..., None], name: str, tmp_path: Path
) -> None:
    fake(EgressProcess=gated(tmp_path, (ROWS // 2,)))
    with flow().start(sites=2) as run:
        run.wait_for_output(10)
        first = process(run, name)
        run.kill(name)
        assert first.pid is not None and is_gone(first.pid)
        second = up(run, name, 2)
        assert second.node == ("controller" if name == "controller" else f"{name}.2")
        run.kill(name)
        up(run, name, 3)
        (tmp_path / str(ROWS // 2)).touch()
        report = run.wait(timeout=DEADLINE_S)
    assert report.table.to_pylist() == ALL
    assert [failure.site for failure in report.failures] == [name, name]
    for failure in report.failures:
        assert failure.recovered_after_s is not None
        assert 0 <= failure.detected_after_s <= failure.recovered_after_s
    assert report.failures[0].when_s < report.failures[1].when_s


def test_a_process_killed_from_outside_is_started_again_too(fake: Callable[..., None], tmp_path: Path) -> None:
    fake(EgressProcess=gated(tmp_path, (10,)))
    with flow().start(sites=2) as run:
        kill_from_outside(run, "ingress", 1)
        up(run, "ingress", 2)
        (tmp_path / "10").touch()
        report = run.wait(timeout=DEADLINE_S)
    assert [failure.site for failure in report.failures] == ["ingress"]


def test_kills_that_the_program_asks_for_are_never_too_many(fake: Callable[..., None], tmp_path: Path) -> None:
    fake(EgressProcess=gated(tmp_path, (10,)))
    with flow().start(sites=2) as run:
        for _ in range(CRASH_LIMIT + 2):
            run.kill("controller")
        up(run, "controller", CRASH_LIMIT + 3)
        (tmp_path / "10").touch()
        assert len(run.wait(timeout=DEADLINE_S).failures) == CRASH_LIMIT + 2


def test_a_process_that_dies_again_and_again_ends_the_run_with_its_last_words(fake: Callable[..., None]) -> None:
    class Crashing(FakeIngress):
        def begin(self) -> None:
            if self.incarnation > 1:
                print(f"incarnation {self.incarnation} has no file to read", file=sys.stderr)
                os._exit(3)

    fake(IngressProcess=Crashing, EgressProcess=Silent)
    with flow().start(sites=2) as run:
        run.kill("ingress")
        with pytest.raises(flux.FluxError, match="ingress process died 5 times within 10 s") as caught:
            run.wait(timeout=DEADLINE_S)
    assert "exit status 3" in str(caught.value)
    assert f"incarnation {CRASH_LIMIT + 1} has no file to read" in str(caught.value)


def kill_from_outside(run: flux.Run, name: str, incarnation: int) -> None:
    """Kill a process as another program would, and not by `run.kill`."""
    pid = up(run, name, incarnation).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_without_a_crash_limit_a_process_is_always_started_again(fake: Callable[..., None]) -> None:
    fake(EgressProcess=Silent)
    with flow().start(sites=2, crash_limit=None) as run:
        for incarnation in range(1, CRASH_LIMIT + 2):
            kill_from_outside(run, "ingress", incarnation)
        up(run, "ingress", CRASH_LIMIT + 2)


def test_a_status_says_how_much_of_the_crash_limit_is_used_up(
    fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flux.driver.processes.CRASH_WINDOW_S", 10 * DEADLINE_S)
    fake(EgressProcess=Silent)
    with flow().start(sites=2, crash_limit=3) as run:
        run.kill("ingress")
        for count in (1, 2):
            kill_from_outside(run, "ingress", count + 1)
            up(run, "ingress", count + 2)
            [ingress] = [each for each in run.status().processes if each.name == "ingress"]
            assert (ingress.crashes, ingress.crash_limit) == (count, 3)
            assert any(f"{count} of 3 crashes within" in line for line in screen(run.status().to_dict()))
        kill_from_outside(run, "ingress", 4)
        with pytest.raises(flux.FluxError, match="ingress process died 3 times within"):
            run.wait(timeout=DEADLINE_S)


def test_a_process_that_the_run_killed_because_it_was_stopped_has_not_crashed() -> None:
    processes = Processes(crash_limit=1)
    assert processes.check_restart(Process("ingress", stopped_at=1.0)) is None
    assert processes.crashes("ingress") == 0
    assert processes.check_restart(Process("ingress")) is not None


@pytest.mark.parametrize("limit", [0, -1, True, 2.5, "5"])
def test_a_crash_limit_that_is_none_is_refused(limit: object) -> None:
    with pytest.raises(flux.PlanError, match="crash_limit is a number of deaths from 1, or None"):
        flow().start(crash_limit=limit)  # type: ignore[arg-type]


def test_a_process_that_dies_before_the_run_has_started_ends_it_with_its_last_words(fake: Callable[..., None]) -> None:
    class Crashing(FakeController):
        def begin(self) -> None:
            raise ZeroDivisionError("in the controller")

    fake(ControllerProcess=Crashing, EgressProcess=Silent)
    with pytest.raises(flux.FluxError, match=r"controller ended before the run had started[^$]*ZeroDivisionError"):
        flow().start(sites=2)


def test_a_site_is_not_started_again(fake: Callable[..., None]) -> None:
    with flow().start(sites=3) as run:
        run.kill("site-2")
        with pytest.raises(ValueError, match="site-2 is dead already"):
            run.kill("site-2")
        report = run.wait(timeout=DEADLINE_S)
    assert [failure.site for failure in report.failures] == ["site-2"]


@pytest.mark.parametrize("name", ["site-9", "ingress.2", "spawner", ""])
def test_an_unknown_name_is_refused(fake: Callable[..., None], name: str) -> None:
    with flow().start(sites=2) as run, pytest.raises(ValueError, match=f"{name!r}; there are controller, ingress"):
        run.kill(name)


def test_output_the_program_has_already_is_not_collected_twice(fake: Callable[..., None]) -> None:
    class Repeating(FakeEgress):
        given = 0

        def give(self, after: int, upto: int) -> None:
            super().give(after, upto)
            super().give(after, upto)

        def obey(self, command: Command) -> None:
            assert isinstance(command, Collected | RowsDurable)
            if isinstance(command, Collected) or command.upto > self.given:
                self.given = command.upto
                super().obey(command)

    fake(EgressProcess=Repeating)
    with flow().start(sites=2) as run:
        report = run.wait(timeout=DEADLINE_S)
    assert report.table.to_pylist() == ALL
    assert report.outputs == ROWS


def test_a_gap_in_the_output_ends_the_run(fake: Callable[..., None]) -> None:
    class Skipping(FakeEgress):
        def give(self, after: int, upto: int) -> None:
            super().give(after + (after == 50), upto + (after == 50))

    fake(EgressProcess=Skipping)
    with (
        flow().start(sites=2) as run,
        pytest.raises(flux.FluxError, match="egress sent the output from 51 to 52, and the driver has it up to 50"),
    ):
        run.wait(timeout=DEADLINE_S)


def test_rows_that_a_killed_egress_had_sent_are_taken_before_the_next_is_told_where_to_go_on(
    fake: Callable[..., None],
) -> None:
    class Ahead(FakeEgress):
        """It dies while a fork of it holds the connection, and sends on it when the next incarnation is there."""

        def begin(self) -> None:
            (self.config.directory / f"begun-{self.incarnation}").touch()

        def obey(self, command: Command) -> None:
            if self.incarnation > 1:
                super().obey(command)
                return
            if os.fork() == 0:
                while not (self.config.directory / "begun-2").exists():
                    time.sleep(0.005)
                time.sleep(0.1)  # So that the next one would be well on its way, were it not made to wait.
                self.give(0, 20)
                self.driver._write_some(self.driver._sock)  # type: ignore[arg-type]
                (self.config.directory / "sent").touch()
            os._exit(1)

        def gate(self, position: int) -> Path | None:
            return self.config.directory / "sent" if position == 10 else None

    fake(EgressProcess=Ahead)
    with flow().start(sites=2) as run:
        report = run.wait(timeout=DEADLINE_S)
    assert report.table.to_pylist() == ALL


def test_when_the_spawner_is_killed_the_run_ends_and_nothing_is_left(fake: Callable[..., None], tmp_path: Path) -> None:
    fake(EgressProcess=gated(tmp_path, (10,)))
    with flow().start(sites=2) as run:
        assert run._driver is not None
        names = ("controller", "ingress", "egress", "site-1", "site-2")
        pids = [up(run, name, 1).pid for name in names]
        spawner = run._driver._spawner.pid
        os.kill(spawner, signal.SIGKILL)
        with pytest.raises(flux.FluxError, match=f"process {spawner}\\) was killed") as caught:
            run.wait(timeout=DEADLINE_S)
        assert "find out what did" in str(caught.value) and "start the run again" in str(caught.value)
        assert all(pid is not None and is_gone(pid) for pid in [*pids, spawner])
    assert not run.directory.exists()


def test_when_the_programs_own_thread_fails_the_run_ends_and_nothing_is_left(fake: Callable[..., None]) -> None:
    class Changing(FakeEgress):
        def give(self, after: int, upto: int) -> None:
            if after < 50:
                super().give(after, upto)
                return
            self.driver.send_report(written(after, upto, 1), pa.record_batch({"other": ["text"]}))

    fake(EgressProcess=Changing)
    with flow().start(sites=2) as run:
        assert run._driver is not None
        with pytest.raises(flux.OperatorError, match="other"):
            run.wait(timeout=DEADLINE_S)
        # Of some it may not have heard that they run; the spawner, which has, ends last.
        pids = [run._driver._spawner.pid, *(each.pid for each in run._driver.processes)]
        assert all(is_gone(pid) for pid in pids if pid is not None)
        assert {each.state for each in run.status().processes} == {"dead"}


def test_a_system_that_refuses_to_fork_ends_the_run(fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    forks: list[Callable[[], int]] = [os.fork]  # The first is the spawner's; it inherits an empty list.

    def fork_once() -> int:
        if not forks:
            raise BlockingIOError("no more processes today")
        return forks.pop()()

    monkeypatch.setattr(os, "fork", fork_once)
    with pytest.raises(flux.FluxError, match=r"refuses to start controller[^$]*no more processes today"):
        flow().start(sites=2)


def test_ctrl_c_reaches_every_process_and_only_the_program_acts_on_it(
    fake: Callable[..., None], tmp_path: Path
) -> None:
    fake(EgressProcess=gated(tmp_path, (10,)))
    listed = tmp_path / "pids"
    program = os.fork()
    if program == 0:
        try:
            os.setsid()  # A group of its own, as a shell gives a command.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with flow().start(sites=2) as run:
                assert run._driver is not None
                names = ("controller", "ingress", "egress", "site-1", "site-2")
                pids = [run._driver._spawner.pid, *(up(run, name, 1).pid for name in names)]
                (tmp_path / "part").write_text(" ".join(map(str, pids)))
                (tmp_path / "part").rename(listed)
                try:
                    run.wait()
                except KeyboardInterrupt:
                    (tmp_path / "10").touch()
                    assert run.wait(timeout=DEADLINE_S).failures == []
            os._exit(7)
        finally:
            os._exit(1)
    wait_until(listed.exists, "the program did not start")
    os.killpg(program, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]) == 7
    assert all(is_gone(int(pid)) for pid in listed.read_text().split())


# Sites that come and go.


def test_add_site_continues_the_numbering_also_behind_dead_sites(fake: Callable[..., None]) -> None:
    with flow().start(sites=2, standby=1) as run:
        assert run.add_site() == "site-4"
        run.kill("site-4")
        assert run.add_site() == "site-5"
        assert process(run, "site-5").state == "up"
        run.kill("site-5")


def test_a_site_that_does_not_come_up_is_an_error_with_its_last_words(fake: Callable[..., None]) -> None:
    class Broken(FakeWorker):
        async def run(self) -> None:
            if self.name == "site-3":
                raise ZeroDivisionError("in the new site")
            await super().run()

    fake(Worker=Broken)
    with flow().start(sites=2) as run:
        with pytest.raises(flux.FluxError, match=r"site-3, which add_site\(\) started[^$]*ZeroDivisionError"):
            run.add_site()
        run.wait(timeout=DEADLINE_S)


def test_add_site_to_a_run_that_is_over_is_an_error(fake: Callable[..., None]) -> None:
    with flow().start(sites=2) as run:
        run.wait(timeout=DEADLINE_S)
        with pytest.raises(flux.FluxError, match="the run has ended"):
            run.add_site()


def test_a_drained_site_ends_and_is_no_failure(fake: Callable[..., None]) -> None:
    with flow().start(sites=3) as run:
        pid = up(run, "site-2", 1).pid
        run.drain("site-2")
        assert pid is not None and is_gone(pid)
        with pytest.raises(ValueError, match="site-2 was drained"):
            run.kill("site-2")
        states = {each.name: each.state for each in run.status().processes}
        assert (states["site-1"], states["site-2"]) == ("up", "drained")
        assert run.wait(timeout=DEADLINE_S).failures == []


def test_a_controller_that_is_started_again_is_asked_again_to_drain(fake: Callable[..., None]) -> None:
    class Forgetful(FakeController):
        def obey(self, command: Command) -> None:
            if self.incarnation == 1:
                os._exit(1)
            super().obey(command)

    fake(ControllerProcess=Forgetful)
    with flow().start(sites=3) as run:
        run.drain("site-1")
        assert [failure.site for failure in run.wait(timeout=DEADLINE_S).failures] == ["controller"]


def test_a_site_that_dies_while_it_is_drained_is_an_error(fake: Callable[..., None]) -> None:
    class Murderous(FakeController):
        def obey(self, command: Command) -> None:
            assert isinstance(command, DrainSite)
            os.kill(int((self.config.directory / command.site).read_text()), signal.SIGKILL)

    fake(ControllerProcess=Murderous)
    with flow().start(sites=3) as run:
        (run.directory / "site-1").write_text(str(up(run, "site-1", 1).pid))
        with pytest.raises(flux.FluxError, match="site-1 died before all its state was transferred, with signal 9"):
            run.drain("site-1")


def test_drain_refuses_what_is_no_site_and_what_leaves_too_few(fake: Callable[..., None]) -> None:
    with flow().start(sites=2) as run:
        with pytest.raises(ValueError, match="ingress is not a site"):
            run.drain("ingress")
        with pytest.raises(ValueError, match="site-9"):
            run.drain("site-9")
        with pytest.raises(flux.NoSites, match="need 2 other sites to live on, and there are 1"):
            run.drain("site-1")


def test_drain_gives_up_after_its_time(fake: Callable[..., None]) -> None:
    class Deaf(FakeController):
        def obey(self, command: Command) -> None:
            pass

    fake(ControllerProcess=Deaf)
    with flow().start(sites=3) as run, pytest.raises(TimeoutError, match="site-1 to be drained"):
        run.drain("site-1", timeout=0.05)


# The snapshot.


def test_a_status_tells_processes_rows_and_failures(fake: Callable[..., None], tmp_path: Path) -> None:
    fake(EgressProcess=gated(tmp_path, (20,)))
    with flow().start(sites=2) as run:
        run.wait_for_output(20)
        for name in ("egress", "site-1", "site-2"):
            up(run, name, 1)
        run.kill("ingress")
        ingress = up(run, "ingress", 2)
        status = run.status()
        (tmp_path / "20").touch()
    assert [(each.name, each.state, each.incarnation) for each in status.processes] == [
        ("controller", "up", 1),
        ("ingress", "up", 2),
        ("egress", "up", 1),
        ("site-1", "up", 1),
        ("site-2", "up", 1),
    ]
    assert status.processes[1].pid == ingress.pid
    assert all(each.cpu_s >= 0 for each in status.processes)
    assert (status.name, status.whole, status.ended) == ("fake", True, False)
    assert (status.inputs, status.outputs) == (ROWS, 20)
    assert [failure.site for failure in status.failures] == ["ingress"]
    assert json.loads(json.dumps(status)) == json.loads(json.dumps(status.to_dict()))


def test_a_status_has_the_input_that_the_output_stems_from(
    fake: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(FakeIngress):
        def begin(self) -> None:
            while not (tmp_path / "report").exists():
                time.sleep(0.005)
            super().begin()

    monkeypatch.setattr("flux.run.INPUTS_TIMEOUT_S", DEADLINE_S)
    fake(IngressProcess=Late, EgressProcess=gated(tmp_path, (20,)))
    with flow().start(sites=2) as run, ThreadPoolExecutor() as pool:
        run.wait_for_output(20)
        status = pool.submit(run.status)
        (tmp_path / "report").touch()
        assert (status.result().inputs, status.result().outputs) == (ROWS, 20)
        (tmp_path / "20").touch()


def test_no_report_is_taken_between_the_wait_for_the_input_and_the_status(
    fake: Callable[..., None],
) -> None:
    taken: list[int] = []
    fake()
    with flow().start(sites=2) as run, ThreadPoolExecutor() as pool:
        driver = run._driver
        assert driver is not None
        wait = driver.wait

        def take() -> None:
            with driver.changed:
                taken.append(1)

        def wait_and_let_another_take(until: Callable[..., bool], timeout_s: float | None) -> bool:
            found = wait(until, timeout_s)
            futures.wait([pool.submit(take)], timeout=0.2)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "wait", wait_and_let_another_take)
            patch.setattr("flux.run.make_status", lambda *known: list(taken))
            assert run.status() == []


def test_rates_are_those_of_the_last_seconds() -> None:
    log = [(100.0, 10, 10), (107.0, 30, 20), (109.0, 60, 30)]
    assert rate(log, started_at=100.0, now=110.0) == 50 / RATE_WINDOW_S
    assert rate(log[:1], started_at=99.5, now=101.5) == 5.0
    assert rate(log, started_at=100.0, now=120.0) == 0


def test_the_status_of_a_run_that_is_over_says_so(fake: Callable[..., None]) -> None:
    with flow().start(sites=2) as run:
        run.wait(timeout=DEADLINE_S)
        status = run.status()
    assert status.ended
    assert {each.state for each in status.processes} == {"dead"}
    assert all(each.cpu_s > 0 for each in status.processes)
