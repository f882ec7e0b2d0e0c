"""Rows and watermarks as an ingress numbers them, given to operators on two sites in any batches; shared by the tests.

What comes out is (sn, row), in the order in which an egress would have it, with all floats as they are to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from flux.model.batch import Batch
from flux.model.event_time import EventTime
from flux.model.operator import OperatorStep
from flux.model.punctuation import Punctuation
from flux.site.ingress.watermarks import TimePlaces, Watermarks, number_watermarks
from flux.types.hashing import partition_of
from tests.operators.feeding import PARTITIONS, moved, opened


@dataclass(frozen=True)
class Timeline:
    """Rows with their numbers and partitions, and the marks among them, ending with the end of the stream."""

    rows: pa.RecordBatch
    sn: Any
    partition: Any
    punctuations: tuple[Punctuation, ...]

    @classmethod
    def of(cls, rows: pa.RecordBatch, key: Sequence[str], told: EventTime | None, *, ends: bool = True) -> Timeline:
        found: tuple[tuple[int, int], ...] = ()
        if told is not None:
            unmarked = Batch(rows, np.arange(1, rows.num_rows + 1), None, np.zeros(rows.num_rows, np.uint16))
            found = Watermarks({0: TimePlaces(told, (-1,))}, {}).advance(0, {-1: unmarked}, 0)
        punctuations = [Punctuation(sn, "watermark", value) for sn, value in found]
        if ends:
            punctuations.append(Punctuation(rows.num_rows + len(found) + 1, "end"))
        partition = partition_of([rows.column(name) for name in key], PARTITIONS)
        return cls(rows, number_watermarks(0, rows.num_rows, found), partition, tuple(punctuations))

    def pieces(self, cuts: Sequence[int]) -> list[Batch | Punctuation]:
        """The rows cut there and at the marks, and the marks."""
        ends = sorted(
            {*cuts, *(int(np.searchsorted(self.sn, mark.sn)) for mark in self.punctuations), self.rows.num_rows}
        )
        punctuations, pieces, start = list(self.punctuations), [], 0
        for stop in [0, *ends]:
            if stop > start:
                rows = self.rows.slice(start, stop - start)
                pieces.append(Batch(rows, self.sn[start:stop], None, self.partition[start:stop]))
            start = max(start, stop)
            while punctuations and (start == self.rows.num_rows or punctuations[0].sn < self.sn[start]):
                pieces.append(punctuations.pop(0))
        return pieces


def cut_places(rows: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, rows), max_size=8) | st.just(list(range(rows)))


class Sites:
    """Two sites that share the partitions of one step."""

    def __init__(self, step: OperatorStep) -> None:
        self.sites = [opened(step, [0, 1]), opened(step, [2, 3])]
        self.at = {0: 0, 1: 0, 2: 1, 3: 1}
        self.late: dict[int, int] = {}

    def give(self, piece: Batch | Punctuation) -> list[Batch]:
        found = []
        for number, site in enumerate(self.sites):
            held = frozenset(pid for pid, at in self.at.items() if at == number)
            if isinstance(piece, Punctuation):
                out = site.punctuate(replace(piece, partitions=held))
            else:
                out = site.process(piece.take(np.flatnonzero(np.isin(piece.partition, sorted(held)))))
            if out is not None:
                found.append(out)
            for pid, total in site.take_late().items():
                self.late[pid] = max(total, self.late.get(pid, 0))
        return found

    def move(self, pid: int) -> None:
        old, self.at[pid] = self.at[pid], 1 - self.at[pid]
        moved(self.sites[old], self.sites[self.at[pid]], pid)


def played(
    step: OperatorStep, timeline: Timeline, cuts: Sequence[int] = (), moves: Sequence[int] = ()
) -> tuple[list[tuple[int, tuple[Any, ...]]], int]:
    """Return the output as (sn, row), and how many rows were late; `moves[i]` moves behind piece i."""
    sites = Sites(step)
    found: list[Batch] = []
    for i, piece in enumerate(timeline.pieces(cuts)):
        found += sites.give(piece)
        if i < len(moves):
            sites.move(moves[i])
    if not found:
        return [], sum(sites.late.values())
    whole = Batch.concat(found).ordered()
    rows = [tuple(row.values()) for row in whole.arrow.to_pylist()]
    return list(zip(whole.sn.tolist(), rows, strict=True)), sum(sites.late.values())
