"""State on its way: what an operator keeps comes back as it was, or is refused by name."""

from __future__ import annotations

import datetime
import math
import subprocess
import sys
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.types.errors import StateError
from flux.wire.frames import BadFrame
from flux.wire.state_codec import Parcel, decode, encode

WHOSE = "step Sessions, partition 3"

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=50)
)
keys = scalars | st.tuples(st.integers(0, 9), st.text(max_size=3))
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=20,
)
DTYPES = ("i1", "<i4", ">i8", "u8", "f4", "<f8", "?", "S5", "<U3", "M8[us]", "m8[s]", "c16")
arrays = st.builds(
    lambda dtype, shape, raw: np.resize(np.frombuffer(raw, dtype="u1"), math.prod(shape)).astype(dtype).reshape(shape),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.binary(min_size=1, max_size=30),
)


def returned(state: Any) -> Any:
    return decode(encode(state, WHOSE))


@given(plain)
def test_plain_values_come_back_with_their_types(state: Any) -> None:
    assert repr(returned(state)) == repr(state)


@given(arrays)
def test_arrays_come_back_with_dtype_shape_and_values(array: np.ndarray) -> None:
    got = returned({"array": array})["array"]
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(got, array)
    got[...] = got  # It may be written to: the operator goes on with it.


@pytest.mark.parametrize(
    "array",
    [np.arange(12).reshape(3, 4).T, np.arange(10)[::3], np.zeros((0, 5)), np.array([], dtype="S4")],
    ids=["transposed", "strided", "no rows", "empty bytes"],
)
def test_arrays_need_not_be_contiguous_or_filled(array: np.ndarray) -> None:
    got = returned(array)
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize(
    "array",
    [np.ma.masked_array([1, 2], mask=[False, True]), np.zeros(2, dtype=[("a", "i4"), ("b", "f8")])],
    ids=["masked", "with fields"],
)
def test_arrays_with_a_mask_or_fields_come_back_as_they_were_or_are_refused(array: np.ndarray) -> None:
    # A column with nulls is a masked array when a batch gives it to an operator.
    try:
        got = returned(array)
    except StateError:
        return
    assert (got.dtype, type(got)) == (array.dtype, type(array))


@pytest.mark.parametrize(
    "value", [np.int32(-7), np.float64(0.1), np.bool_(True), np.str_("añ"), np.bytes_(b"x"), np.datetime64(7, "s")]
)
def test_numpy_scalars_stay_numpy_scalars(value: Any) -> None:
    got = returned([value])[0]
    assert (got, type(got)) == (value, type(value))


def test_a_nan_is_still_one() -> None:
    assert math.isnan(returned(math.nan))


SCHEMA = pa.schema([("key", pa.string()), ("values", pa.list_(pa.int64())), ("ts", pa.timestamp("us"))])
ROWS = [
    {"key": "a", "values": [1, None], "ts": None},
    {"key": None, "values": None, "ts": datetime.datetime(2024, 1, 2)},
]


@pytest.mark.parametrize("rows", [ROWS, []], ids=["rows", "no rows"])
def test_arrow_data_comes_back_with_its_schema(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    got = returned({"nested": [table, (batch,)]})
    assert got["nested"][0].equals(table) and got["nested"][0].schema == SCHEMA
    assert got["nested"][1][0].equals(batch) and isinstance(got["nested"][1][0], pa.RecordBatch)


def test_a_table_of_several_chunks_and_dictionaries_comes_back() -> None:
    chunk = pa.table({"word": pa.array(["a", "b", "a"]).dictionary_encode()})
    table = pa.concat_tables([chunk, chunk])
    assert returned(table).equals(table)


def test_the_state_of_a_keyed_operator_comes_back() -> None:
    state = {("a", 1): {"sum": 3, "last": (1, 2.5)}, ("b", None): np.arange(3)}
    got = returned(state)
    assert list(got) == list(state)
    assert got["a", 1] == state["a", 1]


LATE = pa.array([1, 90_000], pa.time32("s"))


class Thing:
    def __repr__(self) -> str:
        return "a thing" + "!" * 1_000


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Thing(), r"a thing!+ of type Thing.* cannot be moved to another site\. .*`state_types = \(Thing,\)`"),
        ({Thing()}, r"a thing!+ of type Thing, at .*an element, cannot be moved"),
        (np.array([{}]), r"array\(\[\{\}\].* of type ndarray.* cannot be moved .*Keep a list.*encode_state\(value\)"),
        (np.ma.array([1], mask=[1]), r"of type MaskedArray.*Keep an Arrow array .*encode_state\(value\)"),
        (np.zeros(1, "i8,f8"), r"of type ndarray.*Keep an array for each field.*encode_state\(value\)"),
        (np.zeros(1, "i8,f8")[0], r"of type void.*Keep an array for each field.*encode_state\(value\)"),
        (pa.table({"t": LATE}), r"of type Table.* cannot be moved .*'t': 90000 is not a time32\[s\].*Correct it"),
        (pa.record_batch({"t": LATE}), r"of type RecordBatch.* be moved .*90000 is not a time32\[s\].*Correct it"),
        ("\ud800", r"'\\ud800' of type str.* cannot be moved .*half a character.*Keep it as bytes"),
    ],
    ids=[
        "object",
        "within a set",
        "objects",
        "masked",
        "fields",
        "a scalar with fields",
        "a table with a wrong value",
        "a batch with a wrong value",
        "half a character",
    ],
)
def test_what_cannot_be_moved_is_a_state_error_that_names_it(value: Any, says: str) -> None:
    for state in (value, {"deep": [(value,)]}):
        with pytest.raises(StateError, match=f"^{WHOSE}: .*{says}") as caught:
            encode(state, WHOSE)
        assert len(str(caught.value)) < 700


