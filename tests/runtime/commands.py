"""Runs whose processes are commands of their own, over TCP, in the directory of a test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from flux.commands.main import main
from flux.types.errors import FluxError
from flux.wire.requests import StatusRequest, ask, command
from flux.wire.tls import VARIABLES, tls_from

from .forked_commands import ForkedCommand
from .waiting import wait_until

Running: TypeAlias = subprocess.Popen[str] | ForkedCommand

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 60.0
SECRET = "known to all of them"
STATUS_EVERY_S = 0.1  # A connection for each look: more often, and TLS keeps both ends busy with handshakes.

# The stream ends when there is a file `enough`; where it ended is in `ended-at`.
JOB = """
import os
import flux
import pyarrow as pa

class Counts(flux.KeyedOperator):
    output = {"k": "int64", "v": "int64", "n": "int64"}
    def on_tuple(self, key, row, state):
        n = (state or 0) + 1
        return n, [{"k": row.k, "v": row.v, "n": n}]

def rows(at, n):
    if os.path.exists("enough"):
        with open("ended-at", "w") as file:
            file.write(str(at))
        return None
    return {"k": [v % 7 for v in range(at, at + n)], "v": range(at, at + n)}

def flow_of(partitions, sink):
    flow = flux.Dataflow("job")
    schema = pa.schema({"k": "int64", "v": "int64"})
    events = flow.source(flux.sources.Generator(rows, rate=1_000, schema=schema))
    events.exchange("k", partitions=partitions).apply(Counts).sink(sink)
    return flow

flow = flow_of(4, flux.sinks.Jsonl("out.jsonl"))
other = flow_of(5, flux.sinks.Jsonl("other.jsonl"))
collecting = flow_of(4, flux.sinks.Collect())
"""


def expected(rows: int) -> list[dict[str, int]]:
    return [{"k": v % 7, "v": v, "n": v // 7 + 1} for v in range(rows)]


class Processes:
    """The commands of one run, by what they are called here."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self.controller = f"127.0.0.1:{self.port}"
        self.flow = "job:flow"
        self.running: dict[str, Running] = {}
        self.has_interpreters = False  # Whether each command is an interpreter of its own, as it is for a user.
        self._supervisors: dict[str, threading.Thread] = {}
        self._over = False

    def start(self, name: str, *more: str) -> None:
        role = name.partition("-")[0]
        options = {
            "controller": ["--listen", self.controller, "--sites", "2", "--standby", "1", "--journal", "journal-c"],
            "ingress": ["--controller", self.controller, "--journal", "journal-i"],
            "egress": ["--controller", self.controller, "--journal", "journal-e"],
            "site": ["--controller", self.controller],
        }
        self.call(name, role, self.flow, *options[role], *more)

    def call(self, name: str, *arguments: str) -> Running:
        log = self.directory / f"{name}.log"
        if self.has_interpreters:
            with log.open("a") as errors:
                call = self.command(name, *arguments)
                self.running[name] = subprocess.Popen(call, cwd=self.directory, stderr=errors, text=True)
        else:
            self.running[name] = ForkedCommand(self.directory, log, arguments)
        return self.running[name]

    def command(self, name: str, *arguments: str) -> list[str]:
        """What is run for the process that is called `name` here, if it has an interpreter of its own."""
        return [sys.executable, "-c", "import sys; from flux.commands.main import main; sys.exit(main())", *arguments]

    def supervise(self, name: str, *arguments: str) -> None:
        """As systemd does with Restart=on-failure: call it again whenever it ends, but for status 0."""

        def supervise() -> None:
            while self.running[name].wait() != 0 and not self._over:
                self.call(name, *arguments)

        self.call(name, *arguments)
        self._supervisors[name] = threading.Thread(target=supervise, daemon=True)
        self._supervisors[name].start()

    def await_end(self) -> None:
        """Return when every process has ended well, after however many lives."""
        for name, supervisor in self._supervisors.items():
            supervisor.join(DEADLINE_S)
            assert not supervisor.is_alive(), f"{name} goes on: {self.logs()}"

    def end(self) -> None:
        """Leave nothing behind."""
        self._over = True
        for name, process in self.running.items():
            while process.poll() is None or (name in self._supervisors and self._supervisors[name].is_alive()):
                self.running[name].kill()
                self.running[name].wait(DEADLINE_S)

    def kill(self, name: str) -> None:
        os.kill(self.running[name].pid, signal.SIGKILL)
        self.running[name].wait(DEADLINE_S)

    def status(self) -> dict[str, Any]:
        """What the controller says; nothing while there is none."""
        try:
            own = command(SECRET.encode(), tls_from(None, None, None))
            return ask(f"tcp:{self.controller}", own, StatusRequest(), DEADLINE_S)
        except FluxError:
            return {"outputs": -1, "whole": False, "processes": []}

    def up(self) -> set[tuple[str, int]]:
        return {(process["name"], process["incarnation"]) for process in self.status()["processes"]}

    def await_up(self, holds: Callable[[set[tuple[str, int]]], bool], what: str) -> None:
        """Wait until it holds for the processes that are up."""
        wait_until(lambda: holds(self.up()), f"{what}: {self.logs()}", STATUS_EVERY_S)

    def advance(self, rows: int) -> None:
        """Wait for so many more rows of output, with every copy in its place."""
        before = self.status()["outputs"]

        def is_there() -> bool:
            status = self.status()
            return bool(status["whole"]) and status["outputs"] >= before + rows

        wait_until(is_there, f"{rows} more rows did not come: {self.logs()}", STATUS_EVERY_S)

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()}" for path in sorted(self.directory.glob("*.log")))


def said(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    assert main(arguments) == status
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


def controller(where: str) -> tuple[str, ...]:
    return ("controller", "job:flow", "--listen", where, "--journal", "journal-c")


def encrypt(monkeypatch: pytest.MonkeyPatch, who: str = "ours", trusts: str = "ours") -> None:
    """Processes that are started from now on use TLS."""
    files = ROOT / "tests" / "wire" / "certificates"
    for variable, name in zip(VARIABLES, (f"{who}.pem", f"{who}.key", f"{trusts}-ca.pem"), strict=True):
        monkeypatch.setenv(variable, str(files / name))
