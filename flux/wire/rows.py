"""Rows: a body: the tuples and punctuations of a range of sequence numbers, as columns.

One Arrow record batch holds the user's columns and, behind them, the hidden ones: `sn`, `sub` (left
out while it is zero everywhere; see `flux.subs`), the partition that produced the row and the partition it goes to.
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

from ..errors import OperatorError
from ..learning import filled_schema, together
from ..plain import HIDDEN, columns_of
from ..protocols.messages import Block
from ..punctuation import PUNCTUATIONS, Punctuation
from ..subs import Subs, from_arrow, is_sub, padded, to_arrow, words_of
from .frames import BadFrame, shown

SN, SUB, PRODUCER, PARTITION = HIDDEN
_HIDDEN_TYPES = {SN: pa.int64(), PRODUCER: pa.uint16(), PARTITION: pa.uint16()}
_BLOCKS_PER_WORD = 64
_TABLE_MAX = 1 << 18  # Pairs of partitions, a byte each: what stays in the cache.
_tokens = itertools.count(1)


def new_token() -> int:
    """A number that stands for a body in a recording."""
    return next(_tokens)


class Rows:
    """Tuples of (after, upto] in order, and the punctuations among them. Immutable."""

    __slots__ = ("_encoded", "marks", "spilled", "token", "wide")

    def __init__(self, wide: pa.RecordBatch | None, marks: tuple[Punctuation, ...] = ()) -> None:
        self.wide = wide if wide is not None and wide.num_rows else None
        self.marks = marks
        self.token = new_token()
        self._encoded: pa.Buffer | None = None
        self.spilled = False

    @classmethod
    def of(
        cls,
        user: pa.RecordBatch,
        sn: npt.NDArray[np.int64],
        sub: Subs | None,
        producer: npt.NDArray[np.uint16],
        partition: npt.NDArray[np.uint16],
        marks: tuple[Punctuation, ...] = (),
    ) -> Rows:
        """Put the hidden columns behind the user's."""
        hidden = {SN: pa.array(sn), PRODUCER: pa.array(producer), PARTITION: pa.array(partition)}
        if sub is not None:
            hidden[SUB] = to_arrow(sub)
        arrays = list(hidden.values())
        ours = [pa.field(name, array.type) for name, array in zip(hidden, arrays, strict=True)]
        # The user's fields as they are: they also say what the arrays do not, such as that there are no nulls.
        schema = pa.schema([*user.schema, *ours], user.schema.metadata)
        return cls(pa.RecordBatch.from_arrays([*user.columns, *arrays], schema=schema), marks)

    @classmethod
    def received(cls, wide: pa.RecordBatch | None, plain_marks: Any) -> Rows:
        """Rows that came from a peer; `BadFrame` if they lack what every use of them relies on."""
        rows = cls(wide, marks_from_plain(plain_marks))
        if rows.wide is None:
            return rows
        for name, kind in _HIDDEN_TYPES.items():
            found = rows.wide.schema.get_all_field_indices(name)
            column = rows.wide.column(found[0]) if len(found) == 1 else None
            if column is None or column.type != kind or column.null_count:
                raise BadFrame(
                    f"rows need one column {name} of {kind} without nulls; these have {columns_of(rows.wide.schema)}"
                )
        found = rows.wide.schema.get_all_field_indices(SUB)
        if len(found) > 1 or not all(is_sub(rows.wide.column(place)) for place in found):
            raise BadFrame(
                f"rows need one column {SUB} or none, of uint64 or of lists of several that are all as long, without "
                f"nulls; these have {columns_of(rows.wide.schema)}"
            )
        sn = rows.hidden(SN)
        if (sn[1:] < sn[:-1]).any():
            raise BadFrame("rows are in the order of their sequence numbers; these are not")
        return rows

    def expect(self, after: int, upto: int, producers: int, partitions: int) -> None:
        """`BadFrame` if there is a row or mark outside (after, upto], or of a partition that does not exist."""
        positions = [mark.sn for mark in self.marks]
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
        """The number of the last row; there is one."""
        return int(self.hidden(SN)[-1])

    @property
    def user(self) -> pa.RecordBatch:
        """The user's columns only."""
        assert self.wide is not None
        return self.wide.select([name for name in self.wide.schema.names if name not in HIDDEN])

    def hidden(self, name: str) -> Any:
        """A hidden column as a numpy array, without a copy; None if it is left out."""
        assert self.wide is not None
        index = self.wide.schema.get_field_index(name)
        if index < 0:
            return None
        column = self.wide.column(index)
        return from_arrow(column) if name == SUB else column.to_numpy(zero_copy_only=True)

    def on(self, edge: int) -> Rows:
        """What goes on `edge`, which is the only one."""
        return self

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and the last sequence number of rows and marks; None if there are none."""
        numbers = [mark.sn for mark in self.marks]
        if self.wide is not None:
            sn = self.hidden(SN)
            numbers += [int(sn[0]), int(sn[-1])]
        return (min(numbers), max(numbers)) if numbers else None

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

    def spill(self, elsewhere: Any) -> None:
        """Use this memory from now on: it holds what `encode` gave, and who keeps it there takes care of it."""
        assert self.wide is not None
        self._encoded = pa.py_buffer(elsewhere)
        self.wide = pa.ipc.read_record_batch(self._encoded, self.wide.schema)
        self.spilled = True


class Channels:
    """A lane's channels, ready to be looked up for many rows at once.

    Each partition has a word with a bit for each block that it is in; a channel is in the set if the words of
    its two ends share a bit. So the size grows with the partitions, not with their pairs. While the pairs are
    few, a table of them is a little faster.
    """

    __slots__ = ("_consumers", "_table", "_words", "blocks", "everything")

    def __init__(self, blocks: Sequence[Block], producers: int, consumers: int) -> None:
        self.blocks = blocks
        several = [blocks[i : i + _BLOCKS_PER_WORD] for i in range(0, len(blocks), _BLOCKS_PER_WORD)]
        self._words = [_words_of(some, producers, consumers) for some in several]
        self.everything = self._is_everything()
        self._consumers = consumers
        self._table: npt.NDArray[np.bool_] | None = None
        if producers * consumers <= _TABLE_MAX:
            self._table = np.zeros(producers * consumers, dtype=np.bool_)
            for block in blocks:
                self._table.reshape(producers, consumers)[np.ix_(block.producers, block.consumers)] = True

    def mask(self, producer: npt.NDArray[np.uint16], consumer: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
        """Whether each row goes this way."""
        if self._table is not None:
            one_producer = len(self._table) == self._consumers
            return self._table.take(
                consumer if one_producer else producer.astype(np.int32) * self._consumers + consumer
            )
        chosen = np.zeros(len(consumer), dtype=np.bool_)
        for of_producer, of_consumer in self._words:
            shared = of_consumer.take(consumer)
            shared &= of_producer.take(producer)
            chosen |= shared != 0
        return chosen

    def _is_everything(self) -> bool:
        """Whether every producer reaches every consumer; producers that are in the same blocks reach the same."""
        if not self._words:
            return False
        for kind in np.unique(np.stack([of_producer for of_producer, _ in self._words], axis=1), axis=0):
            reached = [(of_consumer & word) != 0 for word, (_, of_consumer) in zip(kind, self._words, strict=True)]
            if not np.logical_or.reduce(reached).all():
                return False
        return True


def marks_to_plain(marks: Iterable[Punctuation]) -> list[list[Any]]:
    """Punctuations in msgpack types."""
    return [[mark.sn, mark.kind, mark.value] for mark in marks]


def marks_from_plain(plain: Any) -> tuple[Punctuation, ...]:
    """What `marks_to_plain` was given; `BadFrame` if it was given something else."""
    if not isinstance(plain, list | tuple):
        raise BadFrame(f"expected a list of punctuations, got {shown(plain)}")
    marks: list[Punctuation] = []
    for each in plain:
        if not isinstance(each, list | tuple) or len(each) != 3:
            raise BadFrame(f"a punctuation is (sn, kind, value), got {shown(each)}")
        sn, kind, value = each
        if not _is_int64(sn) or kind not in PUNCTUATIONS or not (value is None or _is_int64(value)):
            raise BadFrame(f"a punctuation is (integer, one of {PUNCTUATIONS}, integer or None), got {shown(each)}")
        if marks and marks[-1].sn >= sn:
            raise BadFrame(f"punctuations are in the order of their numbers; {sn} came behind {marks[-1].sn}")
        marks.append(Punctuation(sn, kind, value))
    return tuple(marks)


def _is_int64(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _words_of(blocks: Sequence[Block], producers: int, consumers: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The word of each producer and of each consumer partition; bit i tells of block i."""
    kind = np.min_scalar_type((1 << len(blocks)) - 1)  # A byte for a handful of blocks: it stays in the cache.
    of_producer, of_consumer = np.zeros(producers, kind), np.zeros(consumers, kind)
    for i, block in enumerate(blocks):
        bit = kind.type(1 << i)
        of_producer[list(block.producers)] |= bit
        of_consumer[list(block.consumers)] |= bit
    return of_producer, of_consumer


