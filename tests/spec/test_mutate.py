"""Mutants: what is spoilt is noticed, and what is said to be equivalent exists."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from flux.spec import mutate as mutation
from flux.spec.mutants import MODULES, Mutant, mutants, names
from flux.spec.mutate import arguments, mutate


@cache
def everyone() -> list[Mutant]:
    return [mutant for module in MODULES for mutant in mutants(module)]


def all_names() -> list[str]:
    return [name for module in MODULES for name in names(module)]


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert len(all_names()) > 500
    assert [name for name, count in Counter(all_names()).items() if count > 1] == []


@pytest.mark.long
def test_every_mutant_has_its_name_and_a_source_of_its_own() -> None:
    assert [mutant.name for mutant in everyone()] == all_names()
    assert len({(mutant.module, mutant.source) for mutant in everyone()}) > 0.99 * len(everyone())


def test_what_is_argued_to_be_equivalent_exists_and_is_argued() -> None:
    assert set(arguments()) <= set(all_names()), "a line of survivors.txt names no mutant: the machine has changed"
    assert all(len(reason) > 20 for reason in arguments().values())


@pytest.mark.long
def test_a_row_a_guard_and_a_state_change_that_are_spoilt_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Given one mutant of each kind, when they are tried, then each is noticed, and not tried again.
    names = (
        "buffer.ack: without `self._release()`",
        "fh_prod.is_from_a_consumer_and_not_older: always holds",
        "fh_prod.RULES: without row `Rule(on=Ack, guard=FhProd.is_from_a_consumer_and_not_older,",
    )
    chosen = [next(mutant for mutant in everyone() if mutant.name.startswith(name)) for name in names]
    monkeypatch.setattr(mutation, "mutants", lambda module: [m for m in chosen if m.module == module])
    monkeypatch.setattr(mutation, "TRIALS", mutation.TRIALS[:4])
    results = tmp_path / "results.json"
    mutated = mutate(["buffer", "fh_prod"], results, progress=lambda line: None)
    assert (mutated.mutants, mutated.noticed, mutated.survivors) == (3, 3, [])
    monkeypatch.setattr(mutation, "_start", lambda *given: pytest.fail("it is known already"))
    assert mutate(["buffer", "fh_prod"], results, progress=lambda line: None).noticed == 3


def test_where_the_machines_themselves_fail_nothing_is_said_of_mutants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation, "TRIALS", (lambda: True,))
    with pytest.raises(mutation.NothingToCompareWith, match="do not get through the trials"):
        mutate(["buffer"], progress=lambda line: None)
