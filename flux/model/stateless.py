"""Steps without state: `map`, `filter`, `flat_map`, `select` and `event_time` of a stream.

They are operators like any other and run in their segment; before the first exchange that is the ingress. Without state
there is nothing to move, and a restarted ingress emits the same rows for the same input. A function gets one row at a
time, a named tuple. With `batch=True` it gets a whole `flux.Batch` and works on columns, which is many times faster.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..types.arrays import schema_of
from ..types.errors import OperatorError
from .batch import Batch
from .event_time import EXPECTED, EventTime, is_event_time
from .operator import PooledOperator
from .output_rows import keep_rows

__all__ = [
    "STATELESS",
    "AssignEventTime",
    "Filter",
    "FlatMap",
    "Map",
    "PassThrough",
    "Select",
    "assigned_time",
    "select_columns",
]


class _Stateless(PooledOperator):
    """The common base. `user_code` is the user's function: errors name it."""

    # Whether one row may become several, so that their order needs a level of `sub`.
    is_one_to_many = False

    def __init__(self, fn: Callable[..., Any], batch: bool, event_time: str | None = None) -> None:
        self.event_time = event_time
        self.user_code = fn
        self._fn = fn
        self._by_batch = batch

    def get_partition_state(self, pid: int) -> None:
        return None

    def drop_partition(self, pid: int) -> None:
        pass


class Map(_Stateless):
    """Emits one row for each."""

    def process(self, batch: Batch) -> Batch | None:
        if self._by_batch:
            return batch.emit(_columns(self._fn(batch), batch, "a dict of columns"))
        kept = keep_rows(batch.output)
        rows = [kept(self._fn(row)) for row in batch.rows()]
        return batch.emit(_columns_of(rows, None, batch, "a dict"))


class FlatMap(_Stateless):
    """Emits zero, one or several rows for each."""

    is_one_to_many = True

    def process(self, batch: Batch) -> Batch | None:
        if self._by_batch:
            made = self._fn(batch)
            if made is None:
                return None
            if not isinstance(made, tuple) or len(made) != 2:
                raise _unexpected(made, batch, "(columns, origin): a dict of columns, and each row's row of the batch")
            columns, origin = made
            return batch.emit(_columns(columns, batch, "(columns, origin)"), origin)
        kept = keep_rows(batch.output)
        rows: list[Any] = []
        counts: list[int] = []
        for row in batch.rows():
            before = len(rows)
            made = self._fn(row)
            if isinstance(made, Mapping):
                raise _unexpected(made, batch, "an iterable of dicts: write [{...}] for one row")
            rows.extend(map(kept, made))
            counts.append(len(rows) - before)
        if not rows:
            return None
        origin = np.repeat(np.arange(len(batch)), counts)
        return batch.emit(_columns_of(rows, origin, batch, "an iterable of dicts"), origin)


class Filter(_Stateless):
    """Emits the rows for which the function returns true, unchanged."""

    def process(self, batch: Batch) -> Batch | None:
        if self._by_batch:
            kept = np.flatnonzero(_mask(self._fn(batch), batch))
        else:
            made = [self._fn(row) for row in batch.rows()]
            if made and inspect.isawaitable(made[0]):  # It would be true, whatever the function returns.
                raise _unexpected(made[0], batch, "whether to keep the row. Write the function without `async`")
            kept = np.flatnonzero(np.fromiter(map(bool, made), np.bool_, len(batch)))
        if len(kept) == len(batch):
            return batch
        rows = batch.arrow.take(pa.array(kept))
        return batch.emit(dict(zip(rows.schema.names, rows.columns, strict=True)), kept)


class Select(PooledOperator):
    """Emits some columns, renamed or not, and columns that functions compute from the batch.

    `columns` maps each output column to its input column, or to the function that computes it.
    """

    is_one_to_many = False

    def __init__(self, columns: Mapping[str, str | Callable[[Batch], Any]]) -> None:
        self._columns = columns
        self.user_code = next((made for made in columns.values() if callable(made)), None)

    def process(self, batch: Batch) -> Batch | None:
        made = {}
        for name, source in self._columns.items():
            if callable(source):
                self.user_code = source
                made[name] = source(batch)
            else:
                made[name] = batch.column(source)
        return batch.emit(made)

    def get_partition_state(self, pid: int) -> None:
        return None

    def drop_partition(self, pid: int) -> None:
        pass


