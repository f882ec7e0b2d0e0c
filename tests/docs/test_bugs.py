"""The list of bugs names tests that exist."""

from __future__ import annotations

import re

import pytest

from .node_ids import is_test, moved_to
from .pages import ROOT

BUGS = ROOT / "docs" / "bugs.rst"
# Those on lines of their own; commands in the text are looked at by test_pages.py.
COMMANDS = re.findall(r"^  ``((?:pytest|flux spec) [^`]+)``$", BUGS.read_text(), re.MULTILINE)


@pytest.mark.parametrize("node_id", [text.removeprefix("pytest ") for text in COMMANDS if text.startswith("pytest ")])
def test_the_test_that_finds_a_bug_again_exists(node_id: str) -> None:
    assert is_test(node_id), f"docs/bugs.rst: there is no {node_id}; tests of that name: {moved_to(node_id)}"


def test_every_entry_has_its_command() -> None:
    entries = re.findall(r"^\* ", BUGS.read_text(), re.MULTILINE)
    assert len(entries) == len(COMMANDS) == len(set(COMMANDS)) > 100


def test_every_world_that_once_failed_is_listed() -> None:
    from tests.spec.test_seeds import TALES

    listed = " ".join(COMMANDS)
    assert all(f"[{tale.undo.__name__}]" in listed for tale in TALES)


def test_a_test_that_does_not_exist_is_noticed() -> None:
    assert is_test("tests/docs/test_bugs.py::test_every_entry_has_its_command")
    assert is_test("tests/docs/test_bugs.py")
    assert not is_test("tests/docs/test_bugs.py::test_nothing")
    assert not is_test("tests/docs/nothing.py")
    assert not is_test("tests/spec/test_seeds.py::test_it_fails_when_the_fix_is_undone[no_such_" + "world]")
