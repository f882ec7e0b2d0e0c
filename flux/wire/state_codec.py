"""State on its way: an operator's state as bytes, and back, without pickle.

State is made of msgpack's types, numpy arrays and Arrow tables or batches, nested as one likes, and of what is in the
operator's vocabulary (`values`). Arrays travel as their bytes with dtype and shape, Arrow data as an IPC stream. What
cannot be encoded is a `StateError` that names the value; what cannot be decoded is a `BadFrame`.

What is large goes *outside*: it is a number in the packed value, and its bytes are a buffer of their own, without a
copy here or where they arrive. Lists and dicts of many entries go outside in slices, because msgpack does not let
other threads run until it is through: the one that beats for this process must not wait for 200 MB.
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

from ..types.errors import StateError
from ..types.normalize import ColumnError
from ..types.validate import check_rows
from .batches import read_batch, read_table
from .frames import BadFrame, format_value, protocol_error
from .standard_types import Unknown
from .state_types import PLAIN, StateTypes, TypedState, TypesByStep, cannot_move

_ARRAY, _TABLE, _BATCH, _TUPLE, _ARRAY_OUTSIDE, _TABLE_OUTSIDE, _BATCH_OUTSIDE, _LIST, _DICT = range(1, 10)
_WORD, _SPOKEN = 10, 11
_ARROW_OUTSIDE = (_TABLE_OUTSIDE, _BATCH_OUTSIDE)
_SLICED = (_LIST, _DICT)
_MEMORY = (bytearray, memoryview)
_TEXTS_OF_NUMPY = (np.str_, np.bytes_)
_HOLDERS = {list, dict}
_LOOKED_INTO = (*_HOLDERS, *_MEMORY)
_DEEP_MAX = 512  # As deep as msgpack goes.
_LOOKED_AT_ONCE_MAX = 1 << 18
# Each tuple or value of a class within another takes 50 KiB of the C stack, which ends at 8 MiB or sooner, and the
# process with it.
_TUPLES_DEEP_MAX = 32
_TOO_DEEP = f"tuples and values of classes are nested {_TUPLES_DEEP_MAX} deep in it, or it is within itself"
_OUTSIDE_MIN_BYTES = 64 << 10
_SLICE_ENTRIES = 8_192
# Long lists and dicts are looked for this deep, and in those with so many entries.
_LOOKED_DEEP = 4
_LOOKED_ENTRIES_MAX = 64
# What `dtype.str` says of arrays without objects and fields. Other texts would be read as descriptions of types.
_DTYPE = re.compile(r"[<>|](?:[biufcSUV][0-9]{1,9}|[mM]8(?:\[[0-9]{0,9}[a-zA-Z]{1,7}\])?)")
_tokens = itertools.count(1)
_NO_STEPS: TypesByStep = {}

Parts: TypeAlias = list[memoryview]  # Of one buffer, in this order; views of what the operator holds.


class ForeignValue:
    """Where `encode` puts what is large; `note` is told of the size of each buffer, and may raise to make an end."""

    def __init__(self, note: Callable[[int], None]) -> None:
        self.buffers: list[Parts] = []
        self._note = note

    def put(self, parts: Parts) -> int:
        """Put a buffer there; its number."""
        self._note(sum(map(len, parts)))
        self.buffers.append(parts)
        return len(self.buffers) - 1


class Parcel:
    """The state of one partition, for each step of its segment, as a body of the protocol; and its digest.

    `beyond` is what of the digest lies behind positions that copies are compared at.
    """

    __slots__ = ("beyond", "digest", "states", "token")

    def __init__(self, states: Any, digest: int, beyond: Any = ()) -> None:
        self.states = states
        self.digest = digest
        self.beyond = beyond
        self.token = next(_tokens)  # Stands for it in a recording.


def encode(state: Any, whose: str, outside: ForeignValue | None = None, words: StateTypes = PLAIN) -> bytes:
    """`state` as bytes, and what is large put `outside`, if that is given: it is not copied.

    `whose` says in an error which operator's it is, `words` what may be in it.
    """
    try:
        return _encode(state, whose, outside, words, 0)
    except Unknown as unknown:
        raise cannot_move(unknown, state, whose) from None


def _encode(state: Any, whose: str, outside: ForeignValue | None, words: StateTypes, depth: int) -> bytes:
    """As `encode`, within `depth` tuples or values of a class."""

    def within(value: Any, words: StateTypes = words) -> bytes:
        return _encode(value, whose, outside, words, depth + 1)

    def extend(value: Any) -> msgpack.ExtType:
        if depth == _TUPLES_DEEP_MAX and type(value) is not TypedState:
            raise Unknown(value, _TOO_DEEP, "Keep lists and dicts, or HOOKS")
        if type(value) in _TEXTS_OF_NUMPY:
            return word(value)
        if isinstance(value, np.ndarray | np.generic) and (why := _why_not(value)):
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
            return msgpack.ExtType(_SPOKEN, place + within(value.state, value.words))
        return word(value)

    def word(value: Any, why: str = "") -> msgpack.ExtType:
        try:
            plain = words.to_plain(value)
        except Unknown as unknown:
            raise unknown if unknown.why else Unknown(value, advice=f"{why}, or HOOKS" if why else "") from None
        return msgpack.ExtType(_WORD, within(list(plain)))

    def sliced(value: Any, deep: int) -> Any:
        """`value` with the long lists and dicts in it put outside."""
        if type(value) not in (list, dict) or deep == _LOOKED_DEEP:
            return value
        if len(value) > _SLICE_ENTRIES:
            assert outside is not None
            slices = map(within, _slices(value))
            numbers = [outside.put([memoryview(packed)]) for packed in slices]
            return msgpack.ExtType(_LIST if type(value) is list else _DICT, msgpack.packb(numbers))
        if len(value) > _LOOKED_ENTRIES_MAX:
            return value
        if type(value) is list:
            return [sliced(each, deep + 1) for each in value]
        return {key: sliced(each, deep + 1) for key, each in value.items()}

    try:
        if _holds_memory(state):
            state = _replaced(state, extend)
        packed: bytes = msgpack.packb(state if outside is None else sliced(state, 0), default=extend, strict_types=True)
    except UnicodeEncodeError as error:
        raise Unknown(error.object, "it has half a character", "Keep it as bytes") from error
    except (OverflowError, ValueError, RecursionError) as error:
        raise Unknown(state, str(error), "Keep it flatter: nothing may be in itself, or HOOKS") from error
    return packed


def _why_not(value: Any) -> str:
    """What to do instead of keeping an array that cannot be moved; nothing if it can."""
    if isinstance(value, np.ma.MaskedArray):
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
    """Whether there are bytearrays or memoryviews in lists and dicts: msgpack makes bytes of them and does not ask.

    Looks at all values of one depth at once, because it looks at every state that moves, and almost none has any. What
    msgpack does not know itself is looked into when it asks.
    """
    values: Any = [state]
    for _ in range(_DEEP_MAX):
        kinds = set(map(type, values))
        if kinds.isdisjoint(_LOOKED_INTO):
            return False
        if not kinds.isdisjoint(_MEMORY):
            return True
        holders = values if kinds <= _HOLDERS else [value for value in values if type(value) in _HOLDERS]
        if sum(map(len, holders)) > _LOOKED_AT_ONCE_MAX:
            # Each once, lest lists that hold one another twice become ever more.
            holders = {id(value): value for value in holders}.values()
        # The quickest way to what is in many lists and dicts; the keys of dicts come along, which are no memory.
        values = gc.get_referents(*holders)
    return False


def _replaced(value: Any, extend: Callable[[Any], Any]) -> Any:
    """`value` with what stands for its bytearrays; an error for memoryviews."""
    if type(value) in _MEMORY:
        return extend(value)
    if type(value) is list:
        return [_replaced(each, extend) for each in value]
    return {key: _replaced(each, extend) for key, each in value.items()} if type(value) is dict else value


def decode(packed: Any, outside: Sequence[Any] = (), words: StateTypes = PLAIN, steps: TypesByStep = _NO_STEPS) -> Any:
    """What `encode` was given; numpy scalars and empty shapes come back as they were.

    `outside` are the buffers of what is large, writable arrays of bytes: what is made of them keeps them. What is in
    the words of a step's operator is read with those in `steps`, the rest with `words`.
    """
    return _decode(packed, outside, words, steps, 0)


def _decode(packed: Any, outside: Sequence[Any], words: StateTypes, steps: TypesByStep, depth: int) -> Any:
    if depth > _TUPLES_DEEP_MAX:
        raise BadFrame(f"state with tuples or values of classes nested more than {_TUPLES_DEEP_MAX} deep")

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
        if code == _SPOKEN:
            return _spoken(data, steps, within)
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
        raise BadFrame(
            f"what came is not the state of a partition: {protocol_error(error)}; run one release everywhere"
        ) from error


def _spoken(data: bytes, steps: TypesByStep, within: Callable[[Any, StateTypes], Any]) -> Any:
    """State of a step, in the words of the operator that this process has there."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[:64])
    place = tuple(unpacker.unpack())
    if place not in steps:
        raise BadFrame(f"state of step {format_value(place)}, of which nobody here knows what its state is made of")
    return within(memoryview(data)[unpacker.tell() :], steps[place])


