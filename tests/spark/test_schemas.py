"""Schemas as texts, values through them, the order of keys: what Spark does in its JVM, and sites do without one."""

from __future__ import annotations

import datetime
import decimal
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row, types

from flux.spark.operators.ddl import struct_of
from flux.spark.operators.grouping_keys import KeyColumns, group_rows
from flux.spark.operators.key_timers import KeyTimers
from flux.spark.operators.spark_values import Fields, row_type
from flux.spark.operators.unsafe_row_order import byte_order
from flux.spark.source.batch_times import delay_of, is_late
from flux.types.errors import PlanError
from flux.types.to_python import to_python

EVERYTHING = (
    "a timestamp, b timestamp_ntz, c date, d decimal(10,2), e binary, f array<int>, g map<string,int>, "
    "h struct<x:int,y:array<string>>, i float, j byte, k boolean, l array<timestamp>"
)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("id string, count LONG", "struct<id:string,count:bigint>"),
        ("a: int, b: array<int>", "struct<a:int,b:array<int>>"),
        ("struct<a: smallint>", "struct<a:smallint>"),
        ("`a b` decimal(10,2) NOT NULL, c decimal", "struct<a b:decimal(10,2),c:decimal(10,0)>"),
        ("x array<struct<a:int,b:map<string,double>>>", "struct<x:array<struct<a:int,b:map<string,double>>>>"),
        ("v varchar(3) COMMENT 'it\\'s', comment string, not int", "struct<v:varchar(3),comment:string,not:int>"),
        ("a interval day to second, b INTERVAL HOUR", "struct<a:interval day to second,b:interval hour>"),
        ("a interval year to month, b interval month", "struct<a:interval year to month,b:interval month>"),
        ("a interval, v void", "struct<a:interval,v:void>"),
        ("a string collate UTF8_LCASE, b string", "struct<a:string collate UTF8_LCASE,b:string>"),
        ("t timestamp_ntz, u timestamp, d date, b binary", "struct<t:timestamp_ntz,u:timestamp,d:date,b:binary>"),
    ],
)
def test_a_schema_is_read_as_spark_reads_it(text: str, read: str) -> None:
    assert struct_of(text, "it").simpleString() == read


def test_not_null_and_comments_are_kept() -> None:
    [field] = struct_of("a int NOT NULL COMMENT 'why'", "it").fields
    assert not field.nullable
    assert field.metadata == {"comment": "why"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a name"),
        ("a", "a name"),
        ("a foo", "a type"),
        ("a interval second to day", "a smaller unit than second"),
        ("a int b int", "a comma or the end"),
        ("a array<int", "'>'"),
        ("a decimal(x)", "a number"),
        ("a varchar", "'('"),
        ("a int not", "'null'"),
    ],
)
def test_a_schema_that_cannot_be_read_is_shown_with_the_place(text: str, expected: str) -> None:
    with pytest.raises(PlanError, match="the output") as caught:
        struct_of(text, "the output")
    assert f"{expected} was expected" in str(caught.value).replace(" (boolean", " was expected (boolean")


def kept() -> tuple[Fields, tuple[Any, ...]]:
    fields = Fields(struct_of(EVERYTHING, "it"), "it")
    noon = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
    ntz, day, amount = datetime.datetime(2020, 1, 1, 3), datetime.date(2020, 1, 2), decimal.Decimal("1.5")
    given = (noon, ntz, day, amount, bytearray(b"x"), [1, None], {"a": 1}, {"x": 1, "y": ["q"]}, 1.1, 3, True, [noon])
    return fields, fields.keep(given)


def test_a_value_comes_back_as_its_type_says() -> None:
    """As real Spark gave them back."""
    _, value = kept()
    noon = datetime.datetime.fromtimestamp(1714564800)  # Spark's timestamps are naive and local.
    assert value[0] == noon
    assert repr(value[3]) == "Decimal('1.50')"
    assert value[4] == b"x"
    assert repr(value[7]) == "Row(x=1, y=['q'])"
    assert value[8] == float(np.float32(1.1))
    assert value[11] == [noon]


def test_values_survive_a_move() -> None:
    fields, value = kept()
    nothing = (None,) * len(fields.names)
    assert fields.unpack(fields.pack([value, nothing])) == [value, nothing]


def test_a_list_in_the_state_is_nobody_elses() -> None:
    fields = Fields(struct_of("x array<int>", "it"), "it")
    given = [1]
    value = fields.keep((given,))
    given.append(2)
    fields.fresh(value)[0].append(3)
    assert value == ([1],)


@pytest.mark.parametrize("bad", [(1,), (1, 2**40), ("x", 1), (1.5, 1), (True, 1), (1, 2, 3)])
def test_a_value_that_does_not_fit_is_an_error_at_once(bad: tuple[Any, ...]) -> None:
    fields = Fields(struct_of("a long, b int", "it"), "it")
    assert fields.keep((1, 2)) == (1, 2)
    with pytest.raises((TypeError, ValueError), match="it"):
        fields.keep(bad)


