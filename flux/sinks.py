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

    >>> sink = Collect()
    >>> sink.write(pa.record_batch({"n": [1, 2]}), after=-1, upto=1)
    >>> sink.table().to_pylist()
    [{'n': 1}, {'n': 2}]
    """

    def __init__(self) -> None:
        self.collected: list[pa.RecordBatch] = []

    def open(self, directory: Path) -> None:
        """Forget what an earlier run of the same flow left."""
        self.collected = []

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        if rows.num_rows:
            self.collected.append(rows)

    def table(self, schema: pa.Schema | None = None) -> pa.Table:
        """Return everything collected as one table; if that is nothing, an empty one of `schema`."""
        if schema is None:
            schema = self.collected[0].schema if self.collected else pa.schema([])
        return pa.Table.from_batches(self.collected, schema)
