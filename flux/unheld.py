"""Values that Arrow holds and Python has no objects for: times beyond the year 9999, times of day in nanoseconds.

They are met where rows become Python's, column after column, which says nothing of a row. Then the first row with one
is looked for here: what an operator meets must not depend on how rows are cut into batches.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from flux.as_python import python_of

__all__ = ["UNHELD", "first_unheld", "shown_row", "shown_value"]

UNHELD = (ValueError, OverflowError)  # What `python_of` raises for such a value.


def first_unheld(rows: Any) -> tuple[int, str] | None:
    """Return the first row of a record batch that has such a value, and what to say of it; None if none has.

    >>> first_unheld(pa.record_batch({"day": pa.array([0, 3_663_382], pa.date32())}))[1][:59]
    "column 'day': Python has no value for 12000-01-01, a date32"
    """
    places = [(place, i) for i, column in enumerate(rows.columns) if (place := _first(column)) is not None]
    if not places:
        return None
    place, i = min(places)
    value = rows.column(i).slice(place, 1)
    return place, (
        f"column {rows.schema.names[i]!r}: Python has no value for {shown_value(value)}, a {value.type} "
        f"({_why_not(value)}). Leave the column out with select before, or work on batch.arrow; or let "
        'on_error="skip" leave out and count such rows'
    )


def _first(column: Any) -> int | None:
    if _why_not(column) is None:
        return None
    begin, end = 0, len(column)
    while end - begin > 1:
        middle = (begin + end) // 2
        begin, end = (middle, end) if _why_not(column.slice(begin, middle - begin)) is None else (begin, middle)
    return begin


def _why_not(column: Any) -> str | None:
    try:
        python_of(column)
    except UNHELD as error:
        return str(error)
    return None


def shown_row(rows: Any, place: int) -> str:
    """Return a row of a record batch as text, whatever is in it."""
    row = rows.slice(place, 1)
    values = [shown_value(value) if _why_not(value) is not None else python_of(value)[0] for value in row.columns]
    return repr(dict(zip(row.schema.names, values, strict=True)))


def shown_value(one: Any) -> str:
    """Return the value of an array of one, as Arrow tells it."""
    try:
        return str(one.cast(pa.string())[0])
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return " ".join(one.to_string().split())  # It holds several.
