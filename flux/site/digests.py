"""Digests: what each partition of a site has emitted, as one number, at positions that all copies agree on.

Copies of a partition emit the same rows, though not in the same steps. So the digest of a partition is a sum over its
rows: it does not depend on how they were batched. It is read at every `EVERY`-th sequence number, and the controller
compares the digests of two copies (`divergence`). When a copy is transferred, so is its digest.

Every value of fixed width counts. Each column has a multiplier of its own; their sum and the row's number are mixed
once, a few thousand rows at a time, so that all of it stays in the cache: a row of three integers costs 5 to 7 ns, a
quarter of what a hash of each column over whole batches did. To hash text takes ten times as long as all else: of text
and binary the lengths count in each row, and what is in them in one row of `_SAMPLED`, chosen by its number. A nested
value counts in one row of `_SAMPLED_NESTED`. Of the first `_WHOLE_NUMBERS` everything counts, so that a short run, as
users try an operator with, is compared as a whole.

Departure: DESIGN.md has the digests sent on acks, to the other copy's site. Here they go to the controller, at
positions fixed beforehand, because then neither the protocol nor what a site keeps depends on them, and copies are
compared that have no consumer in common.

A stage that is not ordered emits rows beyond the position it has reached. They are in the sums at once, and are
subtracted from the digest of a position before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..exchange.edge_bodies import LaneBody, rows_of_edges
from ..exchange.rows import PRODUCER, SN, SUB, Rows
from ..model.subseq import words_of
from ..types.array_types import Uint64s
from ..types.hashing import mix, tokens
from ..types.to_python import UNREPRESENTABLE, format_value, to_python

EVERY = 1 << 16  # Sequence numbers.
_LAST = (1 << 63) - 1

_BLOCK_ROWS = 16_384
_SAMPLED = 16
_SAMPLED_NESTED = 256  # Such a value is compared as text, which takes microseconds.
_WHOLE_NUMBERS = 4_096  # Sequence numbers of a stage.
_NAN = np.uint64(0x7FF8 << 48)  # All of them count alike.

# Each part of each column has a number of its own, and with it a multiplier, whatever else a batch has.
_OF_SN, _OF_SUB = 0, 1
_PARTS = 8  # Of a column, at most: the words of a decimal, and which values are null.
_OF_NULLS = 7

DigestPart = tuple[int, npt.NDArray[Any]]
Skips = Sequence[tuple[int, int]]  # Partition and sequence number of each row.


class Digests:
    """The digests of one stage with so many partitions."""

    def __init__(self, partitions: int) -> None:
        self._sums: Uint64s = np.zeros(partitions, dtype=np.uint64)
        # The part of the sums after an agreed position that not all partitions have reached.
        self._beyond: dict[int, Uint64s] = {}
        self._words: Uint64s = np.empty(_BLOCK_ROWS, dtype=np.uint64)
        self._scratch: Uint64s = np.empty(_BLOCK_ROWS, dtype=np.uint64)

    def add(self, body: LaneBody, after: int, upto: int, skipped: Skips = ()) -> list[tuple[int, Uint64s]]:
        """Add what was emitted for (after, upto]; return the digests of all partitions at agreed positions.

        Rows that were `skipped` emit nothing, but count: all copies must skip the same ones.
        """
        taken = []
        for cut in range((after // EVERY + 1) * EVERY, upto + 1, EVERY):
            self._take_in(body, skipped, after, cut, self._sums)
            beyond = self._beyond.get(cut)
            taken.append((cut, self._sums.copy() if beyond is None else self._sums - beyond))
            after = cut
        self._take_in(body, skipped, after, _LAST, self._sums)
        last = max([upto, *(rows.last_sn for rows in rows_of_edges(body) if len(rows)), *(sn for _, sn in skipped)])
        for cut in range((upto // EVERY + 1) * EVERY, last + 1, EVERY):
            beyond = self._beyond.setdefault(cut, np.zeros_like(self._sums))
            self._take_in(body, skipped, cut, _LAST, beyond)
        return taken

    def forget(self, upto: int) -> None:
        """Drop what is kept for positions up to `upto`: all partitions here have reached it."""
        for cut in [cut for cut in self._beyond if cut <= upto]:
            del self._beyond[cut]

    def get(self, partition: int) -> int:
        """Return the digest of a partition, with all that it has emitted."""
        return int(self._sums[partition])

    def to_transfer(self, partition: int) -> list[Any]:
        """Return what is transferred with a copy: its digest, and the parts of it after agreed positions."""
        beyond = [[cut, int(words[partition])] for cut, words in self._beyond.items() if words[partition]]
        return [self.get(partition), beyond]

    def put(self, partition: int, digest: int, beyond: Sequence[Sequence[int]] = ()) -> None:
        """Set the digest of a copy that was transferred here."""
        self._sums[partition] = digest
        for words in self._beyond.values():
            words[partition] = 0
        for cut, word in beyond:
            self._beyond.setdefault(cut, np.zeros_like(self._sums))[partition] = word

    def _take_in(self, body: LaneBody, skipped: Skips, after: int, upto: int, into: Uint64s) -> None:
        """Add what was emitted and skipped for (after, upto]."""
        for number, rows in enumerate(rows_of_edges(body)):
            self._take_in_rows(number, rows.between(after, upto), into)
        here = [(partition, sn) for partition, sn in skipped if after < sn <= upto]
        if here:
            partitions, sns = np.array(here, dtype=np.int64).T
            # Mixed twice: no row that is emitted has such a word.
            np.add.at(into, partitions, mix(mix(sns.astype(np.uint64))))

    def _take_in_rows(self, edge: int, rows: Rows, into: Uint64s) -> None:
        if not len(rows):
            return
        user, producer = rows.user, rows.hidden(PRODUCER)
        sn = rows.hidden(SN)
        # What a batch lacks counts as zero: words of `sub` that are zero everywhere, the nulls of a column without any.
        whole: list[DigestPart] = [(_OF_SN, sn.view(np.uint64))]
        whole += [(_OF_SUB + (number << 32), word) for number, word in enumerate(words_of(rows.hidden(SUB)))]
        for place, column in enumerate(user.columns, start=1):
            whole += [(_PARTS * place + part, values) for part, values in _fixed(column)]
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            np.add.at(into, producer[block], self._mixed(edge, [(part, values[block]) for part, values in whole]))
        for is_of_kind, one_of in ((_is_sampled, _SAMPLED), (pa.types.is_nested, _SAMPLED_NESTED)):
            columns = {place: column for place, column in enumerate(user.columns) if is_of_kind(column.type)}
            if columns:
                _sample(edge, columns, sn, producer, one_of, into)

    def _mixed(self, edge: int, parts: Sequence[DigestPart]) -> Uint64s:
        """Return a word for each row, in memory that the next call reuses."""
        rows = len(parts[0][1])
        words, scratch = self._words[:rows], self._scratch[:rows]
        words[:] = edge
        for number, values in parts:
            if values.dtype.kind == "f":
                # Minus zero is zero, and there is one NaN: copies on different machines may write them differently.
                floats = scratch.view(np.float64)
                np.add(values, 0.0, out=floats)
                is_nan = np.isnan(floats)
                if is_nan.any():
                    scratch[is_nan] = _NAN
                values = scratch
            np.multiply(values, _multiplier(number), out=scratch)
            np.add(words, scratch, out=words)
        return mix(words, scratch)


def _sample(
    edge: int,
    columns: Mapping[int, Any],
    sn: npt.NDArray[np.int64],
    producer: npt.NDArray[np.uint16],
    one_of: int,
    into: Uint64s,
) -> None:
    """Add the content of one row of `one_of`, and of the first sequence numbers that of every row."""
    shift = np.uint64(64 - (one_of - 1).bit_length())
    is_chosen = mix(sn.astype(np.uint64)) >> shift == 0
    if sn[0] <= _WHOLE_NUMBERS:
        is_chosen |= sn <= _WHOLE_NUMBERS
    chosen = np.flatnonzero(is_chosen)
    if not len(chosen):
        return
    words = sn[chosen].astype(np.uint64) + np.uint64(edge)
    is_there = np.zeros(len(chosen), np.bool_)
    for place, column in columns.items():
        some = pc.take(column, pa.array(chosen), boundscheck=False)
        is_valid = some.is_valid().to_numpy(zero_copy_only=False)
        found = tokens(_texts(some) if pa.types.is_nested(some.type) else some) * _multiplier(place)
        words += np.where(is_valid, found, np.uint64(0))
        is_there |= is_valid
    # A row of nulls counts as one whose columns have no type yet.
    np.add.at(into, producer[chosen[is_there]], mix(words[is_there]))


def _texts(column: Any) -> Any:
    """Return nested values as texts that do not depend on what else a batch has."""
    try:
        return pa.array([repr(_plain(value)) for value in to_python(column)], pa.string())
    except UNREPRESENTABLE:
        return pa.array([format_value(column.slice(place, 1)) for place in range(len(column))], pa.string())


def _plain(value: Any) -> Any:
    """Return a value without the null fields of structs: one copy may not know an undeclared field yet."""
    if isinstance(value, dict):
        return {name: _plain(field) for name, field in sorted(value.items()) if field is not None}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value + 0.0 if isinstance(value, float) else value  # Minus zero is zero.


@cache
def _multiplier(number: int) -> np.uint64:
    """Return an odd multiplier for each column, independent of the others."""
    [word] = mix(np.array([number + 1], np.uint64))
    return np.uint64(word | np.uint64(1))


def _fixed(column: Any) -> Iterator[DigestPart]:
    """Yield what every row has of a column, as floats or unsigned; nested values have no such part.

    A null counts the same whatever the type: one copy may not know the type of an undeclared column yet.
    """
    kind = column.type
    is_null = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    if is_null is not None:
        yield _OF_NULLS, is_null.view(np.uint8)
    if _has_offsets(kind):
        lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy()
        yield 0, lengths.view(f"u{lengths.itemsize}")
    elif _is_sampled(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind):
        return
    elif is_null is not None:
        for part, values in enumerate(_memory(column)):
            yield part, np.where(is_null, values.dtype.type(0), values)
    else:
        yield from enumerate(_memory(column))


def _memory(column: Any) -> list[npt.NDArray[Any]]:
    """Return values of fixed width as they are in memory, also where they are null; wide ones in several words."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    width = column.type.bit_width // 8
    words = max(1, width // 8)
    is_float = pa.types.is_floating(column.type) and width >= 4
    kind = np.dtype(f"f{width}" if is_float else f"u{width // words}")
    flat = np.frombuffer(column.buffers()[1], kind, count=len(column) * words, offset=column.offset * width)
    return [flat[word::words] for word in range(words)]


def _is_sampled(kind: Any) -> bool:
    is_text = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(is_text or pa.types.is_dictionary(kind) or _has_offsets(kind))


def _has_offsets(kind: Any) -> bool:
    is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    return bool(is_large or pa.types.is_string(kind) or pa.types.is_binary(kind))
