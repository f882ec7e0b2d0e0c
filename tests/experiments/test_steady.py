"""The figures of `experiments.steady`: growth and moves must be seen, and what is flat must not look like growth."""

from __future__ import annotations

import pytest

from experiments.soak.stream import SOURCES, chunk
from experiments.steady.run import GROWTH_MAX, SAMPLES, Setting, growth, unexpected, with_new_keys

QUIET = {"deaths": [], "views": 1, "rounds": [], "slow": [], "growth": 0.0}


def test_what_fills_up_at_first_and_is_flat_behind_that_has_not_grown() -> None:
    assert growth([min(400.0, 100.0 + 20 * n) for n in range(SAMPLES)]) == 0.0


def test_a_moment_of_more_is_no_growth() -> None:
    memory = [400.0] * SAMPLES
    memory[-3] = 900.0
    assert growth(memory) == 0.0


@pytest.mark.parametrize("leak", [1.0, 4.0])
def test_a_leak_is_seen(leak: float) -> None:
    assert growth([400.0 + leak * n for n in range(SAMPLES)]) > GROWTH_MAX


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deaths", ["site-1"]),
        ("views", 2),
        ("rounds", [{"when_s": 1.0, "moves": 1, "why": "it lags"}]),
        ("slow", [{"site": "site-1", "when_s": 1.0, "until_s": None}]),
        ("growth", 0.2),
    ],
)
def test_each_claim_can_fail(name: str, value: object) -> None:
    assert unexpected(Setting(), QUIET) == []
    assert unexpected(Setting(), {**QUIET, name: value}) == [name]


def test_busy_loops_explain_moves_and_growing_state_explains_memory_but_nothing_explains_a_death() -> None:
    moved = {**QUIET, "views": 4, "rounds": [{}], "slow": [{}]}
    assert unexpected(Setting(beside=2), moved) == []
    assert unexpected(Setting(is_growing=True), {**QUIET, "growth": 3.0}) == []
    assert unexpected(Setting(beside=2, is_growing=True), {**moved, "deaths": ["site-1"]}) == ["deaths"]


def test_each_generation_of_growing_keys_is_new() -> None:
    rows = chunk(0)
    first, second = (set(with_new_keys(rows, generation)["src"].to_pylist()) for generation in (0, 1))
    assert first == set(rows["src"].to_pylist()) and min(second) >= SOURCES and not first & second
