"""Runs whose processes are commands of their own, over TCP: each is killed and started again, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flux.cli import main
from flux.errors import FluxError
from flux.wire.asking import COMMAND, ask

from .waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 60.0
ROWS = 12_000
TOKEN = "known to all of them"

JOB = f"""
import flux

class Counts(flux.KeyedOperator):
    output = {{"k": "int64", "v": "int64", "n": "int64"}}
    def on_tuple(self, key, row, state):
        n = (state or 0) + 1
        return n, [{{"k": row.k, "v": row.v, "n": n}}]

def rows(at, n):
    return {{"k": [v % 7 for v in range(at, at + n)], "v": range(at, at + n)}}

def flow_of(partitions, sink):
    flow = flux.Dataflow("job")
    events = flow.source(flux.sources.Generator(rows, rows={ROWS}, rate=1_000))
    events.exchange("k", partitions=partitions).apply(Counts).sink(sink)
    return flow

flow = flow_of(4, flux.sinks.Jsonl("out.jsonl"))
other = flow_of(5, flux.sinks.Jsonl("other.jsonl"))
collecting = flow_of(4, flux.sinks.Collect())
"""


def expected() -> list[dict[str, int]]:
    return [{"k": v % 7, "v": v, "n": v // 7 + 1} for v in range(ROWS)]


class Processes:
    """The commands of one run, by what they are called here."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self.controller = f"127.0.0.1:{self.port}"
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str) -> None:
        role = name.partition("-")[0]
        options = {
            "controller": ["--listen", self.controller, "--sites", "2", "--standby", "1", "--journal", "journal-c"],
            "ingress": ["--controller", self.controller, "--journal", "journal-i"],
            "egress": ["--controller", self.controller, "--journal", "journal-e"],
            "site": ["--controller", self.controller],
        }
        self.call(name, role, "job:flow", *options[role])

    def call(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        call = [sys.executable, "-c", "import sys; from flux.cli import main; sys.exit(main())", *arguments]
        errors = (self.directory / f"{name}.log").open("a")
        self.running[name] = subprocess.Popen(call, cwd=self.directory, stderr=errors, text=True)
        errors.close()
        return self.running[name]

    def kill(self, name: str) -> None:
        os.kill(self.running[name].pid, signal.SIGKILL)
        self.running[name].wait(DEADLINE_S)

    def status(self) -> dict[str, Any]:
        """What the controller says; nothing while there is none."""
        greeting = {"kind": "greet", "node": COMMAND, "token": TOKEN}
        try:
            return ask(f"tcp:{self.controller}", greeting, "status", DEADLINE_S)
        except FluxError:
            return {"outputs": -1, "whole": False, "processes": []}

    def up(self) -> set[tuple[str, int]]:
        return {(process["name"], process["incarnation"]) for process in self.status()["processes"]}

    def advance(self, rows: int) -> None:
        """Wait for so many more rows of output, with every copy in its place."""
        before = self.status()["outputs"]

        def is_there() -> bool:
            status = self.status()
            return bool(status["whole"]) and status["outputs"] >= before + rows

        wait_until(is_there, f"{rows} more rows did not come: {self.logs()}")

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()}" for path in sorted(self.directory.glob("*.log")))


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FLUX_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    processes = Processes(tmp_path)
    yield processes
    sys.modules.pop("job", None)
    for process in processes.running.values():
        if process.poll() is None:
            process.kill()
            process.wait(DEADLINE_S)


def test_each_kind_is_killed_and_started_again_and_the_output_is_exact(processes: Processes, tmp_path: Path) -> None:
    for name in ("site-a", "egress", "controller", "site-b", "ingress", "site-c"):  # In any order.
        processes.start(name)
    processes.advance(200)
    for name in ("ingress", "egress"):
        processes.kill(name)
        processes.start(name)
        wait_until(lambda name=name: (name, 2) in processes.up(), f"{name}.2 is not up")  # type: ignore[misc]
        processes.advance(200)
    processes.kill("site-a")
    processes.start("site-a")
    wait_until(lambda: ("site-4", 1) in processes.up(), "no further site joined")
    processes.advance(200)
    processes.kill("controller")
    processes.start("controller")
    processes.advance(200)
    for name, process in processes.running.items():
        assert process.wait(DEADLINE_S) == 0, f"{name}: {processes.logs()}"
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == expected()
    # A controller that a supervisor starts once more knows that there is nothing left to do.
    processes.start("controller")
    assert processes.running["controller"].wait(DEADLINE_S) == 0


def said(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    assert main(arguments) == status
    return capsys.readouterr().err
