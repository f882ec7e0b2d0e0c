"""The partition hash: published vectors, and the claims that keep state and rows together."""

from __future__ import annotations

import datetime
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.types.errors import PlanError
from flux.types.hashing import hash_rows, partition_of

GOLDEN = 0x9E3779B97F4A7C15
WORD = 2**64 - 1


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


def token(value: Any) -> int:
    """The definition in the module's docstring, one value at a time."""
    if value is None:
        return 0x6E756C6C6E756C6C
    if isinstance(value, float):
        if value != value:
            return 0x7FF8 << 48
        if value.is_integer() and -(2**63) <= value < 2**64:
            return int(value) & WORD
        return int(np.float64(value).view(np.uint64))
    if isinstance(value, Decimal):
        if value == int(value) and -(2**63) <= value < 2**64:
            return int(value) & WORD
        value = int(value.scaleb(38, Context(prec=100))).to_bytes(32, "little", signed=True)
    if isinstance(value, int):
        return value & WORD
    data = value.encode() if isinstance(value, str) else value
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
    return mix((len(data) + sum(mix((w + (i + 1) * GOLDEN) & WORD) for i, w in enumerate(words))) & WORD)


def hash_of(*values: Any) -> int:
    hashed = 0
    for value in values:
        hashed = mix((hashed + token(value) + GOLDEN) & WORD)
    return hashed


def one(value: Any, kind: Any = None) -> int:
    return int(hash_rows([pa.array([value], kind)])[0])


VECTORS = [
    # The first is the published output of splitmix64 for the seed 0.
    ([pa.array([0])], 0xE220A8397B1DCDAF),
    ([pa.array([1])], 0x910A2DEC89025CC1),
    ([pa.array([-1])], 0xE4D971771B652C20),
    ([pa.array([0.5])], 0xF456984DD1D8CE6D),
    ([pa.array([""])], 0xE220A8397B1DCDAF),
    ([pa.array(["flux"])], 0x2020849D54268659),
    ([pa.array(["a string of more than one word"])], 0x9A4D384B69F03419),
    ([pa.array([None], pa.int64())], 0x0A7FB0C1B3A8D23E),
    ([pa.array([7], pa.int32()), pa.array([42], pa.int32())], 0xF1417F80DB69A641),
    ([pa.array([7], pa.int32()), pa.array(["x"])], 0x4C920BD349F4D195),
]


@pytest.mark.parametrize(("columns", "expected"), VECTORS)
def test_published_vectors_hold(columns: list[Any], expected: int) -> None:
    assert int(hash_rows(columns)[0]) == expected


@given(st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=20))
def test_strings_follow_the_definition(values: list[str | None]) -> None:
    assert hash_rows([pa.array(values, pa.string())]).tolist() == [hash_of(v) for v in values]


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(), st.binary(max_size=20)), max_size=20))
def test_several_columns_follow_the_definition(rows: list[tuple[int, float, bytes]]) -> None:
    kinds = (pa.int64(), pa.float64(), pa.binary())
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    assert hash_rows(columns).tolist() == [hash_of(*row) for row in rows]


@given(st.lists(st.text(max_size=20), min_size=1, max_size=20), st.data())
def test_a_slice_hashes_like_a_copy(values: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(values)))
    for whole in (pa.array(values), pa.array([len(v) for v in values]), pa.array([v[:1] == "a" for v in values])):
        assert hash_rows([whole[start:]]).tolist() == hash_rows([whole]).tolist()[start:]


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "float32", "float64"])
def test_numbers_of_any_width_are_alike(kind: str) -> None:
    assert one(-5, pa.type_for_alias(kind)) == hash_of(-5)
    assert one(5, pa.type_for_alias(kind)) == one(5, pa.uint16())


def test_large_unsigned_integers_and_floats_are_alike() -> None:
    assert one(2**63, pa.uint64()) == one(float(2**63))


def test_zero_has_no_sign() -> None:
    assert one(-0.0) == one(0.0) == one(0)


def test_all_nan_are_alike() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64)
    assert set(hash_rows([pa.array(bits.view(np.float64))]).tolist()) == {one(float("nan"), pa.float32())}


def test_booleans_are_their_integers() -> None:
    assert one(True) == one(1)
    assert one(False) == one(0)


