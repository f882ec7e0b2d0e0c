"""The benchmarks of single operators compute what pandas and numpy compute: here with few rows."""

from __future__ import annotations

import pytest

from experiments.bench import operators


@pytest.mark.parametrize("case", operators.CASES, ids=lambda case: case.name)
def test_a_benchmark_gives_what_the_plain_computation_gives(case: operators.Case) -> None:
    given = operators.Input.of(case, columns := case.columns(20_000))
    operators.check(case, given.run(), case.plain(columns))
