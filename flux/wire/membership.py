"""Membership: the conversation between the controller and the nodes, each message a frozen dataclass.

A heartbeat is a plain frame, ``{"kind": "beat"}``, on a connection of its own, and is not read by a codec.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from ..protocols.balance_messages import StageWork, Work
from ..protocols.change_messages import Bind, ChangeReport, Prepare, Unbind
from ..protocols.messages import CopyFailed, CopyReady, Hello, View
from .codec import PROTOCOL_CLASSES, Codec, Word, read_frame, subclasses_in

MEMBERSHIP_KIND = "membership"  # The kind of their frames.
BEAT = {"kind": "beat"}


class FromNode:
    """What a node sends to the controller."""

    __slots__ = ()


class FromController:
    """What the controller sends to a node."""

    __slots__ = ()


# What a node sends.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress(FromNode):
    """Where the node listens: the first message on its link."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewReceived(FromNode):
    """The node has this view in its inbox: no later controller is asked for it (rule 33)."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedDigests(FromNode):
    """What the node's copies of `partitions` have emitted up to `position`, to be compared with other copies."""

    stage: int
    position: int
    partitions: tuple[int, ...]
    digests: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalDigests(FromNode):
    """Answers `FinalDigestsWanted`: what each cohort of the node has emitted, up to where it is."""

    digests: tuple[EmittedDigests, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWords(FromNode):
    """Answers `RowWordsWanted`: a word for each sequence number for which the node's copy emitted rows.

    The node keeps all of these rows after the position `after` only.
    """

    after: int
    words: tuple[tuple[int, Word], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTexts(FromNode):
    """Answers `RowTextsWanted`: what was emitted for each of the numbers, as text."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeStuck(FromNode):
    """Code of the user on the node does not return, on the connection of its heartbeats; empty: it has returned."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerUnreachable(FromNode):
    """The connection to a peer broke and could not be made again."""

    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone(FromNode):
    """What the node has done since its last report, for balance; sent many times a second, unasked."""

    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class FromMachine(FromNode):
    """What the node's machine sends to the controller's."""

    message: Hello | CopyReady | CopyFailed | ChangeReport


# What the controller sends.


@dataclass(frozen=True, slots=True, kw_only=True)
class NewView(FromController):
    """The next view, and where its nodes listen."""

    view: View
    addresses: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForMachine(FromController):
    """What the controller's machine sends to the node's, after the views before it."""

    message: Prepare | Bind | Unbind


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalDigestsWanted(FromController):
    """The stream has ended: what has the site emitted?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWordsWanted(FromController):
    """Digests of two copies differ: in which rows of (after, upto]?"""

    stage: int
    partition: int
    after: int
    upto: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTextsWanted(FromController):
    """Words of two copies differ at these sequence numbers: what are the rows?"""

    stage: int
    partition: int
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismissed(FromController):
    """The node was declared dead: it must end."""

    why: str


_BALANCE = (Work, StageWork)
_CODEC = Codec(
    [*subclasses_in(globals(), FromNode), *subclasses_in(globals(), FromController), *_BALANCE, *PROTOCOL_CLASSES]
)


def membership_frame(message: FromNode | FromController) -> dict[str, Any]:
    """Return the header of the frame that carries a message."""
    return {"kind": MEMBERSHIP_KIND, "m": _CODEC.to_plain(message)}


def read_from_node(header: dict[str, Any]) -> FromNode:
    """Return what a node sent; `BadFrame` if it is anything else."""
    return cast(FromNode, read_frame(_CODEC, MEMBERSHIP_KIND, header, (FromNode,)))


def read_from_controller(header: dict[str, Any]) -> FromController:
    """Return what a controller sent; `BadFrame` if it is anything else."""
    return cast(FromController, read_frame(_CODEC, MEMBERSHIP_KIND, header, (FromController,)))
