"""Distinct: only the first row of each key, for ever or in each window of event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ..model.batch import Batch
from ..model.operator import Context, PooledOperator
from ..model.punctuation import Punctuation
from ..types.array_types import Int64s
from ..types.arrays import ColumnError
from ..types.errors import PlanError
from ..types.normalize import repeated
from .event_time_state import Windowed
from .keys import KeyTable, check_keys
from .row_groups import unknown_parameters

__all__ = ["Distinct"]

_PARAMETERS = ("on", "time", "size_ms")


class Distinct(PooledOperator):
    """Forward the first row of each key, unchanged and at once; drop all others.

    Parameters of `apply`: `on`, the columns in which rows must differ, with at least those of the exchange before it,
    which are the default. Nulls are equal to each other, and so are all NaN, and -0.0 is 0.0.

    By default every key is remembered for ever. With `time`, the column of event time, and `size_ms`, a key is
    forwarded once in each window. Windows begin at multiples of `size_ms`, and are forgotten when the watermark has
    passed their end. A row that arrives after that is late: it is dropped and counted (`report.late`), and so is a row
    without event time. Nothing is emitted at watermarks and at the end of the stream.
    """

    changeable = ()

    is_by_key = True
    needs_order = True
    passes_rows_on = True  # Unchanged and at once: a column of event time stays one after this step.

    def output_for(self, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
        unknown_parameters("Distinct", list(parameters), _PARAMETERS)
        check_keys(_on(parameters, key_columns), rows)
        Windowed.check(parameters, rows)
        return rows

    def open(self, context: Context) -> None:
        self._step = context.step
        try:
            self._on = _on(context.parameters, context.key_columns)
            self._windowed = Windowed(context)
        except ColumnError as error:
            raise PlanError(f"step {context.step!r}: {error}") from error
        self._table: KeyTable | None = None

    def process(self, batch: Batch) -> Batch | None:
        table = self._table_for(batch.arrow.schema)
        rows, window = self._windowed.rows_in_time(batch)
        keys, partition = [batch.column(name) for name in self._on], batch.partition
        if rows is not None:
            keys, partition = [key.take(pa.array(rows)) for key in keys], partition.take(rows)
        slots, new = table.find_or_insert(keys, partition, *self._windowed.key_part(window))
        fresh = np.flatnonzero(new)
        if not len(fresh):
            return None
        slots = slots.take(fresh)
        table.values["window"][slots] = window.take(fresh)
        # Written from back to front, so that of several new rows of a key the first one stays.
        first = np.empty(int(slots.max()) + 1, np.int64)
        first[slots[::-1]] = fresh[::-1]
        forwarded = fresh.compress(first.take(slots) == fresh)
        origin = forwarded if rows is None else rows.take(forwarded)
        taken = batch.arrow if len(origin) == len(batch) else batch.arrow.take(pa.array(origin))
        return batch.emit(dict(zip(taken.schema.names, taken.columns, strict=True)), origin)

    def _table_for(self, rows: pa.Schema) -> KeyTable:
        if self._table is None:
            keys = {name: rows.field(name).type for name in self._on}
            self._table = KeyTable(self._step, keys, {"window": np.int64}, self._windowed.key_parts)
        return self._table

    def on_punctuation(self, p: Punctuation) -> None:
        if self._windowed.advance(p) and self._table is not None:
            live = self._table.live
            closed = self._windowed.closed.take(self._table.partition.take(live))
            done = live.compress(self._table.values["window"].take(live) <= closed)
            self._table.delete(done, for_good=True)

    @classmethod
    def waits_for_watermarks(cls, parameters: Mapping[str, Any]) -> bool:
        """Return whether keys are forgotten with their windows."""
        return parameters.get("time") is not None

    @classmethod
    def in_time_from(cls, parameters: Mapping[str, Any], watermark: Int64s) -> Int64s | None:
        """Return for each watermark the first instant that is not late; None without windows."""
        return Windowed.in_time_from(parameters, watermark)

    def take_late(self) -> dict[int, int]:
        """Return the late-row counts that changed since the last call."""
        return self._windowed.clock.take_late()

    # State by partition.

    def get_partition_state(self, pid: int) -> Iterator[Any]:
        none = np.zeros(0, np.int64)
        keys = None if self._table is None else self._table.keys_piece(none)["keys"]
        yield {"clock": self._windowed.clock.get(pid), "rows": keys}
        if self._table is not None:
            yield from self._table.pieces(pid)

    def install_partition_state(self, pid: int, state: Any) -> None:
        if "clock" in state:
            self._windowed.install(pid, state["clock"])
            if state["rows"] is not None:
                self._table_for(state["rows"].schema)
        else:
            assert self._table is not None
            self._table.install(pid, state)

    def drop_partition(self, pid: int) -> None:
        if self._table is not None:
            self._table.drop(pid)
        self._windowed.drop(pid)

    def partition_info(self) -> dict[int, int]:
        return {} if self._table is None else self._table.sizes()


def _on(parameters: Mapping[str, Any], key_columns: tuple[str, ...]) -> tuple[str, ...]:
    on = parameters.get("on", key_columns)
    on = (on,) if isinstance(on, str) else on
    if not isinstance(on, list | tuple) or not all(isinstance(name, str) for name in on):
        raise ColumnError(
            'on is a column, or a list of columns that must differ together, such as on=["user", "day"]; a set has '
            f"no order that is the same on every site. Got {on!r:.100}"
        )
    twice = repeated(on)
    if twice:
        raise ColumnError(f"on names {', '.join(map(repr, twice))} twice: name each column once")
    if not key_columns:
        raise ColumnError(
            'rows that are equal may be in different partitions: exchange by columns of `on`, not by="any"'
        )
    if not on or not set(key_columns) <= set(on):
        raise ColumnError(
            f"rows that are equal in {', '.join(on) or 'nothing'} may be in different partitions, because the exchange "
            f"is by {', '.join(key_columns)}. Add these columns to `on`, or exchange by fewer"
        )
    return tuple(on)
