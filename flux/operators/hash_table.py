"""A hash table that works on whole batches: keys of one or more fixed-width columns, and values beside them.

Theory. The table gives each key a *slot*, a small integer that stays the same until the key is deleted; values are
arrays indexed by slot. An index of 2**n buckets, probed in triangular steps, maps a key to its slot. It holds slots and
not keys, so that growing it moves no value. All rows of a batch probe together: each probe is one numpy operation for
all rows whose key has not been found yet. At a load of at most one half, few rows need a second probe.

Rows of one batch may hold the same new key. They all find the same empty bucket, and each writes its own number there.
The row whose number is then in the bucket has claimed it. The others probe again and find their key.

A deleted key keeps slot and bucket, because probes for other keys still have to pass there. A key that comes back, as
those of sessions do, takes its old slot without any work on the index. When deleted keys far outnumber live ones, they
are swept out.

A key belongs to a partition, and equal keys of two partitions are two keys: the result for a row may not depend on
which other partitions are at the same site. The partition takes part in comparisons but not in the hash, because equal
keys usually belong to one partition. State is read and dropped by partition.

Slots stay while keys change their form: `widen` gives all keys a further word; `rekey` gives the keys of some slots
other words and forgets the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..types.array_types import Bools, Pids, Slots, Uint64s

__all__ = ["HashTable"]


# Slot 0 belongs to no key: in the index it means that the bucket is empty.
_EMPTY = 0
_FIRST_SLOTS = 1024
_FIRST_BUCKETS = 2048
# Multipliers of words in a hash.
_HALF = np.uint64(32)
_ODD = tuple(np.uint64(0x9E3779B97F4A7C15 * (2 * i + 1) % 2**64) for i in range(8))
# Sweeping a handful of dead keys costs more than carrying them.
_SWEEP_FROM = 4096
# Keys that come and go leave about as many dead as living: only more than that is worth a sweep.
_DEAD_PER_LIVE = 2


class HashTable:
    """Keys to slots, for whole batches at once.

    >>> table = HashTable(keys=[np.int32, np.int32], values={"count": np.int64})
    >>> src, dst = np.array([7, 8, 7], np.int32), np.array([1, 1, 1], np.int32)
    >>> partition = np.zeros(3, np.uint16)
    >>> slots, new = table.find_or_insert([src, dst], partition)
    >>> table.values["count"][slots[new]] = 0
    >>> np.add.at(table.values["count"], slots, 1)
    >>> table.values["count"][table.find([src, dst], partition)]
    array([2, 1, 2])
    """

    def __init__(self, keys: Sequence[npt.DTypeLike], values: Mapping[str, npt.DTypeLike]) -> None:
        """Make an empty table; `values` are dtypes, also of sub-arrays such as ``(np.int64, (8,))``."""
        self._key_layout = _KeyLayout(keys)
        self._index = np.zeros(_FIRST_BUCKETS, np.int32)
        self._keys = [np.zeros(_FIRST_SLOTS, np.uint64) for _ in range(self._key_layout.words)]
        self._live = np.zeros(_FIRST_SLOTS, np.bool_)
        self._partition = np.zeros(_FIRST_SLOTS, np.uint16)
        # Indexed by slot. An insertion may replace a full array by a larger one: look it up again afterwards.
        self.values: dict[str, npt.NDArray[Any]] = {
            name: np.zeros(_FIRST_SLOTS, dtype) for name, dtype in values.items()
        }
        # Slots from `_next` on were never used; swept ones below it are free.
        self._next = 1
        self._free = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._live))

    # Finding and inserting.

    def find(self, columns: Sequence[npt.NDArray[Any]], partition: Pids) -> Slots:
        """Return the slot of each row's key, 0 where the table does not hold it."""
        words = self._key_layout.pack(columns)
        slots = self._probe(words, _hash(words), partition)
        slots[~self._live[slots]] = _EMPTY
        return slots

    def find_or_insert(self, columns: Sequence[npt.NDArray[Any]], partition: Pids) -> tuple[Slots, Bools]:
        """Return the slot of each row's key, and whether the key is new to the table.

        A key that is new and occurs several times in a batch is new in all of its rows. Values of new keys are
        undefined until the caller sets them.
        """
        self._sweep_if_worthwhile(_DEAD_PER_LIVE)
        words = self._key_layout.pack(columns)
        hashed = _hash(words)
        slots = self._probe(words, hashed, partition)
        missing = np.flatnonzero(slots == _EMPTY)
        if len(missing):
            self._reserve(len(missing))
            rest = [word.take(missing) for word in words]
            slots[missing] = self._claim(rest, hashed.take(missing), partition.take(missing))
        new = ~self._live.take(slots)
        if new.any():
            self._live[slots.compress(new)] = True
        return slots, new

    def delete(self, slots: Slots, for_good: bool = False) -> None:
        """Delete the keys of these slots; if they are not to come back, sweep them out before they are many."""
        self._live[slots] = False
        if for_good:
            self._sweep_if_worthwhile(1)

    def _probe(self, words: list[Uint64s], hashed: Uint64s, partition: Pids) -> Slots:
        """Return the slots of keys, also of deleted ones; 0 where there is none."""
        mask = np.int64(len(self._index) - 1)
        bucket = _first_bucket(hashed, len(self._index))
        slots = self._index.take(bucket).astype(np.int64)
        equal = self._equal(slots, words, partition)
        rows = np.flatnonzero(~equal & (slots != _EMPTY))
        # One multiplication does both: the empty slot is 0 already, a slot of another key becomes 0.
        slots *= equal
        bucket, words, partition = bucket.take(rows), [word.take(rows) for word in words], partition.take(rows)
        step = 0
        while len(rows):
            step += 1
            bucket += step
            bucket &= mask
            found = self._index.take(bucket).astype(np.int64)
            equal = self._equal(found, words, partition)
            slots[rows] = found * equal
            on = np.flatnonzero(~equal & (found != _EMPTY))
            rows, bucket = rows.take(on), bucket.take(on)
            words, partition = [word.take(on) for word in words], partition.take(on)
        return slots

    def _claim(self, words: list[Uint64s], hashed: Uint64s, partition: Pids) -> Slots:
        """Insert keys that are not in the index, among which there may be equal ones; return their slots."""
        mask = np.int64(len(self._index) - 1)
        bucket = _first_bucket(hashed, len(self._index))
        slots = np.empty(len(bucket), np.int64)
        rows = np.arange(len(bucket))
        step = 0
        while len(rows):
            empty = np.flatnonzero(self._index.take(bucket) == _EMPTY)
            contested = bucket.take(empty)
            # Negative, so that it is never a slot.
            mine = -1 - np.arange(len(empty), dtype=np.int32)
            self._index[contested] = mine
            won = self._index.take(contested) == mine
            winners = empty.compress(won)
            claimed = self._allocate(len(winners))
            self._index[contested.compress(won)] = claimed
            for kept, word in zip(self._keys, words, strict=True):
                kept[claimed] = word.take(winners)
            self._partition[claimed] = partition.take(winners)
            slots[rows.take(winners)] = claimed

            # The other rows look up which key has their bucket now.
            lost = np.ones(len(rows), np.bool_)
            lost[winners] = False
            on = np.flatnonzero(lost)
            rows, words, partition = rows.take(on), [word.take(on) for word in words], partition.take(on)
            bucket = bucket.take(on)
            found = self._index.take(bucket).astype(np.int64)
            equal = self._equal(found, words, partition)
            slots[rows.compress(equal)] = found.compress(equal)
            on = np.flatnonzero(~equal)
            step += 1
            bucket = (bucket.take(on) + step) & mask
            rows, words, partition = rows.take(on), [word.take(on) for word in words], partition.take(on)
        return slots

    def _equal(self, slots: Slots, words: list[Uint64s], partition: Pids) -> Bools:
        equal: Bools = self._partition.take(slots) == partition
        for kept, word in zip(self._keys, words, strict=True):
            equal &= kept.take(slots) == word
        return equal

    # Capacity.

    def _reserve(self, count: int) -> None:
        """Make room for `count` further keys; slots in use stay as they are."""
        capacity = len(self._live)
        needed = self._next + max(0, count - len(self._free))
        if needed > capacity:
            capacity = 1 << (needed - 1).bit_length()
            self._keys = [_grow(word, capacity) for word in self._keys]
            self._live = _grow(self._live, capacity)
            self._partition = _grow(self._partition, capacity)
            self.values = {name: _grow(array, capacity) for name, array in self.values.items()}
        in_use = self._next - 1 - len(self._free)
        if 2 * (in_use + count) > len(self._index):
            used = np.ones(self._next, np.bool_)
            used[_EMPTY] = False
            used[self._free] = False
            self._rebuild(np.flatnonzero(used), 1 << (2 * (in_use + count) - 1).bit_length())

    def _allocate(self, count: int) -> Slots:
        reused = self._free[:count]
        self._free = self._free[count:]
        first = self._next
        self._next += count - len(reused)
        return np.concatenate([reused, np.arange(first, self._next)])

    def _sweep_if_worthwhile(self, dead_per_live: int) -> None:
        in_use = self._next - 1 - len(self._free)
        if in_use < _SWEEP_FROM:
            return
        live = len(self)
        if in_use - live <= dead_per_live * live:
            return
        self._reindex()

    def _rebuild(self, slots: Slots, buckets: int) -> None:
        """Make a new index of these slots, whose keys all differ."""
        self._index = np.zeros(buckets, np.int32)
        mask = np.int64(buckets - 1)
        bucket = _first_bucket(_hash([word[slots] for word in self._keys]), buckets)
        step = 0
        while len(slots):
            empty = self._index.take(bucket) == _EMPTY
            self._index[bucket[empty]] = slots[empty]
            on = np.flatnonzero(self._index.take(bucket) != slots)
            step += 1
            slots, bucket = slots[on], (bucket[on] + step) & mask

    # Other forms of the same keys.

    def widen(self) -> None:
        """Give every key a further column of one word, which is 0 for all present keys."""
        self._key_layout = self._key_layout.with_further_word()
        self._keys.append(np.zeros(len(self._live), np.uint64))
        self._reindex()

    def rekey(self, slots: Slots, columns: Sequence[npt.NDArray[Any]]) -> None:
        """Replace the keys of `slots`, which are all live ones; the new keys differ wherever the old ones did."""
        for kept, word in zip(self._keys, self._key_layout.pack(columns), strict=True):
            kept[slots] = word
        self._reindex()

    def _reindex(self) -> None:
        dead = ~self._live[: self._next]
        dead[_EMPTY] = False
        self._free = np.flatnonzero(dead)
        self._rebuild(np.flatnonzero(self._live), len(self._index))

    # State by partition.

    @property
    def live(self) -> Slots:
        """The slots that have keys."""
        return np.flatnonzero(self._live)

    @property
    def partition(self) -> npt.NDArray[np.uint16]:
        """The partition of each slot's key; as with `values`, look it up after an insertion."""
        return self._partition

    def keys(self, slots: Slots) -> list[npt.NDArray[Any]]:
        """Return the keys of these slots, as columns."""
        return self._key_layout.unpack([word[slots] for word in self._keys])

    def slots_of(self, pid: int) -> Slots:
        """Return the slots of a partition's keys."""
        held: Bools = self._live & (self._partition == pid)
        return np.flatnonzero(held)

    def get(self, pid: int) -> dict[str, npt.NDArray[Any]]:
        """Return a copy of a partition's keys and values, as columns, in the order of keys.

        Slots depend on how keys were batched and on other partitions at the site; the order of keys does not.
        """
        slots = self.slots_of(pid)
        slots = slots.take(np.lexsort(self.keys(slots)))
        keys = self.keys(slots)
        state = {f"key{i}": column for i, column in enumerate(keys)}
        return state | {name: array[slots] for name, array in self.values.items()}

    def install(self, pid: int, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Install keys and values that `get` returned on another site."""
        columns = [state[f"key{i}"] for i in range(len(self._key_layout.names))]
        slots, _ = self.find_or_insert(columns, np.full(len(columns[0]), pid, np.uint16))
        for name, array in self.values.items():
            array[slots] = state[name]

    def drop(self, pid: int) -> None:
        """Delete a partition's keys."""
        self.delete(self.slots_of(pid))

    def sizes(self) -> dict[int, int]:
        """Return how many keys each partition has."""
        counts = np.bincount(self._partition[self._live])
        return {int(pid): int(counts[pid]) for pid in np.flatnonzero(counts)}


class _KeyLayout:
    """The layout of key columns in whole words, as few as hold them, so that two int32 compare as one."""

    def __init__(self, keys: Sequence[npt.DTypeLike], words: int | None = None) -> None:
        """Lay out these columns; the last begins after the first `words` words, if that is given."""
        assert keys, "a key has at least one column"
        formats = [np.dtype(key) for key in keys]
        sizes = [dtype.itemsize for dtype in formats]
        offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        if words is not None:
            offsets[-1] = 8 * words
        self.names = [f"f{i}" for i in range(len(keys))]
        self.formats = formats
        self.words = -(-(offsets[-1] + sizes[-1]) // 8)
        self._padded = sum(sizes) != 8 * self.words
        # Columns that are one word each need not be packed.
        self._are_words = all(size == 8 for size in sizes)
        self._layout = np.dtype(
            {"names": self.names, "formats": formats, "offsets": offsets, "itemsize": 8 * self.words}
        )

    def with_further_word(self) -> _KeyLayout:
        """Return the same layout with a further column, a word of its own."""
        return _KeyLayout([*self.formats, np.dtype(np.uint64)], self.words)

    def pack(self, columns: Sequence[npt.NDArray[Any]]) -> list[Uint64s]:
        if self._are_words:
            return [
                np.ascontiguousarray(column, dtype).view(np.uint64)
                for dtype, column in zip(self.formats, columns, strict=True)
            ]
        # Padding takes part in comparisons and must be zero.
        packed = (np.zeros if self._padded else np.empty)(len(columns[0]), self._layout)
        for name, dtype, column in zip(self.names, self.formats, columns, strict=True):
            assert np.can_cast(column.dtype, dtype), f"a key of {column.dtype} does not fit in {dtype}"
            packed[name] = column
        words = packed.view(np.uint64).reshape(-1, self.words)
        return [np.ascontiguousarray(words[:, i]) for i in range(self.words)]

    def unpack(self, words: list[Uint64s]) -> list[npt.NDArray[Any]]:
        if self._are_words:
            return [word.view(dtype) for dtype, word in zip(self.formats, words, strict=True)]
        packed = np.stack(words, axis=1).view(self._layout).reshape(-1)
        return [np.ascontiguousarray(packed[name]) for name in self.names]


def _hash(words: list[Uint64s]) -> Uint64s:
    """Mix words into one, of which the high bits are used.

    Odd multiples keep small numbers in different words apart. Folding puts all bits into the low half, and the
    multiplication carries them up. The golden ratio spreads consecutive keys, which are common, evenly. An index that
    is at most half full, and never leaves the process, needs no better hash.
    """
    hashed = words[0] >> _HALF
    hashed ^= words[0]
    for i, word in enumerate(words[1:], start=1):
        hashed += word * _ODD[i % len(_ODD)]
    hashed *= _ODD[0]
    return hashed


def _first_bucket(hashed: Uint64s, buckets: int) -> Slots:
    """Return the bucket at which probing for a key begins; `buckets` is a power of two."""
    return (hashed >> np.uint64(65 - buckets.bit_length())).view(np.int64)


def _grow(array: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    larger = np.zeros((capacity, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
