"""The source `Table`: rows the program holds or can make."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..types.errors import PlanError
from .pieces import (
    Pace,
    arrow_table,
    batch_size,
    checked_batches,
    checked_rate,
    checked_schema,
    pull_in_thread,
    skip_rows,
    table_of_dicts,
    type_name,
    yield_resized,
)
from .source import Source, SourceBatch, SourceContext

EXPECTED = "a table (of pyarrow, pandas, Polars and others), an iterable of tables, or a list of dicts"

_NOTHING = object()


class Table(Source):
    """Rows the program holds or can make: a table, an iterable of tables, or a list of dicts.

    A table is a Table or RecordBatch of pyarrow, or what gives one by Arrow's ``__arrow_c_stream__``, such as frames of
    pandas and Polars. The index of a pandas frame is a column, as ``pyarrow.Table.from_pandas`` makes it;
    ``reset_index(drop=True)`` leaves it out. ``polars.from_arrow(report.table)`` is the way back.

    `rate` paces the rows, in rows per second. `batch_rows` is the size batches are cut to; consecutive
    batches much smaller than it are combined. An iterable that is not a list or tuple is pulled in a thread of the
    ingress process, so it may block; it is used up there, not in the user's program.

    A restarted ingress iterates from the start, in a process that has not touched the iterator, and skips the rows
    before its offset. So an iterator must yield the same rows each time. One that reads from an open file, pipe or
    socket does not, because the processes share its position: use a generator that opens the file itself.

    >>> Table([{"src": 1, "app": "web"}]).schema.names
    ['src', 'app']
    """

    replays = True
    emits_time = False

    def __init__(self, data: Any, rate: float | None = None, batch_rows: int | None = None) -> None:
        self.rate = checked_rate("Table", rate)
        self.batch_rows = batch_size("Table", batch_rows, self.rate)
        self.schema, self._pieces = _pieces_of(data)
        self._is_list = isinstance(self._pieces, list | tuple)
        self.is_endless = not self._is_list
        self._used_up = False

    def bind(self, directory: Path) -> None:
        """Claim the data: an iterator is for one run, because a process of that run uses it up."""
        if self._is_list:
            return
        # Noted in the user's program, since another process advances the iterator: here it would look unused,
        # while the file or socket it reads from is not.
        if self._used_up:
            raise PlanError(
                "Table: data is an iterator and was used up by an earlier run. Give a list of batches or a "
                "pyarrow.Table to run the flow again, or make a new flow with a new iterator"
            )
        self._used_up = True

    def sample(self, rows: int) -> pa.Table | None:
        if not self._is_list:
            return None
        whole = pa.Table.from_batches(checked_batches("Table", self._pieces, self.schema), self.schema)
        if whole.num_rows <= rows:
            return whole
        return whole.take(np.arange(rows) * whole.num_rows // rows)

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        """Yield the rows after the first `after`: the offset of a table is a number of rows."""
        offset = after or 0
        pace = Pace(self.rate)
        async with contextlib.aclosing(self._pull(offset)) as pulled:
            async for rows in pulled:
                await pace.wait(rows.num_rows)
                offset += rows.num_rows
                yield SourceBatch(rows, offset=offset)

    def _pull(self, after: int) -> AsyncGenerator[pa.RecordBatch, None]:
        batches = skip_rows(checked_batches("Table", self._pieces, self.schema), after, "Table")
        return yield_resized(batches, self.batch_rows) if self._is_list else pull_in_thread(batches, self.batch_rows)


def _pieces_of(data: Any) -> tuple[pa.Schema, Iterable[Any]]:
    """Return the schema of the data and an iterable of its Tables and RecordBatches."""
    if (table := arrow_table(data)) is not None:
        return checked_schema("Table", table.schema), [table]
    if isinstance(data, list) and data and isinstance(data[0], dict):
        table = table_of_dicts("Table", data)
        return checked_schema("Table", table.schema), [table]
    if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
        raise PlanError(f"Table: data must be {EXPECTED}; it is {type_name(data)}.{_hint(data)}")
    iterator = iter(data)
    first = next(iterator, _NOTHING)
    if first is _NOTHING:
        raise PlanError("Table: data is empty, so its columns are unknown; give a pyarrow.Table with a schema")
    if (table := arrow_table(first)) is None:
        found = f"{type_name(data)} that holds {type_name(first)}"
        raise PlanError(f"Table: data must be {EXPECTED}; it is {found}.{_hint(data)}")
    # The first item of an iterator is gone once read, so it is put back in front.
    pieces = data if isinstance(data, list | tuple) else itertools.chain([first], iterator)
    return checked_schema("Table", table.schema), pieces


def _hint(data: Any) -> str:
    if hasattr(data, "writeStream"):
        return " For a Spark DataFrame use flux.spark.Stream(df)"
    if isinstance(data, dict):
        return " For a dict of columns use pyarrow.table(data)"
    return ""
