"""Mutants of the code around the machines: one that matters is noticed by simulated worlds."""

from __future__ import annotations

import pytest

from flux.mutation.module_mutants import module_mutants, source_of
from flux.mutation.shell_mutation import SHELL_MODULES, mutate_shell
from flux.spec.mutants import count_mutants, mutants_of


def test_every_module_has_mutants_and_a_sample_is_the_same_each_time() -> None:
    assert all(count_mutants(source_of(module)) for module in SHELL_MODULES)
    some = SHELL_MODULES[:3]
    drawn = [[mutant.name for mutant in module_mutants(some, 5, seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]) == 5
    text = source_of("site.heartbeat")
    every = list(mutants_of("site.heartbeat", text))
    assert [mutant.name for mutant in mutants_of("site.heartbeat", text, {0, 2})] == [every[0].name, every[2].name]


@pytest.mark.long
def test_a_heartbeat_that_sends_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    [spoilt] = [
        each
        for each in module_mutants(("site.heartbeat",), None, 0)
        if "without `await write_all(sock, _BEAT)`" in each.name
    ]
    monkeypatch.setattr("flux.mutation.module_mutants.module_mutants", lambda *_: [spoilt])
    mutated = mutate_shell(("site.heartbeat",), None, 0, None, lambda line: None)
    assert (mutated.mutants, mutated.noticed) == (1, 1)