def _extended_array(value: Any, outside: ForeignValue | None) -> msgpack.ExtType:
    value, layout = _in_layout(value)
    head = [value.dtype.str, list(value.shape), *layout]
    if outside is None or value.nbytes < _OUTSIDE_MIN_BYTES:
        return msgpack.ExtType(_ARRAY, msgpack.packb(head) + np.ascontiguousarray(value).tobytes())
    flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    number = outside.put([memoryview(flat)])  # type: ignore[arg-type]
    return msgpack.ExtType(_ARRAY_OUTSIDE, msgpack.packb([number, *head]))


def _in_layout(value: Any) -> tuple[Any, list[list[int]]]:
    """An array with its axes as they lie in memory, and, if that is another order, which axes these are.

    A sum goes through memory, and rounds by the way it goes: a copy with another layout would come to another one.
    """
    if value.flags.c_contiguous:
        return value, []
    axes = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
    return (value, []) if axes == list(range(value.ndim)) else (value.transpose(axes), [axes])


def _extended_arrow(value: Any, outside: ForeignValue | None) -> msgpack.ExtType:
    is_table = isinstance(value, pa.Table)
    try:
        for rows in value.to_batches() if is_table else (value,):
            check_rows(rows)
    except ColumnError as error:
        # Whoever is sent it could not read it, and would not know whose it is.
        raise Unknown(value, str(error), "Keep another type, or HOOKS") from None
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
    """Bytes as a flat array of what they claim to be."""
    if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
        raise BadFrame(f"state with an array of the unknown type {format_value(dtype)}")
    flat = data.view(np.dtype(dtype))
    # To numpy every pattern of bits is a value of these, and whoever looks at one that is none comes to harm.
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


class _Gathered:
    """A file for Arrow to write to, which keeps what it is given: columns come as the memory they are in."""

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
    gathered = _Gathered()
    with pa.PythonFile(gathered, mode="w") as file, pa.ipc.new_stream(file, data.schema) as writer:
        writer.write(data)
    return gathered.parts
