"""Frames: the unit of every connection: a msgpack header, and a body that is opaque here.

    magic "Fx" | version u8 | 0 u8 | header length u32 | body length u64 | header | body

All integers are little-endian. A header is a map with its `kind`. A frame with another magic or version, or beyond
the limits, is a `BadFrame`. Its connection is closed, because nothing after it can be trusted. Everything in this
package that reads data of a peer raises `BadFrame` and nothing else when that is malformed. So one `except` around a
connection keeps all the others from harm.

Lengths are checked before a byte of what they announce is read. A peer that has not proved to know the run's secret is
limited to `STRANGER_MAX_BYTES`. Unpacked, a header takes up to a hundred times its length in memory (the worst is an
empty map for every byte): a stranger's takes less than half a mebibyte.
"""

from __future__ import annotations

import reprlib
import struct
from typing import Any, TypeVar

import msgpack

T = TypeVar("T")

VERSION = 1
HEADER_MAX_BYTES = 16 << 20
BODY_MAX_BYTES = 1 << 31
STRANGER_MAX_BYTES = 4 << 10  # Of a header, from a peer that has not authenticated; it may send no body.

PREFIX = struct.Struct("<2sBxIQ")
MAGIC = b"Fx"


class BadFrame(Exception):
    """Bytes that are not a frame of this version, or a frame beyond the limits or with invalid content."""


class BadValues(BadFrame):
    """A well-formed frame of rows with an invalid value: every receiver would reject it alike."""


def format_value(value: Any) -> str:
    """Return a value from a peer for an error text: a little of it, however large or deep it is."""
    return reprlib.repr(value)


def protocol_error(error: BaseException) -> str:
    """Return an error caused by data of a peer as one short line: its `repr` may hold all of that data."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def field(header: dict[str, Any], name: str, kind: type[T]) -> T:
    """Return the value of a header under `name`, which must be of this kind.

    >>> field({"kind": "here", "address": "unix:a"}, "address", str)
    'unix:a'
    """
    value = header.get(name)
    if not isinstance(value, kind):
        raise BadFrame(f"expected {header['kind']!r} with {name} as {kind.__name__}, got {format_value(value)}")
    return value


def numbers(header: dict[str, Any], name: str) -> tuple[int, ...]:
    """Return the whole numbers of a header under `name`."""
    values = field(header, name, tuple)
    if not all(isinstance(value, int) for value in values):
        raise BadFrame(f"expected {header['kind']!r} with {name} as whole numbers, got {format_value(values)}")
    return values


def encode(header: dict[str, Any], body_bytes: int = 0) -> bytes:
    """Return prefix and header of a frame whose body, `body_bytes` long, is sent after it."""
    packed: bytes = msgpack.packb(header)
    if len(packed) > HEADER_MAX_BYTES or body_bytes > BODY_MAX_BYTES:
        raise BadFrame(
            f"a frame with {len(packed):,} bytes of header and {body_bytes:,} of body is over the limits "
            f"({HEADER_MAX_BYTES:,} and {BODY_MAX_BYTES:,}); send fewer rows at once"
        )
    return PREFIX.pack(MAGIC, VERSION, len(packed), body_bytes) + packed


def decode_prefix(
    prefix: bytes | bytearray | memoryview, header_max: int = HEADER_MAX_BYTES, body_max: int = BODY_MAX_BYTES
) -> tuple[int, int]:
    """Return the lengths of header and body that a frame's prefix announces."""
    if len(prefix) != PREFIX.size:
        raise BadFrame(f"a frame begins with {PREFIX.size} bytes of prefix, got {len(prefix)}")
    magic, version, header_bytes, body_bytes = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise BadFrame(f"expected a Flux frame (magic {MAGIC!r}), got {magic!r}: not a Flux process")
    if version != VERSION:
        raise BadFrame(f"expected wire version {VERSION}, got {version}: run one release everywhere")
    if header_bytes > header_max or body_bytes > body_max:
        raise BadFrame(
            f"a frame of {header_bytes:,} + {body_bytes:,} bytes is over the limits of {header_max:,} + {body_max:,}"
        )
    return header_bytes, body_bytes


def decode_header(packed: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Return the header; lists become tuples."""
    try:
        header = msgpack.unpackb(packed, use_list=False, strict_map_key=True)
    except Exception as error:
        raise BadFrame(f"the frame's header is not msgpack: {protocol_error(error)}") from error
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise BadFrame(f"a frame's header is a map with a kind, got {format_value(header)}")
    return header
