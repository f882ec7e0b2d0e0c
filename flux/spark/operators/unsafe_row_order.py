"""The order in which Spark goes through its state: that of the bytes under which its state store has the keys.

A map state's entries, and timers that expire at the same instant, come in that order. It looks odd (256 comes before
1), but what a processor emits depends on it, and it is the same whichever way the state came to be. Spark writes a key
as an *unsafe row*: a bit for each null, a word of eight bytes for each field, little end first, and what is longer
behind them.
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
_WORD = 8
_NO_VALUE = bytes(_WORD)


def byte_order(kinds: Sequence[Any]) -> Callable[[tuple[Any, ...]], Any]:
    """What sorts tuples of these types as Spark has them; those of types that are not known here by their own order."""
    encoders = [_encoder(kind) for kind in kinds]
    if any(encoder is None for encoder in encoders):
        return _own_order
    head = _WORD * ((len(encoders) + 63) // 64)

    def encoded(key: tuple[Any, ...]) -> bytes:
        nulls, words, rest = 0, [], b""
        for i, (encoder, value) in enumerate(zip(encoders, key, strict=True)):
            if value is None:
                nulls |= 1 << i
                words.append(_NO_VALUE)
                continue
            assert encoder is not None
            part = encoder(value)
            if isinstance(part, bytes):
                words.append(part)
            else:
                [data] = part
                words.append(struct.pack("<ii", len(data), head + _WORD * len(encoders) + len(rest)))
                rest += data + bytes(-len(data) % _WORD)
        return nulls.to_bytes(head, "little") + b"".join(words) + rest

    return encoded


def _encoder(kind: Any) -> Callable[[Any], bytes | list[bytes]] | None:
    """What makes a field's word of a value; of one that does not fit into a word, a list with what goes behind."""
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


def _own_order(key: tuple[Any, ...]) -> Any:
    """Nulls first; then as the values compare, or as they print where they do not."""
    return [(value is not None, repr(value)) for value in key]
