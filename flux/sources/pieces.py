"""How a source makes its record batches: checked for equal columns, resized, and resumed after a row."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import trio

from ..types.cast import cast_values
from ..types.errors import RAISED, FluxError, PlanError
from ..types.infer import infer_type
from ..types.normalize import ColumnError, describe_columns, normalize_batch, normalize_schema

# Large enough that the cost per batch is small, small enough to stay in the cache.
DEFAULT_BATCH_ROWS = 32 * 1024

# A paced source emits this many batches a second, so that its output looks smooth to a person.
PACED_BATCHES_PER_S = 50

# Batches below this fraction of `batch_rows` are combined; larger ones are not worth a copy.
MUCH_SMALLER = 4

# Rows of an iterator wait at most this long to be combined with others: a slow live stream is not delayed.
LINGER_S = 0.01


class Pace:
    """A pace of `rate` rows per second; None: as fast as rows are taken."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._begin_s = trio.current_time()
        self._rows = 0

    async def wait(self, rows: int) -> None:
        """Return when the next `rows` rows are due."""
        if self._rate is not None:
            # Absolute times: a late batch does not delay those after it, so the rate holds on average.
            await trio.sleep_until(self._begin_s + self._rows / self._rate)
            self._rows += rows


async def yield_resized(batches: Iterable[pa.RecordBatch], batch_rows: int) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield batches that are in memory, resized to about `batch_rows`."""
    for rows in resize(batches, batch_rows):
        await trio.lowlevel.checkpoint()
        yield rows


async def pull_in_thread(batches: Iterator[pa.RecordBatch], batch_rows: int) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the batches of an iterator as they arrive, resized to about `batch_rows`.

    The user's iterator may block as long as it likes: the ingress must go on to process acks.
    """
    puller = _IteratorThread(batches, batch_rows)
    while taken := await trio.to_thread.run_sync(puller.take, abandon_on_cancel=True):
        for rows in resize(taken, batch_rows):
            yield rows


def skip_rows(batches: Iterable[pa.RecordBatch], rows: int, source: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches without the first `rows` rows."""
    left = rows
    for batch in batches:
        if batch.num_rows > left:
            yield batch.slice(left) if left else batch
        left = max(0, left - batch.num_rows)
    if left:
        raise FluxError(
            f"{source}: the ingress was restarted and must resume after row {rows:,}, but this time the data has "
            f"{rows - left:,} rows. It must be the same when it is read again"
        )


class _IteratorThread:
    """A thread that pulls an iterator, so that batches which have arrived need not wait for the next."""

    def __init__(self, batches: Iterator[pa.RecordBatch], batch_rows: int) -> None:
        self._batches = batches
        self._batch_rows = batch_rows
        self._changed = threading.Condition()
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._enough = False
        self._ended = False
        self._error: BaseException | None = None
        # A daemon: an iterator that blocks must not keep the process alive.
        threading.Thread(target=self._pull, name="flux-table", daemon=True).start()

    def take(self) -> list[pa.RecordBatch]:
        """Return what has arrived, once it is enough or has waited for `LINGER_S`; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._held or self._ended)
            self._changed.wait_for(lambda: self._enough or self._ended, LINGER_S)
            taken, self._held, self._held_rows, self._enough = self._held, [], 0, False
            if not taken and self._error is not None:
                raise self._error
            self._changed.notify_all()
            return taken

    def _pull(self) -> None:
        try:
            for batch in self._batches:
                self._hold(batch)
        except BaseException as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _hold(self, batch: pa.RecordBatch) -> None:
        with self._changed:
            # It pulls at most one batch ahead: the source is asked only when there is room.
            self._changed.wait_for(lambda: not self._enough)
            self._held.append(batch)
            self._held_rows += batch.num_rows
            self._enough = self._held_rows >= self._batch_rows or not _is_small(batch, self._batch_rows)
            if self._enough or len(self._held) == 1:
                self._changed.notify_all()


def checked_rate(source: str, rate: float | None) -> float | None:
    """Return the rate in rows per second, if it is valid."""
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise PlanError(f"{source}: rate must be a number of rows per second above 0, or None; it is {rate!r}")
    return float(rate)


