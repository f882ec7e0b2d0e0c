"""Runs: ticks keep order and nearness, lookups miss nothing, and a key that all rows have costs what its pairs cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flux.operators.sorted_runs import SortedRun, Ticks, words_of

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)


@given(st.lists(INT64, min_size=1), st.integers(0, 2**64 - 1))
@example([2**63 - 1, -(2**63)], 2**64 - 1)
@example([0, 2**32, -(2**63), 2**63 - 1], 0)
def test_ticks_of_integers_keep_order_and_nearness(times: list[int], bound: int) -> None:
    check_ticks(np.array(times, np.int64), bound, lambda a, b: abs(a - b) <= bound)


@given(st.lists(FLOATS, min_size=1), st.floats(0, allow_nan=False, allow_infinity=False))
@example([math.inf, -math.inf, 1e308, -1e308], 5e-324)
@example([0.1 * n for n in range(30)], 0.1)
@example([n * 5e-324 for n in range(380)], 300 * 5e-324)
def test_ticks_of_floats_keep_order_and_nearness(times: list[float], bound: float) -> None:
    check_ticks(np.array(times), bound, lambda a, b: abs(a - b) <= bound)


def check_ticks(times: npt.NDArray[Any], bound: Any, are_near: Any) -> None:
    ticks = Ticks(bound, middle=times[0].item())
    told = ticks.of(times)
    assert ticks.far(times) <= len(times) - np.isfinite(times[0])
    assert ((told >= 0) & (told < 2**32)).all()
    assert (np.diff(told[np.argsort(times)]) >= 0).all()
    for a, tick in zip(times.tolist(), told.tolist(), strict=True):
        for b, other in zip(times.tolist(), told.tolist(), strict=True):
            assert not are_near(a, b) or abs(tick - other) <= ticks.reach


def run_of(side: npt.NDArray[Any], key: npt.NDArray[Any], when: npt.NDArray[Any], ticks: Ticks) -> SortedRun:
    """A run of rows whose hashes are their keys, far enough apart."""
    places = np.concatenate([np.flatnonzero(side == 0), np.flatnonzero(side == 1)])
    hashed, told = key.astype(np.uint64) << np.uint64(33), ticks.of(when)
    words = words_of(hashed[places], told[places], int((side == 0).sum()))
    rows = [pa.record_batch({"n": pa.array(np.flatnonzero(side == s))}) for s in (0, 1)]
    return SortedRun.of(words, when[places], np.zeros(len(places), np.uint16), (rows[0], rows[1]))


ROW = st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 2_000))


@given(
    st.lists(ROW, min_size=1, max_size=60), st.lists(ROW, min_size=1, max_size=60), st.integers(0, 300), st.booleans()
)
def test_no_partner_is_missed_in_a_merged_run_of_which_some_rows_are_gone(
    older: list[tuple[int, int, int]], newer: list[tuple[int, int, int]], bound: int, retimed: bool
) -> None:
    ticks = Ticks(bound, middle=1_000)
    runs = [run_of(*(np.array(column) for column in zip(*rows, strict=True)), ticks) for rows in (older, newer)]
    whole = runs[0].merge(runs[1])
    whole = whole.where(whole.when % 3 > 0)
    if retimed:
        whole = whole.with_ticks(ticks := Ticks(bound, middle=-(2**40)))
        runs[1] = runs[1].with_ticks(ticks)
    left = [(side, key, when) for side, key, when in (*older, *newer) if when % 3]
    expected = {
        (i, side, t)
        for i, (mine, key, when) in enumerate([row for s in (0, 1) for row in newer if row[0] == s])
        for side, k, t in left
        if side != mine and k == key and abs(t - when) <= bound
    }
    words, rows = whole.candidates(runs[1].word, ticks.reach)
    sides = (rows >= whole.left).astype(int)
    found = set(zip(runs[1].at[words].tolist(), sides.tolist(), whole.when[rows].tolist(), strict=True))
    assert expected <= found
    assert (np.diff(words) >= 0).all()


@pytest.mark.parametrize("bound", [0, 10, 1_000])
def test_a_key_that_all_rows_have_is_looked_up_for_about_as_much_as_it_finds(bound: int) -> None:
    count = 20_000
    ticks = Ticks(bound, middle=0)
    run = run_of(np.arange(count) % 2, np.zeros(count), np.arange(count), ticks)
    words, _ = run.candidates(run.word, ticks.reach)
    assert len(words) <= count * (1.1 * bound + 8)
