"""Keys of any type: each has its slot, whatever comes and goes, and comes back as it was."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.operators import keys
from flux.operators.key_order import in_order, order_numbers
from flux.operators.keys import KeyTable
from flux.types.errors import PlanError
from flux.wire.state_codec import decode, encode

TYPES: list[tuple[Any, list[Any]]] = [
    (pa.int8(), [-1, 0, 5]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.bool_(), [True, False]),
    (pa.float32(), [-1.5, 0.0, math.inf, math.nan]),
    (pa.string(), ["", "a", "ä", "a\0"]),
    (pa.large_binary(), [b"", b"\0"]),
    (pa.binary(2), [b"ab", b"cd"]),
    (pa.decimal128(9, 2), [Decimal("1.00"), Decimal("-2.50")]),
    (pa.date32(), [datetime.date(1970, 1, 1), datetime.date(2030, 5, 5)]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)]),
    (pa.time64("us"), [datetime.time(1, 2), datetime.time(0)]),
    (pa.duration("ms"), [datetime.timedelta(seconds=-1), datetime.timedelta(0)]),
]


def same(value: Any) -> Any:
    return "nan" if value != value else value


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Any], list[list[tuple[Any, Any]]]]:
    chosen = draw(st.lists(st.sampled_from(TYPES), min_size=2, max_size=2))
    row = st.tuples(*(st.none() | st.sampled_from(values) for _, values in chosen))
    return [kind for kind, _ in chosen], draw(st.lists(st.lists(row, min_size=1, max_size=12), max_size=8))


@settings(deadline=None, max_examples=80)
@given(batches(), st.data())
def test_equal_keys_have_equal_slots_and_come_back_as_they_were(given_batches: Any, data: st.DataObject) -> None:
    kinds, rows_of = given_batches
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "_COMPACT_FROM", data.draw(st.sampled_from([1, 3, 65_536])))
        table = KeyTable("step", {"a": kinds[0], "b": kinds[1]}, {"count": np.int64})
        model: dict[Any, int] = {}
        for rows in rows_of:
            columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
            slots, new = table.find_or_insert(columns, np.zeros(len(rows), np.uint16))
            plain = [tuple(map(same, row)) for row in rows]
            assert new.tolist() == [row not in model for row in plain]
            table.values["count"][slots[new]] = 0
            np.add.at(table.values["count"], slots, 1)
            for row in plain:
                model[row] = model.get(row, 0) + 1
            gone = data.draw(st.sets(st.sampled_from(sorted(model, key=repr)), max_size=3))
            live = table.live
            found = list(zip(*(column.to_pylist() for column in table.keys_of(live)), strict=True))
            place = {tuple(map(same, key)): slot for key, slot in zip(found, live.tolist(), strict=True)}
            assert {key: int(table.values["count"][slot]) for key, slot in place.items()} == model
            table.delete(np.array([place[key] for key in gone], np.int64))
            model = {key: count for key, count in model.items() if key not in gone}
        other = KeyTable("step", {"a": kinds[0], "b": kinds[1]}, {"count": np.int64})
        for piece in table.pieces(0):
            other.install(7, decode(encode(piece, "test")))
        assert other.sizes() == ({7: len(model)} if model else {})
        assert int(other.values["count"][other.live].sum()) == sum(model.values())


@settings(deadline=None)
@given(st.sampled_from(TYPES), st.data())
def test_keys_stand_in_the_order_of_their_values_with_nan_and_nulls_last(kind: Any, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | st.sampled_from(kind[1]), max_size=12))
    order = in_order([*order_numbers(pa.array(values, kind[0])), np.zeros(len(values), np.int64)])
    found = [values[i] for i in order.tolist()]
    plain = sorted(values, key=lambda v: (v is None, v is not None and v != v, 0 if v is None or v != v else v))
    assert repr(found) == repr(plain)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3)), max_size=20))
def test_rows_stand_in_order_however_far_apart_their_numbers_are(rows: list[tuple[int, int]]) -> None:
    columns = [np.array([row[i] for row in rows], np.int64) for i in (0, 1)]
    assert in_order(columns).tolist() == sorted(range(len(rows)), key=lambda i: rows[i])
    assert in_order([columns[1]]).tolist() == sorted(range(len(rows)), key=lambda i: rows[i][1])


def test_nested_values_are_no_keys() -> None:
    with pytest.raises(PlanError, match="key column 'a' is list"):
        KeyTable("step", {"a": pa.list_(pa.int8())}, {})
