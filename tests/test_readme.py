"""The examples in the README run as they are printed, one after the other."""

from __future__ import annotations

import ast
import re
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