def merge(parts: Iterable[Rows], edges: Sequence[int] = ()) -> Rows:
    """One body out of several lanes' for the same range, in (sn, sub, producer) order.

    If the lanes are of several edges, `edges` says of which each is, and the order is (sn, sub, edge, producer).
    """
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    marks = {mark.sn: mark for part in parts for mark in part.marks}  # Each lane brings the same ones.
    in_order = tuple(marks[sn] for sn in sorted(marks))
    edges = [edge for edge, part in zip(edges, parts, strict=True) if part.wide is not None] if edges else ()
    filled = [part for part in parts if part.wide is not None]
    if len(filled) <= 1:
        return Rows(filled[0].wide if filled else None, in_order)
    batches = _alike(filled)
    schema = batches[0].schema
    for batch in batches:
        both = filled_schema(schema, batch.schema)
        if both is None:
            # Only an output that nobody declared can do that: each site takes it from the first rows it sees.
            first, other = (columns_of(rows.schema.remove_metadata()) for rows in (filled[0].user, Rows(batch).user))
            raise OperatorError(
                f"the output came with the columns {first} from one site and with {other} from another. "
                "Declare `output` with the operator before the sink"
            )
        schema = both
    whole = Rows(together(batches))
    sn = whole.hidden(SN)
    order = np.argsort(sn, kind="stable")
    in_sn_order = sn[order]
    if (in_sn_order[1:] == in_sn_order[:-1]).any():
        ties = [whole.hidden(PRODUCER), *reversed(words_of(whole.hidden(SUB))), sn]
        if len(set(edges)) > 1:
            ties.insert(1, np.repeat(edges, list(map(len, filled))))
        order = np.lexsort(tuple(ties))
    assert whole.wide is not None
    return Rows(_taken(whole.wide, order), in_order)


