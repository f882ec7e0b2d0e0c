"""The examples in the README run as they are printed, one after the other."""

from __future__ import annotations

import ast
import code
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parent.parent / "README.rst"
TEXT = ["to", "be", "or", "not", "to", "be"]


def python_blocks(text: str) -> list[str]:
    """The indented text behind each `.. code-block:: python`."""
    found = re.findall(r"^\.\. code-block:: python\n\n((?:(?: {4}.*)?\n)+)", text, re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def test_the_examples_run_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(README.read_text())
    assert len(blocks) == 4
    names: dict[str, Any] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)

    printed = capsys.readouterr().out.splitlines()
    assert ast.literal_eval(printed[0]) == [
        {"word": word, "count": TEXT[: i + 1].count(word)} for i, word in enumerate(TEXT)
    ]
    assert printed[1].startswith("30000 rows;") and "site-2" in printed[1]
    assert (tmp_path / "run.png").stat().st_size > 0
    assert printed[-1].endswith("pairs") and int(printed[-1].split()[0]) > 0


def test_code_that_is_meant_to_be_run_is_marked_as_python() -> None:
    text = README.read_text()
    lines = [line for block in python_blocks(text) for line in block.splitlines() if line]
    shown = [line for line in text.splitlines() if line.startswith("    ") and "flux." in line and "(" in line]
    assert {line.strip() for line in shown} <= {line.strip() for line in lines}


class Console(code.InteractiveConsole):
    """Takes lines as Python's does when they are pasted there, and runs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.complaints: list[str] = []

    def runcode(self, code: Any) -> None:
        pass

    def write(self, data: str) -> None:
        self.complaints.append(data)


def test_the_examples_can_be_pasted_into_a_console() -> None:
    """There an empty line ends a block, and only an empty line does."""
    for block in python_blocks(README.read_text()):
        console = Console()
        waits = False
        for line in [*block.splitlines(), ""]:
            waits = console.push(line)
        assert not console.complaints and not waits, f"{console.complaints} of\n{block}"


@pytest.mark.parametrize("way", [["example.py"], ["-i", "-q"]], ids=["file", "console"])
def test_the_first_example_runs_in_an_empty_folder(way: list[str], tmp_path: Path) -> None:
    first = python_blocks(README.read_text())[0]
    (tmp_path / "example.py").write_text(first)
    typed = f"{first}\nexit()\n" if "-i" in way else ""
    where = {**os.environ, "PYTHONPATH": str(README.parent)}
    ran = subprocess.run(
        [sys.executable, *way], input=typed, capture_output=True, text=True, cwd=tmp_path, env=where, timeout=60
    )
    assert ran.returncode == 0 and "Error" not in ran.stderr, ran.stderr
    [table] = ran.stdout.splitlines()
    assert [row["count"] for row in ast.literal_eval(table)] == [1, 1, 1, 1, 2, 2]
