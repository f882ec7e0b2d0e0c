"""State codec: an operator's state as bytes, and back, without pickle.

State is made of msgpack's types, numpy arrays and Arrow tables or batches, nested at will, and of the operator's
`StateTypes`. Arrays travel as their bytes with dtype and shape, Arrow data as an IPC stream. What cannot be encoded is
a `StateError` that names the value; what cannot be decoded is a `BadFrame`.

Large values go *outside*: the packed value holds a number, and the bytes are a buffer of their own, without a copy here
or at the receiver. Lists and dicts of many entries go outside in slices, because msgpack holds the GIL until it has
finished: the heartbeat thread of this process must not wait for 200 MB.
"""

from __future__ import annotations

import gc
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgpack
import numpy as np
import pyarrow as pa
from numpy import ma  # At its first use numpy would import it: too late without a free file descriptor.

from ..types.errors import StateError
from ..types.normalize import ColumnError
from ..types.validate import check_rows
from .batches import read_batch, read_table
from .frames import BadFrame, format_value, protocol_error
from .standard_types import UnknownValue
from .state_types import PLAIN, StateTypes, TypedState, TypesByStep, cannot_move

_ARRAY, _TABLE, _BATCH, _TUPLE, _ARRAY_OUTSIDE, _TABLE_OUTSIDE, _BATCH_OUTSIDE, _LIST, _DICT = range(1, 10)
_WORD, _TYPED_STATE = 10, 11
_ARROW_OUTSIDE = (_TABLE_OUTSIDE, _BATCH_OUTSIDE)
_SLICED = (_LIST, _DICT)
_MEMORY = (bytearray, memoryview)
_NUMPY_TEXTS = (np.str_, np.bytes_)
_HOLDERS = {list, dict}
_SCANNED_TYPES = (*_HOLDERS, *_MEMORY)
_DEPTH_MAX = 512  # As deep as msgpack goes.
_SCAN_VALUES_MAX = 1 << 18
# Each tuple or value of a class within another takes 50 KiB of the C stack, which ends at 8 MiB or sooner, and the
# process with it.
_TUPLES_DEPTH_MAX = 32
_TOO_DEEP = f"tuples and values of classes are nested {_TUPLES_DEPTH_MAX} deep in it, or it is within itself"
_OUTSIDE_MIN_BYTES = 64 << 10
_SLICE_ENTRIES = 8_192
# Long lists and dicts are searched for this deep, and in those with up to so many entries.
_SEARCH_DEPTH = 4
_SEARCH_ENTRIES_MAX = 64
# The `dtype.str` of arrays without objects and fields. numpy would read other texts as descriptions of types.
_DTYPE = re.compile(r"[<>|](?:[biufcSUV][0-9]{1,9}|[mM]8(?:\[[0-9]{0,9}[a-zA-Z]{1,7}\])?)")
_tokens = itertools.count(1)
_NO_STEPS: TypesByStep = {}

Parts: TypeAlias = list[memoryview]  # Of one buffer, in order; views of the operator's memory.


class OutsideBuffers:
    """The buffers of large values; `note` is called with the size of each, and may raise to end the encoding."""

    def __init__(self, note: Callable[[int], None]) -> None:
        self.buffers: list[Parts] = []
        self._note = note

    def put(self, parts: Parts) -> int:
        """Add a buffer; return its number."""
        self._note(sum(map(len, parts)))
        self.buffers.append(parts)
        return len(self.buffers) - 1


class Parcel:
    """The state of one partition, for each step of its segment, as a body of the protocol; and its digest.

    `beyond` is the part of the digest after the positions at which copies are compared. The partition has consumed
    `rows` since the run began.
    """

    __slots__ = ("beyond", "digest", "rows", "states", "token")

    def __init__(self, states: Any, digest: int, beyond: Any = (), rows: int = 0) -> None:
        self.states = states
        self.digest = digest
        self.beyond = beyond
        self.rows = rows
        self.token = next(_tokens)  # Stands for it in a recording.


