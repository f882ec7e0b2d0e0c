"""What is fuzzed: each decoder of the wire, with well-formed input to begin with, and a use of what it accepts.

A decoder may accept what was changed, and then using it must do no harm: so each is followed by what the runtime
does with its result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any, get_args
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flux.exchange.channel_mask import ChannelMask
from flux.exchange.merge import merge
from flux.exchange.rows import Rows, punctuations_to_plain
from flux.model.punctuation import Punctuation
from flux.protocols import change_messages, messages
from flux.types.errors import AuthError, StateError
from flux.wire import frames, state_codec
from flux.wire.batches import Batches
from flux.wire.codec import from_plain, to_plain
from flux.wire.frames import BadFrame
from flux.wire.handshake import Dialler, HandshakeRefused, Listener
from flux.wire.link import Link, tune
from flux.wire.sockets import Reader
from flux.wire.state_types import StateTypes, TypedState

from .mutations import mutated, rearranged

PRODUCERS, PARTITIONS, UPTO = 3, 4, 100


@dataclass(frozen=True)
class Codec:
    """A decoder: `attempt` gives it one input drawn at random, and returns whether it was accepted.

    It may raise `declared` and nothing else.
    """

    name: str
    attempt: Callable[[Random], Awaitable[bool]]
    declared: tuple[type[Exception], ...] = (BadFrame,)


# --- frames ---------------------------------------------------------------------------------------


class Received:
    """A connection on which everything has come already."""

    def __init__(self, data: bytes) -> None:
        self._rest = memoryview(data)

    def recv_into(self, buffer: memoryview) -> int:
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


FRAMES = [
    frames.encode({"kind": "peer", "m": {"$": "Ack"}, "marks": [[1, "end", None]]}),
    frames.encode({"kind": "peer", "of": 0}, 40) + bytes(40),
    frames.encode({"kind": "lie"}, frames.BODY_MAX_BYTES) + bytes(100),
    frames.PREFIX.pack(b"Fx", frames.VERSION, 500, 0) + b"\x91" * 500,
    frames.PREFIX.pack(b"Fx", frames.VERSION, 500, 0) + b"\x81\xa1a" * 166 + b"\xc0\xc0",
]


async def attempt_frame(draw: Random) -> bool:
    data = mutated(draw, draw.choice(FRAMES), FRAMES)
    reader = Reader(Received(data))  # type: ignore[arg-type]
    try:
        while True:
            header, body, size = await reader.read_frame()
            assert isinstance(header["kind"], str) and size >= (0 if body is None else body.size)
    except ConnectionResetError:  # It ended.
        return True


# --- messages -------------------------------------------------------------------------------------

_BLOCK = messages.Block(producers=(0, 1), consumers=(2,))
_RUN = messages.OutputRun(after=1, upto=5, rows=3, without=frozenset({2}), body=None)
_VIEW = messages.View(
    number=3,
    nodes=("ingress", "site-1", "site-2"),
    dead=frozenset({"site-2"}),
    copies=((("ingress",),), (("site-1", "site-2"), ("site-2", "site-1"))),
    standby=(messages.Standby(version=1, stage=1, partition=0, slot=1, node="site-1", donor="site-2"),),
    editions=(messages.Edition(number=2, stages=frozenset({1}), position=40, spec=b"\x00a"),),
)
_OF_CHANGES = (change_messages.ChangeRequest, change_messages.ChangeReport, change_messages.ChangeOrder)
_FIELDS: dict[str, Any] = {
    "channels": (_BLOCK, _BLOCK),
    "runs": (_RUN,),
    "ahead": (messages.Ahead(edge=1, producers=(0, 2), position=9),),
    "ends": (0,),
    "costs": (("site-1", 0.5),),
    "nodes": ("site-1",),
    "sender": "site-1",
    "node": "site-1",
    "stages": frozenset({1, 2}),
    "spec": b"\xff\x00",
    "scheduler": change_messages.OF_RECEIVERS,
    "problem": "",
    "reason": "it has no such module",
    "to": "site-2",
    "a": "site-1",
    "b": "site-2",
    "body": None,
    "bodies": None,
}


def _example(kind: type[Any]) -> Any:
    return kind(**{field.name: _FIELDS.get(field.name, 7) for field in dataclasses.fields(kind)})


MESSAGES = [
    {"kind": "peer", "m": to_plain(message, lambda body: body)}
    for message in (*map(_example, messages.PeerMessage.__args__ + messages.ToController.__args__), _VIEW)
]
MESSAGES += [
    {"kind": "peer", "m": to_plain(_example(kind), lambda body: body)}
    for union in _OF_CHANGES
    for kind in get_args(union)
]
_PACKED_MESSAGES = [msgpack.packb(message) for message in MESSAGES]


async def attempt_message(draw: Random) -> bool:
    if draw.random() < 0.3:
        data = mutated(draw, draw.choice(_PACKED_MESSAGES), _PACKED_MESSAGES)
    else:
        data = msgpack.packb(rearranged(draw, draw.choice(MESSAGES), MESSAGES))
    message = from_plain(frames.decode_header(data).get("m"), lambda body: ())
    assert from_plain(to_plain(message, lambda body: None), lambda body: ()) == message
    return True


# --- record batches -------------------------------------------------------------------------------

BATCHES = [
    pa.record_batch({name: pa.array(values, kind) for name, (values, kind) in columns.items()})
    for columns in (
        {"whole": ([1, None, 3], pa.int64()), "real": ([1.5, 2.5, None], pa.float64())},
        {"truth": ([True, None, False], pa.bool_()), "half": ([1, 2, None], pa.float16())},
        {"text": (["a", None, "ccc" * 20], pa.string()), "big": (["x", "", None], pa.large_string())},
        {"lists": ([[1], None, [2, 3]], pa.list_(pa.int8()))},
        {"pairs": ([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2))},
        {"structs": ([{"x": 1, "y": "a"}, None, {"x": 2}], pa.struct({"x": pa.int32(), "y": pa.string()}))},
        {"fixed": ([b"ab", None, b"cd"], pa.binary(2)), "nothing": ([None] * 3, pa.null())},
        {"when": ([1, 2, None], pa.timestamp("us", "UTC")), "exact": ([1, 2, None], pa.decimal128(9, 2))},
        {"dates": ([1, 2, None], pa.date32()), "span": ([1, 2, 3], pa.duration("s"))},
        {"map": ([[("a", 1)], [], None], pa.map_(pa.string(), pa.int32()))},
        {"nested": ([[["a"], []], [], [None, ["b", None]]], pa.list_(pa.large_list(pa.string())))},
        {"views": (["a", None, "a long text that is not within the view"], pa.string_view())},
    )
]


def _compressed(batch: pa.RecordBatch) -> bytes:
    """As no process of Flux sends it, with a claim to become a tebibyte."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # The schema.
    body: bytes = messages.read_next_message().serialize().to_pybytes()
    return body.replace((8 * batch.num_rows).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little"))


BATCHES.append(pa.record_batch({"zeros": pa.array(np.zeros(12_345))}))
_SCHEMAS = [batch.schema.serialize().to_pybytes() for batch in BATCHES]
_BODIES = [*(batch.serialize().to_pybytes() for batch in BATCHES[:-1]), _compressed(BATCHES[-1])]


async def attempt_batch(draw: Random) -> bool:
    which = draw.randrange(len(BATCHES))
    schema, body = _SCHEMAS[which], _BODIES[which]
    what = draw.random()
    if what < 0.15:
        schema = mutated(draw, schema, _SCHEMAS)
    elif what < 0.2:
        schema = draw.choice(_SCHEMAS)  # One batch, read as another.
    if what > 0.1:
        body = mutated(draw, body, _BODIES)
    batches = Batches()
    batches.add_schema(0, schema)
    use_batch(batches.read(0, pa.py_buffer(body)))
    return True


def use_batch(batch: pa.RecordBatch) -> None:
    """What the runtime and operators do with rows: pick some, cut, send on, look at values."""
    part = batch.slice(0, 2_000)
    backwards = pa.array(np.arange(len(part))[::-1])
    for column in part.columns:
        try:
            column.to_pylist()
            pc.take(column, backwards)
            column.equals(column)
        except (pa.ArrowException, ValueError, ArithmeticError, LookupError):
            # A wrong value, a type without this operation, or a time zone that this machine does not know (a peer may
            # have newer ones): an error like any other.
            continue
    part.serialize()


# --- rows and marks -------------------------------------------------------------------------------


def _rows(first: int, words: int) -> Rows:
    count = 20
    numbers = np.arange(first, first + count, dtype=np.int64)
    return Rows.of(
        pa.record_batch({"x": np.arange(count), "s": [str(i) for i in range(count)]}),
        numbers,
        [None, numbers.astype(np.uint64), np.arange(2 * count, dtype=np.uint64).reshape(count, 2)][words],
        (numbers % PRODUCERS).astype(np.uint16),
        (numbers % PARTITIONS).astype(np.uint16),
        (Punctuation(first + 3, "clock", 17), Punctuation(first + 9, "watermark", -1)),
    )


ROWS = [_rows(1, 0), _rows(40, 1), _rows(80, 2)]  # Of flows that are shallow or deep; see flux.model.subseq.
_ROWS_SCHEMAS = [rows.wide.schema.serialize().to_pybytes() for rows in ROWS]
_ROWS_BODIES = [rows.wide.serialize().to_pybytes() for rows in ROWS]
_MARKS = [punctuations_to_plain(rows.punctuations) for rows in ROWS]
_CHANNELS = ChannelMask([messages.Block(producers=(0, 2), consumers=(1, 3))], PRODUCERS, PARTITIONS)


async def attempt_rows(draw: Random) -> bool:
    which = draw.randrange(len(ROWS))
    schema, body, punctuations = _ROWS_SCHEMAS[which], _ROWS_BODIES[which], _MARKS[which]
    what = draw.random()
    if what < 0.3:
        punctuations = rearranged(draw, punctuations, _MARKS)
    elif what < 0.4:
        schema = mutated(draw, schema, _ROWS_SCHEMAS)
    else:
        body = mutated(draw, body, _ROWS_BODIES)
    batches = Batches()
    batches.add_schema(0, schema)
    rows = Rows.received(batches.read(0, pa.py_buffer(body)), punctuations)
    rows.expect(0, UPTO, PRODUCERS, PARTITIONS)
    rows.between(5, 50).select(_CHANNELS).encode()
    merge([rows.select(_CHANNELS), rows.between(3, 4)])
    return True


# --- state ----------------------------------------------------------------------------------------

_STATES: list[Any] = [
    {("a", 1): {"sum": 3, "last": (1, 2.5)}, ("b", None): np.arange(3), "f": np.float32(1.5)},
    [[None, True, -5, 2**64 - 1, 1.5, "text", b"bytes"], ((), ((1,),))],
    {"table": pa.table({"n": [1, 2, None], "s": ["a", None, "b"]}), "batch": BATCHES[2]},
    pa.table({"word": pa.array(["a", "b", "a"]).dictionary_encode()}),
    [np.zeros((2, 3), "<M8[us]"), np.array(["ab", "c"]), np.array([b"xy"]), np.zeros((0, 4)), np.bool_(True)],
]
STATES = [state_codec.encode(value, "fuzz") for value in _STATES]


@dataclass
class Visit:
    """A class that the operator names."""

    page: Any
    at: Any


class Colour(Enum):
    RED = 1


_WORDS = StateTypes((Visit, Colour), lambda value: NotImplemented, lambda plain: [plain])
_STEPS = {(1, 0): _WORDS}
_MOMENT = datetime(2024, 1, 2, 3, 4, 5, 6, UTC)
_SPOKEN: list[Any] = [
    {(1, _MOMENT.date()): Visit({"x"}, [_MOMENT, _MOMENT - _MOMENT, Colour.RED])},
    [{1, "b"}, frozenset({2.5}), Decimal("1.50"), UUID(int=7)],
    [deque([1, 2], 5), Counter("aab"), OrderedDict(a=1), defaultdict(set, {"a": {1}}), Fraction(1, 3), 1j, 2**90],
    [datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")), _MOMENT.timetz(), Visit(None, Visit(1, 2))],
    [np.arange(6).reshape(2, 3).T, np.str_("a"), np.bytes_(b"a"), pa.array(["a", None]), pa.scalar(1), UTC],
    [pa.chunked_array([["a"], ["b"]]), Path("/a"), defaultdict(Visit, {1: Visit(1, 2)})],
]
_WORDED = [state_codec.encode([TypedState(1, 0, value, _WORDS)], "fuzz") for value in _SPOKEN]
STATES += _WORDED
_DEEP = msgpack.packb([1])
for _ in range(300):
    _DEEP = msgpack.packb([msgpack.ExtType(4, _DEEP)])
STATES.append(_DEEP)


async def attempt_state(draw: Random) -> bool:
    value = state_codec.decode(mutated(draw, draw.choice(STATES), STATES), steps=_STEPS)
    repr(value)[:100]
    with contextlib.suppress(StateError):  # Such as a time stamp of msgpack's own.
        state_codec.encode(value, "fuzz", words=_WORDS)
    assert _classes(value) <= {Visit, Colour}, "a class that nobody has named was made of what came"
    return True


def _classes(value: Any) -> set[type[Any]]:
    """The classes of values that are neither of Python's own types nor of numpy's and Arrow's."""
    kind = type(value)
    found = set() if kind.__module__.split(".")[0] in _OTHERS else {kind}
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, _PARTED) else ()
    parts = vars(value).values() if kind is Visit else parts
    return found.union(*map(_classes, parts))


_PARTED = list | tuple | set | frozenset | deque
_OTHERS = {
    "builtins",
    "collections",
    "datetime",
    "decimal",
    "fractions",
    "uuid",
    "zoneinfo",
    "numpy",
    "pathlib",
    "pyarrow",
    "msgpack",
}
_OTHERS |= {"flux"}  # A row that was given to an operator.


# --- greetings ------------------------------------------------------------------------------------


async def attempt_greeting(draw: Random) -> bool:
    """One of the four things said is changed on the way."""
    secret = b"0123456789abcdef"
    dialler, listener = Dialler("site-1", secret, "dmz"), Listener("controller", secret, "dmz")
    dialler._own["nonce"], listener._nonce = draw.randbytes(32), draw.randbytes(32)
    changed = draw.randrange(4)
    said: list[dict[str, Any]] = []

    def on_the_way(header: dict[str, Any]) -> dict[str, Any]:
        said.append(header)
        data = msgpack.packb(header)
        if len(said) - 1 == changed:
            if draw.random() < 0.4:
                data = mutated(draw, data, [data])
            else:
                data = msgpack.packb(rearranged(draw, header, said))
        return frames.decode_header(data)

    def refuse(name: str) -> str | None:
        return "declared dead" if draw.random() < 0.3 else None

    challenge = listener.challenge(on_the_way(dialler.greet()))
    proof = dialler.prove(on_the_way(challenge))
    try:
        peer, verdict = listener.judge(on_the_way(proof), refuse)
    except HandshakeRefused:
        assert listener.refusal is not None
        dialler.conclude(on_the_way(listener.refusal))
        raise AssertionError("one that was refused believes to be welcome") from None
    names = peer, dialler.conclude(on_the_way(verdict))
    assert names == ("site-1", "controller"), f"a name was changed on the way: {names}"
    return True


# --- links ----------------------------------------------------------------------------------------

_WITH_BATCH = {"kind": "peer", "of": 0, "schema": _SCHEMAS[0]}
STREAMS = [
    frames.encode({"kind": "got", "n": 2}) + frames.encode({"kind": "peer", "m": None}),
    frames.encode(_WITH_BATCH, len(_BODIES[0])) + _BODIES[0] + frames.encode({"kind": "got", "n": 0}),
    frames.encode({"kind": "got", "n": 1}) + frames.encode({"kind": "got", "n": 3}) + frames.encode({"kind": "closed"}),
]
_CONTROL: list[Any] = [{"kind": "resume", "n": 0}, {"kind": "got", "n": 1}, {"kind": "closed"}]


async def attempt_link(draw: Random) -> bool:
    ours, theirs = socket.socketpair()
    tune(ours)
    link = Link("other")
    for number in range(3):
        link.send({"kind": "test", "number": number})
    try:
        control = draw.choice(_CONTROL)
        hello = frames.encode({"kind": "resume", "n": 0})
        if draw.random() < 0.5:
            stream = mutated(draw, hello + draw.choice(STREAMS), STREAMS)
        else:
            plain = rearranged(draw, control, _CONTROL)
            packed = msgpack.packb(plain)
            stream = hello + frames.PREFIX.pack(b"Fx", frames.VERSION, len(packed), 0) + packed
        theirs.sendall(stream[:60_000])
        theirs.shutdown(socket.SHUT_WR)
        await link.resume(ours)
        link._begin_some()  # As if written: so that there is something to be told of.
        while (frame := await link.receive()) is not None:
            batch = link.decode_batch(*frame)
            if batch is not None:
                use_batch(batch)
        return True
    finally:
        link.close()
        theirs.close()


CODECS = {
    codec.name: codec
    for codec in (
        Codec("frame", attempt_frame),
        Codec("message", attempt_message),
        Codec("batch", attempt_batch),
        Codec("rows", attempt_rows),
        Codec("state", attempt_state),
        Codec("greeting", attempt_greeting, (BadFrame, AuthError, HandshakeRefused)),
        Codec("link", attempt_link, (BadFrame, ConnectionError)),
    )
}
