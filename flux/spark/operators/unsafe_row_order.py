"""The order in which Spark iterates over its state: by the bytes of the keys in its state store.

It is the order of the entries of a map state, and of timers that expire at the same instant. It looks odd (256 is
before 1), but the output of a processor depends on it. It does not depend on the history of the state. Spark writes
a key as an *unsafe row*: a bit for each null, a little-endian word of eight bytes for each field, then longer values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import types

__all__ = ["byte_order"]

_FORMATS = {
    types.BooleanType: "<?7x",
    types.ByteType: "<b7x",
    types.ShortType: "<h6x",
    types.IntegerType: "<i4x",
    types.LongType: "<q",
    types.FloatType: "<f4x",
    types.DoubleType: "<d",
}
_WORD_BYTES = 8
_NULL_WORD = bytes(_WORD_BYTES)


def byte_order(kinds: Sequence[Any]) -> Callable[[tuple[Any, ...]], Any]:
    """Return a sort key for tuples of these types in Spark's order; types not known here sort by their `repr`."""
    encoders = [_encoder(kind) for kind in kinds]
    if any(encoder is None for encoder in encoders):
        return _repr_order
    head = _WORD_BYTES * ((len(encoders) + 63) // 64)

    def encode(key: tuple[Any, ...]) -> bytes:
        nulls, words, rest = 0, [], b""
        for i, (encoder, value) in enumerate(zip(encoders, key, strict=True)):
            if value is None:
                nulls |= 1 << i
                words.append(_NULL_WORD)
                continue
            assert encoder is not None
            part = encoder(value)
            if isinstance(part, bytes):
                words.append(part)
            else:
                [data] = part
                words.append(struct.pack("<ii", len(data), head + _WORD_BYTES * len(encoders) + len(rest)))
                rest += data + bytes(-len(data) % _WORD_BYTES)
        return nulls.to_bytes(head, "little") + b"".join(words) + rest

    return encode


def _encoder(kind: Any) -> Callable[[Any], bytes | list[bytes]] | None:
    """Return an encoder of a value as a word, or as a list of one value that is written after the words."""
    for spark, form in _FORMATS.items():
        if isinstance(kind, spark):
            return struct.Struct(form).pack
    if isinstance(kind, types.StringType | types.VarcharType | types.CharType):
        return lambda value: [value.encode()]
    if isinstance(kind, types.BinaryType):
        return lambda value: [bytes(value)]
    if isinstance(kind, types.DateType):
        return lambda value: struct.pack("<i4x", kind.toInternal(value))
    if isinstance(kind, types.TimestampType | types.TimestampNTZType):
        return lambda value: struct.pack("<q", kind.toInternal(value))
    return None


def _repr_order(key: tuple[Any, ...]) -> Any:
    """Return a sort key: nulls first, then by `repr`."""
    return [(value is not None, repr(value)) for value in key]
