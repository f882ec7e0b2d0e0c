"""The command line, as a user meets it: real commands, real runs, and every error a user can cause.

It takes long because each test starts real commands, and each of them is an interpreter of its own.
"""

from __future__ import annotations

import configparser
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import flux
from flux.commands.main import main
from flux.commands.run_flow import ProgressLine
from flux.driver.status import Status
from tests.runtime.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 60.0

JOB = """
import flux

class Same(flux.Operator):
    output = {"v": "int64"}
    def process(self, batch):
        return batch.emit({"v": batch["v"]})

def flow_of(source, sink):
    flow = flux.Dataflow("job")
    flow.source(source).exchange("v", partitions=4).apply(Same).sink(sink)
    return flow

few = flow_of(flux.sources.Table([{"v": v} for v in range(100)]), flux.sinks.Collect())
numbers = flux.sources.Generator(lambda at, n: {"v": range(at, at + n)}, rate=2_000)
endless = flow_of(numbers, flux.sinks.Null())
number = 7
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the module `job`, and no other run in sight."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "runs").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("job", "broken"):
        sys.modules.pop(name, None)


Command = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin(job: Path) -> Iterator[Command]:
    """Begin a command in a process of its own; what is still there at the end is killed."""
    begun: list[subprocess.Popen[str]] = []
    # A shell that starts the tests in the background has them, and all that they start, ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(*arguments: str) -> subprocess.Popen[str]:
        call = [sys.executable, "-c", "import sys; from flux.commands.main import main; sys.exit(main())", *arguments]
        pipe = subprocess.PIPE
        begun.append(subprocess.Popen(call, cwd=job, stdout=pipe, stderr=pipe, text=True))
        return begun[-1]

    yield start
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=DEADLINE_S)
    signal.signal(signal.SIGINT, before)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Status, output and error output of a command, when it has ended."""
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def said(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    """What a command in this process writes to standard error; it ends with `status`."""
    assert main(arguments) == status
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


# flux run


def test_run_prints_a_summary(begin: Command) -> None:
    status, out, err = ended(begin("run", "job:few", "--sites", "2"))
    assert (status, err) == (0, "")
    assert out.startswith("job: 100 rows in, 100 rows out in ")


def test_run_prints_its_report_as_one_json_document(begin: Command) -> None:
    status, out, err = ended(begin("run", "job:few", "--availability", "none", "--sites", "1", "--json"))
    assert (status, err) == (0, "")
    report: dict[str, Any] = json.loads(out)
    assert (report["name"], report["inputs"], report["outputs"]) == ("job", 100, 100)


@pytest.mark.parametrize("arguments", [("run", "job:few", "--json"), ("spec", "show", "controller")])
def test_a_command_whose_reader_has_gone_ends_quietly_with_its_status(job: Path, arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    call = [sys.executable, "-c", "import sys; from flux.commands.main import main; sys.exit(main())", *arguments]
    with open(writer) as output:
        ran = subprocess.run(call, cwd=job, stdout=output, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_progress_whose_reader_has_gone_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flux.commands.run_flow._LINE_EVERY_S", 0.0)
    reader, writer = os.pipe()
    with open(writer, "w") as output:
        os.close(reader)
        progress = ProgressLine(output, quiet=False)
        for _ in range(2):
            progress.show(Status("words", 1.5, [], True, 20, 10, 5.0, 2.5, [], False))


def test_a_crash_limit_is_a_number_or_never(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Any] = []

    def start(self: flux.Dataflow, sites: int, standby: int, **settings: Any) -> None:
        chosen.append(settings["crash_limit"])
        raise flux.FluxError("seen")

    monkeypatch.setattr(flux.Dataflow, "start", start)
    for text in ("7", "never"):
        assert main(["run", "job:few", "--crash-limit", text]) == 1
    assert chosen == [7, None]
    with pytest.raises(SystemExit, match="2"):
        main(["run", "job:few", "--crash-limit", "0"])
    assert "expected a number of deaths from 1, or never, got '0'" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert capsys.readouterr().out == f"flux {flux.__version__}\n"
    assert flux.__version__ == setup["metadata"]["version"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_stops_cleanly(begin: Command, job: Path, number: signal.Signals) -> None:
    command = begin("run", "job:endless", "--record", "recorded")
    wait_until(lambda: any((job / "recorded").glob("site-1*")), "the run did not start")
    os.kill(command.pid, number)
    status, out, err = ended(command)
    assert (status, out) == (130, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("job", "named MODULE:FLOW, such as myjob:flow, got 'job'"),
        (":few", "named MODULE:FLOW"),
        ("nowhere:flow", "no module 'nowhere' here or on the Python path"),
        ("job.deeper:flow", "no module 'job.deeper'"),
        ("job:missing", "'missing' is not a Dataflow of job; it has endless, few. Write job:endless"),
        ("job:number", "'number' is not a Dataflow of job"),
    ],
)
def test_a_flow_that_is_not_there_is_said_plainly(
    job: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    assert says in said(capsys, 1, "run", name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import not_installed_here", "broken.py, line 1: ModuleNotFoundError: No module named 'not_installed_here'"),
        ("x = 1\ny = x / 0", "broken.py, line 2: ZeroDivisionError: division by zero. Fix it"),
        ("def (", "SyntaxError"),
        ("import flux\nflux.sources.Files('gone.csv', 'csv')", "broken.py, line 2: Files: "),
        ("import flux\nflux.Dataflow('')", "broken.py, line 2: a dataflow's name"),
    ],
)
def test_a_module_that_cannot_be_imported_is_said_with_its_line(
    job: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    (job / "broken.py").write_text(text)
    assert says in said(capsys, 1, "run", "broken:flow")


def test_a_plan_that_cannot_be_is_one_message(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = said(capsys, 1, "run", "job:few", "--sites", "1")
    assert "give sites=2 or more" in err
    assert len(err.splitlines()) == 1


def test_a_source_that_becomes_unreadable_is_one_message(begin: Command, job: Path) -> None:
    (job / "in.csv").write_text("v\n1\n")
    with (job / "job.py").open("a") as module:
        module.write("files = flow_of(flux.sources.Files('in.csv', 'csv'), flux.sinks.Null())\n")
        module.write("open('in.csv', 'w').write('other\\n1\\n')\n")
    status, _, err = ended(begin("run", "job:files"))
    assert status == 1
    assert "in.csv" in err and "Traceback" not in err


def test_a_picture_that_cannot_be_written_does_not_hide_that_the_run_is_complete(begin: Command) -> None:
    status, out, err = ended(begin("run", "job:few", "--plot", "nowhere/run.png"))
    assert status == 1
    assert "100 rows out" in out
    assert "the run is complete, but its picture cannot be written" in err


# Logs.


def test_logs_are_documents_that_name_flow_and_process(begin: Command) -> None:
    status, out, err = ended(begin("run", "job:few", "--json", "--log-level", "info", "--log-json"))
    assert status == 0 and json.loads(out)["outputs"] == 100
    logged = [json.loads(line) for line in err.splitlines()]
    assert {"level": "info", "flow": "job", "node": "site-1"}.items() <= next(
        line.items() for line in logged if line["message"].startswith("site-1 is up (process ")
    )
    assert any("every partition has all its copies" in line["message"] for line in logged)


def test_as_a_library_flux_prints_its_warnings_and_nothing_else(job: Path) -> None:
    program = (
        "import job\n"
        "with job.endless.start(sites=2) as run:\n"
        "    run.wait_for_output(1)\n"
        "    run.kill('controller')\n"
        "    run.wait_for_output(10)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=job, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (0, "")
    [warning] = done.stderr.splitlines()
    assert warning.startswith("controller ended with signal 9")


def test_an_unknown_machine_of_the_specification_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no machine is called 'nothing'; there are" in said(capsys, 2, "spec", "show", "nothing")
