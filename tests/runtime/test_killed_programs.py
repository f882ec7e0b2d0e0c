"""A program, and what starts its processes, that are killed: nothing is left behind, or the next run removes it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import flux
from flux.driver.local import registry
from flux.driver.local.run_directory import RunDirectory, remove_abandoned
from flux.driver.processes import Process

from .test_user_errors import ROWS, flow_of
from .waiting import is_gone, wait_until


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where runs are listed, and where they have their directories."""
    # Short, because the names of sockets are.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "t").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    return tmp_path / "flux", tmp_path / "t"


def program_of_a_run(tmp_path: Path) -> tuple[int, list[int], int]:
    """Fork a program that runs a flow for ever; its number, those of its processes, and that of its spawner."""
    listed = tmp_path / "pids"
    program = os.fork()
    if program == 0:
        try:
            with flow_of(source=flux.sources.Table(ROWS, rate=10)).start(sites=2) as run:
                run.wait_for_output(1)
                assert run._driver is not None
                processes: list[Process] = list(run._driver.processes)
                pids = [run._driver._spawner.pid, *(process.pid for process in processes)]
                (tmp_path / "part").write_text(" ".join(map(str, pids)))
                (tmp_path / "part").rename(listed)
                signal.pause()
        finally:
            os._exit(1)
    wait_until(listed.exists, "the run did not start")
    spawner, *pids = map(int, listed.read_text().split())
    return program, pids, spawner


def test_a_killed_program_leaves_nothing_behind(places: tuple[Path, Path], tmp_path: Path) -> None:
    listed, directories = places
    program, pids, spawner = program_of_a_run(tmp_path)
    assert len(list(directories.iterdir())) == 1
    os.kill(program, signal.SIGKILL)
    os.waitpid(program, 0)
    wait_until(lambda: all(is_gone(pid) for pid in (*pids, spawner)), "processes outlived their program")
    assert list(directories.iterdir()) == []
    assert list(listed.iterdir()) == []


def test_the_next_run_cleans_up_behind_one_that_was_killed_with_all_its_processes(
    places: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listed, directories = places
    program, pids, spawner = program_of_a_run(tmp_path)
    os.kill(spawner, signal.SIGSTOP)  # It must not see the program go.
    os.kill(program, signal.SIGKILL)
    os.kill(spawner, signal.SIGKILL)
    os.waitpid(program, 0)
    wait_until(lambda: all(is_gone(pid) for pid in (*pids, spawner)), "processes outlived their program")
    [left] = directories.iterdir()
    assert flow_of().run().outputs == len(ROWS)
    assert f"{left}, with its journals, is removed now" in caplog.text
    assert list(directories.iterdir()) == []
    assert list(listed.iterdir()) == []


def killed_before_it_is_registered(at: str, tmp_path: Path) -> None:
    """Kill a program, and what has forked its processes, when its run has a directory and no entry in the registry."""

    def die(run: flux.Run) -> None:
        if run._driver is not None:
            driver = run._driver  # It is entered when its program answers, and its processes may not be forked yet.
            driver.wait(lambda run_state: all(process.pid is not None for process in driver.processes), 60)
            processes = [*(process.pid for process in run._driver.processes), spawner := run._driver._spawner.pid]
            (tmp_path / "pids").write_text(" ".join(map(str, processes)))
            os.kill(spawner, signal.SIGSTOP)  # It must not see the program go.
            os.kill(spawner, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    program = os.fork()
    if program == 0:
        try:
            setattr(flux.Run, at, die)
            flow_of(source=flux.sources.Table(ROWS, rate=10)).start(sites=2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]) == -signal.SIGKILL
    if at == "_register":
        pids = list(map(int, (tmp_path / "pids").read_text().split()))
        wait_until(lambda: all(map(is_gone, pids)), "processes outlived their program")


@pytest.mark.parametrize("at", ["_launch", "_register"])
def test_the_next_run_cleans_up_after_one_that_was_killed_before_it_was_registered(
    at: str, places: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listed, directories = places
    killed_before_it_is_registered(at, tmp_path)
    [left] = directories.iterdir()
    assert [path.name for path in listed.iterdir()] == [f"{left.name}.claim"]
    assert flow_of().run().outputs == len(ROWS)
    assert f"a run was killed as it started, and so was what should have cleaned up after it; {left} is" in caplog.text
    assert list(directories.iterdir()) == []
    assert list(listed.iterdir()) == []


def test_the_directory_of_a_run_that_starts_is_left_alone(
    places: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    starting = RunDirectory()
    assert flow_of().run().outputs == len(ROWS)
    assert starting.path.is_dir() and "was killed" not in caplog.text
    starting.remove()
    assert [list(place.iterdir()) for place in places] == [[], []]


def test_a_claim_without_a_directory_is_removed(places: tuple[Path, Path], tmp_path: Path) -> None:
    elsewhere = tmp_path / "flux-mine"
    elsewhere.mkdir()
    for name, content in (("flux-1", ""), ("flux-2", str(places[1] / "flux-2")), ("flux-3", str(elsewhere))):
        (registry.registry() / f"{name}.claim").write_text(content)
    remove_abandoned()
    assert list(places[0].iterdir()) == []
    assert elsewhere.is_dir()


def test_the_directory_of_a_run_that_lives_is_left_alone(places: tuple[Path, Path]) -> None:
    with flow_of(source=flux.sources.Table(ROWS, rate=100)).start(sites=2) as run:
        other = flow_of().run()
        assert run.directory.is_dir()
        assert [entry.name for entry in registry.entries()] == ["wrong"]
    assert other.outputs == len(ROWS)