def encode(state: Any, whose: str, outside: OutsideBuffers | None = None, words: StateTypes = PLAIN) -> bytes:
    """Return `state` as bytes, with large values put `outside`, if that is given: they are not copied.

    `whose` names the operator in errors; `words` are the types that may be in it beside plain ones.
    """
    try:
        return _encode(state, whose, outside, words, 0)
    except UnknownValue as unknown:
        raise cannot_move(unknown, state, whose) from None


def _encode(state: Any, whose: str, outside: OutsideBuffers | None, words: StateTypes, depth: int) -> bytes:
    """Encode as `encode` does, within `depth` tuples or values of a class."""

    def within(value: Any, words: StateTypes = words) -> bytes:
        return _encode(value, whose, outside, words, depth + 1)

    def extend(value: Any) -> msgpack.ExtType:
        if depth == _TUPLES_DEPTH_MAX and type(value) is not TypedState:
            raise UnknownValue(value, _TOO_DEEP, "Keep lists and dicts, or HOOKS")
        if type(value) in _NUMPY_TEXTS:
            return word(value)
        if isinstance(value, np.ndarray | np.generic) and (why := _advice_for(value)):
            return word(value, why)
        if isinstance(value, np.ndarray):
            return _extended_array(value, outside)
        if isinstance(value, np.generic):
            return msgpack.ExtType(_ARRAY, msgpack.packb([value.dtype.str, None]) + value.tobytes())
        if isinstance(value, pa.Table | pa.RecordBatch):
            return _extended_arrow(value, outside)
        if type(value) is tuple:
            return msgpack.ExtType(_TUPLE, within(list(value)))
        if type(value) is TypedState:
            place = msgpack.packb([value.stage, value.step])
            return msgpack.ExtType(_TYPED_STATE, place + within(value.state, value.words))
        return word(value)

    def word(value: Any, why: str = "") -> msgpack.ExtType:
        try:
            plain = words.to_plain(value)
        except UnknownValue as unknown:
            raise unknown if unknown.why else UnknownValue(value, advice=f"{why}, or HOOKS" if why else "") from None
        return msgpack.ExtType(_WORD, within(list(plain)))

    def sliced(value: Any, deep: int) -> Any:
        """Return `value` with the long lists and dicts in it put outside."""
        if type(value) not in (list, dict) or deep == _SEARCH_DEPTH:
            return value
        if len(value) > _SLICE_ENTRIES:
            assert outside is not None
            slices = map(within, _slices(value))
            numbers = [outside.put([memoryview(packed)]) for packed in slices]
            return msgpack.ExtType(_LIST if type(value) is list else _DICT, msgpack.packb(numbers))
        if len(value) > _SEARCH_ENTRIES_MAX:
            return value
        if type(value) is list:
            return [sliced(each, deep + 1) for each in value]
        return {key: sliced(each, deep + 1) for key, each in value.items()}

    try:
        if _holds_memory(state):
            state = _replace_memory(state, extend)
        packed: bytes = msgpack.packb(state if outside is None else sliced(state, 0), default=extend, strict_types=True)
    except UnicodeEncodeError as error:
        raise UnknownValue(error.object, "it has half a character", "Keep it as bytes") from error
    except (OverflowError, ValueError, RecursionError) as error:
        raise UnknownValue(state, str(error), "Keep it flatter: nothing may be in itself, or HOOKS") from error
    return packed


def _advice_for(value: Any) -> str:
    """Return what to keep instead of an array that cannot be moved; empty if it can."""
    if isinstance(value, ma.MaskedArray):
        return "Keep an Arrow array in a table instead of one with a mask"
    if value.dtype.hasobject:
        return "Keep a list, or an Arrow table, instead of an array of objects"
    if value.dtype.names:
        return "Keep an array for each field"
    if not value.dtype.itemsize:
        return "Keep a number: its values have no bytes"
    is_derived = isinstance(value, np.ndarray) and type(value) is not np.ndarray
    return "Keep a plain array, np.asarray(...)" if is_derived else ""


