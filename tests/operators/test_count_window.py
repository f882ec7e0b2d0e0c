"""CountWindow against a plain loop: any batching, any partitioning by key, moves at any point.

It takes half a minute: hypothesis draws the inputs, and each is computed in two or three ways.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import dmz
from flux.model.batch import Batch
from flux.operators import CountWindow
from flux.types.errors import OperatorError, PlanError
from flux.types.hashing import partition_of
from tests.operators.feeding import PARTITIONS, SHAPES, batch_of, cuts, opened, outputs, rows_of, step_of, tuples

INTS = pa.schema([("app", "int32"), ("src", "int32"), ("dur", "int64")])
FLOATS = INTS.set(2, pa.field("dur", pa.float64()))
KEYS = st.tuples(st.integers(0, 1), st.integers(0, 2))
KEY = ("app", "src")


def plain(rows: list[tuple[Any, Any, Any]], history: int, slide: int) -> list[tuple[int, tuple[Any, ...]]]:
    seen: dict[tuple[Any, Any], list[Any]] = {}
    out = []
    for sn, (app, src, dur) in enumerate(rows):
        values = seen.setdefault((app, src), [])
        values.append(dur)
        count = len(values)
        if count >= history and (count - history) % slide == 0:
            told = [value for value in values[-history:] if value is not None]
            out.append((sn, (app, src, max(told, default=None), sum(told) / len(told) if told else None)))
    return out


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=50)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 7), st.data())
def test_output_is_that_of_a_plain_loop_for_any_batching_and_any_moves(
    shape: str, history: int, slide: int, salt: int, data: st.DataObject
) -> None:
    rows = data.draw(rows_of(shape, KEYS, st.integers(-(2**50), 2**50)))
    batches = data.draw(cuts(len(rows)))
    moves = data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=len(batches)))
    step = step_of(CountWindow, INTS, KEY, history=history, slide=slide)
    found = outputs(step, rows, INTS, lambda row: (row[0] * salt + row[1]) % PARTITIONS, batches, moves)
    assert found == plain(rows, history, slide)


@given(st.lists(st.floats(width=32), max_size=30), st.integers(1, 4), st.data())
def test_floats_are_added_in_row_order_whatever_the_batches(
    values: list[float], history: int, data: st.DataObject
) -> None:
    rows = [(0, 0, value) for value in values]
    step = step_of(CountWindow, FLOATS, KEY, history=history)
    one_by_one = outputs(step, rows, FLOATS, lambda row: 0, [(i, i + 1) for i in range(len(rows))])
    found = outputs(step, rows, FLOATS, lambda row: 0, data.draw(cuts(len(rows))))
    assert repr(found) == repr(one_by_one)
    for i, (_, (*_, greatest, mean)) in enumerate(found):
        window = values[i : i + history]
        assert math.isnan(greatest) if any(map(math.isnan, window)) else greatest == max(window)
        total = window[0]
        for value in window[1:]:
            total += value
        assert mean == total / history or (math.isnan(mean) and math.isnan(total))


WIDE = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**62, 2**63 - 1, -(2**63)])


@given(st.lists(st.tuples(st.just(0), st.integers(0, 1), WIDE), max_size=30), st.integers(1, 5), st.data())
def test_means_are_exact_beyond_64_bits_for_any_batching_and_any_moves(
    rows: list[Any], history: int, data: st.DataObject
) -> None:
    batches = data.draw(cuts(len(rows)))
    moves = data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=len(batches)))
    step = step_of(CountWindow, INTS, KEY, history=history)
    found = outputs(step, rows, INTS, lambda row: row[1], batches, moves)
    # The sum is rounded once, to a float, and then divided.
    exact = []
    for i, (sn, (app, src, greatest, _)) in enumerate(plain(rows, history, 1)):
        values = [dur for _, host, dur in rows[: sn + 1] if host == src][-history:]
        assert i < len(found)
        exact.append((sn, (app, src, greatest, float(sum(values)) / history)))
    assert found == exact


@pytest.mark.parametrize("rows", [1, 777, 4096])
def test_the_flow_of_the_thesis_gives_what_a_plain_loop_gives(rows: int) -> None:
    """Reference: 2.2"""
    packets = dmz.packets(3_000 if rows == 1 else 40_000, seed=3, batch_rows=rows)
    sessions = opened(step_of(dmz.Sessions, dmz.PACKETS, ("src", "dst")))
    windows = opened(step_of(CountWindow, INTS, KEY, level=1, history=2, slide=1))
    found = []
    first = 0
    for packet in packets:
        pids = partition_of(packet.columns[:2], PARTITIONS)
        out = sessions.process(Batch(packet, np.arange(first, first + packet.num_rows), None, pids))
        first += packet.num_rows
        if out is not None:
            out.partition = partition_of([out.column(name) for name in KEY], PARTITIONS)
            out = windows.process(out)
        if out is not None:
            found.append(out.arrow)
    assert pa.Table.from_batches(found, dmz.OUTPUT).equals(dmz.plain_table(packets))


def test_other_key_types_group_by_value() -> None:
    schema = pa.schema([("app", pa.float64()), ("src", pa.timestamp("ms")), ("dur", pa.int16())])
    hosted = opened(step_of(CountWindow, schema, KEY))
    rows = [(0.0, 5, 1), (float("nan"), 5, 2), (-0.0, 5, 3), (float("nan"), 5, 6)]
    out = tuples(hosted.process(batch_of(rows, schema, [0] * 4)))
    assert [row[2:] for row in out] == [(3, 2.0), (6, 4.0)]


def test_a_dropped_partition_begins_anew() -> None:
    hosted = opened(step_of(CountWindow, INTS, KEY))
    row = batch_of([(1, 1, 5)], INTS, [0])
    assert hosted.process(row) is None
    hosted.drop_partition(0)
    assert hosted.process(row) is None
    assert tuples(hosted.process(row)) == [(1, 1, 5, 5.0)]


def test_a_value_other_than_dur_is_named_in_the_output() -> None:
    step = step_of(CountWindow, INTS, ("app",), value="src", history=1)
    assert step.output.names == ["app", "max_src", "avg_src"]
    assert tuples(opened(step).process(batch_of([(1, 2, 3)], INTS, [0]))) == [(1, 2, 2.0)]


@pytest.mark.parametrize(
    "parameters", [{"history": 0}, {"slide": 0}, {"history": 1.5}, {"slide": True}, {"histroy": 3}]
)
def test_impossible_parameters_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        opened(step_of(CountWindow, INTS, KEY, **parameters))


def test_columns_that_are_not_there_are_refused_with_the_plan() -> None:
    with pytest.raises(PlanError, match="'nope'"):
        step_of(CountWindow, INTS, KEY, value="nope")


TEXT = pa.schema([("app", pa.string()), ("src", pa.int32()), ("dur", pa.int64())])
WITH_NULLS = st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 1), st.none() | st.integers(-9, 9))


@given(st.lists(WITH_NULLS, max_size=40), st.integers(1, 4), st.integers(1, 3), st.data())
def test_a_null_is_a_key_like_any_other_and_a_row_without_a_value_counts_as_a_row(
    rows: list[Any], history: int, slide: int, data: st.DataObject
) -> None:
    batches = data.draw(cuts(len(rows)))
    moves = data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=len(batches)))
    step = step_of(CountWindow, TEXT, KEY, history=history, slide=slide)
    partition = dict(zip(["a", "b", None], range(3), strict=True))
    assert outputs(step, rows, TEXT, lambda row: partition[row[0]], batches, moves) == plain(rows, history, slide)


@pytest.mark.parametrize("history", [1, 2, 3])
def test_what_is_null_is_left_out_of_means_of_floats_and_of_sums_beyond_64_bits(history: int) -> None:
    for schema, values in ((FLOATS, [None, -math.inf, None, 1.5]), (INTS, [None, 2**62, None, 2**62, 2**62])):
        rows = [(1, 1, value) for value in values]
        found = outputs(step_of(CountWindow, schema, KEY, history=history), rows, schema, lambda row: 0, [(0, 9)])
        assert found == plain(rows, history, 1)


def test_keys_without_an_order_are_refused_with_advice() -> None:
    schema = INTS.set(0, pa.field("app", pa.list_(pa.int8())))
    with pytest.raises(PlanError, match="Cast it to one of them before the exchange"):
        step_of(CountWindow, schema, KEY)
    with pytest.raises(PlanError, match="Cast it to one of them before the exchange"):
        opened(step_of(CountWindow, None, KEY)).process(batch_of([([1], 1, 2)], schema, [0]))


def test_a_value_that_is_no_number_is_refused() -> None:
    schema = INTS.set(2, pa.field("dur", pa.string()))
    with pytest.raises(PlanError, match="signed integers"):
        step_of(CountWindow, schema, KEY)
    # Where the plan did not know what comes, the run says it.
    with pytest.raises(OperatorError, match="signed integers"):
        opened(step_of(CountWindow, None, KEY)).process(batch_of([(1, 1, "x")], schema, [0]))