def settled(rows: Rows) -> Rows:
    """The rows in (sn, sub, producer) order, and those that agree in all three by what is in them.

    Rows that one punctuation caused in several partitions have the same sn and sub, and so have those of two branches
    that stem from one row. What a stage makes of them is in the order in which it took them. If it takes rows as they
    come, that is another in each of its copies, and whoever merges must not go by it.
    """
    if rows.wide is None:
        return rows
    sn, sub, producer = (rows.hidden(name) for name in (SN, SUB, PRODUCER))
    if (sn[1:] > sn[:-1]).all():
        return rows
    keys = (producer, *reversed(words_of(sub)), sn)
    order = np.lexsort(keys)
    alike = np.ones(len(sn) - 1, np.bool_)
    for key in keys:
        alike &= key[order[1:]] == key[order[:-1]]
    tied = order[np.flatnonzero(np.append(alike, False) | np.append(False, alike))]
    if len(tied):
        rank = np.zeros(len(sn), np.int64)
        rank[tied] = _ranks(rows.user.take(pa.array(tied)))
        order = np.lexsort((rank, *keys))
    return Rows(_taken(rows.wide, order), rows.marks)


def _ranks(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The place of each row among all, by what is in it."""
    try:
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.schema.names]).to_numpy()
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # Lists and structs have no order of Arrow's.
        texts = [repr(row) for row in rows.to_pylist()]
        order = np.array(sorted(range(len(texts)), key=texts.__getitem__), np.int64)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _taken(batch: pa.RecordBatch, indices: npt.NDArray[np.int64]) -> pa.RecordBatch:
    # The indices are our own; checking them again would be a third of the cost.
    return pc.take(batch, pa.array(indices), boundscheck=False)


def _alike(parts: Sequence[Rows]) -> list[pa.RecordBatch]:
    """The parts' batches under one schema: what `sub` has in one part and lacks in another is zero there."""
    batches: list[Any] = [part.wide for part in parts]
    subs = [part.hidden(SUB) for part in parts]
    counts = [len(words_of(sub)) for sub in subs]
    if len(set(counts)) == 1:
        return batches
    return [
        _with_sub(batch, padded(sub, batch.num_rows, max(counts))) if count < max(counts) else batch
        for batch, sub, count in zip(batches, subs, counts, strict=True)
    ]


def _with_sub(batch: pa.RecordBatch, sub: Subs) -> pa.RecordBatch:
    """The batch with another `sub`, as its last column, where `Rows.of` puts it."""
    place = batch.schema.get_field_index(SUB)
    batch = batch if place < 0 else batch.remove_column(place)
    return batch.append_column(SUB, to_arrow(sub))
