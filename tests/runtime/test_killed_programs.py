"""A program, and what starts its processes, that are killed: nothing is left behind, or the next run removes it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import flux
from flux.driver.local import registry
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


def test_the_directory_of_a_run_that_lives_is_left_alone(places: tuple[Path, Path]) -> None:
    with flow_of(source=flux.sources.Table(ROWS, rate=100)).start(sites=2) as run:
        other = flow_of().run()
        assert run.directory.is_dir()
        assert [entry.name for entry in registry.entries()] == ["wrong"]
    assert other.outputs == len(ROWS)
