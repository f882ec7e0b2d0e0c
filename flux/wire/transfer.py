"""Transfer: the state of a partition as a stream of bytes that is sent in chunks, and its reader.

    item := kind u8 | length u64 | bytes           kind: a buffer, or a value that refers to the buffers before it

A value comes after the buffers that it needs (`state_codec`). So values can be read one by one, and neither their
number nor their size is announced. The chunks into which the stream is cut know nothing of items.

Chunks of one transfer arrive in order; those of others, and all other frames of a link, arrive between them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from .codec import Codec, read_frame
from .frames import BadFrame
from .state_codec import OutsideBuffers, decode, encode
from .state_types import TypesByStep

# Data that was sent after a chunk waits for it: half a millisecond on a link that carries a gigabyte per second.
CHUNK_BYTES = 512 << 10

CHUNK_KIND = "chunk"  # The kind of the frames that carry them.

_ITEM = struct.Struct("<BQ")
_BUFFER, _VALUE = 0, 1
_BUFFERS_MAX = 1 << 20  # Of one value; each has at least 64 KiB, or 8,192 entries.


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChunk:
    """A chunk of the copy `version`; the bytes are the body of its frame. The `last` one has none.

    With `failed` the donor has lost the snapshot: what was sent of it is void, and no more follows.
    """

    version: int
    last: bool
    failed: bool = False


_CODEC = Codec([StateChunk])


def chunk_frame(chunk: StateChunk) -> dict[str, Any]:
    """Return the header of the frame that carries a chunk."""
    return {"kind": CHUNK_KIND, "m": _CODEC.to_plain(chunk)}


def read_chunk(header: dict[str, Any]) -> StateChunk:
    """Return the chunk in a frame; `BadFrame` if there is none."""
    return cast(StateChunk, read_frame(_CODEC, CHUNK_KIND, header))


@dataclass(frozen=True)
class StateOwner:
    """The owner of state, for errors: a place, and the steps, each of which has some of the values."""

    place: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return self.place

    def of(self, value: Any) -> str:
        """Return the owner of a value: the step whose number it begins with, or only the place."""
        number = value[0] if isinstance(value, list) and value else None
        return f"step {self.steps[number]!r}, {self.place}" if type(number) is int else self.place


def items(
    values: Iterable[Any], whose: str | StateOwner, note: Callable[[int], None] = lambda size: None
) -> Iterator[list[memoryview]]:
    """Return the stream of `values`: the parts of each are views of its memory, valid until the next is taken.

    `note` is called with the size of each part as it is encoded, and may raise to end the stream.
    """
    for value in values:
        outside = OutsideBuffers(note)
        packed = encode(value, whose if isinstance(whose, str) else whose.of(value), outside)
        note(len(packed))
        stream: list[memoryview] = []
        for parts in outside.buffers:
            stream += [memoryview(_ITEM.pack(_BUFFER, sum(map(len, parts)))), *parts]
        yield [*stream, memoryview(_ITEM.pack(_VALUE, len(packed))), memoryview(packed)]


def state_chunks(stream: bytes | bytearray) -> Iterator[memoryview]:
    """Return the chunks of a stream that is in memory."""
    for start in range(0, len(stream), CHUNK_BYTES):
        yield memoryview(stream)[start : start + CHUNK_BYTES]


class Arrival:
    """A stream that arrives chunk by chunk; each item has memory of its own, which the decoded value keeps."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._head = bytearray()  # Of the next item, as much as has arrived.
        self._kind = _BUFFER
        self._item: Any = None
        self._filled = 0
        self._buffers: list[Any] = []  # Since the last value.
        self._values: list[tuple[Any, list[Any]]] = []

    def take(self, chunk: Any) -> None:
        """Take the next chunk."""
        rest = np.frombuffer(chunk, np.uint8)
        self.size_bytes += len(rest)
        while len(rest):
            if self._item is None:
                missing = _ITEM.size - len(self._head)
                self._head += rest[:missing].tobytes()
                rest = rest[missing:]
                if len(self._head) == _ITEM.size:
                    self._begin()
            else:
                some = min(len(rest), len(self._item) - self._filled)
                self._item[self._filled : self._filled + some] = rest[:some]
                self._filled += some
                rest = rest[some:]
            if self._item is not None and self._filled == len(self._item):
                self._finish()

    def values(self, steps: TypesByStep = MappingProxyType({})) -> Iterator[Any]:
        """Return the values sent, decoded one by one with the state types of `steps`; once, after the last chunk."""
        if self._item is not None or self._head or self._buffers:
            raise BadFrame("the state of a partition ended in the middle of a value")
        for packed, buffers in self._values:
            yield decode(packed, buffers, steps=steps)

    def _begin(self) -> None:
        self._kind, size = _ITEM.unpack(self._head)
        self._head.clear()
        if self._kind not in (_BUFFER, _VALUE) or len(self._buffers) >= _BUFFERS_MAX:
            raise BadFrame(f"the state of a partition has an item of kind {self._kind} where none can be")
        try:
            # The system gives memory when it is written to, so what is announced and does not arrive takes none.
            self._item, self._filled = np.empty(size, np.uint8), 0
        except (MemoryError, ValueError):
            raise BadFrame(f"there is no memory for {size:,} bytes of the state of a partition") from None

    def _finish(self) -> None:
        if self._kind == _BUFFER:
            self._buffers.append(self._item)
        else:
            self._values.append((self._item, self._buffers))
            self._buffers = []
        self._item = None
