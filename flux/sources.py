"""Where the tuples of a dataflow come from.

A source lives on both sides of a fork. `bind`, `start` and `stop` are called in the user's program;
`batches` is iterated in the ingress process, under trio, and is asked for the next batch only when there is
room for it, so back-pressure needs nothing from the source. A source knows nothing of sequence numbers: the
ingress gives them in the order the batches come.

Whatever a source yields is decoded to plain types (`flux.plain`) as it enters.

`Table` is the source of data the program already holds. Streams from Spark are in `flux.spark`.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

from flux.errors import FluxError, PlanError
from flux.plain import ColumnError, columns_of, plain_batch, plain_schema

__all__ = ["Source", "SourceBatch", "SourceContext", "Table"]

# Large enough that the cost of a batch is lost in that of its rows, small enough to stay in the cache.
DEFAULT_BATCH_ROWS = 32 * 1024

# A paced source sends this many batches a second, so that its output looks smooth to a person.
PACED_BATCHES_PER_S = 50

# Batches smaller than this part of `batch_rows` are put together; larger ones are not worth a copy.
MUCH_SMALLER = 4

# Rows of an iterator wait for others at most this long: a live stream that trickles is sent on as it comes.
PATIENCE_S = 0.01

EXPECTED = "a pyarrow.Table, a pyarrow.RecordBatch, an iterable of either, or a list of dicts"

_NOTHING = object()


@dataclass(frozen=True)
class SourceBatch:
    """Rows as they come from a source; `received` is called once every live copy has received them all."""

    rows: pa.RecordBatch
    received: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", plain_batch(self.rows))


@dataclass(frozen=True)
class SourceContext:
    """What a source may use in the ingress process: a directory of its own, kept for the whole run."""

    directory: Path


class Source:
    """What `flow.source(...)` takes. Subclasses set `schema` and write `batches`.

    `schema` must be known before the run starts, because the plan is checked against it.
    """

    schema: pa.Schema

    def bind(self, directory: Path) -> None:
        """Prepare, in the user's program, before any process is forked; sockets made here are shared."""

    def release(self) -> None:
        """Let go of what `bind` made, in a forked process that is not the ingress.

        A socket stays open until its last holder closes it, so each of them must.
        """

    def start(self) -> None:
        """Begin, in the user's program, when all processes are up."""

    def stop(self) -> None:
        """End, in the user's program, when the run is over; also after a failed start."""

    def batches(self, context: SourceContext) -> AsyncIterator[SourceBatch]:
        """Yield the batches in order, in the ingress process; usually an async generator."""
        raise NotImplementedError(
            f"{type(self).__name__} must define `async def batches(self, context)` that yields SourceBatch"
        )


class Table(Source):
    """Rows the program holds or can make: a Table, a RecordBatch, an iterable of either, or a list of dicts.

    `rate` paces the rows, in rows per second. `batch_rows` is the size batches are cut to; consecutive
    batches much smaller than it are put together. An iterable that is not a list or tuple is pulled in a
    thread of the ingress process, so it may block; it is used up there, not in the user's program.

    >>> Table([{"src": 1, "app": "web"}]).schema.names
    ['src', 'app']
    """

    def __init__(self, data: Any, rate: float | None = None, batch_rows: int | None = None) -> None:
        self.rate = _checked_rate(rate)
        self.batch_rows = _checked_batch_rows(batch_rows)
        if self.rate is not None:
            self.batch_rows = max(1, min(self.batch_rows, math.ceil(self.rate / PACED_BATCHES_PER_S)))
        self.schema, self._pieces = _pieces_of(data)
        self._is_list = isinstance(self._pieces, list | tuple)
        self._used_up = False

    def bind(self, directory: Path) -> None:
        """Claim the data: an iterator is for one run, because a process of that run uses it up."""
        if self._is_list:
            return
        # Noted in the user's program, since the iterator is advanced in another: here it would look untouched,
        # while the file or socket it reads from is not.
        if self._used_up:
            raise PlanError(
                "Table: data is an iterator and was used up by an earlier run. Give a list of batches or a "
                "pyarrow.Table to run the flow again, or make a new flow with a new iterator"
            )
        self._used_up = True

    async def batches(self, context: SourceContext) -> AsyncIterator[SourceBatch]:
        begin_s = trio.current_time()
        sent_rows = 0
        async for rows in self._pull():
            if self.rate is not None:
                # Absolute times: a late batch does not delay those after it, so the rate holds on average.
                await trio.sleep_until(begin_s + sent_rows / self.rate)
            yield SourceBatch(rows)
            sent_rows += rows.num_rows

    async def _pull(self) -> AsyncIterator[pa.RecordBatch]:
        checked = _checked_batches(self._pieces, self.schema)
        if self._is_list:
            for rows in _resized(checked, self.batch_rows):
                await trio.lowlevel.checkpoint()
                yield rows
            return
        # The user's iterator may block for as long as it likes; the ingress has acks to answer meanwhile.
        arriving = _Arriving(checked, self.batch_rows)
        while taken := await trio.to_thread.run_sync(arriving.take, abandon_on_cancel=True):
            for rows in _resized(taken, self.batch_rows):
                yield rows


