"""Reports, commands, membership messages and requests: each survives the wire, and what is malformed is refused.

For every class of every conversation: missing fields, further fields (of a newer release), wrong types and unknown
names are a `BadFrame` that says what was expected and what was there, and never another error.

It takes half a minute: hypothesis makes each of about fifty messages, right and malformed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.protocols.messages import Hello
from flux.wire import frames, membership, reports, requests, transfer
from flux.wire.codec import Word, subclasses_in
from flux.wire.frames import BadFrame

Frame = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Conversation:
    classes: tuple[type[Any], ...]
    write: Callable[[Any], Frame]
    read: Callable[[Frame], Any]


CONVERSATIONS = {
    "report": Conversation(subclasses_in(vars(reports), reports.Report), reports.report_frame, reports.read_report),
    "command": Conversation(subclasses_in(vars(reports), reports.Command), reports.command_frame, reports.read_command),
    "node": Conversation(
        subclasses_in(vars(membership), membership.FromNode), membership.membership_frame, membership.read_from_node
    ),
    "controller": Conversation(
        subclasses_in(vars(membership), membership.FromController),
        membership.membership_frame,
        membership.read_from_controller,
    ),
    "request": Conversation(
        subclasses_in(vars(requests), requests.Request), requests.request_frame, requests.read_request
    ),
    "chunk": Conversation((transfer.StateChunk,), transfer.chunk_frame, transfer.read_chunk),
}
ALL = [(name, cls) for name, conversation in CONVERSATIONS.items() for cls in conversation.classes]
CASES = pytest.mark.parametrize(("name", "cls"), ALL, ids=lambda value: getattr(value, "__name__", value))


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    origin, inner = get_origin(hint), get_args(hint)
    simple = {
        int: st.integers(-(2**63) + 1, 2**63 - 1),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        str: st.text(max_size=8),
        bytes: st.binary(max_size=8),
        Word: st.integers(0, 2**64 - 1),
    }
    if hint in simple:
        return simple[hint]
    if origin is UnionType:
        return st.one_of([st.none() if kind is type(None) else values_of(kind) for kind in inner])
    if origin is dict:
        values = st.text(max_size=4) if inner[1] is Any else values_of(inner[1])
        return st.dictionaries(st.text(max_size=4), values, max_size=2)
    if origin is frozenset:
        return st.frozensets(values_of(inner[0]), max_size=2)
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(values_of(inner[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, inner))
    return instances(hint)


def instances(cls: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{field.name: values_of(hints[field.name]) for field in dataclasses.fields(cls)})


def over_the_wire(header: Frame) -> Frame:
    return frames.decode_header(frames.encode(header)[frames.PREFIX.size :])


@CASES
@given(data=st.data())
def test_a_message_is_read_as_it_was_written(name: str, cls: type[Any], data: Any) -> None:
    conversation = CONVERSATIONS[name]
    message = data.draw(instances(cls))
    assert conversation.read(over_the_wire(conversation.write(message))) == message


@CASES
@given(data=st.data())
def test_a_malformed_message_is_refused(name: str, cls: type[Any], data: Any) -> None:
    conversation = CONVERSATIONS[name]
    header = over_the_wire(conversation.write(data.draw(instances(cls))))
    plain = dict(header["m"])
    fields = [field.name for field in dataclasses.fields(cls)]
    damage = data.draw(st.sampled_from(["unknown", "newer", "missing", "type", "kind", "nothing"]))
    if damage == "unknown":
        plain["$"] = data.draw(st.one_of(st.none(), st.integers(), st.just("Nonsense")))
    elif damage == "newer" or not fields:
        plain["since_version_6"] = 1
    elif damage == "missing":
        del plain[data.draw(st.sampled_from(fields))]
    elif damage == "type":
        field = data.draw(st.sampled_from(fields))
        # No field of these classes takes bytes, but for one.
        wrong = [(b"bytes",), {b"x": 1}, *([] if isinstance(plain[field], bytes) else [b"bytes"])]
        plain[field] = data.draw(st.sampled_from(wrong))
    broken: Frame = {**header, "m": plain}
    if damage == "kind":
        broken["kind"] = "sing"
    elif damage == "nothing":
        broken["m"] = data.draw(st.sampled_from([None, 7, "text", (1, 2)]))
    with pytest.raises(BadFrame, match=r"expected|has the fields|no message is called"):
        conversation.read(broken)


def test_a_part_of_a_report_is_not_a_report() -> None:
    part = reports.SkippedContent(partition=1, nth=2, sn=3, values="", error="")
    with pytest.raises(BadFrame, match="got SkippedContent"):
        reports.read_report({"kind": "report", "m": {"$": "SkippedContent", **dataclasses.asdict(part)}})


def test_a_message_of_the_controller_is_not_one_of_a_node() -> None:
    frame = membership.membership_frame(membership.Dismissed(why="declared dead"))
    with pytest.raises(BadFrame, match=r"expected CodeStuck or .* or WorkDone, got Dismissed"):
        membership.read_from_node(frame)
    hello = membership.FromMachine(message=Hello(node="site-1"))
    with pytest.raises(BadFrame, match=r"expected Dismissed or .*NewView or .*, got FromMachine"):
        membership.read_from_controller(membership.membership_frame(hello))


def test_times_are_on_the_clock_of_the_reader() -> None:
    numbered = reports.RowsNumbered(log=((3.0, 7, 7), (4.0, 9, 2)), total=9, upto=9)
    assert reports.on_clock_of_reader(numbered, 100.0) == reports.RowsNumbered(
        log=((100.0, 7, 7), (100.0, 9, 2)), total=9, upto=9
    )
    dead = reports.NodeDead(node="site-1", at=50.0, seen_at=47.5)
    assert reports.on_clock_of_reader(dead, 100.0) == reports.NodeDead(node="site-1", at=100.0, seen_at=97.5)
    view = reports.ViewPublished(number=1, versions=0, whole=True, at=3.0)
    assert reports.on_clock_of_reader(view, 8.0) == dataclasses.replace(view, at=8.0)
    load = reports.Load(buffered_rows=3)
    assert reports.on_clock_of_reader(load, 8.0) is load
