"""Emitting changes no value: what the declared type cannot hold is refused, however deep it is nested."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.types.arrays import ColumnError, to_arrow_array

AT_FIVE = datetime.datetime(2020, 1, 1, 5)
MIDNIGHT = datetime.datetime(2020, 1, 1)
PLUS_TWO = datetime.timezone(datetime.timedelta(hours=2))
WITH_NS = pd.Timestamp("2020-01-01T00:00:00.000000001")


def emitted(values: Any, kind: Any) -> Any:
    return to_arrow_array(values, pa.field("v", kind))


# A type, a value that it cannot hold, and one that it can.
LOSSY: list[tuple[Any, Any, Any]] = [
    (pa.float32(), 1e300, 1.5),
    (pa.float32(), 2**24 + 1, 2**24),
    (pa.float16(), 1e6, math.inf),
    (pa.float16(), 70_000, 2_048),
    (pa.float16(), 2_049, 1),
    (pa.float32(), Decimal("1e60"), Decimal("1.5")),
    (pa.int64(), 1.5, 1.0),
    (pa.int64(), Decimal("1.5"), Decimal(1)),
    (pa.decimal128(10, 2), 1.234, 1.1),
    (pa.decimal128(10, 0), 1.5, 2.0),
    (pa.decimal128(10, 2), Decimal("1.234"), Decimal("1.1")),
    (pa.date32(), AT_FIVE, MIDNIGHT),
    (pa.date64(), AT_FIVE, datetime.date(2020, 1, 1)),
    (pa.date32(), MIDNIGHT.replace(tzinfo=PLUS_TWO), MIDNIGHT.replace(tzinfo=datetime.UTC)),
    (pa.time64("us"), AT_FIVE, datetime.time(5)),
    (pa.time32("s"), AT_FIVE, datetime.time(5)),
    (pa.time64("us"), datetime.time(5, tzinfo=PLUS_TWO), datetime.time(5)),
    (pa.time32("s"), datetime.time(5, 0, 0, 1), datetime.time(5)),
    (pa.timestamp("s"), AT_FIVE.replace(microsecond=1), AT_FIVE),
    (pa.timestamp("us"), WITH_NS, pd.Timestamp(AT_FIVE)),
    (pa.duration("s"), datetime.timedelta(seconds=1.5), datetime.timedelta(seconds=1)),
    (pa.duration("us"), pd.Timedelta(1, "ns"), pd.Timedelta(1, "us")),
]
# What a type may be nested in, with the value that then holds one.
NESTINGS: list[tuple[Any, Any]] = [
    (lambda kind: kind, lambda value: value),
    (pa.list_, lambda value: [value]),
    (pa.large_list, lambda value: (value, None)),
    (lambda kind: pa.list_(kind, 2), lambda value: [None, value]),
    (lambda kind: pa.struct([("x", kind)]), lambda value: {"x": value}),
    (lambda kind: pa.struct([("x", kind)]), lambda value: (value,)),
    (lambda kind: pa.map_(pa.string(), kind), lambda value: {"a": None, "b": value}),
    (lambda kind: pa.map_(kind, pa.int8()), lambda value: [(value, 1)]),
    (lambda kind: pa.list_(pa.map_(pa.int8(), pa.list_(kind, 1))), lambda value: [{1: [value]}]),
]


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize(("kind", "lost", "kept"), LOSSY)
def test_a_value_that_the_declared_type_cannot_hold_is_refused_however_nested(
    kind: Any, lost: Any, kept: Any, nesting: Any
) -> None:
    around, put = nesting
    holding = around(kind)
    [back] = emitted([put(kept)], holding).to_pylist()
    assert back == emitted([put(kept), None], holding).to_pylist()[0]
    with pytest.raises(ColumnError, match=r"expected .*, got a list"):
        emitted([None, put(kept), put(lost)], holding)


@pytest.mark.parametrize(("kind", "lost", "kept"), LOSSY)
def test_whether_a_value_is_refused_does_not_depend_on_those_beside_it(kind: Any, lost: Any, kept: Any) -> None:
    others = [value for like, _, value in LOSSY if like == kind]
    others += [1.5] if pa.types.is_floating(kind) else []
    together = emitted([*others, kept], kind)
    assert together.to_pylist() == [*(emitted([value], kind).to_pylist()[0] for value in others), together[-1].as_py()]
    with pytest.raises(ColumnError):
        emitted([*others, lost], kind)


@pytest.mark.parametrize(
    ("came", "kind"),
    [
        (np.array([1.0, 1e300]), pa.float32()),
        (np.array([1.0, 1e5], np.float32), pa.float16()),
        (np.array(["2020-01-01T05"], "M8[s]"), pa.date32()),
        (np.array(["2020-01-01T05"], "M8[ns]"), pa.time64("ns")),
        (pa.array([[1.0], None, [1e300]]), pa.list_(pa.float32())),
        (pa.array([[1e300, 1.0], [1.0, 1e300]]).slice(1), pa.list_(pa.float32(), 2)),
        (pa.array([[("a", 1e300)], [("a", 1e300)]], pa.map_(pa.string(), pa.float64())).slice(1), None),
        (pa.array([{"x": AT_FIVE}]), pa.struct([("x", pa.date32())])),
        (pa.array([{"x": 1, "y": 2}]), pa.struct([("x", pa.int64())])),
        (pa.array([["1"]]), pa.list_(pa.int64())),
        (pa.array([{"x": [2]}]), pa.struct([("x", pa.list_(pa.bool_()))])),
    ],
)
def test_nothing_of_an_array_is_lost(came: Any, kind: Any) -> None:
    with pytest.raises(ColumnError, match=r"expected .*, got a"):
        emitted(came, pa.map_(pa.string(), pa.float32()) if kind is None else kind)


@pytest.mark.parametrize(
    ("came", "kind"),
    [
        (pa.array([[1e300], [1.5, None], None]).slice(1), pa.list_(pa.float32())),
        (
            pa.array([[("a", 1e300)], [("b", 1.5)], None], pa.map_(pa.string(), pa.float64())).slice(1),
            pa.map_(pa.large_string(), pa.float32()),
        ),
        (pa.array([{"y": 1, "x": 2.0}, None]), pa.struct([("x", pa.float32()), ("y", pa.int8())])),
        (pa.array([math.inf, -math.inf, None]), pa.float16()),
        (pa.array([MIDNIGHT, None]), pa.date64()),
    ],
)
def test_an_array_whose_values_fit_is_converted(came: Any, kind: Any) -> None:
    made = emitted(came, kind)
    made.validate(full=True)
    assert made.type == kind
    plain = [value.date() if isinstance(value, datetime.datetime) else value for value in came.to_pylist()]
    assert made.to_pylist() == plain


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([[1, 2], None, [], (3,)], pa.list_(pa.int16())),
        ([np.array([1.5, 2]), None, np.array([3])], pa.list_(pa.float32())),
        ([np.array([1, 2], np.int8)], pa.list_(pa.int64(), 2)),
        ([[[1], None], []], pa.list_(pa.list_(pa.int8(), 1))),
        ([{"x": 1}, {"y": "a"}, None, {}], pa.struct([("x", pa.int8()), ("y", pa.string())])),
        ([{"a": [1]}, [("b", None)], None, {}], pa.map_(pa.string(), pa.list_(pa.int8()))),
        ([[pa.scalar(1)], pa.scalar([2])], pa.list_(pa.int64())),
    ],
)
def test_nested_values_are_those_that_arrow_would_make(values: Any, kind: Any) -> None:
    made = emitted(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["ab"], pa.list_(pa.string())),
        ([{"a": 1}], pa.list_(pa.string())),
        ([3], pa.list_(pa.int8())),
        ([[1, 2, 3]], pa.list_(pa.int8(), 2)),
        ([3], pa.struct([("x", pa.int8())])),
        ([(1, 2)], pa.struct([("x", pa.int8())])),
        ([{"x": 1, "y": 2}], pa.struct([("x", pa.int8())])),
        ([[1, 2]], pa.map_(pa.int8(), pa.int8())),
        ([[(1, 2, 3)]], pa.map_(pa.int8(), pa.int8())),
        ([{None: 1}], pa.map_(pa.int8(), pa.int8())),
        ([np.array([2**60 + 1]), np.array([1.5])], pa.list_(pa.float64())),
    ],
)
def test_nested_values_that_do_not_fit_are_refused(values: Any, kind: Any) -> None:
    with pytest.raises(ColumnError, match=r"expected .*, got a list"):
        emitted(values, kind)


def test_nanoseconds_are_kept_where_there_is_room_for_them() -> None:
    for values, kind in (
        ([WITH_NS, None, AT_FIVE], pa.timestamp("ns")),
        ([WITH_NS.tz_localize("UTC"), AT_FIVE], pa.timestamp("ns", "UTC")),
        ([datetime.timedelta(1), pd.Timedelta(1, "ns")], pa.duration("ns")),
    ):
        assert emitted(values, kind).equals(pa.array(values, kind))
        assert emitted([values], pa.list_(kind)).equals(pa.array([values], pa.list_(kind)))


def test_a_date_beside_a_time_is_its_midnight_and_loses_neither() -> None:
    mixed = [datetime.date(2020, 1, 1), AT_FIVE]
    for values in (mixed, mixed[::-1]):
        assert set(emitted(values, pa.timestamp("us")).to_pylist()) == {MIDNIGHT, AT_FIVE}
        with pytest.raises(ColumnError, match="date32"):
            emitted(values, pa.date32())
    with pytest.raises(ColumnError, match=r"datetime\(2020, 1, 1, 5, 0\)"):  # The first tells the type.
        to_arrow_array(mixed)
    with pytest.raises(ColumnError, match=r"datetime\(2020, 1, 1, 5, 0\)"):
        to_arrow_array([[mixed[0]], [AT_FIVE]])


def test_times_without_a_zone_are_utc_and_instants_are_kept() -> None:
    instant = AT_FIVE.replace(tzinfo=PLUS_TWO)
    assert emitted([instant], pa.timestamp("us")).to_pylist() == [datetime.datetime(2020, 1, 1, 3)]
    [berlin] = emitted([AT_FIVE], pa.timestamp("us", "Europe/Berlin")).to_pylist()
    assert berlin == AT_FIVE.replace(tzinfo=datetime.UTC)


@given(st.lists(st.floats(width=64) | st.none()))
def test_of_floats_only_the_last_digits_may_go(values: list[float | None]) -> None:
    try:
        made = emitted(values, pa.float32()).to_pylist()
    except ColumnError:
        assert any(value is not None and 1e38 < abs(value) < math.inf for value in values)
        return
    for value, kept in zip(values, made, strict=True):
        assert (value is None) == (kept is None)
        assert value is None or (math.isinf(value) == math.isinf(kept) and math.isnan(value) == math.isnan(kept))
