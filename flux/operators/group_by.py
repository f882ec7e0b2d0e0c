"""GroupBy: aggregates of all rows of a key up to now.

It keeps every key for ever: for an unbounded number of keys use a `TimeWindow`, which forgets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model.batch import Batch, turn_order
from ..model.operator import Context, PooledOperator
from ..model.punctuation import Punctuation
from ..types.array_types import Bools
from ..types.arrays import ColumnError
from ..types.errors import OperatorError, PlanError
from .aggregates import Aggregate, KeptValues, entry_name, parse_aggregates
from .key_order import in_order, order_numbers
from .keys import KeyTable, check_keys
from .row_groups import emitted_schema, group_by_slot, unknown_parameters
from .value_log import Grouped, ValueLog

__all__ = ["GroupBy"]

_PARAMETERS = ("aggregates", "emit")
_EMIT = ("rows", "watermarks")


class GroupBy(PooledOperator):
    """For each key, aggregates of all its rows up to now.

    >>> import flux
    >>> flow = flux.Dataflow("visits")
    >>> rows = [("ann", "home"), ("bob", "home"), ("ann", "cart"), ("ann", "home")]
    >>> visits = flow.source(flux.sources.Table([{"user": user, "page": page} for user, page in rows]))
    >>> aggregates = {"visits": "count", "pages": ("count_distinct", "page"), "last": ("last", "page")}
    >>> visits.exchange("user").apply(GroupBy, aggregates=aggregates).sink(flux.sinks.Collect())
    >>> flow.run(sites=2).table.to_pylist()[-1]
    {'user': 'ann', 'visits': 3, 'pages': 2, 'last': 'home'}

    Parameters of `apply`: `aggregates`, see `flux.operators.aggregates`. Those that need all values of a key, quantiles
    and a user's functions, keep these for ever, and need `emit="watermarks"`. The key is that of the exchange before
    it; nulls are a key like any other, and all NaN are one.

    With `emit="rows"`, the default, each input row emits one row: the key columns and the aggregates of the key's rows
    up to and including this one. With `emit="watermarks"` aggregates are emitted at each watermark and at the end of
    the stream, for each key with a row since the last one. They are in the order of keys within a partition; partitions
    take turns, as in `TimeWindow`.

    While rows flow, `emit` may be changed (`run.reconfigure`).

    Rows are added one after the other in row order, so sums of floats equal those of a loop over the rows.
    """

    is_by_key = True
    needs_order = True
    changeable = ("emit",)

    def output_for(self, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
        unknown_parameters("GroupBy", list(parameters), _PARAMETERS)
        aggregates, _ = _settings(parameters)
        fields = check_keys(key_columns, rows)
        return emitted_schema([*fields, *(pa.field(each.name, each.type_for(rows)) for each in aggregates)])

    def open(self, context: Context) -> None:
        self._step, self._key = context.step, context.key_columns
        unknown_parameters(context.step, list(context.parameters), _PARAMETERS)
        try:
            self._aggregates, self._emit = _settings(context.parameters)
        except ColumnError as error:
            raise PlanError(f"step {context.step!r}: {error}") from error
        if not self._key:
            raise PlanError(f"step {context.step!r}: GroupBy groups by its exchange's columns. Put one before it")
        self._schema: pa.Schema | None = None

    def on_change(self, context: Context) -> None:
        """Emit as the new parameters say from now on."""
        _, self._emit = _settings(context.parameters)

    def _begin(self, rows: pa.Schema) -> None:
        """Create the state for rows of this schema."""
        try:
            for aggregate in self._aggregates:
                aggregate.type_for(rows)
        except ColumnError as error:
            raise OperatorError(str(error), self._step) from error
        names = dict.fromkeys([*self._key, *(column for each in self._aggregates for column in each.columns)])
        self._schema = pa.schema([rows.field(name) for name in names])
        self._kept = KeptValues(self._aggregates, rows, self._step, counts_distinct=True)
        keys = {name: rows.field(name).type for name in self._key}
        self._table = KeyTable(self._step, keys, {"changed": np.bool_, **self._kept.fields})
        # The distinct values of each key, for each column of which they are counted.
        self._seen = {
            column: KeyTable(self._step, {**keys, f"distinct {column}": rows.field(column).type}, {})
            for each in self._aggregates
            for column in each.columns
            if each.what == "count_distinct"
        }
        logged = (column for each in self._aggregates if _needs_log(each) for column in each.columns)
        self._log = ValueLog(list(dict.fromkeys(logged)))

    def process(self, batch: Batch) -> Batch | None:
        if self._schema is None:
            self._begin(batch.arrow.schema)
        keys = [batch.column(name) for name in self._key]
        slots, new = self._table.find_or_insert(keys, batch.partition)
        values = self._table.values
        if new.any():
            self._kept.begin(values, slots.compress(new))
            values["changed"][slots.compress(new)] = False
        fresh = {column: self._see(seen, keys, batch.column(column), batch) for column, seen in self._seen.items()}
        if self._emit == "watermarks":
            self._kept.add(values, slots, batch.arrow, fresh=fresh)
            self._log.add(slots, dict(zip(batch.arrow.schema.names, batch.arrow.columns, strict=True)))
            values["changed"][slots] = True
            return None
        running = self._kept.running(values, group_by_slot(slots), batch.arrow, fresh)
        return batch.emit(self._results(dict(zip(self._key, keys, strict=True)), running, batch.partition, batch.sn))

    @staticmethod
    def _see(seen: KeyTable, keys: list[Any], column: Any, batch: Batch) -> Bools:
        """Return which rows are the first of their key with their value; nulls are no values."""
        slots, new = seen.find_or_insert([*keys, column], batch.partition)
        fresh = np.zeros(len(slots), np.bool_)
        fresh[np.unique(slots, return_index=True)[1]] = True
        fresh &= new
        return fresh & column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else fresh

    def _results(
        self,
        keys: dict[str, Any],
        running: Mapping[str, npt.NDArray[Any]],
        partition: Any,
        sn: Any = None,
        logged: Grouped | None = None,
    ) -> dict[str, Any]:
        """Return keys and their aggregates; errors name the key, and the row if there is one for each."""

        def owner(at: int) -> tuple[str, int, int | None]:
            return entry_name(keys, self._key, at), int(partition[at]), None if sn is None else int(sn[at])

        made: dict[str, Any] = {}
        for each in self._aggregates:
            if _needs_log(each):
                assert logged is not None
                made[each.name] = logged.result(each, keys, self._key)
            else:
                made[each.name] = self._kept.result(each, running, owner)
        return keys | made

    def on_punctuation(self, p: Punctuation) -> tuple[Mapping[str, Any], Any] | None:
        if self._schema is None or self._emit == "rows" or p.kind not in ("watermark", "end"):
            return None
        values, slots = self._table.values, self._table.live
        slots = slots.compress(values["changed"].take(slots))
        partition = self._table.partition.take(slots)
        if p.partitions is not None:
            chosen = np.isin(partition, list(p.partitions))
            slots, partition = slots.compress(chosen), partition.compress(chosen)
        if not len(slots):
            return None
        values["changed"][slots] = False
        keys = self._table.keys_of(slots)
        order = in_order([numbers for column in keys for numbers in order_numbers(column)])
        order = order.take(turn_order(partition.take(order)))
        columns = {name: key.take(pa.array(order)) for name, key in zip(self._key, keys, strict=True)}
        slots, partition = slots.take(order), partition.take(order)
        kept = {name: values[name].take(slots) for name in self._kept.fields}
        logged = self._log.grouped(slots, np.arange(len(slots)), len(slots))
        return self._results(columns, kept, partition, logged=logged), partition

    # State by partition.

    def get_partition_state(self, pid: int) -> Any:
        return None if self._schema is None else self._pieces(pid)

    def _pieces(self, pid: int) -> Iterator[Any]:
        assert self._schema is not None
        yield {"rows": self._schema.empty_table()}
        for piece in self._table.pieces(pid):
            yield self._kept.pack(piece)
        for column, seen in self._seen.items():
            for piece in seen.pieces(pid):
                yield {**piece, "distinct": column}
        for logged, table in self._log.pieces(self._table.slots_of(pid)):
            yield {**self._table.rows_piece(logged), "logged": table}

    def install_partition_state(self, pid: int, state: Any) -> None:
        if "rows" in state:
            if self._schema is None:
                self._begin(state["rows"].schema)
        elif "distinct" in state:
            self._seen[state["distinct"]].install(pid, state)
        elif "logged" in state:
            self._log.install(self._table.install_keys(pid, state), state)
        else:
            slots = self._table.install(pid, state)
            self._kept.installed(self._table.values, slots, state)  # Read `values` again: the table may have grown.

    def drop_partition(self, pid: int) -> None:
        if self._schema is not None:
            self._log.forget(self._table.drop(pid), len(self._table.partition))
            for seen in self._seen.values():
                seen.drop(pid)

    @classmethod
    def waits_for_watermarks(cls, parameters: Mapping[str, Any]) -> bool:
        """Return whether it emits at watermarks, not for each row."""
        return parameters.get("emit") == "watermarks"

    def partition_info(self) -> dict[int, int]:
        return {} if self._schema is None else self._table.sizes()


def _settings(parameters: Mapping[str, Any]) -> tuple[tuple[Aggregate, ...], str]:
    emit = parameters.get("emit", "rows")
    if emit not in _EMIT:
        raise ColumnError(f"emit is {' or '.join(map(repr, _EMIT))}; got {emit!r}")
    aggregates = parse_aggregates(parameters.get("aggregates"))
    for each in aggregates:
        if _needs_log(each) and emit == "rows":
            raise ColumnError(
                f"aggregate {each.name!r} needs all values of a key, and would read them again for each row. Add "
                'emit="watermarks", or use a TimeWindow, which forgets them'
            )
    return aggregates, emit


def _needs_log(aggregate: Aggregate) -> bool:
    return aggregate.needs_values and aggregate.what != "count_distinct"
