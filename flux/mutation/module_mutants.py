"""Module mutants: those of modules of flux/, by their dotted names, all or a sample; and their trial in a fork."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ..spec.mutants import Mutant, count_mutants, mutants_of
from ..spec.mutate import MutationResult, Spoiler, arguments_in, try_mutants
from .unit_tests import UnitTests

__all__ = ["file_of", "module_mutants", "mutate_modules", "put_in_place"]

_FLUX = Path(__file__).resolve().parent.parent


def file_of(module: str) -> str:
    """Return the file of a module, in flux/."""
    return f"{module.replace('.', '/')}.py"


def source_of(module: str) -> str:
    """Return the text of a module."""
    return (_FLUX / file_of(module)).read_text()


def module_mutants(modules: Sequence[str], sample: int | None, seed: int) -> list[Mutant]:
    """Return the mutants of modules; or so many of them, drawn by a seed."""
    places = [(module, number) for module in modules for number in range(count_mutants(source_of(module)))]
    if sample is not None and sample < len(places):
        places = random.Random(f"{seed} mutants").sample(places, sample)
    return [
        mutant
        for module in modules
        for mutant in mutants_of(module, source_of(module), {number for each, number in places if each == module})
    ]


def mutate_modules(
    modules: Sequence[str],
    sample: int | None,
    seed: int,
    results: Path | None,
    progress: Callable[[str], None],
    *,
    tests: Sequence[str],
    survives: Callable[[UnitTests, Mutant], bool],
    argued: Path,
) -> MutationResult:
    """Try the mutants of modules, or a random sample of so many; with `results`, resume an earlier run.

    `survives` is called in a fork, with what is known of the `tests`; `argued` has the survivors that are known.
    """
    measured = UnitTests.measured(tests, progress)
    every = module_mutants(modules, sample, seed)
    return try_mutants(
        every, _unmutated(modules[0]), partial(survives, measured), arguments_in(argued), results, progress
    )


def _unmutated(module: str) -> Mutant:
    """Return a module as it is, with all its lines."""
    text = source_of(module)
    return Mutant(name="none", module=module, source=text, lines=range(1, text.count("\n") + 1))


def put_in_place(mutant: Mutant) -> None:
    """Have this process, a fork, import Flux anew, with the mutated module."""
    for name in [name for name in sys.modules if name == "flux" or name.startswith("flux.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, Spoiler(mutant, f"flux.{mutant.module}"))
