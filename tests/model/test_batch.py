"""Batches: what an operator reads, and what it may emit."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.model.batch import Batch, punctuation_rows, row_type
from flux.types.arrays import ColumnError, record_batch_of
from flux.types.errors import OperatorError
from flux.wire.state_codec import decode, encode

FIELD = [np.uint64(48), np.uint64(32), np.uint64(16), np.uint64(0)]


def batch(columns: dict[str, Any], sub: Any = None, level: int = 0, output: Any = None, sn: Any = None) -> Batch:
    arrow = pa.RecordBatch.from_pydict(columns)
    rows = arrow.num_rows
    numbers = np.arange(100, 100 + rows) if sn is None else np.asarray(sn, np.int64)
    subs = None if sub is None else np.asarray(sub, np.uint64)
    return Batch(arrow, numbers, subs, np.arange(rows, dtype=np.uint16) % 3, level, output, "step")


# Reading.


def test_a_column_is_a_read_only_view() -> None:
    b = batch({"n": [1, 2, 3]})
    assert b["n"].tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        b["n"][0] = 9
    assert b["n"].__array_interface__["data"][0] == b.arrow.column(0).buffers()[1].address


def test_nulls_are_masked_and_keep_the_type() -> None:
    b = batch({"n": pa.array([1, None], pa.int16()), "t": pa.array([None, 5], pa.timestamp("s"))})
    assert b["n"].dtype == np.int16
    assert np.ma.getmaskarray(b["n"]).tolist() == [False, True]
    assert b["t"].dtype == np.dtype("M8[s]")
    assert np.ma.getmaskarray(b["t"]).tolist() == [True, False]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_strings_are_objects(text: Any) -> None:
    b = batch({"s": pa.array(["a", "b"]).cast(text)})
    assert b["s"].dtype == object
    assert b["s"].tolist() == ["a", "b"]


def test_fixed_binary_is_bytes_of_two_dimensions() -> None:
    b = batch({"data": pa.array([b"xx", b"Sa", b"Eb"], pa.binary(2))}).slice(1, 3)
    assert b["data"].shape == (2, 2)
    assert b["data"][:, 0].tolist() == list(b"SE")


def test_rows_are_named_tuples_of_python_values() -> None:
    day = datetime.date(2004, 3, 1)
    rows = list(batch({"n": [1, None], "day": [day, day]}).rows())
    assert (rows[0].n, rows[0].day, rows[1].n) == (1, day, None)


def test_a_missing_column_is_named_with_those_there_are() -> None:
    with pytest.raises(KeyError, match=r"'m'.*n, k"):
        batch({"n": [1], "k": [2]})["m"]


# Emitting.


def test_without_origin_row_i_stems_from_row_i() -> None:
    out = batch({"n": [1, 2]}).emit({"m": [10, 20]})
    assert out is not None
    assert (out.sn.tolist(), out.partition.tolist(), out.sub) == ([100, 101], [0, 1], None)


def test_outputs_take_sn_and_partition_of_their_origin() -> None:
    out = batch({"n": [1, 2, 3, 4]}).emit({"m": [1, 3]}, origin=[1, 3])
    assert out is not None
    assert (out.sn.tolist(), out.partition.tolist(), out.sub) == ([101, 103], [1, 0], None)


@given(st.lists(st.integers(0, 4), max_size=6), st.integers(0, 3))
def test_sub_orders_the_outputs_of_one_row_at_the_steps_level(fan_out: list[int], level: int) -> None:
    inherited = 5 << 48 if level else 0
    b = batch({"n": fan_out}, sub=[inherited] * len(fan_out), level=level)
    origin = [i for i, count in enumerate(fan_out) for _ in range(count)]
    out = b.emit({"m": origin}, origin)
    if not origin:
        assert out is None
        return
    assert out is not None and out.sub is not None
    expected = [inherited + (j << int(FIELD[level])) for count in fan_out for j in range(count)]
    assert out.sub.tolist() == expected
    assert out.ordered() is out


def test_emitting_nothing_is_none() -> None:
    assert batch({"n": [1]}).emit({"m": []}, origin=[]) is None
    assert batch({"n": [1]}).emit({"m": []}) is None


@pytest.mark.parametrize("origin", [[1, 0], [0, 2], [-1, 0], [0], [0.0, 1.0], [[0, 1]]])
def test_a_wrong_origin_is_refused(origin: Any) -> None:
    with pytest.raises(OperatorError, match="origin"):
        batch({"n": [1, 2]}).emit({"m": [1, 2]}, origin)


def test_other_lengths_need_an_origin() -> None:
    with pytest.raises(OperatorError, match=r"3 rows for a batch of 2 without `origin`"):
        batch({"n": [1, 2]}).emit({"m": [1, 2, 3]})


def test_columns_have_one_length() -> None:
    with pytest.raises(OperatorError, match="one length"):
        batch({"n": [1, 2]}).emit({"m": [1, 2], "k": [1]}, [0, 1])


def test_more_outputs_of_one_row_than_fit_are_refused() -> None:
    b = batch({"n": [1, 2]})
    assert b.emit({"m": np.zeros(65_536)}, np.zeros(65_536, np.int64)) is not None
    with pytest.raises(OperatorError, match="65536") as caught:
        b.emit({"m": np.zeros(65_537)}, np.ones(65_537, np.int64))
    assert (caught.value.step, caught.value.partition, caught.value.row) == ("step", 1, 101)


def test_a_fifth_one_to_many_step_takes_a_further_word_once_it_is_one() -> None:
    b = batch({"n": [1, 2]}, sub=[5, 6], level=4)
    one, two = b.emit({"m": [1]}, [1]), b.emit({"m": [1, 2]}, [1, 1])
    assert one is not None and one.sub is not None and one.sub.tolist() == [6]
    assert two is not None and two.sub is not None and two.sub.tolist() == [[6, 0], [6, 1 << 48]]


# Casting.

SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string())])


def test_values_are_cast_to_the_declared_schema_in_its_order() -> None:
    out = batch({"n": [1, 2]}, output=SCHEMA).emit({"b": ["x", None], "a": np.array([1, 2], np.int64)})
    assert out is not None
    assert out.arrow.schema == SCHEMA
    assert out.arrow.to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


@pytest.mark.parametrize(
    "values",
    [
        np.array([2**31]),
        np.array([0.5]),
        np.array([0.5], object),
        np.array(["1"], object),
        np.array([b"1"], object),
        [2**31],
        [2**70],
        [0.5],
        ["1"],
        pa.array(["1"]),
        7,
    ],
)
def test_values_that_do_not_fit_are_refused_with_step_column_expected_and_came(values: Any) -> None:
    with pytest.raises(OperatorError, match=r"step 'step'.*'a': expected int32, got"):
        batch({"n": [1]}, output=SCHEMA).emit({"a": values, "b": ["x"]})


@pytest.mark.parametrize("columns", [{"a": [1]}, {"a": [1], "b": ["x"], "c": [1]}, {}])
def test_exactly_the_declared_columns_are_emitted(columns: dict[str, Any]) -> None:
    with pytest.raises(OperatorError, match="declared output has the columns a, b"):
        batch({"n": [1]}, output=SCHEMA).emit(columns)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.uint64(), 2**64 - 1),
        (pa.int8(), 1.0),
        (pa.float32(), 3),
        (pa.decimal128(5, 2), Decimal("1.5")),
        (pa.date32(), datetime.date(2004, 3, 1)),
        (pa.timestamp("s"), datetime.datetime(2004, 3, 1)),
        (pa.large_string(), "x"),
        (pa.binary(2), b"ab"),
        (pa.list_(pa.int16()), [1, 2]),
        (pa.struct([("x", pa.int8())]), {"x": 1}),
        (pa.bool_(), True),
    ],
)
def test_python_values_take_the_declared_type(kind: Any, value: Any) -> None:
    # Filled one by one, because numpy would make a second dimension of a list.
    objects = np.empty(2, object)
    objects[0] = objects[1] = value
    for values in ([value, None], np.ma.MaskedArray(objects, [False, True])):
        out = batch({"n": [1, 2]}, output=pa.schema([("v", kind)])).emit({"v": values})
        assert out is not None
        assert out.arrow.column(0).type == kind
        assert out.arrow.column(0).to_pylist() == [value, None]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.int64()), [1.5]),
        (pa.struct([("x", pa.int8())]), {"x": 1, "y": 2}),
        (pa.list_(pa.struct([("x", pa.int8())])), [{"x": 0.5}]),
    ],
)
def test_of_nested_values_nothing_is_cut_off(kind: Any, value: Any) -> None:
    with pytest.raises(OperatorError, match="'v': expected"):
        batch({"n": [1]}, output=pa.schema([("v", kind)])).emit({"v": [value]})


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, 1, 2], pa.int64()),
        ([1.0, 2.0], pa.float64()),
        (np.array([None, 1, 2], object), pa.int64()),
        ((value for value in (1, 2)), pa.int64()),
        ([[1], [2]], pa.list_(pa.int64())),
        ([None, None], pa.null()),
        ([[], [None], [1.5]], pa.list_(pa.float64())),
        ([{"x": None, "y": 1}, {"x": "a", "y": 2}], pa.struct([("x", pa.string()), ("y", pa.int64())])),
        (pa.array(["a"]).dictionary_encode(), pa.string()),
        (pa.nulls(1), pa.null()),
    ],
)
def test_the_first_value_tells_the_type_of_undeclared_output(values: Any, kind: Any) -> None:
    rows = batch({"n": [1, 2, 3]})
    out = rows.emit({"v": values}, origin=np.zeros(len(values) if hasattr(values, "__len__") else 2, np.int64))
    assert out is not None
    assert out.arrow.column(0).type == kind


@pytest.mark.parametrize(
    "values",
    [
        [1, 1.5],
        [None, 1, 2.0],
        [1.0, 2],
        [[1], [2.0]],
        [1, "x"],
        ["x", 1],
        [1, 2**63],
        [2**63],
        ["a", b"b"],
        [[1], [1.5]],
        [{"x": 1}, {"y": 1}],
    ],
)
def test_values_that_do_not_fit_the_first_are_refused(values: list[Any]) -> None:
    with pytest.raises(OperatorError, match="'v': "):
        batch({"n": [1, 2]}).emit({"v": values}, origin=[0] * len(values))


@pytest.mark.parametrize(("kind", "values"), [(pa.bool_(), [2]), (pa.string(), [1]), (pa.string(), np.array([1.5]))])
def test_values_are_neither_printed_nor_judged(kind: Any, values: Any) -> None:
    with pytest.raises(OperatorError, match="not converted"):
        batch({"n": [1]}, output=pa.schema([("v", kind)])).emit({"v": values})


def test_a_column_declared_without_nulls_takes_none() -> None:
    strict = pa.schema([pa.field("a", pa.int32(), nullable=False)])
    with pytest.raises(OperatorError, match="without nulls, got 1"):
        batch({"n": [1]}, output=strict).emit({"a": [None]})


def test_without_a_schema_types_are_those_of_the_values() -> None:
    out = batch({"n": [1]}).emit({"m": np.array([1], np.int16), "s": ["x"]})
    assert out is not None
    assert out.arrow.schema == pa.schema([("m", pa.int16()), ("s", pa.string())])


def test_what_was_read_can_be_emitted() -> None:
    columns = {
        "fixed": pa.array([b"ab", None], pa.binary(2)),
        "n": pa.array([None, 2], pa.int8()),
        "s": pa.array(["x", None]),
        "t": pa.array([5, None], pa.timestamp("us")),
    }
    b = batch(columns)
    out = b.emit({name: b[name] for name in columns})
    assert out is not None
    assert out.arrow.equals(b.arrow)


# Rows.

MICRO, NANO = 1_577_836_800_000_001_000, 1_577_836_800_000_001_001
AT = datetime.datetime(2020, 1, 1, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("kind", "exact", "finer"),
    [
        (pa.timestamp("ns"), AT, pd.Timestamp(NANO)),
        (pa.timestamp("ns", "UTC"), AT.replace(tzinfo=datetime.UTC), pd.Timestamp(NANO, tz="UTC")),
        (pa.duration("ns"), AT - datetime.datetime(1970, 1, 1), pd.Timedelta(NANO)),
    ],
)
def test_rows_have_times_of_the_standard_library_where_these_hold_them_and_else_of_pandas(
    kind: Any, exact: Any, finer: Any
) -> None:
    for stored, values in (
        ([MICRO, None], [exact, None]),
        ([NANO, None, MICRO], [finer, None, exact]),
    ):
        column = pa.array(stored, kind)
        nested = pa.array([[None], stored], pa.list_(kind))
        flat = [row.t for row in batch({"t": column}).rows()]
        [_, [inner]] = [list(row) for row in batch({"t": nested}).rows()]
        for got in (flat, inner):
            assert got == values and list(map(type, got)) == list(map(type, values))


def test_a_time_of_day_with_nanoseconds_has_no_value_of_python_and_is_not_cut_off() -> None:
    fine, coarse = (pa.array([stored, None], pa.time64("ns")) for stored in (1_001, 1_000))
    assert [row.t for row in batch({"t": coarse}).rows()] == [datetime.time(0, 0, 0, 1), None]
    for column in (fine, pa.array([{"x": 1_001}], pa.struct([("x", pa.time64("ns"))]))):
        with pytest.raises(OperatorError, match=r"column 't': .*datetime.time has no nanoseconds"):
            list(batch({"t": column}).rows())


# Order.

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), max_size=12)


@given(ROWS)
def test_ordered_is_a_stable_sort_by_sn_sub_and_partition(rows: list[tuple[int, int, int]]) -> None:
    sn, sub, partition = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    arrow = pa.RecordBatch.from_pydict({"place": pa.array(range(len(rows)), pa.int64())})
    b = Batch(arrow, sn, sub.astype(np.uint64), partition.astype(np.uint16)).ordered()
    assert b["place"].tolist() == sorted(range(len(rows)), key=rows.__getitem__)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_rows_of_a_punctuation_are_numbered_within_their_partition(partition: list[int]) -> None:
    arrow = pa.RecordBatch.from_pydict({"place": list(range(len(partition)))})
    out = punctuation_rows(arrow, 7, np.array(partition, np.uint16), level=1)
    index = [partition[:i].count(pid) for i, pid in enumerate(partition)]
    expected = sorted(range(len(partition)), key=lambda i: (index[i], partition[i]))
    assert out.sub is not None
    assert out["place"].tolist() == expected
    assert (out.sub >> FIELD[1]).tolist() == [index[i] for i in expected]
    assert set(out.sn.tolist()) == {7}


def test_concat_keeps_rows_and_their_places() -> None:
    joined = Batch.concat([batch({"n": [1, 2]}), batch({"n": [3]}, sub=[9])])
    assert joined["n"].tolist() == [1, 2, 3]
    assert joined.sub is not None and joined.sub.tolist() == [0, 0, 9]


def test_a_punctuation_may_cause_any_number_of_rows_and_each_partition_keeps_its_order() -> None:
    count = 70_000
    arrow = pa.record_batch({"n": np.arange(2 * count)})
    out = punctuation_rows(arrow, 7, np.repeat(np.array([3, 1], np.uint16), count), level=0)
    assert set(out.sn.tolist()) == {7}
    for partition, first in ((3, 0), (1, count)):
        assert out["n"][out.partition == partition].tolist() == list(range(first, first + count))
    sub = out.sub
    assert sub is not None
    assert (np.diff((sub >> FIELD[0]).astype(np.int64)) >= 0).all()


@pytest.mark.parametrize("values", [[{}], [None, {}], [{}, {"a": 1}], [[{}]]])
def test_an_empty_dict_in_undeclared_output_is_refused_by_what_is_missing(values: list[Any]) -> None:
    with pytest.raises(ColumnError, match=r"empty dict does not show which fields there are\. Declare `output`"):
        record_batch_of({"v": values})


def test_columns_whose_names_are_not_identifiers_are_taken_by_name() -> None:
    names = ("n", "unit price", "class", "get", "_x")
    row = row_type(names)._make([1, 2.5, "a", "got", None])
    assert [row[name] for name in names] == [*row] == [1, 2.5, "a", "got", None]
    assert (row.n, row[1], row[-1], row[1:3], row.get) == (1, 2.5, None, (2.5, "a"), "got")
    assert row._asdict() == dict(zip(names, row, strict=True))
    assert row == (1, 2.5, "a", "got", None) and hash(row) == hash((1, 2.5, "a", "got", None))
    with pytest.raises(KeyError, match="this row has no column 'price'; its columns are n, unit price"):
        row["price"]
    with pytest.raises(TypeError):
        row[1.5]
    plain = row_type(("n", "unit price"))._make([1, 2.5])
    assert plain.get("unit price") == 2.5 and plain.get("price") is None and plain.get("price", 0) == 0


def test_a_row_that_is_kept_as_state_has_its_columns_after_a_move() -> None:
    row = row_type(("n", "unit price"))._make([1, 2.5])
    moved = decode(encode([row], "a row"))
    [again] = moved
    assert again == row and again["unit price"] == 2.5 and again.n == 1
