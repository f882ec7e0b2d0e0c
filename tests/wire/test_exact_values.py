"""What people keep in state comes back exactly as it was, to the type and the bit, or is refused and named."""

from __future__ import annotations

import array
import enum
import functools
import re
import struct
import threading
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from random import Random
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flux.types.errors import StateError
from flux.wire.frames import BadFrame
from flux.wire.state_codec import OutsideBuffers, decode, encode
from flux.wire.state_types import PLAIN, StateTypes

WHOSE = "step 'Visits'"
T = TypeVar("T")


@dataclass(kw_only=True)
class Keyword:
    x: int
    y: Any = None


@dataclass
class Derived(Keyword):
    z: InitVar[int] = 2
    made: int = field(init=False)

    def __post_init__(self, z: int) -> None:
        self.made = self.x * z


@dataclass
class Box(Generic[T]):
    value: T


@dataclass
class Stats:
    n: int = 0


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: Any
    y: Any = None


class Named(np.ndarray[Any, Any]):
    """As an array with a name is."""


class MyInt(int):
    pass


class Failure(Exception):
    pass


class MyDict(dict[Any, Any]):
    pass


WORDS = StateTypes((Keyword, Derived, Box, Stats, Level, Word, Bits, Point))
BERLIN = ZoneInfo("Europe/Berlin")
GRID = np.arange(24.0).reshape(2, 3, 4)
PAYLOAD = struct.unpack(">d", bytes.fromhex("7ff8000000abcdef"))[0]

EXACT: dict[str, Any] = {
    "a dataclass derived from another": Derived(x=3, y=(Keyword(x=1),), z=7),
    "a generic dataclass": Box[int](3),
    "enums and keys that are": [Level.LOW, Word.A, Bits.A | Bits.B, {Level.LOW: 1, Word.A: 2, Bits.A: 3}],
    "a dict with keys of any kind": {(1, None): 1, datetime(2024, 1, 1): 2, Decimal("1.0"): 3, None: 4, Point(1): 5},
    "keys that are equal to others": [{True: 1}, {1.0: 1}, {-0.0: 1}],
    "default dicts": [defaultdict(Counter, {1: Counter("a")}), defaultdict(deque), defaultdict(Decimal)],
    "a default dict of a class that is named": defaultdict(Stats, {"a": Stats(3)}),
    "deques": [deque([1, 2], maxlen=2), deque(maxlen=0), deque()],
    "ordered": OrderedDict([("b", 1), ("a", 2)]),
    "an offset without a name": datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    "an offset with a name": datetime(2024, 1, 1, tzinfo=timezone(timedelta(0), "UTC")),
    "the hour that comes twice": datetime(2021, 10, 31, 2, 30, tzinfo=BERLIN, fold=1),
    "zones": [BERLIN, UTC, timezone(timedelta(hours=1), "here"), ZoneInfo("UTC")],
    "decimals": [Decimal(text) for text in ("NaN123", "-sNaN7", "-0", "1E+5", "-Infinity", "0E-10", "1.10")],
    "floats": [-0.0, float("inf"), PAYLOAD, -PAYLOAD, 5e-324, complex(-0.0, PAYLOAD)],
    "large integers": [2**64, -(2**63) - 1, -(2**200)],
    "texts of numpy": [np.str_(""), np.str_("a\0"), np.bytes_(b""), np.bytes_(b"a\0"), np.void(b"a\0")],
    "scalars of numpy": [np.float32(-0.0), np.bool_(True), np.datetime64("NaT", "D"), np.datetime64(5, "25s")],
    "arrays": [np.array(5), np.arange(3, dtype=">i4"), np.array(["2024", "NaT"], "M8[D]"), np.empty((0, 3))],
    "arrays of any order": [GRID[0].T, GRID.transpose(2, 0, 1), np.asfortranarray(GRID), GRID[:, ::2], GRID[::-1]],
    "paths": [Path("/a/b"), PurePosixPath("c")],
    "arrays of Arrow": [pa.array([1, None]), pa.array(["a", "b"])[1:], pa.array(["x"]).dictionary_encode()],
    "chunks of Arrow": [pa.chunked_array([[1], [2]]), pa.chunked_array([], pa.int8())],
    "scalars of Arrow": [pa.scalar(5, pa.int8()), pa.scalar(None, pa.string()), pa.scalar([{"a": 1}])],
    "bytes that can be written to": [bytearray(b"ab"), (bytearray(),)],
}


