"""Rows against a plain model: lists of tuples."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from flux.protocols.messages import Block
from flux.punctuation import Punctuation
from flux.wire.rows import PARTITION, PRODUCER, SN, SUB, Channels, Rows, merge

PRODUCERS, CONSUMERS = 3, 4
Tuple = tuple[int, int, int, int]  # sn, sub, producer, partition

tuples = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 2), st.integers(0, PRODUCERS - 1), st.integers(0, CONSUMERS - 1)),
    max_size=30,
    unique_by=lambda row: row[:3],
).map(sorted)


def rows_of(model: list[Tuple], marks: tuple[int, ...] = ()) -> Rows:
    sn, sub, producer, partition = (list(c) for c in zip(*model, strict=True)) if model else ([], [], [], [])
    return Rows.of(
        pa.record_batch({"value": pa.array([_value(row) for row in model], pa.int64())}),
        np.array(sn, dtype=np.int64),
        np.array(sub, dtype=np.uint64) if any(sub) else None,
        np.array(producer, dtype=np.uint16),
        np.array(partition, dtype=np.uint16),
        tuple(Punctuation(mark, "clock") for mark in marks),
    )


def model_of(rows: Rows) -> list[Tuple]:
    if rows.wide is None:
        return []
    sub = rows.hidden(SUB)
    subs = np.zeros(len(rows), dtype=np.uint64) if sub is None else sub
    columns = (rows.hidden(SN), subs, rows.hidden(PRODUCER), rows.hidden(PARTITION))
    model = list(zip(*(column.tolist() for column in columns), strict=True))
    assert rows.user.column("value").to_pylist() == [_value(row) for row in model]
    return model


@given(tuples, st.integers(0, 13), st.integers(0, 13))
def test_between_keeps_the_rows_and_marks_of_the_range(model: list[Tuple], one: int, other: int) -> None:
    after, upto = sorted((one, other))
    part = rows_of(model, (3, 7)).between(after, upto)
    assert model_of(part) == [row for row in model if after < row[0] <= upto]
    assert [mark.sn for mark in part.marks] == [mark for mark in (3, 7) if after < mark <= upto]


@given(tuples, st.sets(st.integers(0, PRODUCERS - 1)), st.sets(st.integers(0, CONSUMERS - 1)))
def test_select_keeps_the_rows_of_the_channels(model: list[Tuple], producers: set[int], consumers: set[int]) -> None:
    blocks = (Block(producers=tuple(producers), consumers=tuple(consumers)), Block(producers=(0,), consumers=(1,)))
    chosen = rows_of(model).select(Channels(blocks, PRODUCERS, CONSUMERS))
    assert model_of(chosen) == [
        row for row in model if (row[2] in producers and row[3] in consumers) or (row[2], row[3]) == (0, 1)
    ]


@given(tuples, st.lists(st.integers(0, 3), min_size=30, max_size=30))
def test_merge_of_lanes_is_in_order_whatever_lane_a_row_came_by(model: list[Tuple], lanes: list[int]) -> None:
    parts = [rows_of([row for row, lane in zip(model, lanes, strict=False) if lane == n], marks=(5,)) for n in range(4)]
    whole = merge(parts)
    assert model_of(whole) == model
    assert [mark.sn for mark in whole.marks] == [5], "each lane brings the same punctuation; it counts once"


@given(tuples)
def test_encoded_rows_come_back_the_same(model: list[Tuple]) -> None:
    rows = rows_of(model)
    if rows.wide is None:
        assert rows.encode() is None
        return
    decoded = Rows(pa.ipc.read_record_batch(rows.encode(), rows.wide.schema))
    assert model_of(decoded) == model


def _value(row: Tuple) -> int:
    return (row[0] * 31 + row[1]) * 31 + row[2]
