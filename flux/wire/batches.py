"""Batches: Arrow data from a peer, validated before it is used.

Arrow reads an IPC message without a copy and trusts its metadata. A column may claim more rows than its buffers hold,
or have offsets that lead out of them. Its reader would then access memory outside the frame. `validate(full=True)`
finds all of that. Measured for 65,536 rows, it takes a microsecond for ten columns of fixed width, because it checks
only the sizes of buffers, and 40 microseconds for a column with offsets. Text takes ten times as much, nearly all of it
to prove that each value is UTF-8. So every frame is validated in full, with text read as bytes: nothing can lead out of
the frame. Text that is not UTF-8 is then a wrong value like any other, which an authenticated peer could send anyway.
Reading it as text raises an error. State moves rarely: there UTF-8 is proved too.

Compressed buffers are refused: no process of Flux sends them, and a few bytes of them may stand for any number of
gigabytes. Arrow does not report compression, so it is looked up in the metadata here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ..types.normalize import ColumnError
from ..types.validate import check_rows, raw_schema
from .frames import BadFrame, BadValues, format_value, protocol_error

_SCHEMAS_MAX = 4_096  # Of one peer. A dataflow has a handful for each of its exchanges.
_NULL_ROWS_MAX = 1 << 20  # Columns of nulls take no space; any other takes at least a bit for each row.
# The fields that lead to `compression` in Arrow's Message.fbs, table after table: the header of a message is a batch,
# or a dictionary whose data is one.
_PATHS = {"record batch": (2, 3), "dictionary": (2, 1, 3)}
_U16, _U32, _I32 = (struct.Struct(code).unpack_from for code in ("<H", "<I", "<i"))


class Batches:
    """The schemas that one peer has sent; reads the record batches that refer to them."""

    def __init__(self) -> None:
        self._schemas: dict[int, tuple[pa.Schema, pa.Schema | None]] = {}

    @property
    def schema_count(self) -> int:
        """The number of schemas received."""
        return len(self._schemas)

    def truncate_schemas(self, count: int) -> None:
        """Keep only the first `count` schemas: the peer sends the others again."""
        for number in range(count, len(self._schemas)):
            del self._schemas[number]

    def add_schema(self, number: Any, packed: Any) -> None:
        """Add the schema that `number` stands for from now on. A peer numbers its schemas from 0 on."""
        count = len(self._schemas)
        if number != count or count == _SCHEMAS_MAX or not isinstance(packed, bytes):
            raise BadFrame(
                f"expected schema number {count} of at most {_SCHEMAS_MAX:,}, as bytes; got number "
                f"{format_value(number)} as {type(packed).__name__}"
            )
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(packed))
            _check_names(schema)
            self._schemas[number] = schema, _with_text_as_bytes(schema)
        except Exception as error:
            raise BadFrame(f"invalid schema: {protocol_error(error)}") from error

    def read(self, number: Any, body: Any) -> pa.RecordBatch:
        """Return the batch in `body`, in the body's own memory."""
        try:
            schema, checkable = self._schemas[number]
        except (KeyError, TypeError):
            raise BadFrame(f"expected a schema that was sent before, got number {format_value(number)}") from None
        try:
            message = pa.ipc.read_message(body)
            _refuse_compressed(message)
            batch = pa.ipc.read_record_batch(message, schema)
            _check(message, batch, checkable)
        except BadFrame:
            raise
        except Exception as error:
            raise BadFrame(f"invalid record batch: {protocol_error(error)}") from error
        if batch.num_rows > max(8 * body.size, _NULL_ROWS_MAX):
            raise BadFrame(f"{body.size:,} bytes cannot hold the {batch.num_rows:,} rows that they claim to")
        return batch


def _check(message: Any, batch: pa.RecordBatch, checkable: pa.Schema | None) -> None:
    """Raise what Arrow raises if a batch is invalid; `BadValues` if only a value in it is."""
    try:
        (batch if checkable is None else pa.ipc.read_record_batch(message, checkable)).validate(full=True)
    except pa.ArrowInvalid:
        pa.ipc.read_record_batch(message, raw_schema(batch.schema)).validate(full=True)
        try:
            check_rows(batch)
        except ColumnError as error:
            raise BadValues(str(error)) from error
        raise


def read_table(stream: Any) -> pa.Table:
    """Return the table in an IPC stream, validated in full. Raises what Arrow raises."""
    table = _open(stream).read_all()
    table.validate(full=True)
    return table


def batch_bytes(rows: pa.RecordBatch) -> bytes:
    """Return a record batch and its schema as an IPC stream of their own, for a file or a pipe."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def read_batch(stream: Any) -> pa.RecordBatch:
    """Return the one record batch of an IPC stream, validated in full. Raises what Arrow raises."""
    batch = _open(stream).read_next_batch()
    batch.validate(full=True)
    return batch


def _open(stream: Any) -> Any:
    for message in _messages(stream):
        _refuse_compressed(message)
    reader = pa.ipc.open_stream(stream)
    _check_names(reader.schema)
    return reader


def _messages(data: Any) -> Iterator[Any]:
    reader = pa.ipc.MessageReader.open_stream(data)
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _check_names(fields: Any) -> None:
    """Read every name and time zone: Arrow accepts any bytes for them, and fails when they are first read."""
    for field in fields:
        assert isinstance(field.name, str)
        kind = field.type
        assert isinstance(getattr(kind, "tz", None), str | None)
        _check_names([kind.field(i) for i in range(kind.num_fields)])


def _with_text_as_bytes(schema: pa.Schema) -> pa.Schema | None:
    """Return the schema that reads text in the same buffers as bytes; None if there is no text."""
    bytes_for = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    fields = [field.with_type(bytes_for.get(field.type, field.type)) for field in schema]
    as_bytes = pa.schema(fields)
    return None if as_bytes.types == schema.types else as_bytes


def _refuse_compressed(message: Any) -> None:
    """Raise `BadFrame` if a record batch, or one within a dictionary, has compressed buffers."""
    kind = message.type
    path = _PATHS.get(kind)
    if path is None:
        return
    metadata = message.metadata.to_pybytes()
    try:
        at: int | None = 0
        for index in path:
            assert at is not None
            at = _field(metadata, at + _U32(metadata, at)[0], index)
            if at is None:
                return
    except struct.error as error:
        raise BadFrame(f"the metadata of an Arrow {kind} leads out of itself: {error}") from error
    raise BadFrame(f"got a compressed Arrow {kind}; Flux sends none, because they may grow to any size")


def _field(metadata: bytes, table: int, index: int) -> int | None:
    """Return the offset of a field of the flatbuffer table at `table`; None if it is left out."""
    entries = table - _I32(metadata, table)[0]
    if entries < 0:
        raise struct.error(f"fields at {entries}")
    at = 4 + 2 * index
    if at >= _U16(metadata, entries)[0]:
        return None
    offset = _U16(metadata, entries + at)[0]
    return table + int(offset) if offset else None
