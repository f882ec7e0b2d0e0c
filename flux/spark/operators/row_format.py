"""The two forms in which a `StatefulProcessor` takes and gives rows: `pyspark.sql.Row`s, and pandas DataFrames.

A form takes a partition's groups to the processor and gathers what it yields; what all partitions have emitted becomes
columns once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from ...types.array_types import Key
from ...types.errors import FluxError, OperatorError, PlanError
from ...types.normalize import ColumnError, normalize_schema
from ...types.to_python import to_python
from .grouping_keys import KeyGroups
from .micro_batch_operator import Partition, raised
from .spark_columns import AsSpark
from .spark_values import row_type

__all__ = ["FORMS", "ProcessorCall", "RowFormat", "arrow_output", "frames_of"]

RAISED = (Exception, SystemExit)
# The initial rows of keys, each with its key, in Spark's order.
Initial = list[tuple[Key, Any]]


@dataclass(slots=True)
class ProcessorCall:
    """A processor at work on a micro-batch of a partition."""

    processor: Any
    handle: Any
    times: Any
    pid: int
    held: Partition

    def call(self, function: Callable[..., Any], key: Any, *args: Any) -> Any:
        """Call user code, and give what it raises its place."""
        try:
            return function(*args)
        except RAISED as error:
            raise self.error(error, function, key) from error

    def error(self, error: BaseException, function: Callable[..., Any], key: Any) -> FluxError:
        return error if isinstance(error, FluxError) else raised(error, function, self.pid, key, self.held)


class RowFormat(Protocol):
    """How rows come and go."""

    arrow: pa.Schema
    as_spark: AsSpark

    def each_group(self, task: ProcessorCall, groups: KeyGroups, ours: range, emitted: list[Any]) -> None:
        """Hand these groups, of one partition, to `handleInputRows`, in order."""

    def initial(self, task: ProcessorCall, key: Key, rows: Any) -> None:
        """Hand initial rows of a key to `handleInitialState`."""

    def take(
        self, task: ProcessorCall, function: Callable[..., Any], key: Any, produced: Iterable[Any], emitted: list[Any]
    ) -> None:
        """Gather what user code yields."""

    def columns(self, emitted: list[list[Any]]) -> tuple[dict[str, Any], list[int]]:
        """What partitions have emitted as columns, and how many rows each has in them."""


def arrow_output(output: Any, whose: str) -> pa.Schema:
    """The Arrow schema of what is emitted."""
    try:
        return normalize_schema(to_arrow_schema(output, timezone="UTC"))
    except (ColumnError, TypeError, ValueError) as error:
        raise PlanError(f"{whose}: outputStructType: {error}") from error


class _Rows:
    """`transformWithState`: rows are `Row`s."""

    def __init__(self, output: Any, zone: str, whose: str) -> None:
        self.arrow = arrow_output(output, whose)
        self.as_spark = AsSpark(zone, widens=False)
        self._names = list(output.names)
        self._is_nested = any(
            isinstance(f.dataType, types.ArrayType | types.MapType | types.StructType) for f in output
        )

    def each_group(self, task: ProcessorCall, groups: KeyGroups, ours: range, emitted: list[Any]) -> None:
        if not ours:
            return
        base = groups.starts[ours[0]]
        rows = _python_rows(groups.rows.slice(base, groups.stops[ours[-1]] - base))
        starts, stops, keys = groups.starts, groups.stops, groups.keys
        handle, times, handle_rows, extend = task.handle, task.times, task.processor.handleInputRows, emitted.extend
        key: Any = None
        try:
            for i in ours:
                key = handle.key = keys[i]
                extend(handle_rows(tuple(key), iter(rows[starts[i] - base : stops[i] - base]), times))
        except RAISED as error:
            raise task.error(error, handle_rows, key) from error

    def initial(self, task: ProcessorCall, key: Key, rows: Any) -> None:
        for row in _python_rows(rows):
            task.call(task.processor.handleInitialState, key, tuple(key), row, task.times)

    def take(
        self, task: ProcessorCall, function: Callable[..., Any], key: Any, produced: Iterable[Any], emitted: list[Any]
    ) -> None:
        task.call(emitted.extend, key, produced)

    def columns(self, emitted: list[list[Any]]) -> tuple[dict[str, Any], list[int]]:
        rows = [self._tuple(row) for some in emitted for row in some]
        columns = list(zip(*rows, strict=True)) or [()] * len(self._names)
        return dict(zip(self._names, columns, strict=True)), [len(some) for some in emitted]

    def _tuple(self, row: Any) -> Any:
        try:
            if row.__fields__ == self._names and not self._is_nested:
                return row
            found = row.asDict(True)
        except (AttributeError, TypeError) as error:
            raise OperatorError(
                f"a pyspark.sql.Row with the names {', '.join(self._names)} was expected as output, {row!r:.200} came. "
                'Yield Row(name=value, ...); for DataFrames say rows="pandas"'
            ) from error
        # By name, as Spark does it: what is missing is null, what is not in the schema is left out.
        return [found.get(name) for name in self._names]


def _python_rows(rows: Any) -> list[Any]:
    make = row_type(tuple(rows.schema.names))
    return list(map(make, zip(*(to_python(column) for column in rows.columns), strict=True)))


class _Pandas:
    """`transformWithStateInPandas`: rows are DataFrames, one for each key."""

    def __init__(self, output: Any, zone: str, whose: str) -> None:
        check_pandas(whose)
        self.arrow = arrow_output(output, whose)
        self.as_spark = AsSpark(zone, widens=True)
        self._output = output
        self._zone = zone

    def each_group(self, task: ProcessorCall, groups: KeyGroups, ours: range, emitted: list[Any]) -> None:
        for i, frame in zip(ours, frames_of(groups, ours, self._zone), strict=True):
            key = task.handle.key = groups.keys[i]
            handle_rows = task.processor.handleInputRows
            produced = task.call(handle_rows, key, pandas_key(key), iter([frame]), task.times)
            self.take(task, handle_rows, key, produced, emitted)

    def initial(self, task: ProcessorCall, key: Key, rows: Any) -> None:
        frame = to_frame(rows, self._zone)
        task.call(task.processor.handleInitialState, key, pandas_key(key), frame, task.times)

    def take(
        self, task: ProcessorCall, function: Callable[..., Any], key: Any, produced: Iterable[Any], emitted: list[Any]
    ) -> None:
        def converted() -> Iterator[Any]:
            return (from_frame(frame, self._output, self.arrow, self._zone) for frame in produced)

        task.call(lambda: emitted.extend(converted()), key)

    def columns(self, emitted: list[list[Any]]) -> tuple[dict[str, Any], list[int]]:
        return columns_of_batches(emitted, self.arrow)


FORMS: dict[str, Callable[[Any, str, str], Any]] = {"rows": _Rows, "pandas": _Pandas}


def columns_of_batches(emitted: list[list[Any]], schema: pa.Schema) -> tuple[dict[str, Any], list[int]]:
    """Record batches of partitions as columns, and how many rows each partition has in them."""
    whole = pa.Table.from_batches([batch for some in emitted for batch in some], schema)
    columns = {name: whole.column(name).combine_chunks() for name in schema.names}
    return columns, [sum(batch.num_rows for batch in some) for some in emitted]


def check_pandas(whose: str) -> None:
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise PlanError(f"{whose}: it takes DataFrames, and pandas is not installed: pip install 'pandas<3'") from error


def frames_of(groups: KeyGroups, ours: range, zone: str) -> Iterator[Any]:
    """A DataFrame for each of these groups, as Spark makes it."""
    if not ours:
        return
    base = groups.starts[ours[0]]
    whole = to_frame(groups.rows.slice(base, groups.stops[ours[-1]] - base), zone)
    for i in ours:
        yield whole.iloc[groups.starts[i] - base : groups.stops[i] - base].reset_index(drop=True)


def pandas_key(key: Key) -> Key:
    """A key as Spark takes it out of a DataFrame: times are naive, in the time zone of the session."""
    if not any(isinstance(value, datetime) for value in key):
        return tuple(key)
    import pandas as pd

    return tuple(pd.Timestamp(each.replace(tzinfo=None)) if isinstance(each, datetime) else each for each in key)


def to_frame(rows: Any, zone: str) -> Any:
    """Arrow rows as a DataFrame, by Spark's own rules: times are naive, in the time zone of the session."""
    import pandas as pd
    from pyspark.sql.conversion import ArrowBatchTransformer

    return pd.concat(ArrowBatchTransformer.to_pandas(rows, timezone=zone), axis=1)


def from_frame(frame: Any, output: Any, schema: pa.Schema, zone: str) -> Any:
    """A DataFrame that user code has yielded as Arrow rows, by Spark's own rules: naive times are of the session."""
    import pandas as pd
    from pyspark.sql.conversion import PandasToArrowConversion

    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"a pandas.DataFrame was expected as output, {type(frame).__name__} came")
    made = PandasToArrowConversion.convert(frame, output, timezone=zone, arrow_cast=True, assign_cols_by_name=True)
    columns = [column.cast(field.type) for column, field in zip(made.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
