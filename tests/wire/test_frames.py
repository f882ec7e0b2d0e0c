"""Frames, messages and links: what is sent arrives, what is malformed is refused by name."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from typing import Any, get_args

import pyarrow as pa
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from flux.errors import FluxError
from flux.protocols import messages
from flux.wire import frames
from flux.wire.address import connect, listen
from flux.wire.codec import from_plain, to_plain
from flux.wire.link import Link, tune

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
runs = st.builds(
    messages.Run,
    after=positions,
    upto=positions,
    rows=positions,
    without=st.frozensets(st.integers(0, 9)),
    body=bodies,
)
values = {
    "sender": st.text(),
    "node": st.text(),
    "to": st.text(),
    "channels": st.lists(blocks, max_size=3).map(tuple),
    "runs": st.lists(runs, max_size=3).map(tuple),
    "standby": st.lists(standbys, max_size=2).map(tuple),
    "nodes": st.lists(st.text()).map(tuple),
    "dead": st.frozensets(st.text()),
    "copies": st.just(((("a", "b"),), (("c",),))),
    "body": bodies,
    "bodies": bodies,
}
KINDS = get_args(messages.Message)


def any_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any message of a kind; what is not named above is a number."""
    return st.builds(kind, **{field.name: values.get(field.name, positions) for field in dataclasses.fields(kind)})


peer_messages = st.one_of([any_of(kind) for kind in KINDS])


@given(peer_messages)
def test_a_message_survives_the_wire(message: object) -> None:
    packed = frames.encode({"m": to_plain(message, lambda body: body)})
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


@pytest.mark.parametrize("plain", [{"$": "Popen"}, {"$": "Ack", "edge": 1}, {"no": "name"}])
def test_only_known_messages_with_their_fields_are_built(plain: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no message is called|has fields"):
        from_plain(plain, lambda body: body)


def linked() -> tuple[Link, Link]:
    one, other = socket.socketpair()
    tune(one)
    tune(other)
    return Link("one", one), Link("other", other)


def test_frames_of_any_size_arrive_in_order() -> None:
    async def talk() -> None:
        one, other = linked()
        batches = [pa.record_batch({"n": list(range(size))}) for size in (1, 200_000, 3, 500_000)]
        got = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            for number, batch in enumerate(batches):
                one.send_batch({"number": number}, batch)
                one.send({"small": number})
            while len(got) < 8:
                frame = await other.receive()
                assert frame is not None
                header, body = frame
                batch = other.decode_batch(header, body)
                if batch is not None:
                    assert batch.equals(batches[header["number"]])
                got.append(header.get("number", header.get("small")))
            one.close()
            other.close()
        assert got == [0, 0, 1, 1, 2, 2, 3, 3]

    trio.run(talk)


def test_a_link_closed_under_its_reader_ends_the_reader() -> None:
    async def talk() -> None:
        one, other = linked()
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:

                async def read() -> None:
                    assert await one.receive() is None

                nursery.start_soon(read)
                nursery.start_soon(one.write)
                await trio.testing.wait_all_tasks_blocked()
                one.close()
        other.close()

    trio.run(talk)


def test_a_peer_that_vanishes_within_a_frame_ends_the_reader() -> None:
    async def talk() -> None:
        one, other = socket.socketpair()
        tune(other)
        link = Link("other", other)
        one.sendall(frames.encode({"a": 1}, body_bytes=100) + b"only this")
        one.close()
        with trio.fail_after(5):
            assert await link.receive() is None
        link.close()

    trio.run(talk)


def test_an_address_taken_is_an_error_that_names_it() -> None:
    with listen("tcp:127.0.0.1:0") as taken, pytest.raises(FluxError, match="cannot listen at tcp:127"):
        listen(f"tcp:127.0.0.1:{taken.getsockname()[1]}")


def test_nobody_listening_is_an_error() -> None:
    with listen("tcp:127.0.0.1:0") as sock:
        port = sock.getsockname()[1]
    with pytest.raises(OSError):
        trio.run(connect, f"tcp:127.0.0.1:{port}")
