"""Record batches from a peer: what is well-formed is read in place, what lies about itself is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flux.exchange.rows import PARTITION, PRODUCER, SN, Rows, punctuations_from_plain, punctuations_to_plain
from flux.model.punctuation import Punctuation
from flux.wire.batches import Batches
from flux.wire.frames import BadFrame

BATCH = pa.record_batch(
    {
        "n": pa.array([1, 2, 3]),
        "text": pa.array(["a", None, "ccc"]),
        "list": pa.array([[1], [], [2, 3]], pa.list_(pa.int32())),
    }
)


def known(schema: pa.Schema) -> Batches:
    batches = Batches()
    batches.add_schema(0, schema.serialize().to_pybytes())
    return batches


def test_a_batch_is_read_in_the_memory_it_came_in() -> None:
    body = BATCH.serialize()
    got = known(BATCH.schema).read(0, body)
    assert got.equals(BATCH)
    inside = range(body.address, body.address + body.size)
    assert all(buffer.address in inside for column in got.columns for buffer in column.buffers() if buffer)


@pytest.mark.parametrize("number", [1, -1, None, {}, "0"])
def test_a_schema_that_was_not_sent_is_a_bad_frame(number: Any) -> None:
    with pytest.raises(BadFrame, match="expected a schema that was sent before"):
        known(BATCH.schema).read(number, BATCH.serialize())


@pytest.mark.parametrize(
    ("number", "packed"), [(0, BATCH.schema.serialize().to_pybytes()), (1, "text"), (1, b"no"), ({}, b"")]
)
def test_a_schema_out_of_turn_or_senseless_is_a_bad_frame(number: Any, packed: Any) -> None:
    batches = known(BATCH.schema)
    with pytest.raises(BadFrame):
        batches.add_schema(number, packed)
    assert batches.read(0, BATCH.serialize()).equals(BATCH)


@pytest.mark.parametrize("body", [None, pa.py_buffer(b""), pa.py_buffer(b"no batch"), BATCH.serialize()[:-40]])
def test_a_body_that_is_no_batch_is_a_bad_frame(body: Any) -> None:
    with pytest.raises(BadFrame, match="invalid record batch"):
        known(BATCH.schema).read(0, body)


def test_a_batch_shorter_than_its_schema_says_is_a_bad_frame() -> None:
    """Arrow itself reads such a batch, and whoever uses it then reads memory that is not its own."""
    wide = pa.schema([("n", pa.binary(64))])
    narrow = pa.record_batch({"n": pa.array(np.arange(1_000, dtype=np.int8))})
    assert pa.ipc.read_record_batch(narrow.serialize(), wide).num_rows == 1_000
    with pytest.raises(BadFrame, match="too small"):
        known(wide).read(0, narrow.serialize())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.list_(pa.int8())])
def test_offsets_that_lead_out_of_the_frame_are_a_bad_frame(kind: pa.DataType) -> None:
    width = np.int64 if kind == pa.large_string() else np.int32
    offsets = pa.py_buffer(np.array([0, 1 << 20, 3], dtype=width))
    data = pa.py_buffer(b"abc")
    if pa.types.is_list(kind):
        array = pa.Array.from_buffers(kind, 2, [None, offsets], children=[pa.array([1, 2, 3], pa.int8())])
    else:
        array = pa.Array.from_buffers(kind, 2, [None, offsets, data])
    batch = pa.RecordBatch.from_arrays([array], names=["x"])
    with pytest.raises(BadFrame, match="invalid record batch"):
        known(batch.schema).read(0, batch.serialize())


def test_compressed_batches_are_refused_however_small() -> None:
    batch = pa.record_batch({"n": np.zeros(1 << 20)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # The schema.
    body = reader.read_next_message().serialize()
    assert body.size < 10_000
    with pytest.raises(BadFrame, match="compressed Arrow"):
        known(batch.schema).read(0, body)


def test_more_rows_than_bits_are_a_bad_frame() -> None:
    few = pa.record_batch({"n": pa.nulls(12_345)})
    claims = few.serialize().to_pybytes().replace((12_345).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little"))
    assert known(few.schema).read(0, few.serialize()).num_rows == 12_345
    with pytest.raises(BadFrame, match="cannot hold the 1,099,511,627,776 rows"):
        known(few.schema).read(0, pa.py_buffer(claims))


def rows(**columns: Any) -> pa.RecordBatch:
    given: dict[str, Any] = {
        "x": pa.array([1.0, 2.0]),
        SN: pa.array([4, 5]),
        PRODUCER: pa.array([0, 1], pa.uint16()),
        PARTITION: pa.array([2, 3], pa.uint16()),
        **columns,
    }
    return pa.record_batch({name: array for name, array in given.items() if array is not None})


def test_rows_that_came_are_taken_as_they_are() -> None:
    got = Rows.received(rows(), [[5, "clock", 17]])
    assert got.punctuations == (Punctuation(5, "clock", 17),) and got.wide.equals(rows())
    got.expect(after=3, upto=5, producers=2, partitions=4)
    assert len(Rows.received(None, ())) == 0


@pytest.mark.parametrize(
    "columns",
    [
        {SN: None},
        {PARTITION: None},
        {SN: pa.array([4.0, 5.0])},
        {SN: pa.array([4, None])},
        {PRODUCER: pa.array([0, 1], pa.int64())},
        {"__sub": pa.array(["a", "b"])},
    ],
)
def test_rows_without_their_hidden_columns_are_a_bad_frame(columns: dict[str, Any]) -> None:
    with pytest.raises(BadFrame, match="rows need one column __"):
        Rows.received(rows(**columns), ())


def test_rows_out_of_order_are_a_bad_frame() -> None:
    with pytest.raises(BadFrame, match="in the order of their sequence numbers"):
        Rows.received(rows(**{SN: pa.array([5, 4])}), ())


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ((4, 5, 2, 4), r"sequence number 4 is outside \(4, 5\]"),
        ((3, 4, 2, 4), r"sequence number 5 is outside \(3, 4\]"),
        ((3, 5, 1, 4), "__producer 1, and there are only 1"),
        ((3, 5, 2, 3), "__partition 3, and there are only 3"),
    ],
)
def test_rows_of_another_range_or_partition_are_a_bad_frame(limits: tuple[int, int, int, int], says: str) -> None:
    with pytest.raises(BadFrame, match=says):
        Rows.received(rows(), ()).expect(*limits)


def test_a_mark_of_another_range_is_a_bad_frame() -> None:
    with pytest.raises(BadFrame, match="sequence number 9 is outside"):
        Rows.received(None, [[9, "end", None]]).expect(0, 8, 1, 1)


def test_marks_survive_the_wire() -> None:
    punctuations = (Punctuation(1, "watermark", -5), Punctuation(7, "end"))
    assert punctuations_from_plain(punctuations_to_plain(punctuations)) == punctuations


@pytest.mark.parametrize(
    "plain",
    [
        None,
        3,
        "end",
        [3],
        [[1, "end"]],
        [["1", "end", None]],
        [[1, "lunch", None]],
        [[1, "clock", "noon"]],
        [[1, ["end"], None]],
        [[True, "end", None]],
        [[2**63, "end", None]],
        [[2, "clock", 1], [2, "clock", 1]],
    ],
)
def test_what_is_no_mark_is_a_bad_frame(plain: Any) -> None:
    with pytest.raises(BadFrame, match="punctuation"):
        punctuations_from_plain(plain)
