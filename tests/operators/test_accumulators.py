"""Accumulators against plain loops, at the ends of their types: sums beyond 64 bits, moments that overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.operators import GroupBy
from flux.operators.accumulators import Accumulator, IntSums, Moments
from flux.types.errors import PlanError
from tests.operators.feeding import step_of
from tests.operators.timeline import Timeline, played

SLOTS = 2
LARGE = st.integers(-9, 9) | st.integers(2**62 - 3, 2**63 - 1) | st.integers(-(2**63), -(2**62) + 3)


def zeros(accumulator: Accumulator) -> dict[str, Any]:
    return {name: np.zeros(SLOTS, dtype) for name, dtype in accumulator.fields.items()}


def sums_in(accumulator: IntSums, values: dict[str, Any]) -> list[int]:
    high, low = (accumulator.of(values, field).tolist() for field in ("high", "low"))
    return [(above << 32) + below for above, below in zip(high, low, strict=True)]


@given(st.lists(st.tuples(st.sampled_from(["add", "move", "merge"]), st.lists(LARGE, max_size=6)), max_size=12))
def test_sums_of_integers_are_exact_however_often_they_are_moved_and_merged(steps: list[tuple[str, list[int]]]) -> None:
    sums, expected = IntSums("x"), [0] * SLOTS
    values = zeros(sums)
    for what, numbers in steps:
        slots = np.arange(len(numbers)) % SLOTS
        x = np.array(numbers, np.int64)
        if what == "move":  # To another site, which has state of its own.
            sums = IntSums("x")
            sums.installed(values, np.array([], np.int64))
            sums.installed(values, np.arange(SLOTS))
        elif what == "merge":
            later = IntSums("x")
            added = zeros(later)
            later.add(added, slots, x)
            sums.merge(values, np.arange(SLOTS), added, np.arange(SLOTS))
        if what == "add":
            sums.add(values, slots, x)
        if what != "move":
            for slot, number in zip(slots.tolist(), numbers, strict=True):
                expected[slot] += number
        assert sums_in(sums, values) == expected


def test_small_numbers_do_not_overflow_after_many_batches() -> None:
    sums, each = IntSums("x"), 2**60
    values = zeros(sums)
    for _ in range(40):
        sums.add(values, np.array([0]), np.array([each]))
    assert sums_in(sums, values) == [40 * each, 0]


def test_large_sums_that_were_installed_go_on_without_an_overflow() -> None:
    sums = IntSums("x")
    values = zeros(sums)
    sums.add(values, np.array([0, 1]), np.array([2**61, -(2**61)]))
    for _ in range(20):
        sums = IntSums("x")
        sums.installed(values, np.arange(SLOTS))
        sums.add(values, np.array([0, 1]), np.array([2**61, -(2**61)]))
    assert sums_in(sums, values) == [21 * 2**61, -21 * 2**61]


def test_moments_of_no_values_change_none_that_are_far_from_zero() -> None:
    moments = Moments("x", np.float64)
    values, nothing = zeros(moments), zeros(moments)
    moments.add(values, np.array([0, 0]), np.array([1e200, 1e200]))
    moments.merge(values, np.array([0]), nothing, np.array([0]))
    assert moments.of(values, "squares").tolist() == [0, 0] and moments.of(values, "n").tolist() == [2, 0]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.large_string()])
def test_bytes_and_long_texts_have_an_order(kind: pa.DataType) -> None:
    rows = pa.record_batch({"k": [1, 1, 1], "x": pa.array([b"b", b"a", b"ab"], pa.binary()).cast(kind)})
    step = step_of(GroupBy, rows.schema, ("k",), aggregates={"least": ("min", "x"), "most": ("max", "x")})
    found, _ = played(step, Timeline.of(rows, ("k",), None))
    [*_, (_, last)] = found
    assert [value.encode() if isinstance(value, str) else value for value in last[1:]] == [b"a", b"b"]


@pytest.mark.parametrize("given", [[("sum", "x")], "sum", {}, None])
def test_aggregates_that_are_no_dict_are_refused(given: Any) -> None:
    with pytest.raises(PlanError, match="aggregates is a dict such as"):
        step_of(GroupBy, pa.schema([("k", pa.int64()), ("x", pa.int64())]), ("k",), aggregates=given)
