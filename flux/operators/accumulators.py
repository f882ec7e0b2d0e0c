"""Accumulators: the state per key from which aggregates are computed, for all keys at once.

Each has a few arrays indexed by slot, and adds rows one after the other in row order. ``np.add.at`` and its like do
that in one pass. The result equals that of a loop over rows, to the bit, wherever batches are cut. Integers are exact
beyond 64 bits. Nulls are removed by the caller.

`merge` appends the state of a later stretch of rows to that of an earlier one. For sums of floats that is not the same
as adding row by row. Stretches depend only on the data (panes of a window), so the result is still the same in every
copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..types.array_types import Bools, Float64s, Int64s, Slots
from .running_values import Stretches

__all__ = ["Accumulator", "Counts", "DecimalSums", "Extremes", "IntSums", "Moments", "Sums", "exact_floats"]

ValueColumns = Mapping[str, npt.NDArray[Any]]
Running = dict[str, npt.NDArray[Any]]

_LOW_BITS = 32
_LOW_MASK = np.int64((1 << _LOW_BITS) - 1)
# Low parts stay well within 64 bits.
_CARRY_AT = 2**62


class Accumulator:
    """Abstract base: `fields` are the names and types of its arrays."""

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.fields = {f"{name}.{field}": dtype for field, dtype in fields.items()}
        self._names = {field: f"{name}.{field}" for field in fields}

    def of(self, values: ValueColumns, field: str) -> npt.NDArray[Any]:
        """Return one of its arrays."""
        return values[self._names[field]]

    def begin(self, values: ValueColumns, slots: Slots) -> None:
        """Initialise the slots of new keys, to zeros unless a subclass does otherwise."""
        for name in self.fields:
            values[name][slots] = 0

    def add(self, values: ValueColumns, slots: Slots, x: npt.NDArray[Any]) -> None:
        """Add a row's value to each of these slots, in this order; a slot may occur several times."""
        raise NotImplementedError

    def merge(self, into: ValueColumns, at: Slots, later: ValueColumns, slots: Slots) -> None:
        """Add what `later` has in `slots` to the entries `at`, which all differ."""
        for name in self.fields:
            into[name][at] += later[name].take(slots)

    def running(self, values: ValueColumns, stretches: Stretches, x: npt.NDArray[Any], valid: Bools | None) -> Running:
        """Add rows that are grouped, and return the state after each of them; only `valid` ones count."""
        raise NotImplementedError

    def installed(self, values: ValueColumns, slots: Slots) -> None:
        """Account for slots that were installed from another site's state."""

    def make_canonical(self, values: ValueColumns) -> None:
        """Make equal entries equal bytes: which NaN an operation yields depends on the processor."""
        for name in self.fields:
            if values[name].dtype.kind == "f":
                values[name][np.isnan(values[name])] = np.nan

    def _store(self, values: ValueColumns, stretches: Stretches, running: Mapping[str, npt.NDArray[Any]]) -> Running:
        """Store the state after the last row of each group; return all states under the arrays' names."""
        for field, array in running.items():
            self.of(values, field)[stretches.slots] = array.take(stretches.last)
        return {self._names[field]: array for field, array in running.items()}

    def _before(self, values: ValueColumns, stretches: Stretches, field: str) -> npt.NDArray[Any]:
        return self.of(values, field).take(stretches.slots)


class Counts(Accumulator):
    """The number of values."""

    def __init__(self, name: str) -> None:
        super().__init__(name, {"n": np.int64})

    def add(self, values: ValueColumns, slots: Slots, x: npt.NDArray[Any]) -> None:
        np.add.at(self.of(values, "n"), slots, 1)

    def running(self, values: ValueColumns, stretches: Stretches, x: npt.NDArray[Any], valid: Bools | None) -> Running:
        return self._store(
            values, stretches, {"n": _running_counts(self._before(values, stretches, "n"), stretches, valid)}
        )


class Sums(Accumulator):
    """Sums of floats, added in row order."""

    def __init__(self, name: str) -> None:
        super().__init__(name, {"sum": np.float64})

    @np.errstate(invalid="ignore", over="ignore")
    def add(self, values: ValueColumns, slots: Slots, x: npt.NDArray[Any]) -> None:
        np.add.at(self.of(values, "sum"), slots, x.astype(np.float64, copy=False))

    @np.errstate(invalid="ignore", over="ignore")
    def merge(self, into: ValueColumns, at: Slots, later: ValueColumns, slots: Slots) -> None:
        super().merge(into, at, later, slots)

    @np.errstate(invalid="ignore", over="ignore")
    def running(self, values: ValueColumns, stretches: Stretches, x: npt.NDArray[Any], valid: Bools | None) -> Running:
        # A sum that began with 0.0 is never -0.0, so 0.0 changes nothing.
        x = _fill_invalid(x.astype(np.float64, copy=False), valid, 0.0)
        before = self._before(values, stretches, "sum")
        return self._store(values, stretches, {"sum": stretches.accumulate(np.add, x, before)})


