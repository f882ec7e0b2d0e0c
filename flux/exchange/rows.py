"""Rows: the body of a message: the tuples and punctuations of a range of sequence numbers, as columns.

One Arrow record batch holds the user's columns and, after them, the hidden ones: `sn`, `sub` (left out while it is zero
everywhere; see `flux.model.subseq`), the producer's partition and the consumer's partition. Rows are in (sn, sub,
producer) order. Everything here is one vectorised pass, whatever the number of partitions.

Departure: frames are not sorted by consumer partition, because in sn order merging lanes is a merge of a few sorted
runs. A pooled operator needs no other order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model.batch import Batch
from ..model.punctuation import PUNCTUATIONS, Punctuation
from ..model.subseq import Subseqs, from_arrow, is_sub, to_arrow
from ..types.array_types import Pids
from ..types.normalize import HIDDEN, describe_columns
from ..wire.frames import BadFrame, format_value
from .channel_mask import ChannelMask

SN, SUB, PRODUCER, PARTITION = HIDDEN
_HIDDEN_TYPES = {SN: pa.int64(), PRODUCER: pa.uint16(), PARTITION: pa.uint16()}
_tokens = itertools.count(1)


def new_token() -> int:
    """Return a new number that identifies a body in a recording."""
    return next(_tokens)


class Rows:
    """Tuples of (after, upto] in order, and the punctuations among them. Immutable."""

    __slots__ = ("_encoded", "punctuations", "spilled", "token", "wide")

    def __init__(self, wide: pa.RecordBatch | None, punctuations: tuple[Punctuation, ...] = ()) -> None:
        self.wide = wide if wide is not None and wide.num_rows else None
        self.punctuations = punctuations
        self.token = new_token()
        self.spilled = False
        self._encoded: pa.Buffer | None = None  # What `encode` returned, for the next lane that sends the same rows.

    @classmethod
    def of(
        cls,
        user: pa.RecordBatch,
        sn: npt.NDArray[np.int64],
        sub: Subseqs | None,
        producer: npt.NDArray[np.uint16],
        partition: npt.NDArray[np.uint16],
        punctuations: tuple[Punctuation, ...] = (),
    ) -> Rows:
        """Return rows with the hidden columns after the user's."""
        hidden = {SN: pa.array(sn), PRODUCER: pa.array(producer), PARTITION: pa.array(partition)}
        if sub is not None:
            hidden[SUB] = to_arrow(sub)
        arrays = list(hidden.values())
        ours = [pa.field(name, array.type) for name, array in zip(hidden, arrays, strict=True)]
        # The user's fields are unchanged: they carry more than the arrays do, such as nullability.
        schema = pa.schema([*user.schema, *ours], user.schema.metadata)
        return cls(pa.RecordBatch.from_arrays([*user.columns, *arrays], schema=schema), punctuations)

    @classmethod
    def routed(cls, batch: Batch, partition: Pids, punctuations: tuple[Punctuation, ...]) -> Rows:
        """Return what operators emitted, with the partition that each row goes to."""
        return cls.of(batch.arrow, batch.sn, batch.sub, batch.partition, partition, punctuations)

    @property
    def batch(self) -> Batch | None:
        """The rows as operators see them, in the same memory; None if there are none."""
        if self.wide is None:
            return None
        return Batch(self.user, self.hidden(SN), self.hidden(SUB), self.hidden(PARTITION))

    @classmethod
    def received(cls, wide: pa.RecordBatch | None, plain_marks: Any) -> Rows:
        """Return rows received from a peer; `BadFrame` if a hidden column or the order of rows is invalid."""
        rows = cls(wide, punctuations_from_plain(plain_marks))
        if rows.wide is None:
            return rows
        for name, kind in _HIDDEN_TYPES.items():
            found = rows.wide.schema.get_all_field_indices(name)
            column = rows.wide.column(found[0]) if len(found) == 1 else None
            if column is None or column.type != kind or column.null_count:
                columns = describe_columns(rows.wide.schema)
                raise BadFrame(f"rows need one column {name} of {kind} without nulls; these have {columns}")
        found = rows.wide.schema.get_all_field_indices(SUB)
        if len(found) > 1 or not all(is_sub(rows.wide.column(place)) for place in found):
            raise BadFrame(
                f"rows need one column {SUB} or none, of uint64 or of lists of several that are all as long, without "
                f"nulls; these have {describe_columns(rows.wide.schema)}"
            )
        sn = rows.hidden(SN)
        if (sn[1:] < sn[:-1]).any():
            raise BadFrame("rows are in the order of their sequence numbers; these are not")
        return rows

    def expect(self, after: int, upto: int, producers: int, partitions: int) -> None:
        """Raise `BadFrame` for a row or mark outside (after, upto], or a row of a partition that does not exist."""
        positions = [mark.sn for mark in self.punctuations]
        if self.wide is not None:
            sn = self.hidden(SN)
            positions += [int(sn[0]), int(sn[-1])]
            for name, count in ((PRODUCER, producers), (PARTITION, partitions)):
                last = int(self.hidden(name).max())
                if last >= count:
                    raise BadFrame(f"a row has {name} {last}, and there are only {count}")
        for position in positions:
            if not after < position <= upto:
                raise BadFrame(f"a row or mark with sequence number {position} is outside ({after}, {upto}]")

    def __len__(self) -> int:
        return 0 if self.wide is None else int(self.wide.num_rows)

    @property
    def last_sn(self) -> int:
        """The sequence number of the last row, which must exist."""
        return int(self.hidden(SN)[-1])

    @property
    def user(self) -> pa.RecordBatch:
        """The user's columns only."""
        assert self.wide is not None
        return self.wide.select([name for name in self.wide.schema.names if name not in HIDDEN])

    def hidden(self, name: str) -> Any:
        """Return a hidden column as a numpy array, without a copy; None if it is left out."""
        assert self.wide is not None
        index = self.wide.schema.get_field_index(name)
        if index < 0:
            return None
        column = self.wide.column(index)
        return from_arrow(column) if name == SUB else column.to_numpy(zero_copy_only=True)

    def on(self, edge: int) -> Rows:
        """Return the rows of `edge`, the only one."""
        return self

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and the last sequence number of rows and marks; None if there are none."""
        numbers = [mark.sn for mark in self.punctuations]
        if self.wide is not None:
            sn = self.hidden(SN)
            numbers += [int(sn[0]), int(sn[-1])]
        return (min(numbers), max(numbers)) if numbers else None

    def between(self, after: int, upto: int) -> Rows:
        """Return the part in (after, upto], sharing memory with the whole."""
        punctuations = tuple(mark for mark in self.punctuations if after < mark.sn <= upto)
        if self.wide is None:
            return Rows(None, punctuations)
        sn = self.hidden(SN)
        start, stop = np.searchsorted(sn, (after, upto), side="right")
        if start == 0 and stop == len(sn) and len(punctuations) == len(self.punctuations):
            return self
        return Rows(self.wide.slice(start, stop - start), punctuations)

    def select(self, channels: ChannelMask) -> Rows:
        """Return the rows of these channels, and all punctuations."""
        if self.wide is None or channels.everything:
            return self
        chosen = np.flatnonzero(channels.mask(self.hidden(PRODUCER), self.hidden(PARTITION)))
        if len(chosen) == len(self):
            return self
        return Rows(gather(self.wide, chosen), self.punctuations)

    def of_partitions(self, partitions: list[int]) -> Rows:
        """Return the rows to these consumer partitions, and all punctuations; a recording takes both for one."""
        if self.wide is None or self.spilled:
            return self
        consumer = self.hidden(PARTITION)
        is_chosen = np.zeros(int(consumer.max()) + 1, dtype=np.bool_)
        is_chosen[partitions] = True
        rows = Rows(gather(self.wide, np.flatnonzero(is_chosen.take(consumer))), self.punctuations)
        rows.token = self.token
        return rows

    def encode(self) -> pa.Buffer | None:
        """Return the record batch as Arrow IPC without its schema; cached for lanes that send it whole."""
        if self._encoded is None and self.wide is not None:
            self._encoded = self.wide.serialize()
        return self._encoded

    def spill(self, memory: Any) -> Rows:
        """Return the same rows in `memory`, which holds what `encode` returned; a recording takes both for one."""
        assert self.wide is not None
        rows = Rows(None, self.punctuations)
        rows._encoded = pa.py_buffer(memory)
        rows.wide = pa.ipc.read_record_batch(rows._encoded, self.wide.schema)
        rows.token, rows.spilled = self.token, True
        return rows


def punctuations_to_plain(punctuations: Iterable[Punctuation]) -> list[list[Any]]:
    """Return punctuations in msgpack types."""
    return [[mark.sn, mark.kind, mark.value] for mark in punctuations]


def punctuations_from_plain(plain: Any) -> tuple[Punctuation, ...]:
    """Return the punctuations that `punctuations_to_plain` encoded; `BadFrame` if `plain` is invalid."""
    if not isinstance(plain, list | tuple):
        raise BadFrame(f"expected a list of punctuations, got {format_value(plain)}")
    punctuations: list[Punctuation] = []
    for each in plain:
        if not isinstance(each, list | tuple) or len(each) != 3:
            raise BadFrame(f"a punctuation is (sn, kind, value), got {format_value(each)}")
        sn, kind, value = each
        if not _is_int64(sn) or kind not in PUNCTUATIONS or not (value is None or _is_int64(value)):
            raise BadFrame(
                f"a punctuation is (integer, one of {PUNCTUATIONS}, integer or None), got {format_value(each)}"
            )
        if punctuations and punctuations[-1].sn >= sn:
            raise BadFrame(f"punctuations are in the order of their numbers; got {sn} after {punctuations[-1].sn}")
        punctuations.append(Punctuation(sn, kind, value))
    return tuple(punctuations)


def _is_int64(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def gather(batch: pa.RecordBatch, indices: npt.NDArray[np.int64]) -> pa.RecordBatch:
    # The caller computed the indices; checking them again would be a third of the cost.
    return pc.take(batch, pa.array(indices), boundscheck=False)
