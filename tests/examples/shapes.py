"""The shapes of data that each example is run on, through kills; shared by the tests here.

An example says for each shape which columns of its random rows are other ones, and compares what comes out with a
computation of all rows at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import flux
from experiments.examples.running import Flow
from tests.runtime.through_kills import SIZES, WITH_EMPTY_BATCHES, through_kills

Columns = dict[str, Any]
# These need no other columns: what is random may be that, and may come in batches of which most are empty.
SHAPES: dict[str, Columns] = {"random": {}, "empty batches": {}}


def with_columns(rows: pa.Table, columns: Columns) -> pa.Table:
    """The rows with other values in these columns; types stay."""
    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        field = rows.schema.field(place)
        rows = rows.set_column(place, field, pa.array(values, field.type))
    return rows


def run_through_kills(flow: Flow, rows: pa.Table, shape: str, directory: Path) -> flux.Report:
    """Run an example in which every first copy dies."""
    return through_kills(flow, rows, directory, WITH_EMPTY_BATCHES if shape == "empty batches" else SIZES)
