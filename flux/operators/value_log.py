"""Value log: rows that are kept whole, in arrival order, each with the slot of its key.

It serves the aggregates that need all values: quantiles, distinct values, and a user's functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model.error_location import locate
from ..types.array_types import Int64s
from ..types.arrays import ColumnError, to_arrow_array, to_numpy
from ..types.errors import RAISED, FluxError, OperatorError
from .aggregates import Aggregate, entry_name, numbers_of
from .key_order import begins_of, in_order, order_numbers
from .keys import piece_slices

__all__ = ["Grouped", "ValueLog"]


_LARGE_GROUP = 24  # With a mean of so many values, sorting each group by itself is faster than sorting all together.


class ValueLog:
    """The values of some columns, row by row."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._names = tuple(columns)
        self._slots: list[Int64s] = []
        self._chunks: dict[str, list[Any]] = {name: [] for name in columns}

    def add(self, slots: Int64s, columns: Mapping[str, Any]) -> None:
        """Keep further rows; `columns` are Arrow arrays."""
        if self._names and len(slots):
            self._slots.append(slots)
            for name in self._names:
                self._chunks[name].append(columns[name])

    def _whole(self) -> tuple[Int64s, dict[str, Any]]:
        """Return all rows, each column as one array."""
        if len(self._slots) > 1:
            self._slots = [np.concatenate(self._slots)]
            self._chunks = {name: [pa.concat_arrays(chunks)] for name, chunks in self._chunks.items()}
        if not self._slots:
            return np.zeros(0, np.int64), {}
        return self._slots[0], {name: chunks[0] for name, chunks in self._chunks.items()}

    def grouped(self, slots: Int64s, groups: Int64s, count: int) -> Grouped:
        """Return the rows of `count` groups; slots[i] is of groups[i], and a slot may be of several groups."""
        logged, columns = self._whole()
        if not columns:
            return Grouped({}, np.zeros(0, np.int64), np.zeros(count + 1, np.int64))
        row, group = _rows_and_groups(logged, slots, groups)
        order = in_order([group])
        places = pa.array(row.take(order))
        begins = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=count))])
        return Grouped({name: column.take(places) for name, column in columns.items()}, group.take(order), begins)

    def forget(self, slots: Int64s, capacity: int) -> None:
        """Forget the rows of these slots, all of which are below `capacity`."""
        if not self._slots:
            return
        is_kept = np.ones(capacity, np.bool_)
        is_kept[slots] = False
        logged, columns = self._whole()
        chosen = is_kept.take(logged)
        if not chosen.all():
            places = pa.array(np.flatnonzero(chosen))
            self._slots = [logged.compress(chosen)]
            self._chunks = {name: [column.take(places)] for name, column in columns.items()}

    def pieces(self, slots: Int64s) -> Iterator[tuple[Int64s, Any]]:
        """Yield the rows of these slots, some at a time: the slot of each, and a table of their values."""
        logged, columns = self._whole()
        chosen = np.flatnonzero(np.isin(logged, slots))
        if not len(chosen):
            return
        bytes_each = sum(column.nbytes for column in columns.values()) // max(1, len(logged)) + 8
        for some in piece_slices(len(chosen), bytes_each):
            places = chosen[some]
            taken = {name: column.take(pa.array(places)) for name, column in columns.items()}
            yield logged.take(places), pa.table(taken)

    def install(self, slots: Int64s, piece: Mapping[str, Any]) -> None:
        """Keep the rows that `pieces` yielded on another site; `slots` are those of the keys of the piece."""
        table = piece["logged"]
        columns = {name: table.column(name).combine_chunks() for name in table.schema.names}
        self.add(slots.take(piece["at"]), columns)


def _sorted_within(
    values: npt.NDArray[np.float64], group: Int64s, begins: Int64s, sizes: Int64s
) -> npt.NDArray[np.float64]:
    """Return the values of each group in ascending order, NaN last; equal ones are all the same, once -0.0 is 0.0."""
    if len(values) < _LARGE_GROUP * len(sizes):
        by_value = np.argsort(values)
        return values.take(by_value.take(in_order([group.take(by_value)])))
    for start, stop in zip(begins.tolist(), (begins + sizes).tolist(), strict=True):
        values[start:stop].sort()
    return values


def _rows_and_groups(logged: Int64s, slots: Int64s, groups: Int64s) -> tuple[Int64s, Int64s]:
    """Return the rows of these slots, once for each group of their slot, and the group of each; rows ascend."""
    times_of = np.zeros(int(max(logged.max(), slots.max())) + 1, np.int64)
    np.add.at(times_of, slots, 1)
    group_of = np.zeros(len(times_of), np.int64)
    if int(times_of.max()) == 1:
        group_of[slots] = groups
        row = np.flatnonzero(times_of.take(logged))
        return row, group_of.take(logged.take(row))
    groups = groups.take(in_order([slots]))
    first_of = np.cumsum(times_of) - times_of
    times = times_of.take(logged)
    row = np.repeat(np.arange(len(logged)), times)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
    return row, groups.take(first_of.take(logged).repeat(times) + nth)


