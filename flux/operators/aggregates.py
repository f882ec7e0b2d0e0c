"""Aggregates: the user's specification, the state it needs, and the result.

They are specified in a dict from the columns of the output: ``"count"``, or ``("sum", "amount")``, and likewise
`count`, `min`, `max`, `avg` and `variance` of a column; ``("quantile", "amount", 0.99)``; and ``(function, "amount",
"float64")`` or ``(function, ("price", "volume"), "float64")`` for a user's function. The function gets numpy arrays,
such as `batch["amount"]`, of the rows in arrival order. Its result must depend on them alone.

Nulls are left out, as in SQL; without a value that is not null, `count` is 0 and all others are null. A user's function
sees nulls. NaN is a value; it makes every aggregate but `count` NaN. Infinities are values too, and a float that
overflows is one. They yield NaN only where no other result exists, as in SQL: `sum` and `avg` of infinities of both
signs, `variance` with any infinity among the values, a `quantile` that lies between the two infinities.
`sum` of integers is an int64; an `OperatorError` is raised if it does not fit. `avg` of integers is their exact sum,
rounded, divided by their number. `variance` is that of a sample, and null for less than two values. `quantile` is
exact, and interpolates linearly between two values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..types.arrays import ColumnError, schema_of
from ..types.errors import OperatorError
from ..types.to_python import UNREPRESENTABLE, format_value, to_python
from .accumulators import Accumulator, Counts, Extremes, IntSums, Moments, Sums, ValueColumns, carried, exact_floats
from .row_groups import Groups
from .running_values import Stretches

__all__ = ["Aggregate", "KeptValues", "entry_name", "numbers_of", "parse_aggregates"]

_SIMPLE = ("count", "sum", "min", "max", "avg", "variance")
_FORMS = (
    '"count", ("sum", "column") and likewise count, min, max, avg, variance, ("quantile", "column", 0.5), or '
    '(function, "column", "float64")'
)
# Maps an entry to its name in errors (its key, and its window if any), its partition, and its row, if it has one.
AggregateOwner = Callable[[int], tuple[str, int, int | None]]
ROWS = "rows"  # The accumulator that counts rows, whatever is in them.


@dataclass(frozen=True)
class Aggregate:
    """One column of the output: `what` is computed from the values in `columns`."""

    name: str
    what: str | Callable[..., Any]
    columns: tuple[str, ...]
    # The quantile's fraction, or the type of what a function returns.
    detail: Any = None

    @property
    def needs_values(self) -> bool:
        """Whether all values have to be kept, not only accumulators."""
        return self.what == "quantile" or callable(self.what)

    def type_for(self, rows: Any) -> Any:
        """Return the type of its column in the output, for input of this schema."""
        for column in self.columns:
            if column not in rows.names:
                raise ColumnError(f"aggregate {self.name!r}: no column {column!r}; there are {', '.join(rows.names)}")
        if callable(self.what):
            return self.detail
        kinds = [rows.field(column).type for column in self.columns]
        for column, kind in zip(self.columns, kinds, strict=True):
            is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
            is_ordered = is_number or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind))
            fits = {"count": True, "min": is_ordered, "max": is_ordered}.get(self.what, is_number)
            if not fits:
                needed = "numbers, dates or times" if self.what in ("min", "max") else "numbers"
                raise ColumnError(
                    f"aggregate {self.name!r}: no {self.what} of {column!r}, which is {kind}; expected {needed}. Cast "
                    f'it in the source, or by select(..., {column}=(function, "float64")) before the exchange'
                )
        if self.what == "count" or (self.what == "sum" and not pa.types.is_floating(kinds[0])):
            return pa.int64()
        return kinds[0] if self.what in ("min", "max") else pa.float64()


def parse_aggregates(given: Any, *, values_kept: bool) -> tuple[Aggregate, ...]:
    """Return the aggregates that a user specified; raise if one needs values and they are not kept."""
    if not isinstance(given, Mapping) or not given:
        raise ColumnError(f'aggregates is a dict such as {{"total": ("sum", "amount")}}; got {given!r:.100}')
    found = tuple(_parse_one(name, value) for name, value in given.items())
    for aggregate in found:
        if aggregate.needs_values and not values_kept:
            raise ColumnError(
                f"aggregate {aggregate.name!r} needs all values of a key, which are not kept here. Use a TimeWindow, "
                "or a flux.KeyedOperator"
            )
    return found


def _parse_one(name: Any, value: Any) -> Aggregate:
    if not isinstance(name, str) or not name:
        raise ColumnError(f"aggregates maps columns of the output to what they hold; {name!r} is not a column name")
    what, *rest = (value if isinstance(value, tuple | list) else (value,)) or (None,)
    if not isinstance(what, str) and not callable(what):
        what = None  # An array would compare value by value.
    if what == "count" and not rest:
        return Aggregate(name, "count", ())
    if what in _SIMPLE and len(rest) == 1 and isinstance(rest[0], str):
        return Aggregate(name, what, (rest[0],))
    if what == "quantile" and len(rest) == 2 and isinstance(rest[0], str) and _is_fraction(rest[1]):
        return Aggregate(name, what, (rest[0],), float(rest[1]))
    if callable(what) and len(rest) == 2:
        columns = tuple(rest[0]) if isinstance(rest[0], tuple | list) else (rest[0],)
        if columns and all(isinstance(column, str) for column in columns):
            return Aggregate(name, what, columns, schema_of({name: rest[1]}).field(0).type)
    raise ColumnError(f"aggregate {name!r}: expected {_FORMS}; got {value!r:.100}")


def _is_fraction(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def numbers_of(column: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return a column's values as numpy numbers, and which rows have one; None if all have."""
    kind = column.type
    valid = None
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        column = column.drop_null()
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    return column.to_numpy(zero_copy_only=False), valid


