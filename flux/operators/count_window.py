"""Windows over the last rows of each key.

`CountWindow` keeps the last `history` values of a key, in a ring beside the key, and emits their maximum and mean every
`slide` rows. It is the second operator of the thesis's example (Thesis 2.2). For other aggregates the ring has the
numbers of rows in a `ValueStore`.

Whatever the batch boundaries, each window is summed by itself, from its oldest value to its newest. Sums of integers
are exact, also beyond 64 bits. Floats are always added in this order, because their sum depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model.batch import Batch
from ..model.operator import Context
from ..types.array_types import Bools, Int64s
from ..types.arrays import ColumnError
from ..types.errors import OperatorError, PlanError
from .aggregates import Aggregate, KeptValues, entry_name, parse_aggregates
from .held_values import ValueStore
from .keys import KeyTable, KeyTableOperator, check_keys
from .row_groups import Groups, column_of, emitted_schema, group_by_slot, in_row_order, unknown_parameters
from .value_log import Grouped

__all__ = ["CountWindow"]

_WRAPS_FROM = 2**63
# A key keeps `history` values, and each window reads all of them; counts of rows have 64 bits.
_MOST = {"history": 1 << 20, "slide": 1 << 62}
_PARAMETERS = ("history", "slide", "value", "aggregates")

AnyNumbers = npt.NDArray[Any]


class CountWindow(KeyTableOperator):
    """For each key, aggregates of the last `history` rows, emitted every `slide` rows.

    >>> import flux
    >>> flow = flux.Dataflow("loads")
    >>> loads = flow.source(flux.sources.Table([{"host": "a", "load": load} for load in (3, 1, 4, 1)]))
    >>> aggregates = {"oldest": ("first", "load"), "total": ("sum", "load")}
    >>> loads.exchange("host").apply(CountWindow, history=3, aggregates=aggregates).sink(flux.sinks.Collect())
    >>> flow.run(sites=2).table.to_pylist()
    [{'host': 'a', 'oldest': 3, 'total': 8}, {'host': 'a', 'oldest': 1, 'total': 6}]

    The key is that of the exchange before it; nulls are a key like any other, and all NaN are one. Emits the key
    columns and `aggregates`, see `flux.operators.aggregates`; without them, `max_<value>` and `avg_<value>` of the
    column `value`. A key's first window is emitted with its row number `history`; a window that is not full emits
    nothing. Each window reads all its rows.

    A row whose value is null counts as a row, but its value is left out of maximum and mean, as in SQL. Both are null
    if no row of the window has a value. A NaN makes maximum and mean of its windows NaN.
    """

    changeable = ()

    is_by_key = True
    needs_order = True

    def __init__(self, history: int = 2, slide: int = 1, value: str = "dur") -> None:
        self._history, self._slide, self._value = history, slide, value

    def output_for(self, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
        # Errors in parameters are raised with the plan, not in the run. This instance never runs.
        self.open(Context(dict(parameters), step="CountWindow", key_columns=key_columns))
        value, fields = self._value, check_keys(key_columns, rows)
        if self._aggregates:
            return emitted_schema([*fields, *(pa.field(each.name, each.type_for(rows)) for each in self._aggregates)])
        if value not in rows.names:
            raise ColumnError(
                f"value={value!r} must be a column of numbers; got {', '.join(rows.names)}. Set value='...'"
            )
        _check_number(rows.field(value))
        exact = pa.float64() if pa.types.is_floating(rows.field(value).type) else pa.int64()
        return emitted_schema([*fields, pa.field(f"max_{value}", exact), pa.field(f"avg_{value}", pa.float64())])

    def open(self, context: Context) -> None:
        unknown_parameters(context.step, list(context.parameters), _PARAMETERS)
        self._step, self._key = context.step, context.key_columns
        self._history = context.parameters.get("history", self._history)
        self._slide = context.parameters.get("slide", self._slide)
        self._value = context.parameters.get("value", self._value)
        self._table = None
        # The greatest magnitude of the integers seen, from which follows whether sums may overflow 64 bits.
        self._farthest = 0
        # Null flags are read only once there has been a null.
        self._has_nulls = False
        for name, given in (("history", self._history), ("slide", self._slide)):
            if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= _MOST[name]:
                raise PlanError(
                    f"step {self._step!r}: {name} is a number of rows, from 1 to {_MOST[name]:,}; got {given!r}"
                )
        self._aggregates: tuple[Aggregate, ...] = ()
        self._rows: ValueStore | None = None
        if "aggregates" in context.parameters:
            self._parse_aggregates(context.parameters)
        if not isinstance(self._value, str):
            raise PlanError(f"step {self._step!r}: value is the name of a column; got {self._value!r}")
        if not self._key:
            raise PlanError(f"step {self._step!r}: CountWindow groups by its exchange's columns. Put one before it")

    def _parse_aggregates(self, parameters: Mapping[str, Any]) -> None:
        if "value" in parameters:
            raise PlanError(f"step {self._step!r}: aggregates name their columns; leave value out")
        try:
            self._aggregates = parse_aggregates(parameters["aggregates"])
        except ColumnError as error:
            raise PlanError(f"step {self._step!r}: {error}") from error
        self._columns = list(dict.fromkeys(column for each in self._aggregates for column in each.columns))

    def process(self, batch: Batch) -> Batch | None:
        value, is_null = self._keep_rows(batch) if self._aggregates else self._numbers(batch)
        keys = [batch.column(name) for name in self._key]
        if self._table is None:
            self._table = self._new_table(
                pa.schema(zip(self._key, (key.type for key in keys), strict=True)), value.dtype
            )
        slots, new = self._table.find_or_insert(keys, batch.partition)
        if new.any():
            self._table.values["count"][slots[new]] = 0

        groups = group_by_slot(slots)
        grouped = {"ring": value.take(groups.row)}
        if is_null is not None:
            grouped["is_null"] = is_null.take(groups.row)
        rank, count = self._count_rows(groups)
        due = np.flatnonzero(self._is_due(count))
        if self._aggregates:
            origin, order = in_row_order(groups.row.take(due), len(batch))
            due = due.take(order)
            ends = _Ends(due, groups.slot.take(due), rank.take(due), count.take(due))
            made = self._aggregates_of(ends, grouped, batch, origin) if len(due) else None
            self._update_ring(groups, grouped, count)
            return None if made is None else batch.emit(made, origin)
        results = self._aggregate(_Ends(due, groups.slot.take(due), rank.take(due), count.take(due)), grouped)
        self._update_ring(groups, grouped, count)
        return self._emit(batch, groups.row.take(due), *results)

    def _emit(
        self, batch: Batch, row: Int64s, greatest: AnyNumbers, mean: AnyNumbers, is_null: Bools | None
    ) -> Batch | None:
        """Emit the results of these rows, in row order instead of grouped order."""
        origin, order = in_row_order(row, len(batch))
        columns: dict[str, Any] = {name: batch.column(name) for name in self._key}
        if len(origin) < len(batch):
            where = pa.array(origin)
            columns = {name: column.take(where) for name, column in columns.items()}
        mask = None if is_null is None else is_null.take(order)
        columns[f"max_{self._value}"] = pa.array(greatest.take(order), mask=mask)
        columns[f"avg_{self._value}"] = pa.array(mean.take(order), mask=mask)
        return batch.emit(columns, origin)

    def _numbers(self, batch: Batch) -> tuple[AnyNumbers, Bools | None]:
        """Return the values, 0 for nulls, and which are null; None if there has been no null yet."""
        column_of(batch, self._value, self._step)
        try:
            _check_number(batch.arrow.schema.field(self._value))
        except ColumnError as error:
            raise OperatorError(str(error), self._step) from error
        value = batch[self._value]
        self._has_nulls |= isinstance(value, np.ma.MaskedArray)
        is_null = np.ma.getmaskarray(value) if self._has_nulls else None
        value = np.ma.getdata(value)
        value = value.astype(np.float64 if value.dtype.kind == "f" else np.int64, copy=False)
        self._track_farthest(value)
        return value, is_null

    # Aggregates.

    def _keep_rows(self, batch: Batch) -> tuple[Int64s, None]:
        """Store the rows; return their numbers."""
        if self._rows is None:
            try:
                for each in self._aggregates:
                    each.type_for(batch.arrow.schema)
            except ColumnError as error:
                raise OperatorError(str(error), self._step) from error
            self._rows = self._new_rows(batch.arrow.schema)
        if self._table is not None:
            self._rows.compact(self._table.values["ring"])
        # A column of its own, so that rows have numbers even if no aggregate reads a column.
        mark = pa.array(np.ones(len(batch), np.bool_))
        return self._rows.add([mark, *map(batch.column, self._columns)]), None

    def _new_rows(self, schema: pa.Schema) -> ValueStore:
        self._schema = pa.schema([schema.field(name) for name in self._columns])
        return ValueStore({"": pa.bool_(), **{field.name: field.type for field in self._schema}})

    def _aggregates_of(self, ends: _Ends, grouped: Mapping[str, Any], batch: Batch, origin: Int64s) -> dict[str, Any]:
        """Return the key columns and the aggregates of the windows with these ends."""
        assert self._rows is not None
        numbers = np.stack([self._before(ends, back, "ring", grouped) for back in range(self._history - 1, -1, -1)], 1)
        rows = pa.record_batch(self._rows.take(numbers.reshape(-1)), names=["", *self._columns])
        window = np.repeat(np.arange(len(ends.at)), self._history)
        kept = KeptValues(self._aggregates, self._schema, self._step)
        values = {name: np.zeros(len(ends.at), dtype) for name, dtype in kept.fields.items()}
        kept.begin(values, np.arange(len(ends.at)))
        kept.add(values, window, rows)
        columns: dict[str, Any] = {name: batch.column(name).take(pa.array(origin)) for name in self._key}

        def owner(at: int) -> tuple[str, int, int]:
            row = origin[at]
            return entry_name(columns, self._key, at), int(batch.partition[row]), int(batch.sn[row])

        by_window = {name: rows.column(name) for name in self._columns}
        logged = Grouped(by_window, window, np.arange(0, len(window) + 1, self._history))
        for each in self._aggregates:
            columns[each.name] = (
                logged.result(each, columns, self._key) if each.needs_values else kept.result(each, values, owner)
            )
        return columns

    def _track_farthest(self, value: AnyNumbers) -> None:
        if value.dtype.kind == "i" and len(value):
            self._farthest = max(self._farthest, int(value.max()), -int(value.min()))

    def _new_table(self, keys: pa.Schema, value: npt.DTypeLike) -> KeyTable:
        ring = (self._history,)
        values = {"count": np.int64, "ring": (value, ring), "is_null": (np.bool_, ring)}
        return KeyTable(self._step, {field.name: field.type for field in keys}, values)

    def _count_rows(self, groups: Groups) -> tuple[Int64s, Int64s]:
        """Return each entry's rank in its group, and the number of rows of its key, with itself."""
        assert self._table is not None
        places = np.arange(len(groups.slot))
        begins = np.where(groups.first, places, 0)
        np.maximum.accumulate(begins, out=begins)
        rank = places - begins
        count = self._table.values["count"].take(groups.slot)
        count += rank
        count += 1
        return rank, count

    def _is_due(self, count: Int64s) -> Bools:
        full: Bools = count >= self._history
        if self._slide > 1:
            full &= (count - self._history) % self._slide == 0
        return full

    # Infinities are values like others: adding them is not an error.
    @np.errstate(invalid="ignore", over="ignore")
    def _aggregate(self, ends: _Ends, grouped: Mapping[str, Any]) -> tuple[AnyNumbers, AnyNumbers, Bools | None]:
        """Return maximum and mean of the windows with these ends, and which windows have no value at all."""
        dtype = grouped["ring"].dtype
        least = -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
        greatest, total = np.full(len(ends.at), least, dtype), np.zeros(len(ends.at), dtype)
        values_seen = np.full(len(ends.at), self._history) if self._has_nulls else None
        # Sums of integers wrap around; approximate sums beside them show how often.
        may_wrap = self._farthest * self._history >= _WRAPS_FROM
        rough = np.zeros(len(ends.at)) if may_wrap else None
        for back in range(self._history - 1, -1, -1):
            value = self._before(ends, back, "ring", grouped)
            total += value
            if rough is not None:
                rough += value
            if values_seen is not None:
                is_null = self._before(ends, back, "is_null", grouped)
                values_seen -= is_null
                value[is_null] = least
            np.maximum(greatest, value, out=greatest)
        exact = total if rough is None else _unwrap(total, rough)
        if values_seen is None:
            return greatest, exact / self._history, None
        return greatest, exact / np.maximum(values_seen, 1), values_seen == 0

    def _before(self, ends: _Ends, back: int, name: str, grouped: Mapping[str, Any]) -> AnyNumbers:
        """Return the values `back` rows before the ends of windows, from this batch or, before it, from the ring."""
        assert self._table is not None
        at: AnyNumbers = grouped[name].take(ends.at - back, mode="wrap")
        if back:
            older = np.flatnonzero(ends.rank < back)
            place = ends.slot.take(older) * self._history + (ends.count.take(older) - 1 - back) % self._history
            at[older] = self._table.values[name].reshape(-1).take(place)
        return at

    def _update_ring(self, groups: Groups, grouped: Mapping[str, Any], count: Int64s) -> None:
        """Write the values that later windows may need to the ring: the last ``history - 1`` of each group."""
        assert self._table is not None
        last = np.flatnonzero(groups.last)
        final = count.take(last)
        self._table.values["count"][groups.slot.take(last)] = final
        # How many entries of its group follow each entry.
        follow = np.repeat(final, np.diff(last, prepend=-1)) - count
        kept = np.flatnonzero(follow < self._history - 1)
        place = groups.slot.take(kept) * self._history + (count.take(kept) - 1) % self._history
        for name, values in grouped.items():
            self._table.values[name].reshape(-1)[place] = values.take(kept)

    def get_partition_state(self, pid: int) -> Iterator[Any]:
        for piece in super().get_partition_state(pid):
            # Which stale values are still in the ring depends on how batches were cut; they are sent as 0.
            count = piece["values"]["count"]
            age = (count[:, None] - 1 - np.arange(self._history)) % self._history
            unneeded = age >= np.minimum(count, self._history - 1)[:, None]
            for name in ("ring", "is_null"):
                piece["values"][name][unneeded] = 0
            if self._rows is not None:
                # The numbers of rows differ from site to site: the rows are sent.
                ring = piece["values"]["ring"]
                piece["held"] = pa.table(self._rows.take(ring.reshape(-1)), names=["", *self._columns])
                ring[:] = 0
            yield piece

    def install_partition_state(self, pid: int, state: Any) -> None:
        ring = state["values"]["ring"]
        if self._table is None:
            self._table = self._new_table(state["keys"].schema, ring.dtype)
        if "held" in state:
            if self._rows is None:
                self._rows = self._new_rows(state["held"].schema)
            held = [column.combine_chunks() for column in state["held"].columns]
            state["values"]["ring"] = self._rows.add(held).reshape(ring.shape)
        else:
            self._track_farthest(ring.reshape(-1))
        self._has_nulls |= bool(state["values"]["is_null"].any())
        self._table.install(pid, state)


@dataclass(frozen=True, slots=True)
class _Ends:
    """The last entries of windows: their places, slots, ranks in their groups, and numbers of rows of their keys."""

    at: Int64s
    slot: Int64s
    rank: Int64s
    count: Int64s


def _check_number(value: Any) -> None:
    """Raise unless a column with this Arrow field has a maximum and a mean."""
    kind = value.type
    is_whole = pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind != pa.uint64())
    if not is_whole and not pa.types.is_floating(kind):
        raise ColumnError(
            f"column {value.name!r} is {kind}; expected signed integers, or floats. Cast it before the step"
        )


def _unwrap(total: Int64s, rough: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return sums of integers as floats, from the sums modulo 2**64 and approximate ones."""
    exact = total.astype(np.float64)
    wrapped = np.rint((rough - exact) / 2.0**64)
    for i in np.flatnonzero(wrapped).tolist():
        # Rounded once, from the whole number, like a sum that fits in 64 bits.
        exact[i] = float(int(total[i]) + int(wrapped[i]) * 2**64)
    return exact
