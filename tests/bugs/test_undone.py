"""Each bug of the list is found again when its fix is taken out.

In `make test-all`, for it runs a command for each of some hundred bugs; every day, that there is a way to take it out.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_bugs import COMMANDS

from .undone import UNDO_THEMSELVES, Undone, read_undone

UNDONE, CANNOT = read_undone()
_TESTS_FAILED = 1  # Exit status of pytest; an error of another kind has another.


def test_each_bug_has_a_way_to_take_its_fix_out() -> None:
    named = Counter([each.finds for each in UNDONE] + list(CANNOT))
    assert [command for command, count in named.items() if count > 1] == []
    wanted = {command for command in COMMANDS if not command.startswith(UNDO_THEMSELVES)}
    assert sorted(named.keys() - wanted) == [], "no bug of the list has these commands"
    assert sorted(wanted - named.keys()) == [], "no entry takes the fix of these out"
    assert all(len(reason) > 20 for reason in CANNOT.values())


@pytest.mark.parametrize("undone", UNDONE, ids=lambda undone: undone.finds)
def test_what_is_taken_out_is_there_once(undone: Undone) -> None:
    for change in undone.changes:
        assert (ROOT / change.file).read_text().count(change.fixed) == 1, change.file
        assert change.fixed != change.broken


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree."""
    root = tmp_path_factory.mktemp("undone") / "tree"
    left_out = shutil.ignore_patterns(".venv", ".git", "build", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, root, symlinks=True, ignore=left_out)
    return root


@pytest.fixture
def tree(copy: Path) -> Iterator[Path]:
    """The copy, which is put right again."""
    before = {path: path.read_bytes() for undone in UNDONE for path in (copy / c.file for c in undone.changes)}
    yield copy
    for path, content in before.items():
        path.write_bytes(content)


@pytest.mark.long
@pytest.mark.parametrize("undone", UNDONE, ids=lambda undone: undone.finds)
def test_the_bug_is_found_again_without_its_fix(undone: Undone, tree: Path) -> None:
    for change in undone.changes:
        change.undo(tree)
    program, *arguments = shlex.split(undone.finds)
    if program == "pytest":
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    else:
        command = [
            sys.executable,
            "-c",
            "import sys; from flux.commands.main import main; sys.exit(main(sys.argv[1:]))",
        ]
        command += arguments
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=900)
    assert ran.returncode == _TESTS_FAILED, f"{ran.stdout[-3_000:]}\n{ran.stderr[-1_000:]}"
