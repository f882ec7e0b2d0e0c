"""The figures of `experiments.steady`: growth must be seen, and what is flat must not look like it."""

from __future__ import annotations

import pytest

from experiments.steady.run import GROWTH_MAX, SAMPLES, growth


def test_what_fills_up_at_first_and_is_flat_behind_that_has_not_grown() -> None:
    assert growth([min(400.0, 100.0 + 20 * n) for n in range(SAMPLES)]) == 0.0


def test_a_moment_of_more_is_no_growth() -> None:
    memory = [400.0] * SAMPLES
    memory[-3] = 900.0
    assert growth(memory) == 0.0


@pytest.mark.parametrize("leak", [1.0, 4.0])
def test_a_leak_is_seen(leak: float) -> None:
    assert growth([400.0 + leak * n for n in range(SAMPLES)]) > GROWTH_MAX
