"""What takes the fix of a bug out again, for each bug of docs/bugs.rst; in the files ``*.toml`` of this folder.

An entry names the bug by its command, and has one change or several: text of a file that is there once, and what stands
there without the fix::

    [[bug]]
    finds = "pytest tests/protocols/test_pooler.py::test_a_site_whose_last_copy_left..."
    [[bug.change]]
    file = "protocols/pooler.py"
    fixed = '''
            if not self.held:
                return
    '''
    broken = ''

A bug that has no such entry is in ``[[cannot]]``, with the reason. Tests that take the fix out themselves need none.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
# These take out the fix, or run the rule as the thesis prints it, and pass when the world fails.
UNDO_THEMSELVES = (
    "pytest tests/spec/test_seeds.py::test_it_fails_when_the_fix_is_undone[",
    "pytest tests/spec/test_thesis_models.py::",
)


@dataclass(frozen=True)
class Change:
    """One place: `fixed` is there once, and `broken` takes its place."""

    file: str
    fixed: str
    broken: str

    def undo(self, root: Path) -> None:
        """Take the fix out, in the tree of a copy."""
        path = root / self.file
        path.write_text(path.read_text().replace(self.fixed, self.broken))


@dataclass(frozen=True)
class Undone:
    """What takes out the fix of the bug that the command `finds`."""

    finds: str
    changes: tuple[Change, ...]


def read_undone() -> tuple[list[Undone], dict[str, str]]:
    """Return all entries; and, by its command, why there is none for a bug."""
    found: list[Undone] = []
    cannot: dict[str, str] = {}
    for path in sorted(HERE.glob("*.toml")):
        content = tomllib.loads(path.read_text())
        found += [Undone(each["finds"], tuple(Change(**c) for c in each["change"])) for each in content.get("bug", ())]
        cannot |= {each["finds"]: each["because"] for each in content.get("cannot", ())}
    return found, cannot
