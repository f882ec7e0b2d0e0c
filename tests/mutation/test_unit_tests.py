"""The tests that are tried on a mutant are those that execute its lines, the fastest first, up to a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from flux import FluxError
from flux.mutation import library_mutation, unit_tests
from flux.mutation.library_mutation import LIBRARY_MODULES, mutate_library
from flux.mutation.module_mutants import module_mutants, source_of
from flux.mutation.unit_tests import UnitTests

FOUND = {
    "seconds": {"slow": 9.0, "fast": 0.1, "other": 0.2, "middle": 1.0},
    "lines": {"operators/a.py": {"3": ["slow", "fast", "failed"], "4": ["middle"], "5": ["other"]}},
}


def test_the_fastest_tests_of_a_line_come_first_and_those_beyond_the_budget_are_left_out() -> None:
    tests = UnitTests(FOUND)
    found = tests.executing("operators/a.py", range(3, 5))
    assert found == ["fast", "middle", "slow"]
    assert tests.within(found, 0, 2) == ["fast", "middle"]
    assert tests.within(found, 2, 60) == ["slow"]
    assert tests.executing("operators/a.py", range(9, 10)) == tests.executing("b.py", range(3, 5)) == []


def test_each_mutant_has_the_lines_that_it_alters() -> None:
    text = source_of("operators.distinct")
    lines = text.splitlines()
    [dropped] = [each for each in module_mutants(("operators.distinct",), None, 0) if "drop(pid)`" in each.name][:1]
    assert [lines[line - 1].strip() for line in dropped.lines] == [dropped.name.split("`")[1]]
    for mutant in module_mutants(("operators.distinct",), None, 0):
        assert 1 <= mutant.lines.start < mutant.lines.stop <= len(lines) + 1
    assert len(LIBRARY_MODULES) > 20


def test_an_installation_without_tests_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(unit_tests, "_FLUX", tmp_path / "flux")
    with pytest.raises(FluxError, match="Run this in a checkout"):
        unit_tests.source_tree()


@pytest.mark.long
def test_a_mutant_is_noticed_by_a_test_that_executes_it_and_survives_if_none_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = module_mutants(("operators.distinct",), None, 0)
    names = ("output_for: without `Windowed.check(", "drop_partition: without `self._table.drop(pid)`")
    spoilt = [each for each in every if each.name.startswith(tuple(f"operators.distinct.{name}" for name in names))]
    monkeypatch.setattr("flux.mutation.module_mutants.module_mutants", lambda *_: spoilt)
    monkeypatch.setattr(library_mutation, "_TESTS", {"tests": ("tests/operators/test_distinct.py",)})
    mutated = mutate_library(("operators.distinct",), None, 0, None, lambda line: None)
    # No test of this file drops a partition.
    assert (mutated.mutants, mutated.noticed) == (2, 1)
    assert mutated.survivors == mutated.not_argued == [spoilt[1].name]
