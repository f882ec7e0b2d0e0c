"""The sink `Collect`: the output in the program that started the run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from ..types.errors import PlanError
from .sink import Sink, check_alike


class Collect(Sink):
    """Keep the output in the program that started the run, as `report.table`.

    One run at a time uses it; the collected rows stay until the next run begins.

    >>> sink = Collect()
    >>> sink.write(pa.record_batch({"n": [1, 2]}), after=-1, upto=1)
    >>> sink.table().to_pylist()
    [{'n': 1}, {'n': 2}]
    """

    def __init__(self) -> None:
        self.collected: list[pa.RecordBatch] = []
        self._schema: pa.Schema | None = None
        self._in_use = False

    def open(self, directory: Path) -> int | None:
        """Drop the rows of an earlier run of the same flow."""
        if self._in_use:
            raise PlanError(
                "flux.sinks.Collect: this sink is in use by a run that has not ended, and the rows of both would be "
                "mixed. Wait for that run or leave its `with` block; flows that run at the same time need a "
                "Collect() each"
            )
        self._in_use = True
        self.collected, self._schema = [], None
        return None

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        if not rows.num_rows:
            return
        self._schema = check_alike(self._schema, rows.schema)
        self.collected.append(rows)

    def close(self) -> None:
        """Release the sink for another run; the collected rows stay."""
        self._in_use = False

    def table(self, schema: pa.Schema | None = None) -> pa.Table:
        """Return everything collected as one table; if that is nothing, an empty one of `schema`."""
        if not self.collected:
            return (pa.schema([]) if schema is None else schema).empty_table()
        assert self._schema is not None
        alike = [rows if rows.schema == self._schema else rows.cast(self._schema) for rows in self.collected]
        whole = pa.Table.from_batches(alike)
        # The declared schema has what the rows lack: metadata, and which columns have no nulls.
        return whole if schema is None else whole.cast(schema)
