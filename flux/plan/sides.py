"""Sides: how rows of different columns travel through one stage: widened to the columns of all sides, and marked."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

SIDE = "__side"


def wide_names(sides: Sequence[pa.Schema]) -> list[str]:
    """The columns of a widened row: its side, and those of each side behind the side's number.

    >>> wide_names([pa.schema({"k": pa.int64()}), pa.schema({"k": pa.int64(), "v": pa.int64()})])
    ['__side', '0.k', '1.k', '1.v']
    """
    return [SIDE, *(f"{side}.{name}" for side, schema in enumerate(sides) for name in schema.names)]
