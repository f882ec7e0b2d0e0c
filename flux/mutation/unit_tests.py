"""Unit tests: those of this source tree that execute a line, found by running all of them once.

Only what runs in the process of a test is seen. What was found is kept in build/, for as long as no file changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..types.errors import FluxError
from .coverage_plugin import SECONDS_FILE

__all__ = ["UnitTests", "source_tree"]

_FLUX = Path(__file__).resolve().parent.parent


def source_tree() -> Path:
    """Return the folder that has flux/ and tests/."""
    if not (_FLUX.parent / "tests").is_dir():
        raise FluxError(
            f"{_FLUX.parent} has no tests/: mutants are tried with the tests of Flux, which are not installed with it. "
            "Run this in a checkout, after make venv"
        )
    return _FLUX.parent


class UnitTests:
    """Which tests execute which line, and how long each takes."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._seconds: dict[str, float] = found["seconds"]
        self._by_line: dict[str, dict[str, list[str]]] = found["lines"]  # By file in flux/ and number of the line.

    @classmethod
    def measured(cls, tests: Sequence[str], progress: Callable[[str], None]) -> UnitTests:
        """Run these files and folders of tests once, unless that is known."""
        root = source_tree()
        kept = root / "build" / f"unit-tests-{_digest(root, tests)}.json"
        if not kept.exists():
            progress(f"running the tests of {', '.join(tests)}, to find what each executes")
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(json.dumps(_run(root, tests)))
        return cls(json.loads(kept.read_text()))

    def executing(self, file: str, lines: range) -> list[str]:
        """Return the tests that execute one of these lines of a file in flux/, the fastest first."""
        by_line = self._by_line.get(file, {})
        found = {test for line in lines for test in by_line.get(str(line), ())}
        return sorted(found & self._seconds.keys(), key=lambda test: (self._seconds[test], test))

    def within(self, tests: Sequence[str], from_s: float, to_s: float) -> list[str]:
        """Return those tests that end between two times, if they run one after another."""
        ends = accumulate(self._seconds[test] for test in tests)
        return [test for test, end_s in zip(tests, ends, strict=True) if from_s <= end_s < to_s]


def _digest(root: Path, tests: Sequence[str]) -> str:
    found = hashlib.sha256(repr(tests).encode())
    for folder in ("flux", "protocols", "spec", "tests"):
        for file in sorted((root / folder).rglob("*.py")):
            found.update(f"{file.relative_to(root)}\n".encode())
            found.update(file.read_bytes())
    return found.hexdigest()[:12]


def _run(root: Path, tests: Sequence[str]) -> dict[str, Any]:
    from coverage import CoverageData

    with tempfile.TemporaryDirectory() as directory:
        data, seconds = Path(directory, "coverage"), Path(directory, "seconds")
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={os.devnull}", f"--data-file={data}"]
        command += [f"--source={_FLUX}", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "flux.mutation.coverage_plugin", "--hypothesis-seed=0", *tests]
        said = subprocess.run(
            command, cwd=root, env={**os.environ, SECONDS_FILE: str(seconds)}, capture_output=True, text=True
        )
        if not seconds.exists():
            raise FluxError(f"the tests did not run: {said.stdout[-2_000:]} {said.stderr[-2_000:]}")
        coverage = CoverageData(str(data))
        coverage.read()
        lines = {
            str(Path(file).relative_to(_FLUX)): {
                str(line): sorted(filter(None, contexts))
                for line, contexts in coverage.contexts_by_lineno(file).items()
            }
            for file in coverage.measured_files()
            if _FLUX in Path(file).parents  # A link leads elsewhere.
        }
        return {"seconds": json.loads(seconds.read_text()), "lines": lines}
