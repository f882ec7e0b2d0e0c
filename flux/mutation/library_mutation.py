"""Library mutation: alter one statement or condition of the operators of the library, and see whether tests notice.

A mutant is noticed by a test that executes the altered line and fails. The fastest are tried first, for up to
`_BUDGET_S` as they take without the mutant. What argues for the survivors that are known is in `library_survivors.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..spec.mutate import MutationResult
from .module_mutants import Trial, mutate_modules

__all__ = ["LIBRARY_MODULES", "mutate_library"]

_OPERATORS = Path(__file__).resolve().parent.parent / "operators"
LIBRARY_MODULES = tuple(f"operators.{file.stem}" for file in sorted(_OPERATORS.glob("*.py")) if file.stem[0] != "_")
_TESTS = {
    "tests": ("tests/operators", "tests/hosting", "tests/testing/test_library.py", "tests/experiments/test_bench.py")
}
_ARGUED = Path(__file__).parent / "library_survivors.txt"
_BUDGET_S = 15.0


def mutate_library(
    modules: Sequence[str],
    sample: int | None,
    seed: int,
    results: Path | None,
    progress: Callable[[str], None],
    jobs: int | None = None,
) -> MutationResult:
    """Try the mutants of `modules`, or a random sample of so many; with `results`, resume an earlier run."""
    return mutate_modules(
        modules, sample, seed, results, progress, jobs=jobs, groups=_TESTS, survives=_survives, argued=_ARGUED
    )


def _survives(trial: Trial) -> bool:
    return trial.tests_pass("tests", 0, _BUDGET_S)