class KeptValues:
    """The accumulators that aggregates need for rows of a schema; aggregates may share them."""

    def __init__(self, aggregates: Iterable[Aggregate], rows: Any, step: str) -> None:
        self._step = step
        self._kinds = {name: rows.field(name).type for aggregate in aggregates for name in aggregate.columns}
        self._rows: Counts | None = None
        self._of: dict[tuple[str, str], Accumulator] = {}
        for aggregate in aggregates:
            if not aggregate.needs_values:
                self._add_accumulators(aggregate)
        self.all: list[Accumulator] = [*([self._rows] if self._rows is not None else []), *self._of.values()]
        self.fields = {name: dtype for accumulator in self.all for name, dtype in accumulator.fields.items()}

    def _add_accumulators(self, aggregate: Aggregate) -> None:
        if not aggregate.columns:
            self._rows = Counts(ROWS)
            return
        [column] = aggregate.columns
        kind, what = self._kinds[column], str(aggregate.what)
        if what == "variance":
            dtype = numbers_of(pa.array([], kind))[0].dtype
            self._of.setdefault(("moments", column), Moments(f"moments {column}", dtype))
            return
        self._of.setdefault(("count", column), Counts(f"count {column}"))
        if what in ("sum", "avg"):
            made: Accumulator = Sums(f"sum {column}") if pa.types.is_floating(kind) else IntSums(f"sum {column}")
            self._of.setdefault(("sum", column), made)
        elif what in ("min", "max"):
            dtype = numbers_of(pa.array([], kind))[0].dtype
            self._of.setdefault((what, column), Extremes(f"{what} {column}", dtype, what == "max"))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(dict.fromkeys(column for _, column in self._of))

    def begin(self, values: ValueColumns, slots: npt.NDArray[np.int64]) -> None:
        """Initialise the slots of new keys."""
        for accumulator in self.all:
            accumulator.begin(values, slots)

    def add(self, values: ValueColumns, slots: npt.NDArray[np.int64], columns: Mapping[str, Any]) -> None:
        """Add rows; `columns` are, by name, numpy numbers and which rows have one."""
        if self._rows is not None:
            self._rows.add(values, slots, slots)
        for (_, column), accumulator in self._of.items():
            x, valid = columns[column]
            accumulator.add(values, slots if valid is None else slots.compress(valid), x)

    def running(self, values: ValueColumns, groups: Groups, columns: Mapping[str, Any]) -> ValueColumns:
        """Add rows as `add` does; return the state of each row's key after that row, in row order."""
        stretches = Stretches(groups)
        back = np.empty(len(groups.row), np.int64)
        back[groups.row] = np.arange(len(back))
        after: dict[str, npt.NDArray[Any]] = {}
        if self._rows is not None:
            after |= self._rows.running(values, stretches, groups.slot, None)
        for (_, column), accumulator in self._of.items():
            x, valid = columns[column]
            if valid is not None:
                x, valid = _scatter(x, valid), valid.take(groups.row)
            after |= accumulator.running(values, stretches, x.take(groups.row), valid)
        return {name: array.take(back) for name, array in after.items()}

    def merge(
        self, into: ValueColumns, at: npt.NDArray[np.int64], later: ValueColumns, slots: npt.NDArray[np.int64]
    ) -> None:
        """Append what `later` has in `slots` to the entries `at` of `into`."""
        for accumulator in self.all:
            accumulator.merge(into, at, later, slots)

    def make_canonical(self, values: ValueColumns) -> None:
        """Make the state of the same rows the same bytes, however the rows were batched."""
        for accumulator in self.all:
            accumulator.make_canonical(values)

    def installed(self, values: ValueColumns, slots: npt.NDArray[np.int64]) -> None:
        """Account for slots that were installed from another site's state."""
        for accumulator in self.all:
            accumulator.installed(values, slots)

    def result(self, aggregate: Aggregate, values: ValueColumns, owner: AggregateOwner) -> Any:
        """Return an aggregate of all entries of `values`, as an Arrow array; errors name the entry by `owner`."""
        if not aggregate.columns:
            assert self._rows is not None
            return pa.array(self._rows.of(values, "n"))
        [column] = aggregate.columns
        if aggregate.what == "variance":
            return _variance(self._of["moments", column], values)
        n = self._of["count", column].of(values, "n")
        if aggregate.what == "count":
            return pa.array(n)
        if aggregate.what in ("min", "max"):
            extreme = self._of[aggregate.what, column].of(values, "extreme")
            return pa.array(_one_nan(extreme), mask=n == 0).cast(self._kinds[column])
        return self._of_sum(aggregate, column, values, n, owner)

    def _of_sum(
        self, aggregate: Aggregate, column: str, values: ValueColumns, n: npt.NDArray[np.int64], owner: AggregateOwner
    ) -> Any:
        sums = self._of["sum", column]
        with np.errstate(invalid="ignore", divide="ignore"):
            if isinstance(sums, Sums):
                total = sums.of(values, "sum")
                return pa.array(_one_nan(total / n if aggregate.what == "avg" else total), mask=n == 0)
            high, low = carried(sums.of(values, "high"), sums.of(values, "low"))
            if aggregate.what == "avg":
                return pa.array(exact_floats(high, low) / n, mask=n == 0)
        beyond = (high < -(2**31)) | (high >= 2**31)
        if beyond.any():
            entry, partition, row = owner(int(beyond.argmax()))
            raise OperatorError(
                f"aggregate {aggregate.name!r}: the sum of {column!r} does not fit in 64 bits for {entry}. Cast the "
                "column to floats before the step, or use avg, which is not limited to 64 bits",
                self._step,
                partition,
                row,
            )
        return pa.array((high << 32) + low, mask=n == 0)


