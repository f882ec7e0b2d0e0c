"""Values that a type cannot have are found wherever they stand, and only they are."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from flux.types.normalize import ColumnError
from flux.types.validate import check_rows, check_values, raw_schema

TIMES = pa.array([1, 90_000, 3], pa.time32("s"))
TEXT = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", "é".encode()]).buffers())
DAYS = pa.array([0, 1, 86_400_000], pa.date64())
WIDE = pa.Array.from_buffers(
    pa.decimal128(3, 0), 3, pa.array([1, 1_000, 2], pa.int64()).cast(pa.decimal128(19)).buffers()
)
WRONG = {
    "time32": (TIMES, "90000 is not a time32[s]"),
    "time64": (pa.array([1, -1, 3], pa.time64("ns")), "-1 is not a time64[ns]"),
    "date64": (DAYS, "1 is not a date64[ms]"),
    "text": (TEXT, r"b'\xff' is not a string"),
    "large text": (TEXT.view(pa.binary()).cast(pa.large_binary()).view(pa.large_string()), r"b'\xff' is not a large_"),
    "decimal": (WIDE, "1000 is not a decimal128(3, 0)"),
}
NESTED: dict[str, Any] = {
    "struct": lambda column: pa.StructArray.from_arrays([pa.array([1, 2, 3]), column], ["n", "x"]),
    "list": lambda column: pa.ListArray.from_arrays([0, 1, 2, 3], column),
    "fixed list": lambda column: pa.FixedSizeListArray.from_arrays(column, 1),
    "map": lambda column: pa.MapArray.from_arrays([0, 1, 2, 3], ["a", "b", "c"], column),
    "list of structs": lambda column: NESTED["list"](NESTED["struct"](column)),
}


@pytest.mark.parametrize("nested", [None, *NESTED])
@pytest.mark.parametrize("which", WRONG)
def test_a_value_that_its_type_cannot_have_is_found(which: str, nested: str | None) -> None:
    column, said = WRONG[which]
    column = column if nested is None else NESTED[nested](column)
    check_values(column.slice(0, 1))
    check_values(column.slice(2))
    with pytest.raises(ColumnError, match=f"^column 'c': .*{re.escape(said)}"):
        check_rows(pa.record_batch({"n": [1, 2, 3], "c": column}))


def test_what_stands_behind_a_null_is_no_value() -> None:
    valid = pa.array([True, False, True]).buffers()[1]
    check_values(pa.Array.from_buffers(pa.time32("s"), 3, [valid, TIMES.buffers()[1]]))
    check_values(pa.Array.from_buffers(pa.string(), 3, [valid, *TEXT.buffers()[1:]]))


@pytest.mark.parametrize("nested", [None, *NESTED])
@pytest.mark.parametrize("which", WRONG)
def test_under_its_raw_schema_any_batch_is_valid_that_is_laid_out_well(which: str, nested: str | None) -> None:
    column = WRONG[which][0] if nested is None else NESTED[nested](WRONG[which][0])
    rows = pa.record_batch({"c": column})
    message = pa.ipc.read_message(rows.serialize())
    with pytest.raises(pa.ArrowInvalid):
        pa.ipc.read_record_batch(message, rows.schema).validate(full=True)
    pa.ipc.read_record_batch(message, raw_schema(rows.schema)).validate(full=True)
