"""The search of `experiments.balance.rotating` for the least pool that absorbs a load."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.balance.rotating import BOUNDS, GOAL, KINDS, PERIODS_S, _halving, _least


@pytest.mark.parametrize("enough", [*BOUNDS, BOUNDS[-1] + 1])
def test_the_least_bound_that_is_enough_is_found_in_few_runs(enough: int) -> None:
    rows: list[dict[str, Any]] = []
    for bound in _halving(BOUNDS, rows):
        share = GOAL if bound >= enough else GOAL - 0.01
        rows.append({"kind": KINDS[0], "period_s": PERIODS_S[0], "bound_rows": bound, "processed_of_unloaded": share})
    found = _least(rows, KINDS[0], PERIODS_S[0])
    assert (found["bound_rows"] if found else BOUNDS[-1] + 1) == enough
    assert len(rows) <= 6