def _holds_memory(state: Any) -> bool:
    """Whether there are bytearrays or memoryviews in lists and dicts: msgpack would make bytes of them unasked.

    It scans every state that moves, and almost none has any: so it scans all values of one depth at once. Values that
    msgpack does not know are scanned when it calls back for them.
    """
    values: Any = [state]
    for _ in range(_DEPTH_MAX):
        kinds = set(map(type, values))
        if kinds.isdisjoint(_SCANNED_TYPES):
            return False
        if not kinds.isdisjoint(_MEMORY):
            return True
        holders = values if kinds <= _HOLDERS else [value for value in values if type(value) in _HOLDERS]
        if sum(map(len, holders)) > _SCAN_VALUES_MAX:
            # Each once: lists that hold one another twice would double at each depth.
            holders = {id(value): value for value in holders}.values()
        # The fastest way into many lists and dicts. It includes the keys of dicts, which are never of these types.
        values = gc.get_referents(*holders)
    return False


def _replace_memory(value: Any, extend: Callable[[Any], Any]) -> Any:
    """Return `value` with its bytearrays replaced; an error for memoryviews."""
    if type(value) in _MEMORY:
        return extend(value)
    if type(value) is list:
        return [_replace_memory(each, extend) for each in value]
    return {key: _replace_memory(each, extend) for key, each in value.items()} if type(value) is dict else value


def decode(packed: Any, outside: Sequence[Any] = (), words: StateTypes = PLAIN, steps: TypesByStep = _NO_STEPS) -> Any:
    """Return the state that `encode` was given; numpy scalars and empty shapes stay as they were.

    `outside` are the buffers of large values, writable arrays of bytes, which the decoded values keep. `TypedState` is
    decoded with the types in `steps`, the rest with `words`.
    """
    return _decode(packed, outside, words, steps, 0)


def _decode(packed: Any, outside: Sequence[Any], words: StateTypes, steps: TypesByStep, depth: int) -> Any:
    if depth > _TUPLES_DEPTH_MAX:
        raise BadFrame(f"state with tuples or values of classes nested more than {_TUPLES_DEPTH_MAX} deep")

    def within(data: Any, words: StateTypes = words) -> Any:
        return _decode(data, outside, words, steps, depth + 1)

    def extended(code: int, data: bytes) -> Any:
        if code == _ARRAY:
            return _array(data)
        if code == _TABLE:
            return read_table(data)
        if code == _BATCH:
            return read_batch(data)
        if code == _TUPLE:
            return tuple(within(data))
        if code == _WORD:
            word, plain = within(data)
            return words.to_value(word, plain)
        if code == _TYPED_STATE:
            return _read_typed_state(data, steps, within)
        if code == _ARRAY_OUTSIDE:
            number, dtype, shape, *layout = msgpack.unpackb(data)
            return _shaped(_view(outside[number], dtype), shape, *layout)
        if code in _ARROW_OUTSIDE:
            buffer = pa.py_buffer(outside[msgpack.unpackb(data)])
            return read_table(buffer) if code == _TABLE_OUTSIDE else read_batch(buffer)
        if code in _SLICED:
            return _joined(code, (within(outside[number]) for number in msgpack.unpackb(data)))
        raise BadFrame(f"state of an unknown kind {code}: run one release everywhere")

    try:
        return msgpack.unpackb(packed, ext_hook=extended, strict_map_key=False, max_ext_len=2**32 - 1)
    except (BadFrame, StateError):
        raise
    except Exception as error:
        raise BadFrame(f"invalid state of a partition: {protocol_error(error)}; run one release everywhere") from error


