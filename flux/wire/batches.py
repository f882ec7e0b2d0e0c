"""Batches: Arrow data that came from a peer: read, and checked before anyone looks into it.

Arrow reads an IPC message without a copy and believes what its metadata says: a column may claim more rows
than its buffers hold, or have offsets that lead out of them, and whoever uses it then reads or writes memory
that is not its own. `validate(full=True)` finds all of that. What it costs was measured, for 65,536 rows: a
microsecond for ten columns of fixed width, because only the sizes of buffers need to be looked at; 40
microseconds for a column with offsets; but ten times as much for text, nearly all of it for proving that each
value is UTF-8. So every frame is validated in full, with text taken for bytes: nothing can lead out of the
frame. Text that is not UTF-8 is then a wrong value like any other, which an authenticated peer could send
anyway; who reads it as text gets an error. State moves rarely: there UTF-8 is proved too.

Compressed buffers are refused: no process of Flux sends them, and a few bytes of them may stand for any
number of gigabytes. Arrow does not say which they are, so the metadata is looked up for it here.
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
_ROWS_MAX_OF_NOTHING = 1 << 20  # Columns of nulls take no space; any other takes at least a bit for each row.
# Which fields lead to `compression` in Arrow's Message.fbs: the header of a message is a batch, or a dictionary whose
# data is one; tables lie behind each other.
_PATHS = {"record batch": (2, 3), "dictionary": (2, 1, 3)}
_U16, _U32, _I32 = (struct.Struct(code).unpack_from for code in ("<H", "<I", "<i"))


class Batches:
    """The schemas that one peer has sent, and the record batches that come under them."""

    def __init__(self) -> None:
        self._schemas: dict[int, tuple[pa.Schema, pa.Schema | None]] = {}

    @property
    def known(self) -> int:
        """How many schemas have come."""
        return len(self._schemas)

    def unlearn(self, known: int) -> None:
        """Forget all but so many: they are sent again."""
        for number in range(known, len(self._schemas)):
            del self._schemas[number]

    def learn(self, number: Any, packed: Any) -> None:
        """From now on, `number` stands for a schema. A peer numbers them from 0 on."""
        known = len(self._schemas)
        if number != known or known == _SCHEMAS_MAX or not isinstance(packed, bytes):
            raise BadFrame(
                f"expected schema number {known} of at most {_SCHEMAS_MAX:,}, as bytes; got number "
                f"{format_value(number)} as {type(packed).__name__}"
            )
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(packed))
            _check_names(schema)
            self._schemas[number] = schema, _with_text_as_bytes(schema)
        except Exception as error:
            raise BadFrame(f"what was sent as a schema is none: {protocol_error(error)}") from error

    def read(self, number: Any, body: Any) -> pa.RecordBatch:
        """The batch in `body`, in the body's own memory."""
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
            raise BadFrame(f"what was sent as a record batch is none: {protocol_error(error)}") from error
        if batch.num_rows > max(8 * body.size, _ROWS_MAX_OF_NOTHING):
            raise BadFrame(f"{body.size:,} bytes cannot hold the {batch.num_rows:,} rows that they claim to")
        return batch


def _check(message: Any, batch: pa.RecordBatch, checkable: pa.Schema | None) -> None:
    """Raise what Arrow raises if a batch is not valid; `BadValues` if all that is wrong with it is a value."""
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
    """The table that an IPC stream holds, valid in every respect. Raises what Arrow raises."""
    table = _opened(stream).read_all()
    table.validate(full=True)
    return table


def batch_bytes(rows: pa.RecordBatch) -> bytes:
    """A record batch and its schema as an IPC stream of their own, for a file or a pipe."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def read_batch(stream: Any) -> pa.RecordBatch:
    """The one record batch of an IPC stream, valid in every respect. Raises what Arrow raises."""
    batch = _opened(stream).read_next_batch()
    batch.validate(full=True)
    return batch


def _opened(stream: Any) -> Any:
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
    """Arrow takes any bytes for a name or a time zone, and fails when they are first looked at. Here they are."""
    for field in fields:
        assert isinstance(field.name, str)
        kind = field.type
        assert isinstance(getattr(kind, "tz", None), str | None)
        _check_names([kind.field(i) for i in range(kind.num_fields)])


def _with_text_as_bytes(schema: pa.Schema) -> pa.Schema | None:
    """The schema under which the same buffers hold bytes instead of text; None if there is no text."""
    bytes_for = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    fields = [field.with_type(bytes_for.get(field.type, field.type)) for field in schema]
    as_bytes = pa.schema(fields)
    return None if as_bytes.types == schema.types else as_bytes


def _refuse_compressed(message: Any) -> None:
    """`BadFrame` if a record batch, or one within a dictionary, has compressed buffers."""
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
    raise BadFrame(f"an Arrow {kind} came compressed; Flux sends none so, because they may grow to any size")


def _field(metadata: bytes, table: int, index: int) -> int | None:
    """Where a field of the flatbuffer table at `table` is; None if it is left out."""
    entries = table - _I32(metadata, table)[0]
    if entries < 0:
        raise struct.error(f"fields at {entries}")
    at = 4 + 2 * index
    if at >= _U16(metadata, entries)[0]:
        return None
    offset = _U16(metadata, entries + at)[0]
    return table + int(offset) if offset else None