def bits(value: Any) -> Any:
    """A value as something that is equal only for the same value of the same type."""
    kind = type(value)
    if isinstance(value, float):
        return kind, struct.pack(">d", value)
    if isinstance(value, complex):
        return kind, bits(value.real), bits(value.imag)
    if isinstance(value, np.ndarray):
        layout = np.argsort([-abs(stride) for stride in value.strides], kind="stable").tolist()
        return kind, value.dtype.str, value.shape, value.tobytes(), layout if value.size > 1 else None
    if isinstance(value, bytes | str) and not isinstance(value, enum.Enum):
        return kind, bytes(value) if isinstance(value, bytes) else str.__str__(value)
    if isinstance(value, np.generic):
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, pa.Array | pa.ChunkedArray | pa.Scalar):
        return kind, value.type, value if isinstance(value, pa.Scalar) else value.to_pylist()
    if isinstance(value, datetime):
        return kind, repr(value)
    if isinstance(value, dict):
        entries = [(bits(key), bits(each)) for key, each in value.items()]
        return kind, entries, getattr(value, "default_factory", None)
    if isinstance(value, list | tuple | deque):
        return kind, [bits(each) for each in value], getattr(value, "maxlen", None)
    if isinstance(value, Decimal):
        return kind, value.as_tuple()
    if isinstance(value, Keyword | Box | Stats):
        return kind, [(name, bits(each)) for name, each in vars(value).items() if name != "__orig_class__"]
    return kind, value, repr(value)


@pytest.mark.parametrize("name", EXACT)
def test_a_value_comes_back_to_the_type_and_the_bit(name: str) -> None:
    for state in (EXACT[name], {"within": [EXACT[name]]}, Point(EXACT[name])):
        assert bits(decode(encode(state, WHOSE, words=WORDS), words=WORDS)) == bits(state)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_large_array_keeps_its_order_in_memory(axes: tuple[int, ...]) -> None:
    """Sums depend on it, to the last digit: copies that had another one would differ."""
    large = np.random.default_rng(1).random((20, 30, 40)).transpose(axes)
    outside = OutsideBuffers(lambda size: None)
    packed = encode({"a": large}, WHOSE, outside)
    buffers = [np.frombuffer(b"".join(parts), np.uint8).copy() for parts in outside.buffers]
    there = decode(packed, buffers)["a"]
    assert len(buffers) == 1 and there.strides == large.strides and (there == large).all()
    assert there.sum(axis=0).tolist() == large.sum(axis=0).tolist()


# Their classes cannot be named, and nobody is told to.
IN_C = r"cannot be moved to another site\. Give the operator static methods"
OF_PANDAS = r"Keep an Arrow table of it, .*from_pandas.*, or give the operator static methods"
REFUSED: dict[str, tuple[Any, str]] = {
    "derived array": (np.arange(3).view(Named), "Keep a plain array, np.asarray"),
    "structured": (np.zeros(2, [("a", "i4")]), "Keep an array for each field"),
    "objects": (np.array([1, "a"], object), "Keep a list"),
    "nothing": (np.empty(2, "V0"), "values have no bytes"),
    "lambda": (defaultdict(lambda: 1), "the factory of a defaultdict is one of"),
    "not named": (defaultdict(SimpleNamespace), "the factory of a defaultdict is one of.*state_types"),
    "partial": (defaultdict(functools.partial(int, 5)), "the factory of a defaultdict is one of"),
    "ChainMap": (ChainMap({1: 2}), r"`state_types = \(ChainMap,\)`"),
    **{type(value).__name__: (value, IN_C) for value in (MyInt(1), MyDict(a=1), Failure(), Random(1))},
    **{type(value).__name__: (value, IN_C) for value in (SimpleNamespace(), array.array("i"), re.compile(""))},
    **{
        type(value).__name__: (value, IN_C)
        for value in (threading.Lock(), iter([]), len, int, range(3), memoryview(b""))
    },
    **{type(value).__name__: (value, OF_PANDAS) for value in (pd.Series([1]), pd.DataFrame({"a": [1]}), pd.Index([1]))},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_come_back_is_refused_with_its_type_its_place_and_the_hooks(name: str) -> None:
    value, says = REFUSED[name]
    kind = re.escape(type(value).__qualname__)
    with pytest.raises(StateError, match=rf"step 'Visits': .* of type {kind}, at \['a'\]\[0\], .*{says}") as caught:
        encode({"a": [value]}, WHOSE, words=WORDS)
    assert "encode_state(value)" in str(caught.value) and "decode_state(state)" in str(caught.value)


def test_a_key_that_cannot_be_moved_is_said_to_be_one() -> None:
    with pytest.raises(StateError, match="of type type, at a key of it, cannot"):
        encode({int: 1}, WHOSE)


def test_a_factory_that_is_not_named_is_not_made_of_what_came() -> None:
    packed = encode(defaultdict(Stats), WHOSE, words=WORDS)
    with pytest.raises(BadFrame, match="Stats"):
        decode(packed, words=PLAIN)
