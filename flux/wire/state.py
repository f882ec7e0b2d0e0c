"""State on its way: an operator's state as bytes, and back, without pickle.

State is made of msgpack's types, numpy arrays and Arrow tables or batches, nested as one likes. Arrays
travel as their bytes with dtype and shape, Arrow data as an IPC stream. What cannot be encoded is a
`StateError` that names the value; what cannot be decoded is a `BadFrame`.
"""

from __future__ import annotations

import itertools
import re
import sys
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from ..errors import StateError
from .batches import read_batch, read_table
from .frames import BadFrame, blame, shown

_ARRAY, _TABLE, _BATCH, _TUPLE = 1, 2, 3, 4
# Each tuple within a tuple takes 50 KiB of the C stack, which ends at 8 MiB or sooner, and the process with it.
_TUPLES_DEEP_MAX = 32
# What `dtype.str` says of arrays without objects and fields. Other texts would be read as descriptions of types.
_DTYPE = re.compile(r"[<>|](?:[biufcSUV][0-9]{1,9}|[mM]8(?:\[[0-9]{0,9}[a-zA-Z]{1,7}\])?)")
_tokens = itertools.count(1)


class Parcel:
    """The state of one partition, for each step of its segment, as a body of the protocol; and its digest."""

    __slots__ = ("digest", "states", "token")

    def __init__(self, states: Any, digest: int) -> None:
        self.states = states
        self.digest = digest
        self.token = next(_tokens)  # Stands for it in a recording.


def encode(state: Any, whose: str, depth: int = 0) -> bytes:
    """`state` as bytes; `whose` says in an error which operator's it is, `depth` how many tuples it is within."""
    if depth > _TUPLES_DEEP_MAX:
        raise StateError(f"{whose}: tuples nested more than {_TUPLES_DEEP_MAX} deep cannot be moved; keep lists")

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
            return msgpack.ExtType(code, _stream_of(value))
        if isinstance(value, tuple):
            return msgpack.ExtType(_TUPLE, encode(list(value), whose, depth + 1))
        raise StateError(
            f"{whose}: {value!r:.200} of type {type(value).__name__} cannot be moved to another site. State is made "
            "of None, bool, int, float, str, bytes, lists, tuples, dicts, numpy arrays and Arrow tables"
        )

    try:
        packed: bytes = msgpack.packb(state, default=extend, strict_types=True)
    except (OverflowError, ValueError) as error:
        raise StateError(f"{whose}: the state cannot be moved: {error}") from error
    return packed


def decode(packed: Any, depth: int = 0) -> Any:
    """What `encode` was given; numpy scalars and empty shapes come back as they were."""
    if depth > _TUPLES_DEEP_MAX:
        raise BadFrame(f"state with tuples nested more than {_TUPLES_DEEP_MAX} deep")

    def extended(code: int, data: bytes) -> Any:
        if code == _ARRAY:
            return _array(data)
        if code == _TABLE:
            return read_table(data)
        if code == _BATCH:
            return read_batch(data)
        if code == _TUPLE:
            return tuple(decode(data, depth + 1))
        raise BadFrame(f"state of an unknown kind {code}: run one release everywhere")

    try:
        return msgpack.unpackb(packed, ext_hook=extended, strict_map_key=False, max_ext_len=2**32 - 1)
    except BadFrame:
        raise
    except Exception as error:
        raise BadFrame(
            f"what came is not the state of a partition: {blame(error)}; run one release everywhere"
        ) from error


def _array(data: bytes) -> Any:
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[:256])
    dtype, shape = unpacker.unpack()
    if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
        raise BadFrame(f"state with an array of the unknown type {shown(dtype)}")
    flat = np.frombuffer(data, dtype=np.dtype(dtype), offset=unpacker.tell())
    # To numpy every pattern of bits is a value of these, and whoever looks at one that is none comes to harm.
    if flat.dtype.kind == "b" and (flat.view(np.uint8) > 1).any():
        raise BadFrame("state with an array of truth values that are neither true nor false")
    if flat.dtype.kind == "U" and (flat.view(f"{dtype[0]}u4") > sys.maxunicode).any():
        raise BadFrame("state with an array of text that has no such characters")
    array = flat.reshape(shape).copy()
    return array if shape else array[()]


def _stream_of(data: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write(data)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