class _Arriving:
    """Batches of an iterator, pulled by a thread of its own, so that those that came need not wait for the next."""

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
        """Return what has come, once it is enough or has waited for `PATIENCE_S`; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._held or self._ended)
            self._changed.wait_for(lambda: self._enough or self._ended, PATIENCE_S)
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
            # Pulled ahead by one batch and no further: the source is asked only when there is room.
            self._changed.wait_for(lambda: not self._enough)
            self._held.append(batch)
            self._held_rows += batch.num_rows
            self._enough = self._held_rows >= self._batch_rows or not _is_small(batch, self._batch_rows)
            if self._enough or len(self._held) == 1:
                self._changed.notify_all()


def _checked_rate(rate: float | None) -> float | None:
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise PlanError(f"Table: rate must be a number of rows per second above 0, or None; it is {rate!r}")
    return float(rate)


def _checked_batch_rows(batch_rows: int | None) -> int:
    if batch_rows is None:
        return DEFAULT_BATCH_ROWS
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise PlanError(f"Table: batch_rows must be a whole number of rows above 0; it is {batch_rows!r}")
    return batch_rows


def _pieces_of(data: Any) -> tuple[pa.Schema, Iterable[Any]]:
    """Return the schema of the data and an iterable of its Tables and RecordBatches."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        return _checked_schema(data.schema), [data]
    if isinstance(data, list) and data and isinstance(data[0], dict):
        table = _table_of_dicts(data)
        return _checked_schema(table.schema), [table]
    if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
        raise PlanError(f"Table: data must be {EXPECTED}; it is {_kind(data)}.{_hint(data)}")
    iterator = iter(data)
    first = next(iterator, _NOTHING)
    if first is _NOTHING:
        raise PlanError("Table: data is empty, so its columns are unknown; give a pyarrow.Table with a schema")
    if not isinstance(first, pa.Table | pa.RecordBatch):
        raise PlanError(f"Table: data must be {EXPECTED}; it is {_kind(data)} that holds {_kind(first)}.{_hint(data)}")
    # The first item of an iterator is gone once looked at, so it is put back in front.
    pieces = data if isinstance(data, list | tuple) else itertools.chain([first], iterator)
    return _checked_schema(first.schema), pieces


def _table_of_dicts(rows: list[Any]) -> pa.Table:
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise PlanError(f"Table: data is a list of dicts, but row {index} is {_kind(row)}")
        if not all(isinstance(name, str) for name in row):
            raise PlanError(f"Table: the column names of row {index} must be strings; they are {list(row)!r}")
    # Arrow takes the columns from the first dict alone and would drop, silently, what only later ones have.
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowException, OverflowError) as error:
            raise PlanError(
                f"Table: the values of column {name!r} do not make one Arrow type: {error}. Give a "
                "pyarrow.Table with a schema to say which type is meant"
            ) from error
    if not columns:
        raise PlanError("Table: the dicts of data are empty: there are no columns")
    return pa.table(columns)


def _checked_schema(schema: pa.Schema) -> pa.Schema:
    if not schema.names:
        raise PlanError("Table: data has no columns")
    try:
        return plain_schema(schema)
    except ColumnError as error:
        raise PlanError(f"Table: {error}") from error


def _checked_batches(pieces: Iterable[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of all pieces, none of them empty, having checked that they are alike."""
    for index, piece in enumerate(_blaming_data(pieces)):
        if not isinstance(piece, pa.Table | pa.RecordBatch):
            raise PlanError(
                f"Table: item {index} of data is {_kind(piece)}; a pyarrow.Table or RecordBatch was expected"
            )
        if not _checked_schema(piece.schema).equals(schema):
            raise PlanError(
                f"Table: item {index} of data has columns {columns_of(piece.schema)}; the first had "
                f"{columns_of(schema)}. Cast it before handing it over"
            )
        for batch in piece.to_batches() if isinstance(piece, pa.Table) else (piece,):
            if batch.num_rows:
                # Metadata is no part of the rows; with it alike, the schema of all batches is the very same.
                yield pa.RecordBatch.from_arrays(plain_batch(batch).columns, schema=schema)


def _blaming_data(pieces: Iterable[Any]) -> Iterator[Any]:
    """Yield the pieces; what the user's iterator raises is reported as the iterator's, with its place."""
    count = 0
    iterator = iter(pieces)
    while True:
        try:
            piece = next(iterator)
        except StopIteration:
            return
        except (Exception, SystemExit) as error:
            raise FluxError(
                f"Table: the iterable given as data raised {type(error).__name__} at item {count}: {error}"
            ) from error
        yield piece
        count += 1


def _resized(batches: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Cut what is larger than `batch_rows`, and put together consecutive batches that are much smaller."""
    held: list[pa.RecordBatch] = []
    held_rows = 0
    for batch in batches:
        small = _is_small(batch, batch_rows)
        if held and (not small or held_rows + batch.num_rows > batch_rows):
            yield _together(held)
            held, held_rows = [], 0
        if small:
            held.append(batch)
            held_rows += batch.num_rows
        else:
            for offset in range(0, batch.num_rows, batch_rows):
                yield batch.slice(offset, batch_rows)
    if held:
        yield _together(held)


def _is_small(batch: pa.RecordBatch, batch_rows: int) -> bool:
    return bool(batch.num_rows * MUCH_SMALLER <= batch_rows)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _kind(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("a builtins.", "a ")


def _hint(data: Any) -> str:
    if hasattr(data, "writeStream"):
        return " For a Spark DataFrame use flux.spark.Stream(df)"
    if hasattr(data, "iloc"):
        return " For a pandas DataFrame use pyarrow.Table.from_pandas(df)"
    if isinstance(data, dict):
        return " For a dict of columns use pyarrow.table(data)"
    return ""
