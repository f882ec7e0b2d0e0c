"""Whether a test exists, read from the source: collecting all tests would take longer than all of these checks."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from .pages import ROOT


def is_test(node_id: str) -> bool:
    """Whether `tests/file.py::test_name` exists; also `tests/file.py`, and `...::test_name[case]` for the test.

    A case in brackets must occur as a word in the file, in one beside it or as the name of an interaction, because the
    cases themselves are made at run time.
    """
    file, _, rest = node_id.partition("::")
    path = ROOT / file
    if not path.exists():
        return False
    if not rest:
        return True
    name, _, case = rest.partition("[")
    if name not in _test_names(file):
        return False
    words = set(re.findall(r"[A-Za-z_]\w{3,}", case))
    return not words - _words(str(path.parent))


def moved_to(node_id: str) -> list[str]:
    """Where tests of this name are now, to correct a page by."""
    name = node_id.partition("::")[2].partition("[")[0]
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    return [f"{file}::{name}" for file in files if name in _test_names(file)]


@cache
def _words(folder: str) -> frozenset[str]:
    """All words of the sources in a folder of tests, of what they test in spec/, and the names of interactions."""
    files = [*Path(folder).glob("*.py"), *(ROOT / "spec").rglob("*.py")]
    words = {word for path in files for word in re.findall(r"\w+", path.read_text())}
    return frozenset(words | {path.stem for path in (ROOT / "tests" / "interactions").glob("*.txt")})


@cache
def _test_names(file: str) -> frozenset[str]:
    """The functions of a file that pytest runs; methods as Class::method."""
    names = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return frozenset(name for name in names if name.rpartition("::")[2].startswith("test_"))
