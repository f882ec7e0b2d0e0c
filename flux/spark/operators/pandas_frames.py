"""DataFrames for Spark's pandas forms, as Spark makes them, and those of user code as Arrow rows."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa

from ...types.array_types import Key
from ...types.errors import PlanError
from .grouping_keys import KeyGroups
from .session_settings import PandasSettings

__all__ = ["as_from_rows", "check_pandas", "frames_of", "from_frame", "pandas_key", "to_frame"]


def check_pandas(owner: str) -> None:
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise PlanError(f"{owner}: it takes DataFrames, but pandas is not installed: pip install 'pandas<3'") from error


def frames_of(groups: KeyGroups, indices: range, settings: PandasSettings, from_rows: bool) -> Iterator[list[Any]]:
    """Yield the DataFrames of each of these groups: one, or several of at most the rows or bytes that Spark allows.

    `from_rows` says that Spark makes them of rows, as `transformWithStateInPandas` does. Otherwise it makes each of its
    own slice of columns, and nulls of other groups do not change its types.
    """
    if not indices:
        return
    base = groups.starts[indices[0]]
    rows = groups.rows.slice(base, groups.stops[indices[-1]] - base)
    most = _chunk_rows(rows, settings)
    has_typing_nulls = any(column.null_count and _has_no_null(column.type) for column in rows.columns)
    whole = None if has_typing_nulls and not from_rows else to_frame(rows, settings)
    if from_rows:
        whole = as_from_rows(whole)
    for i in indices:
        start, stop = groups.starts[i] - base, groups.stops[i] - base
        cuts = [(at, min(at + most, stop)) for at in range(start, stop, most)]
        if whole is None:
            yield [to_frame(rows.slice(at, end - at), settings) for at, end in cuts]
        else:
            chunks = [whole.iloc[at:end].reset_index(drop=True) for at, end in cuts]
            yield [chunk.infer_objects() for chunk in chunks] if has_typing_nulls else chunks


def _has_no_null(kind: pa.DataType) -> bool:
    """Whether pandas takes another type for a column with nulls."""
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _chunk_rows(rows: Any, settings: PandasSettings) -> int:
    """Return the rows of a chunk. As in Spark, it is full with the row that reaches the limit of rows or of bytes."""
    row_bytes = rows.nbytes / rows.num_rows
    return max(1, min(settings.max_rows, math.ceil(settings.max_bytes / row_bytes) if row_bytes else settings.max_rows))


def pandas_key(key: Key) -> Key:
    """Return a key as Spark reads it from a DataFrame: times are naive, in the time zone of the session."""
    if not any(isinstance(value, datetime) for value in key):
        return tuple(key)
    import pandas as pd

    return tuple(pd.Timestamp(each.replace(tzinfo=None)) if isinstance(each, datetime) else each for each in key)


def to_frame(rows: Any, settings: PandasSettings) -> Any:
    """Return Arrow rows as a DataFrame, by Spark's own rules: times are naive, in the time zone of the session."""
    import pandas as pd
    from pyspark.sql.conversion import ArrowBatchTransformer

    columns = ArrowBatchTransformer.to_pandas(
        rows, timezone=settings.zone, prefer_int_ext_dtype=settings.prefers_int_extension
    )
    return pd.concat(columns, axis=1)


def as_from_rows(frame: Any) -> Any:
    """Return a DataFrame as `transformWithStateInPandas` gets it, which Spark makes anew from its rows.

    Whole numbers have 64 bits then, and floats too. A column whose name is not that of a Python field is called ``_``
    and its number.
    """
    row = namedtuple("row", [str(name) for name in frame.columns], rename=True)  # type: ignore[misc]
    wide = {name: kind.kind + "8" for name, kind in frame.dtypes.items() if str(kind) in _NARROW}
    return frame.astype(wide).set_axis(list(row._fields), axis=1)


_NARROW = ("int8", "int16", "int32", "float32")


def from_frame(frame: Any, output: Any, schema: pa.Schema, settings: PandasSettings) -> Any:
    """Return a DataFrame from user code as Arrow rows, by Spark's rules: naive times are in the session's zone."""
    import pandas as pd
    from pyspark.sql.conversion import PandasToArrowConversion

    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"a pandas.DataFrame was expected as output, got {type(frame).__name__}")
    if frame.empty:
        # pandas has no types for the columns of an empty DataFrame: there is nothing to convert.
        if len(frame.columns) and settings.assigns_by_name and set(schema.names) - set(frame.columns):
            raise ValueError(f"the columns {', '.join(schema.names)} were expected, got {', '.join(frame.columns)}")
        return pa.RecordBatch.from_pylist([], schema)
    batch = PandasToArrowConversion.convert(
        frame,
        output,
        timezone=settings.zone,
        safecheck=settings.checks_safely,
        arrow_cast=True,
        assign_cols_by_name=settings.assigns_by_name,
        int_to_decimal_coercion_enabled=settings.coerces_int_to_decimal,
    )
    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
