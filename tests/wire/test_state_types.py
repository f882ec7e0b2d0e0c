"""What state may be made of: it comes back as it was, and nothing is made that the operator does not name."""

from __future__ import annotations

import abc
import array
import enum
import math
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flux
from flux.hosting import host
from flux.model.batch import Batch
from flux.types.errors import PlanError, StateError
from flux.wire.frames import BadFrame
from flux.wire.state_codec import OutsideBuffers, decode, encode
from flux.wire.state_types import PLAIN, StateTypes, TypedState
from flux.wire.transfer import Arrival, items

WHOSE = "step 'Visits'"
Lock = type(threading.Lock())


T = TypeVar("T")


@dataclass
class Visit:
    page: str
    at: datetime | None = None
    tags: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Place:
    x: int
    y: Any


class Pair(NamedTuple):
    left: Any
    right: Any


class Colour(enum.Enum):
    RED = "a value that does not travel"
    BLUE = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Model:
    """A class of somebody's, whose instances are their attributes."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.weights = {"a": rate}


TYPES = (Visit, Place, Pair, Colour, Rights, Model)
WORDS = StateTypes(TYPES)


def returned(state: Any, words: StateTypes = WORDS) -> Any:
    return decode(encode(state, WHOSE, words=words), words=words)


zones = st.sampled_from(
    [
        *(None, UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")),
        *(timezone(timedelta(hours=-3, minutes=-30)), timezone(timedelta(hours=1), "here")),
    ]
)
hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
    st.complex_numbers(allow_nan=False),
    st.sampled_from([*Colour, *Rights, Rights.READ | Rights.WRITE]),
    st.integers(-128, 127).map(np.int8),
    st.floats(allow_nan=False, width=32).map(np.float32),
)
keys = (
    hashable
    | st.tuples(hashable, hashable)
    | st.builds(Pair, hashable, hashable)
    | st.builds(Place, st.integers(), hashable)
)
states = st.recursive(
    keys | st.frozensets(keys, max_size=4) | st.sets(keys, max_size=4),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, max_size=4).map(lambda some: deque(some, maxlen=9)),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4).map(OrderedDict),
        st.dictionaries(keys, inner, max_size=4).map(lambda some: defaultdict(list, some)),
        st.builds(Visit, st.text(), st.none() | st.datetimes(timezones=zones), st.sets(st.text(max_size=3))),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=12,
)


def alike(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return all(alike(a, b) and alike(x, y) for (a, x), (b, y) in pairs)
    if isinstance(one, list | tuple | deque):
        return all(map(alike, one, other))
    if isinstance(one, set | frozenset):
        return Counter(map(type, one)) == Counter(map(type, other))
    if isinstance(one, datetime):
        return str(one.tzinfo) == str(other.tzinfo) and one.fold == other.fold and str(one) == str(other)
    return True


@given(states)
def test_values_come_back_as_they_were(state: Any) -> None:
    assert alike(returned(state), state)


def test_a_counter_a_model_and_numbers_of_any_size_come_back() -> None:
    got = returned({"c": Counter("hello"), "m": Model(0.5), "n": [2**200, -(2**64), 2**64], "t": time(1, tzinfo=UTC)})
    assert type(got["c"]) is Counter and got["c"] == Counter("hello")
    assert type(got["m"]) is Model and vars(got["m"]) == vars(Model(0.5))
    assert got["n"] == [2**200, -(2**64), 2**64]
    assert got["t"] == time(1, tzinfo=UTC)
    assert math.isnan(returned(Decimal("NaN")))


class Learner(abc.ABC, Generic[T]):
    """What it is derived from has slots, and nothing in them."""

    def __init__(self, rate: float) -> None:
        self.rate = rate


def test_a_class_may_be_derived_from_abstract_and_generic_ones() -> None:
    got = returned(Learner(0.5), StateTypes((Learner,)))
    assert type(got) is Learner and got.rate == 0.5


@pytest.mark.parametrize(
    "value",
    [
        pd.Timestamp("2020-01-01T00:00:00.000000001"),
        pd.Timestamp("2020-01-01", unit="s"),
        pd.Timestamp("2020-10-25T01:30:00.000000001", tz="UTC").tz_convert("Europe/Berlin"),
        pd.Timestamp(2020, 10, 25, 1, 30, tzinfo=UTC).tz_convert(ZoneInfo("Europe/Berlin")),
        pd.Timestamp("2020-01-01T00:00:00.000000001", tz=timezone(timedelta(hours=2))),
        pd.Timestamp("2020-01-01", tz="UTC"),
        pd.Timedelta(-1, "ns"),
        pd.Timedelta(5, "D").as_unit("s"),
        pd.NaT,
    ],
)
def test_times_of_pandas_come_back_to_the_nanosecond(value: Any) -> None:
    [got] = returned([value])
    assert type(got) is type(value) and repr(got) == repr(value)
    if value is not pd.NaT:
        assert got == value and got.unit == value.unit


def test_where_there_is_no_pandas_its_times_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = encode([pd.Timestamp("2020-01-01")], WHOSE)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadFrame, match="pandas is not installed here"):
        decode(packed)


def test_an_hour_that_comes_twice_is_told_apart() -> None:
    twice = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    got = returned(twice)
    assert (got.utcoffset(), got.fold) == (timedelta(hours=1), 1)


def test_a_row_that_an_operator_keeps_is_still_a_row() -> None:
    [row] = Batch(pa.record_batch({"src": [1], "class": ["a"]}), np.arange(1), None, np.zeros(1, np.uint16)).rows()
    got = returned({"last": row}, PLAIN)["last"]
    assert (got.src, got[1], got._fields) == (1, "a", row._fields)


def test_attributes_beside_the_fields_of_a_dataclass_come_along() -> None:
    visit = Visit("a")
    visit.seen = 3  # type: ignore[attr-defined]
    assert vars(returned(visit)) == vars(visit)


class Strange:
    def __repr__(self) -> str:
        return "something strange"


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": [1, (2, Strange())]}, r"at \['a'\]\[1\]\[1\],"),
        ([Visit("p", None, Strange())], r"at \[0\]\.tags,"),  # type: ignore[arg-type]
        ({"a": Pair(1, {Strange(): 2})}, r"at \['a'\]\.right, a key,"),
        ({"m": [frozenset({Strange()})]}, r"at \['m'\]\[0\], an element,"),
        ({"keys": pa.table({"k": [7, 8]}), "states": [1, {"s": Strange()}]}, r"at the state of key \(8,\)\['s'\],"),
        (Strange(), "cannot be moved"),
    ],
)
def test_what_cannot_be_moved_is_named_with_its_place_and_what_to_do(state: Any, place: str) -> None:
    with pytest.raises(StateError, match=rf"step 'Visits': something strange of type Strange.*{place}") as caught:
        encode(state, WHOSE, words=WORDS)
    assert "`state_types = (Strange,)`" in str(caught.value)
    assert "encode_state(value)" in str(caught.value) and "decode_state(state)" in str(caught.value)


@pytest.mark.parametrize("value", [Visit("a"), Pair(1, 2), Colour.RED, Model(1.0)])
def test_a_class_that_is_not_named_is_not_sent(value: Any) -> None:
    with pytest.raises(StateError, match=f"of type {type(value).__name__}"):
        encode([value], WHOSE)


@pytest.mark.parametrize("value", [Visit("a"), Pair(1, 2), Colour.RED, Model(1.0)])
def test_a_class_that_is_not_named_is_not_made_of_what_came(value: Any) -> None:
    packed = encode([value], WHOSE, words=WORDS)
    for words in (PLAIN, StateTypes((Place,))):
        with pytest.raises(BadFrame, match=f"'.{type(value).__name__}', which the operator here does not name"):
            decode(packed, words=words)


@pytest.mark.parametrize(
    ("word", "plain"),
    [
        *((".Place", values) for values in ([1], [1, 2, 3], "ab", None, {1: 2}, {"z": 1})),
        *((".Pair", values) for values in ([1], {"left": 1})),
        *((".Colour", values) for values in ("GREEN", "__class__", 2, ["RED"])),
        *((".Rights", values) for values in (64, "READ", None)),
        *((".Model", values) for values in ([1], "a", {1: 2})),
        *((word, 1) for word in ("", ".", "Visit", ".os.system", "eval", None, 7, ".__class__")),
        *(
            ("datetime", values)
            for values in ([2024, 13, 1, 0, 0, 0, 0, 0, None], [], "2024", [1] * 8 + ["../../etc/passwd"])
        ),
        *(("defaultdict", values) for values in (["eval", {}], ["Visit", {}], [None])),
        *(("Decimal", values) for values in ("one", 1, None)),
        *(("zone", values) for values in ("../../etc/passwd", [[1, 0, 0]], ["1"], 7)),
        *(("Path", values) for values in (1, None, ["a"])),
        *((f"arrow.{kind}", values) for kind in ("Array", "ChunkedArray", "Scalar") for values in (1, [1], "a")),
        *(("arrow.Array", values) for values in (pa.table({}), pa.table({"a": [1], "b": [1]}))),
        ("arrow.Scalar", pa.table({"a": pa.array([], pa.int8())})),
        *((f"numpy.{kind}", values) for kind in ("str_", "bytes_") for values in (1, None, [1])),
        *(("row", values) for values in ([["a"], []], [[1], [2]], [["a", "b"], [1]])),
        *(("timedelta", values) for values in ([10**12, 0, 0], [1.5, 0, 0], [1])),
        *(("pandas.Timestamp", values) for values in ("now", [1, None, None])),
        ("pandas.Timestamp", [np.datetime64(1, "s"), "dateutil//etc/localtime", None]),
        *(("pandas.Timedelta", values) for values in (1, "1 day")),
        ("pandas.DataFrame", {"a": [1]}),
        ("set", [[1]]),
        ("UUID", b"short"),
        ("Fraction", [1, 0]),
    ],
)
def test_what_makes_no_sense_is_a_bad_frame(word: Any, plain: Any) -> None:
    packed = msgpack.packb(msgpack.ExtType(10, encode([word, plain], WHOSE)))
    with pytest.raises(BadFrame):
        decode(packed, words=WORDS)


def test_values_within_themselves_are_refused() -> None:
    visit = Visit("a")
    visit.at = visit  # type: ignore[assignment]
    with pytest.raises(StateError, match=r"Visit\(.*of type Visit.*nested 32 deep in it, or it is within itself"):
        encode(visit, WHOSE, words=WORDS)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(StateError, match=r"\{'a': \[\[\.\.\.\]\]\} of type dict.*nothing may be in itself"):
        encode({"a": endless}, WHOSE, words=WORDS)


# What an operator says of its state.


@dataclass
class Bag(dict[str, int]):
    total: int = 0


class Dice(Random):
    pass


class Failure(Exception):
    pass


class Hidden:
    __slots__ = ("__hidden", "shown")

    def hide(self, value: Any) -> None:
        self.__hidden = value

    def found(self) -> Any:
        return self.__hidden


@dataclass(slots=True)
class Half(Hidden):
    n: int = 0
    later: int = field(init=False)


def test_what_is_in_slots_comes_along_and_what_was_never_set_is_not() -> None:
    half = Half(3)
    half.hide({1})
    got = returned(half, StateTypes((Half,)))
    assert (got.n, got.found()) == (3, {1})
    assert not hasattr(got, "later") and not hasattr(got, "shown")


class Named(Pair):
    """A named tuple that could have attributes."""


def test_attributes_beside_the_fields_of_a_named_tuple_are_refused() -> None:
    words, named = StateTypes((Named,)), Named(1, 2)
    assert type(returned(named, words)) is Named
    named.more = 3  # type: ignore[attr-defined]
    with pytest.raises(StateError, match=r"Named\(left=1, right=2\).*the attributes more beside its fields"):
        encode([named], WHOSE, words=words)


class Polynomial:
    __slots__ = ("factors",)

    def __init__(self, factors: list[int]) -> None:
        self.factors = factors


class Fitting(flux.KeyedOperator):
    output = {"n": "int64"}  # noqa: RUF012
    state_types = (Visit,)

    @staticmethod
    def encode_state(value: Any) -> Any:
        return value.factors if isinstance(value, Polynomial) else NotImplemented

    @staticmethod
    def decode_state(state: Any) -> Any:
        return Polynomial(state)

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        visit, fitted = state or (Visit("first"), Polynomial([]))
        fitted.factors.append(row.v)
        return (visit, fitted), [{"n": len(fitted.factors)}]


def hosted(operator: Any) -> Any:
    driving = host(flux.model.operator.OperatorStep(operator, {}, "Fitting", ("k",), 4, 0, None))
    driving.open([0])
    return driving


def test_an_operator_names_its_classes_and_encodes_what_has_none() -> None:
    donor, receiver = hosted(Fitting), hosted(Fitting)
    rows = pa.record_batch({"k": [1, 1, 2], "v": [5, 6, 7]})
    donor.process(Batch(rows, np.arange(3), None, np.zeros(3, np.uint16)))

    arrival = Arrival()
    for parts in items([TypedState(1, 0, donor.get_partition_state(0), donor.words)], "a test"):
        for part in parts:
            arrival.take(pa.py_buffer(part))
    [state] = arrival.values({(1, 0): receiver.words})
    receiver.install_partition_state(0, state)

    out = receiver.process(Batch(rows, np.arange(3, 6), None, np.zeros(3, np.uint16)))
    assert out.arrow.column("n").to_pylist() == [3, 4, 2]


def test_state_of_a_step_that_is_not_here_is_a_bad_frame() -> None:
    packed = encode([TypedState(1, 0, Visit("a"), WORDS)], WHOSE)
    with pytest.raises(BadFrame, match=r"state of step \(1, 0\), for which this process has no"):
        decode(packed, steps={(1, 1): WORDS})


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"state_types": (int,)}, "state_types holds dataclasses.*<class 'int'> is none of them"),
        *(({"state_types": (of,)}, f"{of.__name__}.* is none of them.*encode_state and") for of in (Bag, Failure)),
        # Some of those that are written in C look as if they were not.
        *(
            ({"state_types": (of,)}, f"{of.__name__}.* is none of them.*encode_state and")
            for of in (Random, Dice, Lock)
        ),
        ({"state_types": (array.array,)}, "array.array.* is none of them.*encode_state and"),
        ({"state_types": ("Visit",)}, "'Visit' is none of them"),
        ({"state_types": (Visit, type("Visit", (), {}))}, "two classes of state_types have one name"),
        ({"encode_state": staticmethod(str)}, "come together; define both"),
        ({"encode_state": lambda self, v: v, "decode_state": lambda self, v: v}, "@staticmethod"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_a_plan_error(attributes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=f"step 'Fitting': .*{says}"):
        hosted(type("Odd", (flux.KeyedOperator,), attributes))


class Held(NamedTuple):
    data: Any


@pytest.mark.parametrize(
    "within", [lambda v: v, lambda v: [1, {"a": [v]}], lambda v: (1, v), lambda v: deque([v]), Held]
)
def test_a_bytearray_stays_one_and_can_be_written_to(within: Any) -> None:
    words = StateTypes((Held,))
    there = decode(encode(within(bytearray(b"ab")), WHOSE, words=words), words=words)
    assert there == within(bytearray(b"ab"))
    assert "bytearray(b'ab')" in repr(there)


def test_a_bytearray_in_a_long_list_stays_one() -> None:
    outside = OutsideBuffers(lambda size: None)
    packed = encode([[bytearray(b"a")], *range(20_000)], WHOSE, outside)
    buffers = [np.frombuffer(b"".join(parts), np.uint8) for parts in outside.buffers]
    assert decode(packed, buffers)[0] == [bytearray(b"a")]
    assert type(decode(packed, buffers)[0][0]) is bytearray


@pytest.mark.parametrize("held", [b"a", bytearray(b"a")])
def test_a_list_within_itself_is_refused_also_beside_a_bytearray(held: Any) -> None:
    for often in (2, 20_000):
        endless: list[Any] = [held]
        endless += [endless] * often
        with pytest.raises(StateError, match="cannot be moved"):
            encode(endless if often == 2 else {"a": [endless]}, WHOSE)


def test_a_memoryview_is_refused_by_its_place() -> None:
    with pytest.raises(StateError, match=r"memory.* of type memoryview, at \['a'\]\[0\], cannot be moved"):
        encode({"a": [memoryview(b"ab")]}, WHOSE)


@pytest.mark.parametrize("value", [np.array(5), np.array("x"), np.int16(5), np.array([5]), np.datetime64(3, "s")])
def test_an_array_without_dimensions_is_no_scalar(value: Any) -> None:
    there = decode(encode(value, WHOSE))
    assert (type(there), there.dtype, there.shape) == (type(value), value.dtype, value.shape)
    assert there == value
