"""The source `Generator`: rows that a function makes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import trio

from ..types.cast import cast_values
from ..types.errors import RAISED, FluxError, PlanError
from ..types.normalize import describe_columns
from .pieces import (
    Pace,
    batch_size,
    checked_count,
    checked_rate,
    checked_schema,
    column_of,
    concat,
    pull_in_thread,
    skip_rows,
    table_of_dicts,
    type_name,
)
from .source import Source, SourceBatch, SourceContext

EXPECTED = "a dict of columns, a pyarrow.Table or RecordBatch, or a list of dicts"


class Generator(Source):
    """Rows made by `fn`, in one of two forms.

    A function ``fn(offset, count)`` returns the rows from number `offset` on, at least one and at most `count` of them;
    None or no rows end the stream. It is called for each batch, from any offset.

    A generator function ``fn(offset)`` yields rows from number `offset` on, in pieces of any size; returning ends the
    stream. One without a parameter, ``fn()``, yields them from the beginning, and those before the offset are skipped.

    Rows are a dict of columns, a pyarrow.Table or RecordBatch, or a list of dicts. The same offset must always give the
    same rows, because a restarted ingress asks for them again. So random values must be seeded with the offset.

    `rows` is the length of the stream at most; `rate` paces it, in rows per second. The columns are those of the first
    row, for which `fn` is called when the source is made, unless `schema` declares them.

    >>> Generator(lambda offset, count: {"n": range(offset, offset + count)}, rows=100).schema
    n: int64
    """

    replays = True
    emits_time = False

    def __init__(
        self,
        fn: Callable[..., Any],
        rows: int | None = None,
        rate: float | None = None,
        *,
        schema: pa.Schema | None = None,
        batch_rows: int | None = None,
    ) -> None:
        if not callable(fn):
            raise PlanError(f"Generator: fn must be a function fn(offset, count) or a generator; it is {type_name(fn)}")
        self.rows = None if rows is None else checked_count("Generator", "rows", rows)
        self.is_endless = rows is None
        self.rate = checked_rate("Generator", rate)
        self.batch_rows = batch_size("Generator", batch_rows, self.rate)
        self._fn = fn
        self._yields = inspect.isgeneratorfunction(fn) or inspect.isgeneratorfunction(type(fn).__call__)
        self._takes_offset = bool(inspect.signature(fn).parameters)
        self.schema = checked_schema("Generator", self._first_schema() if schema is None else schema)

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        """Yield the rows after the first `after`: the offset is a number of rows."""
        offset = after or 0
        pace = Pace(self.rate)
        async with contextlib.aclosing(self._pull(offset) if self._yields else self._call_repeatedly(offset)) as made:
            async for batch in made:
                rows = batch if self.rows is None else batch.slice(0, self.rows - offset)
                if not rows.num_rows:
                    return
                await pace.wait(rows.num_rows)
                offset += rows.num_rows
                yield SourceBatch(rows, offset=offset)

    async def _call_repeatedly(self, offset: int) -> AsyncGenerator[pa.RecordBatch, None]:
        while self.rows is None or offset < self.rows:
            count = self.batch_rows if self.rows is None else min(self.batch_rows, self.rows - offset)
            batch = await trio.to_thread.run_sync(self._call, offset, count, abandon_on_cancel=True)
            if batch is None:
                return
            offset += batch.num_rows
            yield batch

    async def _pull(self, offset: int) -> AsyncGenerator[pa.RecordBatch, None]:
        async with contextlib.aclosing(pull_in_thread(self._iterate(offset), self.batch_rows)) as pulled:
            async for batch in pulled:
                yield batch

    def _call(self, offset: int, count: int) -> pa.RecordBatch | None:
        where = f"fn(offset={offset}, count={count})"
        with _errors_from(where):
            made = self._fn(offset, count)
        rows = None if made is None else _rows(made, self.schema, where)
        if rows is None or not rows.num_rows:
            return None
        if rows.num_rows > count:
            raise FluxError(f"Generator: {where} gave {rows.num_rows:,} rows, more than it was asked for")
        return rows

    def _iterate(self, offset: int) -> Iterator[pa.RecordBatch]:
        where = f"fn({offset if self._takes_offset else ''})"
        pieces = (_rows(piece, self.schema, where) for piece in self._pieces(offset, where))
        filled = (batch for batch in pieces if batch.num_rows)
        return filled if self._takes_offset else skip_rows(filled, offset, "Generator")

    def _pieces(self, offset: int, where: str) -> Iterator[Any]:
        with _errors_from(where):
            yield from self._fn(offset) if self._takes_offset else self._fn()

    def _first_schema(self) -> pa.Schema:
        where = "fn(0)" if self._yields else "fn(offset=0, count=1)"
        if self._yields:
            pieces = self._pieces(0, where)
            made = next(pieces, None)
            pieces.close()  # type: ignore[attr-defined]
        else:
            with _errors_from(where):
                made = self._fn(0, 1)
        if made is None:
            raise PlanError(f"Generator: {where} gave nothing, so the columns are unknown; give schema=...")
        return _table(made, where).schema


@contextlib.contextmanager
def _errors_from(where: str) -> Iterator[None]:
    """Report what the user's function raises as its error."""
    try:
        yield
    except RAISED as error:
        raise FluxError(f"Generator: {where} raised {type(error).__name__}: {error}") from error


def _table(made: Any, where: str) -> pa.Table:
    if isinstance(made, pa.Table):
        return made
    if isinstance(made, pa.RecordBatch):
        return pa.Table.from_batches([made])
    if isinstance(made, list) and all(isinstance(row, dict) for row in made):
        return table_of_dicts(f"Generator: {where}", made)
    if not isinstance(made, Mapping):
        raise FluxError(f"Generator: {where} gave {type_name(made)}; {EXPECTED} was expected")
    try:
        return pa.table({name: _column(values) for name, values in made.items()})
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise FluxError(f"Generator: the columns that {where} gave do not make a table: {error}") from error


def _column(values: Any) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, list):
        return column_of(values)
    # The function may reuse a numpy array for the next rows: it is copied.
    return cast_values(values) if isinstance(values, np.ndarray) else pa.array(values)


def _rows(made: Any, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Return what the function made as one batch with the source's columns."""
    if isinstance(made, list) and not made:
        return pa.RecordBatch.from_pylist([], schema=schema)
    table = _table(made, where)
    if set(table.schema.names) != set(schema.names):
        raise FluxError(
            f"Generator: {where} gave the columns {describe_columns(table.schema)}; expected {describe_columns(schema)}"
        )
    try:
        cast = table.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise FluxError(
            f"Generator: {where} gave the columns {describe_columns(table.schema)}, which do not fit "
            f"{describe_columns(schema)}: {error}. Say with schema=... which types are meant"
        ) from error
    batches = cast.combine_chunks().to_batches()
    return concat(batches) if batches else pa.RecordBatch.from_pylist([], schema=schema)
