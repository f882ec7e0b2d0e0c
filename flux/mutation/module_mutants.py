"""Module mutants: those of modules of flux/, by their dotted names, all or a sample; and their trial in a fork."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..spec.mutants import Mutant, count_mutants, mutants_of
from ..spec.mutate import Limits, MutationResult, arguments_in, try_mutants
from .code_change import code_changes
from .trial_session import TrialSession, in_trial_session, print_nothing
from .unit_tests import UnitTests

__all__ = ["Trial", "file_of", "module_mutants", "mutate_modules"]

_LIMITS = Limits(cpu_s=60, idle_s=15)

_FLUX = Path(__file__).resolve().parent.parent


def file_of(module: str) -> str:
    """Return the file of a module, in flux/."""
    return f"{module.replace('.', '/')}.py"


def source_of(module: str) -> str:
    """Return the text of a module."""
    return (_FLUX / file_of(module)).read_text()


def module_mutants(modules: Sequence[str], sample: int | None, seed: int) -> list[Mutant]:
    """Return the mutants of modules; or so many of them, drawn by a seed, in the order in which they were drawn."""
    places = [(module, number) for module in modules for number in range(count_mutants(source_of(module)))]
    if sample is not None and sample < len(places):
        places = random.Random(f"{seed} mutants").sample(places, sample)
    made: dict[tuple[str, int], Mutant] = {}
    for module in modules:
        numbers = sorted(number for each, number in places if each == module)
        mutants = mutants_of(module, source_of(module), set(numbers))
        made |= {(module, number): mutant for number, mutant in zip(numbers, mutants, strict=True)}
    return [made[place] for place in places]


def mutate_modules(
    modules: Sequence[str],
    sample: int | None,
    seed: int,
    results: Path | None,
    progress: Callable[[str], None],
    *,
    jobs: int | None,
    groups: Mapping[str, Sequence[str]],
    survives: Callable[[Trial], bool],
    argued: Path,
) -> MutationResult:
    """Try the mutants of modules, or a random sample of so many; with `results`, resume an earlier run.

    `survives` is called in a fork that runs the mutant, with what is known of the `groups` of tests; `argued` has the
    survivors that are known.
    """
    known = {name: UnitTests.measured(tests, progress) for name, tests in groups.items()}
    every = module_mutants(modules, sample, seed)
    mutated: list[MutationResult] = []

    def use(session: TrialSession) -> None:
        changes = {mutant.name: code_changes(mutant) for mutant in every}

        def is_survivor(mutant: Mutant) -> bool:
            print_nothing()
            for change in changes.get(mutant.name, ()):  # None: the modules as they are.
                change.make()
            return survives(Trial(mutant, known, session))

        mutated.append(
            try_mutants(
                every, _unmutated(modules[0]), is_survivor, arguments_in(argued), results, progress, _LIMITS, jobs
            )
        )

    in_trial_session([test for tests in groups.values() for test in tests], use)
    return mutated[0]


class Trial:
    """What a fork that runs a mutant needs to try it."""

    def __init__(self, mutant: Mutant, known: Mapping[str, UnitTests], session: TrialSession) -> None:
        self._place = file_of(mutant.module), mutant.lines
        self._known = known
        self._session = session

    def tests_pass(self, group: str, from_s: float, to_s: float) -> bool:
        """Run the tests of a group that execute the altered lines, the fastest first: from one second to another."""
        tests = self._known[group]
        return self._session.pass_here(tests.within(tests.executing(*self._place), from_s, to_s))

    def some_pass(self, group: str, most: int) -> bool:
        """Run at most so many of the tests of a group that execute the altered lines, in the order of their names."""
        return self._session.pass_here(sorted(self._known[group].executing(*self._place))[:most])


def _unmutated(module: str) -> Mutant:
    """Return a module as it is, with all its lines."""
    text = source_of(module)
    return Mutant(name="none", module=module, source=text, lines=range(1, text.count("\n") + 1))
