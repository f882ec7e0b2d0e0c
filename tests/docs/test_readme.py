"""The README is short, and its examples run as they are printed, one after the other."""

from __future__ import annotations

import ast
import code
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .pages import ROOT, blocks, literals, run_page

README = ROOT / "README.rst"
LINES_MAX = 150
TEXT = ["to", "be", "or", "not", "to", "be"]


def test_it_is_short() -> None:
    assert len(README.read_text().splitlines()) <= LINES_MAX


def test_the_examples_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = run_page(README, {"__name__": "readme"})
    assert ast.literal_eval(first) == [
        {"word": word, "count": TEXT[: i + 1].count(word)} for i, word in enumerate(TEXT)
    ]
    assert second.startswith("30000 rows;") and "site-2" in second
    assert (tmp_path / "run.png").stat().st_size > 0


def test_the_pages_that_it_names_exist() -> None:
    named = {name for text in literals(README) for name in re.findall(r"[\w/]+\.rst", text)}
    assert len(named) > 8
    assert not [name for name in named if not (ROOT / name).exists()]


class Console(code.InteractiveConsole):
    """Takes lines as Python's does when they are pasted there, and runs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.complaints: list[str] = []

    def runcode(self, code: Any) -> None:
        pass

    def write(self, data: str) -> None:
        self.complaints.append(data)


@pytest.mark.parametrize("page", ["README.rst", "docs/tutorial.rst"])
def test_the_examples_can_be_pasted_into_a_console(page: str) -> None:
    """There an empty line ends a block, and only an empty line does."""
    for block in blocks(ROOT / page, "python"):
        console = Console()
        waits = False
        for line in [*block.text.splitlines(), ""]:
            waits = console.push(line)
        assert not console.complaints and not waits, f"{console.complaints} of {block.place}"


@pytest.mark.parametrize("way", [["example.py"], ["-i", "-q"]], ids=["file", "console"])
def test_the_first_example_runs_in_an_empty_folder(way: list[str], tmp_path: Path) -> None:
    first = blocks(README, "python")[0].text
    (tmp_path / "example.py").write_text(first)
    typed = f"{first}\nexit()\n" if "-i" in way else ""
    where = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, *way], input=typed, capture_output=True, text=True, cwd=tmp_path, env=where, timeout=60
    )
    assert ran.returncode == 0 and "Error" not in ran.stderr, ran.stderr
    [table] = ran.stdout.splitlines()
    assert [row["count"] for row in ast.literal_eval(table)] == [1, 1, 1, 1, 2, 2]
