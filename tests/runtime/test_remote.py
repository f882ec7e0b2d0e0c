"""Runs whose processes are commands of their own, over TCP: each is killed and started again, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flux.cli import main
from flux.errors import FluxError
from flux.plan import Plan
from flux.remote.roll import Roll
from flux.wire.asking import ask, command

from .fakes import flow as collecting
from .waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 60.0
SECRET = "known to all of them"

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
        try:
            return ask(f"tcp:{self.controller}", command(SECRET.encode()), "status", DEADLINE_S)
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
    monkeypatch.setenv("FLUX_SECRET", SECRET)
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
    (tmp_path / "enough").touch()
    for name, process in processes.running.items():
        assert process.wait(DEADLINE_S) == 0, f"{name}: {processes.logs()}"
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == expected(int((tmp_path / "ended-at").read_text()))
    # A controller that a supervisor starts once more knows that there is nothing left to do.
    processes.start("controller")
    assert processes.running["controller"].wait(DEADLINE_S) == 0


def test_commands_ask_the_controller(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("controller", "site-a", "site-b", "site-c", "ingress", "egress"):
        processes.start(name)
    processes.advance(10)
    there = ("--controller", processes.controller)
    assert main(["status", "--json", *there]) == 0
    status = json.loads(capsys.readouterr().out)
    assert {process["name"] for process in status["processes"]} >= {"controller", "ingress", "egress", "site-1"}
    assert sum(process["copies"] for process in status["processes"]) == 8
    assert main(["drain", "site-2", *there]) == 0
    wait_until(lambda: ("site-2", 1) not in processes.up(), "site-2 has not ended")
    assert "site-2 is drained" in capsys.readouterr().out
    processes.advance(10)
    assert "no live site is called 'site-9'; the nodes are" in said(capsys, 1, "drain", "site-9", *there)
    assert "started and ended where they run" in said(capsys, 1, "kill", "site-1", *there)


# What a user can do wrong.


def said(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    assert main(arguments) == status
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


def controller(where: str) -> tuple[str, ...]:
    return ("controller", "job:flow", "--listen", where, "--journal", "journal-c")


def test_a_port_in_use_is_said(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", processes.port))
        taken.listen()
        err = said(capsys, 1, *controller(processes.controller))
    assert f"cannot listen at tcp:{processes.controller}: Address already in use; end the process" in err


def test_a_run_without_a_secret_is_refused(
    processes: Processes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLUX_SECRET")
    call = controller(processes.controller)
    assert "by --secret-file, or set the variable FLUX_SECRET" in said(capsys, 1, *call)
    assert "cannot read the run's secret from nowhere: No such file" in said(
        capsys, 1, *call, "--secret-file", "nowhere"
    )


@pytest.mark.parametrize("where", ["7000", "host", "host:port", ":7000", "host:70000"])
def test_an_address_that_is_none_is_a_wrong_call(
    processes: Processes, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    assert f"an address is HOST:PORT, such as 10.0.0.5:7000, got {where!r}" in said(capsys, 2, *controller(where))


def test_a_flow_that_needs_a_program_is_refused(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    err = said(capsys, 1, "controller", "job:collecting", "--listen", "127.0.0.1:1", "--journal", "journal-c")
    assert "a remote run has none: use flux.sinks.Parquet(directory) or flux.sinks.Jsonl(path)" in err


def test_a_controller_that_is_not_there_is_said(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    there = ("--controller", processes.controller)
    err = said(capsys, 1, "site", "job:flow", *there, "--patience", "0")
    assert "nobody answers at" in err and "Is `flux controller` running there" in err
    assert "nobody answers at" in said(capsys, 1, "status", *there)


def test_those_who_do_not_belong_are_refused(
    processes: Processes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.start("controller")
    wait_until(lambda: processes.up() != set(), f"the controller is not up: {processes.logs()}")
    there = ("--controller", processes.controller)
    assert "another than its controller's" in said(capsys, 1, "site", "job:other", *there)
    assert "no module 'nowhere'" in said(capsys, 1, "site", "nowhere:flow", *there)
    Path("journal-i").mkdir()
    Path("journal-i/run").write_text("of last week")
    err = said(capsys, 1, "ingress", "job:flow", *there, "--journal", "journal-i")
    assert "journal-i holds the journal of another run" in err
    second = said(capsys, 1, *controller("127.0.0.1:0"))
    assert "in use by a process that still lives" in second
    monkeypatch.setenv("FLUX_SECRET", "guessed, and long enough")
    for call in (("site", "job:flow"), ("status",)):
        assert "has another secret than the run there; give both the same" in said(capsys, 1, *call, *there)


# Names and incarnations.


def plan() -> Plan:
    return collecting()._plan(2, 1, "pairs", 1_000)


def test_sites_get_the_names_of_the_plan_and_then_further_ones() -> None:
    roll, view = Roll(plan()), plan().view()
    assert roll.site(None, view, []) == "site-1"
    assert roll.site("site-3", view, []) == "site-3"
    assert roll.site("site-3", view, []) == "site-2"
    assert roll.site(None, view, []) == "site-4"


def test_a_name_that_is_or_was_in_the_view_is_not_given_by_the_next_controller() -> None:
    view = replace(plan().view(), number=3, dead=frozenset({"site-2"}))
    assert Roll(plan()).site("site-2", view, ["site-1"]) == "site-4"


def test_an_end_that_joins_again_is_the_next_incarnation_also_after_the_controllers() -> None:
    roll, view = Roll(plan()), plan().view()
    assert [roll.incarnation("ingress", view) for _ in range(3)] == [1, 2, 3]
    assert Roll(plan()).incarnation("egress", replace(view, number=1)) == 2
    assert Roll(plan()).incarnation("ingress", replace(view, number=9, incarnations=((0, 4),))) == 5