def entry_name(columns: Mapping[str, Any], names: Iterable[str], at: int) -> str:
    """Return the values that identify an entry, as text for errors; also those that Python cannot represent."""
    return ", ".join(f"{name} {_show(columns[name].slice(at, 1)):.200}" for name in names)


def _show(one: Any) -> str:
    try:
        return repr(to_python(one)[0])
    except UNREPRESENTABLE:
        return format_value(one)


def _scatter(x: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    whole = np.zeros(len(valid), x.dtype)
    whole[valid] = x
    return whole


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def _variance(moments: Accumulator, values: ValueColumns) -> Any:
    n, total, squares = (moments.of(values, field) for field in ("n", "sum", "squares"))
    square = total * total
    # The square of a sum may overflow a float where that square divided by n does not.
    mean = np.where(np.isinf(square), total * (total / n), square / n)
    # Rounding may make it slightly negative.
    variance = np.maximum((squares - mean) / (n - 1), 0.0)
    return pa.array(_one_nan(np.where(np.isfinite(squares), variance, squares)), mask=n < 2)


def _one_nan(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values with one form of NaN: which form an operation yields depends on the processor."""
    if values.dtype.kind == "f":
        bad = np.isnan(values)
        if bad.any():
            values = values.copy()
            values[bad] = np.nan
    return values
