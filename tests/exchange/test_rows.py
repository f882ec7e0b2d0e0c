"""Rows against a plain model: lists of tuples."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.exchange import channel_mask
from flux.exchange.channel_mask import ChannelMask
from flux.exchange.edge_bodies import make_body
from flux.exchange.merge import SchemaConflict, merge, settle
from flux.exchange.rows import PARTITION, PRODUCER, SN, SUB, Rows
from flux.model.punctuation import Punctuation
from flux.protocols.messages import Block

PRODUCERS, CONSUMERS = 3, 4
Tuple = tuple[int, int, int, int]  # sn, sub, producer, partition

tuples = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 2), st.integers(0, PRODUCERS - 1), st.integers(0, CONSUMERS - 1)),
    max_size=30,
    unique_by=lambda row: row[:3],
).map(sorted)


def rows_of(model: list[Tuple], punctuations: tuple[int, ...] = ()) -> Rows:
    sn, sub, producer, partition = (list(c) for c in zip(*model, strict=True)) if model else ([], [], [], [])
    return Rows.of(
        pa.record_batch({"value": pa.array([_value(row) for row in model], pa.int64())}),
        np.array(sn, dtype=np.int64),
        np.array(sub, dtype=np.uint64) if any(sub) else None,
        np.array(producer, dtype=np.uint16),
        np.array(partition, dtype=np.uint16),
        tuple(Punctuation(mark, "clock") for mark in punctuations),
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
    assert [mark.sn for mark in part.punctuations] == [mark for mark in (3, 7) if after < mark <= upto]


@given(tuples, st.sets(st.integers(0, PRODUCERS - 1)), st.sets(st.integers(0, CONSUMERS - 1)))
def test_select_keeps_the_rows_of_the_channels(model: list[Tuple], producers: set[int], consumers: set[int]) -> None:
    blocks = (Block(producers=tuple(producers), consumers=tuple(consumers)), Block(producers=(0,), consumers=(1,)))
    chosen = rows_of(model).select(ChannelMask(blocks, PRODUCERS, CONSUMERS))
    assert model_of(chosen) == [
        row for row in model if (row[2] in producers and row[3] in consumers) or (row[2], row[3]) == (0, 1)
    ]


def blocks_of(producers: int, consumers: int) -> st.SearchStrategy[tuple[Block, ...]]:
    some = st.builds(
        lambda p, c: Block(producers=tuple(p), consumers=tuple(c)),
        st.sets(st.integers(0, producers - 1)),
        st.sets(st.integers(0, consumers - 1)),
    )
    return st.lists(some, max_size=4).map(tuple)


@pytest.mark.parametrize("table_max", [0, 1 << 18])
@pytest.mark.parametrize("producers", [1, 3])
@given(st.data())
def test_channels_are_those_of_their_blocks(producers: int, table_max: int, data: st.DataObject) -> None:
    consumers = 4
    blocks = data.draw(blocks_of(producers, consumers))
    repeat = data.draw(st.sampled_from([1, 40]))  # Of more than 64 blocks, there is more than one word.
    model = {(p, c) for block in blocks for p in block.producers for c in block.consumers}
    with mock.patch.object(channel_mask, "_TABLE_MAX", table_max):
        channels = ChannelMask(blocks * repeat, producers, consumers)
    every = [(p, c) for p in range(producers) for c in range(consumers)]
    found = channels.mask(*(np.array(ends, np.uint16) for ends in zip(*every, strict=True)))
    assert found.tolist() == [channel in model for channel in every]
    assert channels.everything == (len(model) == len(every))


def test_the_size_of_channels_grows_with_partitions_and_not_with_their_pairs() -> None:
    most = 65_535
    odd, even = tuple(range(1, most, 2)), tuple(range(0, most, 2))
    blocks = (Block(producers=odd, consumers=even), Block(producers=even, consumers=odd))
    tracemalloc.start()
    channels = ChannelMask(blocks, most, most)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100 * most
    assert not channels.everything
    ends = np.array([0, 1, 65_534], np.uint16), np.array([1, 3, 65_533], np.uint16)
    assert channels.mask(*ends).tolist() == [True, False, True]


def test_what_the_users_fields_say_is_kept_behind_hidden_columns() -> None:
    schema = pa.schema([pa.field("value", pa.int64(), nullable=False, metadata={"unit": "s"})], metadata={"of": "us"})
    user = pa.record_batch([[1, 2]], schema=schema)
    place = np.zeros(2, np.uint16)
    one, two = (
        Rows.of(user, np.array(sn), sub, place, place) for sn, sub in (([1, 4], None), ([2, 3], np.ones(2, "u8")))
    )
    for rows in (one, two, merge([one, two])):
        assert rows.user.schema.equals(schema, check_metadata=True)


def test_lanes_whose_columns_differ_are_an_operator_error_that_names_both() -> None:
    place = np.zeros(1, np.uint16)
    values = pa.record_batch({"v": [1]}), pa.record_batch({"v": [1.5]})
    parts = [Rows.of(user, np.array([sn]), None, place, place) for sn, user in enumerate(values)]
    with pytest.raises(SchemaConflict, match="columns v int64 from one site and v double from another"):
        merge(parts)


@given(tuples, st.lists(st.integers(0, 3), min_size=30, max_size=30))
def test_merge_of_lanes_is_in_order_whatever_lane_a_row_came_by(model: list[Tuple], lanes: list[int]) -> None:
    parts = [
        rows_of([row for row, lane in zip(model, lanes, strict=False) if lane == n], punctuations=(5,))
        for n in range(4)
    ]
    whole = merge(parts)
    assert model_of(whole) == model
    assert [mark.sn for mark in whole.punctuations] == [5], "each lane brings the same punctuation; it counts once"


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


# Bodies for several edges, and lanes of several edges.


def test_a_body_for_several_edges_has_its_marks_on_all_of_them() -> None:
    rows = rows_of([(1, 0, 0, 1), (2, 0, 1, 0)], (3,))
    body = make_body((4, 7), {7: rows}, rows.punctuations)
    assert body.on(7) is rows
    assert (len(body.on(4)), body.on(4).punctuations) == (0, rows.punctuations)
    assert len(body) == 2


def test_a_body_for_one_edge_is_its_rows() -> None:
    rows = rows_of([(1, 0, 0, 1)])
    assert make_body((4,), {4: rows}) is rows
    assert rows.on(4) is rows


@given(st.lists(tuples, min_size=1, max_size=4), st.data())
def test_lanes_of_several_edges_are_merged_by_number_sub_edge_and_producer(
    edges: list[list[Tuple]], data: st.DataObject
) -> None:
    """A union in a plain computation: all rows, sorted; a row's consumer partition tells its edge here."""
    model, parts, numbers = [], [], []
    for edge, rows in enumerate(edges):
        own = [(sn, sub, producer, edge) for sn, sub, producer, _ in rows]
        model += own
        owner = data.draw(st.lists(st.integers(0, 1), min_size=PRODUCERS, max_size=PRODUCERS))
        for lane in (0, 1):
            parts.append(rows_of([row for row in own if owner[row[2]] == lane], (5,)))
            numbers.append(edge)
    order = data.draw(st.permutations(range(len(parts))))
    whole = merge([parts[i] for i in order], [numbers[i] for i in order])
    assert model_of(whole) == sorted(model, key=lambda row: (row[0], row[1], row[3], row[2]))
    assert [mark.sn for mark in whole.punctuations] == [5]


