"""The reference models of moves (Thesis 4.4.2, 5.1.3.2): explored to the end, every row fired."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from flux.spec.thesis import FLUX_LB, Explored, explore, show, tables, unfired
from flux.spec.thesis.fl_scenario import LbScenario
from flux.spec.thesis.worlds import MOVES


@cache
def explored(name: str) -> Explored:
    return explore(MOVES[name])


@pytest.mark.parametrize("name", MOVES)
def test_every_reachable_state_obeys_the_invariants(name: str) -> None:
    found = explored(name)
    print(f"{name}: {found}")
    assert not found.violation, found.story()
    assert found.ends > 0


@pytest.mark.parametrize("kind", [FLUX_LB])
def test_every_row_of_every_table_fires_in_the_exploration(kind: str) -> None:
    fired = Counter[tuple[str, str]]()
    for name, scenario in MOVES.items():
        if scenario.kind == kind:
            fired += explored(name).fired
    assert unfired(kind, fired) == []


def test_rows_that_fire_at_once_change_nothing_else() -> None:
    world = MOVES["Flux-LB, a move and back"]
    plain, fused = explore(replace(world, fused=False)), explore(replace(world, fused=True))
    assert not plain.violation and not fused.violation
    assert fused.states < plain.states and fused.ends == plain.ends


def test_the_tables_are_printed_with_their_sections() -> None:
    text = show(FLUX_LB)
    assert len(text.splitlines()) == sum(map(len, tables(FLUX_LB).values()))
    assert "getPartitionState" in text and "fig. 4.1" in text


def test_a_variant_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no_such"):
        LbScenario(values=(), variant=frozenset({"no_such"}))
