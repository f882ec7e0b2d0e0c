"""Stage input: the frames of all lanes into one stage as one batch, in order.

Lanes of several edges (a union, a join) are merged by (sn, sub, edge, producer). Where edges have different columns,
each row is widened to the columns of all sides, null where it has none. The first column is its side. So a join is an
operator like any other: its rows are cut, replayed and shown like those of others, and no part between knows of sides.
Separate batches by edge would save one copy of the rows, about a tenth of the cost of a join. They would need a second
kind of batch in every part that cuts, buffers, skips and moves rows.

An unordered stage takes whole frames, also beyond its frontier. Punctuations wait here until the frontier has passed
them. Rows from an unordered stage into an ordered one are sorted here, with their content as tie-break (`settle`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from ..model.punctuation import Punctuation
from ..protocols.messages import Block, Consume, PendingInput
from .channel_mask import ChannelMask
from .merge import merge, settle
from .rows import Rows
from .sides import widen


class StageInput:
    """The lanes into a stage.

    `edges` has the side of each incoming edge, `sides` the columns of each side if they differ, `unsettled` the edges
    from unordered stages. `mask` returns the mask of a lane's channels.
    """

    def __init__(
        self,
        edges: Mapping[int, int],
        sides: Sequence[pa.Schema],
        unsettled: frozenset[int],
        mask: Callable[[tuple[Block, ...], int], ChannelMask],
    ) -> None:
        self._edges = edges
        self._sides = sides
        self._unsettled = unsettled
        self._mask = mask
        self._waiting: dict[int, Punctuation] = {}

    def merged(self, job: Consume) -> Rows:
        """Return the rows and punctuations of a step."""
        parts = [self._part(job, frame) for frame in job.frames]
        edges = [frame.edge for frame in job.frames]
        if job.ordered and self._unsettled:
            parts, edges = self._settle(parts, edges)
        whole = merge(parts, edges if len(self._edges) > 1 else [])
        return whole if job.ordered else Rows(whole.wide, self._due(job, whole.punctuations))

    def _settle(self, parts: list[Rows], edges: list[int]) -> tuple[list[Rows], list[int]]:
        """Return the parts with one sorted part for each edge from an unordered stage, and their edges."""
        others = [place for place, edge in enumerate(edges) if edge not in self._unsettled]
        early = sorted(self._unsettled.intersection(edges))
        own = [settle(merge(part for part, of in zip(parts, edges, strict=True) if of == edge)) for edge in early]
        return [*(parts[place] for place in others), *own], [*(edges[place] for place in others), *early]

    def _part(self, job: Consume, frame: PendingInput) -> Rows:
        after, upto = (job.after, job.upto) if job.ordered else (frame.after, frame.upto)
        rows: Rows = frame.body.between(after, upto)
        if frame.channels:
            rows = rows.select(self._mask(frame.channels, frame.edge))
        return self._widen(rows, self._edges[frame.edge]) if self._sides else rows

    def _due(self, job: Consume, punctuations: tuple[Punctuation, ...]) -> tuple[Punctuation, ...]:
        """Return the punctuations that the frontier has now passed; they are the same in each lane."""
        self._waiting |= {mark.sn: mark for mark in punctuations}
        return tuple(self._waiting[sn] for sn in sorted(self._waiting) if job.after < sn <= job.upto)

    def forget(self, consumed: int) -> None:
        """Drop the punctuations up to `consumed`, which every consumer here has processed."""
        if self._waiting:
            self._waiting = {sn: mark for sn, mark in self._waiting.items() if sn > consumed}

    def _widen(self, rows: Rows, side: int) -> Rows:
        return rows if rows.wide is None else Rows(widen(rows.wide, side, self._sides), rows.punctuations)