class IntSums(Accumulator):
    """Sums of integers, exact: ``high * 2**32 + low``.

    While values are small, only `low` changes. A bound of its magnitude is tracked. Before `low` could overflow 64
    bits, all of it but the last 32 bits is carried over to `high`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, {"high": np.int64, "low": np.int64})
        self._farthest = 0

    def add(self, values: ValueColumns, slots: Slots, x: npt.NDArray[Any]) -> None:
        if not len(x):
            return
        high, low, more = self._split(x)
        if high is not None:
            np.add.at(self.of(values, "high"), slots, high)
        self._make_room(values, more)
        np.add.at(self.of(values, "low"), slots, low)

    def merge(self, into: ValueColumns, at: Slots, later: ValueColumns, slots: Slots) -> None:
        high, low = carried(self.of(later, "high").take(slots), self.of(later, "low").take(slots))
        self.of(into, "high")[at] += high
        self.of(into, "low")[at] += low

    def running(self, values: ValueColumns, stretches: Stretches, x: npt.NDArray[Any], valid: Bools | None) -> Running:
        x = _fill_invalid(x, valid, 0)
        high, x, more = self._split(x)
        self._make_room(values, more)
        before = self._before(values, stretches, "high")
        running = {
            "high": stretches.spread(before) if high is None else stretches.cumulative_sums(high, before),
            "low": stretches.cumulative_sums(x, self._before(values, stretches, "low")),
        }
        return self._store(values, stretches, running)

    def make_canonical(self, values: ValueColumns) -> None:
        high, low = self.of(values, "high"), self.of(values, "low")
        high[:], low[:] = carried(high, low)

    def installed(self, values: ValueColumns, slots: Slots) -> None:
        low = self.of(values, "low")
        if len(slots):
            self._farthest = max(self._farthest, abs(int(low[slots].max())), abs(int(low[slots].min())))

    @staticmethod
    def _split(x: npt.NDArray[Any]) -> tuple[Int64s | None, Int64s, int]:
        """Return the summands of `high`, None for none, and of `low`, and how far the latter can move a low part."""
        more = max(abs(int(x.max())), abs(int(x.min()))) * len(x)
        if more < _CARRY_AT:
            return None, x.astype(np.int64, copy=False), more
        high, low = _parts(x)
        return high, low, len(x) << _LOW_BITS

    def _make_room(self, values: ValueColumns, more: int) -> None:
        if self._farthest + more >= _CARRY_AT:
            high, low = self.of(values, "high"), self.of(values, "low")
            high[:], low[:] = carried(high, low)
            self._farthest = 1 << _LOW_BITS
        self._farthest += more


class DecimalSums(Accumulator):
    """Sums of decimals of 128 bits, exact, as four parts of 32 bits; a value is a row of four."""

    _PARTS = ("part0", "part1", "part2", "part3")  # The least significant first; the last has the sign.

    def __init__(self, name: str) -> None:
        super().__init__(name, dict.fromkeys(self._PARTS, np.int64))

    def add(self, values: ValueColumns, slots: Slots, x: npt.NDArray[Any]) -> None:
        for i, part in enumerate(self._PARTS):
            np.add.at(self.of(values, part), slots, x[:, i])

    def running(self, values: ValueColumns, stretches: Stretches, x: npt.NDArray[Any], valid: Bools | None) -> Running:
        x = x if valid is None else np.where(valid[:, None], x, 0)
        running = {
            part: stretches.cumulative_sums(x[:, i], self._before(values, stretches, part))
            for i, part in enumerate(self._PARTS)
        }
        return self._store(values, stretches, running)

    def make_canonical(self, values: ValueColumns) -> None:
        for part, array in zip(self._PARTS, self._carried(values), strict=True):
            self.of(values, part)[:] = array

    def _carried(self, values: ValueColumns) -> list[Int64s]:
        """Return the parts, of which all but the last are from 0 to 2**32 - 1."""
        parts = [self.of(values, part) for part in self._PARTS]
        for i in range(3):
            carry, low = carried(parts[i + 1], parts[i])
            parts[i : i + 2] = low, carry
        return parts

    def words(self, values: ValueColumns) -> tuple[Int64s, npt.NDArray[np.uint64], Bools]:
        """Return the sums as high * 2**64 + low, and which are beyond the 38 digits of a decimal."""
        parts = self._carried(values)
        high = (parts[3] << _LOW_BITS) + parts[2]
        low = (parts[1].view(np.uint64) << np.uint64(_LOW_BITS)) + parts[0].view(np.uint64)
        most_high, most_low = divmod(10**38, 2**64)
        beyond = (parts[3] != parts[3].astype(np.int32)) | (high > most_high) | (high < -most_high - 1)
        beyond |= (high == most_high) & (low >= np.uint64(most_low))
        beyond |= (high == -most_high - 1) & (low <= np.uint64(2**64 - most_low))
        return high, low, beyond

    def floats(self, values: ValueColumns) -> Float64s:
        """Return the sums as floats; those that fit in 64 bits are rounded once."""
        parts = self._carried(values)
        low = (parts[1] << _LOW_BITS) + parts[0]
        sign = low >> 63
        fits = (parts[3] == sign) & (parts[2] == sign & _LOW_MASK)
        # The upper half first: the parts of a small negative sum are large, and cancel each other.
        upper, lower = (parts[i + 1] * 2.0**_LOW_BITS + parts[i] for i in (2, 0))
        return np.where(fits, low, upper * 2.0 ** (2 * _LOW_BITS) + lower)


class Extremes(Accumulator):
    """The least, or the greatest, value; NaN if any value is NaN. -0.0 counts as 0.0."""

    def __init__(self, name: str, dtype: npt.DTypeLike, greatest: bool) -> None:
        super().__init__(name, {"extreme": dtype})
        kind = np.dtype(dtype)
        self._choose: Any = np.maximum if greatest else np.minimum
        ends = (-np.inf, np.inf) if kind.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
        self._begin = ends[0] if greatest else ends[1]

    def begin(self, values: ValueColumns, slots: Slots) -> None:
        self.of(values, "extreme")[slots] = self._begin

    def add(self, values: ValueColumns, slots: Slots, x: npt.NDArray[Any]) -> None:
        kept = self.of(values, "extreme")
        with np.errstate(invalid="ignore"):
            self._choose.at(kept, slots, x + kept.dtype.type(0) if kept.dtype.kind == "f" else x)

    def merge(self, into: ValueColumns, at: Slots, later: ValueColumns, slots: Slots) -> None:
        kept = self.of(into, "extreme")
        with np.errstate(invalid="ignore"):
            kept[at] = self._choose(kept.take(at), self.of(later, "extreme").take(slots))

    def running(self, values: ValueColumns, stretches: Stretches, x: npt.NDArray[Any], valid: Bools | None) -> Running:
        before = self._before(values, stretches, "extreme")
        x = _fill_invalid(x, valid, self._begin)
        with np.errstate(invalid="ignore"):
            x = x + before.dtype.type(0) if before.dtype.kind == "f" else x
            return self._store(values, stretches, {"extreme": stretches.accumulate(self._choose, x, before)})


class Moments(Accumulator):
    """Count, sum and sum of squares of the distances of values from the key's first value, in row order.

    Distances from one of the key's own values keep digits that squares of the values themselves would lose. Distances
    of integers are exact before they are rounded, so the first value stays an integer.

    `squares` is NaN once a value was not finite, and only then. If squares of finite values overflow a float, it is
    infinite, even where `sum` is NaN.
    """

    def __init__(self, name: str, dtype: npt.DTypeLike) -> None:
        kind = np.dtype(dtype)
        self._first: Any = np.float64 if kind.kind == "f" else np.uint64 if kind == np.uint64 else np.int64
        super().__init__(name, {"n": np.int64, "first": self._first, "sum": np.float64, "squares": np.float64})

    @np.errstate(invalid="ignore", over="ignore")
    def add(self, values: ValueColumns, slots: Slots, x: npt.NDArray[Any]) -> None:
        n, first = self.of(values, "n"), self.of(values, "first")
        x = x.astype(self._first, copy=False)
        begins = np.flatnonzero(n.take(slots) == 0)
        # Written from back to front, so that of several rows of a key the first one stays.
        first[slots[begins[::-1]]] = x[begins[::-1]]
        far = _distance(x, first.take(slots))
        np.add.at(n, slots, 1)
        np.add.at(self.of(values, "sum"), slots, far)
        np.add.at(self.of(values, "squares"), slots, _squares_of(far, x))

    @np.errstate(invalid="ignore", over="ignore")
    def merge(self, into: ValueColumns, at: Slots, later: ValueColumns, slots: Slots) -> None:
        theirs = {field: self.of(later, field).take(slots) for field in self._names}
        ours = {field: self.of(into, field) for field in self._names}
        ours["first"][at] = np.where(ours["n"].take(at) == 0, theirs["first"], ours["first"].take(at))
        # The same distances, measured from our first value.
        apart = _distance(theirs["first"], ours["first"].take(at))
        apart[theirs["n"] == 0] = 0
        more = theirs["squares"] + 2 * apart * theirs["sum"] + theirs["n"] * apart * apart
        more[~np.isfinite(more) & ~np.isnan(theirs["squares"])] = np.inf
        ours["squares"][at] += more
        ours["sum"][at] += theirs["sum"] + theirs["n"] * apart
        ours["n"][at] += theirs["n"]

    @np.errstate(invalid="ignore", over="ignore")
    def running(self, values: ValueColumns, stretches: Stretches, x: npt.NDArray[Any], valid: Bools | None) -> Running:
        before = {field: self._before(values, stretches, field) for field in self._names}
        x = x.astype(self._first, copy=False)
        n = _running_counts(before["n"], stretches, valid)
        # The row at which a key has its first value.
        begins = np.flatnonzero((n == 1) & (True if valid is None else valid) & (stretches.spread(before["n"]) == 0))
        first = before["first"]
        first[np.searchsorted(stretches.begins, begins, side="right") - 1] = x.take(begins)
        far = _distance(x, stretches.spread(first))
        squared = _fill_invalid(_squares_of(far, x), valid, 0.0)
        far = _fill_invalid(far, valid, 0.0)
        running = {
            "n": n,
            "first": stretches.spread(first),
            "sum": stretches.accumulate(np.add, far, before["sum"]),
            "squares": stretches.accumulate(np.add, squared, before["squares"]),
        }
        return self._store(values, stretches, running)


def _distance(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Float64s:
    """Return a - b as floats, rounded once where it fits in 64 bits."""
    if a.dtype.kind == "f":
        apart: Float64s = a - b
        return apart
    whole = (a - b).view(np.int64)
    far: Float64s = whole.astype(np.float64)
    # A difference has wrapped around if its sign is wrong.
    wrapped = (whole >= 0) != (a >= b)
    if wrapped.any():
        far[wrapped] = a[wrapped].astype(np.float64) - b[wrapped].astype(np.float64)
    return far


def _squares_of(far: Float64s, x: npt.NDArray[Any]) -> Float64s:
    """Return the squares of distances; NaN where the value itself is not finite."""
    squared: Float64s = far * far
    if x.dtype.kind == "f":
        squared[~np.isfinite(x)] = np.nan
    return squared


def _running_counts(before: Int64s, stretches: Stretches, valid: Bools | None) -> Int64s:
    ones = np.ones(int(stretches.sizes.sum()), np.int64) if valid is None else valid.astype(np.int64)
    return stretches.cumulative_sums(ones, before)


def _fill_invalid(x: npt.NDArray[Any], valid: Bools | None, filler: Any) -> npt.NDArray[Any]:
    return x if valid is None else np.where(valid, x, x.dtype.type(filler))


def _parts(x: npt.NDArray[Any]) -> tuple[Int64s, Int64s]:
    """Return integers as high * 2**32 + low."""
    if x.dtype == np.uint64:
        return (x >> np.uint64(_LOW_BITS)).astype(np.int64), (x & np.uint64(_LOW_MASK)).astype(np.int64)
    wide = x.astype(np.int64, copy=False)
    return wide >> _LOW_BITS, wide & _LOW_MASK


def carried(high: Int64s, low: Int64s) -> tuple[Int64s, Int64s]:
    """Return the same integers with `low` from 0 to 2**32 - 1."""
    return high + (low >> _LOW_BITS), low & _LOW_MASK


def exact_floats(high: Int64s, low: Int64s) -> Float64s:
    """Return whole numbers as floats, each rounded once; `low` has been carried."""
    fits = (high >= -(2**31)) & (high < 2**31)
    floats = ((high << _LOW_BITS) + low).astype(np.float64)
    for i in np.flatnonzero(~fits).tolist():
        floats[i] = float((int(high[i]) << _LOW_BITS) + int(low[i]))
    return floats