def test_a_kind_that_another_release_sends_is_a_bad_frame() -> None:
    with pytest.raises(BadFrame, match="unknown kind 99: run one release everywhere"):
        decode(msgpack.packb(msgpack.ExtType(99, b"")))


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x93\x01", encode([1], WHOSE) + b"x"])
def test_bytes_that_are_no_state_are_a_bad_frame(packed: bytes) -> None:
    with pytest.raises(BadFrame):
        decode(packed)


def nested(depth: int) -> Any:
    """As many tuples within each other."""
    value: Any = 1
    for _ in range(depth):
        value = (value,)
    return value


def test_tuples_nested_deeper_than_the_stack_allows_are_refused_at_both_ends() -> None:
    assert returned(nested(30)) == nested(30)
    with pytest.raises(StateError, match=rf"^{WHOSE}: .*of type tuple, at (\[0\])+, .*nested 32 deep"):
        encode(nested(5_000), WHOSE)
    packed = msgpack.packb([1])
    for _ in range(5_000):
        packed = msgpack.packb([msgpack.ExtType(4, packed)])
    with pytest.raises(BadFrame, match="nested more than 32 deep"):
        decode(packed)


@pytest.mark.parametrize("dtype", ["O", "|O8", "<i8,<i8", "(9,)<i8", "<f8, (1000000,)<f8", "T", "", 8, None])
def test_only_types_of_plain_numbers_and_bytes_are_made_of_what_came(dtype: Any) -> None:
    head = msgpack.packb([dtype, [1]])
    with pytest.raises(BadFrame, match="unknown type"):
        decode(msgpack.packb(msgpack.ExtType(1, head + bytes(8))))


@pytest.mark.parametrize(("dtype", "raw"), [("|b1", b"\x02"), ("<U1", b"\xff" * 4), (">U1", b"\x00\x11\x00\x00")])
def test_bits_that_are_no_value_of_their_type_are_refused(dtype: str, raw: bytes) -> None:
    with pytest.raises(BadFrame, match=r"neither true nor false|no such characters"):
        decode(msgpack.packb(msgpack.ExtType(1, msgpack.packb([dtype, [1]]) + raw)))


@pytest.mark.parametrize("what", [pa.table({"n": [0] * 100_000}), pa.record_batch({"n": [0] * 100_000})])
def test_compressed_tables_are_refused(what: Any) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, what.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write(what)
    code = 2 if isinstance(what, pa.Table) else 3
    with pytest.raises(BadFrame, match="compressed Arrow"):
        decode(msgpack.packb(msgpack.ExtType(code, sink.getvalue().to_pybytes())))


def test_a_compressed_dictionary_is_refused() -> None:
    table = pa.table({"word": pa.array([f"word {i % 1_000}" for i in range(10_000)]).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write(table)
    with pytest.raises(BadFrame, match="compressed Arrow dictionary"):
        decode(msgpack.packb(msgpack.ExtType(2, sink.getvalue().to_pybytes())))


def test_each_parcel_has_a_number_of_its_own() -> None:
    assert Parcel([b"state"], 0).states == [b"state"]
    assert Parcel(None, 0).token != Parcel(None, 0).token


def test_nothing_is_imported_when_the_first_array_is_encoded() -> None:
    # A process without a free file descriptor cannot import: its state could not be read.
    program = (
        "import sys\nimport numpy as np\nfrom flux.wire.state_codec import encode\n"
        "before = set(sys.modules)\nencode([np.arange(3)], 'step')\nprint(sorted(set(sys.modules) - before))\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