def test_numbers_of_numpy_are_pythons() -> None:
    value = Fields(struct_of("a long, b double", "it"), "it").keep((np.int64(4), np.float32(0.5)))
    assert [type(each) for each in value] == [int, float]


def test_rows_are_sparks_rows() -> None:
    row = row_type(("a", "count", "b"))((1, 2, "x"))
    assert row == Row(a=1, count=2, b="x")
    assert isinstance(row, Row)
    assert (row.a, row["count"], row.b, row[2]) == (1, 2, "x", "x")
    assert row.asDict() == {"a": 1, "count": 2, "b": "x"}
    assert repr(row) == "Row(a=1, count=2, b='x')"
    assert pickle.loads(pickle.dumps(row)) == row
    assert callable(row.count)  # A method hides the column, as in Spark.
    with pytest.raises(AttributeError):
        _ = row.c


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2]),
        pa.array([1, None]),
        pa.array(["x", None]),
        pa.array([b"x"], pa.binary(1)),
        pa.array([1.5, None]),
    ],
)
def test_columns_become_what_arrow_makes_of_them(column: Any) -> None:
    assert to_python(column) == column.to_pylist()


def test_map_keys_come_in_the_order_of_sparks_state_store() -> None:
    """As real Spark gave them: little end first, so 256 comes before 1."""
    order = byte_order([field.dataType for field in struct_of("a int, b string", "it")])
    in_order = [(256, "b"), (1, "a"), (1, "b"), (1, "bb"), (2, "b"), (5, "b"), (7, "t"), (300, "b"), (-1, "b")]
    assert sorted(sorted(in_order), key=order) == in_order


def test_groups_are_in_sparks_order_and_rows_keep_theirs() -> None:
    keys = KeyColumns(("k",))
    rows = pa.record_batch({"k": pa.array([2.0, None, float("nan"), -0.0, 0.0, 2.0]), "n": range(6)})
    keys.learn(rows.schema)
    groups = group_rows(rows, np.zeros(6, np.uint16), keys)
    found = [rows["n"].to_pylist() for rows in map(groups.rows.slice, groups.starts, np.diff([*groups.starts, 6]))]
    assert found == [[1], [3, 4], [0, 5], [2]]
    assert repr(groups.keys) == "[(None,), (0.0,), (2.0,), (nan,)]"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "ab", None]), st.integers(-2, 2)), max_size=30))
def test_groups_are_what_sorting_by_partition_and_key_gives(rows: list[tuple[int, Any, int]]) -> None:
    keys = KeyColumns(("s", "i"))
    columns = {"s": pa.array([s for _, s, _ in rows], pa.string()), "i": pa.array([i for *_, i in rows], pa.int32())}
    batch = pa.record_batch({**columns, "n": pa.array(range(len(rows)), pa.int64())})
    keys.learn(batch.schema)
    groups = group_rows(batch, np.array([pid for pid, *_ in rows], np.uint16), keys)
    expected = sorted(
        range(len(rows)), key=lambda n: (rows[n][0], rows[n][1] is not None, rows[n][1] or "", rows[n][2])
    )
    assert groups.rows["n"].to_pylist() == expected
    assert [(pid, *key) for pid, key in zip(groups.partitions.tolist(), groups.keys, strict=True)] == list(
        dict.fromkeys(rows[n] for n in expected)
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 6)), max_size=60))
def test_timers_are_a_set_that_expires_in_order(steps: list[tuple[bool, int, int]]) -> None:
    timers, model = KeyTimers(lambda key: key), set[tuple[int, int]]()
    for is_set, key, at in steps:
        (timers.register if is_set else timers.delete)((key,), at)
        (model.add if is_set else model.discard)((at, key))
        assert timers.of((key,)) == sorted(a for a, k in model if k == key)
    assert timers.take_expired(4) == [(at, (key,)) for at, key in sorted(model) if at <= 4]
    assert timers.take_expired(4) == []
    assert sorted(timers.all()) == sorted(((key,), at) for at, key in model)


def test_a_row_is_late_up_to_the_watermark() -> None:
    column = pa.array([999, 1_000, 1_000_000, 1_000_001, None], pa.timestamp("us", "UTC"))
    assert is_late(column, 1_000).tolist() == [True, True, True, False, False]
    assert is_late(pa.array([1_000, 1_001]), 1_000).tolist() == [True, False]


@pytest.mark.parametrize("delay", ["ten seconds", "10 years", -1, True, None])
def test_a_delay_that_is_none_is_refused(delay: Any) -> None:
    with pytest.raises(PlanError, match="10 seconds"):
        delay_of(delay)


def test_types_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(PlanError, match="interval"):
        Fields(types.StructType([types.StructField("x", types.CalendarIntervalType())]), "it")
