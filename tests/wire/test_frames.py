"""Frames, messages and addresses: what is sent arrives, what is malformed is refused by name."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, get_args

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from flux.protocols import change_messages, messages
from flux.types.errors import FluxError
from flux.wire import frames
from flux.wire.address import connect, listen
from flux.wire.codec import from_plain, to_plain

blocks = st.builds(
    messages.Block,
    producers=st.lists(st.integers(0, 9)).map(tuple),
    consumers=st.lists(st.integers(0, 9)).map(tuple),
)
positions = st.integers(0, 2**62)
# What stands for a body on the wire: a number, or anything else that msgpack knows.
bodies = st.integers(0, 9)
standbys = st.builds(
    messages.Standby,
    version=positions,
    stage=st.integers(0, 9),
    partition=st.integers(0, 9),
    slot=st.integers(0, 1),
    node=st.text(),
    donor=st.text(),
)
counts = st.lists(st.tuples(positions, positions, positions), max_size=3).map(tuple)
runs = st.builds(
    messages.OutputRun,
    after=positions,
    upto=positions,
    rows=positions,
    without=st.frozensets(st.integers(0, 9)),
    counts=counts,
    body=bodies,
)
aheads = st.builds(
    messages.Ahead, edge=positions, producers=st.lists(positions, max_size=3).map(tuple), position=positions
)
editions = st.builds(
    messages.Edition,
    number=positions,
    stages=st.frozensets(st.integers(0, 9)),
    position=positions,
    spec=st.binary(),
    closed=st.booleans(),
)
values = {
    "sender": st.text(),
    "node": st.text(),
    "to": st.text(),
    "a": st.text(),
    "b": st.text(),
    "counts": counts,
    "channels": st.lists(blocks, max_size=3).map(tuple),
    "runs": st.lists(runs, max_size=3).map(tuple),
    "standby": st.lists(standbys, max_size=2).map(tuple),
    "nodes": st.lists(st.text()).map(tuple),
    "editions": st.lists(editions, max_size=2).map(tuple),
    "stages": st.frozensets(positions),
    "spec": st.binary(),
    "scheduler": st.text(),
    "problem": st.text(),
    "reason": st.text(),
    "dead": st.frozensets(st.text()),
    "unordered": st.frozensets(positions),
    "slow": st.frozensets(st.text()),
    "costs": st.lists(st.tuples(st.text(), st.floats(0, 9)), max_size=3).map(tuple),
    "ahead": st.lists(aheads, max_size=2).map(tuple),
    "copies": st.just(((("a", "b"),), (("c",),))),
    "edges": st.lists(st.tuples(positions, positions), max_size=3).map(tuple),
    "incarnations": st.lists(st.tuples(positions, positions), max_size=3).map(tuple),
    "ends": st.lists(positions, max_size=3).map(tuple),
    "body": bodies,
    "bodies": bodies,
}
OF_CHANGES = change_messages.ChangeRequest | change_messages.ChangeReport | change_messages.ChangeOrder
KINDS = dict.fromkeys([*get_args(messages.Message), *get_args(OF_CHANGES)])


def any_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any message of a kind; what is not named above is a number."""
    return st.builds(kind, **{field.name: values.get(field.name, positions) for field in dataclasses.fields(kind)})


peer_messages = st.one_of([any_of(kind) for kind in KINDS])


@given(peer_messages)
def test_a_message_survives_the_wire(message: object) -> None:
    packed = frames.encode({"kind": "peer", "m": to_plain(message, lambda body: body)})
    header_bytes, _ = frames.decode_prefix(packed[: frames.PREFIX.size])
    header = frames.decode_header(packed[frames.PREFIX.size :])
    assert header_bytes == len(packed) - frames.PREFIX.size
    assert from_plain(header["m"], lambda body: body) == message


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        (frames.PREFIX.pack(b"GE", 1, 0, 0), "not a Flux process"),
        (frames.PREFIX.pack(b"Fx", 9, 0, 0), "wire version"),
        (frames.PREFIX.pack(b"Fx", 1, 1 << 31, 0), "over the limits"),
        (frames.PREFIX.pack(b"Fx", 1, 0, 1 << 40), "over the limits"),
    ],
)
def test_a_foreign_prefix_is_refused_by_name(prefix: bytes, says: str) -> None:
    with pytest.raises(frames.BadFrame, match=says):
        frames.decode_prefix(prefix)