@pytest.mark.parametrize("encoding", [pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()])
def test_a_string_hashes_by_its_bytes_whatever_its_encoding(encoding: Any) -> None:
    texts = ["", "a", "müßig", "more than eight bytes", None]
    expected = hash_rows([pa.array(texts)]).tolist()
    encoded = [None if t is None else t.encode() for t in texts] if "binary" in str(encoding) else texts
    assert hash_rows([pa.array(encoded, encoding)]).tolist() == expected


def test_a_dictionary_hashes_like_its_values() -> None:
    texts = pa.array(["b", "a", None, "b"])
    assert hash_rows([texts.dictionary_encode()]).tolist() == hash_rows([texts]).tolist()


def test_fixed_binary_hashes_like_binary() -> None:
    values = [b"0123456789", None, b"9876543210"]
    fixed = pa.array([b"..........", *values], pa.binary(10))[1:]
    assert hash_rows([fixed]).tolist() == hash_rows([pa.array(values)]).tolist()


def test_an_instant_hashes_alike_in_any_unit_and_zone() -> None:
    instant = datetime.datetime(2004, 3, 1)
    kinds = [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns")]
    hashes = {one(instant.replace(tzinfo=datetime.UTC) if k.tz else instant, k) for k in kinds}
    assert hashes == {one(instant.date(), pa.date32())}


def test_decimals_hash_by_value() -> None:
    assert one(Decimal("1.5"), pa.decimal128(10, 1)) == one(Decimal("1.50"), pa.decimal128(20, 2))
    assert one(Decimal("-7.00")) == one(-7)


WHOLE = [0, 7, -7, 10**18, -(2**63), 2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize("kind", [pa.decimal128(38, 0), pa.decimal128(38, 5), pa.decimal256(76, 38)])
def test_whole_decimals_hash_like_their_integer_as_far_as_64_bits_go(kind: Any) -> None:
    for value in WHOLE:
        assert one(Decimal(value), kind) == one(value, pa.int64() if value < 2**63 else pa.uint64()), value


@given(st.decimals(-(2**70), 2**70, places=2) | st.integers(-(2**66), 2**66).map(Decimal))
def test_decimals_follow_the_definition(value: Decimal) -> None:
    assert one(value, pa.decimal128(38, 3)) == hash_of(value)


def test_nulls_of_all_types_are_alike() -> None:
    kinds = [pa.null(), pa.int8(), pa.float64(), pa.string(), pa.bool_(), pa.decimal128(5, 2), pa.binary(3)]
    assert {one(None, kind) for kind in kinds} == {hash_of(None)}


def test_the_order_of_columns_matters() -> None:
    a, b = pa.array([1]), pa.array([2])
    assert hash_rows([a, b])[0] != hash_rows([b, a])[0]


@pytest.mark.parametrize("partitions", [1, 2, 3, 32, 1000, 65_536])
def test_partitions_are_within_range_and_even(partitions: int) -> None:
    pid = partition_of([pa.array(np.arange(65_536))], partitions)
    assert pid.dtype == np.uint16
    counts = np.bincount(pid, minlength=partitions)
    assert len(counts) == partitions
    if partitions <= 1000:
        expected = 65_536 / partitions
        assert abs(counts - expected).max() < 6 * expected**0.5 + 1


def test_no_rows_have_no_partitions() -> None:
    kinds = [
        pa.int32(),
        pa.float64(),
        pa.string(),
        pa.binary(4),
        pa.decimal128(9, 2),
        pa.dictionary(pa.int8(), "string"),
    ]
    for kind in kinds:
        assert len(partition_of([pa.array([], kind)], 4)) == 0


def test_a_chunked_column_hashes_like_one_piece() -> None:
    assert hash_rows([pa.chunked_array([[1, 2], [3]])]).tolist() == hash_rows([pa.array([1, 2, 3])]).tolist()


def test_a_type_without_a_hash_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="list"):
        partition_of([pa.array([[1]])], 4)


@pytest.mark.parametrize("partitions", [0, 65_537])
def test_an_impossible_number_of_partitions_is_refused(partitions: int) -> None:
    with pytest.raises(PlanError, match="partitions"):
        partition_of([pa.array([1])], partitions)
