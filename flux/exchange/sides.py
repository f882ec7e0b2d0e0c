"""Sides: rows with different columns in one stage, widened to the columns of all sides and marked with theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..types.normalize import HIDDEN

SIDE = "__side"


def widened_names(sides: Sequence[pa.Schema]) -> list[str]:
    """Return the columns of a widened row: its side, and those of each side prefixed with the side's number.

    >>> widened_names([pa.schema({"k": pa.int64()}), pa.schema({"k": pa.int64(), "v": pa.int64()})])
    ['__side', '0.k', '1.k', '1.v']
    """
    return [SIDE, *(f"{side}.{name}" for side, schema in enumerate(sides) for name in schema.names)]


def widen(rows: pa.RecordBatch, side: int, sides: Sequence[pa.Schema]) -> pa.RecordBatch:
    """Return the rows of one side with the columns of all, null where they have none; hidden columns are unchanged.

    >>> schemas = [pa.schema({"k": pa.int64()}), pa.schema({"v": pa.int64()})]
    >>> widen(pa.record_batch({"v": [7]}), 1, schemas).to_pylist()
    [{'__side': 1, '0.k': None, '1.v': 7}]
    """
    count = rows.num_rows
    arrays: list[Any] = [pa.array(np.full(count, side, np.uint8))]
    for other, schema in enumerate(sides):
        own = other == side
        arrays += [rows.column(name) if own else pa.nulls(count, schema.field(name).type) for name in schema.names]
    hidden = [name for name in rows.schema.names if name in HIDDEN]
    arrays += [rows.column(name) for name in hidden]
    return pa.RecordBatch.from_arrays(arrays, names=[*widened_names(sides), *hidden])