class AssignEventTime(PooledOperator):
    """Forwards rows unchanged; the ingress sets watermarks by their column `assigned.column`."""

    def __init__(self, assigned: EventTime) -> None:
        self.assigned = assigned
        self.event_time = assigned.column

    def process(self, batch: Batch) -> Batch | None:
        column = self.assigned.column
        if column not in batch.arrow.schema.names:
            raise OperatorError(
                f"event time is the column {column!r}; the rows have {', '.join(batch.arrow.schema.names)}",
                batch.step or None,
            )
        kind = batch.column(column).type
        if not is_event_time(kind):
            raise OperatorError(f"event time {column!r} is {kind}; {EXPECTED}", batch.step or None)
        return batch

    def get_partition_state(self, pid: int) -> None:
        return None

    def drop_partition(self, pid: int) -> None:
        pass


class PassThrough(PooledOperator):
    """Forwards rows unchanged: it stands where a step was removed while rows flowed."""

    def process(self, batch: Batch) -> Batch | None:
        return batch

    def get_partition_state(self, pid: int) -> None:
        return None

    def drop_partition(self, pid: int) -> None:
        pass


STATELESS = (Map, FlatMap, Filter, Select, AssignEventTime, PassThrough)


def assigned_time(factory: Any) -> EventTime | None:
    """Return the event time that a step assigns; None if it is another step."""
    return factory.args[0] if getattr(factory, "func", None) is AssignEventTime else None


ALL_KEYS = "all keys"  # The key column of an exchange without columns: it is 0 in all rows.


def zeros(batch: Batch) -> npt.NDArray[np.int8]:
    """Return the column `ALL_KEYS`."""
    return np.zeros(len(batch), np.int8)


def select_columns(
    rows: pa.Schema | None, columns: tuple[str, ...], computed: Mapping[str, Any]
) -> tuple[dict[str, str | Callable[[Batch], Any]], pa.Schema | None]:
    """Return the columns of `Select`, and its schema if it is known: `(function, type)` declares a function's type."""
    made: dict[str, str | Callable[[Batch], Any]] = {name: name for name in columns}
    types: dict[str, Any] = {}
    for name, source in computed.items():
        made[name], types[name] = source if isinstance(source, tuple) else (source, None)
    fields = []
    for name, origin in made.items():
        if isinstance(origin, str):
            fields.append(None if rows is None else rows.field(origin).with_name(name))
        else:
            fields.append(None if types[name] is None else schema_of({name: types[name]}).field(name))
    return made, None if any(field is None for field in fields) else pa.schema(fields)


def _mask(kept: Any, batch: Batch) -> npt.NDArray[np.bool_]:
    if isinstance(kept, pa.Array | pa.ChunkedArray):
        kept = kept.fill_null(False).to_numpy(zero_copy_only=False)
    mask = np.ma.filled(np.ma.asarray(kept), False)
    if mask.dtype != np.bool_ or mask.shape != (len(batch),):
        raise _unexpected(kept, batch, f"{len(batch)} truth values, one for each row of the batch")
    return mask


def _columns(made: Any, batch: Batch, expected: str) -> Mapping[str, Any]:
    if not isinstance(made, Mapping):
        raise _unexpected(made, batch, expected)
    return made


def _columns_of(rows: list[Any], origin: Any, batch: Batch, expected: str) -> dict[str, list[Any]]:
    """Return the columns of rows that are dicts with the same keys."""
    first = rows[0] if rows else {}
    if batch.output is not None:
        names = list(batch.output.names)
    else:
        names = list(first) if isinstance(first, Mapping) else []
    keys = set(names)
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping) or row.keys() != keys:
            place = index if origin is None else int(origin[index])
            with_keys = f" with the keys {', '.join(map(str, names))}" if names else ""
            raise _unexpected(row, batch.slice(place, place + 1), f"{expected}{with_keys}")
    return {name: [row[name] for row in rows] for name in names}


def _unexpected(got: Any, batch: Batch, expected: str) -> OperatorError:
    reached = batch.reached()
    place = (None, None) if reached is None else (int(batch.partition[reached]), int(batch.sn[reached]))
    return OperatorError(f"its function returned {got!r:.200}; expected {expected}", batch.step or None, *place)
