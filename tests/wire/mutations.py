"""Mutations: well-formed input made malformed, as a broken or hostile peer might.

Two kinds: of bytes, which know nothing of what they change, and of plain values, which stay well-formed as msgpack
and so reach the checks behind it.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import msgpack

_NUMBERS = (0, 1, 2, 3, 7, 8, 15, 16, 63, 64, 127, 128, 255, 256, 4_096, 65_535, 1 << 20, 1 << 24)
_EXTREMES = (2**15 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def mutated(draw: Random, data: bytes, others: list[bytes]) -> bytes:
    """`data` with a few changes; parts of `others` may come in."""
    if draw.random() < 0.02:
        return draw.randbytes(draw.randrange(200))
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        draw.choice(_OF_BYTES)(draw, changed, others)
    return bytes(changed)


def _flip(draw: Random, data: bytearray, others: list[bytes]) -> None:
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def _set(draw: Random, data: bytearray, others: list[bytes]) -> None:
    if data:
        data[draw.randrange(len(data))] = draw.choice((0, 1, 0x7F, 0x80, 0xC0, 0xC1, 0xC7, 0xDB, 0xDD, 0xDF, 0xFF))


def _number(draw: Random, data: bytearray, others: list[bytes]) -> None:
    """A length or an offset, as lengths and offsets are written."""
    width = draw.choice((1, 2, 4, 4, 8, 8))
    at = draw.randrange(max(1, len(data) - width + 1))
    if draw.random() < 0.7:
        at -= at % width  # Arrow aligns its numbers.
    value = draw.choice(_NUMBERS + _EXTREMES) * draw.choice((1, 1, 1, -1)) + draw.choice((0, 0, -1, 1))
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, draw.choice(("little", "little", "big")))


def _delete(draw: Random, data: bytearray, others: list[bytes]) -> None:
    at = draw.randrange(len(data) + 1)
    del data[at : at + draw.choice((1, 1, 2, 4, 8, 64))]


def _truncate(draw: Random, data: bytearray, others: list[bytes]) -> None:
    del data[draw.randrange(len(data) + 1) :]


def _insert(draw: Random, data: bytearray, others: list[bytes]) -> None:
    at = draw.randrange(len(data) + 1)
    data[at:at] = draw.randbytes(draw.choice((1, 2, 4, 8, 32)))


def _repeat(draw: Random, data: bytearray, others: list[bytes]) -> None:
    at = draw.randrange(len(data) + 1)
    part = data[at : at + draw.choice((1, 4, 16, 64))]
    data[at:at] = part * draw.choice((1, 2, 50))


def _splice(draw: Random, data: bytearray, others: list[bytes]) -> None:
    other = draw.choice(others)
    data[draw.randrange(len(data) + 1) :] = other[draw.randrange(len(other) + 1) :]


_OF_BYTES = (_flip, _flip, _set, _number, _number, _number, _delete, _truncate, _insert, _repeat, _splice)


_ODD: tuple[Any, ...] = (
    *(None, True, False, 1.5, math.nan, math.inf, "", "x", "x" * 5_000, "\x00", b"", b"x" * 40),
    *([], [[]], [0] * 300, {}, {"$": "Ack"}, {"set": 3}, {"set": [[1]]}, msgpack.Timestamp(1, 1)),
)


def odd(draw: Random) -> Any:
    """Any value that msgpack knows, and that was hardly expected."""
    kind = draw.randrange(12)
    if kind < 3:
        return draw.choice(_NUMBERS + _EXTREMES) * (1 if draw.random() < 0.7 else 0)
    if kind == 3:
        return -draw.choice((1, 2**31, 2**63))
    if kind == 4:
        deep: Any = draw.choice(([], {}, 0))
        for _ in range(draw.choice((3, 100, 400))):
            deep = [deep] if draw.random() < 0.5 else {"$": deep}
        return deep
    if kind == 5:
        return msgpack.ExtType(draw.randrange(128), draw.randbytes(draw.choice((0, 1, 16))))
    return draw.choice(_ODD)


def rearranged(draw: Random, value: Any, others: list[Any]) -> Any:
    """`value`, plain, with one place of it changed; parts of `others` may come in."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        return _in_map(draw, value, others)
    if isinstance(value, list | tuple) and value and draw.random() < 0.85:
        return _in_list(draw, list(value), others)
    return odd(draw) if draw.random() < 0.8 else _part(draw, draw.choice(others))


def _in_map(draw: Random, value: dict[Any, Any], others: list[Any]) -> dict[Any, Any]:
    key = draw.choice(list(value))
    what = draw.random()
    if what < 0.08:
        return {k: v for k, v in value.items() if k != key}
    if what < 0.16:
        return {**value, draw.choice(("", "kind", "$", "n", "more", "schema", "of")): odd(draw)}
    return {**value, key: rearranged(draw, value[key], others)}


def _in_list(draw: Random, value: list[Any], others: list[Any]) -> list[Any]:
    at = draw.randrange(len(value))
    what = draw.random()
    if what < 0.08:
        return value[:at] + value[at + 1 :]
    if what < 0.16:
        return value[:at] + [value[at]] * draw.choice((2, 3, 20)) + value[at:]
    return [*value[:at], rearranged(draw, value[at], others), *value[at + 1 :]]


def _part(draw: Random, value: Any) -> Any:
    while isinstance(value, dict | list | tuple) and value and draw.random() < 0.7:
        value = draw.choice(list(value.values()) if isinstance(value, dict) else list(value))
    return value