class Grouped:
    """Rows by group: those of group i are from begins[i] to begins[i + 1], in arrival order."""

    def __init__(self, columns: Mapping[str, Any], group: Int64s, begins: Int64s) -> None:
        self._columns, self._group, self._begins = columns, group, begins

    def apply(self, function: Any, names: Sequence[str]) -> Iterator[Any]:
        """Yield the result of a function of each group's columns, as numpy arrays; a masked result becomes None."""
        columns = [self._columns[name] for name in names]
        for start, stop in pairwise(self._begins.tolist()):
            made = function(*(to_numpy(column.slice(start, stop - start)) for column in columns))
            yield None if made is np.ma.masked else made

    def result(self, aggregate: Aggregate, columns: Mapping[str, Any], key: Sequence[str]) -> Any:
        """Return an aggregate of each group; `key` are the columns of `columns` that identify a group in errors."""
        if callable(aggregate.what):
            return _made_by_user(aggregate, self, columns, key)
        if aggregate.what == "quantile":
            return self.quantile(aggregate.columns[0], aggregate.detail)
        return self.count_distinct(aggregate.columns[0])

    def count_distinct(self, name: str) -> Any:
        """Return how many distinct values a column has in each group."""
        column, group = self._columns[name], self._group
        if column.null_count:
            group = group.compress(column.is_valid().to_numpy(zero_copy_only=False))
            column = column.drop_null()
        number = order_numbers(column)[0]
        order = in_order([group, number])
        group = group.take(order)
        first = begins_of([group, number.take(order)])
        return pa.array(np.bincount(group.take(first), minlength=len(self._begins) - 1))

    @np.errstate(invalid="ignore", over="ignore")
    def quantile(self, name: str, fraction: float) -> Any:
        """Return the quantile of a column in each group, interpolated linearly; null without values."""
        column = self._columns[name]
        x, valid = numbers_of(column)
        group = self._group if valid is None else self._group.compress(valid)
        sizes = np.bincount(group, minlength=len(self._begins) - 1)
        begins = np.cumsum(sizes) - sizes
        values = _sorted_within(x.astype(np.float64) + 0.0, group, begins, sizes)
        place = fraction * np.maximum(sizes - 1, 0)
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, np.maximum(sizes - 1, 0))
        if not len(values):
            return pa.nulls(len(sizes), pa.float64())
        at = np.minimum(begins, len(values) - 1)
        low, high = values.take(at + below, mode="clip"), values.take(at + above, mode="clip")
        part = place - below
        quantiles = np.where(part == 0, low, low + (high - low) * part)
        # The distance of two values may overflow a float, although the values between them do not.
        apart = np.flatnonzero(~np.isfinite(high - low) & np.isfinite(low) & np.isfinite(high))
        quantiles[apart] = (low * (1 - part) + high * part)[apart]
        # Between an infinity and another value is that infinity; only between both infinities is NaN.
        endless = np.flatnonzero((np.isinf(low) | np.isinf(high)) & (part > 0))
        quantiles[endless] = (low + high)[endless]
        # NaN is sorted last, and makes every quantile NaN.
        last = values.take(at + np.maximum(sizes - 1, 0), mode="clip")
        quantiles[np.isnan(last)] = np.nan
        return pa.array(quantiles, mask=sizes == 0)


def _made_by_user(aggregate: Aggregate, logged: Grouped, columns: Mapping[str, Any], key: Sequence[str]) -> Any:
    """Return the results of the user's function for all groups; errors name the function and the group.

    `key` are the columns of `columns` that identify a group.
    """
    assert callable(aggregate.what)
    function, field = aggregate.what, pa.field(aggregate.name, aggregate.detail)
    found: list[Any] = []

    def failure(what: str, at: int | None) -> OperatorError:
        group = "" if at is None else f" for {entry_name(columns, key, at)}"
        return OperatorError(f"aggregate {aggregate.name!r}: {what}{group}. Fix the function, or filter such rows out")

    try:
        for made in logged.apply(function, aggregate.columns):
            found.append(made)
    except FluxError:
        raise
    except RAISED as error:
        raise failure(f"{locate(function, error)} raised {type(error).__name__}: {error}", len(found)) from error
    try:
        return to_arrow_array(found, field)
    except ColumnError as error:
        at = next((i for i, made in enumerate(found) if not _fits(made, field)), None)
        got = "" if at is None else f" {found[at]!r:.100}"
        raise failure(f"{locate(function)} returned{got}, and {field.type} was declared: {error}", at) from error


def _fits(made: Any, field: Any) -> bool:
    try:
        to_arrow_array([made], field)
    except ColumnError:
        return False
    return True
