"""Where the output of a dataflow goes.

A sink runs in the egress process: `open` once, `write` for each batch, `close` at the end. Rows come in
(sn, sub) order when `order` is "sn", and as they come when it is "any". With each batch comes the range of
sequence numbers it speaks for, so that a sink on disk can note how far it is and resume behind that.

`Collect` is the exception: its rows are held by the program that started the run, so that killing the egress
loses nothing. The run takes them over from the egress and writes them here.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from flux.errors import OperatorError, PlanError
from flux.plain import columns_of

__all__ = ["Collect", "Null", "Sink"]


class Sink:
    """What `stream.sink(...)` takes. `order` is set by it, from its own argument."""

    order: str = "sn"

    def open(self, directory: Path) -> None:
        """Make ready for rows; `directory` is the sink's own for the whole run."""

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        """Take all the output with after < sn <= upto; on return it is durable. `rows` may be empty."""
        raise NotImplementedError(f"{type(self).__name__} must define `write(self, rows, after, upto)`")

    def close(self) -> None:
        """Finish; nothing is written after it."""


class Null(Sink):
    """Throw the output away. It is still counted in the report."""

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        pass


class Collect(Sink):
    """Keep the output in the program that started the run, as `report.table`.

    One run at a time uses it; what it has collected stays until the next one begins.

    >>> sink = Collect()
    >>> sink.write(pa.record_batch({"n": [1, 2]}), after=-1, upto=1)
    >>> sink.table().to_pylist()
    [{'n': 1}, {'n': 2}]
    """

    def __init__(self) -> None:
        self.collected: list[pa.RecordBatch] = []
        self._in_use = False

    def open(self, directory: Path) -> None:
        """Forget what an earlier run of the same flow left."""
        if self._in_use:
            raise PlanError(
                "flux.sinks.Collect: this sink is in use by a run that has not ended, and the rows of both would be "
                "mixed. Wait for that run or leave its `with` block; flows that run at the same time need a "
                "Collect() each"
            )
        self._in_use = True
        self.collected = []

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        if not rows.num_rows:
            return
        if self.collected and rows.schema != self.collected[0].schema:
            # Only an output that nobody declared can do that: each site takes it from the first rows it sees.
            raise OperatorError(
                f"the output came with the columns {columns_of(self.collected[0].schema)} at first and then with "
                f"{columns_of(rows.schema)}. Declare `output` with the operator before the sink"
            )
        self.collected.append(rows)

    def close(self) -> None:
        """Give the sink back; what was collected stays."""
        self._in_use = False

    def table(self, schema: pa.Schema | None = None) -> pa.Table:
        """Return everything collected as one table; if that is nothing, an empty one of `schema`."""
        if not self.collected:
            return (pa.schema([]) if schema is None else schema).empty_table()
        whole = pa.Table.from_batches(self.collected)
        # What was declared also says what rows do not: which columns have no nulls, and metadata.
        return whole if schema is None else whole.cast(schema)
