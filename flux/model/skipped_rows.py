"""Skipped rows: the rows that `on_error="skip"` leaves out, as a stream of their own.

`flow.skipped()` gives each segment one more step, which emits the rows that the other steps of the segment skipped.
They have the number of their input row, and travel the exchange as any output does: once, in order, whatever fails.

All copies of a partition must emit the same. So the error is without files, lines and addresses in memory, which may
differ from one machine to another.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa

from ..types.errors import OperatorError
from ..types.to_python import row_values
from .batch import Batch
from .operator import PooledOperator

__all__ = ["SKIPPED_SCHEMA", "SkippedRows", "skipped_row"]

SKIPPED_SCHEMA = pa.schema({"step": pa.string(), "error": pa.string(), "row": pa.string()})

_ERROR_MAX_CHARS = 2_000
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_LINE = re.compile(r" \([^()]*:\d+\)")


class SkippedRows(PooledOperator):
    """The step of a segment whose output is the rows that its other steps skipped; it ignores its own input."""

    def process(self, batch: Batch) -> Batch | None:
        return None

    def get_partition_state(self, pid: int) -> None:
        return None

    def drop_partition(self, pid: int) -> None:
        pass


def skipped_row(row: Batch, step: str, error: OperatorError) -> Batch:
    """Return a batch of one row, the skipped `row` as a row of `SKIPPED_SCHEMA`, in its place."""
    assert len(row) == 1
    cause = error.__cause__
    text = str(error.args[0]) if cause is None else f"{type(cause).__name__}: {cause}"
    text = _ADDRESS.sub("0x...", _LINE.sub("", text))[:_ERROR_MAX_CHARS]
    values = json.dumps(row_values(row.arrow, 0), default=str, ensure_ascii=False)
    arrow = pa.RecordBatch.from_pylist([{"step": step, "error": text, "row": values}], SKIPPED_SCHEMA)
    return Batch(arrow, row.sn, row.sub, np.asarray(row.partition))
