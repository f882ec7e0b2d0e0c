"""A mutant is made in the process that has its module already: the function that it alters gets other code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

import flux
from flux.mutation.code_change import code_changes
from flux.mutation.library_mutation import LIBRARY_MODULES
from flux.mutation.module_mutants import module_mutants
from flux.mutation.shell_mutation import SHELL_MODULES
from flux.spec.mutants import mutants_of

TEXT = """
from contextlib import contextmanager

calls = []

class Base:
    def begin(self):
        calls.append("base")

class Made(Base):
    def begin(self):
        super().begin()
        calls.append("made")

    @property
    def most(self):
        if calls:
            return 1
        return 0

    @staticmethod
    def least():
        calls.append("least")

@contextmanager
def noted():
    calls.append("begin")
    yield
    calls.append("end")
"""


@contextmanager
def made(directory: Path) -> Iterator[ModuleType]:
    """A module of Flux that has this text."""
    file = directory / "sample.py"
    file.write_text(TEXT)
    module = ModuleType("flux.sample")
    module.__file__ = str(file)
    exec(compile(TEXT, str(file), "exec"), vars(module))
    sys.modules["flux.sample"] = module
    try:
        yield module
    finally:
        del sys.modules["flux.sample"]


@pytest.mark.parametrize(
    ("spoilt", "calls"),
    [
        ("begin: without `super().begin()`", ["made", "begin", "end", "least"]),
        ("begin: without `calls.append('made')`", ["base", "begin", "end", "least"]),
        ("noted: without `calls.append('end')`", ["base", "made", "begin", "least"]),
        ("least: without `calls.append('least')`", ["base", "made", "begin", "end"]),
    ],
)
def test_a_function_does_what_the_mutant_does(tmp_path: Path, spoilt: str, calls: list[str]) -> None:
    with made(tmp_path) as module:
        [mutant] = [each for each in mutants_of("sample", TEXT) if each.name == f"sample.{spoilt}"]
        [change] = code_changes(mutant)
        change.make()
        instance = module.Made()
        instance.begin()
        with module.noted():
            pass
        instance.least()
        assert module.calls == calls


def test_a_property_does_what_the_mutant_does(tmp_path: Path) -> None:
    with made(tmp_path) as module:
        [mutant] = [each for each in mutants_of("sample", TEXT) if each.name == "sample.most: negate `calls`"]
        assert module.Made().most == 0
        [change] = code_changes(mutant)
        change.make()
        assert module.Made().most == 1


@pytest.mark.parametrize("modules", [SHELL_MODULES, LIBRARY_MODULES], ids=["shell", "library"])
def test_of_each_mutant_one_function_is_changed_in_which_its_lines_are(modules: tuple[str, ...]) -> None:
    assert flux.__file__ is not None
    for mutant in module_mutants(modules, 40, 5):
        [change] = code_changes(mutant)
        assert change.function.__code__.co_firstlineno <= mutant.lines.start, mutant.name
        assert change.function.__code__.co_filename.startswith(str(Path(flux.__file__).parent)), mutant.name
