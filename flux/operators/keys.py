"""Keys of any type for the operators of the library: maps columns of rows to slots of a `HashTable`, and back.

A table holds words of fixed width. Numbers, truth values and times are such words; for floats, -0.0 equals 0.0 and all
NaN are equal. Text, bytes and decimals are *interned*: a dict gives each value a number, with one lookup for each
distinct value of a batch. Numbers that no key uses any more are dropped once they are the majority.

A null is a key like any other, as it is to the partition hash. Most keys have no nulls: only the first null gives every
key a further word, with a bit for each column that is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model.operator import PooledOperator
from ..types.array_types import Bools, Slots
from ..types.arrays import ColumnError
from ..types.errors import PlanError
from .hash_table import HashTable
from .key_order import in_order, order_numbers

__all__ = ["KeyTable", "KeyTableOperator", "check_keys", "piece_slices"]


# With fewer interned values than this, it is not worth counting those still in use.
_COMPACT_FROM = 65_536
_PIECE_BYTES = 2 << 20  # Size of one piece of state: read, sent and installed in a few milliseconds.
_KEY_BYTES = 32  # Approximate size of a key column in a piece.


class KeyTable:
    """A table whose keys are the rows of some Arrow columns, and optional further columns of integers.

    >>> table = KeyTable("step", {"word": pa.string()}, {"count": np.int64})
    >>> words = [pa.array(["a", None, "b", "a"])]
    >>> slots, new = table.find_or_insert(words, np.zeros(4, np.uint16))
    >>> np.add.at(table.values["count"], slots, 1)
    >>> dict(zip(table.keys_of(slots)[0].to_pylist(), table.values["count"][slots].tolist()))
    {'a': 2, None: 1, 'b': 1}
    """

    def __init__(self, step: str, keys: Mapping[str, Any], values: Mapping[str, Any], further: int = 0) -> None:
        """Make an empty table; `keys` are names and Arrow types, `values` dtypes as `HashTable` takes them."""
        self.names = tuple(keys)
        try:
            self._codecs = [_codec_of(kind, name) for name, kind in keys.items()]
        except ColumnError as error:
            raise PlanError(f"step {step!r}: {error}") from error
        self._further = further
        self._table = HashTable([*(codec.dtype for codec in self._codecs), *[np.dtype(np.int64)] * further], values)
        self._has_nulls = False
        self._compact_at = _COMPACT_FROM

    # The interface of `HashTable`.

    @property
    def values(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays indexed by slot; look them up after an insertion, which may replace them."""
        return self._table.values

    @property
    def live(self) -> Slots:
        """The slots that have keys."""
        return self._table.live

    @property
    def partition(self) -> npt.NDArray[np.uint16]:
        """The partition of each slot's key."""
        return self._table.partition

    def __len__(self) -> int:
        return len(self._table)

    def find_or_insert(
        self, columns: Sequence[Any], partition: npt.NDArray[np.uint16], *further: npt.NDArray[np.int64]
    ) -> tuple[Slots, Bools]:
        """Return the slot of each row's key, and whether it is new; see `HashTable.find_or_insert`."""
        assert len(further) == self._further
        self._compact_if_worthwhile()
        return self._table.find_or_insert(self._encode_columns(columns, further), partition)

    def find(self, columns: Sequence[Any], partition: npt.NDArray[np.uint16]) -> Slots:
        """Return the slot of each row's key, 0 where the table does not hold it."""
        assert not self._further
        self._compact_if_worthwhile()
        return self._table.find(self._encode_columns(columns, ()), partition)

    def find_shifted(self, slots: Slots, by: int) -> Slots:
        """Return the slots of the same keys with the one further column increased by `by`; 0 where there is none."""
        assert self._further == 1
        stored = self._table.keys(slots)
        stored[len(self.names)] = stored[len(self.names)] + by
        return self._table.find(stored, self.partition.take(slots))

    def delete(self, slots: Slots, for_good: bool = False) -> None:
        """Delete the keys of these slots; see `HashTable.delete`."""
        self._table.delete(slots, for_good)

    def slots_of(self, pid: int) -> Slots:
        """Return the slots of a partition's keys."""
        return self._table.slots_of(pid)

    def sizes(self) -> dict[int, int]:
        """Return how many keys each partition has."""
        return self._table.sizes()

    # Keys as in the rows.

    def keys_of(self, slots: Slots) -> list[Any]:
        """Return the key columns of these slots, as Arrow arrays of their original types."""
        stored = self._table.keys(slots)
        columns = [codec.decode(values) for codec, values in zip(self._codecs, stored, strict=False)]
        if self._has_nulls:
            bits = stored[-1]
            for i, column in enumerate(columns):
                is_null = (bits >> np.uint64(i)) & np.uint64(1) != 0
                if is_null.any():
                    columns[i] = pc.if_else(pa.array(is_null), pa.scalar(None, column.type), column)
        return columns

    def further_of(self, slots: Slots) -> list[npt.NDArray[np.int64]]:
        """Return the further columns of these slots."""
        return self._table.keys(slots)[len(self.names) : len(self.names) + self._further]

    # State by partition, a piece at a time.

    def pieces(self, pid: int) -> Iterator[dict[str, Any]]:
        """Yield keys and values of a partition, in the order of keys, which does not depend on slots."""
        slots, values = self._in_key_order(self.slots_of(pid)), self.values
        bytes_each = _KEY_BYTES * len(self.names) + sum(array.nbytes // len(array) for array in values.values())
        for some in piece_slices(len(slots), bytes_each):
            part = slots[some]
            yield {**self.keys_piece(part), "values": {name: array[part] for name, array in values.items()}}

    def rows_piece(self, slots: Slots) -> dict[str, Any]:
        """Return the distinct keys of rows with these slots, in key order, and the place of each row's key in them."""
        distinct = self._in_key_order(np.unique(slots))
        place_of = np.zeros(len(self.partition), np.int64)
        place_of[distinct] = np.arange(len(distinct))
        return {**self.keys_piece(distinct), "at": place_of.take(slots)}

    def _in_key_order(self, slots: Slots) -> Slots:
        numbers = [numbers for column in self.keys_of(slots) for numbers in order_numbers(column)]
        return slots.take(in_order([*numbers, *self.further_of(slots)]))

    def keys_piece(self, slots: Slots) -> dict[str, Any]:
        """Return the keys of these slots, in the form that is sent to another site."""
        return {"keys": pa.table(self.keys_of(slots), names=list(self.names)), "further": self.further_of(slots)}

    def install(self, pid: int, piece: Mapping[str, Any]) -> Slots:
        """Install what `pieces` yielded on another site; return its slots here."""
        slots = self.install_keys(pid, piece)
        for name, array in piece["values"].items():
            self.values[name][slots] = array
        return slots

    def install_keys(self, pid: int, piece: Mapping[str, Any]) -> Slots:
        """Return the slots of the keys of a piece; missing keys are inserted."""
        columns = [column.combine_chunks() for column in piece["keys"].columns]
        slots, _ = self.find_or_insert(columns, np.full(len(columns[0]), pid, np.uint16), *piece["further"])
        return slots

    def drop(self, pid: int) -> Slots:
        """Delete a partition's keys; return the slots they had."""
        slots = self.slots_of(pid)
        self.delete(slots)
        return slots

    def _encode_columns(self, columns: Sequence[Any], further: Sequence[Any]) -> list[npt.NDArray[Any]]:
        encoded: list[npt.NDArray[Any]] = [codec.encode(c) for codec, c in zip(self._codecs, columns, strict=True)]
        encoded += further
        missing = [i for i, column in enumerate(columns) if column.null_count]
        if missing and not self._has_nulls:
            self._table.widen()
            self._has_nulls = True
        if self._has_nulls:
            bits = np.zeros(len(columns[0]), np.uint64)
            for i in missing:
                is_null = columns[i].is_null().to_numpy(zero_copy_only=False)
                bits |= is_null.astype(np.uint64) << np.uint64(i)
            encoded.append(bits)
        return encoded

    def _compact_if_worthwhile(self) -> None:
        interned = [codec for codec in self._codecs if isinstance(codec, _InternCodec)]
        known = max((len(codec) for codec in interned), default=0)
        if known < self._compact_at:
            return
        slots = self._table.live
        if known > 2 * len(slots):
            columns, further = self.keys_of(slots), self.further_of(slots)
            for codec in interned:
                codec.forget()
            self._table.rekey(slots, self._encode_columns(columns, further))
            known = max(len(codec) for codec in interned)
        self._compact_at = max(_COMPACT_FROM, 2 * known)


class _FixedCodec:
    """A codec of columns whose values are words already."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._plain = _plain_kind(kind)
        self.dtype = np.dtype(self._plain.to_pandas_dtype())

    def encode(self, column: Any) -> npt.NDArray[Any]:
        if self._plain != self.kind:
            column = column.cast(self._plain)
        if column.null_count:
            column = pc.fill_null(column, pa.scalar(0).cast(self._plain))
        values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        if self.dtype.kind != "f":
            return values
        # -0.0 equals 0.0 and NaN has many forms: each gets one.
        with np.errstate(invalid="ignore"):
            values = values + self.dtype.type(0)
        values[np.isnan(values)] = np.nan
        return values

    def decode(self, values: npt.NDArray[Any]) -> Any:
        column = pa.array(values, self._plain)
        return column if self._plain == self.kind else column.cast(self.kind)


class _InternCodec:
    """A codec of columns whose values get numbers in arrival order."""

    dtype = np.dtype(np.int64)

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._numbers: dict[Any, int] = {}
        self._values = pa.array([], kind)
        self._new_values: list[Any] = []  # Values that are not in `_values` yet.

    def __len__(self) -> int:
        return len(self._numbers)

    def encode(self, column: Any) -> npt.NDArray[Any]:
        encoded = column.dictionary_encode()
        numbers = self._numbers
        known = np.empty(len(encoded.dictionary), np.int64)
        for i, value in enumerate(encoded.dictionary.to_pylist()):
            number = numbers.get(value)
            if number is None:
                number = numbers[value] = len(numbers)
                self._new_values.append(value)
            known[i] = number
        places = encoded.indices
        if places.null_count:
            if not len(known):
                return np.zeros(len(column), np.int64)
            # Nulls get the number of the first value; the word for nulls distinguishes them.
            stand_in: npt.NDArray[np.int64] = known.take(pc.fill_null(places, 0).to_numpy(zero_copy_only=False))
            stand_in[places.is_null().to_numpy(zero_copy_only=False)] = 0
            return stand_in
        codes: npt.NDArray[np.int64] = known.take(places.to_numpy(zero_copy_only=False))
        return codes

    def decode(self, values: npt.NDArray[Any]) -> Any:
        if self._new_values:
            self._values = pa.concat_arrays([self._values, pa.array(self._new_values, self.kind)])
            self._new_values = []
        if not len(self._values):
            return pa.nulls(len(values), self.kind)
        return self._values.take(pa.array(values))

    def forget(self) -> None:
        """Forget all numbers."""
        self._numbers, self._values, self._new_values = {}, pa.array([], self.kind), []


def piece_slices(count: int, bytes_each: int) -> list[slice]:
    """Return slices that cut `count` entries into pieces; pieces are sent one at a time."""
    most = max(1, _PIECE_BYTES // max(1, bytes_each))
    return [slice(start, min(start + most, count)) for start in range(0, count, most)]


def check_keys(names: Sequence[str], rows: Any) -> list[Any]:
    """Return the fields of these key columns in a schema; raise if one is missing or cannot be a key."""
    for name in names:
        if name not in rows.names:
            raise ColumnError(f"expected a key column {name!r}, got {', '.join(rows.names)}")
        _codec_of(rows.field(name).type, name)
    return [rows.field(name) for name in names]


def _codec_of(kind: Any, name: str) -> _FixedCodec | _InternCodec:
    if not _is_fixed(kind) and not _is_interned(kind):
        raise ColumnError(
            f"the key column {name!r} is {kind}; expected numbers, text, bytes, decimals of 128 or 256 bits, truth "
            "values, dates or times. Cast it to one of them before the exchange"
        )
    return _FixedCodec(kind) if _is_fixed(kind) else _InternCodec(kind)


def _is_fixed(kind: Any) -> bool:
    types = pa.types
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return bool(is_number or (types.is_temporal(kind) and not types.is_interval(kind)))


def _is_interned(kind: Any) -> bool:
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    # Arrow cannot dictionary-encode the narrow decimals.
    return bool(is_text or is_bytes or types.is_decimal128(kind) or types.is_decimal256(kind))


def _plain_kind(kind: Any) -> Any:
    """Return the type of numbers in which a column of fixed width is kept."""
    if not pa.types.is_temporal(kind):
        return kind
    return pa.int32() if kind.bit_width == 32 else pa.int64()


class KeyTableOperator(PooledOperator):
    """An operator whose state is one `KeyTable`, which a subclass creates with the first row or state."""

    _table: KeyTable | None = None

    def get_partition_state(self, pid: int) -> Iterator[Any]:
        if self._table is not None:
            yield from self._table.pieces(pid)

    def drop_partition(self, pid: int) -> None:
        if self._table is not None:
            self._table.drop(pid)

    def partition_info(self) -> dict[int, int]:
        return {} if self._table is None else self._table.sizes()
