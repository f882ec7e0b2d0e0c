"""Lane chunks: the parts in which a large message is sent, one frame each.

A lane to a copy that was just built starts with a backlog: the rows that arrived during the state transfer may be many
times what a lane usually carries. They are sent in chunks, in the order of sequence numbers, each a message of its own.
A chunk is created when the link is ready for it. So the whole backlog occupies neither the event loop nor the memory of
this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..protocols.messages import Block, Data

CHUNK_ROWS = 64 << 10

Channels = tuple[tuple[Block, ...], ...]  # For each body of a message, the channels whose rows are sent.


def chunks(message: Data, channels: Channels, cuts: Iterable[int] = ()) -> Iterator[tuple[Data, Channels]]:
    """Yield the message in parts of about `CHUNK_ROWS` rows at most; bodies are cut only where they overlap.

    None goes across a position in `cuts`: rows may have other columns after it.
    """
    if len(message.bodies) < 2:
        yield message, channels
        return
    spans = np.array([body.span or (message.upto + 1, message.after) for body in message.bodies], np.int64)
    after = message.after
    needed = {cut for cut in cuts if message.after < cut < message.upto}
    for upto in sorted({*_cuts(message, spans[:, 0].tolist()), *needed, message.upto}):
        within = np.flatnonzero((spans[:, 0] <= upto) & (spans[:, 1] > after)).tolist()
        bodies = tuple(message.bodies[place] for place in within)
        yield replace(message, after=after, upto=upto, bodies=bodies), tuple(channels[place] for place in within)
        after = upto


def _cuts(message: Data, firsts: Sequence[int]) -> Iterator[int]:
    """Yield the positions of cuts, each before a body. Bodies may overlap; then a cut divides some of them."""
    rows, last = 0, message.after
    for body, first in zip(message.bodies, firsts, strict=True):
        if rows >= CHUNK_ROWS and last < first - 1 < message.upto:
            yield first - 1
            rows, last = 0, first - 1
        rows += len(body)
