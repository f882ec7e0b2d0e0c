"""An ingress or egress that is stopped (SIGSTOP) is as good as dead: another takes its place, and it never wakes up.

It takes long because each test starts six or more commands, and each of them is an interpreter of its own.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from .commands import JOB, Processes, expected
from .waiting import DEADLINE_S


def assert_exact(directory: Path) -> None:
    """Nothing is lost, nothing is there twice, and all is in order."""
    lines = (directory / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == expected(int((directory / "ended-at").read_text()))


def test_in_a_local_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job: dict[str, Any] = {}
    exec(JOB, job)
    names = ("egress", "ingress", "controller")
    with job["flow"].start(sites=2) as run:
        for name in names:
            run.wait_for_output(run.status().outputs + 100)
            stopped = run._driver.processes.live(name)
            os.kill(stopped.pid, signal.SIGSTOP)
            replaced = run._driver.wait(lambda run_state, last=stopped: last.back_at is not None, DEADLINE_S)
            assert replaced, f"nobody came in the place of the {name}"
            with pytest.raises(ProcessLookupError):
                os.kill(stopped.pid, signal.SIGCONT)
        run.wait_for_output(run.status().outputs + 100)
        (tmp_path / "enough").touch()
        report = run.wait(timeout=DEADLINE_S)
    assert_exact(tmp_path)
    assert [failure.site for failure in report.failures] == [*names]
    assert all(failure.detected_after_s >= 0.4 for failure in report.failures), "five beats are to be missed before"


def test_who_is_stopped_for_a_moment_only_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job: dict[str, Any] = {}
    exec(JOB, job)
    with job["flow"].start(sites=2) as run:
        run.wait_for_output(100)
        pid = run._driver.processes.live("egress").pid
        for _ in range(20):
            os.kill(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)
            run.wait_for_output(run.status().outputs + 10)
        (tmp_path / "enough").touch()
        report = run.wait(timeout=DEADLINE_S)
    assert_exact(tmp_path)
    assert report.failures == []


def test_in_a_remote_run(processes: Processes, tmp_path: Path) -> None:
    for name in ("controller", "site-a", "site-b", "site-c"):
        processes.start(name)
    there = ("job:flow", "--controller", processes.controller)
    for name in ("egress", "ingress"):
        processes.supervise(name, name, *there, "--journal", f"journal-{name}")
    for name in ("egress", "ingress"):
        processes.advance(100)
        stopped = processes.running[name]
        stopped.send_signal(signal.SIGSTOP)
        processes.await_up(lambda up, name=name: (name, 2) in up, f"no {name} came in its place")  # type: ignore[misc]
        assert stopped.returncode == -signal.SIGKILL
        assert f"flux: {name} was stopped, and is killed" in (tmp_path / f"{name}.log").read_text()
    processes.advance(100)
    (tmp_path / "enough").touch()
    processes.await_end()
    assert_exact(tmp_path)


@pytest.mark.long
def test_who_comes_while_the_last_one_may_wake_up_is_refused_and_harms_nothing(
    processes: Processes, tmp_path: Path
) -> None:
    for name in ("controller", "site-a", "site-b", "site-c", "ingress", "egress"):
        processes.start(name)
    there = ("job:flow", "--controller", processes.controller)
    for name in ("egress", "ingress"):
        processes.advance(100)
        # As when a whole unit is stopped: its witness is, too.
        pid = processes.running[name].pid
        [witness] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (int(witness), pid):
            os.kill(each, signal.SIGSTOP)
        again = processes.call(f"{name}-again", name, *there, "--journal", f"journal-{name[0]}")
        assert again.wait(DEADLINE_S) == 1
        assert "is in use by a process that still lives" in (tmp_path / f"{name}-again.log").read_text()
        for each in (int(witness), pid):
            os.kill(each, signal.SIGCONT)
    processes.advance(100)
    (tmp_path / "enough").touch()
    for name in ("egress", "ingress"):
        assert processes.running[name].wait(DEADLINE_S) == 0, processes.logs()
    assert_exact(tmp_path)
