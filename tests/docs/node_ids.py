"""Whether a test exists, read from the source: collecting all tests would take longer than all of these checks."""

from __future__ import annotations

import ast
import re
from functools import cache

from .pages import ROOT


def is_test(node_id: str) -> bool:
    """Whether `tests/file.py::test_name` exists; also `tests/file.py`, and `...::test_name[case]` for the test.

    A case in brackets must occur as a word in the file or in one beside it: parametrized values are made at run time.
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
    words = re.findall(r"[A-Za-z_]\w{3,}", case)
    texts = [beside.read_text() for beside in path.parent.glob("*.py")]
    return all(any(word in text for text in texts) for word in words)


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
