"""Columns as Python's values: the same as Arrow makes one by one, to the type, the zone and the fold."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flux.types.to_python import to_python

NUMBERS = st.integers(-(2**63), 2**63 - 1)
NEAR = st.integers(-(10**15), 10**15)
KINDS = [
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us") for zone in (None, "UTC", "Europe/Berlin", "-03:30")),
    *(pa.duration(unit) for unit in ("s", "ms", "us")),
    pa.date64(),
    pa.int64(),
]


def shown(values: list[Any]) -> list[str]:
    """With what `==` does not see: types, zones, and which of an hour that comes twice it is."""
    return [f"{type(value)} {value!r} {getattr(value, 'fold', '')}" for value in values]


def check(column: Any) -> None:
    """Whatever Arrow says, or cannot say, is said here."""
    try:
        expected = column.to_pylist()
    except (OverflowError, ValueError) as error:
        with pytest.raises(type(error)):
            to_python(column)
    else:
        assert shown(to_python(column)) == shown(expected)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(st.lists(NUMBERS | NEAR | st.none(), max_size=8))
@example([])
@example([None])
@example([-(2**63), None])
@example([2**63 - 1])
@example([1_698_541_200_000_000 + n * 1_800_000_000 for n in range(6)])  # The hour that comes twice in Berlin.
@example([253_402_300_799_999_999])
@example([253_402_300_799_999_999 + 1])
@example([-62_135_596_800_000_000])
@example([-62_135_596_800_000_000 - 1])
def test_numbers_of_times_are_the_values_that_arrow_makes_of_them(kind: Any, numbers: list[int | None]) -> None:
    check(pa.array(numbers, pa.int64()).cast(kind))


@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-800_000, 3_000_000) | st.none(), max_size=8))
def test_dates_are_the_values_that_arrow_makes_of_them(days: list[int | None]) -> None:
    check(pa.array(days, pa.int32()).cast(pa.date32()))


@given(st.lists(st.binary(min_size=3, max_size=3) | st.none(), max_size=8), st.integers(0, 3))
def test_bytes_of_fixed_width_keep_their_zeros(values: list[bytes | None], start: int) -> None:
    check(pa.array(values, pa.binary(3)).slice(start))
    assert to_python(pa.array([b"a\0\0", None], pa.binary(3))) == [b"a\0\0", None]


@pytest.mark.parametrize("kind", [pa.decimal128(9, 2), pa.decimal256(9, 2)], ids=str)
@given(st.lists(st.decimals(-9_999, 9_999, places=2, allow_nan=False) | st.none(), max_size=8))
def test_decimals_keep_their_digits(kind: Any, values: list[Decimal | None]) -> None:
    check(pa.array(values, kind))


@pytest.mark.parametrize(
    "values",
    [["a", None, "b", "a"], [datetime.date(2020, 1, 1), None], [1.5, None, 1.5], [b"a", b"a"]],
)
def test_values_in_a_dictionary_are_those_it_stands_for(values: list[Any]) -> None:
    encoded = pa.array(values).dictionary_encode()
    assert shown(to_python(encoded)) == shown(values)
    assert shown(to_python(encoded.slice(1))) == shown(values[1:])


def test_values_in_dictionaries_of_several_chunks_are_those_they_stand_for() -> None:
    column = pa.chunked_array([pa.array(["a", None]).dictionary_encode(), pa.array(["b", "a"]).dictionary_encode()])
    assert to_python(column) == ["a", None, "b", "a"]
    assert to_python(pa.chunked_array([], column.type)) == []


FINE = [*(pa.timestamp("ns", zone) for zone in (None, "UTC", "Europe/Berlin", "-03:30")), pa.duration("ns")]


@pytest.mark.parametrize("kind", FINE, ids=str)
@pytest.mark.parametrize("nested", [False, True])
@given(st.lists(st.integers(-(10**18), 10**18) | st.integers(-(10**15), 10**15).map(lambda n: n * 1_000), max_size=5))
@example([5_000, 5_001])
@example([(1_698_541_200 + n * 1_800) * 10**9 for n in range(6)] + [1])  # The hour that comes twice in Berlin.
def test_nanoseconds_are_the_same_whatever_values_are_beside_them(kind: Any, nested: bool, numbers: list[int]) -> None:
    column = pa.array(numbers, pa.int64()).cast(kind)
    if nested:
        column = pa.StructArray.from_arrays([column], ["at"])
    for whole in (column, column if nested else column.dictionary_encode()):
        alone = [value for place in range(len(whole)) for value in to_python(whole.slice(place, 1))]
        assert shown(to_python(whole)) == shown(alone)