def _read_typed_state(data: bytes, steps: TypesByStep, within: Callable[[Any, StateTypes], Any]) -> Any:
    """Return the state of a step, decoded with the types of the operator that this process has there."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[:64])
    place = tuple(unpacker.unpack())
    if place not in steps:
        raise BadFrame(f"state of step {format_value(place)}, for which this process has no state types")
    return within(memoryview(data)[unpacker.tell() :], steps[place])


def _extended_array(value: Any, outside: OutsideBuffers | None) -> msgpack.ExtType:
    value, layout = _in_layout(value)
    head = [value.dtype.str, list(value.shape), *layout]
    if outside is None or value.nbytes < _OUTSIDE_MIN_BYTES:
        return msgpack.ExtType(_ARRAY, msgpack.packb(head) + np.ascontiguousarray(value).tobytes())
    flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    number = outside.put([memoryview(flat)])  # type: ignore[arg-type]
    return msgpack.ExtType(_ARRAY_OUTSIDE, msgpack.packb([number, *head]))


def _in_layout(value: Any) -> tuple[Any, list[list[int]]]:
    """Return an array with its axes in the order of memory, and, if that is another order, the axes.

    A sum goes through memory in order, and its rounding depends on that: a copy with another layout would differ.
    """
    if value.flags.c_contiguous:
        return value, []
    axes = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
    return (value, []) if axes == list(range(value.ndim)) else (value.transpose(axes), [axes])


def _extended_arrow(value: Any, outside: OutsideBuffers | None) -> msgpack.ExtType:
    is_table = isinstance(value, pa.Table)
    try:
        for rows in value.to_batches() if is_table else (value,):
            check_rows(rows)
    except ColumnError as error:
        # The receiver could not read it, and would not know its owner.
        raise UnknownValue(value, str(error), "Keep another type, or HOOKS") from None
    parts = _stream_of(value)
    if outside is None or sum(map(len, parts)) < _OUTSIDE_MIN_BYTES:
        return msgpack.ExtType(_TABLE if is_table else _BATCH, b"".join(parts))
    return msgpack.ExtType(_TABLE_OUTSIDE if is_table else _BATCH_OUTSIDE, msgpack.packb(outside.put(parts)))


def _slices(value: list[Any] | dict[Any, Any]) -> Iterator[Any]:
    if isinstance(value, list):
        for start in range(0, len(value), _SLICE_ENTRIES):
            yield value[start : start + _SLICE_ENTRIES]
        return
    entries = iter(value.items())
    while some := dict(itertools.islice(entries, _SLICE_ENTRIES)):
        yield some


def _joined(code: int, slices: Iterator[Any]) -> Any:
    if code == _LIST:
        return [entry for some in slices for entry in some]
    whole: dict[Any, Any] = {}
    for some in slices:
        whole.update(some)
    return whole


def _array(data: bytes) -> Any:
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[:256])
    dtype, shape, *layout = unpacker.unpack()
    return _shaped(_view(np.frombuffer(data, np.uint8, offset=unpacker.tell()).copy(), dtype), shape, *layout)


def _view(data: Any, dtype: Any) -> Any:
    """Return bytes as a flat array of the type they claim."""
    if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
        raise BadFrame(f"state with an array of the unknown type {format_value(dtype)}")
    flat = data.view(np.dtype(dtype))
    # numpy does not check the bits of these types, and an invalid value breaks the code that reads it.
    if flat.dtype.kind == "b" and (flat.view(np.uint8) > 1).any():
        raise BadFrame("state with an array of truth values that are neither true nor false")
    if flat.dtype.kind == "U" and (flat.view(f"{dtype[0]}u4") > sys.maxunicode).any():
        raise BadFrame("state with an array of text that has no such characters")
    return flat


def _shaped(flat: Any, shape: Any, axes: Any = None) -> Any:
    # A scalar of numpy has no shape; an array without dimensions has an empty one.
    if shape is None:
        return flat.reshape(())[()]
    return flat.reshape(shape) if axes is None else flat.reshape(shape).transpose(np.argsort(axes))


class _PartsFile:
    """A file for Arrow to write to, which keeps views of the memory of columns."""

    closed = False

    def __init__(self) -> None:
        self.parts: Parts = []

    def write(self, data: Any) -> int:
        part = memoryview(data).cast("B")
        if part:
            self.parts.append(part)
        return len(part)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _stream_of(data: Any) -> Parts:
    file_of_parts = _PartsFile()
    with pa.PythonFile(file_of_parts, mode="w") as file, pa.ipc.new_stream(file, data.schema) as writer:
        writer.write(data)
    return file_of_parts.parts