@given(st.binary(max_size=64))
def test_a_header_of_any_bytes_is_a_map_or_a_bad_frame(packed: bytes) -> None:
    with contextlib.suppress(frames.BadFrame):
        assert isinstance(frames.decode_header(packed), dict)


def test_a_stranger_is_held_to_less() -> None:
    prefix = frames.PREFIX.pack(b"Fx", 1, frames.STRANGER_MAX_BYTES + 1, 0)
    assert frames.decode_prefix(prefix) == (frames.STRANGER_MAX_BYTES + 1, 0)
    with pytest.raises(frames.BadFrame, match="over the limits"):
        frames.decode_prefix(prefix, frames.STRANGER_MAX_BYTES, 0)
    with pytest.raises(frames.BadFrame, match="over the limits"):
        frames.decode_prefix(frames.PREFIX.pack(b"Fx", 1, 10, 1), frames.STRANGER_MAX_BYTES, 0)


@pytest.mark.parametrize("header", [b"\x80", b"\x81\xa4kind\x01", b"\x90", b""])
def test_a_header_without_a_kind_is_a_bad_frame(header: bytes) -> None:
    with pytest.raises(frames.BadFrame):
        frames.decode_header(header)


ACK: dict[str, Any] = {"$": "Ack", "sender": "site-1", "view": 1, "edge": 1, "position": 7, "reached": 0}


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        (None, "expected a message"),
        ({"$": "Popen"}, "no message is called 'Popen'"),
        ({"$": ["Ack"]}, "no message is called"),
        ({"no": "name"}, "no message is called None"),
        ({"$": "Ack", "edge": 1}, "Ack has the fields"),
        ({**ACK, "more": 1}, "Ack has the fields"),
        ({**ACK, "position": "7"}, "Ack.position: expected an integer"),
        ({**ACK, "position": True}, "Ack.position: expected an integer"),
        ({**ACK, "position": 2**63}, "Ack.position: expected an integer of 64 bits"),
        ({**ACK, "sender": b"site-1"}, "Ack.sender: expected text"),
        ({"$": "Prepare", "number": 1, "stages": {"set": [1]}, "spec": "code"}, "Prepare.spec: expected bytes"),
        (
            {"$": "Hello", "node": "a", "view": 0, "ends": 3, "incarnation": 1, "version": 2},
            "Hello.ends: expected a list",
        ),
        (
            {"$": "Stop", "sender": "a", "view": 1, "edge": 1, "lane_id": 1, "channels": [ACK]},
            "Stop.channels: no message is called 'Ack' here",
        ),
    ],
)
def test_only_known_messages_with_fields_of_their_types_are_built(plain: Any, says: str) -> None:
    with pytest.raises(frames.BadFrame, match=says):
        from_plain(plain, lambda body: body)


def test_a_view_with_senseless_fields_is_not_built() -> None:
    view = messages.View(number=1, nodes=("a",), dead=frozenset(), copies=((("a",),),))
    plain = to_plain(view, lambda body: body)
    assert from_plain(plain, lambda body: body) == view
    for field, value in (
        ("dead", ["a"]),
        ("dead", {"set": [1]}),
        ("edges", [[1]]),
        ("copies", [["a"]]),
        ("nodes", "a"),
        ("editions", [{"$": "Standby"}]),
    ):
        with pytest.raises(frames.BadFrame, match=f"View.{field}"):
            from_plain({**plain, field: value}, lambda body: body)


def test_an_address_taken_is_an_error_that_names_it() -> None:
    with listen("tcp:127.0.0.1:0") as taken, pytest.raises(FluxError, match="cannot listen at tcp:127"):
        listen(f"tcp:127.0.0.1:{taken.getsockname()[1]}")


def test_nobody_listening_is_an_error() -> None:
    with listen("tcp:127.0.0.1:0") as sock:
        port = sock.getsockname()[1]
    with pytest.raises(OSError):
        trio.run(connect, f"tcp:127.0.0.1:{port}")
