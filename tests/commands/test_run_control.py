"""Commands for a run in progress: how they find it, what they ask it, and what they say when that fails."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import flux
from flux.commands.main import main
from flux.commands.top import screen, watch
from flux.driver.local import registry
from flux.types.errors import AuthError, FluxError
from flux.wire import address
from flux.wire.requests import RequestTimeout, SettingsRequest, StatusRequest, Unanswered, ask, command
from tests.runtime import fakes
from tests.runtime.waiting import is_gone, wait_until


class Same(flux.Operator):
    output = {"v": "int64"}  # noqa: RUF012 - as users write it.

    def process(self, batch: Any) -> Any:
        return batch.emit({"v": batch["v"]})


def endless(name: str = "job") -> flux.Dataflow:
    flow = flux.Dataflow(name)
    numbers = flux.sources.Generator(lambda at, n: {"v": range(at, at + n)}, rate=2_000)
    flow.source(numbers).exchange("v", partitions=4).apply(Same).sink(flux.sinks.Null())
    return flow


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of runs, with none in it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "flux"


@pytest.fixture
def run(runs: Path) -> Iterator[flux.Run]:
    with endless().start(sites=3) as run:
        yield run


def called(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    """What a command says: on standard output if it succeeds, on standard error if it fails."""
    assert main(arguments) == status
    printed = capsys.readouterr()
    return printed.err if status else printed.out


# What they ask.


def test_status_tells_what_a_run_is_doing(run: flux.Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.wait_for_output(10)
    status = json.loads(called(capsys, 0, "status", "--json"))
    assert status["name"] == "job" and status["outputs"] >= 10 and status["whole"]
    assert status["latency_p50_ms"] is not None
    copies = {process["name"]: process["copies"] for process in status["processes"]}
    assert sum(copies.values()) == 8 and copies["ingress"] == 0
    assert "job, " in called(capsys, 0, "status", "job")
    assert "every partition has all its copies" in called(capsys, 0, "status", str(os.getpid()))


def test_a_full_buffer_is_told(run: flux.Run, capsys: pytest.CaptureFixture[str]) -> None:
    def some_are_buffered() -> bool:
        status = json.loads(called(capsys, 0, "top", "--once", "--json"))
        return any(process["buffered_rows"] for process in status["processes"])

    wait_until(some_are_buffered, "no process told what it keeps")


def test_kill_ends_a_process_and_the_run_recovers(run: flux.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys, 0, "kill", "job", "site-2") == "site-2 is killed\n"
    states = {process.name: process.state for process in run.status().processes}
    assert (states["site-1"], states["site-2"]) == ("up", "dead")
    wait_until(lambda: run.status().whole, "the copies were not rebuilt")
    assert "site-2 is dead already" in called(capsys, 1, "kill", "site-2")


def test_a_site_is_added_and_another_drained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Processes that only talk to the program: how partitions move is tested elsewhere.
    for name, process in (
        ("ControllerProcess", fakes.FakeController),
        ("IngressProcess", fakes.FakeIngress),
        ("EgressProcess", fakes.gated(tmp_path, (10,))),
        ("Worker", fakes.FakeWorker),
    ):
        monkeypatch.setattr(f"flux.run.{name}", process)
    with fakes.flow().start(sites=3) as run:
        assert called(capsys, 0, "add-site") == "site-4\n"
        assert json.loads(called(capsys, 0, "add-site", "--json")) == {"added": "site-5"}
        assert json.loads(called(capsys, 0, "kill", "site-5", "--json")) == {"killed": "site-5"}
        assert json.loads(called(capsys, 0, "drain", "site-2", "--json")) == {"drained": "site-2"}
        assert "site-1 is drained" in called(capsys, 0, "drain", "fake", "site-1")
        states = {process.name: process.state for process in run.status().processes}
        assert (states["site-1"], states["site-4"]) == ("drained", "up")
        (tmp_path / "10").touch()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("kill", "site-9"),
            "no process of this run is called 'site-9'; there are controller, ingress, egress, site-1",
        ),
        (("drain", "ingress"), "ingress is not a site"),
        (("drain", "site-9"), "no process of this run is called 'site-9'"),
        (("status", "other"), "no run is called 'other'; in progress are job (process "),
    ],
)
def test_what_is_not_there_is_said_with_what_is(
    run: flux.Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert says in called(capsys, 1, *arguments)


def test_a_site_that_the_others_cannot_do_without_is_not_drained(capsys: pytest.CaptureFixture[str]) -> None:
    with endless().start(sites=2):
        assert "its partitions need 2 other sites to live on" in called(capsys, 1, "drain", "site-1")


def test_who_does_not_know_the_secret_is_refused(run: flux.Run) -> None:
    [entry] = registry.entries()
    with pytest.raises(AuthError, match="this process has another secret than the run there; give both the same one"):
        ask(entry.address, command(b"guessed"), StatusRequest(), 30.0)
    assert entry.secret not in repr(entry)


def test_an_unknown_question_is_refused(run: flux.Run) -> None:
    [entry] = registry.entries()
    with pytest.raises(
        FluxError, match="can be asked for status, metrics, kill, drain, add-site, reconfigure and stop, not for Sett"
    ):
        ask(entry.address, command(bytes.fromhex(entry.secret)), SettingsRequest(), 30.0)


def test_stop_ends_a_run_and_its_program_gets_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    run = endless().start(sites=2)
    processes = [process.pid for process in run.status().processes if process.pid is not None]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(run.wait)
        assert called(capsys, 0, "stop", "job") == "job is stopped\n"
        with pytest.raises(FluxError, match="job was stopped by `flux stop`"):
            waiting.result()
    assert all(is_gone(pid) for pid in processes) and not run.directory.exists()
    assert "no run is in progress" in called(capsys, 1, "stop", "job")


def test_stop_ends_a_run_whose_handle_is_lost(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = endless().start(sites=2)
    assert json.loads(called(capsys, 0, "stop", "--json")) == {"stopped": "job"}
    assert list(runs.iterdir()) == []
    assert "was stopped by `flux stop`" in run.status().health
    run.stop()  # It waits until the files of the run are removed, too.


class SlowToOpen(Same):
    """It can be opened when the file `go` is there."""

    def open(self, context: flux.Context) -> None:
        wait_until(lambda: Path(context.parameters["go"]).exists(), "it may be opened")


def starting(go: Path) -> flux.Dataflow:
    flow = flux.Dataflow("job")
    rows = flow.source(flux.sources.Table([{"v": 1}])).exchange("v", partitions=4)
    rows.apply(SlowToOpen, go=str(go)).sink(flux.sinks.Null())
    return flow


def test_a_run_that_has_not_started_yet_is_found_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def looks_stuck() -> bool:
        with contextlib.suppress(AssertionError):  # There is no run yet.
            looks.append(json.loads(called(capsys, 0, "status", "job", "--json")))
        return any(process["stuck"] for each in looks for process in each["processes"])

    looks: list[Any] = []
    with ThreadPoolExecutor() as pool:
        start = pool.submit(starting(tmp_path / "go").start, sites=2, stuck_after_s=0.2)
        wait_until(looks_stuck, "no status said what the run waits for")
        assert looks[-1]["health"] == "it is starting" and not looks[-1]["whole"] and looks[-1]["t_s"] == 0
        assert "job, 0.0 s: it is starting" in called(capsys, 0, "top", "job", "--once")
        (tmp_path / "go").touch()
        with start.result() as run:
            assert run.wait(60).outputs == 1
            assert run.status().health == "the source has ended, and all output is durable"


def test_a_run_is_stopped_as_it_starts(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor() as pool:
        start = pool.submit(starting(tmp_path / "go").start, sites=2)
        wait_until(lambda: list(runs.glob("*.json")), "the run was not registered")
        assert called(capsys, 0, "stop", "job") == "job is stopped\n"
        with pytest.raises(FluxError, match="job was stopped by `flux stop`"):
            start.result()
    assert list(runs.iterdir()) == []


# How they find it.


def test_without_a_run_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no run is in progress on this machine: start one" in called(capsys, 1, "status")


def test_with_several_runs_one_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with endless("one").start(sites=2), endless("two").start(sites=2):
        assert "several runs are in progress: one (process " in called(capsys, 1, "status")
        assert json.loads(called(capsys, 0, "status", "two", "--json"))["name"] == "two"


def test_a_run_that_ends_leaves_no_entry(runs: Path) -> None:
    with endless().start(sites=2):
        [path] = runs.glob("*.json")
        assert path.stat().st_mode & 0o077 == 0 and runs.stat().st_mode & 0o077 == 0
    assert list(runs.iterdir()) == []


def test_the_entry_of_a_killed_program_is_removed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = os.fork()
    if program == 0:
        try:
            with endless().start(sites=2):
                signal.pause()
        finally:
            os._exit(1)
    wait_until(lambda: runs.exists() and any(runs.glob("*.json")), "the run did not start")
    os.kill(program, signal.SIGKILL)
    os.waitpid(program, 0)
    assert "no run is in progress" in called(capsys, 1, "status")
    assert list(runs.iterdir()) == []


def test_an_entry_whose_number_another_process_has_is_removed(runs: Path) -> None:
    registry.enter(registry.RunEntry(name="old", pid=os.getpid(), address=f"unix:{runs}/gone", secret="00"), "old")
    assert registry.entries() == []
    assert list(runs.iterdir()) == []


def test_an_entry_that_cannot_be_read_is_left_alone(runs: Path) -> None:
    (registry.registry() / "newer.json").write_text('{"of": "another release"}')
    assert registry.entries() == []
    assert [path.name for path in runs.iterdir()] == ["newer.json"]


def test_a_directory_that_others_may_read_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.mkdir()
    runs.chmod(0o755)
    assert "open to others. Remove it, or set XDG_RUNTIME_DIR" in called(capsys, 1, "status")


def test_a_run_does_not_depend_on_the_registry(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs.write_text("in the way")
    with endless().start(sites=2) as run:
        run.wait_for_output(1)
    assert "will not find job" in caplog.text and str(runs) in caplog.text


# The screen.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_top_draws_until_the_run_has_ended(run: flux.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [run.status().to_dict(), run.status().to_dict()]

    def look() -> dict[str, Any]:
        if not looks:
            raise Unanswered("gone")
        return looks.pop(0)

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert watch(look, every_s=0.0)
    text = terminal.getvalue()
    assert text.count("\x1b[H") == 2
    assert text.index("\x1b[?1049h") < text.index("\x1b[?1049l") < text.index("job has ended")


def test_top_goes_on_when_an_answer_is_late(run: flux.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    document = run.status().to_dict()
    looks: list[Any] = [document, RequestTimeout("no answer came within 10 s"), document, Unanswered("gone")]

    def look() -> dict[str, Any]:
        answer = looks.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert watch(look, every_s=0.0)
    first, second, third, _ = terminal.getvalue().split("\x1b[J")
    assert "no answer came within 10 s; asking again" in second
    assert "no answer" not in first + third


def test_who_takes_too_long_to_answer_is_late_not_gone(run: flux.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    [entry] = registry.entries()
    asked, own = threading.Event(), command(bytes.fromhex(entry.secret))
    monkeypatch.setattr(run, "status", asked.wait)
    with pytest.raises(RequestTimeout, match=r"no answer to StatusRequest from .* within 0\.2 s"):
        ask(entry.address, own, StatusRequest(), 0.2)
    asked.set()


def test_who_does_not_greet_in_time_is_late_not_gone(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flux.wire.requests._CONNECT_TIMEOUT_S", 0.1)
    where = f"unix:{runs.parent / 'silent'}"
    with address.listen(where), pytest.raises(RequestTimeout, match=r"no process answers at .*: no connection within"):
        ask(where, command(b"a secret"), StatusRequest(), 30.0)


def test_top_waits_for_a_run_that_is_not_there_yet(capsys: pytest.CaptureFixture[str]) -> None:
    printed = {"out": "", "err": ""}

    def is_printed(to: str, text: str) -> bool:
        now = capsys.readouterr()
        printed["out"] += now.out
        printed["err"] += now.err
        return text in printed[to]

    with ThreadPoolExecutor() as pool:
        top = pool.submit(main, ["top", "job", "--once", "--wait", "60"])
        wait_until(lambda: is_printed("err", "no run is in progress"), "top did not say that it waits")
        with endless().start(sites=2):
            assert top.result(timeout=60) == 0
    assert is_printed("out", "job, ") and printed["err"].count("Waiting for it") == 1


def test_top_that_prints_once_does_not_wait_unless_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no run is in progress" in called(capsys, 1, "top", "--once")
    assert "no run is in progress" in called(capsys, 1, "top", "--json", "--wait", "0.01")


@pytest.mark.parametrize("every", ["-1", "0", "nan", "inf", "1e300", "soon"])
def test_how_often_top_looks_is_checked(every: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["top", "--every", every])
    assert f"expected seconds above 0 and up to 86400, such as 0.5, got {every!r}" in capsys.readouterr().err


def test_the_screen_tells_failures_and_how_busy_processes_are() -> None:
    process = flux.driver.status.ProcessStatus("site-1", 77, "up", 1, 2.0, copies=3, buffered_rows=1_500)
    failure = flux.driver.report.Failure("site-2", 3.25, 0.03, 0.12, None, 0)
    rest: dict[str, Any] = {"inputs": 20, "outputs": 10, "input_rate": 5.0, "output_rate": 2.5, "ended": False}
    now = flux.Status("job", 9.0, [process], False, failures=[failure], building=2, latency_p50_ms=8.0, **rest)
    text = "\n".join(
        screen(now.to_dict(), {**now.to_dict(), "t_s": 5.0, "processes": [{**now["processes"][0], "cpu_s": 1.0}]})
    )
    assert "job, 9.0 s: 2 copies are being built" in text
    [line] = [line.split() for line in text.splitlines() if "site-1" in line]
    assert line == ["site-1", "up", "77", "1", "2.0", "25", "3", "1,500", "rows"]
    assert "site-2       at 3.2 s, noticed after 30 ms, output gap 120 ms, not recovered yet" in text


def test_the_screen_shows_the_load_of_sites_in_a_run_that_is_balanced() -> None:
    load: dict[str, Any] = {"utilisation": 0.987, "speed": 0.5, "lag": 0.25, "slow": True}
    load |= {"kept_rows": 1_200, "kept_rows_max": 4_096, "time_left_s": 12.4}
    site = flux.driver.status.ProcessStatus("site-1", 77, "up", 1, 2.0, copies=3, **load)
    spare = flux.driver.status.ProcessStatus("site-2", 78, "up", 1, 2.0, utilisation=0.0, lag=0.0)
    ingress = flux.driver.status.ProcessStatus("ingress", 79, "up", 1, 2.0)
    rest: dict[str, Any] = {"inputs": 20, "outputs": 10, "input_rate": 5.0, "output_rate": 2.5, "ended": False}
    phase = "round 2: 1 of 3 moves left"
    now = flux.Status("job", 9.0, [site, spare, ingress], True, failures=[], balance=phase, **rest)
    lines = screen(now.to_dict())
    assert any(line.endswith("buffered busy %  speed  lag %") for line in lines)
    ends = {line.split()[0]: line.partition("rows")[2].split() for line in lines if "rows" in line and "/s" not in line}
    assert ends["site-1"][:4] == ["99", "0.50", "25", "slow,"]
    assert (ends["site-2"], ends["ingress"]) == (["0", "0"], [])
    assert f"  balance: {phase}" in lines


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ({}, "slow"),
        ({"kept_rows": 0, "kept_rows_max": 0}, "slow, 0 of 0 rows kept"),
        (
            {"kept_rows": 1_200, "kept_rows_max": 4_096, "time_left_s": 12.4},
            "slow, 1,200 of 4,096 rows kept, 12 s left",
        ),
        (
            {"kept_rows": 4_100, "kept_rows_max": 4_096, "time_left_s": 0.0},
            "slow, 4,100 of 4,096 rows kept, the source waits for it",
        ),
    ],
)
def test_the_screen_shows_how_long_no_process_waits_for_a_slow_site(shown: dict[str, Any], text: str) -> None:
    load: dict[str, Any] = {"utilisation": 0.5, "speed": 0.5, "lag": 0.25, "slow": True}
    site = flux.driver.status.ProcessStatus("site-1", 77, "up", 1, 2.0, copies=3, **load, **shown)
    rest: dict[str, Any] = {"inputs": 20, "outputs": 10, "input_rate": 5.0, "output_rate": 2.5, "ended": False}
    lines = screen(flux.Status("job", 9.0, [site], True, failures=[], balance="level", **rest).to_dict())
    assert any(line.endswith(f"25 {text}") for line in lines)
