"""Lane frames: what a machine sends on a lane as frames of a link, and back.

The machine names runs of output and the channels of a lane; here the rows of these channels are selected, the runs are
merged, and the result becomes the body of a frame. A frame is ``{"kind": "peer", "m": message, "punctuations": [...]}``
with the rows as its body. Messages without rows travel in the same kind of frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..protocols.messages import Block, Data, PeerMessage, State
from ..wire.codec import from_plain, to_plain
from ..wire.frames import BadFrame
from ..wire.link import FrameBody, Later, Link
from .channel_mask import ChannelMask
from .lane_chunks import Channels, chunks
from .merge import merge
from .rows import Rows, punctuations_from_plain, punctuations_to_plain

PEER_KIND = "peer"
_MASKS_MAX = 256


class LaneFrames:
    """Frames of the lanes of one process; `edge_sizes` are the partitions at both ends of each edge."""

    def __init__(self, edge_sizes: Sequence[tuple[int, int]]) -> None:
        self._edge_sizes = edge_sizes
        self._masks: dict[tuple[tuple[Block, ...], int], ChannelMask] = {}
        self._cuts: set[int] = set()  # Positions that no frame goes across: code has changed there.

    def cut_at(self, positions: Iterable[int]) -> None:
        """Send no frame across these positions from now on."""
        self._cuts.update(positions)

    def mask(self, channels: tuple[Block, ...], edge: int) -> ChannelMask:
        """Return the mask of a lane's channels; it is made once."""
        known = self._masks.get((channels, edge))
        if known is None:
            if len(self._masks) >= _MASKS_MAX:
                self._masks.clear()  # Most are of lanes that are no more.
            known = self._masks[channels, edge] = ChannelMask(channels, *self._edge_sizes[edge])
        return known

    def to_self(self, message: Data, channels: Channels) -> Iterator[Data]:
        """Yield what the process sends to itself: messages of a bounded size, each with one body."""
        for part, blocks in self._parts(message, channels):
            yield replace(part, bodies=(self._rows(part, blocks),))

    def to_peer(self, message: Data, channels: Channels) -> Iterator[Later]:
        """Yield what makes each frame: it is called when the link is ready for it."""
        for part, blocks in self._parts(message, channels):
            yield partial(self._frame, part, blocks)

    def _parts(self, message: Data, channels: Channels) -> Iterator[tuple[Data, Channels]]:
        bodies = tuple([body.on(message.edge) for body in message.bodies])
        return chunks(replace(message, bodies=bodies), channels, self._cuts)

    def _rows(self, message: Data, channels: Channels) -> Rows:
        parts = [body.between(message.after, message.upto) for body in message.bodies]
        masks = [self.mask(blocks, message.edge) for blocks in channels]
        return merge([part.select(mask) for part, mask in zip(parts, masks, strict=True)])

    def _frame(self, message: Data, channels: Channels) -> tuple[dict[str, Any], Any, FrameBody]:
        rows = self._rows(message, channels)
        header = {**message_frame(message), "punctuations": punctuations_to_plain(rows.punctuations)}
        return header, rows.wide, rows.encode()


def message_frame(message: PeerMessage) -> dict[str, Any]:
    """Return the header of the frame that carries a message; bodies are left out."""
    return {"kind": PEER_KIND, "m": to_plain(message)}


def read_message(link: Link, header: dict[str, Any], body: Any) -> PeerMessage:
    """Return the message of a peer, with its rows; `BadFrame` if it is anything else."""
    if header.get("kind") != PEER_KIND:
        raise BadFrame(f"expected a message of {link.peer}, got a frame of kind {header.get('kind')!r:.80}")

    def rows(_: Any) -> tuple[Rows]:
        punctuations = punctuations_from_plain(header.get("punctuations", ()))
        return (Rows(link.decode_batch(header, body), punctuations),)

    message = from_plain(header.get("m"), rows)
    if not isinstance(message, PeerMessage) or isinstance(message, State) or message.sender != link.peer:
        raise BadFrame(f"expected a message of {link.peer}, got {message!r:.200}")
    return message
