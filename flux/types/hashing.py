"""The hash that gives the partition of a row: the same on every site, release and machine.

Python's own hash is salted, and numpy and Arrow promise no stable one. A row that goes to another partition after an
upgrade would miss its state. So the hash is defined here, and its test vectors are published in
`tests/types/test_hashing.py`; a change of either is a change of the wire format.

**Definition.** All arithmetic is on unsigned 64-bit words, modulo 2**64.

 - `mix(x)` is the finaliser of splitmix64: ``x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27;
   x *= 0x94D049BB133111EB; x ^= x >> 31``.
 - Each value has a *token*, and values that mean the same have the same token:

   ===================  ===================================================================================
   integer, boolean     the value, in two's complement
   float                the integer's token if it is integral and fits in 64 bits (so -0.0 is 0); 0x7FF8 << 48
                        for any NaN; else the bits of the value as float64
   date, timestamp,     nanoseconds (since the epoch, or midnight), whatever the unit
   time, duration
   decimal              the integer's token if it is integral and fits in 64 bits, with or without a sign;
                        else that of value * 10**38 as 32 bytes, little-endian, taken as binary. Types with
                        more than 38 digits before or after the point have none
   string, binary       cut the (UTF-8) bytes in little-endian words w[0], w[1], ..., the last filled up with
                        zeros: ``mix(length + mix(w[0] + G) + mix(w[1] + 2 * G) + ...)``
   null                 0x6E756C6C6E756C6C ("nullnull")
   dictionary           that of the value it stands for
   ===================  ===================================================================================

 - The hash of a row starts at 0, and takes in each key column in order: ``h = mix(h + token + G)``, with
   ``G = 0x9E3779B97F4A7C15``. For a single integer it is therefore what splitmix64 gives for that seed.
 - The partition is ``((h >> 32) * partitions) >> 32``. Departure from the usual remainder: a multiplication
   is cheaper than a division, takes the best mixed bits, and is as even.

Tokens of different types may coincide (1 and True do, on purpose); a hash only has to be even and the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .array_types import Uint64s
from .errors import PlanError

__all__ = ["MAX_PARTITIONS", "hash_rows", "mix", "partition_of", "tokens"]


# The hidden partition column is 16 bits wide.
MAX_PARTITIONS = 65_536

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0x6E756C6C6E756C6C)
_NAN = np.uint64(0x7FF8000000000000)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3, _HALF = (np.uint64(bits) for bits in (30, 27, 31, 32))

_DIGITS = 38  # Of a decimal, before the point and after it.
# The inverse of 5**38 modulo 2**64.
_UNDO_5_38 = np.uint64(pow(5**38, -1, 2**64))

_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DAY_NS = 86_400 * _NANOSECONDS["s"]


def partition_of(columns: Sequence[Any], partitions: int) -> npt.NDArray[np.uint16]:
    """Return the partition, from 0 to `partitions` - 1, of each row of the key columns.

    >>> partition_of([pa.array([1, 2, 3], pa.int32()), pa.array(["a", "b", None])], 32).tolist()
    [2, 28, 2]
    """
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise PlanError(
            f"an exchange has from 1 to {MAX_PARTITIONS} partitions; got {partitions}. "
            "Choose a few times the number of cores that will ever hold them"
        )
    hashed = hash_rows(columns)
    np.right_shift(hashed, _HALF, out=hashed)
    np.multiply(hashed, np.uint64(partitions), out=hashed)
    np.right_shift(hashed, _HALF, out=hashed)
    return hashed.astype(np.uint16)


def hash_rows(columns: Sequence[Any]) -> Uint64s:
    """Return the 64-bit hash of each row of `columns` (Arrow arrays of one length, in key order)."""
    if not columns:
        raise PlanError("an exchange by hash needs at least one column to hash; none was given")
    hashed: Uint64s | None = None
    scratch: Uint64s | None = None
    for column in columns:
        words = tokens(column)
        if hashed is None:
            # `tokens` returns a new array: that of the first column becomes the result, without another allocation.
            hashed, scratch = words, np.empty_like(words)
        else:
            np.add(hashed, words, out=hashed)
        np.add(hashed, _GOLDEN, out=hashed)
        mix(hashed, scratch)
    assert hashed is not None
    return hashed


def mix(words: Uint64s, scratch: Uint64s | None = None) -> Uint64s:
    """Mix `words` in place and return them; `scratch` is a work array of the same shape."""
    if scratch is None:
        scratch = np.empty_like(words)
    np.right_shift(words, _SHIFT_1, out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, _MULTIPLIER_1, out=words)
    np.right_shift(words, _SHIFT_2, out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, _MULTIPLIER_2, out=words)
    np.right_shift(words, _SHIFT_3, out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    return words


def tokens(column: Any) -> Uint64s:
    """Return the token of each value of an Arrow array, in a new array."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    words = _tokens_of_values(column)
    if column.null_count:
        words[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return words


def _tokens_of_values(column: Any) -> Uint64s:
    """Return the tokens of values; those of nulls are arbitrary."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), _NULL, np.uint64)
    if pa.types.is_integer(kind):
        return _integers(column)
    if pa.types.is_dictionary(kind):
        return _dictionary(column)
    if pa.types.is_boolean(kind):
        return _integers(column.cast(pa.uint8()))
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_temporal(kind):
        return _instants(column)
    if pa.types.is_decimal(kind):
        return _decimals(column)
    if pa.types.is_fixed_size_binary(kind):
        data = np.frombuffer(column.buffers()[1] or b"", np.uint8)
        return _bytes(data, np.arange(column.offset, column.offset + len(column) + 1) * kind.byte_width)
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or _is_view(kind):
        return _variable(column.cast(pa.large_binary()))
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _variable(column)
    raise PlanError(
        f"rows cannot be partitioned by a column of type {kind}: the hash is defined for integers, booleans, "
        "floats, decimals, dates and times, strings and binary. Exchange by another column, or derive one"
    )


def _is_view(kind: Any) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _raw(column: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a fixed-width column's memory, null slots included, without a copy."""
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(len(column), dtype)
    width = np.dtype(dtype).itemsize
    return np.frombuffer(buffer, dtype, count=len(column), offset=column.offset * width)


def _integers(column: Any) -> Uint64s:
    values = _raw(column, column.type.to_pandas_dtype())
    # Widened with its sign, then read as unsigned: -1 is the same word from every width.
    wide = np.uint64 if values.dtype.kind == "u" else np.int64
    return values.astype(wide).view(np.uint64)


# Signalling NaNs are ordinary values here and must not cause a warning.
@np.errstate(invalid="ignore")
def _floats(column: Any) -> Uint64s:
    values = _raw(column, column.type.to_pandas_dtype()).astype(np.float64)
    words = values.view(np.uint64).copy()
    words[np.isnan(values)] = _NAN
    integral = np.trunc(values) == values
    signed = integral & (values >= -(2.0**63)) & (values < 2.0**63)
    words[signed] = values[signed].astype(np.int64).view(np.uint64)
    unsigned = integral & (values >= 2.0**63) & (values < 2.0**64)
    words[unsigned] = values[unsigned].astype(np.uint64)
    return words


def _instants(column: Any) -> Uint64s:
    """Return nanoseconds modulo 2**64: equal instants agree even where their nanoseconds overflow."""
    kind = column.type
    if pa.types.is_interval(kind):
        raise PlanError(f"rows cannot be partitioned by a column of type {kind}: it has no fixed length")
    if pa.types.is_date(kind):
        unit = _DAY_NS if kind.bit_width == 32 else _NANOSECONDS["ms"]
    else:
        unit = _NANOSECONDS[kind.unit]
    stored = _raw(column, np.int32 if kind.bit_width == 32 else np.int64)
    return np.multiply(stored.astype(np.int64).view(np.uint64), np.uint64(unit))


def _decimals(column: Any) -> Uint64s:
    """Return the tokens of decimals at one common scale, so that 1.5 and 1.50 agree."""
    kind = column.type
    if kind.scale > _DIGITS or kind.precision - kind.scale > _DIGITS:
        raise PlanError(
            f"rows cannot be partitioned by a column of type {kind}: the hash is defined for types of decimals with at "
            f"most {_DIGITS} digits before the point and as many after it. Cast the column, such as to "
            "decimal256(76, 38) or decimal128"
        )
    scaled = column.cast(pa.decimal256(2 * _DIGITS, _DIGITS))
    raw = _quarters(scaled)
    words = _bytes(raw.reshape(-1).view(np.uint8), np.arange(len(scaled) + 1) * 32)
    # Where the value is a whole number n, n * 5**38 * 2**38 is stored, and modulo 2**64 the factors can be undone.
    # Scaling n again shows whether the value was whole. (A division would show it too, but Arrow's is wrong for some
    # values of this width.)
    whole = ((raw[:, 0] >> np.uint64(38)) | (raw[:, 1] << np.uint64(26))) * _UNDO_5_38
    for integers in (whole.view(np.int64), whole):
        is_whole = (_quarters(pa.array(integers).cast(scaled.type)) == raw).all(axis=1)
        words[is_whole] = whole[is_whole]
    return words


def _quarters(column: Any) -> Uint64s:
    """Return the four words of each value of a decimal256 column, lowest first."""
    found: Uint64s = np.frombuffer(column.buffers()[1] or b"", "<u8", count=4 * len(column), offset=32 * column.offset)
    return found.reshape(-1, 4)


def _dictionary(column: Any) -> Uint64s:
    values = tokens(column.dictionary)
    indices = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
    if len(values) == 0:
        return np.full(len(column), _NULL, np.uint64)
    found: Uint64s = values[indices]
    return found


def _variable(column: Any) -> Uint64s:
    offsets = np.frombuffer(column.buffers()[1] or bytes(8), np.int64)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    return _bytes(data, offsets[column.offset : column.offset + len(column) + 1])


def _bytes(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Uint64s:
    """Return the tokens of the byte strings of `data` between consecutive `offsets`.

    The words of all strings are mixed with their place in one flat array, and summed per string. A sum needs no loop
    over the length, so that one long string costs no more than its bytes.
    """
    starts, lengths = offsets[:-1], np.diff(offsets)
    counts = (lengths + 7) >> 3
    last = np.cumsum(counts)
    total = int(last[-1]) if len(last) else 0
    if total == 0:
        return mix(lengths.astype(np.uint64))
    owner = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(total) - (last - counts)[owner]

    # The copy ends with seven more zeros, so that every string can be read in whole words. Word i of this view
    # begins at byte i; numpy reads unaligned words correctly wherever the machine does.
    begin, end = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(end - begin + 7, np.uint8)
    padded[: end - begin] = data[begin:end]
    word_at: Uint64s = np.ndarray((end - begin,), "<u8", padded, strides=(1,))
    words: Uint64s = word_at[starts[owner] - begin + 8 * place].astype(np.uint64, copy=False)

    # The last word of a string may include bytes of the next one: mask them.
    beyond = (8 * counts - lengths) * 8
    tail = last[counts > 0] - 1
    words[tail] &= np.uint64(0xFFFFFFFFFFFFFFFF) >> beyond[counts > 0].astype(np.uint64)

    words += (place + 1).astype(np.uint64) * _GOLDEN
    summed = np.zeros(total + 1, np.uint64)
    np.cumsum(mix(words), out=summed[1:])
    return mix(summed[last] - summed[last - counts] + lengths.astype(np.uint64))