CELLS: dict[str, Callable[[int], Any]] = {"number": int, "list": lambda v: [v], "struct": lambda v: {"x": v}}


def settled_rows(given: list[Tuple], kind: str) -> Rows:
    """Rows of these numbers, subs, producers and values, in the order in which they came."""
    sn, sub, producer, values = (list(column) for column in zip(*given, strict=True))
    user, where = pa.record_batch({"v": [CELLS[kind](value) for value in values]}), np.array(producer, np.uint16)
    rows = settle(Rows.of(user, np.array(sn), np.array(sub, np.uint64), where, where, (Punctuation(1, "clock", 5),)))
    assert rows.punctuations == (Punctuation(1, "clock", 5),)
    return rows


@pytest.mark.parametrize("kind", CELLS)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 1), st.integers(0, 1), st.integers(0, 9)), min_size=1, max_size=12
    ),
    st.randoms(use_true_random=False),
)
def test_settled_rows_do_not_depend_on_which_came_first(kind: str, model: list[Tuple], rng: random.Random) -> None:
    one = settled_rows(sorted(model, key=lambda row: row[0]), kind)
    other = settled_rows(sorted(rng.sample(model, len(model)), key=lambda row: row[0]), kind)
    assert one.wide.equals(other.wide)
    keys = [one.hidden(name).tolist() for name in (SN, SUB, PRODUCER)]
    assert list(zip(*keys, strict=True)) == sorted(row[:3] for row in model)


def test_rows_that_are_in_order_are_settled() -> None:
    user, where = pa.record_batch({"v": [3, 1]}), np.zeros(2, np.uint16)
    rows = Rows.of(user, np.array([1, 2]), None, where, where)
    assert settle(rows) is rows
    assert settle(empty := Rows(None)) is empty
