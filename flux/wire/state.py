"""State on its way: an operator's state as bytes, and back, without pickle.

State is made of msgpack's types, numpy arrays and Arrow tables or batches, nested as one likes. Arrays
travel as their bytes with dtype and shape, Arrow data as an IPC stream. What cannot be encoded is a
`StateError` that names the value.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from ..errors import StateError

_ARRAY, _TABLE, _BATCH, _TUPLE = 1, 2, 3, 4
_tokens = itertools.count(1)


class Parcel:
    """The state of one partition, for each step of its segment, as a body of the protocol; and its digest."""

    __slots__ = ("digest", "states", "token")

    def __init__(self, states: Any, digest: int) -> None:
        self.states = states
        self.digest = digest
        self.token = next(_tokens)  # Stands for it in a recording.


def encode(state: Any, whose: str) -> bytes:
    """`state` as bytes; `whose` says in an error which operator's it is."""

    def extend(value: Any) -> msgpack.ExtType:
        if isinstance(value, np.ma.MaskedArray):
            raise StateError(f"{whose}: a numpy array with a mask cannot be moved; keep an Arrow array in a table")
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            raise StateError(f"{whose}: a numpy array of objects cannot be moved; keep a list, or an Arrow table")
        if isinstance(value, np.ndarray | np.generic) and value.dtype.names:
            raise StateError(f"{whose}: a numpy array with fields cannot be moved; keep an array for each field")
        if isinstance(value, np.ndarray):
            head = msgpack.packb([value.dtype.str, list(value.shape)])
            return msgpack.ExtType(_ARRAY, head + np.ascontiguousarray(value).tobytes())
        if isinstance(value, np.generic):
            return msgpack.ExtType(_ARRAY, msgpack.packb([value.dtype.str, []]) + value.tobytes())
        if isinstance(value, pa.Table | pa.RecordBatch):
            code = _TABLE if isinstance(value, pa.Table) else _BATCH
            return msgpack.ExtType(code, stream_of(value))
        if isinstance(value, tuple):
            return msgpack.ExtType(_TUPLE, encode(list(value), whose))
        raise StateError(
            f"{whose}: {value!r:.200} of type {type(value).__name__} cannot be moved to another site. State is made "
            "of None, bool, int, float, str, bytes, lists, tuples, dicts, numpy arrays and Arrow tables"
        )

    try:
        packed: bytes = msgpack.packb(state, default=extend, strict_types=True)
    except (OverflowError, ValueError) as error:
        raise StateError(f"{whose}: the state cannot be moved: {error}") from error
    return packed


def decode(packed: Any) -> Any:
    """What `encode` was given; numpy scalars and empty shapes come back as they were."""
    try:
        return msgpack.unpackb(packed, ext_hook=_extended, strict_map_key=False, max_ext_len=2**32 - 1)
    except StateError:
        raise
    except Exception as error:
        raise StateError(f"what came is not the state of a partition: {error!r}; run one release everywhere") from error


def _extended(code: int, data: bytes) -> Any:
    if code == _ARRAY:
        unpacker = msgpack.Unpacker()
        unpacker.feed(data[:256])
        dtype, shape = unpacker.unpack()
        array = np.frombuffer(data, dtype=np.dtype(dtype), offset=unpacker.tell()).reshape(shape).copy()
        return array if shape else array[()]
    if code == _TABLE:
        return pa.ipc.open_stream(data).read_all()
    if code == _BATCH:
        return batch_of(data)
    if code == _TUPLE:
        return tuple(decode(data))
    raise StateError(f"state of an unknown kind {code}: run one release everywhere")


def stream_of(data: Any) -> bytes:
    """Arrow data as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write(data)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def batch_of(data: Any) -> Any:
    """The one record batch of an IPC stream."""
    return pa.ipc.open_stream(data).read_next_batch()