def checked_count(source: str, name: str, count: int) -> int:
    """Return a setting that counts rows, if it is valid."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise PlanError(f"{source}: {name} must be a whole number of rows above 0; it is {count!r}")
    return count


def batch_size(source: str, batch_rows: int | None, rate: float | None) -> int:
    """Return the number of rows in a batch: fewer than `batch_rows` at a low rate."""
    rows = DEFAULT_BATCH_ROWS if batch_rows is None else checked_count(source, "batch_rows", batch_rows)
    return rows if rate is None else max(1, min(rows, math.ceil(rate / PACED_BATCHES_PER_S)))


def checked_schema(source: str, schema: pa.Schema) -> pa.Schema:
    """Return the normalized schema in which rows of `schema` are sent, if they can be."""
    if not schema.names:
        raise PlanError(f"{source}: data has no columns")
    try:
        return normalize_schema(schema)
    except ColumnError as error:
        raise PlanError(f"{source}: {error}") from error


def table_of_dicts(source: str, rows: list[Any]) -> pa.Table:
    """Return the rows as a table with the columns of all of them."""
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise PlanError(f"{source}: data is a list of dicts, but row {index} is {type_name(row)}")
        if not all(isinstance(name, str) for name in row):
            raise PlanError(f"{source}: the column names of row {index} must be strings; they are {list(row)!r}")
    # Arrow takes the columns from the first dict alone, and would silently drop columns of later ones.
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        try:
            columns[name] = column_of([row.get(name) for row in rows])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise PlanError(
                f"{source}: the values of column {name!r} do not make one Arrow type: {error}. Give a "
                "pyarrow.Table with a schema to say which type is meant"
            ) from error
    if not columns:
        raise PlanError(f"{source}: the dicts of data are empty: there are no columns")
    return pa.table(columns)


def column_of(values: list[Any]) -> Any:
    """Return values as an array of their common type; numbers may have several types."""
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) <= 1:
        return cast_values(values, exact=Decimal not in kinds)
    if all(issubclass(each, int | float | np.integer | np.floating) and each is not bool for each in kinds):
        are_whole = all(issubclass(each, int | np.integer) for each in kinds)
        return cast_values(values, pa.int64() if are_whole else pa.float64())
    return cast_values(values, infer_type(values), exact=True)


def arrow_table(data: Any) -> pa.Table | pa.RecordBatch | None:
    """Return data that is a table as one of Arrow, without a copy where it can be; None if it is not a table.

    A `RecordBatchReader` is an iterator of tables: it can be read only once.
    """
    if isinstance(data, pa.Table | pa.RecordBatch):
        return data
    if isinstance(data, type | pa.RecordBatchReader) or not hasattr(data, "__arrow_c_stream__"):
        return None
    return pa.table(data)


def checked_batches(source: str, pieces: Iterable[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of all pieces, none of them empty; raise if their columns differ."""
    for index, item in enumerate(_iterate_data(source, pieces)):
        piece = arrow_table(item)
        if piece is None:
            raise PlanError(
                f"{source}: item {index} of data is {type_name(item)}; a pyarrow.Table or RecordBatch was expected"
            )
        if not checked_schema(source, piece.schema).equals(schema):
            raise PlanError(
                f"{source}: item {index} of data has columns {describe_columns(piece.schema)}; the first had "
                f"{describe_columns(schema)}. Cast it before handing it over"
            )
        for batch in piece.to_batches() if isinstance(piece, pa.Table) else (piece,):
            if batch.num_rows:
                # Without metadata of their own, all batches have the very same schema.
                yield pa.RecordBatch.from_arrays(normalize_batch(batch).columns, schema=schema)


def _iterate_data(source: str, pieces: Iterable[Any]) -> Iterator[Any]:
    """Yield the pieces; an error of the user's iterator is reported with the index of the item."""
    count = 0
    iterator = iter(pieces)
    while True:
        try:
            piece = next(iterator)
        except StopIteration:
            return
        except RAISED as error:
            raise FluxError(
                f"{source}: the iterable given as data raised {type(error).__name__} at item {count}: {error}"
            ) from error
        yield piece
        count += 1


def resize(batches: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Cut batches larger than `batch_rows`, and combine consecutive ones that are much smaller."""
    held: list[pa.RecordBatch] = []
    held_rows = 0
    for batch in batches:
        small = _is_small(batch, batch_rows)
        if held and (not small or held_rows + batch.num_rows > batch_rows):
            yield concat(held)
            held, held_rows = [], 0
        if small:
            held.append(batch)
            held_rows += batch.num_rows
        else:
            for offset in range(0, batch.num_rows, batch_rows):
                yield batch.slice(offset, batch_rows)
    if held:
        yield concat(held)


def _is_small(batch: pa.RecordBatch, batch_rows: int) -> bool:
    return bool(batch.num_rows * MUCH_SMALLER <= batch_rows)


def concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return one batch with the rows of all; there is at least one."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def type_name(value: Any) -> str:
    """Return the type of a value, for an error."""
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("a builtins.", "a ")
