"""Rows: a body: the tuples and punctuations of a range of sequence numbers, as columns.

One Arrow record batch holds the user's columns and, behind them, the hidden ones: `sn`, `sub` (left
out while it is zero everywhere), the partition that produced the row and the partition it goes to.
Rows are in (sn, sub, producer) order. Everything here is one vectorised pass whatever the number of
partitions.

Departure: frames are not sorted by consumer partition. In sn order, merging lanes is a merge of a few
sorted runs, and a pooled operator needs no other order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..protocols.messages import Block
from ..punctuation import Punctuation

SN, SUB, PRODUCER, PARTITION = "__sn", "__sub", "__producer", "__partition"
_HIDDEN = (SN, SUB, PRODUCER, PARTITION)
_tokens = itertools.count(1)


class Rows:
    """Tuples of (after, upto] in order, and the punctuations among them. Immutable."""

    __slots__ = ("_encoded", "marks", "token", "wide")

    def __init__(self, wide: pa.RecordBatch | None, marks: tuple[Punctuation, ...] = ()) -> None:
        self.wide = wide if wide is not None and wide.num_rows else None
        self.marks = marks
        self.token = next(_tokens)  # Stands for this body in a recording.
        self._encoded: pa.Buffer | None = None

    @classmethod
    def of(
        cls,
        user: pa.RecordBatch,
        sn: npt.NDArray[np.int64],
        sub: npt.NDArray[np.uint64] | None,
        producer: npt.NDArray[np.uint16],
        partition: npt.NDArray[np.uint16],
        marks: tuple[Punctuation, ...] = (),
    ) -> Rows:
        """Put the hidden columns behind the user's."""
        hidden = {SN: sn, PRODUCER: producer, PARTITION: partition}
        if sub is not None:
            hidden[SUB] = sub
        arrays = [*user.columns, *(pa.array(values) for values in hidden.values())]
        return cls(pa.RecordBatch.from_arrays(arrays, names=[*user.schema.names, *hidden]), marks)

    def __len__(self) -> int:
        return 0 if self.wide is None else int(self.wide.num_rows)

    @property
    def user(self) -> pa.RecordBatch:
        """The user's columns only."""
        assert self.wide is not None
        return self.wide.select([name for name in self.wide.schema.names if name not in _HIDDEN])

    def hidden(self, name: str) -> Any:
        """A hidden column as a numpy array, without a copy; None if it is left out."""
        assert self.wide is not None
        index = self.wide.schema.get_field_index(name)
        return None if index < 0 else self.wide.column(index).to_numpy(zero_copy_only=True)

    def between(self, after: int, upto: int) -> Rows:
        """The part in (after, upto], sharing memory with the whole."""
        marks = tuple(mark for mark in self.marks if after < mark.sn <= upto)
        if self.wide is None:
            return Rows(None, marks)
        sn = self.hidden(SN)
        start, stop = np.searchsorted(sn, (after, upto), side="right")
        if start == 0 and stop == len(sn) and len(marks) == len(self.marks):
            return self
        return Rows(self.wide.slice(start, stop - start), marks)

    def select(self, channels: Channels) -> Rows:
        """The rows of these channels; punctuations go to every partition."""
        if self.wide is None or channels.everything:
            return self
        chosen = np.flatnonzero(channels.mask(self.hidden(PRODUCER), self.hidden(PARTITION)))
        if len(chosen) == len(self):
            return self
        return Rows(_taken(self.wide, chosen), self.marks)

    def encode(self) -> pa.Buffer | None:
        """The record batch as Arrow IPC without its schema; kept, for the lanes that send it whole."""
        if self._encoded is None and self.wide is not None:
            self._encoded = self.wide.serialize()
        return self._encoded


class Channels:
    """A lane's channels as a table of truth values, by producer and consumer partition."""

    __slots__ = ("_table", "blocks", "everything")

    def __init__(self, blocks: Sequence[Block], producers: int, consumers: int) -> None:
        self.blocks = blocks
        self._table = np.zeros((producers, consumers), dtype=bool)
        for block in blocks:
            self._table[np.ix_(block.producers, block.consumers)] = True
        self.everything = bool(self._table.all())

    def mask(self, producer: npt.NDArray[np.uint16], consumer: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
        """Whether each row goes this way."""
        flat: npt.NDArray[Any] = consumer
        if len(self._table) > 1:
            flat = producer.astype(np.int32) * self._table.shape[1] + consumer
        chosen: npt.NDArray[np.bool_] = self._table.reshape(-1).take(flat)
        return chosen


def merge(parts: Iterable[Rows]) -> Rows:
    """One body out of several lanes' for the same range, in (sn, sub, producer) order."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    marks = {mark.sn: mark for part in parts for mark in part.marks}  # Each lane brings the same ones.
    in_order = tuple(marks[sn] for sn in sorted(marks))
    filled = [part for part in parts if part.wide is not None]
    if len(filled) <= 1:
        return Rows(filled[0].wide if filled else None, in_order)
    whole = Rows(pa.concat_batches(_alike(filled)))
    sn = whole.hidden(SN)
    order = np.argsort(sn, kind="stable")
    in_sn_order = sn[order]
    if (in_sn_order[1:] == in_sn_order[:-1]).any():
        sub = whole.hidden(SUB)
        ties = (whole.hidden(PRODUCER), sn) if sub is None else (whole.hidden(PRODUCER), sub, sn)
        order = np.lexsort(ties)
    assert whole.wide is not None
    return Rows(_taken(whole.wide, order), in_order)


def _taken(batch: pa.RecordBatch, indices: npt.NDArray[np.int64]) -> pa.RecordBatch:
    # The indices are our own; checking them again would be a third of the cost.
    return pc.take(batch, pa.array(indices), boundscheck=False)


def _alike(parts: Sequence[Rows]) -> list[pa.RecordBatch]:
    """The parts' batches under one schema: those without `sub` get zeros where others have it."""
    batches: list[Any] = [part.wide for part in parts]
    if not any(SUB in batch.schema.names for batch in batches):
        return batches
    return [
        batch
        if SUB in batch.schema.names
        else batch.append_column(SUB, pa.array(np.zeros(batch.num_rows, dtype=np.uint64)))
        for batch in batches
    ]
