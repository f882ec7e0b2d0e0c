"""Library mutation: alter one statement or condition of the operators of the library, and see whether tests notice.

A mutant is noticed by a test that executes the altered line and fails. The fastest are tried first, for up to
`_BUDGET_S` as they take without the mutant. What argues for the survivors that are known is in `library_survivors.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..spec.mutants import Mutant
from ..spec.mutate import MutationResult
from .module_mutants import file_of, mutate_modules, put_in_place
from .unit_tests import UnitTests, pass_here

__all__ = ["LIBRARY_MODULES", "mutate_library"]

_OPERATORS = Path(__file__).resolve().parent.parent / "operators"
LIBRARY_MODULES = tuple(f"operators.{file.stem}" for file in sorted(_OPERATORS.glob("*.py")) if file.stem[0] != "_")
_TESTS = ("tests/operators", "tests/hosting", "tests/testing/test_library.py", "tests/experiments/test_bench.py")
_ARGUED = Path(__file__).parent / "library_survivors.txt"
_BUDGET_S = 40.0


def mutate_library(
    modules: Sequence[str], sample: int | None, seed: int, results: Path | None, progress: Callable[[str], None]
) -> MutationResult:
    """Try the mutants of `modules`, or a random sample of so many; with `results`, resume an earlier run."""
    return mutate_modules(modules, sample, seed, results, progress, tests=_TESTS, survives=_survives, argued=_ARGUED)


def _survives(tests: UnitTests, mutant: Mutant) -> bool:
    chosen = tests.executing(file_of(mutant.module), mutant.lines, _BUDGET_S)
    put_in_place(mutant)
    return pass_here(chosen)
