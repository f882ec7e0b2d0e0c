"""Aggregates: the user's specification, the state it needs, and the result.

They are specified in a dict from the columns of the output: ``"count"``, or ``("sum", "amount")``, and likewise
`count`, `count_distinct`, `first`, `last`, `min`, `max`, `avg` and `variance` of a column; ``("quantile", "amount",
0.99)``; and ``(function, "amount", "float64")`` or ``(function, ("price", "volume"), "float64")`` for a user's
function. The function gets numpy arrays, such as `batch["amount"]`, of the rows in arrival order. Its result must
depend on them alone.

`first` and `last` are those of any type by event time in windows of event time, and by row order elsewhere; of rows
with one time, by row order. `min` and `max` are of numbers, dates, times, decimals, text (by its bytes in UTF-8) or
bytes. `sum` of decimals is an exact decimal of 38 digits, and `avg` of decimals is a float.

What they cost: `quantile`, a function, and `count_distinct` in a window keep the values of all rows until their windows
close. A function is called once for each result, with all values. In a `GroupBy` they are kept for ever, and
`count_distinct` keeps each distinct value. All others keep a few numbers, or one value, for each key.

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
import pyarrow.compute as pc

from ..types.arrays import ColumnError, schema_of
from ..types.errors import OperatorError
from ..types.to_python import UNREPRESENTABLE, format_value, to_python
from .accumulators import (
    Accumulator,
    Counts,
    DecimalSums,
    Extremes,
    IntSums,
    Moments,
    Sums,
    ValueColumns,
    carried,
    exact_floats,
)
from .held_values import HeldValues
from .row_groups import Groups
from .running_values import Stretches

__all__ = ["Aggregate", "KeptValues", "entry_name", "numbers_of", "parse_aggregates"]

_SIMPLE = ("count", "sum", "min", "max", "avg", "variance", "first", "last", "count_distinct")
_FORMS = (
    f'"count", ("sum", "column") and likewise {", ".join(name for name in _SIMPLE if name != "sum")}, '
    '("quantile", "column", 0.5), or (function, "column", "float64")'
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
        return self.what in ("quantile", "count_distinct") or callable(self.what)

    def type_for(self, rows: Any) -> Any:
        """Return the type of its column in the output, for input of this schema."""
        for column in self.columns:
            if column not in rows.names:
                raise ColumnError(f"aggregate {self.name!r}: no column {column!r}; there are {', '.join(rows.names)}")
        if callable(self.what):
            return self.detail
        if not self.columns:
            return pa.int64()
        kind = rows.field(self.columns[0]).type
        needed = _expected(self.what, kind)
        if needed is not None:
            raise ColumnError(
                f"aggregate {self.name!r}: no {self.what} of {self.columns[0]!r}, which is {kind}; expected {needed}. "
                f'Cast it in the source, or by select(..., {self.columns[0]}=(function, "float64")) before the exchange'
            )
        if self.what in ("first", "last", "min", "max"):
            return kind
        if self.what in ("count", "count_distinct"):
            return pa.int64()
        if self.what == "sum" and not pa.types.is_floating(kind):
            return pa.decimal128(38, kind.scale) if pa.types.is_decimal(kind) else pa.int64()
        return pa.float64()


def _expected(what: str, kind: Any) -> str | None:
    """Return what an aggregate expects instead of a column of this type; None if it takes it."""
    types = pa.types
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    is_timed = types.is_temporal(kind) and not types.is_interval(kind)
    if what in ("count", "first", "last"):
        return None
    if what in ("min", "max", "count_distinct"):
        fits = is_number or is_timed or _is_held(kind)
        return None if fits else "numbers, decimals of 128 bits, text, bytes, dates or times"
    if what in ("sum", "avg"):
        return None if is_number or types.is_decimal128(kind) else "numbers, or decimals of 128 bits"
    return None if is_number else "numbers"


def _is_held(kind: Any) -> bool:
    """Whether values have an order and are no numbers."""
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_text or types.is_binary(kind) or types.is_large_binary(kind) or types.is_decimal128(kind))


def parse_aggregates(given: Any) -> tuple[Aggregate, ...]:
    """Return the aggregates that a user specified."""
    if not isinstance(given, Mapping) or not given:
        raise ColumnError(f'aggregates is a dict such as {{"total": ("sum", "amount")}}; got {given!r:.100}')
    return tuple(_parse_one(name, value) for name, value in given.items())


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
    elif pa.types.is_decimal128(kind):
        return _decimal_parts(column), valid
    return column.to_numpy(zero_copy_only=False), valid


def _decimal_parts(column: Any) -> npt.NDArray[np.int64]:
    """Return decimals without nulls as rows of four parts of 32 bits, the least significant first."""
    if not len(column):
        return np.zeros((0, 4), np.int64)
    words = np.frombuffer(column.buffers()[1], np.int32).reshape(-1, 4)[column.offset : column.offset + len(column)]
    parts = words.astype(np.int64)
    parts[:, :3] &= 2**32 - 1
    return parts


class KeptValues:
    """The accumulators that aggregates need for rows of a schema; aggregates may share them.

    With `counts_distinct`, `count_distinct` counts the rows that `add` and `running` get as `fresh`. Without it, that
    aggregate is computed from all values, and not here.
    """

    def __init__(self, aggregates: Iterable[Aggregate], rows: Any, step: str, counts_distinct: bool = False) -> None:
        self._step = step
        self._kinds = {name: rows.field(name).type for aggregate in aggregates for name in aggregate.columns}
        self._rows: Counts | None = None
        self._of: dict[tuple[str, str], Accumulator] = {}
        self._held: dict[tuple[str, str], HeldValues] = {}
        self._distinct: dict[str, Counts] = {}
        for aggregate in aggregates:
            if not aggregate.needs_values:
                self._add_accumulators(aggregate)
            elif aggregate.what == "count_distinct" and counts_distinct:
                [column] = aggregate.columns
                self._distinct[column] = Counts(f"distinct {column}")
        self.all: list[Accumulator] = [*([self._rows] if self._rows is not None else []), *self._of.values()]
        self.all += [*self._held.values(), *self._distinct.values()]
        self.fields = {name: dtype for accumulator in self.all for name, dtype in accumulator.fields.items()}

    def _add_accumulators(self, aggregate: Aggregate) -> None:
        if not aggregate.columns:
            self._rows = Counts(ROWS)
            return
        [column] = aggregate.columns
        kind, what = self._kinds[column], str(aggregate.what)
        if what in ("first", "last") or (what in ("min", "max") and _is_held(kind)):
            self._held.setdefault((what, column), HeldValues(f"{what} {column}", kind, what))
            return
        if what == "variance":
            dtype = numbers_of(pa.array([], kind))[0].dtype
            self._of.setdefault(("moments", column), Moments(f"moments {column}", dtype))
            return
        self._of.setdefault(("count", column), Counts(f"count {column}"))
        if what in ("sum", "avg"):
            is_float, is_decimal = pa.types.is_floating(kind), pa.types.is_decimal(kind)
            made = Sums if is_float else DecimalSums if is_decimal else IntSums
            self._of.setdefault(("sum", column), made(f"sum {column}"))
        elif what in ("min", "max"):
            dtype = numbers_of(pa.array([], kind))[0].dtype
            self._of.setdefault((what, column), Extremes(f"{what} {column}", dtype, what == "max"))

    def begin(self, values: ValueColumns, slots: npt.NDArray[np.int64]) -> None:
        """Initialise the slots of new keys."""
        for accumulator in self.all:
            accumulator.begin(values, slots)

    def add(
        self,
        values: ValueColumns,
        slots: npt.NDArray[np.int64],
        rows: pa.RecordBatch,
        time: npt.NDArray[np.int64] | None = None,
        fresh: Mapping[str, npt.NDArray[np.bool_]] | None = None,
    ) -> None:
        """Add rows, with their event times if these decide what is first and last."""
        if self._rows is not None:
            self._rows.add(values, slots, slots)
        numbers = _Numbers(rows)
        for (_, column), accumulator in self._of.items():
            x, valid = numbers[column]
            accumulator.add(values, slots if valid is None else slots.compress(valid), x)
        for (_, column), held in self._held.items():
            x, at, when = rows.column(column), slots, time
            if x.null_count:
                valid = x.is_valid().to_numpy(zero_copy_only=False)
                x, at, when = x.drop_null(), slots.compress(valid), None if time is None else time.compress(valid)
            held.add(values, at, x, when)
        for column, counts in self._distinct.items():
            assert fresh is not None
            counts.add(values, slots.compress(fresh[column]), slots)

    def running(
        self, values: ValueColumns, groups: Groups, rows: pa.RecordBatch, fresh: Mapping[str, npt.NDArray[np.bool_]]
    ) -> ValueColumns:
        """Add rows as `add` does; return the state of each row's key after that row, in row order."""
        stretches = Stretches(groups)
        back = np.empty(len(groups.row), np.int64)
        back[groups.row] = np.arange(len(back))
        after: dict[str, npt.NDArray[Any]] = {}
        if self._rows is not None:
            after |= self._rows.running(values, stretches, groups.slot, None)
        numbers = _Numbers(rows)
        for (_, column), accumulator in self._of.items():
            x, valid = numbers[column]
            if valid is not None:
                x, valid = _scatter(x, valid), valid.take(groups.row)
            after |= accumulator.running(values, stretches, x.take(groups.row, axis=0), valid)
        for (_, column), held in self._held.items():
            after |= held.running(values, stretches, rows.column(column).take(pa.array(groups.row)), None)
        for column, counts in self._distinct.items():
            after |= counts.running(values, stretches, groups.slot, fresh[column].take(groups.row))
        return {name: array.take(back) for name, array in after.items()}

    def merge(
        self, into: ValueColumns, at: npt.NDArray[np.int64], later: ValueColumns, slots: npt.NDArray[np.int64]
    ) -> None:
        """Append what `later` has in `slots` to the entries `at` of `into`."""
        for accumulator in self.all:
            accumulator.merge(into, at, later, slots)

    def pack(self, piece: dict[str, Any]) -> dict[str, Any]:
        """Return a piece of state in the form that is sent: the same bytes for the same rows, however batched."""
        held = {held.name: held.result(piece["values"]) for held in self._held.values()}
        for accumulator in self.all:
            accumulator.make_canonical(piece["values"])
        return {**piece, "held": pa.table(held)} if held else piece

    def installed(
        self, values: ValueColumns, slots: npt.NDArray[np.int64], piece: Mapping[str, Any] | None = None
    ) -> None:
        """Account for slots whose values were replaced, by a piece of another site's state or by merged ones."""
        for accumulator in self.all:
            accumulator.installed(values, slots)
        if piece is not None:
            for held in self._held.values():
                held.install(values, slots, piece["held"].column(held.name).combine_chunks())

    def result(self, aggregate: Aggregate, values: ValueColumns, owner: AggregateOwner) -> Any:
        """Return an aggregate of all entries of `values`, as an Arrow array; errors name the entry by `owner`."""
        if not aggregate.columns:
            assert self._rows is not None
            return pa.array(self._rows.of(values, "n"))
        [column] = aggregate.columns
        if aggregate.what == "count_distinct":
            return pa.array(self._distinct[column].of(values, "n"))
        if (str(aggregate.what), column) in self._held:
            return self._held[str(aggregate.what), column].result(values)
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
            if isinstance(sums, DecimalSums):
                if aggregate.what == "avg":
                    return pa.array(sums.floats(values) / n / 10.0 ** self._kinds[column].scale, mask=n == 0)
                high, words, beyond = sums.words(values)
                self._check_fits(aggregate, beyond & (n > 0), "38 digits", owner)
                return _decimals(high, words, n == 0, self._kinds[column].scale)
            high, low = carried(sums.of(values, "high"), sums.of(values, "low"))
            if aggregate.what == "avg":
                return pa.array(exact_floats(high, low) / n, mask=n == 0)
        self._check_fits(aggregate, (high < -(2**31)) | (high >= 2**31), "64 bits", owner)
        return pa.array((high << 32) + low, mask=n == 0)

    def _check_fits(
        self, aggregate: Aggregate, beyond: npt.NDArray[np.bool_], width: str, owner: AggregateOwner
    ) -> None:
        if beyond.any():
            entry, partition, row = owner(int(beyond.argmax()))
            raise OperatorError(
                f"aggregate {aggregate.name!r}: the sum of {aggregate.columns[0]!r} does not fit in {width} for "
                f"{entry}. Cast the column to floats before the step, or use avg, which is not limited to {width}",
                self._step,
                partition,
                row,
            )


class _Numbers(dict[str, Any]):
    """The columns of rows as numpy numbers, each converted once."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows

    def __missing__(self, name: str) -> Any:
        self[name] = numbers_of(self._rows.column(name))
        return self[name]


def _decimals(high: Any, low: Any, is_null: Any, scale: int) -> Any:
    words = np.stack([low.view(np.int64), high], axis=1)
    whole = pa.Array.from_buffers(pa.decimal128(38, scale), len(words), [None, pa.py_buffer(words.tobytes())])
    return pc.if_else(pa.array(is_null), pa.scalar(None, whole.type), whole)


def entry_name(columns: Mapping[str, Any], names: Iterable[str], at: int) -> str:
    """Return the values that identify an entry, as text for errors; also those that Python cannot represent."""
    return ", ".join(f"{name} {_show(columns[name].slice(at, 1)):.200}" for name in names)


def _show(one: Any) -> str:
    try:
        return repr(to_python(one)[0])
    except UNREPRESENTABLE:
        return format_value(one)


def _scatter(x: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    whole = np.zeros((len(valid), *x.shape[1:]), x.dtype)
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
