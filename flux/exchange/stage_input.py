"""Inputs: what one stage is given in a step: the frames of all its lanes as one batch, in order.

Lanes of several edges (a union, a join) are merged by (sn, sub, edge, producer). Where edges have different columns,
each row is widened to the columns of all sides, null where it has none, behind a column that says of which side it is.
So a join is an operator like any other: its rows are cut, given again and shown like those of others, and nothing on
their way knows of sides. Batches kept apart by edge would save one copy of the rows, about a tenth of what a join
costs, and would need a second kind of batch in everything that cuts, keeps, skips and moves them.

A stage that is not ordered takes frames whole, also beyond its frontier. Punctuations wait here until that has passed.
What an ordered stage takes from such a one is put in order here, as far as positions do not tell (`rows.settled`).
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

    `edges` has the side of each edge into it, `sides` the columns of each side if they differ, `unsettled` the edges
    from stages that are not ordered. `mask` makes the mask of a lane's channels.
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
        """The rows and punctuations of a step."""
        parts = [self._part(job, frame) for frame in job.frames]
        edges = [frame.edge for frame in job.frames]
        if job.ordered and self._unsettled:
            parts, edges = self._settled(parts, edges)
        whole = merge(parts, edges if len(self._edges) > 1 else [])
        return whole if job.ordered else Rows(whole.wide, self._due(job, whole.punctuations))

    def _settled(self, parts: list[Rows], edges: list[int]) -> tuple[list[Rows], list[int]]:
        """One part for each edge from a stage that takes rows as they come: such rows are to be put in order here."""
        others = [place for place, edge in enumerate(edges) if edge not in self._unsettled]
        early = sorted(self._unsettled.intersection(edges))
        own = [settle(merge(part for part, of in zip(parts, edges, strict=True) if of == edge)) for edge in early]
        return [*(parts[place] for place in others), *own], [*(edges[place] for place in others), *early]

    def _part(self, job: Consume, frame: PendingInput) -> Rows:
        rows: Rows = frame.body.between(job.after, job.upto) if job.ordered else frame.body
        if frame.channels:
            rows = rows.select(self._mask(frame.channels, frame.edge))
        return self._widened(rows, self._edges[frame.edge]) if self._sides else rows

    def _due(self, job: Consume, punctuations: tuple[Punctuation, ...]) -> tuple[Punctuation, ...]:
        """The punctuations that the frontier has passed now; each lane brings the same ones."""
        self._waiting |= {mark.sn: mark for mark in punctuations}
        return tuple(self._waiting[sn] for sn in sorted(self._waiting) if job.after < sn <= job.upto)

    def forget(self, consumed: int) -> None:
        """Everybody is through what is up to `consumed`."""
        if self._waiting:
            self._waiting = {sn: mark for sn, mark in self._waiting.items() if sn > consumed}

    def _widened(self, rows: Rows, side: int) -> Rows:
        return rows if rows.wide is None else Rows(widen(rows.wide, side, self._sides), rows.punctuations)
