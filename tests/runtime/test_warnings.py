"""Warnings of a run reach standard error, once, unless the program has configured logging otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .waiting import DEADLINE_S

PROGRAM = """
import logging
import flux
{configure}
flow = flux.Dataflow("late")
rows = flux.sources.Table([{{"k": "a", "ts": ts}} for ts in (0, 5_000, 9_000, 20, 30)])
keyed = flow.source(rows, event_time="ts").exchange("k", partitions=2)
keyed.apply(flux.operators.Distinct, time="ts", size_ms=1_000).sink(flux.sinks.Null())
if __name__ == "__main__":
    assert flow.run().late == 2
"""
LATE = "when the watermark has passed their time"


def errors_of(directory: Path, configure: str, command: list[str]) -> str:
    (directory / "program.py").write_text(PROGRAM.format(configure=configure))
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(directory)])
    done = subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


AS_PROGRAM = [sys.executable, "program.py"]
AS_COMMAND = [str(Path(sys.executable).with_name("flux")), "run", "program:flow"]


long = pytest.mark.long  # The other two ways are shown by these, too.


@pytest.mark.parametrize(
    ("configure", "command"),
    [
        pytest.param("", AS_PROGRAM, id="nothing-program"),
        pytest.param("", AS_COMMAND, id="nothing-command", marks=long),
        pytest.param("logging.basicConfig()", AS_PROGRAM, id="basicConfig-program", marks=long),
        pytest.param("logging.basicConfig()", AS_COMMAND, id="basicConfig-command"),
    ],
)
def test_a_warning_is_printed_once(configure: str, command: list[str], tmp_path: Path) -> None:
    assert errors_of(tmp_path, configure, command).count(LATE) == 1


def test_a_program_may_silence_them(tmp_path: Path) -> None:
    assert errors_of(tmp_path, 'logging.getLogger("flux").addHandler(logging.NullHandler())', AS_PROGRAM) == ""
