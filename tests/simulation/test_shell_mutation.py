"""Mutants of the code around the machines: one that matters is noticed by simulated worlds."""

from __future__ import annotations

import pytest

from flux.simulation import shell_mutation
from flux.simulation.shell_mutation import SHELL_MODULES, mutate_shell
from flux.spec.mutants import count_mutants, mutants_of


def test_every_module_has_mutants_and_a_sample_is_the_same_each_time() -> None:
    assert all(count_mutants(shell_mutation._source(module)) for module in SHELL_MODULES)
    text = shell_mutation._source("site.heartbeat")
    every = list(mutants_of("site.heartbeat", text))
    assert [mutant.name for mutant in mutants_of("site.heartbeat", text, {0, 2})] == [every[0].name, every[2].name]


@pytest.mark.long
def test_a_heartbeat_that_sends_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shell_mutation._source("site.heartbeat")
    [number] = [
        n for n, each in enumerate(mutants_of("", text)) if "without `await write_all(sock, _BEAT)`" in each.name
    ]
    monkeypatch.setattr(shell_mutation, "mutants_of", lambda module, text, wanted: mutants_of(module, text, {number}))
    mutated = mutate_shell(("site.heartbeat",), None, 0, None, lambda line: None)
    assert (mutated.mutants, mutated.noticed) == (1, 1)
